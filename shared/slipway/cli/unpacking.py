"""An archive from a rank, unpacked into a folder of ours: nothing in it can write outside of that folder.

Owns what of an archive is taken: files, folders, hard links to files of the archive, and symbolic links that stay
inside. Set-user-id bits and owners are not taken; devices, sockets and pipes are left out. Reads a stream to its end.

Invariants: every file is new (an archive that names one twice is refused) and is made in a folder that was made here;
symbolic links are made last, so that no file is written through one.

Source: Python's tarfile, section "Extraction filters"; CVE-2019-1002101 and CVE-2019-11251 of kubectl cp.
"""

import os
import posixpath
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from slipway.errors import PermanentError

ENTRIES_MAX = 2_000_000
_PIECE_BYTES = 256 * 1024
_PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


class Unpacked(NamedTuple):
    """What was taken, and in words what was left out."""

    files: int
    size: int
    left_out: tuple[str, ...]


def unpack(stream: BinaryIO, folder: Path, moved: Callable[[int], None]) -> Unpacked:
    """Unpacks a tar stream into `folder`, which is empty; `moved` is told how many bytes of files came.

    Raises:
        PermanentError: the archive is damaged, or holds a path that leads outside.
        OSError: a file cannot be written.
    """
    work = _Work(folder, moved)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for count, member in enumerate(archive):
                if count >= ENTRIES_MAX:
                    raise PermanentError(f"the archive has more than {ENTRIES_MAX} entries; copy its parts one by one")
                work.take(archive, member)
    except tarfile.TarError as error:
        raise PermanentError(f"the archive is damaged: {error}") from error
    while stream.read(_PIECE_BYTES):  # padding: the sender may still be writing it
        pass
    return work.end()


class _Work:
    def __init__(self, folder: Path, moved: Callable[[int], None]) -> None:
        self._folder = folder
        self._moved = moved
        self._links: list[tuple[str, str]] = []
        self._folders: dict[str, tarfile.TarInfo | None] = {"": None}
        self._made: set[str] = set()
        self._left_out: list[str] = []
        self._size = 0

    def take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = _inside(member.name)
        if member.isdir():
            self._make_folder(name)
            self._folders[name] = member
        elif not name:
            raise PermanentError("the archive holds an entry without a name")
        elif member.isreg():
            self._write(archive, member, name)
        elif member.issym():
            self._make_folder(posixpath.dirname(name))
            self._links.append((name, member.linkname))
        elif member.islnk():
            self._link(name, _inside(member.linkname))
        else:
            self._left_out.append(f"{name} (a device, a socket or a pipe)")

    def end(self) -> Unpacked:
        for name, target in self._links:
            if _leads_out(name, target):
                self._left_out.append(f"{name} (a link that leads out of the copy, to {target[:100]})")
                continue
            try:
                (self._folder / name).symlink_to(target)
            except FileExistsError as error:
                raise PermanentError(f"the archive names {name[:200]!r} twice") from error
        for name, member in sorted(self._folders.items(), reverse=True):
            if member is not None:  # what is in a folder is there by now: its times and its mode stay
                path = self._folder / name
                path.chmod((member.mode & _PERMISSIONS) | stat.S_IRWXU)
                os.utime(path, (member.mtime, member.mtime))
        return Unpacked(len(self._made), self._size, tuple(self._left_out))

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        self._make_folder(posixpath.dirname(name))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            fd = os.open(self._folder / name, flags, 0o600)
        except FileExistsError as error:
            raise PermanentError(f"the archive names {name[:200]!r} twice") from error
        source = archive.extractfile(member)
        with os.fdopen(fd, "wb") as file:
            while source is not None and (piece := source.read(_PIECE_BYTES)):
                file.write(piece)
                self._size += len(piece)
                self._moved(len(piece))
            file.flush()
            os.fchmod(file.fileno(), member.mode & _PERMISSIONS)
            os.utime(file.fileno(), (member.mtime, member.mtime))
        self._made.add(name)

    def _link(self, name: str, target: str) -> None:
        if target not in self._made:
            raise PermanentError(f"the archive links {name[:200]!r} to a file that is not in it")
        self._make_folder(posixpath.dirname(name))
        (self._folder / name).hardlink_to(self._folder / target)
        self._made.add(name)

    def _make_folder(self, name: str) -> None:
        if name in self._folders:
            return
        self._make_folder(posixpath.dirname(name))
        try:
            (self._folder / name).mkdir(mode=0o700)
        except FileExistsError as error:
            raise PermanentError(f"the archive has {name[:200]!r} both as a file and as a folder") from error
        self._folders[name] = None


def _inside(name: str) -> str:
    """The path below the folder, without dots; empty for the folder itself. Raises PermanentError."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise PermanentError(f"the archive names a path outside of what is copied: {name[:200]!r}")
    return "/".join(parts)


def _leads_out(name: str, target: str) -> bool:
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return target.startswith("/") or joined == ".." or joined.startswith("../")
