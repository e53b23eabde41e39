"""A released pod that another scheduler is to bind: since when it waits, and what that scheduler says.

Owns when the wait has been long enough. Pure. That it ends the attempt is `causes.py`.

Invariants: the time runs from the opening of the gate, which the pod itself carries (the condition does not: it keeps
the time at which the pod was made); silence is no refusal, so it is waited out for longer.
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
    """A pod without a node; `until` (epoch seconds) is when it is given up, for this reason and in these words."""

    until: float
    reason: Reason
    message: str


def unplaced(pod: Pod, policy: LifecyclePolicy) -> Unplaced | None:
    """Set while the pod waits for another scheduler; None once it has a node, or is not left to one."""
    opened = pod.metadata.annotations.get(ANNOTATION_OPENED)
    if not opened or exits.is_over(pod) or exits.is_bound(pod):
        return None
    # A gate is not opened before its pod is there: the pod worker, whose time the annotation has, may be behind.
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
