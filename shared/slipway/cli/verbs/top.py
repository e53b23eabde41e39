"""`slipway top`: nodes, queues and the user's work on one page that is redrawn in place."""

import argparse
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from slipway.cli import main, overview, table
from slipway.cli.gpu_use import read_gpu_use
from slipway.cli.http import Api
from slipway.cli.overview import EVERYBODY, ClusterOverview
from slipway.cli.screen import Screen, whole_screen
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession, CliVerb
from slipway.errors import TransientError
from slipway.model.times import format_duration

Json = dict[str, Any]
EVERY_S = 2.0
DRAW_S = 0.5
LATE_S = 5.0
"""Seconds after which the age of the tables is shown."""
WORK_MAX = 500
_LEAVE_KEYS = ("q", "Q", "\x04")
_RED = ("NotReady", "Disabled")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--once", action="store_true", help="print it once, complete (the default in a pipe)")
    parser.add_argument("--owner", metavar="NAME", help=f"work of this user, not yours; '{EVERYBODY}': of all users")
    parser.epilog = f"Redraws the screen every {EVERY_S:.0f} seconds, until q or Ctrl-C."


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Show the page once, or until the user quits."""
    terminal = session.terminal
    if not arguments.once and terminal.out.isatty():
        return _stay(arguments.owner or "", session)
    reader = _OverviewReader(session.api, arguments.owner or "")
    width = terminal.width if terminal.out.isatty() else 0
    for line in overview.page(reader.look(), table.now(), width=width, paint=_painter(terminal)):
        terminal.line(line)
    return main.OK


def _painter(terminal: Terminal) -> Callable[[str, str], str]:
    def paint(name: str, cell: str) -> str:
        if name != "STATE":
            return cell
        is_bad = cell.strip() in _RED
        return terminal.paint(cell, "red", to_err=False) if is_bad else terminal.state(cell)

    return paint


class _OverviewReader:
    """Reads the data of the page from the API; several threads must not use it at once."""

    def __init__(self, api: Api, owner: str) -> None:
        self._api = api
        self._owner = owner

    def look(self) -> ClusterOverview:
        """Return the current data. Raises ControlPlaneError when an answer is missing."""
        self._owner = self._owner or str(self._api.get("/me")["user"])
        user = "" if self._owner == EVERYBODY else self._owner
        query = {"active": "true", "user": user, "sort": "-createdAt", "limit": WORK_MAX}
        nodes = cast("list[Json]", self._api.get("/nodes")["items"])
        queues = cast("list[Json]", self._api.get("/queues")["items"])
        work = cast("Json", self._api.get("/allocations", query))
        has_more = bool(work["metadata"].get("continue"))
        # The GPU use of all users is read: idle allocations of any user may hold GPUs that others wait for.
        use = read_gpu_use(self._api)
        return ClusterOverview(nodes, queues, cast("list[Json]", work["items"]), self._owner, has_more, use)


class _OverviewPoller:
    """A thread that reads the data every two seconds; it keeps the last data, its age, and the last error."""

    def __init__(self, reader: _OverviewReader) -> None:
        self._reader = reader
        self._began_s = time.monotonic()
        self.last: tuple[ClusterOverview, float] | None = None
        self.trouble = ""
        self.fault: BaseException | None = None
        threading.Thread(target=self._run, daemon=True, name="top").start()

    @property
    def age_s(self) -> float:
        """Seconds since the last answer, or since the start."""
        return time.monotonic() - (self.last[1] if self.last is not None else self._began_s)

    def _run(self) -> None:
        while self.fault is None:
            try:
                self.last = (self._reader.look(), time.monotonic())
                self.trouble = ""
            except TransientError as error:
                self.trouble = str(error).partition("\n")[0]
            except Exception as error:  # noqa: BLE001 - the thread that draws raises it
                self.fault = error
            time.sleep(EVERY_S)


def _stay(owner: str, session: CliSession) -> int:
    """Redraw the page until a key or Ctrl-C. Raises PermanentError when the server refuses to answer."""
    api = session.connect(is_quiet=True)
    feed = _OverviewPoller(_OverviewReader(api, owner))
    try:
        with whole_screen(session.terminal.out) as screen:
            while feed.fault is None:
                lines = _lines(feed, screen, session.terminal, api.server.url)
                screen.draw([session.terminal.shown(line) for line in lines])
                if screen.key(DRAW_S) in _LEAVE_KEYS:
                    return main.OK
    except KeyboardInterrupt:
        return main.OK
    raise feed.fault


def _lines(feed: _OverviewPoller, screen: Screen, terminal: Terminal, url: str) -> list[str]:
    """Return the current lines of the screen: the page, below the time or the error."""
    columns, rows = screen.size
    age = format_duration(float(int(feed.age_s)))
    if feed.trouble or (feed.last is not None and feed.age_s > LATE_S):
        why = feed.trouble or f"no answer from {url}"
        since = f"; the tables are {age} old" if feed.last is not None else ""
        first = terminal.paint(table.cut(f"retrying{since}: {why}", columns), "red", to_err=False)
    elif feed.last is None:
        first = f"asking {url} ..."
    else:
        first = table.cut(f"{url}  {time.strftime('%H:%M:%S')}  (q: quit)", columns)
    if feed.last is None:
        return [first]
    page = overview.page(feed.last[0], table.now(), width=columns, height=rows - 1, paint=_painter(terminal))
    return [first, *page]


VERBS = {"top": CliVerb(configure, execute)}
