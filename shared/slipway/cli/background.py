"""Streams that are read while the caller's thread does something else: threads, their connections and their end.

Owns every thread of the command. Each has a connection of its own; only the caller's thread prints.

Promises: what a stream yields arrives in order, then `<kind>-over` with the error that ended it, or None; after `close`
no thread of ours runs.
"""

import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from slipway.cli import labels
from slipway.cli.http import Api, ServerSentEvent
from slipway.errors import ControlPlaneError

Json = dict[str, Any]

INBOX_MAX = 10_000
JOIN_S = 2.0
MISSING = re.compile(r"^\d+ lines? (?:is|are)")
"""How the mark of missing lines begins."""
REMEMBERED_MAX = 10_000
TIME_LENGTH = len("2026-01-02T03:04:05.678")


class News(NamedTuple):
    """Something that a thread read: an entry, or what ended its stream."""

    kind: str
    value: Any


class Background:
    """Threads that read streams into one inbox."""

    def __init__(self, connect: Callable[[], Api]) -> None:
        self._connect = connect
        self._inbox = queue.Queue[News](INBOX_MAX)
        self._threads: list[tuple[threading.Thread, Api]] = []
        self._closing = threading.Event()

    def read(self, kind: str, entries: Callable[[Api], Iterator[ServerSentEvent]]) -> None:
        """Start to read `entries`."""
        api = self._connect()

        def work() -> None:
            error: ControlPlaneError | None = None
            try:
                for entry in entries(api):
                    self._put(News(kind, entry))
            except ControlPlaneError as exc:
                error = exc
            finally:
                api.close()
            self._put(News(f"{kind}-over", error))

        thread = threading.Thread(target=work, name=kind, daemon=True)
        self._threads.append((thread, api))
        thread.start()

    def next(self, timeout_s: float) -> News | None:
        """What came next; None when nothing did in time."""
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

    def _put(self, news: News) -> None:
        """A full inbox slows the stream down; nobody waits for room in one that is closed."""
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
    """The events of an allocation until it has ended."""
    over = threading.Event()
    for entry in api.stream(f"/allocations/{id_}/events", after=after, is_over=over.is_set):
        if str(entry.data["type"]).endswith(".terminated"):
            over.set()
        yield entry


def lines_of(api: Api, id_: str, query: Json | None = None) -> Iterator[ServerSentEvent]:
    """The log lines of an allocation until it has ended, each once.

    Lines that come straight from pods have no ids, and a stream that breaks after them begins again: what was told
    before is known by its rank, time and text, as often as it was told.
    """
    path = f"/allocations/{id_}"
    asking = api.again()
    told, replayed = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    numbers: dict[tuple[Any, ...], int] = {}
    opened = 0
    try:
        wanted = {**(query or {}), "follow": "true"}
        for entry in api.stream(f"{path}/logs", wanted, is_over=lambda: labels.has_ended(asking.get(path))):
            if api.streams_opened != opened:
                opened, replayed = api.streams_opened, told.copy()
            if _is_told(entry.data, numbers):
                continue
            mark = _mark(entry.data)
            if replayed[mark] > 0:
                replayed[mark] -= 1
                continue
            if not entry.id and len(told) < REMEMBERED_MAX:
                told[mark] += 1
            yield entry
    finally:
        asking.close()


def _is_told(line: Json, numbers: dict[tuple[Any, ...], int]) -> bool:
    """Whether a line with a number, or a later one of its log, was told before; notes that it is now.

    After a break the server begins anew: a mark of missing lines then counts lines, too, that were told before, or
    counted. The mark is cut to the rest.
    """
    number, missing = int(line.get("number") or 0), int(line.get("missing") or 0)
    # What Kubernetes says of a pod is no line of its log, also where a server numbers it.
    if not number or line.get("stream") == "event":
        return False
    source = (line.get("attempt"), line.get("rank"), line.get("container"))
    last, told = number + max(missing, 1) - 1, numbers.get(source, 0)
    if last <= told:
        return True
    if missing and number <= told:
        rest = last - told
        line |= {"number": told + 1, "missing": rest}
        line["text"] = MISSING.sub(
            "1 line is" if rest == 1 else f"{rest} lines are", str(line.get("text", "")), count=1
        )
    numbers[source] = last
    return False


def _mark(line: Json) -> tuple[Any, ...]:
    """What a line is known by; its time in milliseconds, because not everybody keeps more."""
    return line.get("attempt"), line.get("rank"), str(line.get("time", ""))[:TIME_LENGTH].rstrip("Z"), line.get("text")
