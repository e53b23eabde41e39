"""The work that one allocation requires of the pod worker: in each state, and after a stop or a new attempt."""

import pytest

from slipway.crd.v1alpha1 import Allocation, RankStatus, Shrink
from slipway.model.lifecycle import Event, RankState
from slipway.podworker.intent import (
    CONDITION_REFUSED,
    CONDITION_STUCK,
    Bind,
    DeleteRanks,
    Intent,
    LaunchIntent,
    NoAction,
    Teardown,
    decide,
)
from tests.support.builders import AllocationStory, an_allocation

FRESH = an_allocation()
ASSIGNED = FRESH.assigned()
RELEASED = ASSIGNED.released()
RUNNING = RELEASED.running()
TERMINATING = RUNNING.recorded(Event.TERMINATING, at_s=6)
TERMINATED = TERMINATING.recorded(Event.TERMINATED, at_s=7)
SECOND = RUNNING.recorded(Event.RESTARTED, at_s=8)


@pytest.mark.parametrize(
    ("story", "wanted"),
    [
        pytest.param(FRESH, NoAction("never admitted"), id="a pending one waits for the scheduler"),
        pytest.param(ASSIGNED, LaunchIntent(0), id="an admitted one is launched"),
        pytest.param(RELEASED, Bind(0), id="a released one is bound"),
        pytest.param(RELEASED.recorded(Event.PULLING, at_s=2), Bind(0), id="some pods may be bound before the others"),
        pytest.param(RELEASED.started(), Bind(0), id="also while it starts"),
        pytest.param(RUNNING, NoAction("running"), id="a running one has all its pods"),
        pytest.param(TERMINATING, Teardown(1), id="what terminates is torn down"),
        pytest.param(TERMINATED, Teardown(1), id="what has ended is torn down"),
        pytest.param(SECOND, Teardown(1), id="the attempt before is removed while the next one waits"),
        pytest.param(SECOND.assigned(at_s=9), LaunchIntent(1), id="the second attempt is launched, the first removed"),
        pytest.param(SECOND.assigned(at_s=9).released(), Bind(1), id="and bound"),
        pytest.param(SECOND.killed(), Teardown(2), id="cancelled between two attempts"),
    ],
)
def test_each_state_asks_for_one_thing(story: AllocationStory, wanted: Intent) -> None:
    """Each state requires one thing, which follows from phase, admission, release and attempt alone."""
    assert decide(story.it) == wanted


def test_ranks_that_were_told_to_make_room_go_until_they_are_seen_to_go() -> None:
    """Ranks that were told to make room are deleted until their pods are seen to be deleted, in the running attempt
    only; a stop of the whole gang is the watcher's."""
    shrunk = an_allocation(3, minAvailable=1).assigned().released().running()
    shrunk = shrunk.with_status(shrink=Shrink(ranks=[1, 2], attempt=1))
    assert decide(shrunk.it) == DeleteRanks((1, 2))
    seen = [RankStatus(phase=phase) for phase in (RankState.RUNNING, RankState.RELEASING, RankState.RUNNING)]
    assert decide(shrunk.with_status(ranks=seen).it) == DeleteRanks((2,))
    assert decide(shrunk.stopped("Preempted").it) == NoAction("stopping")
    assert decide(shrunk.with_status(shrink=Shrink(ranks=[1], attempt=2)).it) == NoAction("running")


@pytest.mark.parametrize("stop", ["killed", "deleted", "stopped"])
@pytest.mark.parametrize(
    ("story", "wanted"),
    [
        pytest.param(FRESH, NoAction("never admitted"), id="pending"),
        pytest.param(ASSIGNED, Teardown(1), id="assigned"),
        pytest.param(RELEASED, NoAction("stopping"), id="released"),
        pytest.param(RUNNING, NoAction("stopping"), id="running"),
        pytest.param(TERMINATING, Teardown(1), id="terminating"),
        pytest.param(TERMINATED, Teardown(1), id="terminated"),
    ],
)
def test_a_stop_before_the_release_never_starts_and_one_after_it_is_left_to_the_watcher(
    story: AllocationStory, wanted: Intent, stop: str
) -> None:
    """A stop before the release deletes the pods at once; after the release the pod worker waits until the watcher has
    moved the phase."""
    stopped = story.stopped("MaxRuntime") if stop == "stopped" else getattr(story, stop)()
    assert decide(stopped.it) == wanted


def test_a_terminating_namespace_is_a_stop() -> None:
    """A namespace that is being deleted is a stop, because nothing can be created there."""
    assert decide(ASSIGNED.it, namespace_terminating=True) == Teardown(1)


def test_nothing_is_launched_without_the_finalizer() -> None:
    """Nothing is launched without the finalizer: the object could be gone before its pods are torn down."""
    assert decide(ASSIGNED.with_metadata(finalizers=[]).it) == NoAction("no finalizer")


def test_what_was_held_before_its_release_is_not_launched() -> None:
    """An allocation that was held before its release is not launched, however far the launch was; after the release a
    hold applies to the next attempt."""
    assert decide(ASSIGNED.with_spec(hold=True).it) == NoAction("held")
    second = ASSIGNED.recorded(Event.RESTARTED, at_s=3).assigned(at_s=4).with_spec(hold=True)
    assert decide(second.it) == Teardown(1)
    assert decide(RELEASED.with_spec(hold=True).it) == Bind(0)


def test_a_refused_launch_is_not_tried_again() -> None:
    """A refused launch is not retried, because the watcher ends it; a refusal of the previous attempt is ignored."""
    refused = ASSIGNED.condition(CONDITION_REFUSED, "InvalidSpec")
    assert decide(refused.it) == NoAction("refused")
    again = refused.recorded(Event.RESTARTED, at_s=3).assigned(at_s=4)
    assert decide(again.it) == LaunchIntent(1)


def test_a_stuck_launch_is_tried_again() -> None:
    """A launch with the condition Stuck is tried again."""
    assert decide(ASSIGNED.condition(CONDITION_STUCK, "QuotaExceeded").it) == LaunchIntent(0)


def test_an_admission_of_the_attempt_before_launches_nothing() -> None:
    """An admission of the previous attempt launches nothing; its record stays after the attempt."""
    allocation: Allocation = SECOND.it
    assert allocation.status.admission is not None
    assert not isinstance(decide(allocation), LaunchIntent | Bind)
