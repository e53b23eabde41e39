"""Sends the files of a launch to the API: small files in the launch itself, others as an uploaded context.

This module owns that choice, the progress messages, the ignore file, and the rules for what may not be packed (links
that lead out of the folder, pipes, devices). An archive that the API already has is not sent again. The bytes of the
archive depend only on names, modes and contents: the same folder always makes the same archive.
"""

import argparse
import base64
import gzip
import hashlib
import json
import os
import posixpath
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from slipway.cli.verb import CliSession
from slipway.errors import InvalidError, NotFoundError

IGNORE_FILE = ".slipwayignore"
IGNORED = (".git/", ".venv/", "__pycache__/", ".slipwayignore")
"""Patterns that are ignored unless the ignore file says otherwise."""
SMALL_BYTES = 180 * 1024
"""The most bytes of small files that are written into the launch itself; a whole launch may have 256 KiB."""
SMALL_FILES = 64
SMALL_PATH = 255
ARCHIVE_BYTES_MAX = 95 * 1024 * 1024
MEMBERS_MAX = 50_000
"""The most files and folders, as the API counts them."""
LARGEST_SHOWN = 3
MIB = 1024 * 1024
_LEVEL = 6
_SKIP_HINT = f"remove it, or name it in {IGNORE_FILE}"

Json = dict[str, Any]


class Item(NamedTuple):
    """One file or empty folder: its path in the working directory, and its path on this machine."""

    path: str
    source: Path
    size: int
    mode: int
    is_folder: bool = False


def items_of(folder: str, includes: Sequence[str] = ()) -> list[Item]:
    """Return the items of `folder` (empty: none), and the included files and folders under their own names.

    Raises:
        InvalidError: a path does not exist, cannot be read, or cannot be packed.
    """
    found: dict[str, Item] = {}
    if folder:
        root = Path(folder)
        if not root.is_dir():
            what = "is not a folder" if root.exists() else "does not exist"
            raise InvalidError(f"--context: {folder} {what}; name the folder with the files of the launch")
        found = {item.path: item for item in _below(root, Ignore.of(root))}
    for text in includes:
        source, _, name = text.partition(":")
        path = Path(source)
        if not path.exists():
            raise InvalidError(f"--include: {source} does not exist")
        own, path = name or path.absolute().name, path.resolve()
        if path.is_dir():
            items = [Item(f"{own}/{each.path}", *each[1:]) for each in _below(path, Ignore.of(path))]
        else:
            items = [_file(own, path, path.parent)]
        for item in items:
            if item.path in found:
                raise InvalidError(f"--include: {item.path} is already in the context; include it as {source}:NAME")
            found[item.path] = item
    count = len(found) + len(_folders_of(found))
    if count > MEMBERS_MAX:
        raise InvalidError(
            f"--context: {count} files and folders; at most {MEMBERS_MAX} are allowed: leave some out in {IGNORE_FILE}"
        )
    return [found[path] for path in sorted(found)]


def small_files(items: Sequence[Item]) -> list[Json] | None:
    """Return the items as `files` of a launch; None when they are too many, too large, or not allowed there."""
    kept = [item for item in items if not item.is_folder]
    odd = any(":" in item.path or len(item.path) > SMALL_PATH for item in kept)
    if len(kept) > SMALL_FILES or len(kept) < len(items) or odd or sum(item.size for item in kept) > SMALL_BYTES:
        return None
    files = [file_of(item.path, item.source, item.mode) for item in kept]
    return files if len(json.dumps(files)) <= SMALL_BYTES else None


def file_of(path: str, source: Path, mode: int) -> Json:
    """Return one entry of `files`."""
    content = _read(source)
    try:
        return {"path": path, "content": content.decode(), "mode": mode}
    except UnicodeDecodeError:
        encoded = base64.b64encode(content).decode()
        return {"path": path, "content": encoded, "encoding": "base64", "mode": mode}


