"""Who stands by: ready when it could take over, and not before."""

import asyncio

from slipway.kube.answers import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import Health
from slipway.scheduler.scheduler import Scheduler
from slipway.scheduler.settings import Settings
from slipway.scheduler.standby import Parts
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.small_cluster import a_client, a_core, furnish
from tests.support.virtual_time import VirtualClock, run_virtual

LIST_S = 8.0


def test_it_is_ready_when_it_has_read_the_cluster() -> None:
    """A rolling restart ends the leader when the other is ready: a term then begins with the ledger, without a LIST."""

    async def main() -> None:
        clock = VirtualClock()
        core = a_core(clock.now)
        await furnish(a_client(core))
        server = MemoryServer(clock)

        async def slow(verb: Verb, plural: str) -> None:
            if verb is Verb.LIST and plural == ALLOCATIONS.plural:
                await clock.sleep(LIST_S)

        async with asyncio.TaskGroup() as tasks:
            healths: list[Health] = []
            running: list[asyncio.Task[None]] = []
            stops = []
            for number, identity in enumerate(("leads", "waits")):
                its, health = a_client(core, seed=number), Health(clock)
                its.before = slow
                parts = Parts(
                    kube=its,
                    streams=MemoryStreams(server),
                    clock=clock,
                    random=SeededRandom(number),
                    health=health,
                    settings=Settings(),
                    identity=identity,
                )
                healths.append(health)
                for candidate, stop in await Scheduler(parts).discover():
                    stops.append(stop)
                    running.append(tasks.create_task(candidate.compete(stop)))
            await clock.sleep(LIST_S / 2)
            assert [health.readiness().problems for health in healths] == [
                {"warm:default": "the cluster is being read"}
            ] * 2
            await clock.sleep(LIST_S)
            assert [health.readiness().ok for health in healths] == [True, True]
            for stop in stops:
                stop.set()
            await asyncio.gather(*running)
        assert all(health.readiness().ok for health in healths)

    run_virtual(main)
