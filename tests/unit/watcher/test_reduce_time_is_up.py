"""Idle timeout and run limit: stored at Running, signaled to work that can save its state, and TimedOut in the end."""

from typing import Any

import msgspec
import pytest

from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason, Result
from tests.support.builders import T0, AllocationStory, a_pod, an_allocation
from tests.support.reductions import NOW, a_running, ending, once, settled

KINDS = ["notebook", "shell", "command", "tensorboard", "training"]
LIMITS = [Reason.IDLE, Reason.MAX_RUNTIME]


def can_save(**spec: Any) -> AllocationStory:
    return a_running(preemptible=True, preemptionGrace="10m", **spec).ready()


def notified(reason: Reason) -> Allocation:
    return once(can_save(maxRestarts=3).stopped(reason.value).it, a_pod().running()).allocation


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_idle_deadline(kind: str) -> None:
    """`status.deadlines.idle` counts from Running, beside the run limit; an allocation without an idle timeout has
    none."""
    story = an_allocation(kind=kind, idleTimeout="30m", maxRuntime="1h").assigned().released()
    status = once(story.it, a_pod().running(at_s=3), now=T0 + 3).allocation.status
    assert status.deadlines == {"idle": "2023-11-14T22:43:23.000Z", "maxRuntime": "2023-11-14T23:13:23.000Z"}
    plain = an_allocation(kind=kind).assigned().released()
    assert once(plain.it, a_pod().running(at_s=3), now=T0 + 3).allocation.status.deadlines == {}


def test_each_attempt_has_deadlines_of_its_own() -> None:
    """Deadlines end with their attempt; those of the next one count from its Running."""
    story = a_running(maxRestarts=1, idleTimeout="30m").with_status(deadlines={"idle": "2023-11-14T22:43:23.000Z"})
    again = settled(story.it, a_pod().exited(1))
    assert (again.status.attempt, again.status.deadlines) == (2, {})


@pytest.mark.parametrize("reason", LIMITS)
def test_what_can_save_its_work_is_told_first(reason: Reason) -> None:
    """Preemptible and ready work receives `preempting` with the reason of the stop, and has the whole grace."""
    status = notified(reason).status
    assert (status.phase, status.transitions[-1].type) == (Phase.RUNNING, Event.PREEMPTING)
    assert status.transitions[-1].reason == reason
    assert status.deadlines["preemption"] == "2023-11-14T22:23:40.000Z"


@pytest.mark.parametrize("reason", LIMITS)
@pytest.mark.parametrize(
    "story", [a_running(preemptible=True), a_running().ready()], ids=["not ready", "not preemptible"]
)
def test_what_can_not_is_killed(story: AllocationStory, reason: Reason) -> None:
    """Work that cannot save its state is killed at once."""
    status = once(story.stopped(reason.value).it, a_pod().running()).allocation.status
    assert (status.phase, status.reason) == (Phase.TERMINATING, reason)


COURSES = [
    ("acked, exit 0", True, 0, Result.TIMED_OUT, None),
    ("acked, failed", True, 1, Result.TIMED_OUT, None),
    ("not acked, exit 0", False, 0, Result.SUCCEEDED, Reason.USER_STOPPED),
    ("not acked, failed", False, 1, Result.TIMED_OUT, None),
]


@pytest.mark.parametrize("reason", LIMITS)
@pytest.mark.parametrize(("_case", "acked", "code", "result", "other"), COURSES)
def test_the_end_after_a_limit_notice(
    _case: str, acked: bool, code: int, result: Result, other: Reason | None, reason: Reason
) -> None:
    """The result is TimedOut and there is no other attempt, except for work that succeeded without acknowledging."""
    story = AllocationStory(notified(reason))
    story = story.acknowledged(0, n=0) if acked else story
    ended = settled(story.it, a_pod().exited(code, at_s=18))
    assert ending(ended) == (Phase.TERMINATED, result, other or reason)


@pytest.mark.parametrize("reason", LIMITS)
def test_the_grace_of_a_limit_notice_expires(reason: Reason) -> None:
    """When the grace ends, the allocation is killed, and is TimedOut."""
    late = once(notified(reason), a_pod().running(), now=NOW + 600).allocation
    assert (late.status.phase, late.status.reason) == (Phase.TERMINATING, reason)
    ended = settled(late, a_pod().exited(137, at_s=631).deleted(at_s=630), now=NOW + 620)
    assert ending(ended) == (Phase.TERMINATED, Result.TIMED_OUT, reason)


