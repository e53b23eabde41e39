"""Checks of a system at rest. Pure: evidence in, violations out.

- I6, I11: gangs run completely or not at all, and nothing is left over.
- I18, I25: the desired state is reached, then no service writes, and a restart of all services changes nothing.
- I26: the daily totals contain each ended allocation once, to the millisecond.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from slipway.accounting.daily_totals import LABEL_USAGE, Key, bills_of, decode, name_of
from slipway.accounting.usage import sum_of
from slipway.crd.figures import DayTotals, DayUsage, TotalsRow
from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, TEARDOWN_FINALIZER, condition_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import (
    CONFIG_MAPS,
    PODS,
    SERVICES,
    AllocationVersion,
    AuditEvidence,
    InvariantViolation,
    PodVersion,
    Version,
)
from slipway.ops.audit.gangs import grace_of, is_live
from slipway.ops.audit.records import attempt_of, owner_of

OURS = (PODS, CONFIG_MAPS, SERVICES)


def gangs_are_whole(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I6: at rest, an allocation runs no rank, or at least the minimum of each role and of all roles together."""
    present: dict[str, dict[int, bool]] = {}
    for ran in evidence.runs:
        # A rank that ended with success is counted as present.
        if ran.ended_at is None or ran.code == 0:
            history = evidence.allocations.get(ran.allocation_uid, [])
            if history and ran.attempt == history[-1].allocation.status.attempt:
                ranks = present.setdefault(ran.allocation_uid, {})
                ranks[ran.rank] = ranks.get(ran.rank, False) or ran.ended_at is None
    for uid, ranks in present.items():
        end = evidence.allocations[uid][-1]
        if not any(ranks.values()) or not evidence.is_settled(end.version):
            continue
        for who, count, minimum in _short(end.allocation, set(ranks)):
            message = f"{count} ranks {who}run at rest; its minimum is {minimum}"
            yield InvariantViolation(invariant="I6", subject=end.allocation.metadata.name, message=message)


