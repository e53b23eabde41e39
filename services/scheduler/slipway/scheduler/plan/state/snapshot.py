"""The snapshot: everything that one plan reads, frozen.

Owns the shape of the planner's input, and which nodes belong to a pool. `pool_state.py` makes it, from a whole LIST
(`build`) or from deltas.
"""

from collections.abc import Iterable, Mapping

import msgspec

from slipway.model.eviction_rate import EvictionLevel
from slipway.model.facts import AllocationFact, JobFact, NodeFact, PoolFact, QueueFact, QuotaFact
from slipway.model.ledger import Decision
from slipway.model.position import WorkKey
from slipway.model.resources import Resources, total
from slipway.scheduler.plan.state.nodes import NodeTable
from slipway.scheduler.plan.state.past_use import PastUse, Spent
from slipway.scheduler.plan.state.pending import PendingGroup, PendingWork, work_key
from slipway.scheduler.plan.state.plan_cache import PlanCache
from slipway.scheduler.plan.state.rank_request import quota_of
from slipway.scheduler.plan.state.run_ends import RunEnds
from slipway.scheduler.plan.state.usage import Charge, NodeUsage

OpenDecision = tuple[Decision, tuple[str, ...]]
"""A decision and the node table that its placements index."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that has places, by its pods, its admission or an open decision."""

    allocation: AllocationFact
    charges: dict[int, Charge]
    """{rank: its charge} of the ranks that still use something, ascending"""
    admitted: dict[int, str]
    """{rank: node} of all ranks of this attempt, including ended ranks"""
    used: dict[str, int] = {}
    """base units over `charges`, as quota counts them"""
    slots: int = 0
    """whole GPUs over `charges`"""
    gpu_units: int = 0
    """the GPUs over `charges` in `GPU_UNITS`: a slice is counted as its part of a GPU"""
    stranded: dict[str, int] = {}
    """the part of `used` on nodes that accept no work or do not exist any more"""
    leaving: tuple[int, ...] = ()
    """the ranks of `charges` that are leaving already, so that they need no eviction"""
    is_growing: bool = False
    """whether a decision to add ranks to it is open"""

    @property
    def placements(self) -> dict[int, str]:
        """Return {rank: node} of the ranks that still use something."""
        return {rank: charge.node for rank, charge in self.charges.items()}

    def used_by(self, ranks: Iterable[int]) -> Resources:
        """Return what `ranks` use, as quota counts it."""
        roles = [role for rank in ranks if (role := self.allocation.role_of(rank)) is not None]
        return total(quota_of(role) for role in roles)


class Nomination(msgspec.Struct, frozen=True, kw_only=True):
    """Places that the ledger holds for attempt `attempt` of an allocation until the victims have left them."""

    id: str
    """id of the decision"""
    number: int
    """its index in the ledger"""
    uid: str
    attempt: int
    allocation: AllocationFact | None
    """the current fact; None when it was deleted. A moved allocation may still be in the attempt before `attempt`"""
    placements: dict[int, str]
    """{rank: node}"""
    devices: dict[int, tuple[int, ...]] = {}
    """{rank: device numbers} where the planner chose them"""
    victims: frozenset[str] = frozenset()
    """uids of the allocations that were evicted for it"""
    at: float = 0.0
    """when it was decided (epoch seconds)"""


class QueueUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the holdings of one queue use in total, in base units."""

    preemptible: dict[str, int] = {}
    fixed: dict[str, int] = {}
    """the use of work that cannot be preempted"""


class PoolSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one plan. Read only, although its columns are arrays: a plan copies the usage before it writes."""

    pool: PoolFact
    table: NodeTable
    usage: NodeUsage
    backlog: PendingWork
    """pending work: of phase Pending, wanted, without an open decision

    It is the live object of `pool_state`, so what is read from it is valid until that changes.
    """
    groups: tuple[PendingGroup, ...]
    """the pending work in groups, ordered by key; frozen"""
    cache: PlanCache
    """the findings of earlier plans on the same state"""
    holdings: Mapping[str, Holding]
    """{allocation uid: its holding}"""
    ends: RunEnds
    """the holdings as rows, filled when a plan requests them. Live, as `backlog` is"""
    broken: tuple[Holding, ...]
    """allocations that were placed with less than their minimum, by key"""
    below: tuple[Holding, ...] = ()
    """allocations with fewer ranks than their count, unordered"""
    use: Mapping[str, QueueUse]
    """{queue: what its holdings use}"""
    stranded: Mapping[str, QueueUse]
    """{queue: the part of `use` on nodes that accept no work or do not exist any more}"""
    slots: Mapping[tuple[str, str], int]
    """{(namespace, job): whole GPUs in use}"""
    queues: tuple[QueueFact, ...]
    jobs: Mapping[tuple[str, str], JobFact]
    """{(namespace, name): job}"""
    workspaces: frozenset[str]
    quotas: Mapping[str, tuple[QuotaFact, ...]] = {}
    """{namespace: its ResourceQuotas, by name}"""
    now: float = 0.0
    nominations: tuple[Nomination, ...] = ()
    """in the order of the ledger. `usage` does not include their places; the plan books these"""
    evicted: tuple[EvictionLevel, ...] = ()
    """what is used of the eviction limits, from the ledger"""
    spent: Spent = {}
    """what the queues have used in the windows of their budgets"""
    past: PastUse | None = None
    """the past use of queues and users; None when the pool has no `fairShare`"""

    @property
    def pending(self) -> tuple[AllocationFact, ...]:
        """Return all pending work, by group."""
        return tuple(fact for group in self.groups for _, fact in group.members)

    def order_of(self, allocation: AllocationFact) -> WorkKey:
        """Return the allocation's key in the order of its queue."""
        return work_key(allocation, self.job_of(allocation), self.pool.aging, self.now)

    def job_of(self, allocation: AllocationFact) -> JobFact | None:
        """Return the allocation's job; None when it names none or the job does not exist."""
        return self.jobs.get((allocation.namespace, allocation.job)) if allocation.job else None


def nodes_of_pool(pools: Iterable[PoolFact], nodes: Iterable[NodeFact]) -> dict[str, list[NodeFact]]:
    """Return {pool: its nodes}. A node that several pools select belongs to the first of them by name."""
    ordered = sorted(pools, key=lambda pool: pool.name)
    result: dict[str, list[NodeFact]] = {pool.name: [] for pool in ordered}
    for node in nodes:
        for pool in ordered:
            if selects(pool, node):
                result[pool.name].append(node)
                break
    return result


def selects(pool: PoolFact, node: NodeFact) -> bool:
    """Whether the pool's selector matches the node; an empty selector matches every node."""
    return all(node.labels.get(key) == value for key, value in pool.node_selector.items())
