"""How following ends: with the last line of the log, or with a word that it has not come."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slipway.cli import follow
from slipway.cli.background import Background
from slipway.cli.http import Api, ServerSentEvent
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession

VIEW: dict[str, Any] = {"id": "run-1", "name": "run-1", "phase": "Running", "spec": {"kind": "command"}, "status": {}}
ENDED = {**VIEW, "phase": "Terminated", "result": "Succeeded"}


def entry(data: dict[str, Any]) -> ServerSentEvent:
    return ServerSentEvent("", "", data)


def ends(_: Api) -> Iterator[ServerSentEvent]:
    yield entry({"type": "dev.slipway.allocation.terminated", "data": {"phase": "Terminated"}})


def view_at(_: str) -> dict[str, Any]:
    return ENDED


def attend(monkeypatch: pytest.MonkeyPatch, lines: Any) -> None:
    """Follow what has ended at once and whose log is `lines`."""
    monkeypatch.setattr(follow, "LOGS_END_S", 0.3)
    session = SimpleNamespace(terminal=Terminal(), api=SimpleNamespace(get=view_at))
    following = follow.Following(cast("CliSession", session), VIEW, with_logs=True)
    with Background(lambda: cast("Api", SimpleNamespace(close=lambda: None, abort=lambda: None))) as background:
        background.read("events", ends)
        background.read("logs", lines)
        following._attend(background)  # pyright: ignore[reportPrivateUsage]


def test_lines_that_come_late_are_all_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As long as lines come, it stays: together they take longer than the wait for one."""

    def slow(_: Api) -> Iterator[ServerSentEvent]:
        for number in range(6):
            threading.Event().wait(0.1)
            yield entry({"rank": 0, "text": f"line {number}"})

    attend(monkeypatch, slow)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"line {number}" for number in range(6)]
    assert "slipway logs" not in shown.err


def test_a_log_whose_end_does_not_come_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that shows the rest."""
    stop = threading.Event()

    def stuck(_: Api) -> Iterator[ServerSentEvent]:
        yield entry({"rank": 0, "text": "first"})
        stop.wait(10)

    attend(monkeypatch, stuck)
    stop.set()
    assert "see it with: slipway logs run-1" in capsys.readouterr().err
