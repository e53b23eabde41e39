"""Ends by decision: stops, cancels and preemptions."""

import pytest

from slipway.crd.v1alpha1 import Signals
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason, Result
from tests.support.builders import AllocationStory, a_pod, an_allocation
from tests.support.reductions import NOW, a_running, ending, once, settled


@pytest.mark.parametrize(
    ("story", "result"),
    [
        (a_running().killed(), Result.CANCELED),
        (a_running().deleted(), Result.CANCELED),
        (a_running().stopped("IdleTimeout"), Result.TIMED_OUT),
        (a_running().stopped("MaxRuntime"), Result.TIMED_OUT),
        (a_running().stopped("Evicted"), Result.EVICTED),
        (an_allocation().assigned().released().killed(), Result.CANCELED),
    ],
)
def test_a_stop_after_the_release_tears_down_first(story: AllocationStory, result: Result) -> None:
    """After a stop the allocation is Terminating until every pod has ended, then it has the result of the stop."""
    first = once(story.it, a_pod().running())
    assert first.allocation.status.phase is Phase.TERMINATING
    assert first.needs.hint
    ended = settled(first.allocation, a_pod().exited(143, at_s=18).deleted(at_s=16))
    assert ended.status.result is result
    assert [rank.reason for rank in ended.status.ranks or []] == [ended.status.reason]


def test_a_cancel_comes_before_whatever_the_ranks_did() -> None:
    """A committed cancel wins over a success and over a failure that would be retried."""
    assert settled(a_running().killed().it, a_pod().exited(0)).status.result is Result.CANCELED
    failing = once(a_running(maxRestarts=3).it, a_pod().exited(1)).allocation
    cancelled = AllocationStory(failing).killed()
    assert settled(cancelled.it, a_pod().exited(1)).status.result is Result.CANCELED


def test_completed_work_is_not_timed_out_or_run_again() -> None:
    """A deadline or an eviction that comes after the end of the work changes nothing."""
    for stop in (a_running().stopped("MaxRuntime"), a_running().stopped("Preempted", requeue=True)):
        assert settled(stop.it, a_pod().exited(0, at_s=4)).status.result is Result.SUCCEEDED


def test_a_requeued_eviction_begins_again_at_once() -> None:
    """An eviction by decision restarts at once: it counts no failure and has no backoff."""
    status = settled(a_running().stopped("Preempted", requeue=True, by="team/big").it, a_pod().exited(143)).status
    assert (status.phase, status.attempt) == (Phase.PENDING, 2)
    assert (status.restarts, status.infra_restarts, status.not_before) == (0, 0, "")


def test_an_unbound_pod_of_the_release_ends_with_its_deletion() -> None:
    """An unbound pod of the release has ended once it is being deleted, because no kubelet runs it and it can no longer
    be bound."""
    first = once(an_allocation().assigned().released().killed().it, a_pod()).allocation
    assert first.status.phase is Phase.TERMINATING
    ended = once(first, a_pod().deleted())
    assert ended.allocation.status.result is Result.CANCELED
    assert len(ended.drop_pod_finalizers) == 1


# --- preemption


def test_ready_work_is_told_and_given_time() -> None:
    """Ready work receives `preempting` with a stored deadline; nothing is torn down yet."""
    story = a_running(preemptible=True, preemptionGrace="10m").ready().stopped("Preempted", requeue=True, by="x")
    done = once(story.it, a_pod().running())
    status = done.allocation.status
    assert status.phase is Phase.RUNNING
    assert status.transitions[-1].type is Event.PREEMPTING
    assert status.deadlines["preemption"] == "2023-11-14T22:23:40.000Z"
    assert not once(done.allocation, a_pod().running()).changed


def test_work_that_is_not_ready_is_ended_at_once() -> None:
    """Work that is not ready is killed at once, because it cannot react to a preemption."""
    done = once(a_running().stopped("Preempted", requeue=True).it, a_pod().running())
    assert (done.allocation.status.phase, done.allocation.status.reason) == (Phase.TERMINATING, Reason.PREEMPTED)


