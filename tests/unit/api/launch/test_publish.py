"""The scheduler's bell rings at once, a few times for many changes together, and never too seldom."""

import asyncio

from slipway.api.launch.publish import LaunchPublisher
from slipway.runtime.clock import SystemClock
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.clock import wait_until
from tests.support.stepping import over_and_over


async def test_many_wakeups_are_coalesced_and_the_last_is_sent() -> None:
    """Changes that come within milliseconds share a ring; what came after a ring gets another."""
    server = MemoryServer(SystemClock())
    streams = MemoryStreams(server)
    announcer = LaunchPublisher(streams.events, streams.wake, SystemClock())
    rings = 0

    async def count(operation: str) -> None:
        nonlocal rings
        rings += operation == "wake.ring"

    server.on_call = count
    running = asyncio.ensure_future(over_and_over(announcer.step))
    announcer.changed()
    await wait_until(lambda: rings == 1, "the first ring")
    for _ in range(50):
        announcer.changed()
        await asyncio.sleep(0)
    await wait_until(lambda: rings == 2, "the ring for the crowd")
    await wait_until(lambda: announcer.is_idle, "rest")
    assert rings == 2
    running.cancel()
    await asyncio.wait({running})


async def test_the_last_flush_always_sends_a_wakeup() -> None:
    """A process that ends leaves no change to a later ring."""
    server = MemoryServer(SystemClock())
    streams = MemoryStreams(server)
    announcer = LaunchPublisher(streams.events, streams.wake, SystemClock())
    for _ in range(3):
        announcer.changed()
        await announcer.flush()
    assert len((await streams.wake.wait("0-0", timeout_s=0)).reasons) == 3
