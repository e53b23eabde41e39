"""Gangs that have lost ranks, in random pools: they are torn down, and plans with them are valid."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slipway.scheduler.plan.lint import lint
from tests.property.planner.instances import Instance, instances
from tests.support.planner import admitted, planned


@given(instances(), st.sets(st.integers(0, 7)))
def test_plans_with_torn_gangs_are_sound(instance: Instance, kept: set[int]) -> None:
    """Allocations that are placed again, or that use the freed resources, break no rule; a torn gang waits for its
    pods to end."""
    started = admitted(instance.allocations, planned(instance.snapshot()))
    torn = [
        msgspec.structs.replace(fact, placements={rank: node for rank, node in fact.placements.items() if rank in kept})
        for fact in started
    ]
    waiting = [
        msgspec.structs.replace(fact, name=f"{fact.name}-late", uid=f"{fact.uid}-late", created=100.0)
        for fact in instance.allocations
    ]
    snapshot = instance.snapshot(allocations=[*torn, *waiting])
    decided = planned(snapshot)
    assert lint(snapshot, decided) == ()
    down = {holding.allocation.uid for holding in snapshot.broken}
    assert down <= {evict.uid for evict in decided.evictions}
    again = {admit.uid for admit in decided.admits} & down
    assert again <= decided.deferred, "its pods have still to leave"
    assert not {fact.key for fact in torn if fact.uid in down} & set(decided.explanations)