def pack(items: Sequence[Item], out: BinaryIO, tell: Callable[[int], None] = lambda _done: None) -> None:
    """Write the archive; `tell` receives the number of bytes read so far.

    Raises:
        InvalidError: a file cannot be read, or the archive is larger than the API accepts.
    """
    done = 0
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=out, compresslevel=_LEVEL, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for item in items:
            head = tarfile.TarInfo(item.path)
            head.mode = item.mode
            if item.is_folder:
                head.type = tarfile.DIRTYPE
                archive.addfile(head)
                continue
            head.size = item.size
            try:
                with item.source.open("rb") as file:
                    archive.addfile(head, file)
            except OSError as exc:
                raise InvalidError(f"--context: {item.source} cannot be read: {exc.strerror or exc}") from exc
            done += item.size
            tell(done)
            if out.tell() > ARCHIVE_BYTES_MAX:
                raise too_large(items)
    if out.tell() > ARCHIVE_BYTES_MAX:
        raise too_large(items)


def too_large(items: Sequence[Item]) -> InvalidError:
    """Return the error for a folder that is too large; it names the largest files."""
    largest = sorted(items, key=lambda item: -item.size)[:LARGEST_SHOWN]
    shown = ", ".join(f"{item.path} ({item.size / MIB:.1f} MiB)" for item in largest)
    return InvalidError(
        f"--context: the packed archive has more than {ARCHIVE_BYTES_MAX // MIB} MiB, the limit. The largest files: "
        f"{shown}. Name the files that are not needed in {IGNORE_FILE}; put data on a volume"
    )


class Ignore:
    """Patterns with the syntax of git."""

    def __init__(self, lines: Sequence[str], source: Path | None = None) -> None:
        from pathspec import GitIgnoreSpec

        for number, line in enumerate(lines, 1):
            try:
                GitIgnoreSpec.from_lines([line])
            except ValueError as exc:
                raise InvalidError(f"{source}: line {number}: {line!r} is not a valid pattern ({exc})") from exc
        self._spec = GitIgnoreSpec.from_lines([*IGNORED, *lines])

    @classmethod
    def of(cls, root: Path) -> "Ignore":
        """Return the patterns of a folder's ignore file; the defaults when there is none."""
        file = root / IGNORE_FILE
        if not file.exists():
            return cls(())
        try:
            return cls(file.read_text(encoding="utf-8").splitlines(), file)
        except (OSError, UnicodeDecodeError) as exc:
            raise InvalidError(f"{file} cannot be read: {exc}") from exc

    def covers(self, path: str, *, is_folder: bool) -> bool:
        """Whether the path is ignored."""
        # A name that is not UTF-8 is matched with `?` in place of its other bytes.
        path = path.encode(errors="replace").decode()
        return self._spec.match_file(path + "/" if is_folder else path)


def _folders_of(paths: Iterable[str]) -> set[str]:
    """Return the parent folders of these paths."""
    found: set[str] = set()
    for path in paths:
        folder = posixpath.dirname(path)
        while folder and folder not in found:
            found.add(folder)
            folder = posixpath.dirname(folder)
    return found


def _below(root: Path, ignore: Ignore) -> Iterator[Item]:
    def fail(error: OSError) -> None:
        raise InvalidError(f"--context: {error.filename} cannot be read: {error.strerror}")

    for place, folders, files in os.walk(root, onerror=fail):
        here = Path(place)
        prefix = "" if here == root else here.relative_to(root).as_posix() + "/"
        for name in list(folders):
            if ignore.covers(prefix + name, is_folder=True):
                folders.remove(name)
            elif (here / name).is_symlink():
                raise InvalidError(f"--context: {here / name} is a link to a folder; {_SKIP_HINT}")
        folders.sort()
        kept = [name for name in files if not ignore.covers(prefix + name, is_folder=False)]
        for name in sorted(kept):
            yield _file(prefix + name, here / name, root)
        if prefix and not kept and not folders:
            yield Item(prefix.rstrip("/"), here, 0, 0o755, is_folder=True)


