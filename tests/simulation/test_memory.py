"""An allocation that has ended leaves nothing in any service's memory, except in caches with a limit.

The real services in virtual time; each allocation is different: single or a gang, cancelled while it waits or runs,
failed and retried, launched and followed through the api. Retention keeps none. The test counts the entries of each
process when all are gone, after one lot, a second and a third, and names every container that grew with the lots.
"""

import asyncio
from collections import Counter

import msgspec

from slipway.api.allocations.lookup import HOMES_MAX
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Phase
from slipway.podworker.created_objects import BUNDLES_MAX
from slipway.podworker.teardown import ASKED_MAX
from slipway.podworker.worker import BOUND_MAX
from slipway.scheduler.cluster import TOMBSTONES_MAX
from slipway.watcher.leader_tasks import RETENTION_MORE_S, RETENTION_S
from slipway.watcher.usage_accounting import KNOWN_MAX
from tests.support.api_clients import Client
from tests.support.census import TYPE, census
from tests.support.kubelet import Script
from tests.support.world import Setup, World, run_world

LIVES = 40
EVERY_S = 0.2
SERVICES = ("api", "scheduler", "podworker", "watcher")
SETUP = Setup(nodes=4, cpus=64, replicas={"api": 1}, watcher={"retention_count_max": 0})
REST_S = 20.0
"""Seconds after which deferred work has been done."""
BOUNDED = {
    "UsageAccounts._done": KNOWN_MAX,
    "CreatedObjects._uids": BUNDLES_MAX,
    "Lookup._homes": HOMES_MAX,
    "AttemptRemover._asked": ASKED_MAX,
    "FactTable._gone": 8 * TOMBSTONES_MAX,
    "Worker._bound": BOUND_MAX,
}
"""Caches that drop the oldest entry at this size."""


def _script(attempt: int, rank: int) -> Script:
    return Script(runs_s=1.0, code=1 if attempt == 1 and rank == 1 else 0)


async def _live(world: World, ada: Client, number: int) -> None:
    """Run one allocation of one of five kinds to its end."""
    name = f"run-{number}"
    match number % 5:
        case 0:
            made = await ada.launch(name, key=name)
            id_ = str(made.body["id"])
            await asyncio.gather(ada.follow(id_), ada.watch(id_))
        case 1:
            await world.launch(name, ranks=2, cpu="100m", maxAttempts=2)
        case 2:
            await world.launch(name, cpu="100m")
            await asyncio.sleep(0.8)
            await world.cancel(name)
        case 3:
            await world.launch(name, cpu="65")
            await asyncio.sleep(2.0)
            await world.cancel(name)
        case _:
            await world.launch(name, cpu="100m", maxRuntime="1s")


async def _lot(world: World, ada: Client, first: int) -> dict[str, Counter[str]]:
    """Run that many allocations until nothing of them is left; return the entries of each service then."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(first, first + LIVES):
            tasks.create_task(_live(world, ada, number))
            await asyncio.sleep(EVERY_S)

    async def is_empty() -> bool:
        return not list(world.core.store.scan("allocations.slipway.dev")) and not list(world.core.store.scan("pods"))

    await world.until(is_empty)
    await asyncio.sleep(REST_S)
    return {role: census(world, role) for role in SERVICES}


async def _play(world: World) -> list[dict[str, Counter[str]]]:
    world.kubelets.script = _script
    await asyncio.sleep(REST_S)
    ada = Client(world, "ada")
    counts = [await _lot(world, ada, lot * LIVES) for lot in range(3)]
    assert not world.broken
    return counts


def test_deleted_objects_free_their_memory() -> None:
    """No container has more entries with every lot, except those with a limit."""
    first, second, third = run_world(_play, SETUP, seed=1)
    for role in SERVICES:
        assert third[role].total() > 100, f"of {role} nothing was found"
        grown = {
            name: (first[role][name], second[role][name], count)
            for name, count in third[role].items()
            if count > second[role][name] > first[role][name] and not name.startswith(TYPE) and name not in BOUNDED
        }
        assert not grown, f"{role} holds more with every life: {grown}"
        for name, most in BOUNDED.items():
            assert third[role][name] <= most


RATE = 1.0
"""launches/s"""
LIFE_S = 6.0
"""More than the whole time of an allocation of one second, with its writes, and less than half of `RETENTION_S`."""


async def _steady(world: World) -> list[int]:
    """The number of ended allocations that still exist, each second after the first deletion."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=1.0)
    seen = list[int]()
    for number in range(int(1.75 * RETENTION_S * RATE)):
        await world.launch(f"run-{number}", cpu="100m")
        await asyncio.sleep(1 / RATE)
        found = await world.kube.list(ALLOCATIONS)
        seen.append(sum(each.status.phase is Phase.TERMINATED for each in found.items))
    return seen[int(1.25 * RETENTION_S * RATE) :]


def test_ended_allocations_are_deleted_as_fast_as_they_end() -> None:
    """When too many have ended, rounds of retention run as often as there is something to delete."""
    seen = run_world(_steady, SETUP, seed=1)
    assert max(seen) <= RATE * (RETENTION_MORE_S + LIFE_S)


async def _end(world: World) -> dict[str, Counter[str]]:
    """Run that many allocations that are kept after their end; return the entries of each service when all are at
    rest."""
    world.kubelets.script = _script
    ada = Client(world, "ada")
    async with asyncio.TaskGroup() as tasks:
        for number in range(LIVES):
            tasks.create_task(_live(world, ada, number))
            await asyncio.sleep(EVERY_S)

    async def is_at_rest() -> bool:
        found = world.core.store.scan("allocations.slipway.dev")
        return len(found) == LIVES and not any(each.obj["metadata"].get("finalizers") for each in found)

    await world.until(is_at_rest)
    await asyncio.sleep(REST_S)
    return {role: census(world, role) for role in SERVICES}


def test_what_has_ended_is_held_once() -> None:
    """An ended allocation is kept for days: beside the object itself, no service stores an older version of it or of
    its status."""
    setup = msgspec.structs.replace(SETUP, watcher={})
    held = run_world(_end, setup, seed=1)
    kinds = (f"{TYPE}Allocation", f"{TYPE}AllocationStatus")
    assert held["watcher"][kinds[0]] == LIVES
    assert {role: {kind: counts[kind] for kind in kinds if counts[kind] > LIVES} for role, counts in held.items()} == {
        role: {} for role in SERVICES
    }
