"""Lint: the rules of every plan, checked on (snapshot, plan) alone before anything is committed.

Lint makes no choice; it computes the sums again. A bound that was exceeded before the plan (a node that shrank, a limit
that was lowered) is no violation, as long as the plan does not add to it. Work that is evicted for other work releases
its room.
"""

from enum import StrEnum

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.resources import GPU_SHARES, MILLI, Resources, total
from slipway.scheduler.plan.planner import queue_tree, windows_of
from slipway.scheduler.plan.preemption.consolidation import next_attempt
from slipway.scheduler.plan.preemption.eviction_budget import limits_of, made_by
from slipway.scheduler.plan.preemption.victims import role_index
from slipway.scheduler.plan.state.devices import Devices
from slipway.scheduler.plan.state.flavors import where_it_stands
from slipway.scheduler.plan.state.nodes import NodeTable
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Grow, Plan
from slipway.scheduler.plan.state.rank_request import quota_of, requests_of
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot
from slipway.scheduler.plan.state.usage import Charge


class PlanRule(StrEnum):
    """The rules that a plan must keep; each value says how a plan breaks the rule."""

    ATOMIC = "GangBelowMinimum"
    NODE = "NodeAboveAllocatable"
    QUOTA = "QuotaAboveBound"
    SLOTS = "JobAboveMaxSlots"
    DOUBLE = "DoubleBooked"
    STRANGE = "NotPending"
    VICTIM = "NotAVictim"
    DEVICE = "DeviceDoubleBooked"
    RATE = "EvictedTooOften"
    WINDOW = "RunsIntoWindow"


Gone = list[tuple[Holding, tuple[int, ...]]]
"""[(a holding that leaves, its leaving ranks)]"""


class PlanViolation(msgspec.Struct, frozen=True):
    """One broken rule."""

    rule: PlanRule
    subject: str
    message: str


def lint(snapshot: PoolSnapshot, plan: Plan) -> tuple[PlanViolation, ...]:
    """Return every rule that `plan` breaks; empty for a sound plan."""
    found: list[PlanViolation] = []
    admitted: list[tuple[Admit | Grow, AllocationFact]] = []
    seen: set[str] = set()
    moved = {evict.uid for evict in plan.evictions if not evict.ranks and evict.uid in snapshot.holdings}
    for admit in plan.admits:
        if admit.uid in moved and admit.uid not in seen:
            fact = next_attempt(snapshot.holdings[admit.uid].allocation)
        else:
            fact = snapshot.backlog.get(admit.uid)
        if fact is None or fact.attempt != admit.attempt or not fact.is_wanted or fact.hold or fact.waits_for:
            found.append(PlanViolation(PlanRule.STRANGE, admit.allocation, "admitted although it must not start"))
        elif admit.uid in seen or (admit.uid in snapshot.holdings and admit.uid not in moved):
            found.append(PlanViolation(PlanRule.DOUBLE, admit.allocation, "admitted although it has places"))
        else:
            seen.add(admit.uid)
            if snapshot.pool.flavors:
                fact = where_it_stands(fact, admit.placements, snapshot.table)
            admitted.append((admit, fact))
            found += _atomic(admit, fact)
    for grow in plan.grows:
        holding = snapshot.holdings.get(grow.uid)
        if holding is None or holding.allocation.attempt != grow.attempt or plan.evictions:
            found.append(
                PlanViolation(
                    PlanRule.STRANGE, grow.allocation, "grows although it does not run, or the plan evicts work"
                )
            )
            continue
        fact = holding.allocation
        if any(rank in holding.admitted or not 0 <= rank < fact.rank_count for rank in grow.placements):
            found.append(
                PlanViolation(
                    PlanRule.DOUBLE, grow.allocation, "grows by a rank that runs already, or that it does not have"
                )
            )
        admitted.append((grow, fact))
    found += _strange_evictions(snapshot, plan)
    gone = _gone(snapshot, plan)
    if gone:
        # An admission that is not deferred starts before any victim has left, so it must fit without their room.
        at_once = [(admit, fact) for admit, fact in admitted if admit.uid not in plan.deferred]
        found += (*_nodes(snapshot, at_once, []), *_quota(snapshot, at_once, []), *_slots(snapshot, at_once, []))
    return (
        *found,
        *_victims(snapshot, plan),
        *_too_often(snapshot, plan),
        *_nodes(snapshot, admitted, gone),
        *_quota(snapshot, admitted, gone),
        *_slots(snapshot, admitted, gone),
        *_windows(snapshot, admitted),
    )


