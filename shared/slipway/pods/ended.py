"""Pods that ended by themselves: the watcher deletes them after their log has been read.

Owns the rule which pods those are, so that the pod worker, the sweep and the watcher agree on which of them deletes a
pod. Pure.

A kubelet removes the containers of an ended pod, with their logs, as soon as the pod is marked for deletion, even if a
finalizer retains the object. So such a pod is deleted only after its log was read, and only the watcher knows when that
is. The pod worker deletes pods that still run.

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
    """Whether the phase of the pod is an end: none of its processes run any more."""
    return pod.status.phase in _TERMINAL


def attempt_of(meta: ObjectMeta) -> int:
    """Return the attempt for which an object of ours was created; 0, which no attempt has, when its label is no
    number."""
    text = meta.labels.get(LABEL_ATTEMPT, "")
    return int(text) if text.isdigit() else 0


def recorded(allocation: Allocation) -> frozenset[str]:
    """Return the uids of the pods of this attempt whose end is recorded in the status."""
    return frozenset(rank.pod_uid for rank in allocation.status.ranks or () if rank.phase in RANK_ENDS)


def waits_for_reader(pod: Pod, allocation: Allocation) -> bool:
    """Whether the watcher deletes this pod after its log has been read.

    True for a pod that ended by itself and whose end is recorded, if its attempt is over or its rank restarts. Also
    true for an ended pod of an earlier attempt.
    """
    status = allocation.status
    if pod.metadata.deletion_timestamp is not None:
        return False
    if attempt_of(pod.metadata) < status.attempt:
        return has_ended(pod)
    if pod.metadata.uid not in recorded(allocation):
        return False
    return status.phase in _OVER or is_replaced(pod.metadata.uid, allocation)


def is_replaced(uid: str, allocation: Allocation) -> bool:
    """Whether the rank of this pod restarts with another pod."""
    if not allocation.status.restarted_ranks:
        return False
    ranks = allocation.status.ranks or []
    return any(
        member.rank < len(ranks) and ranks[member.rank].pod_uid == uid and member.pod_uid != uid
        for member in members(allocation)
        if member.restart is not None
    )
