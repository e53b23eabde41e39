"""The functions that the scenes of the demo share: launch, show the events of a launch, and check results.

Owns the layout of the output. Every check is an assertion on an answer of the API. A failed check makes the demo fail,
but the demo continues, so that all of it can be seen.
"""

import textwrap
import time
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, NamedTuple, cast

from slipway.cli import table
from slipway.cli.background import BackgroundStreams, events_of
from slipway.cli.launch import made_up_name
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession
from slipway.cli.verbs.streams import event_text

Json = dict[str, Any]
WATCH_S = 30.0
INDENT = "   "
LOOK_S = 0.05


class Expectation(NamedTuple):
    """One check and its result."""

    name: str
    is_ok: bool
    found: str


class DemoLaunch(NamedTuple):
    """One launch of the demo, and its start time."""

    id: str
    what: str
    at: datetime


class DemoStage:
    """The output and the state of one run of the demo."""

    def __init__(self, terminal: Terminal, url: str) -> None:
        self.terminal = terminal
        self.session = CliSession(terminal, server=url)
        self.api = self.session.api
        self.checks: list[Expectation] = []
        self.launches: list[DemoLaunch] = []
        self._cursors: dict[str, str] = {}

    def title(self, text: str) -> None:
        """Begin a scene with a title; a long title is wrapped."""
        self.terminal.line()
        wrapped = textwrap.wrap(text, self.terminal.width, initial_indent="── ", subsequent_indent=INDENT)
        for part in wrapped:
            self.terminal.line(self.terminal.paint(part, "bold", to_err=False))

    def say(self, text: str) -> None:
        """Print the text of a scene; long lines are wrapped."""
        for line in text.splitlines():
            own = " " * (len(line) - len(line.lstrip()))
            wrapped = textwrap.wrap(
                line.strip(), self.terminal.width, initial_indent=INDENT + own, subsequent_indent=INDENT + own + "  "
            )
            for part in wrapped or [""]:
                self.terminal.line(part)

    def show(self, text: str) -> None:
        """Print preformatted lines, such as tables and events; long lines are cut."""
        for line in text.splitlines():
            self.terminal.line(table.cut(f"{INDENT}{line}".rstrip(), self.terminal.width))

    def check(self, name: str, is_ok: bool, found: object = "") -> bool:
        """Record and print the result of a check."""
        self.checks.append(Expectation(name, is_ok, str(found)))
        mark = self.terminal.paint("ok", "green", to_err=False) if is_ok else self.paint_bad("NO")
        text = name if is_ok else f"{name} (found: {found})"
        first, *rest = textwrap.wrap(text, self.terminal.width - 2 * len(INDENT)) or [""]
        self.terminal.line(f"{INDENT}{mark} {first}")
        for part in rest:
            self.terminal.line(f"{INDENT}{INDENT}{part}")
        return is_ok

    def paint_bad(self, text: str) -> str:
        """Return `text` in the colour of a failure."""
        return self.terminal.paint(text, "red", to_err=False)

    def launch(self, body: Json, what: str) -> DemoLaunch:
        """Send a launch with POST."""
        at, begin = table.now(), time.monotonic()
        view = self.api.launch({"name": made_up_name(str(body["kind"])), **body})
        took_ms = (time.monotonic() - begin) * 1000
        launched = DemoLaunch(str(view["id"]), what, at)
        self.launches.append(launched)
        self.say(f"POST /api/v1/allocations: {view['id']} after {took_ms:.0f} ms")
        for warning in cast("list[str]", view["warnings"]):
            self.say(f"warning: {warning}")
        return launched

    def view(self, launched: DemoLaunch) -> Json:
        """Return the current allocation."""
        view: Json = self.api.get(f"/allocations/{launched.id}")
        return view

    def look(self, launched: DemoLaunch, part: str) -> Any:
        """Return a subresource of the allocation, with GET."""
        return self.api.get(f"/allocations/{launched.id}/{part}")

    def watch(self, launched: DemoLaunch, goals: Collection[str]) -> Json:
        """Show the new events until one of `goals` or the end of the launch; return the allocation."""
        after = self._cursors.get(launched.id, "")
        with BackgroundStreams(self.session.connect) as background:
            background.read("events", lambda api: events_of(api, launched.id, after=after))
            self._show_until(launched, goals, background)
        return self.view(launched)

    def _show_until(self, launched: DemoLaunch, goals: Collection[str], background: BackgroundStreams) -> None:
        until = time.monotonic() + WATCH_S
        while (left_s := until - time.monotonic()) > 0:
            news = background.next(left_s)
            if news is None or news.kind != "events":
                return
            event = news.value.data
            self._cursors[launched.id] = news.value.id
            kind = str(event["type"]).rpartition(".")[2]
            after_s = max(0.0, (table.moment_of(str(event["time"])) - launched.at).total_seconds())
            self.show(f"{after_s:6.2f} s {event_text(event)[12:]}")
            if kind in goals or kind == "terminated":
                return

    def until(self, probe: Callable[[], Any], limit_s: float = 10.0) -> Any:
        """Call `probe` until its answer is true or the time is over; return the last answer."""
        deadline = time.monotonic() + limit_s
        while True:
            found = probe()
            if found or time.monotonic() > deadline:
                return found
            time.sleep(LOOK_S)