def _windows(snapshot: PoolSnapshot, admitted: list[tuple[Admit | Grow, AllocationFact]]) -> list[PlanViolation]:
    """Return ranks on nodes that a window of the pool closes to them."""
    windows = windows_of(snapshot, snapshot.now) if admitted else None
    if windows is None:
        return []
    reserved, index = windows.nodes(), snapshot.table.index
    found: list[PlanViolation] = []
    for admit, fact in admitted:
        bound = windows.running_with_closed(fact) if isinstance(admit, Grow) else windows.with_closed(fact)
        for name in bound.roles[0].closed if bound.roles else ():
            nodes = [node for node in admit.placements.values() if node in index and reserved[name].nodes[index[node]]]
            if nodes:
                message = f"placed on {nodes[0]}, which is reserved for {reserved[name].owners}"
                found.append(PlanViolation(PlanRule.WINDOW, fact.key, message))
    return found


def _roles(admit: Admit | Grow, fact: AllocationFact) -> list[tuple[RoleFact, list[str]]]:
    """Return (role, nodes of its placed ranks) for each role."""
    result: list[tuple[RoleFact, list[str]]] = []
    base = 0
    for role in fact.roles:
        ranks = range(base, base + role.count)
        result.append((role, [admit.placements[rank] for rank in ranks if rank in admit.placements]))
        base += role.count
    return result


def _demand(admit: Admit | Grow, fact: AllocationFact) -> Resources:
    return total(quota_of(role) * len(nodes) for role, nodes in _roles(admit, fact))


def _atomic(admit: Admit, fact: AllocationFact) -> list[PlanViolation]:
    found: list[PlanViolation] = []
    strangers = [rank for rank in admit.placements if not 0 <= rank < fact.rank_count]
    if strangers:
        found.append(PlanViolation(PlanRule.DOUBLE, fact.key, f"it has no rank {strangers[0]}"))
    for role, nodes in _roles(admit, fact):
        if len(nodes) < role.minimum:
            found.append(
                PlanViolation(PlanRule.ATOMIC, fact.key, f"role {role.name}: {len(nodes)} of {role.minimum} ranks")
            )
    if len(admit.placements) < fact.minimum:
        found.append(PlanViolation(PlanRule.ATOMIC, fact.key, f"{len(admit.placements)} of {fact.minimum} ranks"))
    return found


def _strange_evictions(snapshot: PoolSnapshot, plan: Plan) -> list[PlanViolation]:
    uids = [evict.uid for evict in plan.evictions]
    found = [
        PlanViolation(PlanRule.STRANGE, evict.allocation, "evicted although it has no places")
        for evict in plan.evictions
        if evict.uid not in snapshot.holdings
    ]
    if len(set(uids)) != len(uids):
        found.append(PlanViolation(PlanRule.DOUBLE, "", "an allocation is evicted twice"))
    return found


def _too_often(snapshot: PoolSnapshot, plan: Plan) -> list[PlanViolation]:
    """Return evictions beyond what the limits of the pool and its queues permit."""
    limits, levels = limits_of(snapshot), {level.scope: level for level in snapshot.evicted}
    left = {scope: limit.left(levels.get(scope), snapshot.now) for scope, limit in limits.items()}
    made = made_by(snapshot, plan.evictions)
    return [
        PlanViolation(PlanRule.RATE, scope, f"{count} evictions, and its limit leaves {max(0, left[scope])}")
        for scope, count in sorted(made.items())
        if count > max(0, left[scope])
    ]


def _gone(snapshot: PoolSnapshot, plan: Plan) -> Gone:
    """Return the work whose room this plan may use.

    The result always includes the work that the plan evicts for other work. It includes the work that the plan evicts
    for other reasons if the plan places some of that work again. It includes the work that is leaving already if it
    includes any evicted work, or if an admission waits for victims.
    """
    found: Gone = []
    coming = {admit.uid for admit in plan.admits}
    is_again = any(evict.uid in coming for evict in plan.evictions if not evict.by)
    told = {evict.uid: evict for evict in plan.evictions if evict.by or is_again}
    for uid, evict in told.items():
        holding = snapshot.holdings.get(uid)
        if holding is not None:
            found.append(
                (holding, evict.ranks or tuple(rank for rank in holding.charges if rank not in holding.leaving))
            )
    if told or any(admit.victims for admit in plan.admits):
        found += [(holding, holding.leaving) for holding in snapshot.holdings.values() if holding.leaving]
    return found


def _victims(snapshot: PoolSnapshot, plan: Plan) -> list[PlanViolation]:
    """Check that victims are preemptible, that their preemptors start, and that a shrunk gang keeps its minimum."""
    found: list[PlanViolation] = []
    coming = {admit.allocation for admit in plan.admits}
    for evict in plan.evictions:
        holding = snapshot.holdings.get(evict.uid)
        if holding is None or not evict.by:
            continue
        if not holding.allocation.preemptible:
            found.append(PlanViolation(PlanRule.VICTIM, evict.allocation, "evicted although it cannot be preempted"))
        if evict.by not in coming:
            found.append(
                PlanViolation(PlanRule.VICTIM, evict.allocation, f"evicted for {evict.by}, which does not start")
            )
        if evict.ranks and not _goes_on(holding, evict):
            found.append(PlanViolation(PlanRule.ATOMIC, evict.allocation, "shrunk below its minimum"))
    return found


