"""Detects obstacles to the start of a released rank, from the reports of the kubelet or of another scheduler. Pure.

Owns which pods and Events about pods show an obstacle, and the condition StartBlocked, which reports the first obstacle
to users. Also owns the time at which a start without `pendingTimeout` is given up. `causes.py` then ends the attempt;
the scheduler fires the deadline of `pendingTimeout` (`facts/custom_resources.py`).

Invariants
- Absence is no evidence: an obstacle remains until its pod, or a later Event, shows that it is overcome. The views of
  replicas differ in age, and not every replica reads Events.
- A message that differs only in numbers (times, ids of requests) causes no write.

A released pod may wait too long for another scheduler to bind it. Invariants: that wait begins when the gate is opened,
at the time in an annotation of the pod (the pod's condition has the time of its creation); without any report of that
scheduler the limit is longer than after a refusal. If kube-scheduler places a gang as a group, it refuses the group as
a whole, and each of its pods reports a refusal. A pod that is refused only because of another pod is not treated as
refused. So the error names the rank that has no place, and the node of that rank is avoided.

Source: pkg/scheduler/schedule_one_podgroup.go, plugins/gangscheduling (the words of a group, v1.37).
"""

import re

import msgspec

from slipway.crd.meta import ANNOTATION_OPENED, Condition, condition_of
from slipway.crd.transitions import CONDITION_BLOCKED, record
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.model.lifecycle import Event, Phase, RankState, is_behind
from slipway.model.reasons import Reason
from slipway.model.times import format_time, parse_time
from slipway.watcher import exits
from slipway.watcher.ends import LifecyclePolicy, start_limit_s
from slipway.watcher.exits import RankExit
from slipway.watcher.gang import Rank
from slipway.watcher.podwarnings import OVERCOME, PodWarning
from slipway.watcher.view import ReductionView

