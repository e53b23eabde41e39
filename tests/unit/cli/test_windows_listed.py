"""`slipway pool` and `slipway queue show`: the time windows in which nodes of a pool are reserved."""

from slipway.kube.resources import RESOURCE_POOLS
from slipway.model.times import format_time
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser


async def test_windows_stand_below_the_pools_and_above_those_that_wait(world: ApiWorld, cli_user: CliUser) -> None:
    """The windows are listed below the pools and above the waiting allocations: the beneficiary, the amount, the start
    and end, and doubts; nothing for a pool without windows."""
    assert "WINDOW" not in (await cli_user.run("pool")).out
    begun, later = (format_time(world.clock.now() + each, "seconds") for each in (-60, 3600))
    windows = [
        {"name": "patch", "start": begun, "duration": "1h", "maintenance": True},
        {"name": "lesson", "start": later, "duration": "1h", "queues": ["ghost"], "gpus": 16,
         "repeat": {"every": "Weekly"}, "timeZone": "Europe/Berlin"},
    ]  # fmt: skip
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"windows": windows}})
    await world.launch(name="waits")
    pools, shown = (await cli_user.run("pool")).out, (await cli_user.run("queue", "show")).out
    firsts = [[line.partition(" ")[0] for line in out.splitlines() if line] for out in (pools, shown)]
    assert firsts[0].index("default") < firsts[0].index("patch")
    assert firsts[1].index("lesson") < firsts[1].index("#")
    for out in (pools, shown):
        rows = [line.split("  ") for line in out.splitlines() if line.startswith(("patch", "lesson"))]
        patch, lesson = ([cell.strip() for cell in row if cell.strip()] for row in rows)
        assert patch[:3] == ["patch", "default", "maintenance"]
        assert (patch[4], patch[-1]) == (f"{begun} (now)", "once")
        assert lesson[:4] == ["lesson", "default", "queue ghost", "16 GPUs of 2 nodes"]
        assert lesson[-1] == "Weekly (Europe/Berlin)"
        assert "window lesson: the pool has no queue ghost" in out
    assert (await cli_user.run("pool", "-o", "name")).out.split() == ["default"]
