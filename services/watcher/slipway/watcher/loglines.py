"""Cuts chunks of a pod's log into lines to store, and tracks the position from which to continue.

Owns what a line is: where it ends, what happens to carriage returns and over-long lines, which lines are known already
when a log is read again, and whether the node has removed unread lines. Pure: no IO, no clock.

Promises: each line of the node is returned once, in the node's order, even when the log is read again from the position
of an earlier reader. A line that is rewritten with carriage returns (a progress bar) becomes its newest state. A line
over `TEXT_BYTES_MAX` keeps its beginning and its end, with a mark that counts the bytes that were cut.
"""

import re
from datetime import UTC, datetime
from typing import Final

from slipway.model.times import format_time, parse_time
from slipway.streams.logpacks import LogPosition

TEXT_BYTES_MAX: Final = 16 * 1024
_TAIL_BYTES: Final = 4 * 1024
_HEAD_BYTES: Final = TEXT_BYTES_MAX - _TAIL_BYTES
_OPEN_BYTES_MAX: Final = 64 * 1024
"""The bytes of an unfinished line that are buffered; beyond them, the part that will be cut is dropped."""
_STAMP_CHARS: Final = 30
"""`2026-01-02T03:04:05.123456789Z`"""
_SECOND_CHARS: Final = 19
_PART_OF_STAMP: Final = re.compile(rb"[0-9T:.Z+-]{0,35}")
_CR: Final = b"\r"

LogEndMark = tuple[LogPosition, bytes, int]
"""(the position of the last line, the time of the unfinished line behind it, its bytes)"""