_REFUSALS = frozenset({"Unschedulable", "SchedulerError"})
_WAITS_FOR_GANG = re.compile(
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
    if scheduled is not None and is_refused and not _WAITS_FOR_GANG.search(scheduled.message):
        words = f"{name} does not place it there: {scheduled.message}".rstrip(": ")
        return UnboundPod(
            until=since + policy.unschedulable_limit_s,
            reason=Reason.PLACEMENT_REFUSED,
            message=words[: exits.MESSAGE_CHARS_MAX],
        )
    words = f"{name} has not placed it for {policy.stuck_limit_s:.0f} s"
    return UnboundPod(until=since + policy.stuck_limit_s, reason=Reason.LAUNCH_STUCK, message=words)


DEADLINE_START = "start"
"""The entry of `status.deadlines` at which a blocked start is given up."""
BLOCKED = "blocked"
"""The key of the obstacle in the data of `updated`: its value is the message, empty once the obstacle is overcome."""
BEFORE_RUNNING = (Phase.ASSIGNED, Phase.PULLING, Phase.STARTING)
_TEXT_IN_RING_MAX = 240
_RANK = re.compile(r"rank (\d+)\b")
_NUMBERS = re.compile(r"[0-9a-f]{8}[-0-9a-f]*|\d+(\.\d+)?")
_MISSING = re.compile(r"not found|non-existent|does not exist", re.IGNORECASE)
"""Messages about a name that does not exist (yet): another node would not find it either."""


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """The obstacle of one rank. `reason` is that of Kubernetes; at `until` (epoch seconds) the start is given up."""

    rank: int
    reason: str
    message: str
    until: float


def with_obstacle(view: ReductionView, allocation: Allocation) -> Allocation:
    """Return the allocation with an up-to-date condition StartBlocked; the identical object if nothing changes."""
    if allocation.status.phase not in BEFORE_RUNNING:
        return allocation
    known = recorded(allocation)
    found = _found(view, known)
    if known is None:
        return _blocked(view, allocation, found[0]) if found else allocation
    if not found:
        return _overcome(view, allocation) if _is_overcome(view, known) else allocation
    same = [each for each in found if _is_same(each, known)]
    return allocation if same else _blocked(view, allocation, found[0])


def recorded(allocation: Allocation) -> Condition | None:
    """Return the condition StartBlocked if it is True and about this attempt."""
    found = condition_of(allocation.status.conditions, CONDITION_BLOCKED)
    is_current = found is not None and found.observed_generation == allocation.status.attempt
    return found if found is not None and is_current and found.status == "True" else None


def without_obstacle(conditions: list[Condition]) -> list[Condition]:
    """Return the conditions without StartBlocked."""
    return [item for item in conditions if item.type != CONDITION_BLOCKED]


def given_up_at(allocation: Allocation) -> float | None:
    """Return when the present obstacle ends the attempt (epoch seconds); None without one."""
    at = allocation.status.deadlines.get(DEADLINE_START)
    return parse_time(at) if at and recorded(allocation) is not None else None


def end_of_expired(view: ReductionView, allocation: Allocation) -> RankExit | None:
    """Return the end of an attempt whose start was blocked for too long.

    None when it was not, or when `causes.py` reads the obstacle and its time from the pod itself.
    """
    known, until = recorded(allocation), given_up_at(allocation)
    if known is None or until is None or view.now < until:
        return None
    if known.reason == Reason.PLACEMENT_REFUSED or exits.has_limit(known.reason):
        return None
    if not any(_is_same(each, known) for each in _found(view, known)) and _is_overcome(view, known):
        return None
    is_refused = known.reason in exits.HELD_UP_WORDS or _MISSING.search(known.message) is not None
    reason = Reason.LAUNCH_REFUSED if is_refused else Reason.LAUNCH_STUCK
    return RankExit(state=RankState.FAILED, reason=reason, message=known.message)


def _found(view: ReductionView, known: Condition | None) -> list[Obstacle]:
    """Return the obstacles of the ranks, lowest rank first."""
    ranks = (rank for rank in view.gang.ranks if not rank.is_joining)
    found = (_obstacle(view, rank, known) for rank in ranks if rank.pod is not None and rank.exit is None)
    return [each for each in found if each is not None]


def _obstacle(view: ReductionView, rank: Rank, known: Condition | None) -> Obstacle | None:
    pod = rank.pod
    if pod is None or _was_running(rank) or pod.metadata.deletion_timestamp is not None:
        return None
    where = f"rank {rank.index} on {rank.node}" if rank.node else f"rank {rank.index}"
    held = exits.start_obstacle(pod)
    if held is not None:
        message = f"{where}: {held.message}"[: exits.MESSAGE_CHARS_MAX]
        until = view.blocked_until(held)
        return Obstacle(rank=rank.index, reason=held.word, message=message, until=until)
    waits = unbound_pod(pod, view.policy)
    if waits is not None and waits.reason is Reason.PLACEMENT_REFUSED:
        message = f"{where}: {waits.message}"[: exits.MESSAGE_CHARS_MAX]
        return Obstacle(rank=rank.index, reason=waits.reason.value, message=message, until=waits.until)
    warning = view.warnings.get(pod.metadata.uid)
    if not warning or not exits.is_bound(pod):
        return None
    return _warned(view, rank, f"{where}: {warning.text}"[: exits.MESSAGE_CHARS_MAX], warning, known)


def _warned(view: ReductionView, rank: Rank, message: str, warning: PodWarning, known: Condition | None) -> Obstacle:
    is_missing = _MISSING.search(message) is not None
    policy = view.policy
    patience_s = policy.image_pull_limit_s if is_missing else start_limit_s(view.allocation, policy)
    since = parse_time(known.last_transition_time) if known is not None and known.last_transition_time else view.now
    return Obstacle(rank=rank.index, reason=warning.reason, message=message, until=since + patience_s)


def _is_overcome(view: ReductionView, known: Condition) -> bool:
    """Whether the rank that the condition names has overcome the obstacle."""
    named = _RANK.match(known.message)
    rank = next((each for each in view.gang.ranks if named is not None and each.index == int(named[1])), None)
    if rank is None or rank.exit is not None or _was_running(rank):
        return True
    pod = rank.pod
    if pod is None:
        return False
    if known.reason == Reason.PLACEMENT_REFUSED:
        return exits.is_bound(pod)
    if known.reason in exits.HELD_UP_WORDS:
        return any(status.state.waiting is None for status in pod.status.init_container_statuses)
    return view.warnings.get(pod.metadata.uid) == OVERCOME


def _was_running(rank: Rank) -> bool:
    """Whether the rank runs or has run; its recorded status is used too, because the view of its pod may be older."""
    return rank.has_started or (rank.stored is not None and is_behind(RankState.BOUND, rank.stored.phase))


def _is_same(found: Obstacle, known: Condition) -> bool:
    if known.reason != found.reason:
        # A kubelet reports another reason while it waits between two pulls.
        return exits.is_pull(known.reason) and exits.is_pull(found.reason) and _names_rank(known.message, found.rank)
    return exits.is_pull(found.reason) or _plain(known.message) == _plain(found.message)


def _names_rank(message: str, rank: int) -> bool:
    return message.startswith((f"rank {rank} ", f"rank {rank}:"))


def _plain(message: str) -> str:
    return _NUMBERS.sub("#", message)


def _blocked(view: ReductionView, allocation: Allocation, first: Obstacle) -> Allocation:
    condition = Condition(
        type=CONDITION_BLOCKED,
        status="True",
        reason=first.reason,
        message=first.message,
        observed_generation=allocation.status.attempt,
        last_transition_time=format_time(view.now),
    )
    until = format_time(first.until)
    return record(
        allocation,
        Event.UPDATED,
        now=view.now,
        data={BLOCKED: first.message[:_TEXT_IN_RING_MAX]},
        conditions=[*without_obstacle(allocation.status.conditions), condition],
        deadlines={**allocation.status.deadlines, DEADLINE_START: until},
    )


def _overcome(view: ReductionView, allocation: Allocation) -> Allocation:
    left = {name: at for name, at in allocation.status.deadlines.items() if name != DEADLINE_START}
    return record(
        allocation,
        Event.UPDATED,
        now=view.now,
        data={BLOCKED: ""},
        conditions=without_obstacle(allocation.status.conditions),
        deadlines=left,
    )
