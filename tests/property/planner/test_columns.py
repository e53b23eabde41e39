"""Columns kept current from deltas equal columns built from the newest facts."""

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact, NodeFact, PodFact, PoolFact
from slipway.model.ledger import Decision
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.state.pool_state import PoolState
from slipway.scheduler.plan.state.snapshot import OpenDecision, PoolSnapshot
from tests.support.planner import WORKSPACES, a_node, a_role, a_snapshot, amounts, an_allocation

NODES = [a_node(f"n{index}", cpu=16, gpus=4) for index in range(3)]
NAMES = tuple(node.name for node in NODES)
PHASES = [Phase.PENDING, Phase.ASSIGNED, Phase.RUNNING, Phase.TERMINATING, Phase.TERMINATED]


@st.composite
def allocation_facts(draw: st.DrawFn) -> AllocationFact:
    phase = draw(st.sampled_from(PHASES))
    placed = {} if phase is Phase.PENDING else {0: draw(st.sampled_from(NAMES)), 1: draw(st.sampled_from(NAMES))}
    return an_allocation(
        f"a{draw(st.integers(0, 3))}",
        a_role(2, gpus=draw(st.integers(0, 1))),
        phase=phase,
        placements=placed,
        attempt=draw(st.integers(1, 2)),
        ended_ranks=tuple(draw(st.sets(st.integers(0, 1)))) if phase is not Phase.PENDING else (),
        preemptible=draw(st.booleans()),
        queue=draw(st.sampled_from(["default", "other"])),
    )


@st.composite
def pod_facts(draw: st.DrawFn) -> PodFact:
    owner = draw(st.integers(-1, 3))
    rank = draw(st.integers(0, 1))
    attempt = draw(st.integers(1, 2))
    name = f"foreign{rank}" if owner < 0 else f"a{owner}-{attempt}-{rank}"
    return PodFact(
        namespace="default",
        name=name,
        uid=name,
        node=draw(st.sampled_from(["", *NAMES, "elsewhere"])),
        requests=amounts(1, 0, draw(st.integers(0, 1))),
        live=draw(st.booleans()),
        allocation_uid="" if owner < 0 else f"uid-a{owner}",
        attempt=attempt,
        rank=rank,
        host_ports=(80,) if draw(st.booleans()) else (),
    )


@st.composite
def decisions(draw: st.DrawFn) -> list[OpenDecision]:
    found: list[OpenDecision] = []
    for owner in sorted(draw(st.sets(st.integers(0, 3)))):
        decision = Decision(
            id=f"d{owner}",
            epoch=1,
            allocation=f"default/a{owner}",
            uid=f"uid-a{owner}",
            attempt=draw(st.integers(1, 2)),
            placements=(draw(st.integers(0, 2)), draw(st.integers(-1, 2))),
        )
        found.append((decision, NAMES))
    return found


STEP = st.one_of(
    allocation_facts(),
    pod_facts(),
    st.sampled_from(NODES).map(lambda node: msgspec.structs.replace(node, ready=False)),
    st.sampled_from(["drop a0", "drop a1", "drop pod", "drop node", "look"]),
)


@given(st.lists(STEP, max_size=25), decisions(), decisions())
@settings(max_examples=200, deadline=None)
def test_applying_deltas_equals_a_fresh_list(
    steps: list[object], first: list[OpenDecision], last: list[OpenDecision]
) -> None:
    """This is true in any order, with repeats and drops, and with changing decisions."""
    columns = PoolState(PoolFact(name="default"))
    nodes = {node.name: node for node in NODES}
    pods: dict[str, PodFact] = {}
    allocations: dict[str, AllocationFact] = {}
    columns.set_nodes(NODES)
    columns.set_workspaces(WORKSPACES)
    for step in steps:
        match step:
            case "look":
                columns.snapshot(first)
            case "drop node":
                nodes.pop("n2", None)
                columns.drop_node("n2")
            case "drop pod":
                for pod in list(pods.values())[:1]:
                    del pods[pod.name]
                    columns.drop_pod(pod.namespace, pod.name, pod.uid)
            case str():
                allocations.pop(f"uid-{step[-2:]}", None)
                columns.drop_allocation(f"uid-{step[-2:]}")
            case PodFact():
                pods[step.name] = step
                columns.set_pod(step)
            case NodeFact():
                nodes[step.name] = step
                columns.set_node(step)
            case AllocationFact():
                allocations[step.uid] = step
                columns.set_allocation(step)
            case _:
                raise AssertionError(step)
    fresh = a_snapshot(nodes.values(), allocations.values(), pods=pods.values(), queues=(), decisions=last)
    assert_equal(columns.snapshot(last), fresh)


def assert_equal(one: PoolSnapshot, other: PoolSnapshot) -> None:
    assert one.table.names == other.table.names
    assert np.array_equal(one.usage.used, other.usage.used)
    assert np.array_equal(one.usage.scored, other.usage.scored)
    assert {port: counts.tolist() for port, counts in one.usage.ports.items() if counts.any()} == {
        port: counts.tolist() for port, counts in other.usage.ports.items() if counts.any()
    }
    assert sorted(fact.uid for fact in one.pending) == sorted(fact.uid for fact in other.pending)
    assert one.holdings == other.holdings
    assert one.broken == other.broken
    assert one.slots == other.slots
    assert used(one) == used(other)


def used(snapshot: PoolSnapshot) -> dict[tuple[str, bool], dict[str, int]]:
    sums: dict[tuple[str, bool], dict[str, int]] = {}
    for queue, use in snapshot.use.items():
        for is_preemptible, amounts_of in ((True, use.preemptible), (False, use.fixed)):
            sums[queue, is_preemptible] = {name: amount for name, amount in amounts_of.items() if amount}
    return {key: amounts_of for key, amounts_of in sums.items() if amounts_of}
