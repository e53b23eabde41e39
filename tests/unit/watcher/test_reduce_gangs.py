"""Gangs that may lose ranks, and daemons, which do not keep their gang running."""

import pytest

from slipway.crd.v1alpha1 import RoleSpec, Signals
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason, Result
from tests.support.builders import T0, AllocationStory, a_pod, an_allocation
from tests.support.reductions import NOW, a_running, ending, once, settled

LOST = [
    a_pod(2).failed("NodeLost"),
    a_pod(2).failed("Evicted", "low on memory"),
    a_pod(2).failed("OutOfcpu"),
    a_pod(2).running().deleted(at_s=12),
]


def daemons(*ranks: int, count: int = 2) -> AllocationStory:
    return a_running(count).with_spec(signals=Signals(daemons=list(ranks), attempt=1))


# --- daemons


def test_all_ranks_marked_is_the_end() -> None:
    """When all ranks are marked as daemons, no rank keeps the gang running: they are ended, and do not fail it."""
    first = once(daemons(0, 1).it, a_pod(0).running(), a_pod(1).running()).allocation
    assert (first.status.phase, first.status.reason) == (Phase.TERMINATING, Reason.COMPLETED)
    killed = [a_pod(rank).exited(143, at_s=18).deleted(at_s=16) for rank in (0, 1)]
    assert ending(settled(first, *killed)) == (Phase.TERMINATED, Result.SUCCEEDED, Reason.COMPLETED)


def test_a_rank_that_is_alone_is_no_daemon() -> None:
    """The exit of a single rank decides, whether the rank is marked as a daemon or not."""
    story = daemons(0, count=1)
    assert once(story.it, a_pod().running()).allocation.status.phase is Phase.RUNNING
    assert settled(story.it, a_pod().exited(3)).status.result is Result.FAILED
    assert settled(story.it, a_pod().exited(0)).status.result is Result.SUCCEEDED


def test_a_mark_of_another_attempt_says_nothing() -> None:
    """A mark from another attempt is ignored, because signals belong to an attempt."""
    story = a_running(2).with_spec(signals=Signals(daemons=[0, 1], attempt=2))
    assert once(story.it, a_pod(0).running(), a_pod(1).running()).allocation.status.phase is Phase.RUNNING


def test_a_daemon_that_fails_while_others_work_fails_the_gang() -> None:
    """A daemon that fails while other ranks work fails the gang: only its end after theirs is ignored."""
    done = once(daemons(1).it, a_pod(0).running(), a_pod(1).exited(1)).allocation
    assert (done.status.phase, done.status.reason) == (Phase.TERMINATING, Reason.RANK_FAILED)


def test_a_daemon_may_end_well_before_the_others() -> None:
    """A daemon may succeed before the others: they continue, and decide the result."""
    story = daemons(1)
    assert once(story.it, a_pod(0).running(), a_pod(1).exited(0)).allocation.status.phase is Phase.RUNNING
    assert settled(story.it, a_pod(0).exited(0, at_s=14), a_pod(1).exited(0)).status.result is Result.SUCCEEDED


def test_a_worker_that_fails_beside_daemons_fails_it() -> None:
    """A worker that fails beside daemons fails the gang: its exit is the cause, and the daemons are killed."""
    done = once(daemons(1).it, a_pod(0).exited(5), a_pod(1).running()).allocation
    ended = settled(done, a_pod(0).exited(5), a_pod(1).exited(143, at_s=18).deleted(at_s=16))
    assert ending(ended) == (Phase.TERMINATED, Result.FAILED, Reason.RANK_FAILED)
    assert [rank.exit_code for rank in ended.status.ranks or []] == [5, 143]