def test_a_lost_node_does_not_bring_it_back() -> None:
    """A node that is lost after the timeout does not restart the allocation."""
    ended = settled(notified(Reason.IDLE), a_pod().failed("NodeLost"))
    assert ending(ended) == (Phase.TERMINATED, Result.TIMED_OUT, Reason.IDLE)


def test_a_limit_in_the_middle_of_a_preemption_leaves_its_grace() -> None:
    """A limit during a preemption keeps its grace: the ranks get no second signal and lose no time, and the allocation
    is TimedOut."""
    asked = once(a_running(preemptionGrace="10m").asked_to_preempt().it, a_pod().running()).allocation
    stopped = AllocationStory(asked).stopped("MaxRuntime")
    assert not once(stopped.it, a_pod().running()).changed
    ended = settled(stopped.acknowledged(0).it, a_pod().exited(0, at_s=18))
    assert ending(ended) == (Phase.TERMINATED, Result.TIMED_OUT, Reason.MAX_RUNTIME)


# --- pauses


def test_a_pause_that_is_resumed_meanwhile_still_comes_back() -> None:
    """A pause that is resumed before the ranks have ended still restarts, because the signal records that it is a
    pause."""
    story = a_running(hold=True).asked_to_preempt()
    signals = story.it.spec.signals
    assert signals is not None
    assert signals.preempt is not None
    pause = msgspec.structs.replace(signals, preempt=msgspec.structs.replace(signals.preempt, requeue=True))
    resumed = AllocationStory(once(story.with_spec(signals=pause).it, a_pod().running()).allocation)
    resumed = resumed.with_spec(hold=False).acknowledged(0)
    status = settled(resumed.it, a_pod().exited(0, at_s=18)).status
    assert (status.phase, status.attempt, status.not_before) == (Phase.PENDING, 2, "")


@pytest.mark.parametrize("reason", LIMITS)
@pytest.mark.parametrize("acked", [True, False])
def test_a_limit_in_the_middle_of_a_pause_does_not_end_it_for_good(acked: bool, reason: Reason) -> None:
    """A limit during a pause does not end the allocation: the attempt ends normally, and the next one waits for the
    resume, with limits of its own."""
    story = a_running(hold=True, preemptionGrace="10s").asked_to_preempt()
    signals = story.it.spec.signals
    assert signals is not None
    assert signals.preempt is not None
    pause = msgspec.structs.replace(signals, preempt=msgspec.structs.replace(signals.preempt, requeue=True))
    notified = AllocationStory(once(story.with_spec(signals=pause).it, a_pod().running()).allocation)
    stopped = notified.stopped(reason.value)
    stopped = stopped.acknowledged(0) if acked else stopped
    assert not once(stopped.it, a_pod().running()).changed
    if acked:
        last = settled(stopped.it, a_pod().exited(0, at_s=18))
    else:
        late = once(stopped.it, a_pod().running(), now=NOW + 10).allocation
        last = settled(late, a_pod().exited(137, at_s=31).deleted(at_s=30), now=NOW + 20)
    assert (last.status.phase, last.status.attempt, last.status.stop) == (Phase.PENDING, 2, None)


@pytest.mark.parametrize("acked", [True, False])
def test_the_grace_of_a_pause_runs_out(acked: bool) -> None:
    """When the grace of a pause ends, the attempt is killed, and the next one waits for the resume."""
    story = a_running(hold=True, preemptionGrace="10s").asked_to_preempt()
    asked = AllocationStory(once(story.it, a_pod().running()).allocation)
    asked = asked.acknowledged(0) if acked else asked
    killed = a_pod().exited(137, at_s=31).deleted(at_s=30)
    late = once(asked.it, a_pod().running(), now=NOW + 10).allocation
    status = settled(late, killed, now=NOW + 20).status
    assert (status.phase, status.attempt, status.restarts) == (Phase.PENDING, 2, 0)


