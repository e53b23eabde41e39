"""A planner that has followed its pool for a long time plans like one that reads it for the first time."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact, JobFact
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.state.pending import PendingWork
from slipway.scheduler.plan.state.plan_types import encoded
from slipway.scheduler.plan.state.pool_state import PoolState
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.property.planner.instances import Instance, instances
from tests.support.planner import WORKSPACES, planned

SETTINGS = settings(max_examples=100, deadline=None)


def columns_of(instance: Instance) -> PoolState:
    columns = PoolState(instance.pool)
    columns.set_nodes(instance.nodes)
    for pod in instance.pods:
        columns.set_pod(pod)
    columns.set_queues(instance.queues)
    columns.set_jobs(instance.jobs)
    columns.set_workspaces(WORKSPACES)
    return columns


@given(instances())
@SETTINGS
def test_cached_results_change_no_plan(instance: Instance) -> None:
    """Allocations arrive one by one, with a plan after each that is not carried out; some are deleted. The last plan
    equals, bit for bit, that of a planner that reads everything at once."""
    columns = columns_of(instance)
    stays: list[AllocationFact] = []
    for number, fact in enumerate(instance.allocations):
        columns.set_allocation(fact)
        planned(columns.snapshot())
        if number % 3 == 2:
            columns.drop_allocation(fact.uid)
        else:
            stays.append(fact)
    assert encoded(planned(columns.snapshot())) == encoded(planned(instance.snapshot(allocations=stays)))


@given(instances())
@SETTINGS
def test_following_its_own_plans_leads_where_a_fresh_look_does(instance: Instance) -> None:
    """Admissions of a plan are carried out, and the next plan, also of an unchanged pool, equals that of a new
    planner."""
    columns = columns_of(instance)
    allocations = {fact.uid: fact for fact in instance.allocations}
    for fact in allocations.values():
        columns.set_allocation(fact)
    for _ in range(4):
        decided = planned(columns.snapshot())
        for admit in decided.admits:
            fact = allocations[admit.uid]
            fact = msgspec.structs.replace(fact, placements=admit.placements, phase=Phase.ASSIGNED)
            allocations[fact.uid] = fact
            columns.set_allocation(fact)
        fresh = instance.snapshot(allocations=list(allocations.values()))
        assert encoded(planned(columns.snapshot())) == encoded(planned(fresh))


def groups_of(snapshot: PoolSnapshot) -> list[tuple[bytes, list[str]]]:
    return [(group.key, [fact.uid for _, fact in group.members]) for group in snapshot.groups]


@given(instances(), st.lists(st.integers(0, 9), max_size=12), st.lists(st.integers(0, 3), max_size=4))
@SETTINGS
def test_groups_are_those_of_a_fresh_backlog(instance: Instance, touched: list[int], moved: list[int]) -> None:
    """This is true after any additions, removals and changes of jobs."""
    columns = columns_of(instance)
    facts = {fact.uid: fact for fact in instance.allocations}
    jobs = {(job.namespace, job.name): job for job in instance.jobs}
    for fact in facts.values():
        columns.set_allocation(fact)
    columns.snapshot()
    for number in touched:
        for fact in list(facts.values())[number : number + 1]:
            facts[fact.uid] = msgspec.structs.replace(fact, priority=fact.priority + 1, version=fact.version + 1)
            columns.set_allocation(facts[fact.uid])
            columns.snapshot()
    for number in moved:
        for key in list(jobs)[number : number + 1]:
            jobs[key] = JobFact(namespace=key[0], name=key[1], priority=number, max_slots=number or None)
            columns.set_jobs(jobs.values())
    backlog = PendingWork()
    backlog.set_jobs(jobs, 0.0)
    for fact in facts.values():
        backlog.put(fact, 0.0)
    fresh = backlog.groups(0.0)
    assert groups_of(columns.snapshot()) == [(group.key, [fact.uid for _, fact in group.members]) for group in fresh]
