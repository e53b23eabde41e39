"""The files of a launch: what an archive may hold, and a program that downloads one and unpacks it.

Owns the rules for archives: the api applies them when one is uploaded, the init container again when it unpacks,
because whatever lies in between may be written by others. It must not know anything of the rest of Slipway and uses
the standard library only: its source travels in the ConfigMap of the launch and runs in any image with a Python 3.8.

Invariants: nothing is written outside of the folder; no link, device or pipe is ever made; what is unpacked and how
many members there are is limited while it is read; a wrong byte anywhere fails the whole.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import posixpath
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

UNPACKED_BYTES_MAX = 2 * 1024 * 1024 * 1024
MEMBERS_MAX = 50_000
PATH_BYTES_MAX = 1024
HEADER_BYTES_MAX = 64 * 1024
"""Of what a member says of itself beyond its header: long names, PAX records."""
BLOCK = 256 * 1024
TRIES = 8
PAUSE_S = 0.5
PAUSE_S_MAX = 15.0
SILENCE_S = 60.0

_EXTENSIONS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME)
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class ArchiveError(Exception):
    """The archive holds what it may not, or is none; the text names the member."""


class NotNowError(Exception):
    """The download failed in a way that may pass."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DownloadRefusedError(Exception):
    """The download was refused; trying again is no use."""


class ArchiveLimits(NamedTuple):
    """How much an archive may hold."""

    unpacked_bytes: int = UNPACKED_BYTES_MAX
    members: int = MEMBERS_MAX


class ArchiveMember(NamedTuple):
    """One file or folder, at its path below the folder."""

    path: str
    mode: int
    size: int
    is_folder: bool


class Totals(NamedTuple):
    """What an archive holds."""

    files: int
    unpacked_bytes: int


class _Head(tarfile.TarInfo):
    """A header that refuses what would be read into memory whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Head:
        head = super().frombuf(buf, encoding, errors)
        if head.type in (*_EXTENSIONS, tarfile.GNUTYPE_LONGLINK) and head.size > HEADER_BYTES_MAX:
            raise ArchiveError(f"{_shown(head.name)}: its name or attributes are longer than {HEADER_BYTES_MAX} bytes")
        return head


class _Counted:
    """The unpacked stream, which ends with an error when it grows too long."""

    def __init__(self, source: Any, limit: int) -> None:
        self._source = source
        self._limit = limit
        self.count = 0

    def read(self, size: int = BLOCK) -> bytes:
        try:
            data: bytes = self._source.read(size)
        except (EOFError, OSError, zlib.error) as error:
            raise ArchiveError(f"it is no gzipped tar archive, or a damaged one: {error}") from error
        self.count += len(data)
        if self.count > self._limit:
            raise ArchiveError(f"it unpacks to more than {self._limit} bytes")
        return data


def walk(stream: Any, limits: ArchiveLimits = ArchiveLimits()) -> Iterator[tuple[ArchiveMember, Any]]:  # noqa: B008 - immutable
    """The members of a gzipped tar, each with its content to read before the next one is asked for.

    Raises:
        ArchiveError: it is damaged, too large, or holds what is no plain file or folder below the folder.
    """
    unpacked = _Counted(gzip.GzipFile(fileobj=stream, mode="rb"), limits.unpacked_bytes + 512 * limits.members)
    try:
        stream_of: Any = unpacked
        with tarfile.open(fileobj=stream_of, mode="r|", tarinfo=_Head) as archive:
            yield from _members(archive, limits)
        while unpacked.read(BLOCK):  # to the end: the checksum is there
            pass
    except tarfile.ReadError as error:
        if "empty" in str(error):
            raise ArchiveError("it is empty") from error
        raise ArchiveError(f"it is no tar archive, or a damaged one: {error}") from error
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError, RecursionError) as error:
        raise ArchiveError(f"it is no gzipped tar archive, or a damaged one: {error}") from error


def check(stream: Any, limits: ArchiveLimits = ArchiveLimits()) -> Totals:  # noqa: B008 - immutable
    """What the archive holds. Raises ArchiveError."""
    files = size = 0
    for member, _ in walk(stream, limits):
        files += not member.is_folder
        size += member.size
    return Totals(files, size)


def unpack(stream: Any, folder: str, limits: ArchiveLimits = ArchiveLimits()) -> Totals:  # noqa: B008 - immutable
    """Writes the files of the archive below `folder`. Raises ArchiveError; what was written by then stays."""
    root = os.path.realpath(folder)
    files = size = 0
    for member, content in walk(stream, limits):
        target = os.path.join(root, *member.path.split("/"))
        if member.is_folder:
            os.makedirs(target, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as out:
            while True:
                try:
                    block = content.read(BLOCK)
                except tarfile.TarError as error:
                    raise ArchiveError(f"it ends too early: {error}") from error
                if not block:
                    break
                out.write(block)
        os.chmod(target, member.mode)
        files += 1
        size += member.size
    return Totals(files, size)


def _members(archive: Any, limits: ArchiveLimits) -> Iterator[tuple[ArchiveMember, Any]]:
    files: set[str] = set()
    folders: set[str] = set()
    size = 0
    for count, head in enumerate(archive, 1):
        if count > limits.members:
            raise ArchiveError(f"it has more than {limits.members} members")
        # The archive remembers every member; a stream needs none of them again.
        archive.members = []
        member = _member(head)
        if member is None:
            continue
        size += member.size
        if size > limits.unpacked_bytes:
            raise ArchiveError(f"it unpacks to more than {limits.unpacked_bytes} bytes")
        steps = member.path.split("/")
        above = ["/".join(steps[:depth]) for depth in range(1, len(steps))]
        if member.path in files or (member.path in folders and not member.is_folder):
            raise ArchiveError(f"{_shown(head.name)}: stands in it twice")
        for folder in above:
            if folder in files:
                raise ArchiveError(f"{_shown(head.name)}: {_shown(folder)} is a file and can hold nothing")
        folders.update(above)
        (folders if member.is_folder else files).add(member.path)
        yield member, None if member.is_folder else archive.extractfile(head)


def _member(head: tarfile.TarInfo) -> ArchiveMember | None:
    """The member as it will be written; None for the folder itself."""
    if not (head.isreg() or head.isdir()) or head.issparse():
        what = _KINDS.get(head.type, "neither a file nor a folder")
        raise ArchiveError(f"{_shown(head.name)}: is {what}; only files and folders are allowed")
    path = head.name
    if path.startswith("/") or "\0" in path or "\\" in path:
        raise ArchiveError(f"{_shown(path)}: must be a path below the folder")
    steps = path.split("/")
    if ".." in steps:
        raise ArchiveError(f"{_shown(path)}: leads out of the folder")
    normal = posixpath.normpath(path)
    if len(os.fsencode(normal)) > PATH_BYTES_MAX:
        raise ArchiveError(f"{_shown(path)}: the path is longer than {PATH_BYTES_MAX} bytes")
    if normal in (".", ""):
        if head.isdir():
            return None
        raise ArchiveError(f"{_shown(path)}: is no path of a file")
    return ArchiveMember(normal, (head.mode & 0o777) | 0o400, 0 if head.isdir() else head.size, head.isdir())


def _shown(name: str) -> str:
    return ascii(name[:200])


# --- the download -----------------------------------------------------------------------------------------------------


class _Hashed:
    """A download whose bytes are hashed as they are read."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size if size >= 0 else BLOCK)
        self.digest.update(data)
        return data

    def rest(self) -> None:
        while self.read(BLOCK):
            pass