def test_a_start_that_a_wrong_clock_wrote_makes_no_limit_longer() -> None:
    """After the watcher's clock was an hour ahead and was corrected, limits count from the start of the containers."""
    story = an_allocation(maxRuntime="20s", idleTimeout="1m").assigned().released()
    pod = a_pod().running(at_s=3)
    ahead = once(story.it, pod, now=T0 + 3600).allocation
    assert ahead.status.started_at == "2023-11-14T23:13:20.000Z"
    right = once(ahead, pod, now=NOW).allocation
    assert right.status.started_at < "2023-11-14T22:13:25"
    assert right.status.deadlines == {
        "maxRuntime": right.status.started_at.replace(":24.", ":44."),
        "idle": right.status.started_at.replace("22:13:", "22:14:"),
    }
    assert not once(right, pod, now=NOW + 1).changed


def test_a_watcher_whose_clock_is_behind_ends_nothing_early() -> None:
    """A watcher whose clock is behind ends nothing early: the nodes confirm a start later than its clock, so the start
    stays."""
    running = a_running(maxRuntime="20s").with_status(started_at="2023-11-14T22:13:25.000Z").it
    first = once(running, a_pod().running(at_s=5)).allocation
    assert not once(first, a_pod().running(at_s=5), now=T0 - 3600).changed


def test_a_backoff_that_a_wrong_clock_wrote_is_no_longer_than_any() -> None:
    """A backoff that a wrong clock wrote counts from the correction of the clock, and is written once."""
    story = an_allocation(maxRestarts=2).with_status(attempt=2, not_before="2023-11-14T23:13:20.000Z")
    right = once(story.it).allocation
    assert right.status.not_before == "2023-11-14T22:14:10.000Z"
    assert not once(right, now=NOW + 1).changed
    soon = an_allocation(maxRestarts=2).with_status(attempt=2, not_before="2023-11-14T22:13:50.000Z").it
    assert not once(soon).changed


def test_limits_that_change_while_it_runs_move_its_deadlines() -> None:
    """Changed limits move the deadlines of a running allocation, counted from its start, and are reported once. The
    limit of its queue and the deadline of a preemption stay."""
    story = a_running(maxRuntime="20s", idleTimeout="1m")
    begun = story.with_status(started_at="2023-11-14T22:13:25.000Z").it
    first = once(begun, a_pod().running()).allocation
    assert first.status.deadlines["maxRuntime"] == "2023-11-14T22:13:45.000Z"
    later = AllocationStory(first).with_spec(max_runtime="2h", idle_timeout=None).it
    changed = once(later, a_pod().running()).allocation
    assert changed.status.deadlines == {"maxRuntime": "2023-11-15T00:13:25.000Z"}
    assert changed.status.transitions[-1].type is Event.UPDATED
    assert not once(changed, a_pod().running()).changed


def test_a_grace_that_a_wrong_clock_wrote_is_no_longer_than_asked_for() -> None:
    """A grace that a wrong clock wrote counts from the correction of the clock, and is written once; a correct one
    stays."""
    told_at = can_save().asked_to_preempt().it
    ahead = once(told_at, a_pod().running(), now=T0 + 3600).allocation
    right = once(ahead, a_pod().running(), now=NOW).allocation
    assert right.status.deadlines["preemption"] == "2023-11-14T22:23:40.000Z"
    assert not once(right, a_pod().running(), now=NOW + 1).changed
    late = once(right, a_pod().running(), now=NOW + 600).allocation
    assert (late.status.phase, late.status.reason) == (Phase.TERMINATING, Reason.PREEMPTION_GRACE)


def test_a_watcher_whose_clock_is_behind_cuts_no_grace() -> None:
    """A watcher whose clock is behind cannot shorten a grace: its deadline is in the past for another watcher, which
    applies the grace that the ranks were given."""
    notified = once(can_save().asked_to_preempt().it, a_pod().running()).allocation
    behind = once(notified, a_pod().running(), now=NOW - 3600)
    assert behind.allocation.status.deadlines["preemption"] == "2023-11-14T21:23:40.000Z"
    early = once(behind.allocation, a_pod().running(), now=NOW + 1)
    assert (early.allocation.status.phase, early.needs.recheck_at) == (Phase.RUNNING, NOW + 600)
    late = once(behind.allocation, a_pod().running(), now=NOW + 600).allocation
    assert (late.status.phase, late.status.reason) == (Phase.TERMINATING, Reason.PREEMPTION_GRACE)
