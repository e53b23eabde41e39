"""Checks of the end, at rest: gangs run completely or not at all, and nothing is left over.

I6, I11. Pure: evidence in, violations out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, TEARDOWN_FINALIZER
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import (
    CONFIG_MAPS,
    PODS,
    SERVICES,
    AuditEvidence,
    InvariantViolation,
    PodVersion,
    Version,
)
from slipway.ops.audit.gangs import is_live
from slipway.ops.audit.labels import attempt_of, owner_of

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
