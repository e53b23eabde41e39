"""Scalars in a log directory: TensorBoard event files and plain JSON lines.

Owns the reading of `events.out.tfevents.*` (records of length-prefixed protobuf, of which only scalars are supported)
and of `*.jsonl` (objects with `step` and numbers). Pure, except that it reads the files.

Invariants: a file that is being written is read up to its last complete record; a file that cannot be opened is left
out; at most POINTS_MAX points of a curve are returned, spread evenly; what the other limits leave out is reported.

Source: tensorflow/core/util/event.proto, tensorflow/core/framework/{summary,tensor}.proto, lib/io/record_writer.h
"""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

POINTS_MAX = 1000
FILES_MAX = 200
FILE_BYTES_MAX = 64 * 1024 * 1024
NAMES_MAX = 3
"""The most files that one sentence names."""
_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
_FLOAT_BYTES, _DOUBLE_BYTES = 4, 8
_DT_FLOAT, _DT_DOUBLE = 1, 2

Point = tuple[int, float]
Runs = dict[str, dict[str, list[Point]]]
"""`{run: {tag: [(step, value)]}}`"""


class LogScalars(NamedTuple):
    """The curves in a log directory."""

    runs: Runs
    left_out: list[str]
    """one sentence for each limit that was reached"""


def read_scalars(folder: Path) -> LogScalars:
    """Return the curves of every run below `folder`; a run is a folder, as in TensorBoard."""
    runs: Runs = {}
    long: list[str] = []
    files = sorted(path for path in folder.rglob("*") if ".tfevents." in path.name or path.suffix == ".jsonl")
    for path in files[:FILES_MAX]:
        run = str(path.parent.relative_to(folder))
        reader = _json_points if path.suffix == ".jsonl" else _event_points
        try:
            with path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX)
                if file.read(1):
                    long.append(str(path.relative_to(folder)))
        except OSError:
            continue
        for tag, point in reader(content):
            if math.isfinite(point[1]):
                runs.setdefault(run, {}).setdefault(tag, []).append(point)
    runs = {run: {tag: _thinned(points) for tag, points in tags.items()} for run, tags in runs.items()}
    return LogScalars(runs, _left_out(len(files), long))


def _left_out(count: int, long: list[str]) -> list[str]:
    """Return what the limits leave out of `count` files, of which `long` are longer than FILE_BYTES_MAX."""
    found: list[str] = []
    if count > FILES_MAX:
        found.append(f"Only the first {FILES_MAX} of {count} files are shown, in the order of their paths.")
    if long:
        more = f" and {len(long) - NAMES_MAX} more" if len(long) > NAMES_MAX else ""
        names = ", ".join(long[:NAMES_MAX]) + more
        found.append(f"The curves end early: only the first {FILE_BYTES_MAX >> 20} MiB of a file are read ({names}).")
    return found


def _thinned(points: list[Point]) -> list[Point]:
    points.sort(key=lambda point: point[0])
    if len(points) <= POINTS_MAX:
        return points
    stride = (len(points) - 1) / (POINTS_MAX - 1)
    return [points[round(index * stride)] for index in range(POINTS_MAX)]


def _json_points(content: bytes) -> Iterator[tuple[str, Point]]:
    for index, line in enumerate(content.splitlines()):
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield from _row_points(row, index)  # pyright: ignore[reportUnknownArgumentType]


def _row_points(row: dict[str, Any], index: int) -> Iterator[tuple[str, Point]]:
    """Yield the numbers of a row. `index` is the step of a row without one."""
    step: Any = row.get("step")
    step = index if step is None else step
    if _number(step) is None:
        return
    for tag, value in row.items():
        number = _number(value) if tag != "step" else None
        if number is not None:
            yield tag, (int(step), number)


def _number(value: object) -> float | None:
    """Return the value as a float, or None when it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _event_points(content: bytes) -> Iterator[tuple[str, Point]]:
    position = 0
    while position + _HEADER.size <= len(content):
        length, _ = _HEADER.unpack_from(content, position)
        start = position + _HEADER.size
        position = start + length + _FOOTER_BYTES
        if position > len(content):
            return
        try:
            yield from _scalars(content[start : start + length])
        except (IndexError, struct.error, UnicodeDecodeError):
            return


def _scalars(event: bytes) -> Iterator[tuple[str, Point]]:
    step, summary = 0, b""
    for number, value in _fields(event):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summary = value
    for number, value in _fields(summary):
        if number == 1 and isinstance(value, bytes):
            tag, amount = _summary_value(value)
            if amount is not None:
                yield tag, (step, amount)


def _summary_value(message: bytes) -> tuple[str, float | None]:
    tag, amount = "", None
    for number, value in _fields(message):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value.decode()
        elif number == 2:
            amount = struct.unpack("<f", value)[0]
        elif number == 8:
            amount = _tensor_scalar(value)
    return tag, amount


def _tensor_scalar(message: bytes) -> float | None:
    """Return the number of a tensor with one element, as newer writers store scalars; None for other tensors."""
    kind, raw = 0, b""
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number in (4, 5, 6) and isinstance(value, bytes):
            raw = value
    if kind == _DT_FLOAT and len(raw) == _FLOAT_BYTES:
        return struct.unpack("<f", raw)[0]
    if kind == _DT_DOUBLE and len(raw) == _DOUBLE_BYTES:
        return struct.unpack("<d", raw)[0]
    return None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: varints as int, all other values as bytes."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(message, position)
        elif wire in (1, 5):
            size = _DOUBLE_BYTES if wire == 1 else _FLOAT_BYTES
        else:
            return
        yield number, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = message[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
