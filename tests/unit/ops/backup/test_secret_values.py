"""A backup and secret values of launches: the values are not in the backup, and allocations that need them are restored
as cancelled."""

import msgspec
import pytest

from slipway.kube.resources import SECRETS
from slipway.model import ids
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from slipway.ops.backup.backup import BackupJob, BackupLine
from slipway.ops.backup.restore import RestoreJob, RestoreOutcome
from tests.support.api_world import ApiWorld, api_world

CANARY = "canary-7d1f"


async def a_backup(world: ApiWorld) -> list[BackupLine]:
    """Make a backup, with all Secrets requested, of a waiting and an ended allocation with secret values, and one
    without."""
    for name in ("waits", "ended"):
        await world.launch(name=name, secretValues={"TOKEN": CANARY})
    await world.launch(name="plain")
    await world.step("ended", Event.TERMINATED, result=Result.CANCELED)
    names = tuple(each.metadata.name for each in (await world.kube.list(SECRETS)).items)
    assert len(names) == 2
    return await BackupJob(world.kube, "default", with_secrets=True, secrets=names).take()


async def test_the_values_are_not_in_a_backup() -> None:
    """The values are not in a backup, also when their Secret in the namespace of the services is requested by name."""
    async with api_world() as world:
        lines = await a_backup(world)
        text = str([msgspec.to_builtins(each.object) for each in lines])
        assert "waits" in text
        assert ids.VALUES_PREFIX not in text
        assert CANARY not in text
        assert "Y2FuYXJ5LTdkMWY" not in text


@pytest.mark.parametrize("is_dry", [True, False])
async def test_what_needs_its_values_is_put_back_cancelled_and_told_of(is_dry: bool) -> None:
    """A waiting allocation that needs its secret values is restored as cancelled and reported, because no process would
    create its Secret. Ended ones, and those without secret values, stay as they were."""
    async with api_world() as world:
        lines = await a_backup(world)
    async with api_world() as other:
        outcomes = await RestoreJob(other.kube, other.clock, "default", is_dry=is_dry).restore(lines)
        told = {each.name: each.why for each in outcomes if each.why and each.done is RestoreOutcome.RESTORED}
        assert list(told) == ["waits"]
        assert "no secret values (TOKEN); launch it again with them" in told["waits"]
        if is_dry:
            assert await other.names() == []
            return
        desired = {name: (await other.stored(name)).spec.desired for name in await other.names()}
        assert desired == {"waits": "Stopped", "ended": "Running", "plain": "Running"}
