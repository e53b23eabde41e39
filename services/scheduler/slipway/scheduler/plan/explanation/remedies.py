"""The smallest unblocking change: what must be different so that one pending allocation starts.

The change is found per gate: release, wait, raise a quota, raise a job's slots, or free room on nodes. If freeing
cannot help, it is to uncordon nodes or to tolerate a taint. Then the change is checked: with it, the allocation must
pass quota, slots, ResourceQuotas and placement, and no other pending work may take the room first or get it reserved. A
change that fails the check is not offered. The check starts from the state after the plan, which includes the plan's
admissions.
"""

from collections.abc import Callable, Collection
from functools import partial

import msgspec

from slipway.model.facts import AllocationFact, JobFact
from slipway.model.reasons import Gate
from slipway.model.resources import GPU_MILLI, Resources, total
from slipway.scheduler.plan.explanation import node_remedies
from slipway.scheduler.plan.explanation.capacity_gap import amounts_to_free
from slipway.scheduler.plan.explanation.preempting_rivals import RivalCheck
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.explain import PLACE
from slipway.scheduler.plan.placement.filters.node_unschedulable import CORDON
from slipway.scheduler.plan.placement.tick_state import Ranks
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.queueing.flavor_choice import FlavorChoices
from slipway.scheduler.plan.queueing.namespace_quota import NamespaceQuotas
from slipway.scheduler.plan.queueing.queue_tree import ROOT, QueueTree
from slipway.scheduler.plan.state import gang_size
from slipway.scheduler.plan.state.flavors import flavored
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.plan_types import Remedy
from slipway.scheduler.plan.state.snapshot import Holding
from slipway.scheduler.plan.state.usage import NodeUsage
from slipway.scheduler.plan.state.windows import Windows

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
        if not self._may_use(fact, gang_size.smallest_demand(fact)):
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
        asked = (gang_size.smallest_demand(fact) if demand is None else demand).gpus()
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
    if makes_room and any(rival_check.would_take(rival, made.make, tree, made.within) for rival in rivals):
        return None
    if (makes_room or changes) and any(rival_check.would_keep(rival, _for_all(made), tree) for rival in rivals):
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


def _for_all(made: _NodeChange) -> Callable[[WhatIf], WhatIf]:
    return made.make if made.is_for_all else lambda nodes: nodes


def _by_freeing(whatif: WhatIf, fact: AllocationFact) -> _NodeChange | None:
    freed = amounts_to_free(whatif, fact)
    if freed is None:
        return None
    return _NodeChange(lambda nodes: WhatIf(_free(nodes.usage, freed), nodes.policy, nodes.plan_extenders), freed)


def _by_uncordoning(whatif: WhatIf, fact: AllocationFact) -> _NodeChange | None:
    found = node_remedies.uncordoned(whatif, fact)
    return None if found is None else _NodeChange(partial(node_remedies.tolerating, taint=CORDON), found[1], found[0])


def _by_tolerating(whatif: WhatIf, fact: AllocationFact) -> _NodeChange | None:
    found = node_remedies.tolerated(whatif, fact)
    if found is None:
        return None
    changes, taint = found
    return _NodeChange(
        partial(node_remedies.tolerating, taint=taint), changes, ~whatif.table.unschedulable, is_for_all=False
    )


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
    demand = gang_size.smallest_demand(fact).amounts
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
