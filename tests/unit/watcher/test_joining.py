"""Ranks that are added to a running gang: reported when they run, returned when they cannot start."""

import msgspec

from slipway.crd.v1alpha1 import Growth, Placement, RankStatus, Shrink
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import Result
from tests.support.builders import AllocationStory, a_pod, an_allocation
from tests.support.reductions import NOW, ending, once, settled

UID = a_pod(1).it.metadata.uid
GPU = {"nvidia.com/gpu": "1"}


def growing(*, pods: int = 1, left: tuple[int, ...] = ()) -> AllocationStory:
    """A running gang of two ranks whose minimum is one; rank 1 was added, with its pod."""
    story = an_allocation(2, minAvailable=1).assigned().released().running()
    admission, release = story.it.status.admission, story.it.status.release
    assert admission is not None
    assert release is not None
    place = admission.placements[1]
    growth = Growth(
        n=1,
        attempt=1,
        placements=[Placement(rank=1, role=place.role, node=place.node)],
        pod_uids=[UID][:pods],
        left=[1],
    )
    return story.with_status(growth=growth)


def test_a_growth_is_told_when_its_ranks_run() -> None:
    """A growth is reported once, when its ranks run, with the slots of the gang from then on."""
    pods = [a_pod(0, requests=GPU).running(), a_pod(1, requests=GPU).running()]
    done = settled(growing().it, *pods)
    last = done.status.transitions[-1]
    assert (last.type, last.data) == (Event.UPDATED, {"grown": [1], "slots": 2})
    assert (done.status.slots, done.status.growth and done.status.growth.told) == (2, 1)
    assert not once(done, *pods).changed


def test_nothing_is_told_while_a_rank_has_still_to_start() -> None:
    """Nothing is reported while an added rank has not started, because it may never start."""
    done = settled(growing().it, a_pod(0).running(), a_pod(1).bound())
    assert done.status.transitions[-1].type is Event.RUNNING


def test_ranks_that_have_no_pod_need_the_pod_worker() -> None:
    """Added ranks without a pod send a hint to the pod worker, because the scheduler's hint may be lost."""
    assert once(growing(pods=0).it, a_pod(0).running()).needs.hint
    assert once(growing().it, a_pod(0).running(), a_pod(1)).needs.hint
    assert not once(growing().it, a_pod(0).running(), a_pod(1).running()).needs.hint


def test_a_rank_that_fails_before_it_ran_is_given_back() -> None:
    """An added rank that fails before it ran is returned: the gang runs on, no failure is counted, and it requests no
    other rank for a while."""
    done = settled(growing().it, a_pod(0).running(), a_pod(1).bound().failed("OutOfcpu"))
    status = done.status
    assert (status.phase, status.attempt, status.restarts, status.infra_restarts) == (Phase.RUNNING, 1, 0, 0)
    assert status.shrink is not None
    assert (status.shrink.ranks, status.shrink.by, status.shrink.told) == ([1], "", 1)
    assert status.growth is not None
    assert status.growth.not_before
    assert "rank 1" in status.growth.reason


def test_a_rank_that_joins_is_no_reason_to_go_on_without_the_minimum() -> None:
    """Rank 0 is the minimum: when it fails, an added rank that has never run does not replace it."""
    done = settled(growing().it, a_pod(0).exited(1, at_s=18), a_pod(1).bound())
    assert done.status.phase is Phase.TERMINATING


def test_work_that_is_done_does_not_wait_for_a_rank_that_joins() -> None:
    """When the work is done, the gang succeeds without the rank that is still joining."""
    done = settled(growing().it, a_pod(0).exited(0, at_s=18), a_pod(1).bound())
    assert done.status.phase is Phase.TERMINATING
    over = settled(done, a_pod(0).exited(0, at_s=18), now=NOW + 5)
    assert ending(over) == (Phase.TERMINATED, Result.SUCCEEDED, "Completed")


def test_once_it_has_run_it_is_a_rank_like_the_others() -> None:
    """Once an added rank has run it is like the others: the gang has two ranks, and continues with one."""
    done = settled(growing().it, a_pod(0).exited(1, at_s=18), a_pod(1).running())
    assert done.status.phase is Phase.RUNNING


def test_a_rank_that_ran_and_was_lost_is_not_given_back() -> None:
    """An added rank that ran and whose node is gone without an exit is a lost rank like any other, and is not
    replaced."""
    ran = settled(growing().it, a_pod(0).running(), a_pod(1).running())
    lost = settled(ran, a_pod(0).running())
    assert (lost.status.phase, lost.status.shrink) == (Phase.RUNNING, None)
    assert lost.status.growth is not None
    assert lost.status.growth.not_before == ""


def test_a_growth_that_the_pod_worker_has_withdrawn_says_why() -> None:
    """When the pod worker withdraws a growth, the rank is removed, and the event has the reason and the time of the
    next try."""
    growth = Growth(n=2, attempt=1, left=[1], not_before="2026-01-01T00:10:00.000Z", reason="exceeded quota: q")
    done = settled(growing(pods=0).with_status(growth=growth).it, a_pod(0).running())
    last = done.status.transitions[-1]
    assert last.type is Event.UPDATED
    assert (last.data["grown"], last.data["notStarted"]) == ([], "exceeded quota: q")
    assert last.data["notBefore"] == growth.not_before
    assert done.status.growth is not None
    assert done.status.growth.reason == growth.reason


def test_a_growth_that_has_started_forgets_the_failure_before_it() -> None:
    """A growth that has started removes the reason of the failure before it."""
    growth = growing().it.status.growth
    assert growth is not None
    story = growing().with_status(growth=msgspec.structs.replace(growth, reason="exceeded quota: q"))
    done = settled(story.it, a_pod(0).running(), a_pod(1).running())
    assert done.status.growth is not None
    assert done.status.growth.reason == ""


def test_the_record_of_a_rank_that_left_stays_until_its_next_pod_is_seen() -> None:
    """The record of a rank that left, with its exit, stays until its next pod is seen, and is then replaced."""
    before = RankStatus(pod_uid="the-one-before", phase=RankState.FAILED, exit_code=143, reason="Preempted")
    first = RankStatus(pod_uid=a_pod(0).it.metadata.uid, phase=RankState.RUNNING, node="n0")
    story = growing(pods=0).with_status(ranks=[first, before])
    assert (settled(story.it, a_pod(0).running()).status.ranks or [])[1] == before
    story = growing().with_status(ranks=[first, before])
    assert (settled(story.it, a_pod(0).running(), a_pod(1).running()).status.ranks or [])[1].pod_uid == UID


def test_a_rank_that_never_had_a_pod_is_gone_when_its_growth_is_withdrawn() -> None:
    """A rank that was told to make room before its pod was released disappears when its growth is withdrawn."""
    story = growing(pods=0)
    growth = Growth(n=2, attempt=1, left=[1])
    shrunk = story.with_status(growth=growth, shrink=Shrink(ranks=[1], attempt=1, by="default/urgent"))
    done = settled(shrunk.it, a_pod(0).running())
    assert done.status.shrink is not None
    assert done.status.shrink.told == 1
