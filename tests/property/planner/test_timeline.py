"""The numeric search for a head's start gives the same result as the search over the holdings, one by one."""

import random

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import SHARING_LABEL, AllocationFact, QueueFact
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.tick_state import TickState
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.reservation.future import FuturePool, FutureRelease
from slipway.scheduler.plan.reservation.timeline import (
    EarliestStart,
    ReleaseStep,
    ReservedSpan,
    Timeline,
    earliest,
    steps_of,
)
from slipway.scheduler.plan.state.pool_state import PoolState
from slipway.scheduler.plan.state.run_ends import known_end, run_limit
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import a_node, a_role, a_snapshot, amounts, an_allocation

SETTINGS = settings(max_examples=60, deadline=None)
NOW = 100.0


def a_state(seed: int) -> tuple[TickState, list[AllocationFact]]:
    """Some nodes, half of which assign individual GPUs; running allocations with and without known ends; and heads."""
    chance = random.Random(seed)
    shared = {SHARING_LABEL: "true"}
    nodes = [
        a_node(f"n{number}", cpu=8, gpus=4, labels=shared if chance.random() < 0.5 else {})
        for number in range(chance.randint(1, 6))
    ]
    queues = [
        QueueFact(
            name=name,
            ordering="Backfill",
            max_runtime=chance.choice([None, 300.0]),
            limit=chance.choice([None, amounts(gpus=chance.randint(1, 16))]),
        )
        for name in ("a", "b")
    ]
    running = [work for node in nodes for work in some_work(chance, node.name, bool(node.labels.get(SHARING_LABEL)))]
    heads = [
        an_allocation(
            f"h{number}",
            a_role(count=chance.randint(1, 5), cpu=chance.randint(1, 4), gpus=chance.choice([0, 1, 2, 4])),
            queue=chance.choice(["a", "b"]),
            max_runtime=chance.choice([None, 50.0, 400.0]),
        )
        for number in range(4)
    ]
    snapshot = msgspec.structs.replace(a_snapshot(nodes, [*running, *heads], queues=queues), now=NOW)
    return TickState(snapshot, policy_of(snapshot.pool), NOW, queue_tree(snapshot)), heads


def some_work(chance: random.Random, node: str, is_shared: bool) -> list[AllocationFact]:
    """Single ranks on a node, with up to all of its GPUs."""
    found: list[AllocationFact] = []
    number = 0
    while number < 4 and chance.random() < 0.85:
        gpus = min(chance.choice([0, 1, 1, 2]), 4 - number)
        devices = {0: tuple(range(number, number + gpus))} if is_shared and gpus else {}
        fact = an_allocation(f"{node}-{len(found)}", a_role(cpu=1, gpus=gpus), queue=chance.choice(["a", "b"]))
        found.append(
            msgspec.structs.replace(
                fact,
                phase=chance.choice([Phase.RUNNING, Phase.RUNNING, Phase.ASSIGNED]),
                placements={0: node},
                devices=devices,
                started=float(chance.randint(0, 99)),
                max_runtime=chance.choice([None, 20.0, 150.0, 600.0]),
                preemptible=chance.random() < 0.5,
                stopping=chance.random() < 0.1,
                phase_since=float(chance.randint(0, 99)),
                beyond_queue=chance.random() < 0.2,
            )
        )
        number += max(gpus, 1)
    return found


def one_by_one(
    state: TickState, head: AllocationFact, limit: float | None, boxes: list[ReservedSpan]
) -> EarliestStart | None:
    """The search over the holdings."""
    releases: list[FutureRelease] = []
    for uid, holding in state.snapshot.holdings.items():
        end = known_end(holding.allocation, state.tree.queue(holding.allocation.queue), state.now)
        if end is not None:
            releases.append(FutureRelease(end, uid, holding, tuple(holding.charges)))
    return earliest(FuturePool(state), head, limit, [ReleaseStep(state.now, ()), *steps_of(releases, boxes)], boxes)


@given(st.integers(0, 2**32))
@SETTINGS
def test_the_start_is_that_of_the_search_over_holdings(seed: int) -> None:
    """Both give the same instant, nodes and use of them; also around the places of earlier heads."""
    state, heads = a_state(seed)
    timeline, boxes = Timeline(state), list[ReservedSpan]()
    for head in heads:
        row = timeline.row_of(head)
        assert row is not None
        limit = run_limit(head, state.tree.queue(head.queue))
        expected = one_by_one(state, head, limit, boxes)
        found = timeline.earliest(head, row, limit, (), boxes)
        assert (found is None) == (expected is None)
        if found is None or expected is None:
            continue
        assert (found.at, found.placed.placements()) == (expected.at, expected.placed.placements())
        assert found.at >= NOW
        ours, theirs = found.future.whatif.usage, expected.future.whatif.usage
        assert np.array_equal(ours.used, theirs.used)
        assert np.array_equal(ours.scored, theirs.scored)
        if ours.devices is not None and theirs.devices is not None:
            assert np.array_equal(ours.devices.left, theirs.devices.left)
        boxes.append(ReservedSpan(found.at, None if limit is None else found.at + limit, found.placed))


@given(st.integers(0, 2**32))
@SETTINGS
def test_rows_that_were_kept_are_those_of_a_fresh_state(seed: int) -> None:
    """Allocations end, arrive and change their limits; cached rows release the same at the same times."""
    chance = random.Random(seed)
    state, _ = a_state(seed)
    facts = {holding.allocation.uid: holding.allocation for holding in state.snapshot.holdings.values()}
    columns = columns_of(state.snapshot, facts)
    Timeline(state_of(columns))
    for uid in sorted(facts):
        if chance.random() < 0.3:
            columns.drop_allocation(uid)
            facts.pop(uid)
        elif chance.random() < 0.3:
            facts[uid] = msgspec.structs.replace(facts[uid], max_runtime=chance.choice([None, 77.0]))
            columns.set_allocation(facts[uid])
    kept, fresh = state_of(columns), state_of(columns_of(state.snapshot, facts))
    head = an_allocation("head", a_role(count=chance.randint(1, 6), gpus=chance.choice([1, 4])), queue="a")
    starts: list[float | None] = []
    for each in (kept, fresh):
        timeline = Timeline(each)
        row = timeline.row_of(head)
        assert row is not None
        found = timeline.earliest(head, row, None, (), [])
        starts.append(None if found is None else found.at)
        assert timeline.can_ever_start(head, row, ()) or found is None
    assert starts[0] == starts[1]


def columns_of(snapshot: PoolSnapshot, facts: dict[str, AllocationFact]) -> PoolState:
    columns = PoolState(snapshot.pool)
    columns.set_nodes(snapshot.table.facts)
    columns.set_queues(snapshot.queues)
    columns.set_workspaces(snapshot.workspaces)
    for fact in facts.values():
        columns.set_allocation(fact)
    return columns


def state_of(columns: PoolState) -> TickState:
    snapshot = columns.snapshot((), NOW)
    return TickState(snapshot, policy_of(snapshot.pool), NOW, queue_tree(snapshot))
