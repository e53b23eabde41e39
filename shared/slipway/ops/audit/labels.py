"""Whose a pod is, read from its labels. Pure."""

from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK
from slipway.kube.objects import Pod


def owner_of(pod: Pod) -> str:
    """The uid of its allocation; empty when it is not ours."""
    return pod.metadata.labels.get(LABEL_ALLOCATION_UID, "")


def attempt_of(pod: Pod) -> int:
    """The attempt it was made for; 0 when the label says none."""
    return _number(pod, LABEL_ATTEMPT)


def rank_of(pod: Pod) -> int:
    """Its rank."""
    return _number(pod, LABEL_RANK)


def _number(pod: Pod, label: str) -> int:
    text = pod.metadata.labels.get(label, "")
    return int(text) if text.isdigit() else 0
