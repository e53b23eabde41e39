"""Ranks of `restart: rank`: a failed rank starts again in its place, and the others continue."""

from typing import Any

import msgspec
import pytest

from slipway.crd.transitions import with_status
from slipway.crd.v1alpha1 import Allocation, RankStatus, Signals
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import Result
from tests.support.builders import T0, AllocationStory, PodStory, a_pod
from tests.support.reductions import NOW, a_running, ending, once, settled

NEW = "uid-of-the-next-pod"


def a_gang(ranks: int = 3, **spec: Any) -> AllocationStory:
    """A running gang whose ranks start again in their place."""
    return a_running(ranks, **{"restart": "rank", "maxRestarts": 3, **spec})


def with_failed(rank: int, code: int = 1, *, ranks: int = 3, at_s: int = 10) -> list[PodStory]:
    """The pods of a gang of which one rank has failed."""
    return [a_pod(each).exited(code, at_s=at_s) if each == rank else a_pod(each).running() for each in range(ranks)]


def renewed(allocation: Allocation, uid: str = NEW) -> Allocation:
    """The allocation once the pod worker has committed the next pod of the rank."""
    ranks = [msgspec.structs.replace(each, pod_uid=uid, not_before="") for each in allocation.status.restarted_ranks]
    return with_status(allocation, msgspec.structs.replace(allocation.status, restarted_ranks=ranks))


def the_next(rank: int, uid: str = NEW) -> PodStory:
    """The next pod of a rank, under the same name."""
    return a_pod(rank).with_metadata(uid=uid)


def test_a_rank_that_fails_starts_again_alone() -> None:
    """Only the failed rank starts again: the gang continues in the same attempt, and the failure is counted and
    recorded in one write."""
    done = once(a_gang().it, *with_failed(1)).allocation
    status = done.status
    assert (status.phase, status.attempt, status.restarts) == (Phase.RUNNING, 1, 1)
    assert [(each.rank, each.n, each.pod_uid) for each in status.restarted_ranks] == [(1, 1, "")]
    assert status.ranks is not None
    assert (status.ranks[1].phase, status.ranks[1].exit_code) == (RankState.FAILED, 1)


def test_what_happened_is_told_in_words() -> None:
    """The event describes the restart in words for users."""
    last = once(a_gang().it, *with_failed(2)).allocation.status.transitions[-1]
    assert last.type is Event.UPDATED
    assert last.data["startedAgain"] == [2]
    assert last.data["note"] == "rank 2 failed: exit code 1; it starts again (1 of 3)"


def test_where_all_ranks_are_daemons_none_starts_again() -> None:
    """When all ranks are daemons, none starts again: the gang succeeds, although one of them has failed."""
    story = a_gang().with_spec(signals=Signals(daemons=[0, 1, 2], attempt=1))
    status = once(story.it, *with_failed(1)).allocation.status
    assert (status.phase, status.restarted_ranks) == (Phase.TERMINATING, [])


def test_a_failure_is_counted_once() -> None:
    """A failure is counted once: another look at the failed pod writes nothing more."""
    done = settled(a_gang().it, *with_failed(1))
    assert (done.status.restarts, done.status.restarted_ranks[0].n) == (1, 1)
    assert not once(done, *with_failed(1)).changed


def test_the_failed_pod_is_deleted() -> None:
    """The failed pod loses its finalizer and is deleted, so that the next pod can have its name; the other pods are
    left alone."""
    done = once(a_gang().it, *with_failed(1))
    name = a_pod(1).it.metadata.name
    assert [pod.metadata.name for pod in done.deletes] == [name]
    assert [pod.metadata.name for pod in done.drop_pod_finalizers] == [name]


def test_the_pod_worker_is_asked_when_the_pause_is_over() -> None:
    """The pod worker gets hints from the end of the pause, not sooner, until the next pod has a node."""
    done = settled(a_gang().it, *with_failed(1))
    others = [a_pod(0).running(), a_pod(2).running()]
    early, later = once(done, *others), once(done, *others, now=NOW + 5)
    assert (early.needs.hint, later.needs.hint) == (False, True)
    assert early.needs.recheck_at is not None
    assert NOW < early.needs.recheck_at <= NOW + 5
    assert once(renewed(done), *others, the_next(1), now=NOW + 5).needs.hint
    assert not once(renewed(done), *others, the_next(1).running(), now=NOW + 5).needs.hint


