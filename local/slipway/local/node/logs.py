"""A container's log: every line with its time and stream, in files of bounded size.

Owns the format (the one of container runtimes: `<time> <stream> <F|P> <text>`), rotation, reading and following. Knows
nothing of processes or HTTP.

Invariants: the times of one container strictly rise, so that a reader can resume after the last time it saw; at most
FILES files of FILE_BYTES are stored; a line longer than LINE_BYTES is stored in parts (`P`) that a reader joins. When
files were removed before a slow reader read them, the reader gets a line without a time that reports it. One read step
is bounded, however long the log is.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import msgspec

from slipway.model.times import parse_time
from slipway.runtime.clock import Clock

FILE_BYTES = 10 * 1024 * 1024
FILES = 13
KEPT_BYTES = (FILES - 1) * FILE_BYTES
"""The last bytes of a log that always stay. More than with a kubelet, because writer and reader share few cores."""
LINE_BYTES = 16 * 1024
WORDS_LINES = 80
WORDS_BYTES = 2048
MESSAGE_BYTES = 4096
_CHUNK_BYTES = 256 * 1024
_CHUNKS_AT_ONCE = 16
_NANO = 1_000_000_000


class LogQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a reader. `since` is a time in the form of the lines; "" means from the beginning."""

    follow: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: str = ""
    limit_bytes: int | None = None


