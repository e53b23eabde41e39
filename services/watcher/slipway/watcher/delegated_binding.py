"""Reads how long a released pod has waited for another scheduler to bind it, and what that scheduler reports.

Owns when the wait has lasted too long. Pure. `causes.py` ends the attempt.

Invariants: the wait begins when the gate is opened, a time that an annotation of the pod stores (the pod's condition
has the time of its creation); without any report of that scheduler the limit is longer than after a refusal.
kube-scheduler refuses a gang that it places as a group as a whole, and each of its pods reports that. A pod that is
refused only because of another pod is not treated as refused: so the error names the rank without a place, and its node
is avoided.

Source: pkg/scheduler/schedule_one_podgroup.go, plugins/gangscheduling (the words of a group, v1.37).
"""

import re

import msgspec

from slipway.crd.meta import ANNOTATION_OPENED, condition_of
from slipway.kube.objects import Pod
from slipway.model.reasons import Reason
from slipway.model.times import parse_time
from slipway.watcher import exits
from slipway.watcher.ends import LifecyclePolicy

_REFUSALS = frozenset({"Unschedulable", "SchedulerError"})
_FOR_ITS_MATES = re.compile(
    r"minCount \(\d+\) (is not yet|cannot be) satisfied|failed to schedule other pod from a pod group"
    r"|pod group is unschedulable"
)
"""The message of a pod that was not placed, or not even tried, only because another pod of its group has no place."""


class UnboundPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod without a node. At `until` (epoch seconds) the attempt ends, for this reason and with this message."""

    until: float
    reason: Reason
    message: str


def unbound_pod(pod: Pod, policy: LifecyclePolicy) -> UnboundPod | None:
    """Return the wait of the pod for another scheduler; None once it has a node, or if no other scheduler binds it."""
    opened = pod.metadata.annotations.get(ANNOTATION_OPENED)
    if not opened or exits.is_over(pod) or exits.is_bound(pod):
        return None
    # The gate is opened after the pod is created, but the clock of the pod worker, which wrote the annotation, may be
    # behind.
    since = max(parse_time(at) for at in (opened, pod.metadata.creation_timestamp) if at)
    name = pod.spec.scheduler_name
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    is_refused = scheduled is not None and scheduled.status == "False" and scheduled.reason in _REFUSALS
    if scheduled is not None and is_refused and not _FOR_ITS_MATES.search(scheduled.message):
        words = f"{name} does not place it there: {scheduled.message}".rstrip(": ")
        return UnboundPod(
            until=since + policy.unschedulable_limit_s,
            reason=Reason.PLACEMENT_REFUSED,
            message=words[: exits.MESSAGE_CHARS_MAX],
        )
    words = f"{name} has not placed it for {policy.stuck_limit_s:.0f} s"
    return UnboundPod(until=since + policy.stuck_limit_s, reason=Reason.LAUNCH_STUCK, message=words)