def test_the_next_pod_takes_the_place_on_record() -> None:
    """The next pod replaces the failed one in the record; the rank runs again, and no work is left."""
    done = renewed(settled(a_gang().it, *with_failed(1)))
    done = settled(done, a_pod(0).running(), the_next(1).running(), a_pod(2).running(), now=NOW + 5)
    assert done.status.ranks is not None
    assert (done.status.ranks[1].pod_uid, done.status.ranks[1].phase) == (NEW, RankState.RUNNING)
    assert (done.status.phase, done.status.restarts) == (Phase.RUNNING, 1)


def test_a_gang_succeeds_when_the_rank_has_ended_well_at_last() -> None:
    """A gang succeeds only when the restarted rank has succeeded: a rank that starts again has not ended."""
    done = settled(a_gang().it, *with_failed(1))
    rest = [a_pod(0).exited(0), a_pod(2).exited(0)]
    assert settled(done, *rest, now=NOW + 5).status.phase is Phase.RUNNING
    done = settled(renewed(done), *rest, the_next(1).exited(0), now=NOW + 5)
    assert ending(done) == (Phase.TERMINATED, Result.SUCCEEDED, "Completed")


def test_the_failure_after_the_last_restart_ends_the_gang() -> None:
    """The failure after the last restart ends the gang; the limit is for all ranks together."""
    done = renewed(settled(a_gang(maxRestarts=1).it, *with_failed(1)))
    done = settled(done, a_pod(0).exited(2), the_next(1).running(), a_pod(2).running(), now=NOW + 5)
    assert (done.status.phase, done.status.reason) == (Phase.TERMINATING, "RankFailed")
    done = settled(done, a_pod(0).exited(2), the_next(1).exited(143), a_pod(2).exited(143), now=NOW + 9)
    assert ending(done) == (Phase.TERMINATED, Result.FAILED, "RankFailed")
    assert done.status.restarts == 1


def test_failures_that_are_seen_together_count_as_if_seen_one_by_one() -> None:
    """Failures that are seen together count as if seen one by one, so a watcher that was away does not give the gang an
    extra restart."""
    pods = [a_pod(0).exited(2, at_s=12), a_pod(1).exited(1, at_s=11), a_pod(2).running()]
    done = once(a_gang(maxRestarts=1).it, *pods).allocation
    assert (done.status.phase, done.status.restarts) == (Phase.TERMINATING, 1)
    assert done.status.message.startswith("rank 0")
    over = settled(done, *pods[:2], a_pod(2).exited(143).deleted(), now=NOW + 5)
    assert ending(over) == (Phase.TERMINATED, Result.FAILED, "RankFailed")


@pytest.mark.parametrize(
    "pod",
    [a_pod(1).bound().failed("OutOfcpu"), a_pod(1).running().deleted().exited(143)],
    ids=["rejected", "deleted"],
)
def test_a_lost_rank_is_no_failure_of_its_program(pod: PodStory) -> None:
    """A lost rank restarts the gang as a whole, as without `restart: rank`."""
    done = settled(a_gang().it, a_pod(0).running(), pod, a_pod(2).running())
    assert (done.status.phase, done.status.restarted_ranks, done.status.restarts) == (Phase.TERMINATING, [], 0)


def test_rules_of_the_launch_go_first() -> None:
    """Rules of the launch come first: fail ends the gang; notCounted restarts the rank without a count."""
    rules = [{"action": "fail", "exitCodes": [42]}, {"action": "notCounted", "exitCodes": [75]}]
    gang = a_gang(failurePolicy={"rules": rules})
    assert once(gang.it, *with_failed(1, 42)).allocation.status.phase is Phase.TERMINATING
    spared = once(gang.it, *with_failed(1, 75)).allocation.status
    assert (spared.phase, spared.restarts, spared.uncounted_restarts) == (Phase.RUNNING, 0, 1)


def test_what_is_to_stop_starts_no_rank_again() -> None:
    """A canceled gang starts no rank again, also while a rank waits for its next pod."""
    stopped = once(a_gang().killed().it, *with_failed(1)).allocation
    assert (stopped.status.phase, stopped.status.restarted_ranks) == (Phase.TERMINATING, [])


def test_a_next_pod_that_is_gone_is_a_lost_rank() -> None:
    """A committed next pod that certainly does not exist, because it was deleted, is a lost rank, and the gang starts
    again."""
    done = renewed(settled(a_gang().it, *with_failed(1)))
    done = settled(done, a_pod(0).running(), a_pod(2).running(), now=NOW + 5)
    assert (done.status.phase, done.status.reason) == (Phase.TERMINATING, "PodLost")


