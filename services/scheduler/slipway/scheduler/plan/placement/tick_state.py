"""The state of one tick: what it has decided so far; admissions, preemptions and reservations all change it.

Owns the bookkeeping of one tick over usage, queues and job slots together, so that no caller updates one of them and
forgets another. Knows nothing of order: the planner chooses the next allocation. Invariant: what is taken for work that
is then not admitted is given back whole, and what is removed for work that is then not placed is put back.

`PlanTrace` is the trace of a plan: the order in which it looked at allocations, and the best nodes of each. The trace
only reads; the plan is the same with and without it. It is bounded, because it is stored for every recorded tick. A
plan does not place again what its cache knows of an unchanged state, so two trails of one plan may differ.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.placement import explain, gang
from slipway.scheduler.plan.placement.extenders import PlanExtenders
from slipway.scheduler.plan.placement.feasibility import INFEASIBLE, FeasibilityRow
from slipway.scheduler.plan.placement.node_sets import NodeSets, Use
from slipway.scheduler.plan.placement.policy import PlacementPolicy
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.queueing.admission_checks import NamespaceQuotas
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state.plan_types import Evict, Explanation
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot
from slipway.scheduler.plan.state.usage import Charge
from slipway.scheduler.plan.state.windows import Windows
from slipway.scheduler.plan.state.workload_mix import mix_of

Ranks = tuple[int, ...]


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """A gang that this tick admits. It starts when its `victims` (uids that this plan evicts) have left."""

    placed: gang.PlacedGang
    demand: Resources
    victims: tuple[str, ...] = ()


class Accept(Protocol):
    """Checks a placement against the reservations."""

    def __call__(
        self, placed: gang.PlacedGang, demand: Resources, moved: Sequence[gang.PlacedGang] = ()
    ) -> gang.PlacedGang | Explanation:
        """Return `placed`, perhaps on other nodes; or the reason against it, after its places were given back.

        `moved` are gangs that are moved and start again on places already taken; they must not delay a reserved start
        either.
        """
        ...


class TickState:
    """The what-if state of one tick."""

    def __init__(
        self,
        snapshot: PoolSnapshot,
        policy: PlacementPolicy,
        now: float,
        tree: QueueTree,
        plan_extenders: PlanExtenders | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        self.tree = tree
        self.slots = dict(snapshot.slots)
        self.spaces = NamespaceQuotas(snapshot) if snapshot.quotas else None
        """None when no namespace has a ResourceQuota"""
        self.whatif = WhatIf(snapshot.usage, policy, plan_extenders)
        if policy.is_fragmentation_scored:
            self.whatif.usage.mix = mix_of(_work(snapshot, now))
        self.windows: Windows | None = None
        """None when the pool has no windows"""
        self.admitted: list[Admitted] = []
        self.evicted: dict[str, Evict] = {}
        """{uid: its eviction}"""
        self.preemptor: object = None
        """the preemption state of the tick, set when it is first needed"""
        self.notes: dict[str, str] = {}
        """{allocation key: why no work is evicted for it}, where eviction was possible"""
        self.awaiting_extenders: dict[str, str] = {}
        """{allocation key: what must be answered before work is evicted for it}"""
        self.look_again = 0.0
        """when work that must not be evicted yet may be evicted, because time passes (epoch seconds); 0 for never"""
        self.booked: dict[str, tuple[str, list[Charge]]] = {}
        """{uid of a nominated, not admitted allocation: (its queue, the charges of its places)}"""
        self._sets: NodeSets | None = None
        self._removed: dict[str, set[int]] = {}
        """{uid: its ranks that are removed now}"""

    def apply_windows(self, windows: Windows) -> None:
        """Apply the windows of the pool to this plan."""
        self.windows = windows
        self.whatif.usage.windows = windows.nodes()

    def with_windows(self, fact: AllocationFact) -> AllocationFact:
        """Return `fact`, which would start now, with the windows that are closed to it."""
        return fact if self.windows is None else self.windows.with_closed(fact)

    def running_with_windows(self, fact: AllocationFact) -> AllocationFact:
        """Return running `fact` with the windows that are closed to more ranks of it."""
        return fact if self.windows is None else self.windows.running_with_closed(fact)

    def quota_gate(self, fact: AllocationFact, demand: Resources) -> Explanation | None:
        """Return why the queues do not permit `demand` more for `fact`; None when they do."""
        short = self.tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
        if short is None:
            return None
        never = self.tree.permanent_shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
        return explain.quota_gate(never or short, is_never=never is not None)

    def slots_gate(self, fact: AllocationFact, asked: int) -> Explanation | None:
        """Return why its job does not permit `asked` more slots; None when it does."""
        job = self.snapshot.job_of(fact)
        if job is None or job.max_slots is None or asked == 0:
            return None
        used = self.slots.get((fact.namespace, fact.job), 0)
        return explain.slots_gate(job, used, asked) if used + asked > job.max_slots else None

    def space_gate(self, fact: AllocationFact, demand: Resources) -> Explanation | None:
        """Return why the namespace's ResourceQuotas do not permit the pods of `demand` more; None when they do."""
        refusal = self.spaces.refusal(fact, demand) if self.spaces is not None else None
        return explain.space_gate(*refusal) if refusal is not None else None

    def may_use(self, fact: AllocationFact, demand: Resources) -> Explanation | None:
        """Check quota, then job slots, then the namespace's ResourceQuotas; return the first reason, or None."""
        return self.quota_gate(fact, demand) or self.slots_gate(fact, demand.gpus()) or self.space_gate(fact, demand)

    def count(self, fact: AllocationFact, demand: Resources, times: int = 1) -> None:
        """Add `demand` to its queue, job and namespace; -1 removes it. The nodes are not changed here."""
        amounts = demand.amounts if times == 1 else {name: amount * times for name, amount in demand.amounts.items()}
        self.tree.take(fact.queue, amounts, preemptible=fact.preemptible)
        if fact.job:
            key = (fact.namespace, fact.job)
            self.slots[key] = self.slots.get(key, 0) + demand.gpus() * times
        if self.spaces is not None:
            self.spaces.take(fact, demand, times)

    def withdraw(self, placed: gang.PlacedGang, demand: Resources | None = None) -> None:
        """Give back the places, and remove `demand` if it was counted."""
        gang.withdraw(self.whatif, placed.parts)
        if demand is not None:
            self.count(placed.allocation, demand, -1)

    def retake(self, placed: gang.PlacedGang) -> None:
        """Undo `withdraw`, provided that nothing else has taken the places."""
        for part in placed.parts:
            self.whatif.usage.take(part.row.request, part.nodes)

    def remove(self, holding: Holding, ranks: Ranks | None = None) -> Resources:
        """Remove `ranks` of a holding (None: all) from its nodes, queue and job; return what they used."""
        return self._move(holding, ranks, -1)

    def put_back(self, holding: Holding, ranks: Ranks | None = None) -> None:
        """Undo `remove`."""
        self._move(holding, ranks, 1)

    def left_of(self, holding: Holding) -> Ranks:
        """Return the ranks of a holding that are not removed."""
        removed = self._removed.get(holding.allocation.uid)
        return tuple(rank for rank in holding.charges if not removed or rank not in removed)

    def node_sets(self) -> NodeSets:
        """Return the sets of nodes that work is confined to, as they are now.

        The returned object follows what is removed and put back, until the next call makes a new one.
        """
        self._sets = NodeSets(self.snapshot, self.tree, self.whatif, self.removed(), self._taken())
        return self._sets

    def _taken(self) -> Iterator[Use]:
        """Yield what this tick has taken, and what it holds for nominations."""
        for admitted in self.admitted:
            queue = admitted.placed.allocation.queue
            for part in admitted.placed.parts:
                yield from ((queue, node, part.row.request.requests) for node in part.nodes)
        index = self.whatif.table.index
        for queue, charges in self.booked.values():
            yield from ((queue, index[each.node], each.requests) for each in charges if each.node in index)

    def use_on(self, nodes: Collection[str]) -> list[tuple[AllocationFact, Resources]]:
        """Return what is used on `nodes`, which accept no work, and is not removed: (allocation, its use there)."""
        found: list[tuple[AllocationFact, Resources]] = []
        for holding in self.snapshot.holdings.values():
            ranks = [rank for rank in self.left_of(holding) if holding.charges[rank].node in nodes]
            if ranks:
                found.append((holding.allocation, holding.used_by(ranks)))
        return found

    def removed(self) -> dict[str, frozenset[int]]:
        """Return {uid: its ranks that are removed now}."""
        return {uid: frozenset(ranks) for uid, ranks in self._removed.items() if ranks}

    def _move(self, holding: Holding, ranks: Ranks | None, times: int) -> Resources:
        chosen = tuple(holding.charges) if ranks is None else ranks
        removed = self._removed.setdefault(holding.allocation.uid, set())
        if times < 0:
            removed.update(chosen)
        else:
            removed.difference_update(chosen)
        usage = self.whatif.usage
        for rank in chosen:
            charge = holding.charges[rank]
            node = usage.table.index.get(charge.node)
            if node is not None:
                usage.charge(charge, node, times)
        is_all = len(chosen) == len(holding.charges)
        used = Resources(holding.used) if is_all and holding.used else holding.used_by(chosen)
        self.count(holding.allocation, used, times)
        if self._sets is not None:
            self._sets.move(holding, chosen, times)
        if holding.stranded:
            stranded = holding.used_by(usage.table.stranded({rank: holding.charges[rank].node for rank in chosen}))
            amounts = {name: amount * times for name, amount in stranded.amounts.items()}
            self.tree.take_stranded(holding.allocation.queue, amounts, preemptible=holding.allocation.preemptible)
        return used


