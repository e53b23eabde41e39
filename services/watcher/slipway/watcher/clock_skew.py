"""Corrects recorded times that a watcher whose clock was ahead has written. Pure.

A wait that ends at a recorded time would last too long, by as much as that clock was ahead. So no recorded wait may end
later than it would if it began now; if it does, it begins now. A watcher whose clock is behind also moves the end of a
correct record, and by its own clock the wait still lasts no longer than it should. By another clock, a grace period
would then be over at once, so there the deadline that was announced to the ranks is used (`ends.preemption_deadline`).
One record cannot show which clock is right, so each service corrects only the times that it writes itself.
"""

import math

import msgspec

from slipway.crd.meta import Condition
from slipway.crd.transitions import CONDITION_BLOCKED, with_status
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.model.times import SKEW_S, format_time, parse_time
from slipway.watcher import ends, obstacles
from slipway.watcher.ends import LifecyclePolicy


def correct_times(allocation: Allocation, *, now: float, policy: LifecyclePolicy) -> Allocation:
    """Return the allocation; waits that end too late end as if they began at `now` (epoch seconds).

    Return the identical object when there are none.
    """
    status = allocation.status
    if status.phase is Phase.TERMINATED or not (status.deadlines or status.conditions or status.not_before):
        return allocation
    latest = {
        ends.DEADLINE_PREEMPTION: now + ends.preemption_grace_s(allocation, policy),
        obstacles.DEADLINE_START: now
        + max(policy.image_pull_limit_s, policy.unschedulable_limit_s, ends.start_limit_s(allocation, policy)),
    }
    righted = msgspec.structs.replace(
        status,
        deadlines={name: _no_later(at, latest.get(name, math.inf)) for name, at in status.deadlines.items()},
        conditions=[_corrected(each, now) for each in status.conditions],
        not_before=_no_later(status.not_before, now + policy.restart_backoff_max_s),
    )
    return allocation if righted == status else with_status(allocation, righted)


def _corrected(condition: Condition, now: float) -> Condition:
    """Return the condition; StartBlocked begins at `now` at the latest. The watcher corrects no other condition."""
    since = condition.last_transition_time
    if condition.type != CONDITION_BLOCKED or not since:
        return condition
    return msgspec.structs.replace(condition, last_transition_time=_no_later(since, now))


def _no_later(at: str, latest: float) -> str:
    return format_time(latest) if at and parse_time(at) > latest + SKEW_S else at
