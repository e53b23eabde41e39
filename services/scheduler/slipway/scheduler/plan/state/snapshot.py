"""The snapshot: everything that one plan looks at, frozen.

Owns the shape of the planner's input, and which nodes are a pool's. It is made by `pool_state.py`, from a whole LIST
(`build`) or kept current from deltas.
"""

from collections.abc import Iterable, Mapping

import msgspec

from slipway.model.eviction_rate import EvictionLevel
from slipway.model.facts import AllocationFact, JobFact, NodeFact, PoolFact, QueueFact, QuotaFact
from slipway.model.ledger import Decision
from slipway.model.position import WorkKey
from slipway.model.resources import Resources, total
from slipway.scheduler.plan.state.budgets import Spent
from slipway.scheduler.plan.state.nodes import NodeTable
from slipway.scheduler.plan.state.ordering import work_key
from slipway.scheduler.plan.state.past_use import PastUse
from slipway.scheduler.plan.state.pending import PendingGroup, PendingWork
from slipway.scheduler.plan.state.plan_cache import Memo
from slipway.scheduler.plan.state.rank_request import quota_of
from slipway.scheduler.plan.state.run_ends import RunEnds
from slipway.scheduler.plan.state.usage import Charge, NodeUsage

OpenDecision = tuple[Decision, tuple[str, ...]]
"""A decision and the node table that its placements index."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that has places: by its pods, its admission or an open decision."""

    allocation: AllocationFact
    charges: dict[int, Charge]
    """{rank: what it takes and where} of the ranks that still use something, ascending"""
    admitted: dict[int, str]
    """{rank: node} of all ranks of this attempt, ended ones too"""
    used: dict[str, int] = {}
    """base units over `charges`, as quota counts them"""
    slots: int = 0
    """whole GPUs over `charges`"""
    gpu_units: int = 0
    """the same in `GPU_UNITS`: a slice counts as the part of a GPU that it is"""
    stranded: dict[str, int] = {}
    """the part of `used` that is on nodes that take no work, or that are gone"""
    leaving: tuple[int, ...] = ()
    """the ranks of `charges` that are on their way out: nobody needs to evict them"""
    is_growing: bool = False
    """a decision to add ranks to it is open"""

    @property
    def placements(self) -> dict[int, str]:
        """{rank: node} of the ranks that still use something."""
        return {rank: charge.node for rank, charge in self.charges.items()}

    def used_by(self, ranks: Iterable[int]) -> Resources:
        """What `ranks` use, as quota counts them."""
        roles = [role for rank in ranks if (role := self.allocation.role_of(rank)) is not None]
        return total(quota_of(role) for role in roles)


class Nomination(msgspec.Struct, frozen=True, kw_only=True):
    """Places that the ledger holds for attempt `attempt` of an allocation until whoever stands there has left."""

    id: str
    """of the decision"""
    number: int
    """its place in the ledger"""
    uid: str
    attempt: int
    allocation: AllocationFact | None
    """as it stands; None when it is gone. What moves may still be in the attempt before"""
    placements: dict[int, str]
    """{rank: node}"""
    devices: dict[int, tuple[int, ...]] = {}
    """{rank: device numbers} where the planner chose them"""
    victims: frozenset[str] = frozenset()
    """uids of those that were evicted for it"""
    at: float = 0.0
    """when it was decided (epoch seconds)"""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What the holdings of one queue use together, in base units."""

    preemptible: dict[str, int] = {}
    fixed: dict[str, int] = {}
    """the part that cannot be preempted"""


class PoolSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Read only, although its columns are arrays: a plan copies the usage before it writes."""

    pool: PoolFact
    table: NodeTable
    usage: NodeUsage
    backlog: PendingWork
    """what waits: of phase Pending, wanted, without an open decision. Live: it is the columns' own, and what is read
    of it holds until they change"""
    groups: tuple[PendingGroup, ...]
    """the same in groups, by key; frozen"""
    memo: Memo
    """what earlier plans of the same state found out"""
    holdings: Mapping[str, Holding]
    """{allocation uid: what it has}"""
    ends: RunEnds
    """the same as columns, once asked for. Live, as `backlog` is"""
    broken: tuple[Holding, ...]
    """those placed with less than their minimum, by key"""
    below: tuple[Holding, ...] = ()
    """those with fewer ranks than they ask for, in no order"""
    use: Mapping[str, Use]
    """{queue: what its holdings use}"""
    stranded: Mapping[str, Use]
    """{queue: the part of `use` that is on nodes that take no work, or that are gone}"""
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
    """in order of the ledger; what they hold is in no usage here, the plan books it"""
    evicted: tuple[EvictionLevel, ...] = ()
    """what is used of the eviction limits, as the ledger has it"""
    spent: Spent = {}
    """what the queues have used in the windows of their budgets"""
    past: PastUse | None = None
    """what queues and users have used before; None where that does not count"""

    @property
    def pending(self) -> tuple[AllocationFact, ...]:
        """All that waits, by group."""
        return tuple(fact for group in self.groups for _, fact in group.members)

    def order_of(self, allocation: AllocationFact) -> WorkKey:
        """Where it stands in its queue's order."""
        return work_key(allocation, self.job_of(allocation), self.pool.aging, self.now)

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
