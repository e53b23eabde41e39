"""A restore leaves out a namespace that was being deleted, and its objects."""

import msgspec

from slipway.ops.backup import backup
from slipway.ops.backup.backup import BackupJob, BackupLine
from slipway.ops.backup.restore import RestoreJob, RestoreOutcome
from tests.support.api_world import api_world


def ending(line: BackupLine) -> BackupLine:
    """The line, for a namespace that was being deleted."""
    metadata = msgspec.structs.replace(line.object.metadata, deletion_timestamp="2026-11-30T00:00:00Z")
    return msgspec.structs.replace(line, object=msgspec.structs.replace(line.object, metadata=metadata))


async def test_what_is_in_a_namespace_that_was_going_is_left_out_with_it() -> None:
    """Objects of a namespace that was being deleted are left out with it, without a failure of the restore."""
    async with api_world() as world:
        await world.launch(name="run")
        lines = await BackupJob(world.kube, "slipway-system", with_secrets=False).take()
    lines = [ending(line) if line.kind == backup.WORKSPACES.kind else line for line in lines]
    async with api_world() as other:
        outcomes = await RestoreJob(other.kube, other.clock, "slipway-system").restore(lines)
    told = {(each.kind, each.name): (each.done, each.why) for each in outcomes}
    assert told["Namespace", "default"] == (RestoreOutcome.LEFT_OUT, "it was being deleted")
    assert told["Allocation.slipway.dev", "run"] == (RestoreOutcome.LEFT_OUT, "its namespace was being deleted")
    assert RestoreOutcome.FAILED not in {done for done, _ in told.values()}
