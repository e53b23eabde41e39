"""How following ends: with the last line of the log, or with a note that the end of the log did not arrive."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slipway.cli import follow
from slipway.cli.background import BackgroundStreams, StreamMessage
from slipway.cli.http import Api
from slipway.cli.terminal import Terminal
from slipway.cli.verb import CliSession
from slipway.errors import UnavailableError
from slipway.sdk.address import parse
from slipway.sdk.sse import ServerSentEvent

VIEW: dict[str, Any] = {"id": "run-1", "name": "run-1", "phase": "Running", "spec": {"kind": "command"}, "status": {}}
ENDED = {**VIEW, "phase": "Terminated", "result": "Succeeded"}
END = {"type": "dev.slipway.allocation.terminated", "data": {"phase": "Terminated"}}


class Inbox:
    """The news that arrive, each at its second; `next` moves the clock."""

    def __init__(self, *news: tuple[float, StreamMessage]) -> None:
        self._news = list(news)
        self.now = 0.0

    def next(self, timeout_s: float) -> StreamMessage | None:
        if not self._news or self._news[0][0] > self.now + timeout_s:
            self.now += timeout_s
            return None
        at, found = self._news.pop(0)
        self.now = max(self.now, at)
        return found


def told(kind: str, data: dict[str, Any]) -> StreamMessage:
    return StreamMessage(kind, ServerSentEvent("", "", data))


def view_at(_: str) -> dict[str, Any]:
    return ENDED


def attend(
    monkeypatch: pytest.MonkeyPatch, *log: tuple[float, StreamMessage], get: Callable[[str], Any] = view_at
) -> int:
    """Follow an allocation that has ended and whose log arrives as `log`; return the exit code."""
    inbox = Inbox((0.0, told("events", END)), (0.0, StreamMessage("events-over", None)), *log)

    def sleep(seconds: float) -> None:
        inbox.now += seconds

    monkeypatch.setattr(follow, "time", SimpleNamespace(monotonic=lambda: inbox.now, sleep=sleep))
    session = SimpleNamespace(terminal=Terminal(), api=SimpleNamespace(get=get))
    following = follow.AllocationFollower(cast("CliSession", session), VIEW, with_logs=True)
    return following._attend(cast("BackgroundStreams", inbox))  # pyright: ignore[reportPrivateUsage]


def test_lines_that_come_late_are_all_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Late lines are all shown: following continues while lines arrive, also when they together take longer than the
    wait for one."""
    lines = [(number * 4.0, told("logs", {"rank": 0, "text": f"line {number}"})) for number in range(6)]
    attend(monkeypatch, *lines, (21.0, StreamMessage("logs-over", None)))
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"line {number}" for number in range(6)]
    assert "slipway logs" not in shown.err


def test_a_program_that_printed_nothing_has_no_log_to_look_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without any line, for example when the program could not be started, no missing end of the log is reported."""
    attend(monkeypatch)
    assert "slipway logs" not in capsys.readouterr().err


def test_a_log_whose_end_does_not_come_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing end of the log is reported with the command that shows the rest."""
    attend(monkeypatch, (1.0, told("logs", {"rank": 0, "text": "first"})))
    shown = capsys.readouterr()
    assert (shown.out, "see it with: slipway logs run-1" in shown.err) == ("first\n", True)


def test_a_log_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that cannot be read is reported at once, with the reason and the command that shows the log; following
    continues without output."""
    attend(monkeypatch, (1.0, StreamMessage("logs-over", UnavailableError("Redis is away"))))
    shown = capsys.readouterr().err
    assert "its output cannot be shown: Redis is away" in shown
    assert "slipway logs run-1" in shown


def test_the_exit_code_of_a_run_survives_a_restart_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code of a run survives a restart of the server: a success stays a success, whether the server answers at
    once or a little later."""
    away = [UnavailableError("nobody listens there")] * 3

    def get(_: str) -> dict[str, Any]:
        if away:
            raise away.pop()
        return ENDED

    assert attend(monkeypatch, (0.0, StreamMessage("logs-over", None)), get=get) == 0
    away += [UnavailableError("nobody listens there")] * 1000
    with pytest.raises(UnavailableError):
        attend(monkeypatch, (0.0, StreamMessage("logs-over", None)), get=get)


def test_an_error_of_any_kind_ends_a_stream_in_the_background() -> None:
    """The reader of a stream that breaks in an unforeseen way does not wait for ever."""

    def entries(_: Api) -> Iterator[ServerSentEvent]:
        yield ServerSentEvent("1", "", {})
        raise KeyError("type")

    api = Api(parse("http://127.0.0.1:9", "test"))
    with BackgroundStreams(lambda: api) as background:
        background.read("events", entries)
        first, last = background.next(5.0), background.next(5.0)
    assert first is not None
    assert last is not None
    assert (first.kind, last.kind, type(last.value)) == ("events", "events-over", KeyError)


def waiting(*answers: dict[str, Any] | Exception) -> dict[str, Any] | None:
    """Wait for the end of an allocation whose reads return these answers, one each."""
    left = list(answers)

    def get(path: str) -> dict[str, Any]:
        if path.endswith("/explain"):
            return {"message": "", "phase": "Running"}
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    api = SimpleNamespace(get=get)
    session = SimpleNamespace(terminal=Terminal(), api=api, connect=lambda: Api(parse("http://127.0.0.1:9", "test")))
    return follow.wait_until(cast("CliSession", session), "run-1", "terminated", None)


def test_a_wait_survives_a_restart_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away for a short time does not end the wait; one that stays away does."""
    monkeypatch.setattr(follow, "LOOK_S", 0.001)
    away = UnavailableError("nobody listens there")
    assert waiting(VIEW, away, away, VIEW, away, ENDED) == ENDED
    monkeypatch.setattr(follow, "AWAY_S", 0.0)
    with pytest.raises(UnavailableError):
        waiting(VIEW, *[away] * 50)
