"""How following ends: with the last line of the log, or with a note that the end of the log has not come."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from slipway.cli import follow
from slipway.cli.background import Background, News
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession
from slipway.sdk.sse import ServerSentEvent

VIEW: dict[str, Any] = {"id": "run-1", "name": "run-1", "phase": "Running", "spec": {"kind": "command"}, "status": {}}
ENDED = {**VIEW, "phase": "Terminated", "result": "Succeeded"}
END = {"type": "dev.slipway.allocation.terminated", "data": {"phase": "Terminated"}}


class Inbox:
    """What comes, each at its second; asking moves the clock on."""

    def __init__(self, *news: tuple[float, News]) -> None:
        self._news = list(news)
        self.now = 0.0

    def next(self, timeout_s: float) -> News | None:
        if not self._news or self._news[0][0] > self.now + timeout_s:
            self.now += timeout_s
            return None
        at, found = self._news.pop(0)
        self.now = max(self.now, at)
        return found


def told(kind: str, data: dict[str, Any]) -> News:
    return News(kind, ServerSentEvent("", "", data))


def view_at(_: str) -> dict[str, Any]:
    return ENDED


def attend(monkeypatch: pytest.MonkeyPatch, *log: tuple[float, News]) -> None:
    """Follow what has ended at once and whose log comes so."""
    inbox = Inbox((0.0, told("events", END)), (0.0, News("events-over", None)), *log)
    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: inbox.now))
    session = SimpleNamespace(terminal=Terminal(), api=SimpleNamespace(get=view_at))
    following = follow.Following(cast("CliSession", session), VIEW, with_logs=True)
    following._attend(cast("Background", inbox))  # pyright: ignore[reportPrivateUsage]


def test_lines_that_come_late_are_all_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stays as long as lines come: together they take longer than the wait for one."""
    lines = [(number * 4.0, told("logs", {"rank": 0, "text": f"line {number}"})) for number in range(6)]
    attend(monkeypatch, *lines, (21.0, News("logs-over", None)))
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"line {number}" for number in range(6)]
    assert "slipway logs" not in shown.err


def test_a_program_that_printed_nothing_has_no_log_to_look_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It could not be started, say: no line came, and no end."""
    attend(monkeypatch)
    assert "slipway logs" not in capsys.readouterr().err


def test_a_log_whose_end_does_not_come_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that shows the rest."""
    attend(monkeypatch, (1.0, told("logs", {"rank": 0, "text": "first"})))
    shown = capsys.readouterr()
    assert (shown.out, "see it with: slipway logs run-1" in shown.err) == ("first\n", True)
