"""Checks of preemptions: each has a decision, a beneficiary and its full grace, and no other work is removed.

I21. Pure: evidence in, violations out. Changes that a user or an operator makes by hand have no decision and are left
out.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

from slipway.crd.members import pod_uids
from slipway.crd.transitions import leaving_ranks, ring_of
from slipway.crd.v1alpha1 import Allocation, ResourcePool, WireDecision
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason
from slipway.model.times import parse_time, stored_duration
from slipway.ops.audit.evidence import AllocationVersion, AuditEvidence, InvariantViolation
from slipway.ops.audit.gangs import lost_nodes
from slipway.ops.audit.records import attempt_of, owner_of, rank_of
from slipway.pods.ended import is_replaced, recorded

_EVICT, _NOMINATE = "evict", "nominate"
_SCHEDULER = "scheduler"
HOURLY_MAX = 3
_HOUR_S = 3_600.0
_SLACK_S = 0.001
"""Times have a resolution of milliseconds."""


def preemptions_are_decided(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I21: an allocation is ordered to make room only after a decision in a ledger that evicts it for another
    allocation.
    """
    decided = _evictions(evidence)
    for uid, history in evidence.allocations.items():
        for before, after in pairwise(history):
            if not after.version.writer.startswith(_SCHEDULER):
                continue
            for ranks, by in _told(before.allocation, after.allocation):
                attempt = after.allocation.status.attempt
                stood = [
                    (number, item)
                    for number, item in decided.get((uid, attempt), [])
                    if number < after.version.number and (not ranks or set(ranks) <= set(item.ranks))
                ]
                if not stood:
                    yield _broken(after, f"is preempted for {by or 'no allocation'}, without a decision in a ledger")
                elif not by:
                    yield _broken(after, "is preempted for no allocation")


def nobody_else_makes_room(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I21: in a running attempt, our services delete only the pods of ranks that must make room.

    Two kinds of pods are exceptions: pods on a lost node, and ended pods whose rank restarts with another pod.
    """
    lost = lost_nodes(evidence)
    for change in evidence.pods:
        pod, was = change.pod, change.before
        is_taken = change.version.is_deletion or pod.metadata.deletion_timestamp is not None
        if not is_taken or was is None or was.metadata.deletion_timestamp is not None or not change.version.writer:
            continue
        history = evidence.allocations.get(owner_of(pod), [])
        at = bisect_left(history, change.version.number, key=lambda item: item.version.number)
        if at == 0 or pod.spec.node_name in lost or not _goes_on(history[at - 1], attempt_of(pod)):
            continue
        if not was.spec.node_name and pod.metadata.uid not in pod_uids(history[at - 1].allocation):
            continue  # It was never released: a growth that could not use the pod deletes it.
        known = history[at - 1].allocation
        if pod.metadata.uid in recorded(known) and is_replaced(pod.metadata.uid, known):
            continue
        if rank_of(pod) not in leaving_ranks(history[at - 1].allocation):
            message = f"{change.version.writer} deletes rank {rank_of(pod)}, which was not preempted"
            yield InvariantViolation(
                invariant="I21", subject=pod.metadata.name, message=message, version=change.version.number
            )


def preemptions_have_a_beneficiary(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I21: an eviction for another allocation is added to the ledger together with the places reserved for it."""
    known: set[str] = set()
    for version, pool in evidence.pools:
        fresh = [item for item in pool.status.decisions if item.id not in known]
        known |= {item.id for item in fresh}
        for item in fresh:
            if item.kind == _EVICT and item.by and not _is_nominated(pool, item):
                message = f"{item.allocation} is evicted for {item.by}, for which no place is reserved"
                yield InvariantViolation(invariant="I21", subject=version.name, message=message, version=version.number)


def preemptions_have_their_grace(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I21: ranks that must make room run until they end by themselves, or until their grace is over."""
    for history in evidence.allocations.values():
        seen: set[int] = set()
        told: dict[int, float] = {}
        for item in history:
            deadline, grace, until = 0.0, item.allocation.spec.preemption_grace, 0.0
            for entry in ring_of(item.allocation):
                if entry.type is Event.PREEMPTING:
                    deadline = parse_time(str(entry.data.get("deadline") or entry.time))
                    if grace and entry.seq not in seen and deadline < parse_time(entry.time) + stored_duration(grace):
                        yield _broken(item, f"has until {entry.data.get('deadline')}, which is less than its grace")
                    seen.add(entry.seq)
                    until = told.setdefault(entry.seq, item.version.at) + deadline - parse_time(entry.time)
                is_end = entry.type is Event.TERMINATING and entry.seq not in seen
                is_early = parse_time(entry.time) < deadline - _SLACK_S
                # The clocks of the service that gives the notice and of the one that ends the ranks may differ. Our
                # clock is the same for both.
                is_early = is_early and item.version.at < until - _SLACK_S
                if is_end and entry.reason == Reason.PREEMPTION_GRACE and is_early:
                    yield _broken(item, f"is killed at {entry.time}, before its grace is over")
                if is_end:
                    seen.add(entry.seq)


def preemptions_are_rare(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I21: no allocation makes room more than three times within an hour."""
    for history in evidence.allocations.values():
        told = sorted(
            {(parse_time(each.at), each.by) for item in history for each in item.allocation.status.preemptions}
        )
        for (first, _), (last, _) in zip(told, told[HOURLY_MAX:], strict=False):
            if last - first < _HOUR_S:
                message = f"was preempted {HOURLY_MAX + 1} times in {last - first:.0f} s"
                yield _broken(history[-1], message)


def _goes_on(item: AllocationVersion, attempt: int) -> bool:
    """Whether the allocation is released in this attempt and is not terminating."""
    status = item.allocation.status
    is_released = status.release is not None and status.release.attempt == status.attempt == attempt
    return is_released and status.phase not in (Phase.TERMINATING, Phase.TERMINATED) and not item.version.is_deletion


def _evictions(evidence: AuditEvidence) -> dict[tuple[str, int], list[tuple[int, WireDecision]]]:
    found: dict[tuple[str, int], list[tuple[int, WireDecision]]] = {}
    for version, pool in evidence.pools:
        for item in pool.status.decisions:
            if item.kind == _EVICT:
                found.setdefault((item.uid, item.attempt), []).append((version.number, item))
    return found


def _told(before: Allocation, after: Allocation) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield (ranks, beneficiary) that this write orders to make room. Empty ranks mean the whole allocation."""
    old, new = before.status, after.status
    if new.stop is not None and new.stop.reason == Reason.PREEMPTED and new.stop != old.stop:
        yield (), new.stop.by
    if new.shrink is not None and new.shrink != old.shrink:
        known = (
            set(old.shrink.ranks) if old.shrink is not None and old.shrink.attempt == new.shrink.attempt else set[int]()
        )
        fresh = tuple(rank for rank in new.shrink.ranks if rank not in known)
        if fresh:
            yield fresh, new.shrink.by


def _is_nominated(pool: ResourcePool, evict: WireDecision) -> bool:
    return any(item.kind == _NOMINATE and item.allocation == evict.by for item in pool.status.decisions)


def _broken(item: AllocationVersion, message: str) -> InvariantViolation:
    return InvariantViolation(
        invariant="I21", subject=item.allocation.metadata.name, message=message, version=item.version.number
    )