def _work(snapshot: PoolSnapshot, now: float) -> Iterator[tuple[tuple[RoleFact, ...], int]]:
    """Yield pending and running work as (roles, number of such gangs)."""
    for group in snapshot.backlog.groups(now):
        yield group.sample.roles, len(group.members)
    for holding in snapshot.holdings.values():
        yield holding.allocation.roles, 1


LOOKED_MAX = 256
"""The number of allocations whose order is recorded."""
SCORED_MAX = 16
"""The number of allocations of a tick whose best nodes are recorded."""
TOP = 3
"""The number of nodes that are recorded per allocation."""
TOTAL = "total"
"""The key, beside the plugins, of the weighted sum that decides."""

Scores = dict[str, dict[str, int]]


class PlanTrace:
    """`looked` are allocation keys, `scores` is {allocation key: node -> plugin -> value} of its first rank."""

    def __init__(self) -> None:
        self.looked: list[str] = []
        self.scores: dict[str, Scores] = {}

    def __call__(self, fact: AllocationFact, whatif: WhatIf) -> None:
        if len(self.looked) < LOOKED_MAX:
            self.looked.append(fact.key)
        # A row that the plan itself would not request could add a question to an extender.
        is_plain = whatif.plan_extenders is None and bool(fact.roles) and not fact.avoid_nodes
        if is_plain and len(self.scores) < SCORED_MAX and fact.key not in self.scores:
            self.scores[fact.key] = best_of(whatif.row(fact.roles[0]))


def best_of(row: FeasibilityRow, count: int = TOP) -> Scores:
    """Return {node: plugin -> value 0..100, and the total}, the best first, the first by name among equals."""
    row.refresh()
    totals = row.total
    if totals.size > count:
        least = np.partition(totals, totals.size - count)[totals.size - count]
        above, equal = np.flatnonzero(totals > least), np.flatnonzero(totals == least)
        chosen = np.concatenate([above, equal[: count - above.size]])
    else:
        chosen = np.arange(totals.size)
    ordered = sorted(chosen.tolist(), key=lambda node: (-int(totals[node]), node))
    nodes = [node for node in ordered if totals[node] != INFEASIBLE]
    scores = row.scores_by_node(nodes)
    names = row.usage.table.names
    return {names[node]: {TOTAL: int(totals[node]), **scores[names[node]]} for node in nodes}