def test_each_attempt_begins_without_restarts() -> None:
    """Each attempt begins without restarts of ranks, with new placements and pods; the counts stay."""
    done = renewed(settled(a_gang().it, *with_failed(1)))
    gone = [a_pod(0).exited(143).deleted(), a_pod(2).exited(143).deleted()]
    done = settled(done, *gone, now=NOW + 5)
    assert (done.status.phase, done.status.attempt) == (Phase.PENDING, 2)
    assert (done.status.restarted_ranks, done.status.restarts) == ([], 1)


def test_the_pause_doubles_with_each_restart_of_a_rank() -> None:
    """The pause doubles with each restart of a rank, so that a program that cannot start does not keep a node and the
    API server busy."""
    story, uid, now, waits = a_gang(), a_pod(1).it.metadata.uid, NOW, list[float]()
    allocation = story.it
    for turn in range(3):
        failed = the_next(1, uid).exited(1, at_s=int(now - T0) - 2)
        allocation = settled(allocation, a_pod(0).running(), failed, a_pod(2).running(), now=now)
        entry = allocation.status.restarted_ranks[0]
        assert entry.n == turn + 1
        waits.append(once(allocation, a_pod(0).running(), a_pod(2).running(), now=now).needs.recheck_at or 0.0)
        waits[-1] -= now
        uid, now = f"uid-{turn}", now + 40
        allocation = renewed(allocation, uid)
    assert waits == pytest.approx([1.0, 2.0, 4.0])


def test_the_record_of_the_failure_stays_until_the_next_pod_is_there() -> None:
    """The record of the failure stays until the next pod exists, because an exit is never overwritten with nothing."""
    done = settled(a_gang().it, *with_failed(1))
    known = (done.status.ranks or [RankStatus()])[1]
    later = settled(done, a_pod(0).running(), a_pod(2).running(), now=NOW + 5)
    assert (later.status.ranks or [RankStatus()])[1] == known


def test_a_failure_before_the_success_is_counted() -> None:
    """A failure before the success is counted, as by a watcher that saw it in time, whether the rank came back or not;
    a failure after it is not."""
    gang = a_gang(2, successPolicy={"targets": [{"indexes": [0]}]})
    for at_s, restarts in ((9, 1), (11, 0)):
        done = settled(gang.it, a_pod(0).exited(0, at_s=10), a_pod(1).exited(1, at_s=at_s))
        assert (done.status.result, done.status.restarts) == (Result.SUCCEEDED, restarts)


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_rank_that_waits_does_not_hold_up_a_preemption(*, acknowledged: bool) -> None:
    """A rank that waits for its next pod does not delay a preemption: the others have their grace, and their end
    completes it."""
    others = [a_pod(0).running(), a_pod(2).running()]
    waiting = settled(a_gang(preemptible=True).ready().it, *with_failed(1))
    story = AllocationStory(waiting).stopped("Preempted", requeue=True, by="default/urgent", at_s=21)
    story = story.asked_to_preempt()
    told = settled((story.acknowledged(0) if acknowledged else story).it, *others, now=NOW + 5)
    assert (told.status.phase, told.status.transitions[-1].type) == (Phase.RUNNING, Event.PREEMPTING)
    done = settled(told, a_pod(0).exited(0), a_pod(2).exited(0), now=NOW + 9)
    if acknowledged:
        assert (done.status.phase, done.status.attempt, done.status.restarts) == (Phase.PENDING, 2, 1)
    else:
        assert ending(done)[0] is not Phase.RUNNING


def test_a_rank_that_cannot_be_made_again_ends_the_attempt_after_a_while() -> None:
    """A rank whose pod the pod worker cannot create ends the attempt after a while; the gang starts again as a whole,
    and no failure is counted."""
    done = settled(a_gang().it, *with_failed(1))
    stuck = AllocationStory(done).condition("Stuck", "QuotaExceeded", "exceeded quota: q", at_s=25).it
    others = [a_pod(0).running(), a_pod(2).running()]
    assert settled(stuck, *others, now=NOW + 60).status.phase is Phase.RUNNING
    over = settled(stuck, *others, now=NOW + 700)
    assert (over.status.phase, over.status.reason) == (Phase.TERMINATING, "LaunchStuck")
