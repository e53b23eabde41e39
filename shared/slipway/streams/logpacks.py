"""The stored form of a container's log: packs of consecutive lines, a position per log, and gaps with their size.

This module owns the values, their wire format, and the rule for gaps. It must not know Redis or IO.

A log is the output of one container of one rank in one attempt. Its lines are numbered from 1, including lines that are
not stored. A stored entry is a pack: lines of one log with consecutive numbers. So a reader that sees a jump in the
numbers knows how many lines are missing, and where. Either the writer left them out, because it was too slow, or the
store removed them, because each log has a size limit (its first and last lines are kept).

Invariants: a pack is appended only when the log is at the position that its writer expects, by number and by what was
read. So no line is stored twice, however many writers there are. This is also true when the store has lost the log and
another writer has stored it again with other numbers. Encoding is deterministic. Decoded data may be hostile: it
decodes to values or raises `InvalidError`.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from slipway.errors import InvalidError
from slipway.model.ids import AllocationId
from slipway.model.numbers import number_in

Fields = Mapping[str, bytes]

STDOUT: Final = "stdout"
"""The output of a container. The API of Kubernetes returns both of its streams as one."""
EVENT: Final = "event"
"""Kubernetes events about a pod."""
PACK_BYTES_MAX: Final = 128 * 1024
"""Limit on the lines of one pack before compression. Writers stay far below it."""
PACK_LINES_MAX: Final = 4_096
PACK_COST_BYTES: Final = 150
"""Bytes that are charged for an entry in addition to its lines, so that the limit of a log also limits its packs."""
PAGE_PACKS: Final = 32
"""Packs that are read together: at most 4 MiB of lines."""
SHARE_BYTES_MIN: Final = 64 * 1024
EVENT_SHARE_BYTES: Final = 64 * 1024
FIRST_PART: Final = 8
"""The first lines of a log may use one part in this many of its share, and they are kept."""
_LEVEL: Final = 1
_ABSENT: Final = "-"


class LogKey(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The name of one log of an allocation. `container` is empty for the main container."""

    attempt: int
    rank: int
    container: str = ""
    stream: str = STDOUT

    @property
    def name(self) -> str:
        """The name in the store."""
        return f"{self.attempt}/{self.rank}/{self.stream}/{self.container}"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `time` is the container runtime's time in RFC 3339. `number` is the line's place in its log, from 1; it
    is 0 for Kubernetes events about a pod, which have no place among the lines.

    With `missing`, the value marks a gap: that many lines, from `number` on, are not stored; `text` states this. When
    the writer left out lines before this line, `follows` is the number of the last stored line before them (0: none);
    otherwise it is -1.
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
        """The log of this line."""
        return LogKey(attempt=self.attempt, rank=self.rank, container=self.container, stream=self.stream)


class StoredLine(msgspec.Struct, frozen=True, kw_only=True):
    """One log line as read. Resume after `cursor`."""

    cursor: str
    line: LogLine


class LogPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a log is stored.

    `number` is the number of the last line. To continue, the reader requests the log since `second` (an RFC 3339 time
    in whole seconds, the finest unit that Kubernetes accepts) and skips `seen` lines. `time` is the time of the last
    line. `is_ended` is True when the log was read to its end.

    All written lines up to `first_end` and from `kept_from` on (0: none yet) are stored. The store may have removed
    lines between the two.
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
        """The part of the position that is equal for two readers that have read and stored the same."""
        return self.number, self.second, self.seen


class LogPack(msgspec.Struct, frozen=True, kw_only=True):
    """Lines to append to one log, and the reader's position after them.

    `after` is the expected position of the log. `first` is the number of the first line here; it is larger than that of
    `after` + 1 when the writer leaves lines out. `lines` are `<time> <text>` without a line end; without lines, only
    the position changes. `share_bytes` is the log's limit in the store. `first_end` and `kept_from` of `position` are
    ignored, because the store computes them.

    An event has no place in an order: `key` identifies it, and `count` is how often it has happened. It is appended
    when the store does not have it yet, or when it has happened at least twice as often as at its last append.
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
    """Whether a pack was appended, and the position of its log now, whichever writer moved it."""

    is_appended: bool
    position: LogPosition


def share_of(allocation_bytes: int, logs: int) -> int:
    """Return the limit of one log in the store, in bytes, for an allocation with `logs` ranks.

    It is an equal part, at most an eighth, and never less than `SHARE_BYTES_MIN`.
    """
    return max(SHARE_BYTES_MIN, allocation_bytes // max(8, logs))


def older_name(source: LogKey) -> str:
    """Return the log of the attempt before the last; empty when there is none. It is cut when this log begins.

    So an allocation stores two attempts in full, and the first and last lines of each earlier one.
    """
    return msgspec.structs.replace(source, attempt=source.attempt - 2).name if source.attempt > 2 else ""


def encode_pack(pack: LogPack) -> dict[str, bytes]:
    """Return the fields of the entry."""
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
    """Return the lines of an entry. Text that is not UTF-8 is decoded with replacement characters."""
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
    """Return a position in the store's format.

    `rest` are the store's own four numbers: the bytes of the first lines and of the last lines, and the places of the
    newest and the oldest pack that it may remove.
    """
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
    """Return the stored position; the beginning when it is absent or cannot be read."""
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
    """Return the log of that name in the store; None for any other name."""
    parts = name.split("/", 3)
    attempt, rank = (number_in(part) for part in (*parts, "", "")[:2])
    if len(parts) != 4 or attempt is None or rank is None:
        return None
    return LogKey(attempt=attempt, rank=rank, stream=parts[2], container=parts[3])


class GapFinder:
    """Finds the gaps in lines as they are read, of any number of logs.

    `positions` are the stored positions of all logs at the start. A reader may begin in the middle of a log (`is_whole`
    False). Then the first line itself or the stored position reveals a gap before it.
    """

    def __init__(self, positions: Mapping[LogKey, LogPosition], *, is_whole: bool) -> None:
        self._positions = positions
        self._is_whole = is_whole
        self._last: dict[LogKey, int] = {}

    def before(self, line: LogLine) -> LogLine | None:
        """Return the gap mark to insert before this line, if lines are missing there. Records the line as seen."""
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
        """Whether the line, or a later one of its log, was already seen."""
        return 0 < line.number <= self._last.get(line.source, 0)

    def _start(self, source: LogKey, line: LogLine) -> int:
        if self._is_whole:
            return 0
        position = self._positions.get(source)
        if position is not None and position.kept_from == line.number:
            return position.first_end
        return line.follows if line.follows >= 0 else line.number - 1


def gap(line: LogLine, number: int, missing: int) -> LogLine:
    """Return the mark of a gap before a line."""
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
