"""Surplus ranks of an elastic gang that are preempted: they end, and the others continue."""

from slipway.crd.v1alpha1 import Preempted, Shrink
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import Reason, Result
from tests.support.builders import T0, AllocationStory, a_pod
from tests.support.reductions import NOW, a_running, ending, once, settled


def shrinking(*ranks: int, told: int = 0, **spec: object) -> AllocationStory:
    """A running gang of three that needs one; some ranks were told to end."""
    shrink = Shrink(ranks=list(ranks), attempt=1, reason="Preempted", by="default/urgent", told=told)
    return a_running(3, **{"minAvailable": 1, **spec}).with_status(shrink=shrink)


def test_ranks_that_are_told_to_go_need_the_pod_worker_once() -> None:
    """Ranks that are told to end require a hint to the pod worker until their deletion is requested."""
    story = shrinking(2)
    pods = [a_pod(rank).running() for rank in range(3)]
    assert once(story.it, *pods).needs.hint
    assert not once(story.it, *pods[:2], a_pod(2).running().deleted(at_s=6)).needs.hint


def test_the_gang_runs_on_without_them_and_says_for_whom() -> None:
    """The gang continues without the ranks that ended for the preemption, whatever their exit; the shrink is reported
    once, with the beneficiary."""
    story = shrinking(1, 2)
    killed = [a_pod(1).exited(143, at_s=18).deleted(at_s=16), a_pod(2).exited(0, at_s=18).deleted(at_s=16)]
    done = settled(story.it, a_pod(0).running(), *killed)
    assert (done.status.phase, done.status.attempt, done.status.restarts) == (Phase.RUNNING, 1, 0)
    assert [rank.reason for rank in done.status.ranks or []] == ["", Reason.PREEMPTED, Reason.PREEMPTED]
    last = done.status.transitions[-1]
    assert (last.type, last.data["ranks"], last.data["by"]) == (Event.UPDATED, [1, 2], "default/urgent")
    assert done.status.shrink is not None
    assert done.status.shrink.told == 2


def test_its_slots_count_until_they_are_given_up() -> None:
    """The gang is charged three GPUs from its placement until its rank has ended, then two, exact to the
    millisecond."""
    gpus = {"nvidia.com/gpu": "1"}
    story = shrinking(2).with_status(slots=3)
    rest = [a_pod(rank, requests=gpus).running() for rank in (0, 1)]
    gone = a_pod(2, requests=gpus).exited(143, at_s=18).deleted(at_s=16)
    shrunk = settled(story.it, *rest, gone, now=T0 + 20)
    assert shrunk.status.slots == 2
    ended = settled(shrunk, *(pod.exited(0, at_s=30) for pod in rest), gone, now=T0 + 31)
    assert ended.status.usage is not None
    ((_, used),) = ended.status.usage.days.items()
    assert sum(used.slot_ms.values()) == (20 - 1) * 1000 * 3 + (31 - 20) * 1000 * 2


def test_nothing_is_told_while_one_of_them_still_runs() -> None:
    """Nothing is reported while one of these ranks still runs: their grace is that of their pods."""
    story = shrinking(1, 2)
    pods = [a_pod(0).running(), a_pod(1).exited(143, at_s=18).deleted(at_s=16), a_pod(2).running().deleted(at_s=16)]
    assert settled(story.it, *pods).status.transitions[-1].type is Event.RUNNING


def test_more_ranks_may_go_later() -> None:
    """More ranks may be removed later; each shrink is reported separately."""
    story = shrinking(1, 2, told=1)
    gone = [a_pod(rank).exited(143, at_s=18).deleted(at_s=16) for rank in (1, 2)]
    assert settled(story.it, a_pod(0).running(), *gone).status.transitions[-1].data["ranks"] == [2]


def test_a_gang_that_has_shrunk_ends_as_well_as_any() -> None:
    """A gang that has shrunk succeeds like any other: the removed ranks do not prevent it."""
    story = shrinking(1, 2)
    gone = [a_pod(rank).exited(143, at_s=18).deleted(at_s=16) for rank in (1, 2)]
    on = settled(story.it, a_pod(0).running(), *gone)
    ended = settled(on, a_pod(0).exited(0, at_s=19), *gone)
    assert ending(ended) == (Phase.TERMINATED, Result.SUCCEEDED, Reason.COMPLETED)


def test_a_rank_that_fails_beside_them_counts_against_the_same_minimum() -> None:
    """Removed and lost ranks count against the same minimum: after two were removed and one lost, the gang is below its
    minimum of two and torn down whole; no failure is counted."""
    story = shrinking(2, minAvailable=2)
    gone = a_pod(2).exited(143, at_s=18).deleted(at_s=16)
    lost = a_pod(1).failed("NodeLost")
    done = once(story.it, a_pod(0).running(), lost, gone).allocation
    assert (done.status.phase, done.status.reason) == (Phase.TERMINATING, Reason.NODE_LOST)


def test_the_next_attempt_begins_whole() -> None:
    """Removed ranks do not return in this attempt; the next attempt has all ranks."""
    story = shrinking(2).stopped("Preempted", requeue=True, by="default/urgent")
    told = once(story.it, *(a_pod(rank).running() for rank in range(3))).allocation
    gone = [a_pod(rank).exited(143, at_s=18).deleted(at_s=16) for rank in range(3)]
    again = settled(told, *gone)
    assert (again.status.phase, again.status.attempt, again.status.shrink) == (Phase.PENDING, 2, None)


def test_an_end_for_others_says_for_whom() -> None:
    """Work that is not ready ends at once when it is preempted; its transition and the message of the next attempt name
    the beneficiary."""
    preempted = [Preempted(at="2026-01-01T00:00:05Z", by="default/urgent", attempt=1)]
    story = a_running(1).stopped("Preempted", requeue=True, by="default/urgent").with_status(preemptions=preempted)
    done = once(story.it, a_pod(0).running()).allocation
    assert done.status.transitions[-1].data["by"] == "default/urgent"
    again = settled(done, a_pod(0).exited(143, at_s=18).deleted(at_s=16))
    assert "preempted for default/urgent" in again.status.message
    words = {condition.type: condition.message for condition in again.status.conditions}
    assert words["Preempted"] == "preempted for default/urgent"
    assert again.status.preemptions == preempted


def test_ranks_that_are_lost_before_they_start_do_not_keep_the_others_from_running() -> None:
    """Ranks that are lost before they start do not keep the others from Running when these are enough."""
    story = a_running(3, minAvailable=2)
    fresh = story.with_status(phase=Phase.STARTING)
    pods = [a_pod(0).running(), a_pod(1).running(), a_pod(2).bound().failed("NodeLost")]
    assert once(fresh.it, *pods, now=NOW).allocation.status.phase is Phase.RUNNING
    assert RankState.FAILED is (once(fresh.it, *pods).allocation.status.ranks or [])[2].phase
