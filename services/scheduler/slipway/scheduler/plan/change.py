"""The smallest unblocking change: what would have to be different for one waiting allocation to start.

Found per gate (release, wait, raise a quota, raise a job's slots, free room on nodes), then checked: with the change
made, it passes quota, slots and placement, and nothing that waits beside it would take the room first. What does not
pass the check is not offered. The state it starts from is the one after the plan: with what the plan admits in place.
"""

import msgspec

from slipway.model.facts import AllocationFact, JobFact
from slipway.model.reasons import Gate
from slipway.scheduler.plan import gang
from slipway.scheduler.plan.filters.node_resources_fit import spell
from slipway.scheduler.plan.outcome import Change
from slipway.scheduler.plan.quota import ROOT, QueueTree
from slipway.scheduler.plan.room import to_free
from slipway.scheduler.plan.usage import Usage
from slipway.scheduler.plan.whatif import WhatIf

RAISES_MAX = 8
RIVALS_MAX = 16

BY_ITSELF = {Gate.HELD, Gate.BACKOFF}
PLACE = {Gate.NO_FIT, Gate.TOPOLOGY_TOO_SMALL}
QUOTA = {Gate.WAITING_FOR_QUOTA, Gate.EXCEEDS_MAX_QUOTA, Gate.JOB_MAX_SLOTS}
CHANGEABLE = BY_ITSELF | PLACE | QUOTA


class Standing(msgspec.Struct):
    """Where an allocation stands: the state after the plan, or the same with a change made."""

    whatif: WhatIf
    tree: QueueTree
    slots: dict[tuple[str, str], int]
    jobs: dict[tuple[str, str], JobFact]

    def admits(self, fact: AllocationFact) -> bool:
        """Whether `fact` would start now. Leaves everything as it was."""
        demand = gang.smallest_demand(fact)
        if self.tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible) is not None:
            return False
        if self.missing_slots(fact) > 0:
            return False
        placed = gang.place(self.whatif, fact)
        if isinstance(placed, gang.Blocked):
            return False
        gang.withdraw(self.whatif, placed.parts)
        return True

    def missing_slots(self, fact: AllocationFact) -> int:
        """How many slots its job lacks for it."""
        key = (fact.namespace, fact.job)
        job = self.jobs.get(key)
        asked = gang.smallest_demand(fact).gpus()
        if job is None or job.max_slots is None or asked == 0:
            return 0
        return max(0, self.slots.get(key, 0) + asked - job.max_slots)


def smallest_change(
    standing: Standing, fact: AllocationFact, first: tuple[Change, ...], rivals: list[AllocationFact]
) -> tuple[Change, ...] | None:
    """The changes that together let `fact` start, beginning with `first` (what opens its own gate).

    `rivals` wait too and might take what the change gives.
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
        changes = (*changes, Change(kind="maxSlots", name=fact.job, slots=slots))
        jobs[key] = msgspec.structs.replace(jobs[key], max_slots=(jobs[key].max_slots or 0) + slots)
    freed = to_free(standing.whatif, fact)
    if freed is None:
        return None
    whatif = WhatIf(_free(standing.whatif.usage, freed), standing.whatif.policy)
    after = Standing(whatif, tree, standing.slots, jobs)
    if any(after.admits(rival) for rival in rivals) or not after.admits(fact):
        return None
    return (*first, *changes, *freed)


def _raise_quota(tree: QueueTree, fact: AllocationFact) -> tuple[QueueTree, tuple[Change, ...]] | None:
    """Raise bound after bound until the demand passes; None when a bound can not be raised."""
    demand = gang.smallest_demand(fact).amounts
    raised: dict[tuple[str, str], dict[str, int]] = {}
    for _ in range(RAISES_MAX):
        short = tree.shortfall(fact.queue, demand, preemptible=fact.preemptible)
        if short is None:
            changes = (Change(kind=kind, name=name, amounts=amounts) for (name, kind), amounts in raised.items())
            return tree, tuple(changes)
        if short.queue == ROOT:
            return None
        amounts = raised.setdefault((short.queue, short.kind), {})
        amounts[short.resource] = amounts.get(short.resource, 0) + short.short
        tree = tree.with_more(short)
    return None


def _free(usage: Usage, freed: tuple[Change, ...]) -> Usage:
    """A copy of `usage` with the changes' amounts given back."""
    copy = usage.copy()
    for change in freed:
        node = usage.table.index[change.node]
        for name, amount in change.amounts.items():
            copy.used[usage.table.row[name], node] -= amount
            copy.scored[usage.table.row[name], node] -= amount
    return copy


def in_words(changes: tuple[Change, ...]) -> str:
    """`needs 2 more nvidia.com/gpu on one node`; "" when nothing has to be freed."""
    sums: dict[str, int] = {}
    freed = [change for change in changes if change.kind == "free"]
    for change in freed:
        for name, amount in change.amounts.items():
            sums[name] = sums.get(name, 0) + amount
    if not sums:
        return ""
    what = " and ".join(spell(name, amount).replace(" ", " more ", 1) for name, amount in sorted(sums.items()))
    return f"needs {what} on {'one node' if len(freed) == 1 else f'{len(freed)} nodes'}"
