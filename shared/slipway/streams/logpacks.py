"""The lines of a container's log as they are stored: packs of consecutive lines, a position per log, gaps with a count.

Owns the values, their wire form, and the rule for gaps. Must not know Redis or IO.

A log is what one container of one rank prints in one attempt. Its lines are numbered from 1, also those that are not
kept. A stored entry is a pack: lines of one log with consecutive numbers. So a reader that sees the numbers jump knows
how many lines are missing and where, whoever left them out: the writer, because it could not keep up, or the store,
because each log has a bound (its first lines and its last ones stay).

Invariants: a pack is appended only where its writer believes that the log stands, by number and by what was read; so no
line is stored twice, however many writers there are, and also when the store has lost the log and another writer has
told it again under other numbers. Encoding is deterministic. What is decoded may be hostile: it decodes to values
or raises `InvalidError`.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from slipway.errors import InvalidError
from slipway.model.ids import AllocationId

Fields = Mapping[str, bytes]

STDOUT: Final = "stdout"
"""What a container prints; the API of Kubernetes gives both of its streams as one."""
EVENT: Final = "event"
"""What Kubernetes says about a pod."""
PACK_BYTES_MAX: Final = 128 * 1024
"""Of the lines of one pack, before they are compressed; a writer stays far below."""
PACK_LINES_MAX: Final = 4_096
PACK_COST_BYTES: Final = 150
"""What an entry takes besides its lines; so the bound of a log also bounds how many packs it has."""
PAGE_PACKS: Final = 32
"""Packs that are read together: 4 MiB of lines at most."""
SHARE_BYTES_MIN: Final = 64 * 1024
EVENT_SHARE_BYTES: Final = 64 * 1024
FIRST_PART: Final = 8
"""The first lines of a log may take this part of its share; they stay."""
_LEVEL: Final = 1
_ABSENT: Final = "-"


class LogKey(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Which log of an allocation; `container` is empty for the main one."""

    attempt: int
    rank: int
    container: str = ""
    stream: str = STDOUT

    @property
    def name(self) -> str:
        """As it stands in the store."""
        return f"{self.attempt}/{self.rank}/{self.stream}/{self.container}"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `time` is RFC 3339 as the container runtime gave it; `number` is its place in its log, from 1; 0
    for what Kubernetes says of a pod, which has no place among the lines.

    With `missing` it is the mark of a gap: that many lines, from `number` on, are not kept; `text` says so. Where its
    writer left lines out before it, `follows` is the number of the stored line before them (0: none); else it is -1.
    """

    attempt: int
    rank: int
    stream: str = STDOUT
    time: str
    text: str
    container: str = ""
    number: int = 0
    missing: int = 0
    follows: int = -1

    @property
    def source(self) -> LogKey:
        """The log that it belongs to."""
        return LogKey(attempt=self.attempt, rank=self.rank, container=self.container, stream=self.stream)


class StoredLine(msgspec.Struct, frozen=True, kw_only=True):
    """One log line as read; resume after `cursor`."""

    cursor: str
    line: LogLine


class LogPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a log is stored.

    `number` is the last line's. To go on, its reader asks for the log since `second` (an RFC 3339 time of whole
    seconds, the finest that Kubernetes takes) and leaves out `seen` lines; `time` is the last line's own. `is_ended`
    once the log was read to its end.

    Of the lines up to `first_end` all are kept that were written, and of those from `kept_from` on (0: none yet);
    between them the store may have removed some.
    """

    number: int = 0
    second: str = ""
    seen: int = 0
    time: str = ""
    is_ended: bool = False
    first_end: int = 0
    kept_from: int = 0

    @property
    def place(self) -> tuple[int, str, int]:
        """What two readers of one log agree on when they have read and stored the same."""
        return self.number, self.second, self.seen


class LogPack(msgspec.Struct, frozen=True, kw_only=True):
    """Lines to append to one log, and where its reader stands after them.

    `after` is where the log is believed to stand; `first` the number of the first line here, and larger than that of
    `after` + 1 when the writer leaves lines out. `lines` are `<time> <text>` without a line end; none to move the
    position alone. `share_bytes` is what the log may take of the store. `position` says nothing of `first_end` and
    `kept_from`, which the store keeps.

    An event has no place in an order: `key` and `count` say what it is and how often it has happened. It is appended
    when the store has not had it yet, or when it has happened at least twice as often as when it was appended last.
    """

    allocation: AllocationId
    source: LogKey
    after: LogPosition
    first: int
    lines: Sequence[bytes]
    position: LogPosition
    share_bytes: int
    key: str = ""
    count: int = 0


