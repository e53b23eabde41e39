"""Checks of capacity: no node and no queue is given more than it has.

I10. Pure: evidence in, violations out. The limit of a queue includes the use of its descendants. The scheduler may
decide a moment after an edit of a queue that it has not seen yet. So a decision breaks a bound only when it breaks
every version of the bound from the last `KNOWN_S` before it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from slipway.crd.v1alpha1 import Queue
from slipway.facts.custom_resources import queue_fact
from slipway.model.facts import QueueFact
from slipway.model.mig import slices_in
from slipway.model.resources import GPU, GPU_MILLI, Resources, counted_gpus
from slipway.ops.audit.evidence import AuditEvidence, InvariantViolation, Version
from slipway.ops.audit.holds import ADMIT, NodeHoldings

KNOWN_S = 10.0
_DEPTH_MAX = 32

Amounts = dict[str, int]


class _QueueVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A queue from one version on. `fact` is None when the queue is deleted."""

    number: int
    at: float
    fact: QueueFact | None


class Quotas:
    """The history of all queues."""

    def __init__(self, queues: Iterable[tuple[Version, Queue]]) -> None:
        self._forms: dict[str, list[_QueueVersion]] = {}
        for version, queue in queues:
            fact = None if version.is_deletion else queue_fact(queue)
            self._forms.setdefault(version.name, []).append(
                _QueueVersion(number=version.number, at=version.at, fact=fact)
            )

    @property
    def is_bounded(self) -> bool:
        """Whether any queue ever had a limit."""
        return any(
            form.fact is not None and (form.fact.limit or form.fact.nominal or form.fact.borrowing_limit)
            for forms in self._forms.values()
            for form in forms
        )

    def broken_by(self, admitted: Sequence[str], holds: NodeHoldings, number: int) -> Iterator[tuple[str, str]]:
        """Yield (queue, message) of each broken bound above these allocations, to which a ledger has just given
        places.
        """
        facts = {name: found for name, forms in self._forms.items() if (found := self._at(forms, number)) is not None}
        used = _used(holds, facts)
        seen = set[str]()
        for uid in admitted:
            allocation = holds.allocation(uid)
            wants = _amounts(amount for owner, _, amount in holds.given() if owner == uid)
            line = _line(allocation.spec.queue, facts) if allocation is not None else []
            for name in line:
                if name not in seen:
                    seen.add(name)
                    yield from self._broken(name, facts, used.get(name, {}), wants, number)
                if facts[name].lending_limit is not None:
                    break

    def _broken(
        self, name: str, facts: Mapping[str, QueueFact], used: Amounts, wants: Amounts, number: int
    ) -> Iterator[tuple[str, str]]:
        for resource in sorted(wants):
            bounds = [_bound(name, form, facts, resource) for form in self._recent(name, number)]
            if wants[resource] and all(bound is not None and used.get(resource, 0) > bound for bound in bounds):
                most = max(bound for bound in bounds if bound is not None)
                yield name, f"{used[resource]} of {resource} are allocated; it may use {most}"

    def _recent(self, name: str, number: int) -> list[QueueFact | None]:
        """Return the versions of the queue that the scheduler may have used."""
        forms = [form for form in self._forms[name] if form.number < number]
        if not forms:
            return [None]
        until = [*(form.at for form in forms[1:]), float("inf")]
        return [form.fact for form, end in zip(forms, until, strict=True) if end > forms[-1].at - KNOWN_S]

    def _at(self, forms: Sequence[_QueueVersion], number: int) -> QueueFact | None:
        found = [form.fact for form in forms if form.number < number]
        return found[-1] if found else None