def test_a_role_may_be_declared_a_daemon() -> None:
    """`ranks[].daemon` declares a role's ranks as daemons, so that no rank has to mark itself."""
    roles = [RoleSpec(name="launcher"), RoleSpec(name="server", count=2, daemon=True)]
    story = an_allocation().with_spec(ranks=roles).assigned().released().running()
    done = once(story.it, a_pod(0).exited(0), a_pod(1).running(), a_pod(2).running()).allocation
    assert (done.status.phase, done.status.reason) == (Phase.TERMINATING, Reason.COMPLETED)
    killed = [a_pod(rank).exited(143, at_s=18).deleted(at_s=16) for rank in (1, 2)]
    assert settled(done, a_pod(0).exited(0), *killed).status.result is Result.SUCCEEDED


# --- the elastic minimum


@pytest.mark.parametrize("lost", LOST)
def test_a_gang_at_its_minimum_goes_on_when_a_rank_is_lost(lost: object) -> None:
    """A gang with a minimum of two of three ranks survives a loss: the loss is recorded, the others finish, and it
    succeeds."""
    assert isinstance(lost, type(a_pod()))
    story = a_running(3, minAvailable=2)
    on = once(story.it, a_pod(0).running(), a_pod(1).running(), lost)
    assert (on.allocation.status.phase, on.allocation.status.attempt) == (Phase.RUNNING, 1)
    over = lost.with_status(phase="Failed")
    ended = settled(on.allocation, a_pod(0).exited(0), a_pod(1).exited(0), over)
    assert ending(ended) == (Phase.TERMINATED, Result.SUCCEEDED, Reason.COMPLETED)
    assert [rank.exit_code for rank in (ended.status.ranks or [])[:2]] == [0, 0]


@pytest.mark.parametrize("lost", LOST)
def test_a_gang_below_its_minimum_is_torn_down_whole_and_tried_again_whole(lost: object) -> None:
    """A gang below its minimum is torn down and tried again whole: the first loss and the exits of the others are
    stored, and no failure is counted."""
    assert isinstance(lost, type(a_pod()))
    story = a_running(3, minAvailable=3)
    done = once(story.it, a_pod(0).exited(0, at_s=9), a_pod(1).running(), lost).allocation
    assert done.status.phase is Phase.TERMINATING
    assert done.status.transitions[-1].data["rank"] == 2
    gone = lost.with_status(phase="Failed")
    ranks = once(done, a_pod(0).exited(0, at_s=9), a_pod(1).exited(143, at_s=18).deleted(at_s=16), gone)
    codes = [rank.exit_code for rank in ranks.allocation.status.ranks or []]
    assert codes[:2] == [0, 143]
    again = settled(done, a_pod(0).exited(0, at_s=9), a_pod(1).exited(143, at_s=18).deleted(at_s=16), gone)
    assert (again.status.phase, again.status.attempt, again.status.restarts) == (Phase.PENDING, 2, 0)
    assert again.status.ranks is None


def test_each_role_has_a_minimum_of_its_own() -> None:
    """A gang with enough ranks in total fails when one role has too few."""
    roles = [RoleSpec(name="ps", count=2, min_available=2), RoleSpec(name="worker", count=3, min_available=1)]
    story = an_allocation(minAvailable=3).with_spec(ranks=roles).assigned().released().running()
    workers = [a_pod(rank).failed("NodeLost") for rank in (3, 4)]
    fewer = once(story.it, a_pod(0).running(), a_pod(1).running(), a_pod(2).running(), *workers)
    assert fewer.allocation.status.phase is Phase.RUNNING
    rest = [a_pod(rank).running() for rank in (1, 2, 3, 4)]
    server = once(story.it, a_pod(0).failed("NodeLost"), *rest).allocation
    assert (server.status.phase, server.status.reason) == (Phase.TERMINATING, Reason.NODE_LOST)


def test_the_first_failure_stays_the_cause() -> None:
    """The first failure stays the cause of a gang that lost one rank early and fell below its minimum later."""
    story = a_running(3, minAvailable=2)
    early = once(story.it, a_pod(0).running(), a_pod(1).running(), a_pod(2).exited(7, at_s=8)).allocation
    late = once(early, a_pod(0).running(), a_pod(1).exited(1, at_s=15), a_pod(2).exited(7, at_s=8), now=NOW)
    data = late.allocation.status.transitions[-1].data
    assert (data["rank"], data["exitCode"]) == (2, 7)