class ContainerLog:
    """The log of a running container. Readers wait for the next line with `next_change`."""

    def __init__(self, folder: Path, clock: Clock, *, file_bytes: int = FILE_BYTES) -> None:
        self.folder = folder
        self.is_closed = False
        self._clock = clock
        self._file_bytes = file_bytes
        self._partial: dict[str, bytes] = {}
        self._last_ns = 0
        self._changed = asyncio.Event()
        folder.mkdir(parents=True, exist_ok=True)
        numbers = _numbers(folder)
        self._open(numbers[-1] if numbers else 0)

    def feed(self, stream: str, data: bytes) -> None:
        """Add output of the container. A line is stored when it is complete or too long."""
        *lines, rest = (self._partial.pop(stream, b"") + data).split(b"\n")
        entries = [(line, b"F") for line in lines]
        while len(rest) > LINE_BYTES:
            entries.append((rest[:LINE_BYTES], b"P"))
            rest = rest[LINE_BYTES:]
        if b"\r" in rest:
            # A progress bar: readers want its newest state before the line is complete.
            entries.append((rest, b"P"))
            rest = b""
        if rest:
            self._partial[stream] = rest
        self._write(stream, entries)

    def close(self) -> None:
        """Close the log at the container's end. A last line without a line end is stored as it is."""
        if self.is_closed:
            return
        for stream, rest in sorted(self._partial.items()):
            self._write(stream, [(rest, b"P")])
        self._partial.clear()
        self.is_closed = True
        os.close(self._fd)
        self._wake()

    @property
    def next_change(self) -> asyncio.Event:
        """The event that is set when the next line is written, or when the log is closed."""
        return self._changed

    def _write(self, stream: str, entries: list[tuple[bytes, bytes]]) -> None:
        if not entries:
            return
        tag = stream.encode()
        now_ns = max(int(self._clock.now() * _NANO), self._last_ns + 1)
        second, nano = divmod(now_ns, _NANO)
        head = _second_text(second)
        out: list[bytes] = []
        for line, kind in entries:
            if nano >= _NANO:
                second, nano = second + 1, nano - _NANO
                head = _second_text(second)
            out.append(b"%s.%09dZ %s %s %s\n" % (head, nano, tag, kind, line))
            nano += 1
        self._last_ns = second * _NANO + nano - 1
        body = b"".join(out)
        try:
            self._size += os.write(self._fd, body)
        except OSError:  # a full disk: lines are lost, but the container and the node go on
            return
        if self._size >= self._file_bytes:
            os.close(self._fd)
            self._open(self._number + 1)
            for number in _numbers(self.folder)[:-FILES]:
                _path(self.folder, number).unlink(missing_ok=True)
        self._wake()

    def _open(self, number: int) -> None:
        self._number = number
        self._fd = os.open(_path(self.folder, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def read(folder: Path, query: LogQuery, live: ContainerLog | None = None) -> AsyncGenerator[bytes, None]:
    """Yield the lines that `query` requests, in chunks; with `follow`, until `live` is closed."""
    left = query.limit_bytes
    position, shown = _Position(folder, query), _LineFormatter(query)
    is_much = True
    if query.tail is None:
        chunks = list[bytes]()
    else:
        chunks = await asyncio.to_thread(lambda: list(_chunks(deque(_matching(position, shown), maxlen=query.tail))))
    while True:
        for chunk in chunks:
            if left is not None:
                chunk, left = chunk[:left], left - len(chunk)
            yield chunk
            if left is not None and left <= 0:
                return
        # Both values are taken before the read, so this read or the next one finds lines written during the read.
        is_closed = live is None or live.is_closed
        change = None if live is None else live.next_change
        # A thread reads large amounts, so that the event loop is not blocked; the loop itself reads small ones.
        if is_much:
            chunks = await asyncio.to_thread(_some_chunks, position, shown, _CHUNKS_AT_ONCE)
        else:
            chunks = _some_chunks(position, shown, 1)
        is_much = sum(map(len, chunks)) >= _CHUNK_BYTES
        if not chunks:
            if not query.follow or is_closed or change is None:
                return
            await change.wait()


def termination_message(file: Path) -> str:
    """Return the message that a container wrote into its termination log, up to the length that a kubelet reads."""
    try:
        with file.open("rb") as written:
            return written.read(MESSAGE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def log_end(folder: Path) -> str:
    """Return the end of a log, which a kubelet puts into the message of a failed container."""
    shown = _LineFormatter(LogQuery())
    lines = deque(_matching(_Position(folder, LogQuery()), shown), maxlen=WORDS_LINES)
    return b"".join(lines)[-WORDS_BYTES:].decode(errors="replace")


class _Position:
    """A reader's position in the files of one log. It stays before a line that is not yet completely written."""

    def __init__(self, folder: Path, query: LogQuery) -> None:
        self._folder = folder
        self._number: int = _first_number(folder, normal_time(query.since).encode()) if query.since else -1
        self._offset = 0
        self.files_missed: int = 0
        """Number of files that were removed before they were read. The caller that reports it sets it to 0."""

    def lines(self) -> Iterator[bytes]:
        """Yield the lines from the position to the end of the log, without line ends."""
        while True:
            numbers = _numbers(self._folder)
            if self._number not in numbers:
                later = [number for number in numbers if number > self._number]
                if not later:
                    return
                if self._number >= 0:
                    self.files_missed += later[0] - self._number
                self._number, self._offset = later[0], 0
            yield from self._rest()
            if not numbers or self._number == numbers[-1]:
                return
            self._number += 1
            self._offset = 0

    def _rest(self) -> Iterator[bytes]:
        try:
            file = _path(self._folder, self._number).open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            held = b""
            while chunk := file.read(_CHUNK_BYTES):
                *lines, held = (held + chunk).split(b"\n")
                for line in lines:
                    self._offset += len(line) + 1
                    yield line


class _LineFormatter:
    """Lines as a reader sees them: with joined parts, with or without times.

    When the other stream writes in the middle of a partly shown line, that line ends there. Its rest follows as a new
    line.
    """

    def __init__(self, query: LogQuery) -> None:
        self._since = normal_time(query.since).encode() if query.since else b""
        self._timestamps = query.timestamps
        self._open = b""
        """The stream whose line was shown last and is not complete; empty without one."""

    def show(self, line: bytes) -> bytes | None:
        time, _, rest = line.partition(b" ")
        stream, _, rest = rest.partition(b" ")
        kind, _, text = rest.partition(b" ")
        if time < self._since:
            return None
        goes_on, is_cut = self._open == stream, bool(self._open) and self._open != stream
        self._open = stream if kind == b"P" else b""
        # A progress bar on one stream and lines on the other stream are shown as separate lines.
        head = b"\n" if is_cut else b""
        if self._timestamps and not goes_on:
            head += time + b" "
        return head + text + (b"" if kind == b"P" else b"\n")


def normal_time(text: str) -> str:
    """Return an RFC 3339 time in the form of the lines, so that times can be compared as text.

    Raises:
        ValueError: not a time.
    """
    epoch = parse_time(text)
    if text.endswith("Z"):
        whole, _, fraction = text[:-1].partition(".")
        return f"{whole}.{fraction:0<9.9}Z"
    second, nano = divmod(int(epoch * _NANO), _NANO)
    return f"{_second_text(second).decode()}.{nano:09d}Z"


def _some_chunks(position: _Position, shown: _LineFormatter, count: int) -> list[bytes]:
    return list(islice(_chunks(_matching(position, shown)), count))


def _chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _matching(position: _Position, shown: _LineFormatter) -> Iterator[bytes]:
    for line in position.lines():
        if position.files_missed:
            missed, position.files_missed = position.files_missed * FILE_BYTES // 2**20, 0
            yield (
                f"lines are missing here: up to {missed} MiB of this log were removed before they were read; "
                f"the node keeps {KEPT_BYTES // 2**20} MiB of a log\n"
            ).encode()
        text = shown.show(line)
        if text is not None:
            yield text


def _first_number(folder: Path, since: bytes) -> int:
    """Return the number of the newest file that begins before `since`, or -1. Older files contain only older lines."""
    for number in reversed(_numbers(folder)):
        try:
            with _path(folder, number).open("rb") as file:
                first = file.read(len("2026-01-02T03:04:05.123456789Z"))
        except FileNotFoundError:
            continue
        if first and first < since:
            return number
    return -1


def _second_text(second: int) -> bytes:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number}.log"


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the existing files, oldest first."""
    try:
        return sorted(int(path.stem) for path in folder.iterdir() if path.suffix == ".log")
    except FileNotFoundError:
        return []
