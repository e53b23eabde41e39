"""Copies files to and from a rank, as tar streams through a command in the rank.

Owns the scripts in the rank, the staging on both sides, and the message of each failure. A copy is unpacked beside its
target and renamed to the target only when it is complete. An interrupted copy therefore leaves no file under the
target's name.

Needs only `sh` and `tar` in the image.

An archive from a rank is unpacked into a local folder, and nothing in the archive can write outside of the folder.
Unpacked are files, folders, hard links to files of the archive, and symbolic links that stay inside. Set-user-id bits
and owners are ignored; devices, sockets and pipes are left out. The stream is read to its end.

Invariants: every file is new and is made in a folder that was made here; an archive that names a file twice is refused.
Symbolic links are made last, so no file is written through a link. The names that must be kept until the end (folders,
links and entries left out) are limited; names of files are not kept.

Source: Python's tarfile, section "Extraction filters"; CVE-2019-1002101 and CVE-2019-11251 of kubectl cp.
"""

import asyncio
import contextlib
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, NamedTuple

from slipway.cli.rank_session import RankSession, running
from slipway.cli.table import one_line
from slipway.cli.verb import command_line
from slipway.errors import InvalidError, NotFoundError, PermanentError
from slipway.inside.fetch import ArchiveError, BoundedTar
from slipway.model.exec_channels import PIECE_BYTES, STDERR, STDOUT, CommandEnd
from slipway.sdk.address import ServerAddress
from slipway.sdk.commands import RankCommand, lost

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


class _Code(IntEnum):
    """The exit codes of the scripts, one per problem."""

    MISSING = 44
    NO_TAR = 45
    NO_FOLDER = 46
    NO_WRITE = 47
    BROKEN = 48
    OTHER_KIND = 49


_ERRORS_MAX = 16 * 1024
_HEAD = "slipway-cp"
_SEND = f"""p=$1
command -v tar >/dev/null 2>&1 || exit {_Code.NO_TAR}
[ -e "$p" ] || exit {_Code.MISSING}
s=$(du -skL -- "$p" 2>/dev/null | cut -f1)
if [ -d "$p" ]; then
  cd -- "$p" || exit {_Code.MISSING}
  echo "{_HEAD} folder ${{s:-0}}" >&2
  exec tar cf - .
fi
echo "{_HEAD} file ${{s:-0}}" >&2
cd -- "$(dirname -- "$p")" && exec tar chf - "./$(basename -- "$p")"
"""
"""Writes a tar stream. Its first line on standard error has the type (folder or file) and the size in KiB."""
_TAKE = f"""t=$1 n=$2
command -v tar >/dev/null 2>&1 || exit {_Code.NO_TAR}
if [ -d "$t" ]; then d=$t; else d=$(dirname -- "$t"); n=$(basename -- "$t"); fi
[ -d "$d" ] || exit {_Code.NO_FOLDER}
cd -- "$d" || exit {_Code.NO_FOLDER}
w=$(pwd)/.slipway-cp.$$
mkdir -m 700 -- "$w" || exit {_Code.NO_WRITE}
trap 'rm -rf -- "$w"' EXIT
trap 'exit {_Code.BROKEN}' HUP INT TERM
tar xof - -C "$w" || exit {_Code.BROKEN}
[ -f "$w/complete" ] || exit {_Code.BROKEN}
if [ -d "$w/content" ] && [ -d "./$n" ]; then
  to=$(cd -- "./$n" && pwd) || exit {_Code.NO_WRITE}
  cd -- "$w/content" || exit {_Code.BROKEN}
  find . -type d -exec sh -c 'for x; do mkdir -p -- "$0/$x" || exit 1; done' "$to" {{}} + || exit {_Code.NO_WRITE}
  find . ! -type d -exec sh -c 'for x; do mv -f -- "$x" "$0/$x" || exit 1; done' "$to" {{}} + || exit {_Code.NO_WRITE}
  cd -- "$OLDPWD"
  exit 0
fi
if [ -d "./$n" ] || {{ [ -d "$w/content" ] && [ -e "./$n" ]; }}; then exit {_Code.OTHER_KIND}; fi
mv -f -- "$w/content" "./$n" || exit {_Code.NO_WRITE}
"""
"""The script that reads a tar stream. Its last entry, `complete`, shows that the stream is whole."""

ReportProgress = Callable[[int, int], None]
"""A function that is called with (bytes so far, total bytes; 0: unknown)."""


