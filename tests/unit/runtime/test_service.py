"""The loop survives everything except a broken invariant; the process drains, and its exit code shows why it ended."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from slipway.errors import InvariantError, ThrottledError, UnavailableError
from slipway.runtime import service, telemetry
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.runtime.http_server import Receive, Scope, Send
from slipway.runtime.liveness import Loop
from slipway.runtime.service import ServiceContext, ServiceStop
from slipway.runtime.settings import CommonSettings
from tests.support.clock import FakeClock

TEST = Loop(name="test", bound_s=120.0, moves="each step")


class _LoopHarness:
    """A loop on a fake clock, stopped after a number of steps."""

    def __init__(self, *script: BaseException | float | None) -> None:
        self.clock, self.stop = FakeClock(), ServiceStop()
        self.health = ProcessHealth(self.clock)
        self.script = list(script)
        self.exits: list[int] = []

    async def step(self) -> float | None:
        outcome = self.script.pop(0)
        if not self.script:
            self.stop.set()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def run(self) -> None:
        await service.loop(
            TEST,
            self.step,
            clock=self.clock,
            random=SeededRandom(1),
            health=self.health,
            stop=self.stop,
            min_interval_s=1.0,
            max_backoff_s=8.0,
            exit_process=self.exits.append,
        )

    @property
    def waits(self) -> list[float]:
        return [slept for slept in self.clock.slept if slept > 0]


async def test_steps_are_at_least_the_interval_apart():
    """A step may ask for a longer wait, not for a shorter one."""
    harness = _LoopHarness(None, 5.0, 0.1, None)
    await harness.run()
    assert harness.waits == [1.0, 5.0, 1.0]


async def test_errors_back_off_with_jitter_and_a_cap_and_success_resets():
    """After errors the pauses are at most 1, 2, 4, 8, 8 s and at least half of that; after a success the normal
    interval applies again."""
    harness = _LoopHarness(*[UnavailableError("down")] * 5, None, None)
    await harness.run()
    for slept, most in zip(harness.waits[:5], (1, 2, 4, 8, 8), strict=True):
        assert most / 2 <= slept <= most
    assert harness.waits[5:] == [1.0]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("bug"), "ValueError"),
        (TimeoutError(), "TimeoutError"),
        (ExceptionGroup("g", [KeyError("x")]), "KeyError"),
    ],
)
async def test_any_error_is_survived_and_counted(error: Exception, kind: str):
    """The loop is the one place where every exception ends; an error group counts as its errors."""
    count = telemetry.LOOP_ERRORS.labels(loop="test", error=kind)
    before = count._value.get()  # pyright: ignore
    harness = _LoopHarness(error, None)
    await harness.run()
    assert harness.script == []
    assert count._value.get() == before + 1  # pyright: ignore


async def test_retry_after_is_honoured_beyond_the_cap():
    """Retry-After is respected beyond the limit of the backoff."""
    harness = _LoopHarness(ExceptionGroup("g", [ThrottledError("x", retry_after_s=60)]), None)
    await harness.run()
    assert harness.waits == [60.0]


@pytest.mark.parametrize(
    "error", [InvariantError("x"), ExceptionGroup("g", [ExceptionGroup("h", [InvariantError("x")])])]
)
async def test_a_broken_invariant_ends_the_process(error: Exception):
    """A broken invariant ends the loop and the process, however deep it is wrapped."""
    harness = _LoopHarness(error, None)
    with pytest.raises(type(error)):
        await harness.run()
    assert harness.exits == [service.EXIT_INVARIANT]
    assert len(harness.script) == 1


async def test_a_loop_that_is_cancelled_ends():
    """A cancelled loop ends, whatever its step raises then; otherwise its owner would wait for it for ever."""
    harness = _LoopHarness(None)

    async def step() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise IndexError("in its cleanup")

    harness.step = step  # pyright: ignore[reportAttributeAccessIssue]
    running = asyncio.ensure_future(harness.run())
    await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=5)
    assert done
    assert running.cancelled()


async def test_a_cancellation_that_was_not_meant_for_the_loop_is_an_error_to_survive():
    """A cancellation of something that the step awaits is an error that the loop survives; otherwise the loop would end
    unnoticed."""
    harness = _LoopHarness(asyncio.CancelledError(), None)
    await harness.run()
    assert harness.script == []


async def test_a_loop_reports_progress_and_leaves_when_it_ends():
    """Liveness follows the loop from its start to its end."""
    harness = _LoopHarness(None)
    seen: list[bool] = []

    async def step() -> None:
        harness.clock.advance(10_000)
        seen.append(harness.health.liveness().ok)
        harness.stop.set()

    await service.loop(
        TEST, step, clock=harness.clock, health=harness.health, stop=harness.stop, min_interval_s=0, max_backoff_s=1
    )
    assert seen == [False]
    assert harness.health.liveness().ok


async def test_a_stop_ends_a_pause_at_once():
    """A stop ends a pause of the loop at once."""
    harness = _LoopHarness()

    class ClockThatNeverWakes(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()

    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        tasks.create_task(service.pause(3600, clock=ClockThatNeverWakes(), stop=harness.stop))
        await asyncio.sleep(0)
        harness.stop.set()


# --- the process, in this process -----------------------------------------------------------------------------------

_ENV: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _quiet_root_logger() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    import logging

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _run(build: service.Build[CommonSettings], *argv: str, env: dict[str, str] | None = None) -> int:
    return service.run("test", CommonSettings, build, argv=argv, env=env or _ENV)


def test_once_does_its_pass_closes_its_clients_and_exits_0():
    """`--once` binds no port and waits for nothing but its own tasks."""
    done: list[str] = []

    async def build(context: ServiceContext[CommonSettings]) -> None:
        assert context.once
        assert context.address.port == 0
        context.resources.callback(done.append, "closed")
        context.tasks.create_task(_append_later(done, "task"))
        done.append("pass")

    assert _run(build, "--once") == service.EXIT_OK
    assert done == ["pass", "task", "closed"]


async def _append_later(done: list[str], what: str) -> None:
    await asyncio.sleep(0)
    done.append(what)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError("no API server"), service.EXIT_FAILED),
        (ValueError("bug"), service.EXIT_FAILED),
        (InvariantError("broken"), service.EXIT_INVARIANT),
    ],
)
def test_the_exit_code_tells_why(error: Exception, code: int, capfd: pytest.CaptureFixture[str]):
    """An unreachable API server is 1, a bug is 1 with a traceback, a broken invariant is 70."""

    async def build(context: ServiceContext[CommonSettings]) -> None:
        raise error

    assert _run(build, "--once") == code
    written = capfd.readouterr().err
    assert str(error) in written
    assert ("traceback" in written) is not isinstance(error, UnavailableError)


def test_bad_settings_are_told_before_anything_starts(capfd: pytest.CaptureFixture[str]):
    """Bad settings end the process with 2 before anything starts, with the variable and the allowed values."""

    async def build(context: ServiceContext[CommonSettings]) -> None:
        raise AssertionError("must not be built")

    assert _run(build, env={"SLIPWAY_LISTEN": "nowhere"}) == service.EXIT_SETTINGS
    assert "SLIPWAY_LISTEN is 'nowhere'" in capfd.readouterr().err


def test_a_taken_port_is_a_failure_with_a_message(capfd: pytest.CaptureFixture[str]):
    """A port in use ends the process with 1 and a message without a traceback."""
    import socket

    async def build(context: ServiceContext[CommonSettings]) -> None:
        raise AssertionError("must not be built")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert _run(build, env={"SLIPWAY_LISTEN": listen}) == service.EXIT_FAILED
    assert f"cannot listen on {listen}" in capfd.readouterr().err


def test_a_service_that_stops_itself_drains_its_loops():
    """Setting `stop` ends the loops between steps and the process with 0."""
    steps: list[int] = []

    async def build(context: ServiceContext[CommonSettings]) -> None:
        async def step() -> None:
            steps.append(1)
            if len(steps) == 3:
                context.stop.set()

        context.loop(TEST, step, min_interval_s=0, max_backoff_s=1)

    assert _run(build) == service.EXIT_OK
    assert len(steps) == 3


def test_an_open_request_does_not_outlive_the_drain():
    """A client that never hangs up is cut off, and the event loop closes."""
    codes: list[int] = []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello", "more_body": True})
        await asyncio.Event().wait()

    async def build(context: ServiceContext[CommonSettings]) -> None:
        context.serve(endless)
        reader, writer = await asyncio.open_connection(context.address.host, context.address.port)
        context.resources.callback(writer.close)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        codes.append(int((await reader.readline()).split()[1]))
        context.stop.set()

    assert _run(build, env={"SLIPWAY_DRAIN_TIMEOUT_S": "0.3"}) == service.EXIT_FAILED
    assert codes == [200]


def test_a_drain_that_takes_too_long_is_cut_and_fails():
    """A drain that takes longer than `drain_timeout_s` is cut and fails: hanging tasks are cancelled."""
    cancelled: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("hang")
            raise

    async def build(context: ServiceContext[CommonSettings]) -> None:
        context.tasks.create_task(hang())
        await asyncio.sleep(0)
        context.stop.set()

    assert _run(build, env={"SLIPWAY_DRAIN_TIMEOUT_S": "0.05"}) == service.EXIT_FAILED
    assert cancelled == ["hang"]


@pytest.mark.parametrize(
    ("option", "expected"), [("--help", "SLIPWAY_DRAIN_TIMEOUT_S"), ("--version", "slipway-test ")]
)
def test_help_and_version(option: str, expected: str, capsys: pytest.CaptureFixture[str]):
    """Help lists every setting."""

    async def build(context: ServiceContext[CommonSettings]) -> None:
        raise AssertionError("must not be built")

    with pytest.raises(SystemExit) as ended:
        _run(build, option)
    assert ended.value.code == 0
    assert expected in capsys.readouterr().out


# --- the process, from outside --------------------------------------------------------------------------------------

_PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from slipway.runtime import service
    from slipway.runtime.liveness import Loop
    from slipway.runtime.settings import CommonSettings

    async def build(context):
        async def step():
            print("step", flush=True)
            await asyncio.sleep({busy_s})
            print("stepped", flush=True)
        context.loop(Loop(name="work", bound_s=120.0, moves="each step"), step, min_interval_s=60, max_backoff_s=60)

    sys.exit(service.run("test", CommonSettings, build))
    """
)


@contextlib.contextmanager
def _process(busy_s: float, tmp_path: Path) -> Generator[subprocess.Popen[str]]:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.format(busy_s=busy_s))
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    process = subprocess.Popen(
        [sys.executable, str(program)], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "step\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_finishes_the_step_and_exits_0(number: signal.Signals, tmp_path: Path):
    """The first signal finishes the current step and exits with 0; a sleeping loop is not waited for."""
    with _process(0.2, tmp_path) as process:
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "stepped\n"


def test_the_second_signal_ends_at_once(tmp_path: Path):
    """The second signal ends a hanging drain at once, with the shell's exit code for the signal."""
    with _process(3600, tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 128 + signal.SIGTERM
