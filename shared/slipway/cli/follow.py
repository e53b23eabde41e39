"""Follows an allocation until it has ended: shows progress while it waits, and the output of its ranks; handles Ctrl-C.

The first Ctrl-C detaches; a second Ctrl-C within `SECOND_S` kills the allocation.
"""

import time
from typing import Any

from slipway.cli import labels, main
from slipway.cli.background import BackgroundStreams, events_of, lines_of
from slipway.cli.table import one_line
from slipway.cli.terminal import RANK_COLOURS
from slipway.cli.verb import CliSession, command_line
from slipway.errors import TransientError
from slipway.sdk.sse import ServerSentEvent

Json = dict[str, Any]

LOOK_S = 0.5
"""Seconds between two reads of the explanation while no event arrives."""
AWAY_S = 60.0
"""Seconds without an answer of the server after which waiting or following fails."""
SECOND_S = 3.0
LOGS_END_S = 6.0
"""Seconds to wait for more log lines, after the end and after each line that arrives."""


class AllocationFollower:
    """One allocation that the command follows."""

    def __init__(self, session: CliSession, view: Json, *, with_logs: bool) -> None:
        self.session = session
        self.id = str(view["id"])
        self.view = view
        self._many = labels.rank_count(view) > 1
        self._with_logs = with_logs
        self._phase = str(view["phase"])
        self._has_ended = False
        self._logs_over = not with_logs
        self._has_lines = False

    def run(self) -> int:
        """Follow the allocation to its end; return the exit code."""
        with BackgroundStreams(self.session.connect) as background:
            background.read("events", lambda api: events_of(api, self.id))
            if self._with_logs:
                background.read("logs", lambda api: lines_of(api, self.id))
            try:
                return self._attend(background)
            except KeyboardInterrupt:
                return self._detach(background)

    # --- showing --------------------------------------------------------------------------------------------------

    def _attend(self, background: BackgroundStreams) -> int:
        terminal = self.session.terminal
        until = 0.0
        while not (self._has_ended and (self._logs_over or time.monotonic() > until)):
            news = background.next(LOOK_S)
            if news is None:
                self._look()
                continue
            match news.kind:
                case "events":
                    self._on_event(news.value)
                    until = time.monotonic() + LOGS_END_S
                case "events-over":
                    if news.value is not None:
                        raise news.value
                    self._has_ended = True
                    until = time.monotonic() + LOGS_END_S
                case "logs":
                    line = news.value.data
                    text = line_text(self.session, line, prefix=self._many)
                    # Events of Kubernetes are progress messages; the output of a rank is the result.
                    (terminal.note if is_event(line) else terminal.passed_on)(text)
                    self._has_lines = True
                    until = time.monotonic() + LOGS_END_S
                case _:
                    self._logs_over = True
                    if news.value is not None:
                        look = command_line("logs", self.id)
                        terminal.note(f"its output cannot be shown: {news.value}\nsee it later with: {look}")
        terminal.clear()
        # When the program could not be started, its log has neither lines nor an end.
        if self._has_lines and not self._logs_over:
            terminal.note(f"the end of the log has not arrived yet; see it with: {command_line('logs', self.id)}")
        self.view = self._read_end()
        is_good = labels.has_succeeded(self.view)
        terminal.note(terminal.paint(labels.summary_of(self.view), "green" if is_good else "red"))
        return labels.exit_code_of(self.view)

    def _read_end(self) -> Json:
        """Return the ended allocation. Raises TransientError when the server is away for `AWAY_S`."""
        until = time.monotonic() + AWAY_S
        while True:
            try:
                return self.session.api.get(f"/allocations/{self.id}")
            except TransientError:
                if time.monotonic() >= until:
                    raise
            time.sleep(LOOK_S)

    def _on_event(self, entry: ServerSentEvent) -> None:
        kind = str(entry.data["type"]).rpartition(".")[2]
        data = entry.data["data"]
        self._phase = str(data["phase"])
        terminal = self.session.terminal
        if kind == "terminated":
            self._has_ended = True
        elif kind == "restarted":
            terminal.note(f"restarted ({data.get('reason')}): attempt {data['attempt']}")
        elif data.get("startedAgain"):
            terminal.note(str(data.get("note", "")))
        elif self._phase == "Running":
            terminal.clear()
        else:
            terminal.live(f"{self.id}: {self._phase.lower()}")

    def _look(self) -> None:
        """Show why the allocation waits, while it waits."""
        if self._has_ended or self._phase == "Running":
            return
        try:
            why = self.session.api.get(f"/allocations/{self.id}/explain")
        except TransientError:
            return
        self.session.terminal.live(f"{self.id}: {progress_of(why)}")

    # --- Ctrl-C ---------------------------------------------------------------------------------------------------

    def _detach(self, background: BackgroundStreams) -> int:
        terminal = self.session.terminal
        try:
            # This is inside the `try`, because the second Ctrl-C may follow at once.
            terminal.clear()
            terminal.note(
                f"\ndetached: {self.id} goes on. Come back with: {command_line('follow', self.id)}\n"
                f"Ctrl-C again within {SECOND_S:.0f} s kills it."
            )
            time.sleep(SECOND_S)
        except KeyboardInterrupt:
            self.session.api.post(f"/allocations/{self.id}/kill")
            terminal.note(f"\nkilling {self.id}; another Ctrl-C does not wait for its end")
            return self._attend(background)
        return main.DETACHED


