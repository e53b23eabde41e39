"""Lint: what every plan must keep, checked on (snapshot, plan) alone before anything is committed.

Owns no choice; it recounts. What was broken before the plan (a node that shrank, a limit that was lowered) is not the
plan's fault and is no violation, as long as the plan does not add to it.
"""

from enum import StrEnum

import msgspec

from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.resources import Resources, total
from slipway.scheduler.plan.ask import requests_of
from slipway.scheduler.plan.gates import is_wanted
from slipway.scheduler.plan.outcome import Admit, Plan
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.snapshot import Snapshot


class Broken(StrEnum):
    """The rules."""

    ATOMIC = "GangBelowMinimum"
    NODE = "NodeAboveAllocatable"
    QUOTA = "QuotaAboveBound"
    SLOTS = "JobAboveMaxSlots"
    DOUBLE = "DoubleBooked"
    STRANGE = "NotPending"


class Violation(msgspec.Struct, frozen=True):
    """One broken rule."""

    rule: Broken
    subject: str
    message: str


def lint(snapshot: Snapshot, plan: Plan) -> tuple[Violation, ...]:
    """Everything that `plan` breaks; empty for a sound plan."""
    pending = {fact.uid: fact for fact in snapshot.pending}
    found: list[Violation] = []
    admitted: list[tuple[Admit, AllocationFact]] = []
    seen: set[str] = set()
    for admit in plan.admits:
        fact = pending.get(admit.uid)
        if fact is None or fact.attempt != admit.attempt or fact.hold or not is_wanted(fact):
            found.append(Violation(Broken.STRANGE, admit.allocation, "admitted although it is not to be started"))
        elif admit.uid in seen or admit.uid in snapshot.holdings:
            found.append(Violation(Broken.DOUBLE, admit.allocation, "admitted although it has places"))
        else:
            seen.add(admit.uid)
            admitted.append((admit, fact))
            found += _atomic(admit, fact)
    found += _strange_evictions(snapshot, plan)
    return (*found, *_nodes(snapshot, admitted), *_quota(snapshot, admitted), *_slots(snapshot, admitted))


def _roles(admit: Admit, fact: AllocationFact) -> list[tuple[RoleFact, list[str]]]:
    """(role, nodes of its placed ranks)."""
    result: list[tuple[RoleFact, list[str]]] = []
    base = 0
    for role in fact.roles:
        ranks = range(base, base + role.count)
        result.append((role, [admit.placements[rank] for rank in ranks if rank in admit.placements]))
        base += role.count
    return result


def _demand(admit: Admit, fact: AllocationFact) -> Resources:
    return total(requests_of(role) * len(nodes) for role, nodes in _roles(admit, fact))


def _atomic(admit: Admit, fact: AllocationFact) -> list[Violation]:
    found: list[Violation] = []
    strangers = [rank for rank in admit.placements if not 0 <= rank < fact.rank_count]
    if strangers:
        found.append(Violation(Broken.DOUBLE, fact.key, f"it has no rank {strangers[0]}"))
    for role, nodes in _roles(admit, fact):
        if len(nodes) < role.minimum:
            found.append(Violation(Broken.ATOMIC, fact.key, f"role {role.name}: {len(nodes)} of {role.minimum} ranks"))
    if len(admit.placements) < fact.minimum:
        found.append(Violation(Broken.ATOMIC, fact.key, f"{len(admit.placements)} of {fact.minimum} ranks"))
    return found


def _strange_evictions(snapshot: Snapshot, plan: Plan) -> list[Violation]:
    uids = [evict.uid for evict in plan.evictions]
    found = [
        Violation(Broken.STRANGE, evict.allocation, "evicted although it has no places")
        for evict in plan.evictions
        if evict.uid not in snapshot.holdings
    ]
    if len(set(uids)) != len(uids):
        found.append(Violation(Broken.DOUBLE, "", "an allocation is evicted twice"))
    return found


def _nodes(snapshot: Snapshot, admitted: list[tuple[Admit, AllocationFact]]) -> list[Violation]:
    added: dict[str, dict[str, int]] = {}
    found: list[Violation] = []
    for admit, fact in admitted:
        for role, nodes in _roles(admit, fact):
            for node in nodes:
                sums = added.setdefault(node, {})
                for name, amount in requests_of(role).amounts.items():
                    sums[name] = sums.get(name, 0) + amount
    table, usage = snapshot.table, snapshot.usage
    for node, sums in added.items():
        at = table.index.get(node)
        if at is None:
            found.append(Violation(Broken.STRANGE, node, "the pool has no such node"))
            continue
        for name, amount in sums.items():
            row = table.row.get(name)
            free = 0 if row is None else int(table.allocatable[row, at] - usage.used[row, at])
            if amount > free:
                found.append(Violation(Broken.NODE, node, f"{name}: {amount} placed, {free} free"))
    return found


def _quota(snapshot: Snapshot, admitted: list[tuple[Admit, AllocationFact]]) -> list[Violation]:
    tree = queue_tree(snapshot)
    found: list[Violation] = []
    for admit, fact in admitted:
        demand = _demand(admit, fact).amounts
        if tree.queue(fact.queue) is None:
            found.append(Violation(Broken.QUOTA, fact.key, f"there is no queue {fact.queue}"))
            continue
        short = tree.shortfall(fact.queue, demand, preemptible=fact.preemptible)
        if short is not None:
            found.append(Violation(Broken.QUOTA, short.queue, f"{short.short} {short.resource} above its {short.kind}"))
        tree.take(fact.queue, demand, preemptible=fact.preemptible)
    return found


def _slots(snapshot: Snapshot, admitted: list[tuple[Admit, AllocationFact]]) -> list[Violation]:
    used = dict(snapshot.slots)
    found: list[Violation] = []
    for admit, fact in admitted:
        job = snapshot.job_of(fact)
        slots = _demand(admit, fact).gpus()
        if job is None or job.max_slots is None or not slots:
            continue
        key = (fact.namespace, fact.job)
        used[key] = used.get(key, 0) + slots
        if used[key] > job.max_slots:
            found.append(Violation(Broken.SLOTS, fact.job, f"{used[key]} slots in use, at most {job.max_slots}"))
    return found
