"""The cost of a launch is counted, not timed; the counts are compared with the checked-in budget (`make budget`)."""

import functools
import sys

import pytest
from bench.budget.__main__ import ALONE, LESS, MORE, Budget, comparable, differences, read
from bench.budget.launches import WORKLOADS, measure


@functools.cache
def counts(workload: str) -> dict[str, float]:
    """The present costs of a workload."""
    return measure(workload)


def test_a_cost_within_the_budget_passes() -> None:
    """Counts at the budget are not reported, nor a difference of one call in a thousand launches."""
    limits = {"calls": 1_000.0, "seldom": 1.0}
    assert differences(limits, limits) == []
    assert differences(limits, {"calls": 1_000.0 * (1 + MORE), "seldom": 1.0 + ALONE}) == []


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        ({"calls": 1_050.0}, "calls: 1050; the budget is 1000"),
        ({"calls": 1_000.0, "new": 500.0}, "new: 500; the budget is 0"),
        ({"calls": 1_000.0 * (1 - LESS) - 10}, "calls: 890; the budget is 1000: keep the gain with --write"),
        ({}, "calls: 0; the budget is 1000: keep the gain with --write"),
    ],
)
def test_a_cost_above_or_well_below_the_budget_is_reported(figures: dict[str, float], told: str) -> None:
    """A higher count fails, and so does a count without a budget; a lower one must be written down, or the gain
    could be lost unnoticed."""
    assert differences({"calls": 1_000.0}, figures) == [told]


def test_call_counts_apply_to_one_python_version_only() -> None:
    """Calls of the API server are equal on every interpreter; the number of Python calls of a tick is not."""
    budget = Budget(python="2.7", build="2.7.1", limits={"planner, idle tick: calls": 1.0, "burst, kube reads": 2.0})
    assert comparable(budget, budget.limits) == {"burst, kube reads": 2.0}


def test_instruction_counts_apply_to_one_build_only() -> None:
    """Another build of the same version makes the same calls, and executes other instructions."""
    this = ".".join(map(str, sys.version_info[:2]))
    limits = {"planner, idle tick: calls": 1.0, "planner, idle tick: million instructions": 2.0}
    another = Budget(python=this, build="another", limits=limits)
    assert comparable(another, limits) == {"planner, idle tick: calls": 1.0}
    assert comparable(Budget(python=this, build=sys.version, limits=limits), limits) == limits


def test_a_new_count_of_the_planner_is_reported() -> None:
    """On the interpreter of the budget a new count of the planner fails until the budget contains it."""
    budget = Budget(python=".".join(map(str, sys.version_info[:2])), build=sys.version, limits={})
    figures = {"planner, new tick: calls": 500.0}
    [told] = differences(comparable(budget, budget.limits), comparable(budget, figures))
    assert told == "planner, new tick: calls: 500; the budget is 0"


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_checked_in_budget_covers_every_workload(workload: str) -> None:
    """Every workload has a budget."""
    assert any(what.startswith(f"{workload}, ") for what in read().limits)


@pytest.mark.parametrize("what", ["create pods", "bind pods"])
def test_a_pod_is_made_once_and_bound_once(what: str) -> None:
    """Without faults each pod of a gang costs exactly one create and one binding."""
    assert counts("gangs")[f"gangs, kube writes, podworker: {what}"] == 1_000


def test_a_gang_is_released_once_and_admitted_once() -> None:
    """10 gangs of 16 have one admission and one release each, so 62.5 per 1,000 pods."""
    found = counts("gangs")
    assert found["gangs, kube writes, podworker: update allocations/status"] == 62.5
    assert found["gangs, kube writes, scheduler: update allocations/status"] == 62.5


def test_a_burst_shares_its_ledger_writes() -> None:
    """200 simultaneous launches are decided in a few ticks, and a tick is one write of the ledger."""
    assert counts("burst")["burst, kube writes, scheduler: update resourcepools/status"] < 100


def test_each_list_counts() -> None:
    """One more LIST a minute fails, one less must be written down; other calls have a tolerance."""
    limits = {"rest, kube reads, api: list nodes": 1.0, "rest, kube reads, api: get nodes": 1.0}
    assert differences(limits, limits) == []
    [told] = differences(limits, {what: 2.0 for what in limits})
    assert told == "rest, kube reads, api: list nodes: 2; the budget is 1"
    [told] = differences(limits, {"rest, kube reads, api: get nodes": 1.0})
    assert "list nodes: 0; the budget is 1: keep the gain" in told


@pytest.mark.parametrize("workload", ["rest", "served"])
@pytest.mark.parametrize("plural", ["nodes", "secrets", "pods"])
def test_what_is_watched_is_not_listed(workload: str, plural: str) -> None:
    """No service lists watched objects: neither at rest nor while users launch and read."""
    found = counts(workload)
    assert [what for what in found if what.endswith(f": list {plural}")] == []
    assert any(": list " in what for what in found), "LISTs of others are counted"


def test_at_rest_nothing_is_written() -> None:
    """A minute with running allocations writes nothing to Kubernetes but leases."""
    assert not [what for what in counts("rest") if what.startswith(("rest, kube writes", "rest, etcd bytes"))]