def _file(path: str, source: Path, root: Path) -> Item:
    if "\\" in path or any(ord(letter) < ord(" ") or "\ud800" <= letter <= "\udfff" for letter in path):
        raise InvalidError(f"--context: {path!r} is not an allowed file name; {_SKIP_HINT}")
    try:
        if source.is_symlink() and not source.resolve(strict=True).is_relative_to(root.resolve()):
            raise InvalidError(f"--context: {source} is a link to a file outside of {root}; {_SKIP_HINT}")
        found = source.stat()
    except OSError as exc:
        raise InvalidError(f"--context: {source} cannot be read: {exc.strerror or exc}; {_SKIP_HINT}") from exc
    if not stat.S_ISREG(found.st_mode):
        raise InvalidError(f"--context: {source} is neither a file nor a folder; {_SKIP_HINT}")
    return Item(path, source, found.st_size, 0o755 if found.st_mode & 0o100 else 0o644)


def _read(source: Path) -> bytes:
    try:
        return source.read_bytes()
    except OSError as exc:
        raise InvalidError(f"{source} cannot be read: {exc.strerror or exc}") from exc


BLOCK = 256 * 1024
DEFAULT_WORKSPACE = "default"


def add_options(parser: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage] - argparse names no type
    """Add the options for the files of a launch."""
    parser.add_argument(
        "-c",
        "--context",
        metavar="DIR",
        default="",
        help=f"send the files of a folder, except those that its {IGNORE_FILE} names",
    )
    parser.add_argument(
        "-i",
        "--include",
        metavar="PATH[:NAME]",
        action="append",
        default=[],
        help="send one more file or folder (repeat)",
    )


def add_files(session: CliSession, body: Json, arguments: argparse.Namespace) -> None:
    """Put the files into the launch body, or upload them and set the id of the context in the body."""
    if not arguments.context and not arguments.include:
        return
    items = items_of(arguments.context, arguments.include)
    if not items:
        raise InvalidError(
            f"--context: no file of {arguments.context} is sent: the folder is empty, or all its files are ignored"
        )
    files = small_files(items)
    if files is not None and len(files) + len(body.get("files") or []) <= SMALL_FILES:
        body["files"] = [*(body.get("files") or []), *files]
    elif getattr(arguments, "as_tool", ""):
        raise InvalidError("--as: the files of --context are uploaded first, which other tools cannot do; leave it out")
    elif arguments.dry_run:
        session.terminal.note("a dry run uploads nothing: --context is left out")
    else:
        body["context"] = send(session, items, str(body.get("workspace") or DEFAULT_WORKSPACE))


def send(session: CliSession, items: list[Item], workspace: str) -> str:
    """Pack and upload the files; return the id of the context."""
    terminal = session.terminal
    total = sum(item.size for item in items)
    terminal.live(f"packing {len(items)} files, {total / MIB:.1f} MiB")
    begin = time.monotonic()
    with tempfile.TemporaryFile(prefix="slipway-context-") as archive:
        pack(items, archive, lambda done: terminal.live(f"packing {_share(done, total)}"))
        size = archive.tell()
        archive.seek(0)
        id_ = _digest(archive)
        sent = not _is_there(session, id_, workspace)
        if sent:
            archive.seek(0)
            session.api.send_file(
                "/contexts",
                cast(BinaryIO, archive),
                size,
                query={"workspace": workspace, "id": id_},
                tell=lambda done: terminal.live(f"uploading {_share(done, size)}"),
            )
    terminal.clear()
    took_s = time.monotonic() - begin
    how = f"uploaded in {took_s:.1f} s" if sent else "was uploaded before"
    terminal.note(f"context {id_[:12]}: {len(items)} files, {size / MIB:.1f} MiB packed, {how}")
    return id_


def _is_there(session: CliSession, id_: str, workspace: str) -> bool:
    try:
        session.api.get(f"/contexts/{id_}", {"workspace": workspace})
    except NotFoundError:
        return False
    return True


def _digest(file: Any) -> str:
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def _share(done: int, total: int) -> str:
    """Return the progress in steps of ten percent, because without a terminal each new text is printed as a line."""
    return f"{total / MIB:.1f} MiB: {10 * (10 * done // max(1, total))} %"
