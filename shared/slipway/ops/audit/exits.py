"""Checks of exits: recorded exits are those of the containers, and a missing event never causes a failure.

I20. Pure: evidence in, violations out.
"""

from collections.abc import Iterator, Mapping

from slipway.crd.meta import TRACKING_FINALIZER
from slipway.crd.v1alpha1 import RankStatus
from slipway.kube.objects import Pod
from slipway.model.exitcodes import is_start_interrupted
from slipway.model.lifecycle import RANK_ENDS, Phase
from slipway.model.reasons import Reason, Result
from slipway.ops.audit.evidence import AllocationVersion, AuditEvidence, InvariantViolation, PodVersion
from slipway.ops.audit.records import attempt_of, owner_of, rank_of

_OF_AN_EXIT = (Reason.RANK_FAILED, Reason.OUT_OF_MEMORY)
"""Reasons that require the exit of a container."""

_LOST = ("ContainerStatusUnknown", "Unknown")


def exits_are_true(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I20: recorded exit codes are the containers' own, and a pod's finalizer is removed only after its exit is
    recorded.
    """
    codes = {ran.pod_uid: ran.code for ran in evidence.runs}
    is_sure = bool(evidence.containers) and evidence.knows_every_end
    seen: dict[tuple[str, str], int] = {}
    for uid, history in evidence.allocations.items():
        for item in history:
            for rank in item.allocation.status.ranks or ():
                if rank.exit_code is None or (rank.pod_uid, uid) in seen:
                    continue
                seen[rank.pod_uid, uid] = item.version.number
                is_known = is_sure or codes.get(rank.pod_uid) is not None
                if is_known and codes.get(rank.pod_uid) != rank.exit_code:
                    yield _broken("I20", item, f"{rank.pod_uid} exited {codes.get(rank.pod_uid)}, not {rank.exit_code}")
    told_in: dict[str, int] = {}
    for change in evidence.pods:
        before, after = change.before, change.pod
        if _has_exit(after):
            told_in.setdefault(after.metadata.uid, change.version.number)
        if before is None or TRACKING_FINALIZER not in before.metadata.finalizers:
            continue
        is_dropped = change.version.is_deletion or TRACKING_FINALIZER not in after.metadata.finalizers
        if is_dropped and _has_exit(before) and not _is_recorded(evidence, before, change.version.number, told_in):
            message = (
                f"pod {before.metadata.name} lost its finalizer before its exit was recorded{_known(evidence, change)}"
            )
            yield InvariantViolation(
                invariant="I20", subject=owner_of(before), message=message, version=change.version.number
            )


def _has_exit(pod: Pod) -> bool:
    """Whether the exit of a container is known. A container that was lost with its node has none, nor has one whose
    start the node aborted.
    """
    ends = (status.state.terminated for status in pod.status.container_statuses)
    return any(
        end is not None and end.reason not in _LOST and not is_start_interrupted(end.reason, end.message)
        for end in ends
    )


def _is_recorded(evidence: AuditEvidence, pod: Pod, version: int, told_in: Mapping[str, int]) -> bool:
    """Whether the pod's end is on record before `version`.

    The record must have the exit code, unless it is older than the exit. A rank that was recorded as lost with its node
    stays so, even when the node later reports the code. This happens when a node comes back, or when a node was ordered
    to kill the pod and did so before it was lost. `told_in` is {uid of a pod: the version that first reported its
    exit}.
    """
    history = [item for item in evidence.allocations.get(owner_of(pod), []) if item.version.number < version]
    if not history or history[-1].version.is_deletion:
        return True
    attempt, uid = attempt_of(pod), pod.metadata.uid
    of_attempt = [item for item in history if item.allocation.status.attempt == attempt]
    if not of_attempt:
        return False
    last = _rank_of(of_attempt[-1], pod)
    if last is None or last.exit_code is not None:
        return last is not None
    earlier = (item for item in of_attempt if item.version.number < told_in.get(uid, 0))
    known = (_rank_of(item, pod) for item in earlier)
    return any(rank is not None and (rank.phase in RANK_ENDS or rank.reason == Reason.NODE_LOST) for rank in known)


def _known(evidence: AuditEvidence, change: PodVersion) -> str:
    """Return who removed the finalizer and the record at that moment. A violation that cannot be reproduced has to be
    understood from this text.
    """
    history = evidence.allocations.get(owner_of(change.pod), [])
    last = next((item for item in reversed(history) if item.version.number < change.version.number), None)
    by = f" by {change.version.writer}" if change.version.writer else ""
    if last is None:
        return by
    status, rank = last.allocation.status, rank_of(change.pod)
    known = (status.ranks or [])[rank : rank + 1]
    said = f"{known[0].phase} {known[0].reason}".rstrip() if known else "nothing"
    of = "" if known and known[0].pod_uid == change.pod.metadata.uid else " of another pod"
    return f"{by}: version {last.version.number}, {status.phase} of attempt {status.attempt}, has {said}{of}"


def _rank_of(item: AllocationVersion, pod: Pod) -> RankStatus | None:
    """Return the record of this pod; None when the rank has another pod."""
    rank, ranks = rank_of(pod), item.allocation.status.ranks or []
    return ranks[rank] if rank < len(ranks) and ranks[rank].pod_uid == pod.metadata.uid else None


def failures_have_an_exit(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I20: a failed allocation has a container that failed. A missing event is no failure."""
    for uid, history in evidence.allocations.items():
        end = history[-1].allocation.status
        if end.phase is not Phase.TERMINATED or end.result is not Result.FAILED or end.reason not in _OF_AN_EXIT:
            continue
        ended = [ran.code for ran in evidence.runs if ran.allocation_uid == uid and ran.attempt == end.attempt]
        recorded = [rank.exit_code for rank in end.ranks or () if rank.exit_code]
        is_unknown = (evidence.is_sampled or evidence.starts_late) and not evidence.containers
        if not recorded or not (is_unknown or any(code for code in ended)):
            yield _broken(
                "I20", history[-1], f"is recorded as failed ({end.reason}), but its containers ended with {ended}"
            )


def _broken(invariant: str, item: AllocationVersion, message: str) -> InvariantViolation:
    return InvariantViolation(
        invariant=invariant, subject=item.allocation.metadata.name, message=message, version=item.version.number
    )
