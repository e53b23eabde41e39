"""A restore whose writes fail: no object stays without its second half, and a second restore completes the first."""

import pytest

from slipway.crd.meta import RawObject
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, RESOURCE_POOLS
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Result
from slipway.ops.backup import backup
from slipway.ops.backup.backup import BackupJob, BackupLine
from slipway.ops.backup.restore import TRIES, RestoredObject, RestoreJob, RestoreOutcome
from tests.support.api_world import ApiWorld, api_world
from tests.support.clock import FakeClock
from tests.support.failing_calls import failing

EPOCH, TICK = 7, 900
POOLS = backup.kind_of(backup.KEPT_POOLS)
ALLOCATIONS_KIND = backup.kind_of(backup.KEPT_ALLOCATIONS)


async def a_backup() -> list[BackupLine]:
    """Make a backup of a pool whose ledger is in a later epoch, and of an allocation that has ended."""
    async with api_world() as world:
        made = await world.kube.create(RESOURCE_POOLS, {"metadata": {"name": "reserve"}, "spec": {}})
        for name in ("reserve", "default"):
            made = await world.kube.get(RESOURCE_POOLS, name)
            meta: RawObject = {"name": name, "resourceVersion": made.metadata.resource_version}
            status: RawObject = {"epoch": EPOCH, "tick": TICK}
            await world.kube.replace_status(RESOURCE_POOLS, {"metadata": meta, "spec": {}, "status": status})
        await world.launch(name="ended")
        await world.step("ended", Event.TERMINATED, result=Result.CANCELED)
        return await BackupJob(world.kube, "slipway-system", with_secrets=False).take()


async def given(world: ApiWorld, lines: list[BackupLine]) -> dict[tuple[str, str], RestoredObject]:
    outcomes = await RestoreJob(world.kube, FakeClock(), "slipway-system").restore(lines)
    return {(each.kind, each.name): each for each in outcomes}


async def fence_of(world: ApiWorld, pool: str) -> tuple[int, int]:
    status = (await world.kube.get(RESOURCE_POOLS, pool)).status
    return status.epoch, status.tick


@pytest.mark.parametrize("is_done", [False, True])
async def test_the_epoch_of_a_pool_is_written_again_after_a_failure(is_done: bool) -> None:
    """The epoch of a pool is written again after a failure, also when only the answer was lost."""
    lines = await a_backup()
    async with api_world() as world:
        hook = failing(Verb.UPDATE, "resourcepools", 2)
        world.kube.before, world.kube.after = (world.kube.before, hook) if is_done else (hook, world.kube.after)
        outcomes = await given(world, lines)
        assert outcomes[POOLS, "reserve"].done is RestoreOutcome.RESTORED
        assert await fence_of(world, "reserve") == (EPOCH, TICK)


async def test_no_pool_stays_without_its_epoch() -> None:
    """A pool whose epoch cannot be written is deleted again, and reported; the next restore creates it."""
    lines = await a_backup()
    async with api_world() as world:
        world.kube.before = failing(Verb.UPDATE, "resourcepools", TRIES * 2)
        assert (await given(world, lines))[POOLS, "reserve"].done is RestoreOutcome.FAILED
        assert [each.metadata.name for each in (await world.kube.list(RESOURCE_POOLS)).items] == ["default"]
        assert (await given(world, lines))[POOLS, "reserve"].done is RestoreOutcome.RESTORED
        assert await fence_of(world, "reserve") == (EPOCH, TICK)


async def test_the_ledger_of_a_pool_that_exists_continues_at_the_epoch_of_the_backup() -> None:
    """The ledger of an existing pool, from the setup or a killed restore, continues at the epoch of the backup; a later
    epoch stays."""
    lines = await a_backup()
    async with api_world() as world:
        outcome = (await given(world, lines))[POOLS, "default"]
        assert (outcome.done, outcome.why) == (RestoreOutcome.PRESENT, f"its ledger continues at epoch {EPOCH}")
        assert await fence_of(world, "default") == (EPOCH, TICK)
        assert (await given(world, lines))[POOLS, "default"].why == ""


@pytest.mark.parametrize("plural", ["resourcepools", "allocations"])
async def test_an_object_whose_creation_was_not_answered_gets_its_status(plural: str) -> None:
    """An object gets its status also when the answer of its creation was lost."""
    lines = await a_backup()
    async with api_world() as world:
        world.kube.after = failing(Verb.CREATE, plural, 1)
        outcomes = await given(world, lines)
        assert {outcomes[POOLS, "reserve"].done, outcomes[ALLOCATIONS_KIND, "ended"].done} == {RestoreOutcome.RESTORED}
        assert await fence_of(world, "reserve") == (EPOCH, TICK)
        assert (await world.stored("ended")).status.phase == Phase.TERMINATED


async def test_a_status_whose_write_was_not_answered_stays() -> None:
    """A status whose write got no answer stays: the conflict of the repeated write is caused by the first one, and the
    allocation is not deleted for it."""
    lines = await a_backup()
    async with api_world() as world:
        world.kube.after = failing(Verb.UPDATE, "allocations", 1)
        assert (await given(world, lines))[ALLOCATIONS_KIND, "ended"].done is RestoreOutcome.RESTORED
        assert (await world.stored("ended")).status.phase == Phase.TERMINATED


async def test_a_second_restore_completes_an_allocation_that_the_first_left_without_its_status() -> None:
    """A second restore completes an allocation that the first one left without its status, because it could not delete
    it again; without the status it would run as a new one."""
    lines = await a_backup()
    async with api_world() as world:
        strike = failing(Verb.UPDATE, "allocations", TRIES)
        refuse = failing(Verb.PATCH, "allocations", TRIES)

        async def both(verb: Verb, plural: str) -> None:
            await strike(verb, plural)
            await refuse(verb, plural)

        world.kube.before = both
        assert (await given(world, lines))[ALLOCATIONS_KIND, "ended"].done is RestoreOutcome.FAILED
        assert (await world.kube.get(ALLOCATIONS, "ended", namespace="default")).status.phase == Phase.PENDING
        outcome = (await given(world, lines))[ALLOCATIONS_KIND, "ended"]
        assert (outcome.done, outcome.why) == (
            RestoreOutcome.RESTORED,
            "an earlier restore created it without its status",
        )
        assert (await world.stored("ended")).status.phase == Phase.TERMINATED
        assert (await given(world, lines))[ALLOCATIONS_KIND, "ended"].done is RestoreOutcome.PRESENT