class LogAppended(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a pack was appended, and where its log stands now, whoever wrote it."""

    is_appended: bool
    position: LogPosition


def share_of(allocation_bytes: int, logs: int) -> int:
    """What one log may take of the store, in bytes, when an allocation has so many ranks: an equal part, an eighth at
    most, and never less than `SHARE_BYTES_MIN`."""
    return max(SHARE_BYTES_MIN, allocation_bytes // max(8, logs))


def older_name(source: LogKey) -> str:
    """The log of the attempt before the last, which gives its room up when this one begins; empty when there is none.

    So an allocation holds two attempts in full, and of each earlier one the first and the last lines.
    """
    return msgspec.structs.replace(source, attempt=source.attempt - 2).name if source.attempt > 2 else ""


def encode_pack(pack: LogPack) -> dict[str, bytes]:
    """The fields of the entry."""
    source = pack.source
    last = pack.after.number
    left_out = {"p": b"%d" % last} if not pack.key and pack.first > last + 1 else {}
    return {
        **left_out,
        "a": b"%d" % source.attempt,
        "r": b"%d" % source.rank,
        "c": source.container.encode(),
        "s": source.stream.encode(),
        "n": b"%d" % pack.first,
        "k": b"%d" % len(pack.lines),
        "z": zlib.compress(b"\n".join(pack.lines), _LEVEL),
    }


def decode_pack(fields: Fields) -> list[LogLine]:
    """The lines of an entry; a text that is not UTF-8 is read with replacement characters."""
    attempt, rank, first, count = (_number(fields, name) for name in ("a", "r", "n", "k"))
    stream, container = _text(fields, "s"), _text(fields, "c")
    if not 0 < count <= PACK_LINES_MAX:
        raise InvalidError("not a pack of log lines: k")
    lines = _unpacked(fields.get("z", b"")).split(b"\n")
    if len(lines) != count:
        raise InvalidError("not a pack of log lines: z")
    follows = _number(fields, "p") if "p" in fields else -1
    found: list[LogLine] = []
    for place, raw in enumerate(lines, first):
        number = place if stream == STDOUT else 0
        time, _, text = raw.decode("utf-8", "replace").partition(" ")
        line = LogLine(
            attempt=attempt, rank=rank, stream=stream, time=time, text=text, container=container, number=number
        )
        found.append(line)
    if follows >= 0:
        found[0] = msgspec.structs.replace(found[0], follows=follows)
    return found


def encode_position(position: LogPosition, rest: Sequence[int] = (0, 0, 0, 0)) -> str:
    """A position as the store holds it; `rest` are its own four figures: the bytes of the first lines and of the last
    ones, and the places of the newest and the oldest pack that it may remove."""
    values = (
        position.number,
        position.second or _ABSENT,
        position.seen,
        position.time or _ABSENT,
        int(position.is_ended),
        position.first_end,
        position.kept_from,
        *rest,
    )
    return " ".join(map(str, values))


def decode_position(raw: bytes | None) -> LogPosition:
    """What the store holds; nothing, or what cannot be read, is the beginning."""
    parts = (raw or b"").decode("utf-8", "replace").split(" ")
    try:
        number, second, seen, time, ended, first_end, kept_from = parts[:7]
        return LogPosition(
            number=int(number),
            second="" if second == _ABSENT else second,
            seen=int(seen),
            time="" if time == _ABSENT else time,
            is_ended=ended == "1",
            first_end=int(first_end),
            kept_from=int(kept_from),
        )
    except ValueError:
        return LogPosition()


def source_of(name: str) -> LogKey | None:
    """The log of that name in the store; None for a name of another kind."""
    parts = name.split("/", 3)
    if len(parts) != 4 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return LogKey(attempt=int(parts[0]), rank=int(parts[1]), stream=parts[2], container=parts[3])


class Gaps:
    """Finds the gaps in lines as they are read, of any number of logs.

    `positions` is what the store says of each log at the start. A reader that begins in the middle of a log
    (`is_whole` False) knows of the gap before the first line that it sees by that line itself or by the store.
    """

    def __init__(self, positions: Mapping[LogKey, LogPosition], *, is_whole: bool) -> None:
        self._positions = positions
        self._is_whole = is_whole
        self._last: dict[LogKey, int] = {}

    def before(self, line: LogLine) -> LogLine | None:
        """The mark that stands before this line, if lines are missing there; and notes that the line was seen."""
        if line.stream != STDOUT or line.number <= 0:
            return None
        source = line.source
        last = self._last.get(source)
        if last is None:
            last = self._start(source, line)
        self._last[source] = max(last, line.number)
        missing = line.number - last - 1
        return gap(line, last + 1, missing) if missing > 0 else None

    def is_known(self, line: LogLine) -> bool:
        """Whether the line, or a later one of its log, was seen already."""
        return 0 < line.number <= self._last.get(line.source, 0)

    def _start(self, source: LogKey, line: LogLine) -> int:
        if self._is_whole:
            return 0
        position = self._positions.get(source)
        if position is not None and position.kept_from == line.number:
            return position.first_end
        return line.follows if line.follows >= 0 else line.number - 1


def gap(line: LogLine, number: int, missing: int) -> LogLine:
    """The mark of a gap before a line."""
    lines = "1 line is" if missing == 1 else f"{missing} lines are"
    text = f"{lines} missing here: this rank printed more than is kept, or faster than it could be stored"
    return msgspec.structs.replace(line, number=number, missing=missing, text=text, follows=-1)


def _unpacked(data: bytes) -> bytes:
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data, PACK_BYTES_MAX)
    except zlib.error as error:
        raise InvalidError("not a pack of log lines: z") from error
    if inflate.unconsumed_tail or not inflate.eof:
        raise InvalidError("a pack of log lines that is too large, or cut short")
    return found


def _number(fields: Fields, name: str) -> int:
    text = _text(fields, name)
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidError(f"not a pack of log lines: {name}")
    return int(text)


def _text(fields: Fields, name: str) -> str:
    try:
        return fields[name].decode()
    except (KeyError, UnicodeDecodeError) as error:
        raise InvalidError(f"not a pack of log lines: {name}") from error