def lost_ranks_end_their_attempt(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I6: at rest, no pod of an earlier attempt is still bound and alive."""
    for change in _last_pods(evidence):
        pod, history = change.pod, evidence.allocations.get(owner_of(change.pod), [])
        if not history or change.version.is_deletion or not is_live(pod):
            continue
        end = history[-1]
        if attempt_of(pod) < end.allocation.status.attempt and evidence.is_settled(end.version):
            message = (
                f"{pod.metadata.name} of attempt {attempt_of(pod)} is alive in attempt {end.allocation.status.attempt}"
            )
            yield InvariantViolation(invariant="I6", subject=end.allocation.metadata.name, message=message)


def nothing_leaks(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I11: at rest, every object of ours belongs to the current attempt of a live allocation, and no finalizer is
    left.
    """
    ends = [history[-1] for history in evidence.allocations.values()]
    owners = [end.allocation for end in ends if not end.version.is_deletion]
    recent = {end.version.uid for end in ends if not evidence.is_settled(end.version)}
    objects = [
        (key[0], version.obj["metadata"])
        for key, version in evidence.last(OURS).items()
        if evidence.is_settled(version) and _owner(version) not in recent
    ]
    owners = [owner for owner in owners if evidence.is_at_rest or owner.metadata.uid not in recent]
    for name, message in leftovers(owners, objects):
        yield InvariantViolation(invariant="I11", subject=name, message=message)


def leftovers(
    allocations: Iterable[Allocation], objects: Iterable[tuple[str, Mapping[str, Any]]]
) -> Iterator[tuple[str, str]]:
    """Yield (name, reason) of everything that should be gone. `objects` are (resource, metadata) of existing objects of
    `OURS`.
    """
    owners = {allocation.metadata.uid: allocation for allocation in allocations}
    for owner in owners.values():
        if TEARDOWN_FINALIZER in owner.metadata.finalizers and owner.status.phase is Phase.TERMINATED:
            yield owner.metadata.name, "has ended and still carries its finalizer"
    for resource, meta in objects:
        labels: Mapping[str, Any] = meta.get("labels", {})
        uid, attempt, name = labels.get(LABEL_ALLOCATION_UID), labels.get(LABEL_ATTEMPT), str(meta["name"])
        if uid is None:
            continue
        owner = owners.get(uid)
        if owner is None:
            yield name, f"{resource} without an allocation"
        elif owner.status.phase is Phase.TERMINATED:
            yield name, f"{resource} of an allocation that has ended"
        elif attempt != str(owner.status.attempt):
            yield name, f"{resource} of attempt {attempt}; the current attempt is {owner.status.attempt}"


def _owner(version: Version) -> str:
    labels: Mapping[str, str] = version.obj["metadata"].get("labels") or {}
    return labels.get(LABEL_ALLOCATION_UID, "")


def _last_pods(evidence: AuditEvidence) -> Iterable[PodVersion]:
    return {change.pod.metadata.uid: change for change in evidence.pods}.values()


def _short(allocation: Allocation, ranks: set[int]) -> Iterator[tuple[str, int, int]]:
    """Yield (role text, count, minimum) of each minimum that is not reached."""
    spec, first, total = allocation.spec, 0, 0
    for role in spec.ranks:
        count = len(ranks & set(range(first, first + role.count)))
        first += role.count
        default = 0 if spec.min_available is not None else role.count
        minimum = default if role.min_available is None else role.min_available
        total += minimum
        if count < minimum:
            yield f"of role {role.name} ", count, minimum
    least = spec.min_available if spec.min_available is not None else total or 1
    if len(ranks) < least:
        yield "", len(ranks), least


LEASES = "leases"
_SAID_MAX = 3


def everything_is_as_desired(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I18: a while after the last change and the last fault, no allocation is in an intermediate state, and stopped
    ones have ended.
    """
    for history in evidence.allocations.values():
        end = history[-1]
        if end.version.is_deletion or not evidence.is_settled(end.version):
            continue
        phase, status = end.allocation.status.phase, end.allocation.status
        if condition_of(status.conditions, "Stuck") is not None:
            continue
        waited = evidence.end_at - max(end.version.at, evidence.last_fault_at or 0.0)
        if _is_to_stop(end) and phase is not Phase.TERMINATED and _is_overdue(evidence, end, waited):
            yield _broken(end, f"must stop, but is still {phase}")
        elif phase is Phase.ASSIGNED and status.release is None:
            yield _broken(end, "is placed but not launched")
        elif phase is Phase.TERMINATING and _is_overdue(evidence, end, waited):
            yield _broken(end, "does not end")


def no_service_writes_at_rest(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I18: when no work is left, no service writes anything but leases."""
    said = 0
    for version in evidence.versions:
        since = evidence.rest_from
        if since is None or version.at <= since or not version.writer or version.resource.startswith(LEASES):
            continue
        said += 1
        if said <= _SAID_MAX:
            message = f"{version.writer} writes {version.resource} at rest"
            yield InvariantViolation(invariant="I18", subject=version.name, message=message, version=version.number)


def restarts_change_nothing(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I25: while all services restart and no workload changes, no pod is written and no phase changes."""
    for span in evidence.restarts:
        for version in evidence.of(PODS):
            if span.begun_at <= version.at <= span.ended_at and _is_ours(version, evidence):
                yield InvariantViolation(
                    invariant="I25", subject=version.name, message="a restart writes a pod", version=version.number
                )
        for history in evidence.allocations.values():
            for before, after in pairwise(history):
                old, new = before.allocation.status, after.allocation.status
                is_within = span.begun_at <= after.version.at <= span.ended_at
                if is_within and (old.phase, old.attempt) != (new.phase, new.attempt):
                    yield _broken(
                        after, f"a restart changes its phase from {old.phase} to {new.phase}", invariant="I25"
                    )


def _is_to_stop(item: AllocationVersion) -> bool:
    return item.allocation.spec.desired == "Stopped" or item.allocation.metadata.deletion_timestamp is not None


def _is_overdue(evidence: AuditEvidence, item: AllocationVersion, waited_s: float) -> bool:
    return evidence.is_at_rest or waited_s > grace_of(evidence, item.allocation.metadata.uid)


def _is_ours(version: Version, evidence: AuditEvidence) -> bool:
    """Whether one of our services wrote this version of a pod: by its writer, or by the fields that changed."""
    if evidence.has_writers:
        return bool(version.writer)
    return version.before is None or version.is_deletion or _ours(version.obj) != _ours(version.before)


def _ours(pod: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the fields that a node never writes."""
    meta = pod["metadata"]
    return (
        pod.get("spec"),
        meta.get("labels"),
        meta.get("annotations"),
        meta.get("finalizers"),
        meta.get("deletionTimestamp"),
    )


def _broken(item: AllocationVersion, message: str, *, invariant: str = "I18") -> InvariantViolation:
    return InvariantViolation(
        invariant=invariant, subject=item.allocation.metadata.name, message=message, version=item.version.number
    )


Sums = dict[tuple[str, Key], tuple[DayUsage, int]]
"""{(day, key of a totals row): (usage, number of ended allocations)}."""


def usage_is_exact(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I26: the totals are the sum of all finished allocations: nothing is missing, nothing is counted twice."""
    expected, found = _expected(evidence), _found(evidence)
    for key in sorted(expected.keys() | found.keys()):
        if expected.get(key) != found.get(key):
            day, whose = key
            message = f"{day}: the totals say {found.get(key)}, but the allocations say {expected.get(key)}"
            yield InvariantViolation(invariant="I26", subject="/".join(whose), message=message)


def was_released(history: list[Allocation]) -> bool:
    """Whether the allocation ended and had the last finalizer, which is removed now."""
    last = history[-1]
    had_it = any(TEARDOWN_FINALIZER in each.metadata.finalizers for each in history)
    return had_it and last.status.phase is Phase.TERMINATED and TEARDOWN_FINALIZER not in last.metadata.finalizers


def _expected(evidence: AuditEvidence) -> Sums:
    sums: Sums = {}
    for versions in evidence.allocations.values():
        history = [each.allocation for each in versions]
        if versions[-1].version.is_deletion:
            # Its last state still shows the finalizer, because removing the finalizer was the deletion.
            history[-1] = _unheld(history[-1])
        if not was_released(history):
            continue
        for day, bill in bills_of(history[-1]).items():
            usage, ended = sums.get((day, bill.key), (DayUsage(), 0))
            sums[day, bill.key] = (sum_of([usage, bill.usage]), ended + bill.ended)
    return sums


def _unheld(allocation: Allocation) -> Allocation:
    meta = msgspec.structs.replace(allocation.metadata, finalizers=[])
    return msgspec.structs.replace(allocation, metadata=meta)


def _found(evidence: AuditEvidence) -> Sums:
    sums: Sums = {}
    for version in evidence.last((CONFIG_MAPS,)).values():
        if LABEL_USAGE not in version.obj["metadata"].get("labels", {}):
            continue
        day = version.name.removeprefix(name_of(""))
        totals: DayTotals = decode(version.obj.get("data", {}))
        for row in totals.rows:
            sums[day, _key_of(row)] = (sum_of([row]), row.ended)
    return sums


def _key_of(row: TotalsRow) -> Key:
    return row.workspace, row.user, row.pool, row.queue, row.kind
