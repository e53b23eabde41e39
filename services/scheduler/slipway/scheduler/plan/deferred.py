"""The admissions of a plan that cannot start at once: they need room that its evictions, or leaving work, must release.

Pure. How long a victim needs to leave is not known here. A simulation, in which evictions are instant, does not need
this.
"""

from collections.abc import Sequence

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state.committed_usage import book, charges_of, demand_of, is_over
from slipway.scheduler.plan.state.flavors import where_it_stands
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot


def deferred(
    snapshot: PoolSnapshot, tree: QueueTree, admits: Sequence[Admit], evictions: Sequence[Evict]
) -> frozenset[str]:
    """Return the uids of those `admits` that cannot start yet and become nominations.

    They need nodes, quota or slots that leaving work still uses. `tree` contains what is used now; it is changed.
    """
    evicted = {evict.uid for evict in evictions}
    usage, slots = snapshot.usage.copy(), dict(snapshot.slots)
    later: set[str] = set()
    for admit in admits:
        fact = snapshot.backlog.get(admit.uid)
        if admit.victims or admit.uid in evicted or fact is None:
            later.add(admit.uid)
            continue
        if snapshot.pool.flavors:
            fact = where_it_stands(fact, admit.placements, snapshot.table)
        charges = charges_of(fact, admit.placements, admit.devices)
        demand = demand_of(fact, admit.placements)
        book(usage, charges)
        short = tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
        if short is not None or is_over(usage, charges) or _exceeds(snapshot, slots, fact, demand.gpus()):
            book(usage, charges, -1)
            later.add(admit.uid)
            continue
        tree.take(fact.queue, demand.amounts, preemptible=fact.preemptible)
        if fact.job:
            job = (fact.namespace, fact.job)
            slots[job] = slots.get(job, 0) + demand.gpus()
    return frozenset(later)


def bundles(plan: Plan) -> list[frozenset[str]]:
    """Return sets of uids that must be applied together: evictions, and the admissions that need their room."""
    found: list[frozenset[str]] = []
    keys = {admit.allocation: admit.uid for admit in plan.admits}
    links = [frozenset((admit.uid, *admit.victims)) for admit in plan.admits if admit.victims]
    links += [frozenset((evict.uid, keys[evict.by])) for evict in plan.evictions if evict.by in keys]
    for link in links:
        joined = link.union(*(each for each in found if each & link))
        found = [*(each for each in found if not each & link), joined]
    return found


def _exceeds(snapshot: PoolSnapshot, slots: dict[tuple[str, str], int], fact: AllocationFact, asked: int) -> bool:
    """Whether `asked` more GPU slots would exceed the job's `maxSlots`."""
    job = snapshot.job_of(fact)
    used = slots.get((fact.namespace, fact.job), 0)
    return job is not None and job.max_slots is not None and asked > 0 and used + asked > job.max_slots
