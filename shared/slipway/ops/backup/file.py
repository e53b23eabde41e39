"""The file of a backup: a header, then one object per line, as JSON; gzip when its name ends in .gz.

Pure except for the file. This module decides what is stored of an object: its metadata, spec, status and data, without
managed fields. A restore ignores the old resourceVersion. It needs the old uid of an object, because other objects
refer to it.
"""

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from slipway.crd.meta import ObjectMeta, RawObject
from slipway.errors import InvalidError

FORMAT = 1
LINE_BYTES_MAX = 8 * 1024 * 1024


class BackupObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An object of any kind in a backup."""

    metadata: ObjectMeta
    spec: RawObject = {}
    status: RawObject = {}
    data: dict[str, Any] = {}
    binary_data: dict[str, str] = {}
    type: str = ""
    immutable: bool = False

    def __repr__(self) -> str:
        return f"BackupObject({self.metadata.name!r})"


class BackupLine(msgspec.Struct, frozen=True):
    """One object and its kind, as `Kind.group`."""

    kind: str
    object: BackupObject


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line of the file."""

    slipway_backup: int
    created_at: str
    version: str
    """The version of Slipway."""
    namespace: str
    """The namespace of the services."""


def write(path: Path, header: Header, lines: Iterable[BackupLine]) -> None:
    """Write the whole file at once, readable by its owner only, because it may contain Secrets. Raises OSError."""
    encoded = b"".join(msgspec.json.encode(each) + b"\n" for each in (header, *lines))
    content = gzip.compress(encoded) if path.suffix == ".gz" else encoded
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def read(path: Path) -> tuple[Header, list[BackupLine]]:
    """Return the header and the lines of a backup file.

    Raises:
        OSError: the file cannot be read.
        InvalidError: the file is no backup, or has a later format; with the line number.
    """
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        lines = _numbered(file)
        try:
            header = _decoded(next(lines, (1, b"")), Header)
            if header.slipway_backup != FORMAT:
                raise InvalidError(
                    f"{path}: a backup of format {header.slipway_backup}; this command reads format {FORMAT}"
                )
            return header, [_decoded(each, BackupLine) for each in lines]
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidError(f"{path}: the file is incomplete, damaged, or not gzip: {error}") from error


def _numbered(file: Any) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        yield number, line


def _decoded(numbered: tuple[int, bytes], type_: type[Any]) -> Any:
    number, line = numbered
    try:
        return msgspec.json.decode(line, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"line {number} does not belong to a backup: {error}") from error
