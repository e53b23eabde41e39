"""The files of a launch: the rules for archives, and a program that downloads and unpacks one.

This module owns the rules for archives. The api applies them to an uploaded archive, and the init container applies
them again when it unpacks the archive, because others may write to the storage between the two. It must not know the
rest of Slipway and uses the standard library only: its source is in the ConfigMap of the launch and runs in any image
with a Python 3.8.

Invariants: nothing is written outside the folder. No link, device or pipe is ever made. The unpacked bytes and the
number of files and folders, including folders that paths only imply, are limited during the read. No header makes
tarfile read more than HEADER_BYTES_MAX into memory. A wrong byte anywhere fails the whole download.

Source: POSIX.1-2017, pax, section "pax Extended Header"; the GNU tar manual, appendix "Sparse Formats".
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import math
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
STEPS_MAX = 64
"""Limit on the parts of one path: folders and the file."""
HEADER_BYTES_MAX = 64 * 1024
"""Limit on the bytes in all extension headers before one member: long names, PAX records."""
HEADERS_MAX = 8
"""Limit on the extension headers before one member. tar writes two: a long name and a long target, or a global header
and its own.
"""
HEADERS_BYTES_MAX = 32 * 1024 * 1024
"""Limit on the bytes of extension headers in a whole archive: 670 bytes for each member of the largest one. Each byte
of a record costs time to read.
"""
BLOCK = 256 * 1024
EMPTY_PARTS_MAX = 1_000
TRIES = 8
PAUSE_S = 0.5
PAUSE_S_MAX = 15.0
SILENCE_S = 60.0

_EXTENSIONS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_RECORDS = (b"path", b"linkpath", b"size", b"mtime")
"""The PAX records that are read. All others (owners, attributes, comments) are skipped."""
_NUMBER_DIGITS = 20
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class ArchiveError(Exception):
    """The archive contains something that is not allowed, or is no archive. The text names the member."""


class RetryLaterError(Exception):
    """The download failed, but a retry may succeed."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DownloadRefusedError(Exception):
    """The download was refused, and a retry is of no use."""


class ArchiveLimits(NamedTuple):
    """The limits on the content of an archive."""

    unpacked_bytes: int = UNPACKED_BYTES_MAX
    members: int = MEMBERS_MAX
    """Files and folders, including folders that paths only imply."""
    steps: int = STEPS_MAX


class ArchiveMember(NamedTuple):
    """One file or folder, with its path below the folder."""

    path: str
    mode: int
    size: int
    is_folder: bool


class Totals(NamedTuple):
    """The content of an archive in numbers."""

    files: int
    unpacked_bytes: int


class BoundedTar(tarfile.TarFile):
    """A tar stream whose headers cannot use memory or time without limit.

    Sparse files are refused before their maps are read. The extension headers are limited for each member and for the
    whole archive. A member is forgotten when the next one is requested.

    Raises, on opening and reading:
        ArchiveError: a header exceeds a limit, or its records are damaged.
        tarfile.TarError: as tarfile does.
    """

    _ahead = 0
    _ahead_bytes = 0
    _bytes = 0

    def next(self) -> tarfile.TarInfo | None:
        head = super().next()
        # tarfile stores every member for random access; a stream needs none of them again.
        self.members = []
        return head

    def announce(self, head: tarfile.TarInfo) -> None:
        """Count an extension header of a member, before it is read. Raises ArchiveError at a limit."""
        self._ahead += 1
        self._ahead_bytes += head.size
        self._bytes += head.size
        if self._ahead > HEADERS_MAX:
            raise ArchiveError(f"{_shown(head.name)}: more than {HEADERS_MAX} headers stand before one member")
        if self._ahead_bytes > HEADER_BYTES_MAX:
            raise ArchiveError(f"{_shown(head.name)}: its name or attributes are longer than {HEADER_BYTES_MAX} bytes")
        if self._bytes > HEADERS_BYTES_MAX:
            raise ArchiveError(
                f"the names and attributes of its members are longer than {HEADERS_BYTES_MAX} bytes in all; "
                "pack it without extended attributes, or in parts"
            )

    def arrive(self) -> None:
        """Reset the counts for the next member."""
        self._ahead = self._ahead_bytes = 0


