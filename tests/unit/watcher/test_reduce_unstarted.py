"""The end of an attempt that was never released."""

import pytest

from slipway.crd.meta import Condition
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason, Result
from slipway.model.times import parse_time
from tests.support.builders import T0, AllocationStory, a_pod, an_allocation
from tests.support.reductions import a_running, ending, once, settled


@pytest.mark.parametrize(
    ("story", "result", "reason"),
    [
        (an_allocation().killed(), Result.CANCELED, Reason.KILLED),
        (an_allocation().deleted(), Result.CANCELED, Reason.DELETED),
        (an_allocation().assigned().killed(), Result.CANCELED, Reason.KILLED),
        (an_allocation().stopped("PendingTimeout"), Result.TIMED_OUT, Reason.PENDING_TIMEOUT),
        (an_allocation().asked_to_preempt(), Result.PREEMPTED, Reason.PREEMPTED),
        (an_allocation().assigned().stopped("Evicted"), Result.EVICTED, Reason.EVICTED),
        (an_allocation().assigned().condition("Refused", "InvalidSpec", "no"), Result.INVALID, Reason.INVALID_SPEC),
        (an_allocation().assigned().condition("Refused", "TooLarge", "no"), Result.INVALID, Reason.TOO_LARGE),
        (an_allocation().assigned().condition("Refused", "LaunchRefused"), Result.INVALID, Reason.LAUNCH_REFUSED),
        (an_allocation().condition("Invalid", "Invalid", "bad role"), Result.INVALID, Reason.INVALID_SPEC),
    ],
)
def test_what_never_started_ends_at_once(story: AllocationStory, result: Result, reason: Reason) -> None:
    """A signal before anything started ends the allocation in one write and without a lookup."""
    done = once(story.it)
    assert ending(done.allocation) == (Phase.TERMINATED, result, reason)
    assert done.allocation.status.transitions[-1].type is Event.TERMINATED


def test_a_terminating_namespace_cancels_and_lets_pods_go_at_once() -> None:
    """A namespace that is being deleted cancels its allocations and releases their pods at once, because our finalizers
    would block it."""
    done = once(a_running().it, a_pod().running(), namespace_terminating=True)
    assert done.allocation.status.phase is Phase.TERMINATING
    assert done.allocation.status.reason == Reason.NAMESPACE_TERMINATING
    assert len(done.drop_pod_finalizers) == 1


def test_a_condition_of_an_earlier_attempt_says_nothing() -> None:
    """A condition Refused or Stuck of an earlier attempt is ignored: its `observedGeneration` is the attempt."""
    story = an_allocation().assigned().condition("Refused", "InvalidSpec")
    later = story.with_status(attempt=2)
    assert not once(later.it).changed


def test_the_refusal_tells_why() -> None:
    """The message of the end is the server's own message."""
    story = an_allocation().assigned().condition("Refused", "InvalidSpec", "spec.containers: Required value")
    assert once(story.it).allocation.status.message == "spec.containers: Required value"


def test_the_end_of_a_wait_that_was_too_long_tells_what_it_waited_for() -> None:
    """An end by a pending timeout names the reason of the wait; other ends do not, because a user who kills it knows
    why."""
    waits = Condition(type="Admitted", status="False", reason="NoFit", message="0 of 2 nodes fit")
    story = an_allocation().with_status(conditions=[waits])
    assert once(story.stopped("PendingTimeout").it).allocation.status.message == "0 of 2 nodes fit"
    assert once(story.killed().it).allocation.status.message == ""


def test_an_evicted_assignment_begins_again_when_no_pod_is_left() -> None:
    """Unbound leftovers are deleted first; then the next attempt is recorded without the phase Terminating."""
    story = an_allocation().assigned().stopped("Preempted", requeue=True)
    waiting = once(story.it, a_pod(), consistent=True)
    assert waiting.allocation.status.phase is Phase.TERMINATING
    assert waiting.needs.hint
    assert once(story.it).needs.consistent_list
    again = once(story.it, consistent=True).allocation.status
    assert (again.phase, again.attempt, again.stop, again.not_before) == (Phase.PENDING, 2, None, "")


def test_what_is_held_after_its_admission_waits_again() -> None:
    """An allocation that is held after its admission waits again: nothing runs yet, so the placement is returned. A
    released one continues."""
    held = an_allocation().assigned().with_spec(hold=True)
    assert once(held.it).needs.consistent_list
    again = settled(held.it).status
    assert (again.phase, again.attempt, again.restarts, again.not_before) == (Phase.PENDING, 2, 0, "")
    begun = once(held.it, a_pod(), consistent=True)
    assert (begun.allocation.status.phase, begun.needs.hint) == (Phase.TERMINATING, True)
    assert not once(an_allocation(hold=True).it).changed
    assert once(an_allocation(hold=True).assigned().released().it, a_pod().running()).allocation.status.attempt == 1


def test_a_stop_that_requeues_what_waits_is_taken_back() -> None:
    """A requeuing stop of a waiting allocation is withdrawn, because nothing was placed."""
    done = once(an_allocation().stopped("Preempted", requeue=True).it)
    assert (done.allocation.status.phase, done.allocation.status.stop) == (Phase.PENDING, None)


def test_a_stuck_launch_gives_its_place_back_after_a_while() -> None:
    """A stuck launch returns its placement after a while, by no fault of the user."""
    story = an_allocation().assigned().condition("Stuck", "Denied", at_s=2)
    early = once(story.it, now=T0 + 601)
    assert not early.changed
    assert early.needs.recheck_at == T0 + 602
    again = settled(story.it, now=T0 + 602).status
    assert (again.attempt, again.restarts, again.infra_restarts) == (2, 0, 1)
    assert again.transitions[-1].reason == Reason.LAUNCH_STUCK


def test_a_pod_worker_whose_clock_is_behind_does_not_hurry_the_end() -> None:
    """When the pod worker's clock dates Stuck before the admission, the time counts from the admission."""
    story = an_allocation().assigned().condition("Stuck", "Denied", at_s=-600)
    admission = story.it.status.admission
    assert admission is not None
    admitted_at = parse_time(admission.at)
    assert once(story.it, now=T0 + 1).needs.recheck_at == admitted_at + 600
    assert not once(story.it, now=T0 + 1).changed


def test_a_release_that_can_not_be_bound_is_given_up_at_once() -> None:
    """A release whose pod the API server will never bind is given up at once."""
    story = an_allocation(2).assigned().released().condition("Stuck", "BindRefused")
    done = once(story.it, a_pod(0).bound(), a_pod(1))
    assert (done.allocation.status.phase, done.allocation.status.reason) == (Phase.TERMINATING, Reason.LAUNCH_STUCK)
