"""The snapshot: everything that one plan looks at, frozen.

Owns the shape of the planner's input, and which nodes are a pool's. It is made by `columns.py`, from a whole LIST
(`build`) or kept current from deltas.
"""

from collections.abc import Iterable, Mapping

import msgspec

from slipway.model.facts import AllocationFact, JobFact, NodeFact, PoolFact, QueueFact
from slipway.model.ledger import Decision
from slipway.scheduler.plan.nodes import NodeTable
from slipway.scheduler.plan.usage import Usage

OpenDecision = tuple[Decision, tuple[str, ...]]
"""A decision and the node table that its placements index."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that has places: by its pods, its admission or an open decision."""

    allocation: AllocationFact
    placements: dict[int, str]
    """{rank: node} of the ranks that still use something"""
    admitted: dict[int, str]
    """{rank: node} of all ranks of this attempt, ended ones too"""
    used: dict[str, int]
    """base units over `placements`, as quota counts them"""
    slots: int
    """whole GPUs over `placements`"""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What the holdings of one queue use together, in base units."""

    preemptible: dict[str, int] = {}
    fixed: dict[str, int] = {}
    """the part that can not be preempted"""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Read only, although its columns are arrays: a plan copies the usage before it writes."""

    pool: PoolFact
    table: NodeTable
    usage: Usage
    pending: tuple[AllocationFact, ...]
    """of phase Pending, without an open decision, in no order"""
    holdings: Mapping[str, Holding]
    """{allocation uid: what it has}"""
    broken: tuple[Holding, ...]
    """those placed with less than their minimum, by key"""
    use: Mapping[str, Use]
    """{queue: what its holdings use}"""
    slots: Mapping[tuple[str, str], int]
    """{(namespace, job): whole GPUs in use}"""
    queues: tuple[QueueFact, ...]
    jobs: Mapping[tuple[str, str], JobFact]
    """{(namespace, name): job}"""
    workspaces: frozenset[str]
    now: float = 0.0

    def job_of(self, allocation: AllocationFact) -> JobFact | None:
        """The allocation's job, if it names one that exists."""
        return self.jobs.get((allocation.namespace, allocation.job)) if allocation.job else None


def nodes_of_pool(pools: Iterable[PoolFact], nodes: Iterable[NodeFact]) -> dict[str, list[NodeFact]]:
    """{pool: its nodes}. A node that several pools select belongs to the first of them by name."""
    ordered = sorted(pools, key=lambda pool: pool.name)
    result: dict[str, list[NodeFact]] = {pool.name: [] for pool in ordered}
    for node in nodes:
        for pool in ordered:
            if selects(pool, node):
                result[pool.name].append(node)
                break
    return result


def selects(pool: PoolFact, node: NodeFact) -> bool:
    """Whether the pool's selector matches; an empty selector takes every node."""
    return all(node.labels.get(key) == value for key, value in pool.node_selector.items())
