"""A shadow policy says what it would have decided, touches nothing, and takes a small part of the time."""

import msgspec

from slipway.model.facts import PoolFact
from slipway.runtime.clock import Clock
from slipway.scheduler import cycle as shadows
from slipway.scheduler.cycle import ShadowPlanner
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.plan_types import encoded
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.clock import FakeClock
from tests.support.planner import a_snapshot, an_allocation, nodes

NOW = 1_700_000_000.0


class SlowClock(FakeClock):
    """Each look at the time takes a second, as a large plan does."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


def crowded(other: PoolFact | None) -> PoolSnapshot:
    """Three allocations that wait, and three empty nodes; `other` is the shadow policy."""
    pool = PoolFact(name="default", shadow=other)
    made = a_snapshot(nodes(3), [an_allocation(f"a{number}") for number in range(3)], pool=pool)
    return msgspec.structs.replace(made, now=NOW)


def looked(snapshot: PoolSnapshot, clock: Clock | None = None) -> shadows.ShadowComparison | None:
    live = plan(snapshot, policy_of(snapshot.pool), NOW)
    return ShadowPlanner("default", clock or FakeClock()).compare(snapshot, live, 0)


def test_what_would_have_been_otherwise() -> None:
    """A policy that packs would have placed all work on the first node."""
    found = looked(crowded(PoolFact(name="default", scores={"MostAllocated": 1})))
    assert found is not None
    assert (found.same, found.different) == (1, 2)
    assert [each.other["placements"] for each in found.divergences] == [{"0": "n0"}, {"0": "n0"}]


def test_an_equal_policy_does_the_same() -> None:
    """An equal policy has no differences."""
    found = looked(crowded(PoolFact(name="default")))
    assert found is not None
    assert (found.same, found.different, found.divergences) == (3, 0, ())


def test_no_shadow_costs_nothing() -> None:
    """A pool without a shadow policy has no result."""
    assert looked(crowded(None)) is None


def test_the_live_plan_is_untouched() -> None:
    """The same snapshot gives the same plan after a shadow has looked at it."""
    snapshot = crowded(PoolFact(name="default", scores={"MostAllocated": 1}))
    before = plan(snapshot, policy_of(snapshot.pool), NOW)
    text = encoded(before)
    ShadowPlanner("default", FakeClock()).compare(snapshot, before, 0)
    assert encoded(before) == text
    assert encoded(plan(snapshot, policy_of(snapshot.pool), NOW)) == text


def test_ticks_that_come_too_soon_are_passed_over() -> None:
    """A shadow that takes a second is not planned again before nine more have passed."""
    snapshot = crowded(PoolFact(name="default"))
    live = plan(snapshot, policy_of(snapshot.pool), NOW)
    clock = SlowClock()
    shadow = ShadowPlanner("default", clock)
    assert shadow.compare(snapshot, live, 0) is not None
    answers = [shadow.compare(snapshot, live, 0) for _ in range(shadows.PART - 1)]
    assert all(answer is None for answer in answers[:-1])
    assert answers[-1] is not None
