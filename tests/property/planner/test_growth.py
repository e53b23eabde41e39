"""Growth of running elastic gangs on random clusters."""

from hypothesis import given, settings

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.plan_types import encoded
from tests.property.planner.instances import Instance, instances
from tests.support.planner import admitted, running

SETTINGS = settings(max_examples=100, deadline=None)


def at_minimum(fact: AllocationFact) -> AllocationFact:
    """The allocation running with its smallest gang only: the least of each role, and as many of its other placed
    ranks as its own minimum needs. The free resources decide from which roles these are."""
    kept: list[int] = []
    spare: list[int] = []
    base = 0
    for role in fact.roles:
        ranks = [rank for rank in range(base, base + role.count) if rank in fact.placements]
        kept += ranks[: role.minimum]
        spare += ranks[role.minimum :]
        base += role.count
    kept += spare[: max(0, fact.minimum - len(kept))]
    return running(fact, {rank: fact.placements[rank] for rank in kept})


def shrunk(instance: Instance) -> list[AllocationFact]:
    """The allocations that a first plan admits, running without their surplus."""
    decided = plan(instance.snapshot(), policy_of(instance.pool), 0.0)
    started = {admit.uid for admit in decided.admits}
    return [at_minimum(fact) for fact in admitted(list(instance.allocations), decided) if fact.uid in started]


@given(instances())
@SETTINGS
def test_growth_breaks_no_rule(instance: Instance) -> None:
    """Growth respects nodes, devices, quotas and slots, evicts nothing, changes no admission, and does not depend on
    the order."""
    snapshot = instance.snapshot()
    policy = policy_of(snapshot.pool)
    with_growth, without = plan(snapshot, policy, 0.0, grows=True), plan(snapshot, policy, 0.0)
    assert lint(snapshot, with_growth) == ()
    assert (with_growth.admits, with_growth.evictions) == (without.admits, without.evictions)


@given(instances())
@SETTINGS
def test_a_shrunk_gang_grows_by_the_rules(instance: Instance) -> None:
    """Gangs at their minimum grow within nodes, quotas and slots, and the order of the input does not matter."""
    facts, policy = shrunk(instance), policy_of(instance.pool)
    snapshot = instance.snapshot(allocations=facts)
    decided = plan(snapshot, policy, 0.0, grows=True)
    assert lint(snapshot, decided) == ()
    assert not decided.admits
    assert decided.evictions == plan(snapshot, policy, 0.0).evictions
    again = plan(instance.snapshot(allocations=facts[::-1]), policy, 0.0, grows=True)
    assert encoded(again) == encoded(decided)
