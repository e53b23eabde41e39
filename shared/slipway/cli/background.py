"""Streams that are read in the background: threads, their connections and their end.

Owns every thread of the command. Each thread has its own connection; only the caller's thread prints.

Promises: the entries of a stream arrive in order, then `<kind>-over` with the error that ended the stream, or None.
After `close` no background thread runs.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from slipway.cli import labels
from slipway.cli.http import Api
from slipway.errors import NotFoundError
from slipway.sdk.sse import ServerSentEvent
from slipway.sdk.watches import LineDeduplicator

Json = dict[str, Any]

INBOX_MAX = 10_000
JOIN_S = 2.0


class StreamMessage(NamedTuple):
    """One message of a thread: an entry, or the end of its stream."""

    kind: str
    value: Any


class BackgroundStreams:
    """Threads that read streams into one inbox."""

    def __init__(self, connect: Callable[[], Api]) -> None:
        self._connect = connect
        self._inbox = queue.Queue[StreamMessage](INBOX_MAX)
        self._threads: list[tuple[threading.Thread, Api]] = []
        self._closing = threading.Event()

    def read(self, kind: str, entries: Callable[[Api], Iterator[ServerSentEvent]]) -> None:
        """Start a thread that reads `entries`."""
        api = self._connect()

        def work() -> None:
            error: Exception | None = None
            try:
                for entry in entries(api):
                    self._put(StreamMessage(kind, entry))
            except Exception as exc:  # noqa: BLE001 - the thread that reads the inbox raises it
                error = exc
            finally:
                api.close()
            self._put(StreamMessage(f"{kind}-over", error))

        thread = threading.Thread(target=work, name=kind, daemon=True)
        self._threads.append((thread, api))
        thread.start()

    def next(self, timeout_s: float) -> StreamMessage | None:
        """Return the next message; None when none arrives in `timeout_s`."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """End every thread."""
        self._closing.set()
        for _, api in self._threads:
            api.abort()
        for thread, _ in self._threads:
            thread.join(JOIN_S)

    def _put(self, news: StreamMessage) -> None:
        """Put a message. A full inbox slows the stream down; a closed one drops the message."""
        while not self._closing.is_set():
            try:
                self._inbox.put(news, timeout=0.1)
                return
            except queue.Full:
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def events_of(api: Api, id_: str, *, after: str = "") -> Iterator[ServerSentEvent]:
    """Yield the events of an allocation until it has ended."""
    over = threading.Event()
    for entry in api.stream(f"/allocations/{id_}/events", after=after, is_over=over.is_set):
        if str(entry.data["type"]).endswith(".terminated"):
            over.set()
        yield entry


def _is_over(asking: Api, path: str) -> bool:
    """Whether the allocation has ended or was deleted; its log then comes from the archive."""
    try:
        return labels.has_ended(asking.get(path))
    except NotFoundError:
        return True


def lines_of(api: Api, id_: str, query: Json | None = None) -> Iterator[ServerSentEvent]:
    """Yield the log lines of an allocation until it has ended, each line once."""
    path = f"/allocations/{id_}"
    asking = api.again()
    once, opened = LineDeduplicator(), 0
    try:
        wanted = {**(query or {}), "follow": "true"}
        for entry in api.stream(f"{path}/logs", wanted, is_over=lambda: _is_over(asking, path)):
            if api.streams_opened != opened:
                opened = api.streams_opened
                once.reopened()
            if once.is_new(entry.data, entry.id):
                yield entry
    finally:
        asking.close()
