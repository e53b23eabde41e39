"""A service of the local stack that hangs logs its stacks, is ended, and the user is notified."""

import asyncio
import sys
import textwrap
from pathlib import Path

import pytest

from slipway.local.process import FAILURES_MAX, Child, Watchdog
from slipway.local.stack import _free_port as free_port  # pyright: ignore[reportPrivateUsage]
from slipway.runtime.clock import SystemClock

SERVICE = textwrap.dedent(
    """
    import asyncio, sys, time
    from slipway.runtime import service
    from slipway.runtime.liveness import Loop
    from slipway.runtime.settings import CommonSettings

    async def build(context):
        async def stand_still():
            {stand_still}
        context.loop(Loop(name="work", bound_s=1.0, moves="each step"), stand_still, min_interval_s=0, max_backoff_s=1)

    sys.exit(service.run("test", CommonSettings, build))
    """
)


async def a_service(folder: Path, stand_still: str) -> Child:
    program, address = folder / "program.py", f"127.0.0.1:{free_port()}"
    program.write_text(SERVICE.format(stand_still=stand_still))
    child = Child(
        "test",
        [sys.executable, str(program)],
        env={"SLIPWAY_LISTEN": address, "PYTHONPATH": ":".join(sys.path)},
        log=folder / "test.log",
        clock=SystemClock(),
        url=f"http://{address}",
    )
    await child.start()
    await child.answers("/livez", 30.0)
    return child


async def not_alive(child: Child) -> None:
    clock = SystemClock()
    async with asyncio.timeout(30):
        while await child.why_not("/livez", 0.2) is None:
            await clock.sleep(0.05)


@pytest.mark.parametrize(
    ("stand_still", "where"),
    [
        pytest.param("await asyncio.Event().wait()", "stand_still > ", id="a task that waits for ever"),
        pytest.param("await asyncio.sleep(0.5); time.sleep(3600)", "in stand_still", id="an event loop that hangs"),
    ],
)
async def test_a_blocked_event_loop_is_reported_with_its_stack_and_ended(
    tmp_path: Path, stand_still: str, where: str
) -> None:
    """After three failed probes the stacks are in the log of the service, and the line for the user names that log."""
    said: list[str] = []
    child = await a_service(tmp_path, stand_still)
    try:
        dog = Watchdog(child, SystemClock(), said.append, timeout_s=0.2)
        await dog.look()
        await not_alive(child)
        for _ in range(FAILURES_MAX - 1):
            await dog.look()
        assert (child.is_running, said) == (True, [])
        await dog.look()
        assert not child.is_running
        assert len(said) == 1
        assert "test is not alive" in said[0]
        assert str(child.log) in said[0]
        assert where in child.log.read_text()
    finally:
        await child.stop(1.0)


async def test_a_live_process_is_left_alone(tmp_path: Path) -> None:
    """A live service is left alone, however often it is probed."""
    said: list[str] = []
    child = await a_service(tmp_path, "await asyncio.sleep(0.01)")
    try:
        dog = Watchdog(child, SystemClock(), said.append)
        for _ in range(2 * FAILURES_MAX):
            await dog.look()
        assert (child.is_running, said) == (True, [])
    finally:
        await child.stop(5.0)