PREEMPTIONS = [
    ("acked, exit 0", True, 0, Result.PREEMPTED, Reason.PREEMPTED),
    ("acked, failed", True, 1, Result.PREEMPTED, Reason.PREEMPTED),
    ("not acked, exit 0", False, 0, Result.SUCCEEDED, Reason.USER_STOPPED),
    ("not acked, failed", False, 1, Result.FAILED, Reason.RANK_FAILED),
]


@pytest.mark.parametrize(("_case", "acked", "code", "result", "reason"), PREEMPTIONS)
def test_what_a_users_preemption_comes_to(_case: str, acked: bool, code: int, result: Result, reason: Reason) -> None:
    """The acknowledgement decides the result of a user's preemption."""
    told = once(a_running().asked_to_preempt().it, a_pod().running()).allocation
    story = AllocationStory(told)
    story = story.acknowledged(0) if acked else story
    assert ending(settled(story.it, a_pod().exited(code, at_s=18))) == (Phase.TERMINATED, result, reason)


def test_a_preemption_that_was_acknowledged_before_it_was_recorded_is_over_at_once() -> None:
    """The look that records it decides like the next one: nothing waits for a gang of daemons."""
    story = (
        an_allocation(2, successPolicy={"targets": [{"role": "worker", "indexes": [0]}]})
        .assigned()
        .released()
        .running()
    )
    story = story.with_spec(signals=Signals(attempt=1, daemons=[0, 1])).asked_to_preempt().acknowledged(0, 1)
    status = once(story.it, a_pod(0).running(), a_pod(1).running()).allocation.status
    assert (status.phase, status.reason) == (Phase.TERMINATING, Reason.PREEMPTED)
    assert [entry.type for entry in status.transitions[-2:]] == [Event.PREEMPTING, Event.TERMINATING]


def test_what_the_system_preempted_comes_back() -> None:
    """An allocation that the system preempted starts its next attempt without backoff after the ranks have acknowledged
    and ended; a held one waits there."""
    story = a_running().ready().stopped("Preempted", requeue=True)
    told = once(story.it, a_pod().running()).allocation
    status = settled(AllocationStory(told).acknowledged(0, n=0).it, a_pod().exited(0, at_s=18)).status
    assert (status.phase, status.attempt, status.not_before) == (Phase.PENDING, 2, "")
    assert status.deadlines == {}
    paused = once(a_running(hold=True).asked_to_preempt().it, a_pod().running()).allocation
    status = settled(AllocationStory(paused).acknowledged(0).it, a_pod().exited(0, at_s=18)).status
    assert (status.phase, status.attempt) == (Phase.PENDING, 2)


def test_the_grace_runs_out() -> None:
    """When the grace ends, the allocation is killed. It restarts after a preemption by the system, not after one by its
    user."""
    told = once(a_running(preemptionGrace="10s").asked_to_preempt().it, a_pod().running()).allocation
    late = once(told, a_pod().running(), now=NOW + 10).allocation
    assert (late.status.phase, late.status.reason) == (Phase.TERMINATING, Reason.PREEMPTION_GRACE)
    ended = settled(late, a_pod().exited(137, at_s=31).deleted(at_s=30), now=NOW + 20)
    assert ending(ended) == (Phase.TERMINATED, Result.PREEMPTED, Reason.PREEMPTION_GRACE)


def test_a_grace_is_over_when_both_clocks_say_so() -> None:
    """A scheduler whose clock is ahead cannot shorten a grace: its stop takes effect when the grace is over by the
    watcher's clock too."""
    told = once(a_running(preemptionGrace="10s").asked_to_preempt().it, a_pod().running()).allocation
    stopped = AllocationStory(told).stopped("PreemptionGrace", at_s=700.0).it
    early = once(stopped, a_pod().running(), now=NOW + 4)
    assert (early.allocation.status.phase, early.needs.recheck_at) == (Phase.RUNNING, NOW + 10)
    late = once(stopped, a_pod().running(), now=NOW + 10).allocation
    assert (late.status.phase, late.status.reason) == (Phase.TERMINATING, Reason.PREEMPTION_GRACE)
