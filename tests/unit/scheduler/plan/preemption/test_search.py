"""The cost of clearing nodes is the same for all nodes at once and node by node."""

import random

import numpy as np
import pytest

from slipway.model.facts import AllocationFact, QueueFact
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.tick_state import TickState
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.preemption.proposal import NodeSearch
from slipway.scheduler.plan.preemption.reclaim_rule import FIRST, ReclaimClaim
from slipway.scheduler.plan.preemption.trial import EvictionTrial
from slipway.scheduler.plan.preemption.victims import victims_of
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, running


def a_state(seed: int) -> TickState:
    """A few nodes with gangs, elastic gangs and lone ranks of two queues, some on host ports."""
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(6)]
    facts: list[AllocationFact] = []
    for number in range(14):
        count = chance.choice([1, 1, 2, 3])
        ports = (8080,) if chance.random() < 0.2 else ()
        role = a_role(count, chance.randint(1, count), cpu=chance.randint(1, 2), host_ports=ports)
        fact = an_allocation(
            f"a{number}",
            role,
            queue=chance.choice(["default", "other"]),
            priority=chance.randint(0, 2),
            preemptible=True,
            started=float(chance.randint(0, 3)),
        )
        facts.append(running(fact, {rank: chance.choice(names) for rank in range(count)}))
    snapshot = a_snapshot(
        [a_node(name, cpu=12) for name in names], facts, queues=[QueueFact(name="default"), QueueFact(name="other")]
    )
    return TickState(snapshot, policy_of(snapshot.pool), 0.0, queue_tree(snapshot))


@pytest.mark.parametrize("seed", range(40))
def test_batched_search_equals_single_search(seed: int) -> None:
    """The search over columns and the search node by node agree on the nodes that work, on each cost, and on the
    choice."""
    state = a_state(seed)
    victims = victims_of(state.snapshot)
    chance = random.Random(seed)
    ports = (8080,) if seed % 3 == 0 else ()
    row = state.whatif.row(a_role(1, cpu=chance.randint(8, 12), host_ports=ports))
    eligible = np.array([chance.random() < 0.8 for _ in victims.units], dtype=np.bool_)
    turns = np.array([seed % 2, 1], dtype=np.int64)
    columns = NodeSearch(row, victims, turns, eligible)
    plain = NodeSearch(row, victims, turns, eligible)
    plain.is_ok[:] = False
    for node in range(6):
        plain.recompute(node)
    assert (columns.is_ok == plain.is_ok).all()
    assert (columns.costs[:, columns.is_ok] == plain.costs[:, plain.is_ok]).all()
    assert columns.best() == plain.best()


@pytest.mark.parametrize("seed", range(10))
def test_a_trial_restores_the_evicted_ranks(seed: int) -> None:
    """After `undo` usage, queues and slots are as they were, whatever was taken off in between."""
    state = a_state(seed)
    before = (state.whatif.usage.used.copy(), state.tree.subtree_use("default"), state.tree.subtree_use("other"))
    trial = EvictionTrial(state, ReclaimClaim(state.tree, "default", {"cpu": 1000}), "default", FIRST)
    units = victims_of(state.snapshot).units
    for unit in random.Random(seed).sample(units, len(units) // 2):
        trial.remove(unit)
    for step in list(trial.steps)[::2]:
        trial.put_back(step)
    trial.undo()
    after = (state.whatif.usage.used, state.tree.subtree_use("default"), state.tree.subtree_use("other"))
    assert (before[0] == after[0]).all()
    assert before[1:] == after[1:]
