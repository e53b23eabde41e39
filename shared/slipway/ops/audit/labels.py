"""The owner of a pod, read from its labels. Pure."""

from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK
from slipway.kube.objects import Pod


def owner_of(pod: Pod) -> str:
    """Return the uid of the pod's allocation; empty when the pod is not ours."""
    return pod.metadata.labels.get(LABEL_ALLOCATION_UID, "")


def attempt_of(pod: Pod) -> int:
    """Return the attempt of the pod; 0 when it has no such label."""
    return _number(pod, LABEL_ATTEMPT)


def rank_of(pod: Pod) -> int:
    """Return the rank of the pod; 0 when it has no such label."""
    return _number(pod, LABEL_RANK)


def _number(pod: Pod, label: str) -> int:
    text = pod.metadata.labels.get(label, "")
    return int(text) if text.isdigit() else 0
