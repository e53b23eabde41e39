"""Pods that ended by themselves: kept until their log is read, and deleted by the watcher.

Owns which pods those are, so that the pod worker, the sweep and the watcher agree on who deletes what. Pure.

A kubelet removes the containers of an ended pod, and their logs with them, as soon as the pod is marked deleted,
whatever finalizer holds the object. So the delete of such a pod comes after its log was read, and only the watcher
knows when that is. The pods that still run are the pod worker's to delete.

Source: pkg/kubelet/kubelet.go (1.36), `cleanUpContainersInPod`, and kuberuntime_gc.go, `evictContainers`. Decision 49.
"""

from slipway.crd.members import members
from slipway.crd.meta import LABEL_ATTEMPT, ObjectMeta
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.model.lifecycle import RANK_ENDS, Phase

_TERMINAL = ("Succeeded", "Failed")
_OVER = (Phase.TERMINATING, Phase.TERMINATED)


def has_ended(pod: Pod) -> bool:
    """Whether its phase says that nothing of it runs any more."""
    return pod.status.phase in _TERMINAL


def attempt_of(meta: ObjectMeta) -> int:
    """The attempt that an object of ours was made for; 0 (long past) when its label is no number."""
    text = meta.labels.get(LABEL_ATTEMPT, "")
    return int(text) if text.isdigit() else 0


def recorded(allocation: Allocation) -> frozenset[str]:
    """The uids of the pods of this attempt whose end is on record."""
    return frozenset(rank.pod_uid for rank in allocation.status.ranks or () if rank.phase in RANK_ENDS)


def waits_for_reader(pod: Pod, allocation: Allocation) -> bool:
    """Whether the watcher deletes it, once its log is read: it ended by itself, in an attempt that is over or as a rank
    that is to start again, and that is on record."""
    status = allocation.status
    if pod.metadata.deletion_timestamp is not None:
        return False
    if attempt_of(pod.metadata) < status.attempt:
        return has_ended(pod)
    if pod.metadata.uid not in recorded(allocation):
        return False
    return status.phase in _OVER or is_replaced(pod.metadata.uid, allocation)


def is_replaced(uid: str, allocation: Allocation) -> bool:
    """Whether the rank that this pod stood for is to start again, with another pod."""
    if not allocation.status.restarted_ranks:
        return False
    ranks = allocation.status.ranks or []
    return any(
        member.rank < len(ranks) and ranks[member.rank].pod_uid == uid and member.pod_uid != uid
        for member in members(allocation)
        if member.restart is not None
    )
