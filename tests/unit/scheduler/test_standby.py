"""A standby scheduler: it is ready when it could take over, and not before."""

import asyncio

from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.scheduler.leader import Scheduler
from slipway.scheduler.settings import Settings
from slipway.scheduler.standby import SchedulerDeps
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
            schedulers: list[Scheduler] = []
            for number, identity in enumerate(("leads", "waits")):
                its = a_client(core, seed=number)
                its.before = slow
                parts = SchedulerDeps(
                    kube=its,
                    streams=MemoryStreams(server),
                    clock=clock,
                    random=SeededRandom(number),
                    health=ProcessHealth(clock),
                    settings=Settings(),
                    identity=identity,
                )
                scheduler = Scheduler(parts)
                assert scheduler.not_ready() == "the pools are not listed yet"
                schedulers.append(scheduler)
                for candidate, stop in await scheduler.discover():
                    tasks.create_task(candidate.compete(stop))
            await clock.sleep(LIST_S / 2)
            assert {each.not_ready() for each in schedulers} == {
                "the first LIST of the cluster has not ended, for default"
            }
            await clock.sleep(LIST_S)
            assert {each.not_ready() for each in schedulers} == {None}
            for each in schedulers:
                each.stop()
        assert {each.not_ready() for each in schedulers} == {None}

    run_virtual(main)
