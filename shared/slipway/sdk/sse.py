"""Server-sent events from bytes, and when to reopen a broken stream. Pure: the caller reads and waits.

Promises of `ResumableStream`: it remembers the id of the last delivered entry, or the position at which the server
began. After a break it returns how long to wait;
the waits double up to `PAUSE_S_MAX`. When the stream does not recover within `patience_s`, it raises the error that
broke the stream. An entry is a recovery, and so is a heartbeat: a stream may be quiet for hours between two breaks.

Source: WHATWG HTML, "Server-sent events".
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

SILENCE_S = 45.0
"""A stream that is silent for more seconds is reopened; the server sends a heartbeat every 15 s."""
PATIENCE_S = 60.0
"""Seconds of retries before a broken stream fails."""
PAUSE_S, PAUSE_S_MAX = 0.25, 3.0
HEARD_S = 10.0
"""A connection that still brings bytes after so many seconds works, also without an entry."""
LINE_BYTES_MAX = 4 * 1024 * 1024


class ServerSentEvent(NamedTuple):
    """One server-sent event; `data` is decoded when it is JSON, else it is text."""

    id: str
    name: str
    data: Any


class EventParser:
    """Parses the entries of one answer. An entry is complete only after its empty line.

    An id without data is no entry but the position of the stream: `stands_at` is called with it.
    """

    def __init__(self, stands_at: Callable[[str], object] = lambda _: None) -> None:
        self._stands_at = stands_at
        self._fields: dict[str, str] = {}
        self._rest = b""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the entries that these bytes complete. Raises ValueError for a line that is too long."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of the stream has more than {LINE_BYTES_MAX} bytes")
        return [entry for line in lines if (entry := self.line(line)) is not None]

    def line(self, raw: bytes) -> ServerSentEvent | None:
        """Return the entry that this line completes; None when it completes none."""
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            known = self._fields.get("data") if name == "data" else None
            self._fields[name] = value if known is None else f"{known}\n{value}"
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            if fields.get("id"):
                self._stands_at(fields["id"])
            return None
        return ServerSentEvent(fields.get("id", ""), fields.get("event", ""), _decoded(fields["data"]))


class ResumableStream:
    """One stream over several connections. Times are seconds of one monotonic clock."""

    def __init__(self, after: str = "", *, patience_s: float = PATIENCE_S, pause_s: float = PAUSE_S) -> None:
        self.last = after
        """the id after which the next connection continues"""
        self._patience_s, self._first_pause_s = patience_s, pause_s
        self._opened = 0.0
        self._calm()

    def passed(self, entry: ServerSentEvent) -> None:
        """Record a delivered entry: the stream works, and continues after this entry."""
        self.last = entry.id or self.last
        self._calm()

    def stands_at(self, id_: str) -> None:
        """Record the position that the server sent before the first entry."""
        self.last = id_

    def opened(self, now: float) -> None:
        """Record that a connection begins."""
        self._opened = now

    def heard(self, now: float) -> None:
        """Record that bytes arrived, such as a heartbeat."""
        if now - self._opened >= HEARD_S:
            self._calm()

    def pause_after(self, broken: Exception, now: float) -> float:
        """Return the seconds to wait before reopening. Raises `broken` after `patience_s` without a recovery."""
        if self._until is None:
            self._until = now + self._patience_s
        elif now > self._until:
            raise broken
        pause_s, self._pause_s = self._pause_s, min(PAUSE_S_MAX, self._pause_s * 2)
        return pause_s

    def _calm(self) -> None:
        self._until: float | None = None
        self._pause_s = self._first_pause_s


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