def line_text(session: CliSession, line: Json, *, prefix: bool) -> str:
    """Return a log line, with its rank in front when there are several; events of Kubernetes are marked."""
    text = str(line.get("text", ""))
    if is_event(line):
        text = session.terminal.paint(f"-- {one_line(text)}", "dim", to_err=False)
    if not prefix:
        return text
    rank = int(line.get("rank", 0))
    mark = session.terminal.paint(f"[{rank}]", RANK_COLOURS[rank % len(RANK_COLOURS)], to_err=False)
    return f"{mark} {text}"


def is_event(line: Json) -> bool:
    """Whether the line was not printed by the rank itself."""
    return line.get("stream") == "event" or bool(line.get("missing"))


def progress_of(why: Json) -> str:
    """Return one line about the state of the allocation, from its explanation."""
    phase = str(why["phase"])
    if phase == "Pending" and why.get("position"):
        place = f"position {why['position']} in queue {why['queue']}"
        return f"waits, {place}: {why['code']}: {why['message']}"
    if phase == "Pending":
        return f"waits: {why['message']}"
    return str(why["message"])


def wait_until(session: CliSession, id_: str, goal: str, timeout_s: float | None) -> Json | None:
    """Show progress until the allocation has reached `goal` or has ended; return None after `timeout_s`.

    Raises:
        ControlPlaneError: the read is refused. TransientError: the server is away for `AWAY_S`.
    """
    deadline = time.monotonic() + timeout_s if timeout_s is not None else None
    path = f"/allocations/{id_}"
    away_since: float | None = None
    with BackgroundStreams(session.connect) as background:
        # Each event ends the wait early. Without an event stream, the allocation is read every `LOOK_S`.
        background.read("events", lambda api: events_of(api, id_))
        while True:
            try:
                view: Json = session.api.get(path)
                if _has_reached(view, goal) or labels.has_ended(view):
                    session.terminal.clear()
                    return view
                shown = progress_of(session.api.get(path + "/explain"))
                away_since = None
            except TransientError as error:
                # The server may be restarting; the work goes on without it.
                away_since = time.monotonic() if away_since is None else away_since
                if time.monotonic() - away_since >= AWAY_S:
                    raise
                shown = "no answer yet: " + str(error).partition("\n")[0]
            left_s = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
            if left_s <= 0:
                session.terminal.clear()
                return None
            session.terminal.live(f"{id_}: {shown}")
            background.next(left_s)


def _has_reached(view: Json, goal: str) -> bool:
    match goal:
        case "ready":
            return bool(view.get("ready"))
        case "running":
            return view["phase"] == "Running"
        case _:
            return labels.has_ended(view)