class LineSplitter:
    """Cuts one log into lines. Each read of the log needs its own instance."""

    def __init__(self, position: LogPosition) -> None:
        self.since = position.second
        """the time from which to request the log; empty: from the beginning"""
        self._second, self._seen, self._newest = position.second, position.seen, position.time
        self.is_torn = False
        """whether the node has removed lines between the position and the first line of this read"""
        self.resumed_at = ""
        """if `is_torn`, the time of the first line of this read"""
        self.first = ""
        """the time of the first line of a log that is read from its beginning; else empty"""
        self.first_second_bytes = 0
        """the bytes of that log that were written within a second after its first line"""
        self._first_until = ""
        self._known = position.seen
        """the number of known lines that the node still has to send again"""
        self._known_until = position.time
        self._is_again = bool(position.second)
        self._open = b""
        self._open_cut = 0
        self._rest_bytes = 0
        """the size of the unfinished line as its node sent it"""
        self._shown = b""
        """the last state of the unfinished line that was returned"""

    @property
    def is_open(self) -> bool:
        """Whether an unfinished line is rewritten with carriage returns, so that `progress` may have a new state."""
        return _CR in self._open

    @property
    def has_rest(self) -> bool:
        """Whether there is an unfinished line."""
        return bool(self._open)

    @property
    def is_short(self) -> bool:
        """Whether this read has ended within a line, or before a line that was read before."""
        return self.has_rest or self._is_again

    @property
    def is_behind(self) -> bool:
        """Whether this read has ended before a line that was read before."""
        return self._is_again

    @property
    def end_mark(self) -> LogEndMark:
        """Where this read has ended so far: the same for two reads that have ended at the same byte."""
        return self.position(0), self._open[:_STAMP_CHARS], self._rest_bytes

    @property
    def is_other_file(self) -> bool:
        """Whether the node has sent none of the known lines again, so it has begun another file since."""
        return self._is_again and self._known == self._seen

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in this chunk, as `<time> <text>`."""
        *ended, rest = chunk.split(b"\n")
        found: list[bytes] = []
        if ended:
            ended[0] = self._open + ended[0]
            cut, self._open, self._open_cut = self._open_cut, b"", 0
            for raw in ended:
                line = self._line(raw, cut)
                cut = 0
                if line is not None:
                    found.append(line)
        self._open += rest
        self._rest_bytes = len(rest) if ended else self._rest_bytes + len(rest)
        if len(self._open) > _OPEN_BYTES_MAX:
            self._shorten()
        return found

    def progress(self) -> list[bytes]:
        """Return the newest state of a line that is rewritten with carriage returns,
        if it differs from the last one returned."""
        if not self.is_open or self._is_again:
            return []
        stamp, _, text = self._open.partition(b" ")
        at = normal_time(stamp)
        state = _state(text)
        if not at or not state or state == self._shown:
            return []
        self._shown = state
        return [at + b" " + _short(state, 0)]

    def end(self) -> list[bytes]:
        """Return the last line, if the log has ended without a line end. A part of a time is no line."""
        raw, cut, self._open, self._open_cut, self._rest_bytes = self._open, self._open_cut, b"", 0, 0
        if _PART_OF_STAMP.fullmatch(raw) and not normal_time(raw):
            return []
        line = self._line(raw, cut) if raw else None
        return [line] if line is not None else []

    def position(self, number: int, *, is_ended: bool = False) -> LogPosition:
        """Return the position of this log after its line `number`."""
        return LogPosition(number=number, second=self._second, seen=self._seen, time=self._newest, is_ended=is_ended)

    @property
    def is_first_second_over(self) -> bool:
        """Whether a line was read that is more than a second younger than the first one."""
        return bool(self.first) and self._newest > self._first_until

    @property
    def first_second_s(self) -> float:
        """The duration in which `first_second_bytes` were written: one second, or less if the last line came before."""
        if not self.first or self.is_first_second_over:
            return 1.0
        return parse_time(self._newest) - parse_time(self.first)

    @property
    def newest(self) -> str:
        """The latest time of any line; empty before the first."""
        return self._newest

    def _line(self, raw: bytes, cut: int) -> bytes | None:
        stamp, _, text = raw.partition(b" ")
        at = stamp if len(stamp) == _STAMP_CHARS and stamp[-1:] == b"Z" else normal_time(stamp)
        if not at:
            # Text that a node inserts between lines has no time: it is returned with the time of the previous line.
            return b"%s %s" % (self._newest.encode(), _short(raw, cut)) if raw and self._newest else None
        if self._is_again and self._is_known(at.decode("ascii", "replace")):
            return None
        time = at.decode("ascii", "replace")
        if not self.since and (not self.first or time <= self._first_until):
            self._measure(time, len(raw) + cut)
        self._move(time)
        shown, self._shown = self._shown, b""
        state = _state(text) if _CR in text else text
        if shown and state == shown:
            return None
        return at + b" " + _short(state, cut)

    def _is_known(self, at: str) -> bool:
        """Whether this line was read before: the node sends lines again from the beginning of the requested second."""
        if at > self._known_until:
            self._is_again = False
            # The node sends the whole requested second again, unless it has removed these lines.
            self.is_torn = self._known == self._seen
            self.resumed_at = at
            return False
        if at[:_SECOND_CHARS] < self.since[:_SECOND_CHARS]:
            return True
        if self._known > 0:
            self._known -= 1
            self._is_again = self._known > 0
            return True
        self._is_again = False
        return False

    def _measure(self, at: str, size: int) -> None:
        if not self.first:
            self.first, self._first_until = at, format_time(parse_time(at) + 1.0, "microseconds")
        self.first_second_bytes += size

    def _move(self, at: str) -> None:
        second = f"{at[:_SECOND_CHARS]}Z"
        if second > self._second:
            self._second, self._seen = second, 1
        elif second == self._second:
            self._seen += 1
        self._newest = max(self._newest, at)

    def _shorten(self) -> None:
        if _CR in self._open:
            stamp, _, text = self._open.partition(b" ")
            self._open = stamp + b" " + _CR + _state(text)[-_HEAD_BYTES:]
            return
        middle = len(self._open) - _TAIL_BYTES - _HEAD_BYTES - _STAMP_CHARS - 1
        self._open = self._open[: _HEAD_BYTES + _STAMP_CHARS + 1] + self._open[-_TAIL_BYTES:]
        self._open_cut += middle


def normal_time(stamp: bytes) -> bytes:
    """Return an RFC 3339 time as UTC with nine digits, so that times compare as text; empty when it is not a time."""
    text = stamp.decode("ascii", "replace")
    if len(text) < 20 or text[4:5] != "-" or text[10] != "T":
        return b""
    try:
        moment = datetime.fromisoformat(f"{text[:_SECOND_CHARS]}{_zone(text)}").astimezone(UTC)
    except (ValueError, OverflowError):
        return b""
    fraction = text[_SECOND_CHARS:].lstrip(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))][:9]
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{digits:0<9}Z".encode()


def _zone(text: str) -> str:
    rest = text[_SECOND_CHARS:].lstrip(".0123456789")
    return "+00:00" if rest == "Z" else rest or "none"


def _state(text: bytes) -> bytes:
    """Return what a terminal shows of a line with carriage returns:
    the text after the last one that has text behind it."""
    return text.rstrip(_CR).rpartition(_CR)[2]


def _short(text: bytes, cut: int) -> bytes:
    """Return the text cut to `TEXT_BYTES_MAX`, with a mark; `cut` bytes after its beginning are missing already."""
    if not cut and len(text) <= TEXT_BYTES_MAX:
        return text
    head, tail = text[:_HEAD_BYTES], text[-_TAIL_BYTES:]
    missing = cut + len(text) - len(head) - len(tail)
    return b"%s [... %d bytes of this line are not kept ...] %s" % (head, missing, tail)