def _bound(name: str, fact: QueueFact | None, facts: Mapping[str, QueueFact], resource: str) -> int | None:
    """Return the most that `name` and its descendants may use; None when there is no limit."""
    if fact is None:
        return None
    found: list[int] = []
    if fact.limit is not None and resource in (limit := _bounds(fact.limit)):
        found.append(limit[resource])
    if fact.borrowing_limit is not None and resource in (borrowing := _bounds(fact.borrowing_limit)):
        below = [each for each in facts.values() if each.name != name and name in _line(each.name, facts)]
        own = [fact, *below]
        nominal = sum(_bounds(each.nominal).get(resource, 0) for each in own if each.nominal is not None)
        found.append(nominal + borrowing[resource])
    return min(found, default=None)


def _used(holds: NodeHoldings, facts: Mapping[str, QueueFact]) -> dict[str, Amounts]:
    """Return {queue: the amounts given to it and its descendants}."""
    found: dict[str, Amounts] = {}
    for uid, _, amount in holds.given():
        allocation = holds.allocation(uid)
        for name in _line(allocation.spec.queue, facts) if allocation is not None else ():
            into = found.setdefault(name, {})
            for resource, value in _counted(amount).items():
                into[resource] = into.get(resource, 0) + value
    return found


def _line(name: str, facts: Mapping[str, QueueFact]) -> list[str]:
    """Return the queue and its ancestors."""
    found: list[str] = []
    while name in facts and name not in found and len(found) < _DEPTH_MAX:
        found.append(name)
        name = facts[name].parent
    return found


def _amounts(parts: Iterable[Resources]) -> Amounts:
    found: Amounts = {}
    for part in parts:
        for resource, value in _counted(part).items():
            found[resource] = found.get(resource, 0) + value
    return found


def _bounds(amounts: Resources) -> Amounts:
    """Return a bound in units of quota. A bound on GPU slices limits only these slices."""
    slices = {name: amounts.get(name) for name in slices_in(amounts)}
    return {**_counted(Resources({name: amounts.get(name) for name in amounts if name not in slices})), **slices}


def _counted(amounts: Resources) -> Amounts:
    """Return amounts in units of quota: whole GPUs, parts and slices are summed in `GPU_UNITS` of GPUs."""
    found = {name: value for name, value in amounts.amounts.items() if name != GPU_MILLI}
    units = counted_gpus(amounts.amounts)
    return {**found, GPU: units} if units or GPU in found else found


def nothing_is_given_twice(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I10: at every version, the decided and admitted work fits each node, and so do the bound pods."""
    for holds, number, _ in _passing(evidence):
        if number <= evidence.listed_to or not holds.take_is_other():
            continue
        for node, message in holds.excess():
            yield InvariantViolation(invariant="I10", subject=node, message=message, version=number)


def quotas_hold(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I10: a ledger's new decisions fit the limits, quotas and borrowing limits of their queue and of its ancestors."""
    quotas = Quotas(evidence.queues)
    if not quotas.is_bounded:
        return
    known = set[str]()
    for holds, number, is_ledger in _passing(evidence):
        if not is_ledger:
            continue
        fresh = [item for pool in holds.pools.values() for item in pool.status.decisions if item.id not in known]
        known |= {item.id for item in fresh}
        admitted = [item.uid for item in fresh if item.kind == ADMIT]
        if admitted and number > evidence.listed_to:
            for queue, message in quotas.broken_by(admitted, holds, number):
                yield InvariantViolation(invariant="I10", subject=queue, message=message, version=number)


def _passing(evidence: AuditEvidence) -> Iterator[tuple[NodeHoldings, int, bool]]:
    """Yield (usage, version number, whether it is a version of a ledger) after each relevant version."""
    holds = NodeHoldings()
    pods = {change.version.number: change for change in evidence.pods}
    pools = {version.number: pool for version, pool in evidence.pools}
    nodes = {version.number: node for version, node in evidence.nodes}
    for version in evidence.versions:
        number = version.number
        if number in nodes:
            holds.take_node(version, nodes[number])
        elif number in pools:
            holds.take_pool(version, pools[number])
        elif number in evidence.decoded:
            holds.take_allocation(version, evidence.decoded[number].allocation)
        elif number in pods:
            holds.take_pod(version, pods[number].pod)
        else:
            continue
        yield holds, number, number in pools
