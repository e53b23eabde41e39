"""Deadlines in the tick: many at once, and a stop that the API server refuses, which delays no other work."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from slipway.errors import DeniedError, StaleError, UnavailableError
from slipway.kube.resources import ALLOCATIONS, Resource
from slipway.local.apiserver.core import ClusterCore
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.scheduler.leader import Scheduler
from slipway.scheduler.settings import Settings
from slipway.scheduler.standby import SchedulerDeps
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core, furnish, launch, look
from tests.support.virtual_time import VirtualClock, run_virtual

COUNT = 300
T = TypeVar("T")


class RefusingKube(CoreKube):
    """A client to which the API server refuses a stop of `poison`."""

    def __init__(self, core: ClusterCore, error: Exception) -> None:
        super().__init__(core, random=SeededRandom(2))
        self.error = error
        self.tries = 0

    async def replace_status(self, resource: Resource[T], body: Any) -> T:
        sent: Any = body
        if isinstance(body, dict) and sent["metadata"]["name"] == "poison" and sent["status"].stop is not None:
            self.tries += 1
            raise self.error
        return await super().replace_status(resource, body)


class SchedulerHarness:
    """A scheduler beside a cluster in which everything is too large to run, and does not wait for long."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.core = a_core(self.clock.now)
        self.kube = a_client(self.core)
        self.its: CoreKube = a_client(self.core, seed=2)

    async def lead(self, seconds: float) -> None:
        """Lead for so many seconds."""
        parts = SchedulerDeps(
            kube=self.its,
            streams=MemoryStreams(MemoryServer(self.clock)),
            clock=self.clock,
            random=SeededRandom(3),
            health=ProcessHealth(self.clock),
            settings=Settings(),
            identity="one",
        )
        async with asyncio.TaskGroup() as tasks:
            for candidate, stop in await Scheduler(parts).discover():
                leading = tasks.create_task(candidate.compete(stop))
                await self.clock.sleep(seconds)
                stop.set()
                await leading


def on_a_cluster(test: Callable[[SchedulerHarness], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        harness = SchedulerHarness()
        await furnish(harness.kube)
        await test(harness)

    run_virtual(main)


def test_many_deadlines_that_pass_together_are_all_fired() -> None:
    """The deadlines are more than one tick fires."""

    async def test(harness: SchedulerHarness) -> None:
        for number in range(COUNT):
            await launch(harness.kube, f"job-{number}", ranks=9, pendingTimeout="5s")
        await harness.lead(30)
        found = (await harness.kube.list(ALLOCATIONS)).items
        reasons = [item.status.stop.reason for item in found if item.status.stop is not None]
        assert reasons == ["PendingTimeout"] * COUNT

    on_a_cluster(test)


@pytest.mark.parametrize("error", [DeniedError("no"), StaleError("conflict"), UnavailableError("lost")])
def test_a_refused_stop_delays_no_other_deadline(error: Exception) -> None:
    """The other deadlines are fired, work that fits is placed, and the refused stop is tried again, but not all the
    time."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, "poison", ranks=9, pendingTimeout="3s")
        await launch(harness.kube, "other", ranks=9, pendingTimeout="5s")
        harness.its = refusing = RefusingKube(harness.core, error)
        leading = asyncio.ensure_future(harness.lead(25))
        await harness.clock.sleep(15)
        await launch(harness.kube, "small")
        await leading
        assert (await look(harness.kube, "poison")).status.stop is None
        other = (await look(harness.kube, "other")).status.stop
        assert other is not None
        assert (await look(harness.kube, "small")).status.admission is not None
        assert 3 <= refusing.tries <= 80

    on_a_cluster(test)
