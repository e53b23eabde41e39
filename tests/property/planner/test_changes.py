"""The smallest change: right also beside reservations for heads, and no larger than necessary."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import QuotaFact
from slipway.model.reasons import Gate
from slipway.model.resources import MILLI, Resources
from slipway.scheduler.plan.state.plan_types import Remedy
from tests.property.planner.instances import Instance, instances
from tests.property.planner.test_properties import apply_changes
from tests.support.planner import NAMESPACE, admitted, planned

SETTINGS = settings(max_examples=80, deadline=None)
NOW = 5.0
RAISING = ("free", "limit", "nominal", "borrowing", "maxSlots", "uncordon")


@st.composite
def with_run_limits(draw: st.DrawFn) -> Instance:
    """An instance whose queues may reserve nodes for their heads, and whose allocations mostly have run limits.

    Its namespace may have a ResourceQuota.
    """
    instance = draw(instances())
    ordering = st.sampled_from(["Backfill", "Backfill", "BestEffortFIFO", "StrictFIFO"])
    limits = st.sampled_from([None, 10.0, 20.0, 50.0, 50.0])
    return msgspec.structs.replace(
        instance,
        queues=[msgspec.structs.replace(queue, ordering=draw(ordering)) for queue in instance.queues],
        allocations=[msgspec.structs.replace(fact, max_runtime=draw(limits)) for fact in instance.allocations],
        quotas=[_a_quota(draw(st.integers(1, 5)), draw(st.integers(2, 12)))] if draw(st.booleans()) else [],
    )


def _a_quota(pods: int, cpus: int) -> QuotaFact:
    hard = {"pods": pods * MILLI, "requests.cpu": cpus * MILLI}
    return QuotaFact(namespace=NAMESPACE, name="team", hard=hard)


@given(with_run_limits())
@SETTINGS
def test_the_change_admits_beside_reservations(instance: Instance) -> None:
    """Carry out the plan, make the change, plan again: it is admitted, also past reservations of others. When a
    bound was raised or a node enlarged, other allocations may wait that never could start before: at worst the nodes
    are reserved for one of them."""
    decided = planned(instance.snapshot(), NOW)
    allocations = admitted(instance.allocations, decided)
    for key, why in planned(instance.snapshot(allocations=allocations), NOW).explanations.items():
        if not why.change:
            continue
        changed = planned(apply_changes(instance, allocations, key, why.change).snapshot(), NOW)
        if not any(part.kind in RAISING for part in why.change) or key not in changed.explanations:
            assert key in {admit.allocation for admit in changed.admits}, (key, why)
        else:
            assert changed.explanations[key].gate is Gate.BEHIND_RESERVATION, (key, why, changed.explanations[key])


@given(with_run_limits())
@SETTINGS
def test_no_smaller_change_admits_the_allocation(instance: Instance) -> None:
    """A change for a single rank cannot be cut by one unit of anything, nor by one of its parts.

    An admission that evicts or moves other work is no counterexample, because a change counts on no eviction.
    """
    decided = planned(instance.snapshot(), NOW)
    allocations = admitted(instance.allocations, decided)
    ranks = {fact.key: fact.rank_count for fact in instance.allocations}
    for key, why in planned(instance.snapshot(allocations=allocations), NOW).explanations.items():
        if not why.change or ranks[key] != 1 or why.gate in (Gate.HELD, Gate.BEHIND_RESERVATION):
            continue
        for less in smaller(why.change):
            changed = apply_changes(instance, allocations, key, less)
            admits = planned(changed.snapshot(), NOW).admits
            assert key not in {admit.allocation for admit in admits if not admit.victims}, (why, less)


def smaller(changes: tuple[Remedy, ...]) -> list[tuple[Remedy, ...]]:
    """Each of the changes reduced by one step."""
    found: list[tuple[Remedy, ...]] = []
    for index, change in enumerate(changes):
        rest = changes[:index], changes[index + 1 :]
        found.append((*rest[0], *rest[1]))
        for name, amount in change.amounts.items():
            less = Resources.of({**change.amounts, name: amount - 1}).amounts
            found.append((*rest[0], msgspec.structs.replace(change, amounts=less), *rest[1]))
        if change.slots > 1:
            found.append((*rest[0], msgspec.structs.replace(change, slots=change.slots - 1), *rest[1]))
    return found
