"""Unpacks an archive from a rank into a local folder; nothing in the archive can write outside of the folder.

Owns which entries are unpacked: files, folders, hard links to files of the archive, and symbolic links that stay
inside. Set-user-id bits and owners are ignored; devices, sockets and pipes are left out. Reads the stream to its end.

Invariants: every file is new and is made in a folder that was made here; an archive that names a file twice is refused.
Symbolic links are made last, so no file is written through a link. The names that must be kept until the end (folders,
links and entries left out) are limited; names of files are not kept.

Source: Python's tarfile, section "Extraction filters"; CVE-2019-1002101 and CVE-2019-11251 of kubectl cp.
"""

import os
import posixpath
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from slipway.cli.columns import one_line
from slipway.errors import PermanentError
from slipway.inside.fetch import ArchiveError, BoundedTar

ENTRIES_MAX = 2_000_000
"""The most files, links and folders; folders that paths imply are included."""
KEPT_BYTES_MAX = 256 * 1024 * 1024
"""The most bytes of the names that are kept until the end."""
PATH_BYTES_MAX = 4096
"""The most bytes of a path, as in Linux."""
STEPS_MAX = 256
_TIME_MAX_S = 2**40
_PIECE_BYTES = 256 * 1024
_PERMISSIONS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO


class Unpacked(NamedTuple):
    """The number and size of the unpacked files, and in words the entries that were left out."""

    files: int
    size: int
    left_out: tuple[str, ...]


def unpack(stream: BinaryIO, folder: Path, moved: Callable[[int], None]) -> Unpacked:
    """Unpack a tar stream into `folder`, which is empty; `moved` receives the size of each written piece.

    Raises:
        PermanentError: the archive is damaged, exceeds a limit, or contains a path that leads outside.
        OSError: a file cannot be written.
    """
    work = _Unpacking(folder, moved)
    try:
        with BoundedTar.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                work.take(archive, member)
    except ArchiveError as error:
        raise PermanentError(f"the archive is refused: {error}") from error
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise PermanentError(f"the archive is damaged: {error}") from error
    while stream.read(_PIECE_BYTES):  # the rest is padding, which the sender may still be writing
        pass
    return work.end()


class _Folder(NamedTuple):
    """The mode and the time that a folder gets after its content is unpacked."""

    mode: int
    mtime: float


class _Unpacking:
    def __init__(self, folder: Path, moved: Callable[[int], None]) -> None:
        self._folder = folder
        self._moved = moved
        self._links: list[tuple[str, str]] = []
        self._folders: dict[str, _Folder | None] = {"": None}
        self._left_out: list[str] = []
        self._files = 0
        self._size = 0
        self._entries = 0
        self._kept_bytes = 0

    def take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = _inside(member.name)
        self._count()
        if member.isdir():
            self._make_folder(name)
            self._folders[name] = _Folder(member.mode, _time_of(member))
        elif not name:
            raise PermanentError("the archive has an entry without a name")
        elif member.isreg():
            self._write(archive, member, name)
        elif member.issym():
            if "\0" in member.linkname:
                raise PermanentError(f"the archive is damaged: the target of the link {name[:200]!r} is none")
            self._make_folder(posixpath.dirname(name))
            self._keep(name, member.linkname)
            self._links.append((name, member.linkname))
        elif member.islnk():
            self._link(name, _inside(member.linkname))
        else:
            self._leave_out(f"{name} (a device, a socket or a pipe)")

    def end(self) -> Unpacked:
        for name, target in self._links:
            if _leads_out(name, target):
                self._leave_out(f"{name} (a link that leads or may lead out of the copy, to {target[:100]})")
                continue
            try:
                (self._folder / name).symlink_to(target)
            except FileExistsError as error:
                raise PermanentError(f"the archive names {name[:200]!r} twice") from error
        for name, wanted in sorted(self._folders.items(), reverse=True):
            if wanted is not None:  # the folder's content is complete, so its times and mode stay unchanged
                path = self._folder / name
                path.chmod((wanted.mode & _PERMISSIONS) | stat.S_IRWXU)
                os.utime(path, (wanted.mtime, wanted.mtime))
        return Unpacked(self._files, self._size, tuple(self._left_out))

    def _count(self) -> None:
        self._entries += 1
        if self._entries > ENTRIES_MAX:
            raise PermanentError(
                f"the archive has more than {ENTRIES_MAX} files, links and folders; copy its parts one by one"
            )

    def _keep(self, *names: str) -> None:
        """Count names that stay in memory until the end."""
        self._kept_bytes += sum(map(len, names))
        if self._kept_bytes > KEPT_BYTES_MAX:
            raise PermanentError(
                f"the folders and links of the archive have names of more than {KEPT_BYTES_MAX} bytes; "
                "copy its parts one by one"
            )

    def _leave_out(self, what: str) -> None:
        what = one_line(what)
        self._keep(what)
        self._left_out.append(what)

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
            os.utime(file.fileno(), (_time_of(member), _time_of(member)))
        self._files += 1

    def _link(self, name: str, target: str) -> None:
        # The folder was empty and has no symbolic links yet, so every file in it is from the archive.
        if not (self._folder / target).is_file():
            raise PermanentError(f"the archive links {name[:200]!r} to a file that is not in it")
        self._make_folder(posixpath.dirname(name))
        (self._folder / name).hardlink_to(self._folder / target)
        self._files += 1

    def _make_folder(self, name: str) -> None:
        if name in self._folders:
            return
        self._make_folder(posixpath.dirname(name))
        self._count()
        self._keep(name)
        try:
            (self._folder / name).mkdir(mode=0o700)
        except FileExistsError as error:
            raise PermanentError(f"the archive has {name[:200]!r} both as a file and as a folder") from error
        self._folders[name] = None


def _time_of(member: tarfile.TarInfo) -> float:
    """Return the modification time in seconds; 0 for an impossible time, because an archive may contain any number."""
    return float(member.mtime) if 0 <= member.mtime < _TIME_MAX_S else 0.0


def _inside(name: str) -> str:
    """Return the path below the folder, without dots; empty for the folder itself. Raises PermanentError."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise PermanentError(f"the archive names a path outside of the copied folder: {name[:200]!r}")
    path = "/".join(parts)
    if len(parts) > STEPS_MAX or len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise PermanentError(
            f"the archive names a path of more than {STEPS_MAX} steps or {PATH_BYTES_MAX} bytes; "
            f"copy the files below it: {name[:200]!r}"
        )
    return path


def _leads_out(name: str, target: str) -> bool:
    """Whether the link at `name` leads out of the folder, or may lead out of it.

    `..` at the beginning leads up through folders that were made here. After another step, `..` leads up from the
    target of that step. That step may itself be a link: the kernel follows it, but shortening the path as text hides
    it. Such a target is treated as leading out.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    ups = next((at for at, step in enumerate(steps) if step != ".."), len(steps))
    return target.startswith("/") or ".." in steps[ups:] or ups > name.count("/")
