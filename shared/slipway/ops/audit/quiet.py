"""Checks of rest: the desired state is reached, then no service writes, and a restart of all services changes nothing.

I18, I25. Pure: evidence in, violations out.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from slipway.crd.meta import condition_of
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import PODS, AllocationVersion, AuditEvidence, InvariantViolation, Version
from slipway.ops.audit.gangs import grace_of

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


def nobody_writes_at_rest(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
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