def _goes_on(holding: Holding, evict: Evict) -> bool:
    """Whether the remaining ranks are enough, for each role and in total."""
    fact = holding.allocation
    staying = [rank for rank in holding.charges if rank not in evict.ranks and rank not in holding.leaving]
    roles = [role_index(fact, rank) for rank in staying]
    is_enough = all(roles.count(index) >= role.minimum for index, role in enumerate(fact.roles))
    return is_enough and len(staying) >= fact.minimum and set(evict.ranks) <= holding.charges.keys()


def _nodes(
    snapshot: PoolSnapshot, admitted: list[tuple[Admit | Grow, AllocationFact]], gone: Gone
) -> list[PlanViolation]:
    """Check amounts and devices on a copy of the usage."""
    if not admitted:
        return []
    table, usage = snapshot.table, snapshot.usage.copy()
    for holding, ranks in gone:
        for rank in ranks:
            charge = holding.charges.get(rank)
            if charge is not None and charge.node in table.index:
                usage.charge(charge, table.index[charge.node], -1)
    before = usage.copy()
    found: list[PlanViolation] = []
    for admit, fact in admitted:
        for rank, node in admit.placements.items():
            role = fact.role_of(rank)
            if node not in table.index:
                found.append(PlanViolation(PlanRule.STRANGE, node, "the pool has no such node"))
            elif role is not None:
                charge = Charge(node=node, requests=requests_of(role), devices=admit.devices.get(rank, ()))
                usage.charge(charge, table.index[node])
                found += [
                    PlanViolation(PlanRule.NODE, node, f"{name}: no node has it")
                    for name in charge.requests.amounts
                    if name not in table.row and name != GPU_SHARES
                ]
    over = (usage.used > table.allocatable) & (usage.used > before.used)
    for row, at in np.argwhere(over).tolist():
        used, most = int(usage.used[row, at]), int(table.allocatable[row, at])
        found.append(PlanViolation(PlanRule.NODE, table.names[at], f"{table.resources[row]}: {used} used of {most}"))
    if usage.devices is not None and before.devices is not None:
        found += _devices(table, before.devices, usage.devices)
    return found


def _devices(table: NodeTable, before: Devices, after: Devices) -> list[PlanViolation]:
    """Check that no device is used beyond its capacity, and that the plan gives each GPU by its device number."""
    found = [
        PlanViolation(PlanRule.DEVICE, table.names[at], f"device {number}: {MILLI + beyond} thousandths used")
        for (number, at), beyond in sorted(after.over.items())
        if beyond > before.over.get((number, at), 0)
    ]
    unnamed: list[int] = np.flatnonzero(after.unknown > before.unknown).tolist()
    return [
        *found,
        *(PlanViolation(PlanRule.DEVICE, table.names[at], "GPUs given without their numbers") for at in unnamed),
    ]


def _quota(
    snapshot: PoolSnapshot, admitted: list[tuple[Admit | Grow, AllocationFact]], gone: Gone
) -> list[PlanViolation]:
    tree = queue_tree(snapshot)
    for holding, ranks in gone:
        fact = holding.allocation
        less = {name: -amount for name, amount in holding.used_by(ranks).amounts.items()}
        tree.take(fact.queue, less, preemptible=fact.preemptible)
    found: list[PlanViolation] = []
    for admit, fact in admitted:
        demand = _demand(admit, fact).amounts
        if tree.queue(fact.queue) is None:
            found.append(PlanViolation(PlanRule.QUOTA, fact.key, f"there is no queue {fact.queue}"))
            continue
        short = tree.shortfall(fact.queue, demand, preemptible=fact.preemptible)
        if short is not None:
            found.append(
                PlanViolation(PlanRule.QUOTA, short.queue, f"{short.short} {short.resource} above its {short.kind}")
            )
        tree.take(fact.queue, demand, preemptible=fact.preemptible)
    return found


def _slots(
    snapshot: PoolSnapshot, admitted: list[tuple[Admit | Grow, AllocationFact]], gone: Gone
) -> list[PlanViolation]:
    used = dict(snapshot.slots)
    for holding, ranks in gone:
        job = (holding.allocation.namespace, holding.allocation.job)
        used[job] = used.get(job, 0) - holding.used_by(ranks).gpus()
    found: list[PlanViolation] = []
    for admit, fact in admitted:
        job = snapshot.job_of(fact)
        slots = _demand(admit, fact).gpus()
        if job is None or job.max_slots is None or not slots:
            continue
        key = (fact.namespace, fact.job)
        used[key] = used.get(key, 0) + slots
        if used[key] > job.max_slots:
            found.append(PlanViolation(PlanRule.SLOTS, fact.job, f"{used[key]} slots in use, at most {job.max_slots}"))
    return found
