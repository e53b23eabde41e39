"""The format of the log archive of an allocation: its pieces, with names and text, and the record beside them.

Owns the names and the contents of the archive's objects. Must not know IO, a clock or a store.

The log of an allocation in its stream is one sequence: each line has a cursor, and cursors increase. The archive is a
copy of that sequence in pieces. A piece contains the lines of all ranks after its start, in the order of the stream.
Its name is its start: the cursor of the last line of the piece before it. An object is created only if it is absent, so
each piece has only one next piece, whichever process writes it. The last piece determines where the archive continues.
A line keeps its cursor and its number, so that a reader can join archive and stream and detect missing lines.

A piece is gzip of text, one line each: `<cursor> <number> <log> <time> <text>`, as `zcat` shows it. The number is
followed by `<` and `LogLine.follows` when the writer left out lines before this line.

Layout, below the address that an operator sets:

    v1/ids/<AllocationID>.json                       the record: workspace, ranks, containers, last cursor
    v1/logs/<workspace>/<AllocationID>/<start>.log.gz   the pieces
"""

import gzip
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from slipway.errors import InvalidError
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Kind
from slipway.model.numbers import LONG_DIGITS_MAX, number_in
from slipway.streams import codec, logpacks
from slipway.streams.logpacks import LogKey, LogLine, StoredLine

PIECE_BYTES: Final = 1024 * 1024
"""Bytes of uncompressed text after which a piece is closed."""
TEXT_BYTES_MAX: Final = 16 * PIECE_BYTES
"""The most bytes that a reader decompresses: a full piece plus the last packs that were added to it."""
RECORD_BYTES_MAX: Final = 4 * 1024 * 1024
START: Final = "0-0"
RECORDS: Final = "v1/ids/"
PIECES: Final = "v1/logs/"
_SUFFIX: Final = ".log.gz"
_LEVEL: Final = 6
_NAME = re.compile(r"(\d{15})-(\d{12})\.log\.gz")

Id = tuple[int, int]


