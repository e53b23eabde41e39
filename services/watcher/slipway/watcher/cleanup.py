"""Finds what to clean up after an attempt: finalizers, pods that no node will ever end, work for the pod worker.

Pure. Does not know why the attempt ended.

Invariants: a finalizer is removed only when the exit is recorded, when the pod cannot have run, or when the namespace
is being deleted and no exit was seen yet. A pod is force-deleted only when its node is confirmed to be gone.
"""

from slipway.crd.members import pod_uids, unreleased
from slipway.crd.meta import TEARDOWN_FINALIZER, TRACKING_FINALIZER
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason
from slipway.pods.ended import attempt_of, recorded, waits_for_reader
from slipway.watcher import exits, rank_changes
from slipway.watcher.gang import Rank
from slipway.watcher.view import ReductionView


def droppable_finalizers(view: ReductionView, after: Allocation) -> tuple[Pod, ...]:
    """Return the pods whose tracking finalizer is not needed any more, once `after` is written."""
    return tuple(
        pod
        for pod in view.pods
        if TRACKING_FINALIZER in pod.metadata.finalizers
        and (_is_done(view, pod, after) or (view.namespace_terminating and not _is_awaited(pod, after)))
    )


def deletable(view: ReductionView, after: Allocation) -> tuple[Pod, ...]:
    """Return the pods that ended by themselves in an attempt that is over once `after` is written; nothing else deletes
    them.

    Our view must show the pod's end too: an older view does not show which logs there are to read.
    """
    return tuple(pod for pod in view.pods if waits_for_reader(pod, after) and exits.exit_of(pod) is not None)


def unreachable(view: ReductionView) -> tuple[Pod, ...]:
    """Return the pods whose node is gone, also of a gang that goes on: no kubelet will ever confirm their end."""
    return tuple(pod for pod in view.live_pods if pod.spec.node_name in view.nodes_gone)


def with_long_grace(view: ReductionView) -> tuple[tuple[Pod, int], ...]:
    """Return (pod, the user's grace period in seconds) for each pod of a cancelled attempt that is being deleted with a
    longer grace period."""
    signals, status = view.allocation.spec.signals, view.allocation.status
    is_current = signals is not None and signals.attempt == status.attempt
    if signals is None or not is_current or signals.grace_s is None or view.stop is not Reason.KILLED:
        return ()
    grace_s = signals.grace_s
    leaving = (pod for pod in view.live_pods if pod.metadata.deletion_timestamp is not None)
    return tuple((pod, grace_s) for pod in leaving if (pod.metadata.deletion_grace_period_seconds or 0) > grace_s)


def needs_worker(view: ReductionView, after: Allocation) -> bool:
    """Whether the pod worker has something to do for `after`."""
    status = after.status
    if status.admission is None:
        return False
    if rank_changes.needs_worker(view, after):
        return True
    match status.phase:
        case Phase.PENDING:
            return bool(view.pods)
        case Phase.ASSIGNED:
            return not view.gang.is_bound
        case Phase.TERMINATING:
            return bool(view.live_pods)
        case Phase.TERMINATED:
            return bool(view.pods) or TEARDOWN_FINALIZER in after.metadata.finalizers
        case Phase.RUNNING if any(_is_deletion_due(rank) or _is_binding_due(rank) for rank in view.gang.ranks):
            return True
        case Phase.RUNNING if unreleased(after):
            return True
        case _:
            return any(attempt_of(pod.metadata) < status.attempt for pod in view.pods)


def _is_deletion_due(rank: Rank) -> bool:
    """Whether the rank is evicted and its pod is not deleted yet."""
    return rank.leaving and rank.is_live and rank.pod is not None and rank.pod.metadata.deletion_timestamp is None


def _is_binding_due(rank: Rank) -> bool:
    """Whether the rank was added and its pod is not bound yet."""
    return rank.grown and not rank.is_bound and not rank.leaving


def _is_done(view: ReductionView, pod: Pod, after: Allocation) -> bool:
    """Whether the pod has no more information for us."""
    is_leaving = pod.metadata.deletion_timestamp is not None
    if not is_leaving and not exits.is_over(pod):
        return False
    status, attempt = after.status, attempt_of(pod.metadata)
    if attempt < status.attempt:
        return True
    if attempt > status.attempt:
        return False
    if pod.metadata.uid in recorded(after):
        return True
    if _is_in_release(pod, after):
        is_lost = is_leaving and pod.spec.node_name in view.nodes_gone
        return is_lost and _is_recorded_lost(pod, after)
    # The release that we see does not list the pod. So it never ran if it has no node, or if no release can follow.
    return is_leaving and (status.phase is Phase.TERMINATED or not exits.is_bound(pod))


def _is_recorded_lost(pod: Pod, after: Allocation) -> bool:
    """Whether the status records that the pod was lost with its node, or the whole attempt ends anyway.

    The record must come before the pod's object is deleted: afterwards nothing shows why the pod is gone.
    """
    ranks = after.status.ranks or ()
    is_told = any(rank.pod_uid == pod.metadata.uid and rank.reason == Reason.NODE_LOST for rank in ranks)
    return is_told or after.status.phase in (Phase.TERMINATING, Phase.TERMINATED)


def _is_awaited(pod: Pod, after: Allocation) -> bool:
    """Whether the pod's end is seen, and one of the next writes records it."""
    status = after.status
    if status.phase is Phase.TERMINATED or attempt_of(pod.metadata) != status.attempt or exits.exit_of(pod) is None:
        return False
    return _is_in_release(pod, after) and pod.metadata.uid not in recorded(after)


def _is_in_release(pod: Pod, after: Allocation) -> bool:
    return pod.metadata.uid in pod_uids(after)
