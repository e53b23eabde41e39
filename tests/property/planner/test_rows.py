"""The shortcuts of the planner give the same results as the full computation."""

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import RoleFact
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow, diagnose
from slipway.scheduler.plan.placement.fill import fill
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state.nodes import EVERY
from tests.property.planner.instances import Instance, a_random_role, instances

SETTINGS = settings(max_examples=100, deadline=None)
roles = a_random_role("role")


def a_whatif(instance: Instance) -> WhatIf:
    snapshot = instance.snapshot()
    return WhatIf(snapshot.usage, policy_of(snapshot.pool))


@given(instances(), st.lists(st.tuples(roles, st.integers(1, 3)), min_size=1, max_size=6))
@SETTINGS
def test_a_row_kept_current_equals_a_fresh_one(instance: Instance, steps: list[tuple[RoleFact, int]]) -> None:
    """After any takes by several requests, each row's totals equal those of a row computed now."""
    whatif = a_whatif(instance)
    for role, want in steps:
        row = whatif.row(role)
        whatif.take(row, fill(row, want))
    for role, _ in steps:
        row = whatif.row(role)
        row.refresh()
        fresh = FeasibilityRow(row.request, whatif.usage, whatif.weights(row.request))
        assert np.array_equal(row.total, fresh.total)
        assert np.array_equal(row.fits, fresh.fits)


@given(instances(), roles, st.integers(1, 12))
@SETTINGS
def test_one_pass_equals_one_by_one(instance: Instance, role: RoleFact, want: int) -> None:
    """Filling in one pass selects the nodes that placing rank after rank selects.

    The scores must not depend on other ranks: a role with a topology has scores that follow the use of whole domains.
    """
    pool, role = instance.pool, msgspec.structs.replace(role, topology=None)
    if "NodeAffinity" in pool.scores or not pool.scores:
        instance = instance_with_scores(instance)
    whatif, single = a_whatif(instance), a_whatif(instance)
    at_once = fill(whatif.row(role), want)
    one_by_one: list[int] = []
    for _ in range(want):
        row = single.row(role)
        nodes = fill(row, 1)
        single.take(row, nodes)
        one_by_one += nodes
    assert at_once == one_by_one


@given(instances(), roles)
@SETTINGS
def test_giving_back_restores_the_columns(instance: Instance, role: RoleFact) -> None:
    """After a take and its release the usage is as before, and so is the row."""
    whatif = a_whatif(instance)
    row = whatif.row(role)
    before, totals = whatif.usage.used.copy(), row.total.copy()
    nodes = fill(row, 5)
    whatif.take(row, nodes)
    whatif.give(row, nodes)
    row.refresh()
    assert np.array_equal(whatif.usage.used, before)
    assert np.array_equal(row.total, totals)


@given(instances(), roles)
@SETTINGS
def test_the_quick_verdict_agrees_with_the_filters(instance: Instance, role: RoleFact) -> None:
    """The feasible nodes of a row are those that no filter refuses and that fit at least one rank."""
    whatif = a_whatif(instance)
    row = whatif.row(role)
    verdict = diagnose(row.request, whatif.usage)
    assert verdict.fitting == int(row.fits.sum())
    assert verdict.fitting + sum(count for _, count in verdict.refused) == len(whatif.table)
    assert np.array_equal(whatif.usage.room(row.request, EVERY, 9) > 0, whatif.usage.fits(row.request, EVERY))


def instance_with_scores(instance: Instance) -> Instance:
    pool = msgspec.structs.replace(instance.pool, scores={"LeastAllocated": 1, "BalancedAllocation": 1})
    return msgspec.structs.replace(instance, pool=pool)