class ArchiveRecord(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The stored fields of an allocation with which its log can be read, authorised and deleted after its object is
    deleted."""

    allocation: AllocationId
    workspace: str
    name: str
    uid: str
    kind: Kind = Kind.COMMAND
    ranks: int = 1
    attempt: int = 0
    main: str = ""
    """name of the main container"""
    containers: tuple[str, ...] = ()
    init_containers: tuple[str, ...] = ()
    created_at: str = ""
    ended_at: str = ""
    """RFC 3339; empty while the log may still grow"""
    end: str = START
    """cursor of the last archived line; set after the end of the allocation"""
    logs: dict[str, int] = {}
    """{name of a log in the store: number of its last line}; set after the end of the allocation"""
    dropped_at: str = ""
    """RFC 3339; the time at which its pieces were deleted before their retention ended, because the archive had reached
    its size limit"""


class PieceSize(msgspec.Struct, kw_only=True, frozen=True):
    """The size of a piece in the archive."""

    workspace: str
    allocation: AllocationId
    bytes: int
    stored_ms: int
    """when it was stored, in epoch milliseconds"""


def record_path(allocation: AllocationId) -> str:
    """Return the path of the record of an allocation."""
    return f"{RECORDS}{allocation}.json"


def folder_of(workspace: str, allocation: AllocationId) -> str:
    """Return the folder of the pieces of an allocation."""
    return f"{PIECES}{workspace}/{allocation}/"


def piece_path(workspace: str, allocation: AllocationId, start: str) -> str:
    """Return the path of the piece with this start; paths sort in the order of the cursors."""
    ms, seq = codec.cursor_parts(start)
    return f"{folder_of(workspace, allocation)}{ms:015d}-{seq:012d}{_SUFFIX}"


def start_of(path: str) -> str | None:
    """Return the start of the piece: the cursor before its lines. None when the path is not that of a piece."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return f"{int(found[1])}-{int(found[2])}" if found else None


def starts_of(paths: Iterable[str]) -> list[str]:
    """Return the starts of the pieces among these paths, oldest first."""
    found = [start for path in paths if (start := start_of(path)) is not None]
    return sorted(found, key=codec.cursor_parts)


def piece_size(path: str, size: int, stored_ms: int) -> PieceSize | None:
    """Return the size of the piece at that path; None when the path is not that of a piece."""
    parts = path.split("/")
    if start_of(path) is None or len(parts) != 5 or not path.startswith(PIECES):
        return None
    return PieceSize(workspace=parts[2], allocation=AllocationId(parts[3]), bytes=size, stored_ms=stored_ms)


def encode_piece(lines: Sequence[StoredLine]) -> bytes:
    """Return the bytes of a piece; equal lines give equal bytes."""
    text = b"".join(_encoded(each) for each in lines)
    return gzip.compress(text, _LEVEL, mtime=0)


def decode_piece(data: bytes) -> list[StoredLine]:
    """Return the lines of a piece. Raises `InvalidError` when the data are no piece, or larger than any that we
    write."""
    inflate = zlib.decompressobj(31)
    try:
        text = inflate.decompress(data, TEXT_BYTES_MAX)
    except zlib.error as error:
        raise InvalidError("not a piece of an archived log") from error
    if inflate.unconsumed_tail or not inflate.eof:
        raise InvalidError("a piece of an archived log that is too large or incomplete")
    return [_decoded(raw) for raw in text.decode("utf-8", "replace").split("\n")[:-1]]


def encode_record(record: ArchiveRecord) -> bytes:
    """Return the bytes of a record."""
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> ArchiveRecord:
    """Return the record in these bytes. Raises `InvalidError` when they are no record."""
    try:
        return msgspec.json.decode(data, type=ArchiveRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError("not the record of an archived log") from error


def size_of(line: StoredLine) -> int:
    """Return the approximate bytes of the line in a piece, before compression."""
    return len(line.line.text) + 64


class LastNumbers:
    """Prevents that a line is archived twice when the stream was lost and its logs are sent again.

    These logs are numbered from 1 again. If the node has removed the beginning of a log, a new line may have the number
    of an archived line. So a line is treated as archived only if neither its number nor its time is above the highest
    one seen.
    """

    def __init__(self) -> None:
        self._last: dict[LogKey, tuple[int, str]] = {}
        """{log: (highest number, latest time)}"""

    def fresh(self, lines: Iterable[StoredLine]) -> list[StoredLine]:
        """Return the lines that were not seen before."""
        found: list[StoredLine] = []
        for each in lines:
            line = each.line
            if line.number > 0:
                number, time = self._last.get(line.source, (0, ""))
                if line.number <= number and line.time <= time:
                    continue
                self._last[line.source] = max(number, line.number), max(time, line.time)
            found.append(each)
        return found

    def named(self) -> dict[str, int]:
        """Return {name of a log: its last number}."""
        return {source.name: number for source, (number, _) in sorted(self._last.items())}


def after(lines: Sequence[StoredLine], cursor: Id) -> list[StoredLine]:
    """Return the lines of a sorted sequence that follow the cursor."""
    return list(lines[bisect_right(lines, cursor, key=lambda each: codec.cursor_parts(each.cursor)) :])


def _encoded(stored: StoredLine) -> bytes:
    line = stored.line
    number = f"{line.number}<{line.follows}" if line.follows >= 0 else f"{line.number}"
    text = line.text.replace("\n", " ")
    return f"{stored.cursor} {number} {line.source.name} {line.time} {text}\n".encode("utf-8", "replace")


def _decoded(raw: str) -> StoredLine:
    parts = raw.split(" ", 4)
    source = logpacks.source_of(parts[2]) if len(parts) == 5 else None
    place, _, before = (parts[1] if len(parts) == 5 else "").partition("<")
    number, follows = (number_in(each, LONG_DIGITS_MAX) for each in (place, before))
    if source is None or number is None or (before and follows is None):
        raise InvalidError("not a line of an archived log")
    codec.cursor_parts(parts[0])
    line = LogLine(
        attempt=source.attempt,
        rank=source.rank,
        stream=source.stream,
        container=source.container,
        time=parts[3],
        text=parts[4],
        number=number,
        follows=-1 if follows is None else follows,
    )
    return StoredLine(cursor=parts[0], line=line)
