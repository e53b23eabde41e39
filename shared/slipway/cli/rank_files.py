"""Copies files to and from a rank, as tar streams through a command in the rank.

Owns the scripts in the rank, the staging on both sides, and the message of each failure. A copy is unpacked beside its
target and renamed to the target only when it is complete. An interrupted copy therefore leaves no file under the
target's name.

Needs only `sh` and `tar` in the image.
"""

import asyncio
import contextlib
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from slipway.cli.columns import one_line
from slipway.cli.rank_session import RankSession, running
from slipway.cli.unpacking import Unpacked, unpack
from slipway.cli.verb import command_line
from slipway.errors import InvalidError, NotFoundError, PermanentError
from slipway.model.exec_channels import PIECE_BYTES, STDERR, STDOUT, CommandEnd
from slipway.sdk.address import ServerAddress
from slipway.sdk.commands import RankCommand, lost


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
