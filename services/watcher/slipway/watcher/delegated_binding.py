"""A released pod that another scheduler has to bind: since when it waits, and what that scheduler says.

Owns when the wait has lasted long enough. Pure. `causes.py` ends the attempt.

Invariants: the time counts from the opening of the gate, which an annotation of the pod holds (its condition keeps the
time of its creation); silence is not a refusal, so the wait for an answer is longer.
"""

import msgspec

from slipway.crd.meta import ANNOTATION_OPENED, condition_of
from slipway.kube.objects import Pod
from slipway.model.reasons import Reason
from slipway.model.times import parse_time
from slipway.watcher import exits
from slipway.watcher.ends import LifecyclePolicy

_REFUSALS = frozenset({"Unschedulable", "SchedulerError"})


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
    if scheduled is not None and scheduled.status == "False" and scheduled.reason in _REFUSALS:
        words = f"{name} does not place it there: {scheduled.message}".rstrip(": ")
        return Unplaced(
            until=since + policy.unschedulable_limit_s,
            reason=Reason.PLACEMENT_REFUSED,
            message=words[: exits.MESSAGE_CHARS_MAX],
        )
    words = f"{name} has not placed it for {policy.stuck_limit_s:.0f} s"
    return Unplaced(until=since + policy.stuck_limit_s, reason=Reason.LAUNCH_STUCK, message=words)
