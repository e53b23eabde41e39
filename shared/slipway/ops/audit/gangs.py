"""Checks of pods: one live pod per rank, no binding before the release, no pod outlives its allocation.

I3, I4, I5, I12. Pure: evidence in, violations out.
"""

from collections.abc import Iterable, Iterator

from slipway.crd.members import growth_of, members, pod_uids
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import AllocationVersion, AuditEvidence, InvariantViolation, PodVersion
from slipway.ops.audit.records import attempt_of, owner_of, rank_of
from slipway.pods.podspec import SCHEDULER_NAME

ORPHAN_RUN_S = 30.0
"""Seconds that a container may run after the end of its allocation, in addition to its grace."""
DEFAULT_GRACE_S = 30.0
_FINISHED = ("Succeeded", "Failed")


def one_live_pod_per_rank(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I3: at every version, a rank has at most one bound, live pod, over all attempts."""
    live: dict[tuple[str, int], set[str]] = {}
    for change in _last_of(evidence.pods) if evidence.is_sampled else evidence.pods:
        pod = change.pod
        if not owner_of(pod):
            continue
        pods = live.setdefault((owner_of(pod), rank_of(pod)), set())
        if change.version.is_deletion or not is_live(pod):
            pods.discard(pod.metadata.uid)
            continue
        pods.add(pod.metadata.uid)
        if len(pods) > 1:
            yield _broken("I3", change, f"rank {rank_of(pod)} has {len(pods)} live pods: {sorted(pods)}")


def one_start_per_attempt(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I4: at most one pod of (allocation, rank, attempt) ever starts a container. A rank that made room and was added
    again has one more for each growth that names its pod. A failed rank has one more for each counted restart.
    """
    growths = (item.allocation.status.growth for history in evidence.allocations.values() for item in history)
    added = {uid for growth in growths if growth is not None for uid in growth.pod_uids}
    added |= {
        each.pod_uid
        for history in evidence.allocations.values()
        for item in history
        for each in item.allocation.status.restarted_ranks
    }
    started: dict[tuple[str, int, int], set[str]] = {}
    for ran in evidence.runs:
        pods = started.setdefault((ran.allocation_uid, ran.attempt, ran.rank), set())
        pods.add(ran.pod_uid)
        if len(pods - added) > 1:
            message = f"attempt {ran.attempt} of rank {ran.rank} started {len(pods)} times"
            yield InvariantViolation(invariant="I4", subject=ran.allocation_uid, message=message)


def release_before_bind(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I5: a pod is bound only under a committed release that lists its uid and was made when all N pods existed.

    A pod that another client deleted is treated as existing, because the pod worker cannot know of the delete at that
    moment.
    """
    known: dict[str, set[str]] = {}
    taken: set[str] = set()
    allocations: dict[str, Allocation] = {}
    pods = {change.version.number: change for change in evidence.pods}
    for version in evidence.versions:
        item, change = evidence.decoded.get(version.number), pods.get(version.number)
        if item is not None and version.number <= evidence.listed_to:
            allocations[version.uid] = item.allocation
        elif item is not None:
            before = allocations.get(version.uid)
            allocations[version.uid] = item.allocation
            yield from _release(item, before, known.get(version.uid, set()))
            yield from _growth(item, before, known.get(version.uid, set()))
            yield from _rank_restarts(item, before, known.get(version.uid, set()))
        if change is None or not owner_of(change.pod):
            continue
        uids = known.setdefault(owner_of(change.pod), set())
        uids.add(change.pod.metadata.uid)
        if _is_taken_away(change, evidence):
            taken.add(change.pod.metadata.uid)
        if change.version.is_deletion and change.pod.metadata.uid not in taken:
            uids.discard(change.pod.metadata.uid)
        was_bound = change.before is not None and change.before.spec.node_name
        is_fresh = change.pod.spec.node_name and not was_bound and version.number > evidence.listed_to
        if is_fresh and not _is_strangers(change, evidence):
            yield from _binding(change, allocations.get(owner_of(change.pod)))


def nothing_outlives_its_end(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I12: no container runs longer than its grace (and a little) after its allocation ended or was deleted."""
    graces = graces_of(evidence)
    for ran in evidence.runs:
        history = evidence.allocations.get(ran.allocation_uid, [])
        over = next((item for item in history if _is_over(item, ran.attempt)), None)
        if over is None:
            continue
        ended_at = ran.ended_at if ran.ended_at is not None else evidence.end_at
        if ended_at > over.version.at + graces.get(ran.pod_uid, DEFAULT_GRACE_S) + ORPHAN_RUN_S:
            message = f"rank {ran.rank} of attempt {ran.attempt} runs {ended_at - over.version.at:.0f} s longer than it"
            yield InvariantViolation(invariant="I12", subject=over.allocation.metadata.name, message=message)


def what_is_deleted_has_its_grace(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I12: a running pod that a service deletes keeps its full grace period, unless its node is lost."""
    lost = lost_nodes(evidence)
    for change in evidence.pods:
        before, pod = change.before, change.pod
        is_told = pod.metadata.deletion_timestamp is not None and owner_of(pod) and change.version.writer
        if before is None or before.metadata.deletion_timestamp is not None or not is_told:
            continue
        wanted = pod.spec.termination_grace_period_seconds
        given = pod.metadata.deletion_grace_period_seconds or 0
        is_running = before.status.phase == "Running" and pod.spec.node_name not in lost
        if is_running and given < (DEFAULT_GRACE_S if wanted is None else wanted):
            yield _broken("I12", change, f"{pod.metadata.name} has {given} s to end; its grace is {wanted} s")


def lost_nodes(evidence: AuditEvidence) -> set[str]:
    """Return the nodes that were deleted, declared out of service, or given up by an admin, at any time."""
    lost = {version.name for version, node in evidence.nodes if version.is_deletion or node.spec.taints}
    for history in evidence.allocations.values():
        signals = history[-1].allocation.spec.signals
        lost |= set(signals.lost_nodes) if signals is not None else set()
    return lost


def graces_of(evidence: AuditEvidence) -> dict[str, float]:
    """Return {uid of a pod: its grace period in seconds}."""
    return {
        change.pod.metadata.uid: float(grace)
        for change in evidence.pods
        if (grace := change.pod.spec.termination_grace_period_seconds) is not None
    }


def grace_of(evidence: AuditEvidence, uid: str) -> float:
    """Return the grace of an allocation's pods in seconds, and a little more."""
    mine = {change.pod.metadata.uid for change in evidence.pods if owner_of(change.pod) == uid}
    graces = [grace for pod, grace in graces_of(evidence).items() if pod in mine]
    return max(graces, default=DEFAULT_GRACE_S) + ORPHAN_RUN_S


def _last_of(pods: Iterable[PodVersion]) -> list[PodVersion]:
    """Return the last version of each pod. Without every version, the order of pods between two readings is not
    known.
    """
    return list({change.pod.metadata.uid: change for change in pods}.values())


def is_live(pod: Pod) -> bool:
    """Whether the pod is bound and has not finished."""
    return bool(pod.spec.node_name) and pod.status.phase not in _FINISHED


def _release(item: AllocationVersion, before: Allocation | None, existing: set[str]) -> Iterator[InvariantViolation]:
    status = item.allocation.status
    old = before.status.release if before is not None else None
    if status.release is None or status.release == old:
        return
    placements = status.admission.placements if status.admission is not None else []
    if status.release.attempt != status.attempt or status.phase is not Phase.ASSIGNED:
        yield _wrong(item, f"release of attempt {status.release.attempt} in {status.phase} of attempt {status.attempt}")
    if status.admission is None or status.admission.attempt != status.attempt:
        yield _wrong(item, "release without an admission of the same attempt")
    if len(status.release.pod_uids) != len(placements):
        yield _wrong(item, f"release of {len(status.release.pod_uids)} pods for {len(placements)} placements")
    missing = set(status.release.pod_uids) - existing
    if missing:
        yield _wrong(item, f"release of pods that do not exist: {sorted(missing)}")


def _growth(item: AllocationVersion, before: Allocation | None, existing: set[str]) -> Iterator[InvariantViolation]:
    """Check the ranks added to a running gang: none after a stop, none twice, and no pod that does not exist."""
    growth = growth_of(item.allocation)
    old = growth_of(before) if before is not None else None
    if growth is None or growth == old:
        return
    known = set(old.pod_uids) if old is not None else set[str]()
    fresh = [uid for uid in growth.pod_uids if uid not in known]
    if fresh and item.allocation.spec.desired == "Stopped":
        yield _wrong(item, "ranks are added to a stopped allocation")
    ranks = [member.rank for member in members(item.allocation)]
    if len(set(ranks)) != len(ranks):
        yield _wrong(item, f"a rank has two placements: {sorted(ranks)}")
    if len(growth.pod_uids) > len(growth.placements):
        yield _wrong(item, f"growth of {len(growth.pod_uids)} pods for {len(growth.placements)} placements")
    missing = set(fresh) - existing
    if missing:
        yield _wrong(item, f"growth of pods that do not exist: {sorted(missing)}")


def _rank_restarts(
    item: AllocationVersion, before: Allocation | None, existing: set[str]
) -> Iterator[InvariantViolation]:
    """Check ranks that restart in place: each restart is counted, within the limits, and has a pod that exists."""
    status, spec = item.allocation.status, item.allocation.spec
    if before is None or before.status.attempt != status.attempt or not status.restarted_ranks:
        return
    old = {each.rank: each for each in before.status.restarted_ranks}
    begun = sum(each.n - (old[each.rank].n if each.rank in old else 0) for each in status.restarted_ranks)
    counted = status.restarts + status.uncounted_restarts - before.status.restarts - before.status.uncounted_restarts
    if begun != counted:
        yield _wrong(item, f"{begun} restarts of ranks, but only {counted} are counted")
    if begun and status.restarts > spec.max_restarts:
        yield _wrong(item, f"{status.restarts} restarts, and maxRestarts is {spec.max_restarts}")
    known = {each.pod_uid for each in old.values()}
    fresh = {each.pod_uid for each in status.restarted_ranks if each.pod_uid and each.pod_uid not in known}
    if fresh and spec.desired == "Stopped":
        yield _wrong(item, "a rank of a stopped allocation starts again")
    if missing := fresh - existing:
        yield _wrong(item, f"restart with pods that do not exist: {sorted(missing)}")


def _binding(change: PodVersion, allocation: Allocation | None) -> Iterator[InvariantViolation]:
    pod = change.pod
    release = allocation.status.release if allocation is not None else None
    if allocation is None or release is None or release.attempt != attempt_of(pod):
        yield _broken("I5", change, f"{pod.metadata.name} is bound without a release of its attempt")
        return
    if pod.metadata.uid not in pod_uids(allocation):
        yield _broken("I5", change, f"{pod.metadata.name} ({pod.metadata.uid}) is bound and not in the release")
        return
    place = next((each.placement for each in members(allocation) if each.pod_uid == pod.metadata.uid), None)
    if place is not None and place.node and place.node != pod.spec.node_name:
        yield _broken("I5", change, f"{pod.metadata.name} is bound to another node than the admission names")


def _is_strangers(change: PodVersion, evidence: AuditEvidence) -> bool:
    """Whether another client bound a pod that only our services may bind."""
    return evidence.has_writers and not change.version.writer and change.pod.spec.scheduler_name == SCHEDULER_NAME


def _is_taken_away(change: PodVersion, evidence: AuditEvidence) -> bool:
    """Whether another client has just requested its deletion, as far as the writers are known."""
    is_asked = change.version.is_deletion or change.pod.metadata.deletion_timestamp is not None
    was_asked = change.before is not None and change.before.metadata.deletion_timestamp is not None
    return is_asked and not was_asked and not (evidence.has_writers and change.version.writer)


def _is_over(item: AllocationVersion, attempt: int) -> bool:
    status = item.allocation.status
    return item.version.is_deletion or status.phase is Phase.TERMINATED or status.attempt > attempt


def _wrong(item: AllocationVersion, message: str) -> InvariantViolation:
    return InvariantViolation(
        invariant="I5", subject=item.allocation.metadata.name, message=message, version=item.version.number
    )


def _broken(invariant: str, change: PodVersion, message: str) -> InvariantViolation:
    return InvariantViolation(
        invariant=invariant, subject=change.pod.metadata.name, message=message, version=change.version.number
    )