def test_what_an_admin_has_given_up_is_lost() -> None:
    """When an administrator declares the ranks of an unreachable node lost, they are lost in this attempt only."""
    story = a_running(2).with_spec(signals=Signals(attempt=1, lost_nodes=["n1"]))
    done = once(story.it, a_pod(0).running(), a_pod(1).running(), consistent=True)
    assert (done.allocation.status.phase, done.allocation.status.reason) == (Phase.TERMINATING, Reason.NODE_LOST)
    assert [pod.metadata.name[-1] for pod in done.force_deletes] == ["1"]
    later = a_running(2).with_spec(signals=Signals(attempt=2, lost_nodes=["n1"]))
    assert once(later.it, a_pod(0).running(), a_pod(1).running()).allocation.status.phase is Phase.RUNNING


# --- throttled pulls


@pytest.mark.parametrize(
    "message",
    [
        'Back-off pulling image "x": ErrImagePull: toomanyrequests: You have reached your pull rate limit.',
        "ErrImagePull: pull QPS exceeded",
        "failed to resolve: unexpected status: 429 Too Many Requests",
    ],
)
def test_a_throttled_pull_is_tried_elsewhere(message: str) -> None:
    """A throttled pull is given time up to the limit; then another attempt avoids the node, and no failure is
    counted."""
    story = an_allocation().assigned().released().started()
    pod = a_pod().waiting("ImagePullBackOff", message, since_s=2)
    assert once(story.it, pod, now=T0 + 301).allocation.status.phase is Phase.STARTING
    late = once(story.it, pod, now=T0 + 302).allocation
    assert (late.status.phase, late.status.reason) == (Phase.TERMINATING, Reason.IMAGE_PULL_THROTTLED)
    again = settled(late, pod.deleted().with_status(phase="Failed"), now=T0 + 320).status
    assert (again.phase, again.attempt, again.restarts, again.avoid_nodes) == (Phase.PENDING, 2, 0, ["n0"])


def test_a_rank_on_a_node_that_is_gone_is_cleared_away_while_the_others_go_on() -> None:
    """A rank on a deleted node is cleaned up while the others continue: its loss is recorded, its finalizer removed,
    and its pod deleted by force, because no kubelet ends it."""
    story = a_running(2, minAvailable=1)
    gone = frozenset({"n1"})
    on = once(story.it, a_pod(0).running(), a_pod(1).running(), nodes_gone=gone, consistent=True)
    assert on.allocation.status.phase is Phase.RUNNING
    assert [pod.metadata.name[-1] for pod in on.force_deletes] == ["1"]
    deleted = a_pod(1).running().deleted(at_s=20)
    early = once(story.it, a_pod(0).running(), deleted, nodes_gone=gone, consistent=True, written_at=NOW)
    assert (early.changed, early.drop_pod_finalizers) == (False, ()), "its loss is not on record yet"
    leaving = once(on.allocation, a_pod(0).running(), deleted, nodes_gone=gone, consistent=True)
    assert [pod.metadata.name[-1] for pod in leaving.drop_pod_finalizers] == ["1"]
    after = settled(leaving.allocation, a_pod(0).running())
    assert [rank.reason for rank in after.status.ranks or []] == ["", Reason.NODE_LOST]
    ended = settled(after, a_pod(0).exited(0, at_s=30), now=NOW + 20)
    assert ending(ended) == (Phase.TERMINATED, Result.SUCCEEDED, Reason.COMPLETED)


def test_a_rank_that_somebody_else_bound_elsewhere_ends_the_attempt() -> None:
    """A rank that another process bound to another node ends the attempt, because its capacity there was never
    reserved. No failure is counted, and the allocation starts again."""
    done = once(a_running(2).it, a_pod(0).running(), a_pod(1).bound("n7").running())
    assert (done.allocation.status.phase, done.allocation.status.reason) == (Phase.TERMINATING, Reason.LAUNCH_STUCK)
    assert done.allocation.status.message == "rank 1 on n7: bound to n7, not to n1"