class RankPath(NamedTuple):
    """A path in a rank."""

    id: str
    rank: int
    path: str
    container: str = ""

    def command(self, script: str, *words: str, stdin: bool) -> RankCommand:
        """Return the command that runs a script with this path."""
        words = ("sh", "-c", script, _HEAD, self.path, *words)
        return RankCommand(self.id, words, rank=self.rank, container=self.container, stdin=stdin)

    @property
    def name(self) -> str:
        """The default name of a copy; the allocation's id for a path without a name."""
        name = os.path.basename(os.path.normpath(self.path))
        return self.id if name in ("", ".", "..", "/") else name

    def __str__(self) -> str:
        return f"{self.id}/{self.rank}:{self.path}"


class RankFiles:
    """Copies files between this machine and the ranks of one server. It calls `told` with the progress."""

    def __init__(self, server: ServerAddress, user: str, told: ReportProgress) -> None:
        self._server = server
        self._user = user
        self._told = told

    # --- from a rank

    def fetch(self, source: RankPath, local: Path) -> tuple[Path, Unpacked]:
        """Copy to `local`, or into it if it is a folder; return the path of the copy.

        Raises:
            NotFoundError: there is no such path. PermanentError: the copy is incomplete, and all of it was removed.
            ControlPlaneError: see `rank_session.running`.
        """
        target = local / source.name if local.is_dir() else local
        parent = target.parent
        if not parent.is_dir():
            raise NotFoundError(f"there is no folder {parent}; create it first")
        try:
            staging = Path(tempfile.mkdtemp(prefix=f".{target.name[:64]}.", suffix=".part", dir=parent))
        except OSError as error:
            raise PermanentError(f"{parent}: {error.strerror}") from error
        try:
            is_folder, found = asyncio.run(self._receive(source, staging))
            return placed(staging, target, is_folder=is_folder), found
        except OSError as error:
            raise PermanentError(f"the copy is not whole, and nothing was put under its name: {error}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    async def _receive(self, source: RankPath, staging: Path) -> tuple[bool, Unpacked]:
        wanted = source.command(_SEND, stdin=False)
        errors = _Errors()
        size = [0]

        def moved(count: int) -> None:
            size[0] += count
            self._told(size[0], errors.total)

        async with running(self._server, wanted, self._user) as session:
            reading, writing = os.pipe()
            unpacking = asyncio.ensure_future(asyncio.to_thread(_unpack, reading, staging, moved))
            try:
                async for stream, data in session.output():
                    if stream == STDERR:
                        errors.add(data)
                    elif stream == STDOUT and not unpacking.done():
                        with contextlib.suppress(BrokenPipeError):  # unpacking has failed, and its result says why
                            await asyncio.to_thread(_write_all, writing, data)
                    else:
                        break
            finally:
                os.close(writing)
                await asyncio.gather(unpacking, return_exceptions=True)
            if unpacking.exception() is None or session.end is not None:
                _check(session.end, source, errors.text)
            return errors.is_folder, unpacking.result()

    # --- to a rank

    def store(self, local: Path, target: RankPath) -> Unpacked:
        """Copy a file or a folder to a path in a rank, or into it when the path is a folder.

        Raises as `fetch` does.
        """
        if not local.exists():
            raise NotFoundError(f"there is no {local} here")
        return asyncio.run(self._store(local, local.resolve().name or target.id, target))

    async def _store(self, local: Path, name: str, target: RankPath) -> Unpacked:
        packing_errors: list[str] = []
        total = await asyncio.to_thread(_size_of, local)
        size = [0]

        def moved(count: int) -> None:
            size[0] += count
            self._told(size[0], total)

        errors = _Errors()
        async with running(self._server, target.command(_TAKE, name, stdin=True), self._user) as session:
            reading, writing = os.pipe()
            packing = asyncio.ensure_future(asyncio.to_thread(_pack, writing, local, packing_errors))
            sending = asyncio.ensure_future(_send(session, reading, moved))
            try:
                async for stream, data in session.output():
                    if stream == STDERR:
                        errors.add(data)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                os.close(reading)
                await asyncio.gather(packing, return_exceptions=True)
            if packing.done() and not packing.cancelled() and isinstance(packing.exception(), OSError | ValueError):
                broken = packing.exception()
                if not isinstance(broken, BrokenPipeError):
                    raise PermanentError(
                        f"{local} cannot be read: {broken}; nothing was put under its name"
                    ) from broken
            _check(session.end, target, errors.text)
        return Unpacked(packing.result(), total, tuple(packing_errors))


class _Errors:
    """The standard error of a script; its first line may be the header that our script prints."""

    def __init__(self) -> None:
        self._said = bytearray()

    def add(self, data: bytes) -> None:
        if len(self._said) < _ERRORS_MAX:
            self._said += data

    @property
    def _head(self) -> list[str]:
        words = self._said.partition(b"\n")[0].decode(errors="replace").split()
        return words if words[:1] == [_HEAD] else []

    @property
    def total(self) -> int:
        return int(self._head[2]) * 1024 if len(self._head) == 3 and self._head[2].isdigit() else 0

    @property
    def is_folder(self) -> bool:
        return self._head[1:2] == ["folder"]

    @property
    def text(self) -> str:
        lines = self._said.decode(errors="replace").splitlines()
        return one_line("; ".join(line for line in lines if line and not line.startswith(f"{_HEAD} "))[:500])


def _check(end: CommandEnd | None, place: RankPath, said: str) -> None:
    """Raise the error for the end of a script, if it failed."""
    if end is None:
        raise lost()
    if end.code == 0:
        return
    why = f": {said}" if said else ""
    if end.code is None and not end.is_missing_program:
        raise PermanentError(f"the copy broke off, and nothing was put under its name: {end.message}")
    if end.is_missing_program:
        raise PermanentError(f"the image of {place.id} has no sh, which cp needs; copy through a volume instead")
    match end.code:
        case _Code.MISSING:
            raise NotFoundError(f"there is no {place}")
        case _Code.NO_TAR:
            raise PermanentError(
                f"the image of {place.id} has no tar, which cp needs: install tar in the image, or read a single file "
                f"with: {command_line('exec', place.id, '--rank', place.rank)} -- cat FILE > FILE"
            )
        case _Code.NO_FOLDER:
            raise NotFoundError(f"{place}: there is no such folder in the rank; create it first with slipway exec")
        case _Code.NO_WRITE:
            raise PermanentError(f"{place} cannot be written{why}")
        case _Code.OTHER_KIND:
            raise InvalidError(f"{place} exists, but one of the two is a folder and the other is a file")
        case _:
            raise PermanentError(
                f"the copy is not whole, and nothing was put under its name{why} (exit code {end.code})"
            )


def placed(staging: Path, target: Path, *, is_folder: bool) -> Path:
    """Rename a complete copy to its target. Raises InvalidError, PermanentError."""
    if is_folder:
        if target.is_dir():
            _merge(staging, target)
        elif os.path.lexists(target):
            raise InvalidError(f"{target} exists and is a file; the copy is a folder")
        else:
            staging.rename(target)
        return target
    found = list(staging.iterdir())
    if len(found) != 1 or not stat.S_ISREG(found[0].lstat().st_mode):
        # A link in the copy could lead to files outside of the copy after the rename.
        raise PermanentError("the rank sent something other than the one requested file; nothing of it was stored")
    (file,) = found
    if target.is_dir():
        raise InvalidError(f"{target} exists and is a folder; the copy is a file")
    file.replace(target)
    return target


def _merge(source: Path, target: Path) -> None:
    """Move everything below `source` into `target`, file by file; never through a link in `target`."""
    for entry in sorted(source.iterdir()):
        to = target / entry.name
        if entry.is_dir() and not entry.is_symlink():
            if os.path.lexists(to) and (to.is_symlink() or not to.is_dir()):
                raise InvalidError(f"{to} exists and is no folder; the copy is a folder")
            to.mkdir(exist_ok=True)
            _merge(entry, to)
            shutil.copystat(entry, to)
        elif to.is_dir() and not to.is_symlink():
            raise InvalidError(f"{to} exists and is a folder; the copy is a file")
        else:
            entry.replace(to)


def _unpack(fd: int, staging: Path, moved: Callable[[int], None]) -> Unpacked:
    with os.fdopen(fd, "rb") as stream:
        return unpack(stream, staging, moved)


def _pack(fd: int, local: Path, left_out: list[str]) -> int:
    """Write `local` as a tar stream; return the number of its files."""
    count = 0

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal count
        if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            left_out.append(f"{member.name.removeprefix('content').lstrip('/')} (a device, a socket or a pipe)")
            return None
        count += member.isfile()
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with os.fdopen(fd, "wb") as stream, tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        archive.add(local.resolve() if local.is_symlink() else local, arcname="content", filter=kept)
        archive.addfile(tarfile.TarInfo("complete"))
    return count


async def _send(session: RankSession, fd: int, moved: Callable[[int], None]) -> None:
    while data := await asyncio.to_thread(os.read, fd, PIECE_BYTES):
        await session.send(data)
        moved(len(data))
    await session.end_input()


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _size_of(local: Path) -> int:
    """Return the total size of all files, in bytes."""
    if not local.is_dir():
        return local.stat().st_size
    total = 0
    for folder, _, names in os.walk(local):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(folder, name))
                total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total