class _Head(tarfile.TarInfo):
    """A header that refuses fields which tarfile would read into memory as a whole.

    `_proc_member` is the method that tarfile documents for subclasses. `_proc_pax` replaces tarfile's method. That
    method keeps every record of global headers and copies them for each member. It also reads sparse maps of any
    length. In versions without the fix of CVE-2024-6232, it needs quadratic time for a record of digits.
    """

    def _proc_member(self, archive: BoundedTar) -> tarfile.TarInfo:
        if self.size < 0:
            raise ArchiveError(f"{_shown(self.name)}: its size is below zero")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _refused_kind(self.name, self.type)
        if self.type in _EXTENSIONS:
            archive.announce(self)
        else:
            archive.arrive()
        parent: Any = super()
        return parent._proc_member(archive)

    def _proc_pax(self, archive: BoundedTar) -> tarfile.TarInfo:
        stream: Any = archive.fileobj
        records = _records_of(stream.read(-(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)[: self.size])
        try:
            head = self.fromtarfile(archive)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError("after a header of records there is no member") from error
        if self.type == tarfile.XGLTYPE:
            # These records are for every following member. No tool sets a path or a size for all members; git writes a
            # comment.
            if not records.keys() <= {b"mtime"}:
                raise ArchiveError("a global header names a path or a size for all members")
            return head
        if b"path" in records:
            head.name = _text(records[b"path"]).rstrip("/")
        if b"linkpath" in records:
            head.linkname = _text(records[b"linkpath"])
        if b"mtime" in records:
            head.mtime = _time_of(records[b"mtime"])
        if b"size" in records:
            self._resize(archive, head, records[b"size"])
        return head

    def _resize(self, archive: BoundedTar, head: tarfile.TarInfo, digits: bytes) -> None:
        if not digits.isdigit() or len(digits) > _NUMBER_DIGITS:
            raise ArchiveError(f"{_shown(head.name)}: its size is no number")
        head.size = int(digits)
        if head.isreg() or head.type not in tarfile.SUPPORTED_TYPES:
            # tarfile computed the start of the next member from the size in the plain header.
            blocks = -(-head.size // tarfile.BLOCKSIZE)
            archive.offset = head.offset_data + blocks * tarfile.BLOCKSIZE


# Set outside the class body, because the class of the headers refers to BoundedTar.
BoundedTar.tarinfo = _Head


def _records_of(content: bytes) -> dict[bytes, bytes]:
    """Return the known PAX records of consecutive `LENGTH KEYWORD=VALUE\\n` lines. Raises ArchiveError."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(content) and content[at]:
        space = content.find(b" ", at, at + _NUMBER_DIGITS)
        length = content[at:space] if space > at else b""
        end = at + int(length) if length.isdigit() else 0
        keyword, equals, value = content[space + 1 : end].partition(b"=")
        if end > len(content) or not equals or not keyword or value[-1:] != b"\n":
            raise ArchiveError("it is no tar archive, or a damaged one: a record of a header is none")
        if keyword.startswith(b"GNU.sparse."):
            raise _refused_kind(_text(found.get(b"path", b"a file")), tarfile.GNUTYPE_SPARSE)
        if keyword in _RECORDS:
            found[keyword] = value[:-1]
        at = end
    return found


def _text(value: bytes) -> str:
    """Return a name. Bytes that are not UTF-8 are preserved."""
    return value.decode("utf-8", "surrogateescape")


def _time_of(value: bytes) -> float:
    """Return seconds since 1970; 0 when the value is no time."""
    try:
        seconds = float(value[:64])
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def _refused_kind(name: str, kind: bytes) -> ArchiveError:
    what = _KINDS.get(kind, "neither a file nor a folder")
    return ArchiveError(f"{_shown(name)}: is {what}; only files and folders are allowed")


class _Counted:
    """The unpacked stream. Reading beyond the limit raises an error."""

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


class _Inflated:
    """The content of a gzip stream with one or several members.

    `gzip.GzipFile` reads the name in a header byte by byte, so a name of megabytes would take minutes.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._inflate: Any = None
        self._input = b""
        self._is_full = False
        self._made = self._empty = 0

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end. Raises EOFError, zlib.error or ArchiveError."""
        while True:
            if (self._inflate is None or self._inflate.eof) and not self._begin():
                return b""
            if not self._input and not self._is_full:
                self._input = self._stream.read(BLOCK)
                if not self._input:
                    raise EOFError("it ends within its compressed data")
            inflate: Any = self._inflate
            found: bytes = inflate.decompress(self._input, size)
            self._input = inflate.unconsumed_tail
            self._is_full = len(found) == size  # there may be more output without further input
            self._made += len(found)
            if found:
                return found

    def _begin(self) -> bool:
        """Return whether another member follows. Zeros after the last one are padding."""
        if self._inflate is not None:
            self._input = self._inflate.unused_data
            self._empty += not self._made
            if self._empty > EMPTY_PARTS_MAX:
                raise ArchiveError(f"it has more than {EMPTY_PARTS_MAX} empty gzip parts")
        self._input = self._input.lstrip(b"\0") if self._inflate is not None else self._input
        while not self._input:
            block: bytes = self._stream.read(BLOCK)
            if not block:
                return False
            self._input = block.lstrip(b"\0") if self._inflate is not None else block
        self._inflate, self._made, self._is_full = zlib.decompressobj(16 + zlib.MAX_WBITS), 0, False
        return True


def walk(stream: Any, limits: ArchiveLimits = ArchiveLimits()) -> Iterator[tuple[ArchiveMember, Any]]:  # noqa: B008
    """Yield the members of a gzipped tar. Read the content of a member before you request the next one.

    Raises:
        ArchiveError: it is damaged, too large, or contains something other than files and folders below the folder.
    """
    unpacked = _Counted(_Inflated(stream), limits.unpacked_bytes + 512 * limits.members)
    try:
        stream_of: Any = unpacked
        with BoundedTar.open(fileobj=stream_of, mode="r|") as archive:
            yield from _members(archive, limits)
        while unpacked.read(BLOCK):  # read to the end, where the checksum is
            pass
    except tarfile.ReadError as error:
        if "empty" in str(error):
            raise ArchiveError("it is empty") from error
        raise ArchiveError(f"it is no tar archive, or a damaged one: {error}") from error
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError, RecursionError) as error:
        raise ArchiveError(f"it is no gzipped tar archive, or a damaged one: {error}") from error


def check(stream: Any, limits: ArchiveLimits = ArchiveLimits()) -> Totals:  # noqa: B008 - immutable
    """Return the content of the archive in numbers. Raises ArchiveError."""
    files = size = 0
    for member, _ in walk(stream, limits):
        files += not member.is_folder
        size += member.size
    return Totals(files, size)


def unpack(stream: Any, folder: str, limits: ArchiveLimits = ArchiveLimits()) -> Totals:  # noqa: B008 - immutable
    """Write the files of the archive below `folder`. Raises ArchiveError; files written before it stay."""
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
    entries = _Entries(limits.members)
    size = 0
    for count, head in enumerate(archive, 1):
        if count > limits.members:
            raise entries.too_many()
        member = _member(head, limits.steps)
        if member is None:
            continue
        size += member.size
        if size > limits.unpacked_bytes:
            raise ArchiveError(f"it unpacks to more than {limits.unpacked_bytes} bytes")
        entries.add(member)
        yield member, None if member.is_folder else archive.extractfile(head)


class _Entries:
    """Every file and folder that was named or implied so far.

    A path is stored as its hash. With whole paths, an archive of kilobytes would need gigabytes of memory.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._is_folder: dict[bytes, bool] = {}

    def add(self, member: ArchiveMember) -> None:
        """Add the member and its parent folders. Raises ArchiveError when one of them is impossible, or at the
        limit.
        """
        known = self._known(member.path, is_folder=member.is_folder)
        if known is not None and not (known and member.is_folder):
            raise ArchiveError(f"{_shown(member.path)}: stands in it twice")
        folder = posixpath.dirname(member.path)
        while folder:
            known = self._known(folder, is_folder=True)
            if known is False:
                raise ArchiveError(f"{_shown(member.path)}: {_shown(folder)} is a file and can hold nothing")
            if known:  # then its parent folders are known too
                return
            folder = posixpath.dirname(folder)

    def too_many(self) -> ArchiveError:
        """Return the error for the limit."""
        return ArchiveError(
            f"it has more than {self._limit} files and folders, with the folders that its paths imply; "
            "leave some out, or put them on a volume"
        )

    def _known(self, path: str, *, is_folder: bool) -> bool | None:
        """Return whether the path is a folder. None when the path is new; then it is added."""
        mark = hashlib.sha256(os.fsencode(path)).digest()[:16]
        known = self._is_folder.get(mark)
        if known is None:
            if len(self._is_folder) >= self._limit:
                raise self.too_many()
            self._is_folder[mark] = is_folder
        return known


def _member(head: tarfile.TarInfo, steps_max: int) -> ArchiveMember | None:
    """Return the member as it will be written; None for the folder itself."""
    if not (head.isreg() or head.isdir()):
        raise _refused_kind(head.name, head.type)
    path = head.name
    if path.startswith("/") or "\0" in path or "\\" in path:
        raise ArchiveError(f"{_shown(path)}: must be a path below the folder")
    steps = path.split("/")
    if ".." in steps:
        raise ArchiveError(f"{_shown(path)}: leads out of the folder")
    normal = posixpath.normpath(path)
    if len(os.fsencode(normal)) > PATH_BYTES_MAX:
        raise ArchiveError(f"{_shown(path)}: the path is longer than {PATH_BYTES_MAX} bytes; shorten the names")
    if normal.count("/") >= steps_max:
        raise ArchiveError(
            f"{_shown(path)}: the path is deeper than {steps_max} steps; leave it out, or pack what is below it"
        )
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


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because urllib would send the task's token to any host that a redirect names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect."""
        return


def download(url: str, digest: str, folder: str, token_file: str = "") -> Totals:
    """Try one download. Raises NotNowError, DownloadRefusedError or ArchiveError."""
    headers = {"Accept": "application/gzip", "User-Agent": "slipway-fetch"}
    if token_file and os.path.exists(token_file):
        with open(token_file, encoding="utf-8") as file:
            headers["Authorization"] = "Bearer " + file.read().strip()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=SILENCE_S) as answer:  # noqa: S310
            stream = _Hashed(answer)
            try:
                totals = unpack(stream, folder)
                stream.rest()
            except ArchiveError as error:
                stream.rest()
                if stream.digest.hexdigest() != digest:
                    raise RetryLaterError(f"what came is not what was asked for ({error})") from error
                raise
    except urllib.error.HTTPError as error:
        raise _refusal(error) from error
    except (OSError, http.client.HTTPException) as error:
        raise RetryLaterError(str(error) or type(error).__name__) from error
    if stream.digest.hexdigest() != digest:
        raise RetryLaterError("what came is not what was asked for")
    return totals


def _refusal(error: urllib.error.HTTPError) -> Exception:
    detail = f"HTTP {error.code}"
    with contextlib.suppress(
        ValueError, AttributeError, OSError, http.client.HTTPException
    ):  # an answer in another format, from another server
        detail = f"{detail}: {json.loads(error.read(65536)).get('detail', '')}"
    if error.code < 500 and error.code not in (401, 408, 421, 425, 429):
        return DownloadRefusedError(detail)
    after = error.headers.get("Retry-After", "") if error.headers else ""
    return RetryLaterError(detail, float(after) if after.isascii() and after.isdigit() else 0.0)


def main(argv: list[str]) -> int:
    """Run `fetch.py FOLDER DIGEST`: unpack the archive of this allocation into the folder.

    Return 0, or 1 after printing the reason.
    """
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
        except RetryLaterError as error:
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
