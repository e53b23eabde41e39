"""`slipway cp`: copies files to and from a running rank."""

import argparse
import re
import time
from pathlib import Path

from slipway.cli import main
from slipway.cli.rank_files import RankFiles, RankPath, Unpacked
from slipway.cli.verb import CliSession, CliVerb, whole_number
from slipway.errors import InvalidError

TOLD_S = 0.2
LEFT_OUT_SHOWN_MAX = 10
_REMOTE = re.compile(r"([A-Za-z0-9][-A-Za-z0-9.]*)(?:/(\d{1,6}))?:(.*)", re.DOTALL)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cp`."""
    parser.usage = "slipway cp [options] ID[/RANK]:PATH LOCAL\n       slipway cp [options] LOCAL ID[/RANK]:PATH"
    parser.description = (
        "Copy a file or a folder from a running rank, or to it. A target that is a\n"
        "folder gets the copy inside. The image needs sh and tar. A local name with a\n"
        "colon is written ./a:b."
    )
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument(
        "--rank", metavar="N", type=whole_number, help="number of the rank (default: that of ID/RANK, or 0)"
    )
    parser.add_argument(
        "-c", "--container", metavar="NAME", default="", help="in this container instead of the main one"
    )


def copy(arguments: argparse.Namespace, session: CliSession) -> int:
    """Copy the files; return 0 when the copy is complete."""
    source, target = _remote(arguments, arguments.source), _remote(arguments, arguments.target)
    progress = _Progress(session)
    files = RankFiles(session.api.server, session.user, progress.told)
    started_at = time.monotonic()
    if source is not None and target is not None:
        raise InvalidError("one side must be on this machine; copy in two steps, or mount one volume in both ranks")
    if source is not None:
        placed, done = files.fetch(source, Path(arguments.target))
        where = str(placed)
    elif target is not None:
        done = files.store(Path(arguments.source), target)
        where = str(target)
    else:
        raise InvalidError("one side must be in a rank: ID:PATH, or ID/RANK:PATH")
    session.terminal.clear()
    _tell(session, done, where, time.monotonic() - started_at)
    return main.OK


class _Progress:
    """A line of progress that replaces itself, on a terminal only."""

    def __init__(self, session: CliSession) -> None:
        self._terminal = session.terminal
        self._next = 0.0

    def told(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._terminal.is_interactive or now < self._next:
            return
        self._next = now + TOLD_S
        share = f" of {size_text(total)} ({min(99, done * 100 // total)} %)" if total > done else ""
        self._terminal.live(f"{size_text(done)}{share}")


def size_text(size: int) -> str:
    """Format a size, such as `3.4 MiB`."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _tell(session: CliSession, done: Unpacked, where: str, spent_s: float) -> None:
    files = "1 file" if done.files == 1 else f"{done.files} files"
    session.terminal.note(f"{files}, {size_text(done.size)} in {spent_s:.1f} s: {where}")
    for each in done.left_out[:LEFT_OUT_SHOWN_MAX]:
        session.terminal.note(f"left out: {each}")
    more = len(done.left_out) - LEFT_OUT_SHOWN_MAX
    if more > 0:
        session.terminal.note(f"left out: {more} more")


def _remote(arguments: argparse.Namespace, text: str) -> RankPath | None:
    """Parse `ID[/RANK]:PATH`; return None for a path of this machine."""
    found = _REMOTE.fullmatch(text)
    if found is None:
        return None
    if not found[3]:
        raise InvalidError(f"{text} has no path; write for example {text}/data/model.pt")
    rank = int(found[2]) if found[2] else (arguments.rank or 0)
    if found[2] and arguments.rank not in (None, rank):
        raise InvalidError(f"--rank: {text} names rank {rank}; leave one of them out")
    return RankPath(found[1], rank, found[3], arguments.container)


VERBS = {"cp": CliVerb(configure, copy)}
