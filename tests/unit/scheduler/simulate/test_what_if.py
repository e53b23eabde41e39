"""What-if runs from a real state of a pool, which may be one that no plan would make."""

import msgspec
import pytest

from slipway.model.facts import SHARING_LABEL, PoolFact, QueueFact, WorkspaceFact
from slipway.scheduler.simulate.changes import PoolStanding
from slipway.scheduler.simulate.what_if import forecast_of
from tests.support.planner import NAMESPACE, a_node, a_role, an_allocation, running


@pytest.mark.parametrize("numbers", [range(8), (0, 1, 2, 3, 4, 5, 6, 10**30), (-1, 2, 3, 4, 5, 6, 7, 8), ()])
def test_devices_that_a_node_does_not_have_stop_no_forecast(numbers: tuple[int, ...]) -> None:
    """A node of 8 GPUs now has 7 while a rank uses 8 of them: the start of other work is that rank's end."""
    node = a_node("n", gpus=7, labels={SHARING_LABEL: "true"})
    held = running(an_allocation("held", a_role(gpus=8), max_runtime=100.0), {0: "n"})
    held = msgspec.structs.replace(held, devices={0: tuple(numbers)}, started=10.0)
    waits = an_allocation("waits", a_role(gpus=7))
    standing = PoolStanding(
        pool=PoolFact(name="default"),
        nodes={"n": node},
        queues={"default": QueueFact(name="default", ordering="Backfill")},
        jobs=[],
        spaces=[WorkspaceFact(name=NAMESPACE, is_workspace=True)],
        allocations={fact.key: fact for fact in (held, waits)},
        pods=[],
    )
    assert forecast_of(standing, waits.key, 20.0)["estimatedStart"]["latest"] == 110.0