def download(url: str, digest: str, folder: str, token_file: str = "") -> Totals:
    """One try. Raises NotNowError, RefusedError or ArchiveError."""
    headers = {"Accept": "application/gzip", "User-Agent": "slipway-fetch"}
    if token_file and os.path.exists(token_file):
        with open(token_file, encoding="utf-8") as file:
            headers["Authorization"] = "Bearer " + file.read().strip()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=SILENCE_S) as answer:  # noqa: S310
            stream = _Hashed(answer)
            try:
                totals = unpack(stream, folder)
                stream.rest()
            except ArchiveError as error:
                stream.rest()
                if stream.digest.hexdigest() != digest:
                    raise NotNowError(f"what came is not what was asked for ({error})") from error
                raise
    except urllib.error.HTTPError as error:
        raise _refusal(error) from error
    except (urllib.error.URLError, OSError) as error:
        raise NotNowError(str(error)) from error
    if stream.digest.hexdigest() != digest:
        raise NotNowError("what came is not what was asked for")
    return totals


def _refusal(error: urllib.error.HTTPError) -> Exception:
    detail = f"HTTP {error.code}"
    with contextlib.suppress(ValueError, AttributeError, OSError):  # an answer of somebody else
        detail = f"{detail}: {json.loads(error.read(65536)).get('detail', '')}"
    if error.code < 500 and error.code not in (401, 408, 421, 425, 429):
        return DownloadRefusedError(detail)
    after = error.headers.get("Retry-After", "") if error.headers else ""
    return NotNowError(detail, float(after) if after.isdigit() else 0.0)


def main(argv: list[str]) -> int:
    """`fetch.py FOLDER DIGEST`: the archive of this allocation, unpacked into the folder; else 1 and why."""
    folder, digest = argv
    address, id_ = os.environ.get("SLIPWAY_API", "").rstrip("/"), os.environ.get("SLIPWAY_ALLOCATION_ID", "")
    if not address or not id_:
        _say("SLIPWAY_API and SLIPWAY_ALLOCATION_ID say where the files are; one is not set")
        return 1
    url = f"{address}/api/v1/allocations/{id_}/context"
    pause_s, begin = PAUSE_S, time.monotonic()
    for tried in range(1, TRIES + 1):
        try:
            totals = download(url, digest, folder, os.environ.get("SLIPWAY_TOKEN_FILE", ""))
        except NotNowError as error:
            _say(f"try {tried} of {TRIES} failed: {error}")
            if tried < TRIES:
                time.sleep(max(error.retry_after_s, pause_s))
                pause_s = min(PAUSE_S_MAX, pause_s * 2)
        except (DownloadRefusedError, ArchiveError) as error:
            _say(f"{error}")
            return 1
        else:
            took_s = time.monotonic() - begin
            _say(f"{totals.files} files, {totals.unpacked_bytes} bytes in {took_s:.1f} s")
            return 0
    return 1


def _say(text: str) -> None:
    sys.stdout.write(f"context: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
