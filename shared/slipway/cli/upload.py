"""Sends the files of a launch to the API: small files in the launch itself, others as an uploaded context.

Owns that choice, and the progress messages. An archive that the API already has is not sent again.
"""

import argparse
import hashlib
import tempfile
import time
from typing import Any, BinaryIO, cast

from slipway.cli import packing
from slipway.cli.packing import MIB, Item
from slipway.cli.verb import CliSession
from slipway.errors import InvalidError, NotFoundError

Json = dict[str, Any]
BLOCK = 256 * 1024
DEFAULT_WORKSPACE = "default"


def add_options(parser: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage] - argparse names no type
    """Add the options for the files of a launch."""
    parser.add_argument(
        "-c",
        "--context",
        metavar="DIR",
        default="",
        help=f"send the files of a folder, except those that its {packing.IGNORE_FILE} names",
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
    items = packing.items_of(arguments.context, arguments.include)
    if not items:
        raise InvalidError(
            f"--context: no file of {arguments.context} is sent: the folder is empty, or all its files are ignored"
        )
    files = packing.small_files(items)
    if files is not None and len(files) + len(body.get("files") or []) <= packing.SMALL_FILES:
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
        packing.pack(items, archive, lambda done: terminal.live(f"packing {_share(done, total)}"))
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
