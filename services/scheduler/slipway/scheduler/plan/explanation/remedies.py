"""The smallest unblocking change: what must be different so that one pending allocation starts.

The change is found per gate: release, wait, raise a quota, raise a job's slots, or free room on nodes. If freeing
cannot help, it is to uncordon nodes or to tolerate a taint. Then the change is checked: with it, the allocation must
pass quota, slots, ResourceQuotas and placement, and no other pending work may take the room first or get it reserved. A
change that fails the check is not offered. The check starts from the state after the plan, which includes the plan's
admissions.

The least that must be freed, and where, is found by a greedy search. Ranks that have a place use it. Each other rank is
put on the node that it over-commits least (amounts as parts of the pool's total, summed). For a single rank the result
is the minimum. For a gang it is an upper bound, which is checked by placing the gang. Only nodes that pass every filter
except used amounts are considered, and never beyond allocatable.

When freeing room cannot help, a cordon or a taint is the remedy. Each is tried by a real placement, with one more
toleration in the pool's policy, and is offered only when the gang then has its places. Each cordoned node in the answer
is necessary.

Rivals might take what a change gives, by evicting or moving other work too, or by a reservation. `RivalCheck` looks at
the nodes as they would be for a rival if all work that it may evict or move had left. That is more than preemption
would evict, and it ignores shares. A rival that has its places on these nodes might take the room, and then the change
is not offered. Nothing here evicts or reserves.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, JobFact, QueueFact, Taint, Toleration
from slipway.model.reasons import Gate
from slipway.model.resources import GPU, GPU_MILLI, MILLI, Resources, total
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.explain import PLACE
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow
from slipway.scheduler.plan.placement.fill import fill
from slipway.scheduler.plan.placement.filters.node_unschedulable import CORDON
from slipway.scheduler.plan.placement.filters.taint_toleration import HARD
from slipway.scheduler.plan.placement.tick_state import Admitted, Ranks
from slipway.scheduler.plan.placement.topology import REQUIRED, common_key
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.preemption.reclaim_rule import NEVER
from slipway.scheduler.plan.preemption.victims import lowest_of
from slipway.scheduler.plan.queueing.admission_checks import NamespaceQuotas
from slipway.scheduler.plan.queueing.flavor_choice import FlavorChoices
from slipway.scheduler.plan.queueing.queue_tree import ROOT, QueueTree
from slipway.scheduler.plan.reservation import ChangedPool, Reservations
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.flavors import flavored
from slipway.scheduler.plan.state.nodes import EVERY, At, Bools, Ints
from slipway.scheduler.plan.state.pending import priority_of
from slipway.scheduler.plan.state.plan_types import Remedy
from slipway.scheduler.plan.state.rank_request import RankRequest, targets
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot
from slipway.scheduler.plan.state.usage import NodeUsage
from slipway.scheduler.plan.state.windows import Windows

RANKS_MAX = 64
DOMAINS_MAX = 32
_MILLION = 1_000_000
IMPOSSIBLE = 2**62


def amounts_to_free(whatif: WhatIf, allocation: AllocationFact) -> tuple[Remedy, ...] | None:
    """Return what to free for the smallest gang that may start; None when the gang is too large or freeing cannot help.

    Works on a copy of the usage.
    """
    if sum(targets(allocation)) > RANKS_MAX or len(whatif.table) == 0:
        return None
    key = common_key(allocation)
    if not key:
        return _to_free(whatif, allocation, None)[1]
    codes = whatif.table.label(key).codes
    found = [
        _to_free(whatif, allocation, codes == domain) for domain in np.unique(codes[codes >= 0]).tolist()[:DOMAINS_MAX]
    ]
    return min((each for each in found if each[1] is not None), key=lambda each: each[0], default=(0, None))[1]


def _to_free(whatif: WhatIf, allocation: AllocationFact, within: Bools | None) -> tuple[int, tuple[Remedy, ...] | None]:
    """Return (the over-committed amount, what to free) with all ranks on the nodes `within`."""
    trial = WhatIf(whatif.usage, whatif.policy)
    ours = np.zeros_like(trial.usage.used)
    costs = 0
    for role, want in zip(allocation.roles, targets(allocation), strict=True):
        row = trial.row(role)
        cost = _overcommit_role(row, ours, want, row.passed if within is None else row.passed & within)
        if cost is None:
            return 0, None
        costs += cost
    owed = {}
    if trial.usage.devices is not None and whatif.usage.devices is not None:
        owed = trial.usage.devices.beyond(whatif.usage.devices)
    return costs, _deficits(trial.usage, ours, owed)


def _overcommit_role(row: FeasibilityRow, ours: Ints, want: int, allowed: Bools) -> int | None:
    """Put `want` ranks on nodes, over-committing where necessary; a required topology uses the cheapest domain.

    Return the cost; None when the ranks cannot use these nodes at all.
    """
    topology = row.request.topology
    if topology is None or topology.mode != REQUIRED:
        return _overcommit(row, ours, want, allowed)
    column = row.usage.table.label(topology.key)
    best: tuple[int, int] | None = None
    for domain in range(min(len(column.values), DOMAINS_MAX)):
        placed = _overcommit(row, ours, want, allowed & (column.codes == domain), keep=False)
        if placed is not None and (best is None or placed < best[0]):
            best = (placed, domain)
    return None if best is None else _overcommit(row, ours, want, allowed & (column.codes == best[1]))


def _overcommit(row: FeasibilityRow, ours: Ints, want: int, allowed: Bools, *, keep: bool = True) -> int | None:
    """Return the cost of `want` ranks among `allowed`, None if they cannot use these nodes; taken when `keep`."""
    nodes: list[int] = []
    cost = 0
    for node in fill(row, want, allowed):
        _book(row, ours, node, 1)
        nodes.append(node)
    costs = _costs(row.request, row.usage, ours, allowed, EVERY) if len(nodes) < want else None
    while costs is not None and len(nodes) < want:
        node = int(costs.argmin())
        if costs[node] == IMPOSSIBLE:
            break
        cost += int(costs[node])
        _book(row, ours, node, 1)
        nodes.append(node)
        at = np.array([node], dtype=np.int64)
        costs[at] = _costs(row.request, row.usage, ours, allowed, at)
    is_enough = len(nodes) == want
    if not is_enough or not keep:
        for node in nodes:
            _book(row, ours, node, -1)
    return cost if is_enough else None


def _book(row: FeasibilityRow, ours: Ints, node: int, times: int) -> None:
    row.usage.take(row.request, [node], times)
    ours[row.request.step_rows, node] += row.request.step_amounts[:, 0] * times


def _costs(request: RankRequest, usage: NodeUsage, ours: Ints, allowed: Bools, at: At) -> Ints:
    """Return what one more rank would over-commit on each node of `at`, in millionths of the pool.

    IMPOSSIBLE where the rank cannot be placed.
    """
    table = usage.table
    possible = allowed[at].copy()
    costs = np.zeros(possible.shape, dtype=np.int64)
    if request.missing:
        possible[:] = False
    for row, amount in request.steps:
        allocatable = table.allocatable[row, at]
        possible &= ours[row, at] + amount <= allocatable
        over = usage.used[row, at] - allocatable
        more = np.maximum(over + amount, 0) - np.maximum(over, 0)
        whole = table.total.get(table.resources[row])
        if request.gpu_milli and usage.devices is not None and table.resources[row] == GPU_MILLI:
            # The node may have enough free in total, but one device must have it.
            more = np.maximum(amount - usage.devices.most_left(at), 0)
            whole = table.total.get(GPU) * MILLI
        costs += more * _MILLION // max(whole, 1)
    for port in request.host_ports:
        possible &= ~usage.is_port_taken(port, at)
    return np.where(possible, costs, IMPOSSIBLE)


def _deficits(usage: NodeUsage, ours: Ints, owed: dict[int, int]) -> tuple[Remedy, ...]:
    """Return how far each node of our ranks is over-committed in what we request; `owed`: the same for its devices."""
    table = usage.table
    over = np.where(ours > 0, np.maximum(usage.used - table.allocatable, 0), 0)
    if GPU_MILLI in table.row:
        over[table.row[GPU_MILLI]] = 0
        over[table.row[GPU_MILLI], list(owed)] = list(owed.values())
    changes: list[Remedy] = []
    for node in np.flatnonzero(over.any(axis=0)).tolist():
        rows = np.flatnonzero(over[:, node]).tolist()
        amounts = {table.resources[row]: int(over[row, node]) for row in rows}
        changes.append(Remedy(kind="free", node=table.names[node], amounts=amounts))
    return tuple(changes)


TAINTS_MAX = 8
"""The number of different taints that are tried."""
OF_NODES = "node.kubernetes.io/"
"""Taints that describe the condition of a node; they are never offered for toleration."""
NODES_MAX = 16
"""A change that uncordons more nodes than this is not offered as a small change."""


def uncordoned(whatif: WhatIf, fact: AllocationFact) -> tuple[Bools, tuple[Remedy, ...]] | None:
    """Return (nodes that may be used then, nodes to uncordon) for `fact`; None when uncordoning does not help."""
    table = whatif.table
    if table.is_clear:
        return None
    trial = tolerating(whatif, CORDON)
    allowed: Bools = np.ones(len(table), dtype=np.bool_)
    chosen = [node for node in _used(trial, fact, allowed) if table.unschedulable[node]]
    if not chosen or len(chosen) > NODES_MAX:
        return None
    allowed = ~table.unschedulable
    allowed[chosen] = True
    for node in sorted(chosen, reverse=True):
        allowed[node] = False
        if not _used(trial, fact, allowed):
            allowed[node] = True
    left = [node for node in sorted(chosen) if allowed[node]]
    return allowed, tuple(Remedy(kind="uncordon", node=table.names[node]) for node in left)


def tolerated(whatif: WhatIf, fact: AllocationFact) -> tuple[tuple[Remedy, ...], Taint] | None:
    """Return the one taint that `fact` would have to tolerate; None when no single toleration helps."""
    every_taint = (taint for taints in whatif.table.taint_sets for taint in taints)
    taints = {each for each in every_taint if each.effect in HARD and not each.key.startswith(OF_NODES)}
    every: Bools = ~whatif.table.unschedulable
    for taint in sorted(taints, key=lambda each: (each.key, each.value, each.effect))[:TAINTS_MAX]:
        if _used(tolerating(whatif, taint), fact, every):
            return (Remedy(kind="tolerate", name=f"{taint.key}={taint.value}:{taint.effect}"),), taint
    return None


def tolerating(whatif: WhatIf, taint: Taint) -> WhatIf:
    """Return a copy in which all work tolerates `taint`."""
    tolerations = (*whatif.policy.tolerations, _toleration(taint))
    return WhatIf(whatif.usage, msgspec.structs.replace(whatif.policy, tolerations=tolerations), whatif.plan_extenders)


def _toleration(taint: Taint) -> Toleration:
    return Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)


def _used(trial: WhatIf, fact: AllocationFact, allowed: Bools) -> list[int]:
    """Return the nodes on which `fact` is placed within `allowed`; empty when it has no place. Takes nothing."""
    placed = gang.place(trial, fact, allowed)
    if isinstance(placed, gang.PlacementFailure):
        return []
    gang.withdraw(trial, placed.parts)
    return sorted({node for part in placed.parts for node in part.nodes})


KEPT_MAX = 16


class RivalCheck:
    """Decides which pending work of a snapshot might take something; `whatif` is the state after the plan.

    `left_of` returns the ranks of a holding that `whatif` includes: the victims of the plan are removed already.
    """

    def __init__(
        self,
        snapshot: PoolSnapshot,
        whatif: WhatIf,
        left_of: Callable[[Holding], Ranks],
        admitted: Sequence[Admitted] = (),
        reservations: Reservations | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._whatif = whatif
        self._left_of = left_of
        self._admitted = [each for each in admitted if each.placed.allocation.preemptible]
        """preemptible gangs that this plan admits: the next plan may evict them"""
        self._reservations = reservations
        self._cleared: dict[tuple[str, int], WhatIf] = {}

    def would_take(self, rival: AllocationFact, changed: ChangedPool) -> bool:
        """Whether `rival` has its places in the `changed` pool, if all work that it may evict had left."""
        queue = changed.tree.queue(rival.queue)
        if queue is None or not self._may_evict(rival, queue):
            return False
        demand = rank_request.smallest_demand(rival).amounts
        short = changed.tree.shortfall(rival.queue, demand, preemptible=rival.preemptible)
        if short is not None and short.kind == "nominal":
            return False  # Preemptible work does not use this bound, so evicting it would not help.
        after = changed.make(self._without_evictable(rival, queue))
        placed = gang.place(after, rival, changed.within)
        return not isinstance(placed, gang.PlacementFailure)

    def would_keep(self, rival: AllocationFact, changed: ChangedPool) -> bool:
        """Whether `rival`, which has no reservation yet, would get one in the `changed` pool."""
        return self._reservations is not None and self._reservations.would_keep(rival, changed)

    def _may_evict(self, rival: AllocationFact, queue: QueueFact) -> bool:
        priority = self._priority(rival)
        lowest = dict(lowest_of(self._snapshot))
        for each in self._admitted:
            fact = each.placed.allocation
            lowest[fact.queue] = min(lowest.get(fact.queue, self._priority(fact)), self._priority(fact))
        if lowest.get(queue.name, priority + 1) <= priority:
            return True
        return queue.reclaim != NEVER and any(name != queue.name for name in lowest)

    def _without_evictable(self, rival: AllocationFact, queue: QueueFact) -> WhatIf:
        """Return the nodes without work of its own queue up to its priority, and without work that it might reclaim."""
        priority = self._priority(rival)
        key = (queue.name, priority)
        known = self._cleared.get(key)
        if known is None:
            if len(self._cleared) >= KEPT_MAX:
                self._cleared.clear()
            usage = self._whatif.usage.copy()
            for holding in self._snapshot.holdings.values():
                if self._is_evictable(holding.allocation, queue, priority):
                    for charge in (holding.charges[rank] for rank in self._left_of(holding)):
                        node = usage.table.index.get(charge.node)
                        if node is not None:
                            usage.charge(charge, node, -1)
            for each in self._admitted:
                if self._is_evictable(each.placed.allocation, queue, priority):
                    for part in each.placed.parts:
                        usage.take(part.row.request, part.nodes, -1)
            known = self._cleared[key] = WhatIf(usage, self._whatif.policy, self._whatif.plan_extenders)
        return known

    def _is_evictable(self, other: AllocationFact, queue: QueueFact, priority: int) -> bool:
        """Whether `other` might be evicted or moved for work of `priority` in `queue`."""
        is_own = other.queue == queue.name
        return other.preemptible and (self._priority(other) <= priority if is_own else queue.reclaim != NEVER)

    def _priority(self, fact: AllocationFact) -> int:
        return priority_of(fact, self._snapshot.job_of(fact))


RAISES_MAX = 8
RIVALS_MAX = 16

BY_ITSELF = {Gate.HELD, Gate.BACKOFF}
QUOTA = {Gate.WAITING_FOR_QUOTA, Gate.EXCEEDS_MAX_QUOTA, Gate.JOB_MAX_SLOTS}
CHANGEABLE = BY_ITSELF | PLACE | QUOTA


class RemedyState(msgspec.Struct):
    """The state in which an allocation is checked: the state after the plan, or that state with a change."""

    whatif: WhatIf
    tree: QueueTree
    slots: dict[tuple[str, str], int]
    jobs: dict[tuple[str, str], JobFact]
    use_on: Callable[[Collection[str]], list[tuple[AllocationFact, Resources]]]
    """returns what is used on the given nodes, which accept no work: (allocation, its use)"""
    left_of: Callable[[Holding], Ranks]
    """returns the ranks of a holding that `whatif` includes; the plan evicts the others, or has moved them"""
    within: Bools | None = None
    """the only nodes that may be used; None: all"""
    spaces: NamespaceQuotas | None = None
    """the ResourceQuotas of namespaces with their use; None: there are none"""
    flavors: FlavorChoices | None = None
    """the flavors in which pending work is tried; None: the pool has no flavors"""
    windows: Windows | None = None
    """the windows of the pool; None: there are none"""

    def admits(self, fact: AllocationFact) -> bool:
        """Whether `fact` would start now. Leaves everything as it was."""
        if not self._may_use(fact, rank_request.smallest_demand(fact)):
            return False
        placed = gang.place(self.whatif, fact, self.within)
        if isinstance(placed, gang.PlacementFailure):
            return False
        gang.withdraw(self.whatif, placed.parts)
        return placed.is_as_wanted or self._may_use(fact, placed.demand())

    def _may_use(self, fact: AllocationFact, demand: Resources) -> bool:
        short = self.tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
        if short is not None or self.missing_slots(fact, demand):
            return False
        return self.spaces is None or self.spaces.refusal(fact, demand) is None

    def missing_slots(self, fact: AllocationFact, demand: Resources | None = None) -> int:
        """Return how many slots its job lacks for `demand` (None: the demand of the smallest gang)."""
        key = (fact.namespace, fact.job)
        job = self.jobs.get(key)
        asked = (rank_request.smallest_demand(fact) if demand is None else demand).gpus()
        if job is None or job.max_slots is None or asked == 0:
            return 0
        return max(0, self.slots.get(key, 0) + asked - job.max_slots)


def smallest_change(
    standing: RemedyState,
    fact: AllocationFact,
    first: tuple[Remedy, ...],
    rivals: list[AllocationFact],
    rival_check: RivalCheck,
) -> tuple[Remedy, ...] | None:
    """Return the changes that together let `fact` start; `first` opens its own gate. None when there are none.

    `rivals` are pending work that might take what the change gives, also by evicting, which `rival_check` decides.
    """
    if len(rivals) > RIVALS_MAX:
        return None
    raised = _raise_quota(standing.tree, fact)
    if raised is None:
        return None
    tree, changes = raised
    slots = standing.missing_slots(fact)
    jobs = dict(standing.jobs)
    if slots:
        key = (fact.namespace, fact.job)
        changes = (*changes, Remedy(kind="maxSlots", name=fact.job, slots=slots))
        jobs[key] = msgspec.structs.replace(jobs[key], max_slots=(jobs[key].max_slots or 0) + slots)
    shorter = _by_ending(msgspec.structs.replace(standing, tree=tree, jobs=jobs), fact, rivals)
    if shorter is not None:
        return (*first, *changes, shorter)
    ways = (_by_freeing, _by_uncordoning, _by_tolerating)
    made = next((found for way in ways if (found := way(standing.whatif, fact)) is not None), None)
    if made is None:
        return None
    tree = _opened(standing, tree, made.changes)
    after = msgspec.structs.replace(
        standing, whatif=made.make(standing.whatif), tree=tree, jobs=jobs, within=made.within
    )
    theirs = after if made.is_for_all else msgspec.structs.replace(after, whatif=standing.whatif)
    if any(theirs.admits(rival) for rival in rivals) or not after.admits(fact):
        return None
    makes_room = bool(made.changes) and made.is_for_all
    changed = ChangedPool(made.make, tree, jobs, made.within)
    if makes_room and any(rival_check.would_take(rival, changed) for rival in rivals):
        return None
    if not made.is_for_all:
        changed = ChangedPool(_unchanged, tree, jobs)
    if (makes_room or changes) and any(rival_check.would_keep(rival, changed) for rival in rivals):
        return None
    return (*first, *changes, *made.changes)


def _by_ending(standing: RemedyState, fact: AllocationFact, rivals: list[AllocationFact]) -> Remedy | None:
    """Return the longest run limit with which `fact` ends before the windows that block it, and so starts now.

    None when no run limit helps, or when a rival would take the room.
    """
    windows = standing.windows
    if windows is None:
        return None
    for seconds, until in windows.limits_before(fact):
        if standing.admits(windows.with_closed(msgspec.structs.replace(fact, max_runtime=seconds))):
            is_taken = any(standing.admits(rival) for rival in rivals)
            return None if is_taken else Remedy(kind="maxRuntime", seconds=seconds, until=until)
    return None


class _NodeChange(msgspec.Struct, frozen=True):
    """A change of nodes; if it is not `is_for_all`, it helps only the allocation that it was made for."""

    make: Callable[[WhatIf], WhatIf]
    changes: tuple[Remedy, ...]
    within: Bools | None = None
    is_for_all: bool = True


def _unchanged(nodes: WhatIf) -> WhatIf:
    return nodes


def _by_freeing(whatif: WhatIf, fact: AllocationFact) -> _NodeChange | None:
    freed = amounts_to_free(whatif, fact)
    if freed is None:
        return None
    return _NodeChange(lambda nodes: WhatIf(_free(nodes.usage, freed), nodes.policy, nodes.plan_extenders), freed)


def _by_uncordoning(whatif: WhatIf, fact: AllocationFact) -> _NodeChange | None:
    found = uncordoned(whatif, fact)
    return None if found is None else _NodeChange(partial(tolerating, taint=CORDON), found[1], found[0])


def _by_tolerating(whatif: WhatIf, fact: AllocationFact) -> _NodeChange | None:
    found = tolerated(whatif, fact)
    if found is None:
        return None
    changes, taint = found
    return _NodeChange(partial(tolerating, taint=taint), changes, ~whatif.table.unschedulable, is_for_all=False)


def _opened(standing: RemedyState, tree: QueueTree, changes: tuple[Remedy, ...]) -> QueueTree:
    """Return the tree in which queues also share the nodes that `changes` uncordon."""
    nodes = {change.node for change in changes if change.kind == "uncordon"}
    if not nodes:
        return tree
    table = standing.whatif.table
    more = total(table.facts[table.index[node]].allocatable for node in sorted(nodes))
    opened = tree.with_open(more + flavored(table, nodes) if standing.flavors is not None else more)
    for fact, used in standing.use_on(nodes):
        less = {name: -amount for name, amount in used.amounts.items()}
        opened.take_stranded(fact.queue, less, preemptible=fact.preemptible)
    return opened


def _raise_quota(tree: QueueTree, fact: AllocationFact) -> tuple[QueueTree, tuple[Remedy, ...]] | None:
    """Raise bound after bound until the demand passes; None when a bound cannot be raised."""
    demand = rank_request.smallest_demand(fact).amounts
    raised: dict[tuple[str, str], dict[str, int]] = {}
    for _ in range(RAISES_MAX):
        short = tree.shortfall(fact.queue, demand, preemptible=fact.preemptible)
        if short is None:
            changes = (Remedy(kind=kind, name=name, amounts=amounts) for (name, kind), amounts in raised.items())
            return tree, tuple(changes)
        if short.queue == ROOT:
            return None
        amounts = raised.setdefault((short.queue, short.kind), {})
        amounts[short.resource] = amounts.get(short.resource, 0) + short.raise_by
        tree = tree.with_more(short)
    return None


def _free(usage: NodeUsage, freed: tuple[Remedy, ...]) -> NodeUsage:
    """Return a copy of `usage` from which the changes' amounts are removed."""
    copy = usage.copy()
    for change in freed:
        node = usage.table.index[change.node]
        for name, amount in change.amounts.items():
            copy.used[usage.table.row[name], node] -= amount
            copy.scored[usage.table.row[name], node] -= amount
            if name == GPU_MILLI and copy.devices is not None:
                copy.devices.free(node, amount)
    return copy
