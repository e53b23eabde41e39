"""A released pod that another scheduler has to bind: since when it waits, and what that scheduler says.

Owns when the wait has lasted long enough. Pure. `causes.py` ends the attempt.

Invariants: the time counts from the opening of the gate, which an annotation of the pod holds (its condition keeps the
time of its creation); silence is not a refusal, so the wait for an answer is longer. kube-scheduler refuses a gang that
it places as a group as a whole, and each of its pods says so. A pod that is refused only because of another one is not
refused itself: so the rank without a place is named, and its node is avoided.

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
"""What a pod says for which there is a place, or was not looked for, because another one of its group has none."""


class Unplaced(msgspec.Struct, frozen=True, kw_only=True):
    """A pod without a node. At `until` (epoch seconds) it is given up, for this reason and with this message."""

    until: float
    reason: Reason
    message: str


def unplaced(pod: Pod, policy: LifecyclePolicy) -> Unplaced | None:
    """The wait of the pod for another scheduler; None once it has a node, or if no other scheduler binds it."""
    opened = pod.metadata.annotations.get(ANNOTATION_OPENED)
    if not opened or exits.is_over(pod) or exits.is_bound(pod):
        return None
    # A gate opens after its pod exists, but the annotation has the time of the pod worker, whose clock may be behind.
    since = max(parse_time(at) for at in (opened, pod.metadata.creation_timestamp) if at)
    name = pod.spec.scheduler_name
    scheduled = condition_of(pod.status.conditions, "PodScheduled")
    is_refused = scheduled is not None and scheduled.status == "False" and scheduled.reason in _REFUSALS
    if scheduled is not None and is_refused and not _FOR_ITS_MATES.search(scheduled.message):
        words = f"{name} does not place it there: {scheduled.message}".rstrip(": ")
        return Unplaced(
            until=since + policy.unschedulable_limit_s,
            reason=Reason.PLACEMENT_REFUSED,
            message=words[: exits.MESSAGE_CHARS_MAX],
        )
    words = f"{name} has not placed it for {policy.stuck_limit_s:.0f} s"
    return Unplaced(until=since + policy.stuck_limit_s, reason=Reason.LAUNCH_STUCK, message=words)
