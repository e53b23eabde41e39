"""Exits and losses of ranks: whose fault they are, and what follows."""

import pytest

from slipway.crd.meta import Condition
from slipway.crd.v1alpha1 import RoleSpec, Signals
from slipway.kube.objects import ContainerState, StateTerminated
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import Reason, Result
from slipway.pods.podspec import SETUP_FAILED
from tests.support.builders import T0, PodStory, a_pod, an_allocation, at
from tests.support.reductions import NOW, a_running, ending, once, settled


def test_all_ranks_succeeded() -> None:
    """When all ranks succeeded, the allocation is Terminated directly, with the exit codes and the time of the last
    end."""
    status = once(a_running(2).it, a_pod(0).exited(0, at_s=9), a_pod(1).exited(0, at_s=12)).allocation.status
    assert (status.phase, status.result, status.reason) == (Phase.TERMINATED, Result.SUCCEEDED, Reason.COMPLETED)
    assert [rank.exit_code for rank in status.ranks or []] == [0, 0]
    assert status.ended_at == "2023-11-14T22:13:33.000Z"
    assert status.transitions[-1].data["exits"] == {"0": 2}


def test_a_command_that_ended_before_it_was_seen_still_tells_its_whole_life() -> None:
    """A command that ended before the watcher saw it gets every transition, in one write, each with its own time."""
    allocation = an_allocation().assigned().released().it
    status = once(allocation, a_pod().exited(0, started_s=3, at_s=8)).allocation.status
    assert [entry.type for entry in status.transitions][-4:] == [
        Event.PULLING,
        Event.STARTING,
        Event.RUNNING,
        Event.TERMINATED,
    ]
    times = [entry.time for entry in status.transitions]
    assert times == sorted(times)


def test_usage_is_exact() -> None:
    """Usage is the seconds per phase, from the transition times, and the slots."""
    pods = a_pod(requests={"nvidia.com/gpu": "2"}).exited(0, at_s=12)
    data = once(a_running().with_status(slots=2).it, pods).allocation.status.transitions[-1].data
    assert data["slots"] == 2
    assert data["seconds"] == {"Pending": 1.0, "Assigned": 1.0, "Starting": 1.0, "Running": 10.0}


def test_a_failed_rank_takes_the_gang_down_and_is_named() -> None:
    """The first failure of a rank is stored as the cause, and the other ranks are killed."""
    done = once(a_running(2).it, a_pod(0).running(), a_pod(1).exited(3, at_s=9))
    status = done.allocation.status
    assert (status.phase, status.reason) == (Phase.TERMINATING, Reason.RANK_FAILED)
    assert status.transitions[-1].data == {"rank": 1, "node": "n1", "exitCode": 3, "message": "exit code 3"}
    assert status.message == "rank 1 on n1: exit code 3"
    assert done.needs.hint
    ended = settled(done.allocation, a_pod(0).exited(143, at_s=15).deleted(at_s=10), a_pod(1).exited(3, at_s=9))
    assert ending(ended) == (Phase.TERMINATED, Result.FAILED, Reason.RANK_FAILED)
    assert [(rank.exit_code, rank.reason) for rank in ended.status.ranks or []] == [
        (143, Reason.BELOW_MINIMUM),
        (3, Reason.RANK_FAILED),
    ]


@pytest.mark.parametrize(("ended_at_s", "reason"), [(15, Reason.BELOW_MINIMUM), (10, Reason.BELOW_MINIMUM), (9, "")])
def test_a_rank_that_was_told_to_end_is_killed_also_after_the_last_delete(ended_at_s: int, reason: str) -> None:
    """The kubelet's last delete stamps the time of the deletion anew, later than the end: therefore the time at which
    the attempt began to end distinguishes a rank that exits with 0 on SIGTERM from one that completed before."""
    ending_now = once(a_running(2).it, a_pod(0).running(), a_pod(1).exited(3, at_s=9)).allocation
    told = a_pod(0).exited(0, at_s=ended_at_s).deleted(at_s=16, grace_s=0)
    ended = settled(ending_now, told, a_pod(1).exited(3, at_s=9))
    assert ending(ended) == (Phase.TERMINATED, Result.FAILED, Reason.RANK_FAILED)
    first, _ = ended.status.ranks or []
    assert (first.exit_code, first.reason) == (0, reason)


def test_the_users_failures_count() -> None:
    """After a user's failure up to maxRestarts attempts follow, each after a longer backoff; then the allocation has
    failed."""
    failed = a_running(maxRestarts=1)
    second = settled(failed.it, a_pod().exited(1)).status
    assert (second.phase, second.attempt, second.restarts) == (Phase.PENDING, 2, 1)
    assert second.not_before == "2023-11-14T22:13:41.000Z"
    assert (second.release, second.ranks, second.deadlines) == (None, None, {})
    last = settled(failed.with_status(restarts=1).it, a_pod().exited(1))
    assert ending(last) == (Phase.TERMINATED, Result.FAILED, Reason.RANK_FAILED)


def test_exits_are_on_record_before_the_next_attempt_is() -> None:
    """Exits are stored before the next attempt clears the ranks, so Terminating with the exits is a separate write."""
    first = once(a_running(maxRestarts=1).it, a_pod().exited(1), consistent=True)
    assert first.allocation.status.phase is Phase.TERMINATING
    assert [rank.exit_code for rank in first.allocation.status.ranks or []] == [1]
    second = once(first.allocation, a_pod().exited(1))
    assert second.needs.consistent_list
    assert not second.changed


def test_the_next_attempt_waits_for_every_pod_of_the_last() -> None:
    """A pod that is neither Succeeded nor Failed delays the next attempt, also a pod that no release names."""
    first = once(a_running(maxRestarts=1).it, a_pod().exited(1)).allocation
    stray = a_pod(7).bound()
    assert not once(first, a_pod().exited(1), stray, consistent=True).changed
    assert once(first, a_pod().exited(1), consistent=True).allocation.status.attempt == 2


INFRASTRUCTURE: list[tuple[PodStory, Reason, list[str]]] = [
    (a_pod().failed("Evicted", "low on memory"), Reason.EVICTED, ["n0"]),
    (a_pod().failed("OutOfcpu"), Reason.REJECTED, ["n0"]),
    (a_pod().failed("UnexpectedAdmissionError"), Reason.REJECTED, ["n0"]),
    (a_pod().failed("NodeLost"), Reason.NODE_LOST, ["n0"]),
    (a_pod().exited(137).disrupted("DeletionByTaintManager"), Reason.EVICTED, ["n0"]),
    (a_pod().exited(137, reason="ContainerStatusUnknown"), Reason.NODE_LOST, ["n0"]),
    (a_pod().running().disrupted("DeletionByPodGC").deleted().with_status(phase="Failed"), Reason.NODE_LOST, ["n0"]),
    (a_pod().exited(143, at_s=9).deleted(at_s=5), Reason.POD_DELETED, []),
    (a_pod().exited(0, at_s=9).deleted(at_s=5), Reason.POD_DELETED, []),
]


@pytest.mark.parametrize(("pod", "reason", "avoided"), INFRASTRUCTURE)
def test_the_infrastructures_failures_do_not_count(pod: PodStory, reason: Reason, avoided: list[str]) -> None:
    """After a failure of the infrastructure another attempt follows, whatever maxRestarts is, and avoids the node that
    caused it."""
    status = settled(a_running().it, pod).status
    assert (status.phase, status.attempt, status.restarts, status.infra_restarts) == (Phase.PENDING, 2, 0, 1)
    assert status.transitions[-1].reason == reason
    assert status.avoid_nodes == avoided


def test_a_pod_whose_node_began_anew_before_it_ran_is_lost() -> None:
    """A pod whose node restarted before it ran stays Pending for ever: the attempt ends, and the next one avoids the
    node."""
    starting = an_allocation().assigned().released().it
    ended = once(starting, a_pod().stranded()).allocation
    assert (ended.status.phase, ended.status.reason) == (Phase.TERMINATING, Reason.NODE_LOST)
    status = settled(ended).status
    assert (status.phase, status.attempt, status.restarts, status.infra_restarts) == (Phase.PENDING, 2, 0, 1)
    assert status.avoid_nodes == ["n0"]


@pytest.mark.parametrize("pod", [a_pod().waiting(""), a_pod().waiting("ContainerCreating"), a_pod().bound()])
def test_a_pod_that_has_not_started_yet_is_not_lost(pod: PodStory) -> None:
    """A pod with a sandbox that is not ready yet, or a container that has not started yet, is not lost."""
    sandbox = Condition(type="PodReadyToStartContainers", status="False", last_transition_time=at(2.0))
    later = pod.with_status(conditions=[*pod.it.status.conditions, sandbox])
    assert once(an_allocation().assigned().released().it, later).allocation.status.reason == ""


USERS: list[tuple[PodStory, Reason]] = [
    (a_pod().exited(1), Reason.RANK_FAILED),
    (a_pod().exited(3, said=f"{SETUP_FAILED}\n"), Reason.SETUP_FAILED),
    (a_pod().exited(3, said="no such bucket"), Reason.RANK_FAILED),
    (a_pod().exited(137, reason="OOMKilled"), Reason.OUT_OF_MEMORY),
    (a_pod().failed("DeadlineExceeded"), Reason.RANK_FAILED),
    (a_pod().failed(""), Reason.UNKNOWN_EXIT),
    (
        a_pod()
        .with_container("setup", ContainerState(terminated=StateTerminated(exit_code=2)), init=True)
        .bound()
        .with_status(phase="Failed"),
        Reason.INIT_FAILED,
    ),
]


@pytest.mark.parametrize(("pod", "reason"), USERS)
def test_the_users_own_failures_end_it(pod: PodStory, reason: Reason) -> None:
    """A user's failure is the result when no restarts are left."""
    assert ending(settled(a_running().it, pod)) == (Phase.TERMINATED, Result.FAILED, reason)


def test_a_failed_setup_is_named() -> None:
    """A failed setup is named with its exit code."""
    status = settled(a_running().it, a_pod().exited(3, said=f"{SETUP_FAILED}\n")).status
    assert status.message == "rank 0 on n0: exit code 3: setup failed"


def test_a_failed_init_container_is_named() -> None:
    """A failed init container fails the rank, with its name and code."""
    pod = a_pod().with_container("setup", ContainerState(terminated=StateTerminated(exit_code=2)), init=True)
    status = settled(a_running().it, pod.bound().with_status(phase="Failed")).status
    assert status.message == "rank 0 on n0: init container setup: exit code 2"
    assert [rank.exit_code for rank in status.ranks or []] == [2]


def test_a_sidecar_neither_fails_a_rank_nor_holds_it() -> None:
    """The main container's exit decides, also while a sidecar still runs or has failed."""
    story = a_pod(containers=("main", "proxy")).exited(0)
    statuses = list(story.it.status.container_statuses)
    proxy = a_pod().running().it.status.container_statuses[0]
    lingering = story.with_status(phase="Running", container_statuses=[statuses[0], proxy])
    assert ending(once(a_running().it, lingering).allocation)[1] is Result.SUCCEEDED
    assert ending(once(a_running().it, story.with_status(phase="Failed")).allocation)[1] is Result.SUCCEEDED


def test_a_pod_by_hand_deleted_is_a_loss_at_once() -> None:
    """A pod that was deleted by hand is lost at once: a deletion cannot be undone, so the gang does not wait for the
    grace."""
    done = once(a_running(2).it, a_pod(0).running(), a_pod(1).running().deleted(at_s=18))
    assert (done.allocation.status.phase, done.allocation.status.reason) == (Phase.TERMINATING, Reason.POD_DELETED)


def test_a_success_that_was_deleted_afterwards_is_a_success() -> None:
    """A pod that succeeded before its deletion was requested is not run again."""
    done = once(a_running().it, a_pod().exited(0, at_s=9).deleted(at_s=15))
    assert done.allocation.status.result is Result.SUCCEEDED


def test_a_missing_pod_is_lost_only_after_a_look() -> None:
    """A pod that the watch does not show is looked up first; when the lookup does not find it, it is lost, by no fault
    of the user."""
    story = a_running(2)
    seen = once(story.it, a_pod(0).running())
    assert not seen.changed
    assert seen.needs.consistent_list
    looked = once(story.it, a_pod(0).running(), consistent=True).allocation.status
    assert (looked.phase, looked.reason) == (Phase.TERMINATING, Reason.POD_LOST)
    assert [rank.phase for rank in looked.ranks or []] == [RankState.RUNNING, RankState.FAILED]


def test_a_recorded_exit_outlives_its_pod() -> None:
    """A recorded exit stays when its pod is gone."""
    first = once(a_running(2).it, a_pod(0).exited(0), a_pod(1).running(), now=NOW).allocation
    assert [rank.exit_code for rank in first.status.ranks or []] == [0, None]
    done = once(first, a_pod(1).exited(0, at_s=30), now=T0 + 31)
    assert done.allocation.status.result is Result.SUCCEEDED


def test_a_node_that_is_gone_takes_its_pods() -> None:
    """The pods of a node are lost only when the node's deletion is confirmed; no kubelet ends them, so they are deleted
    by force."""
    pods = (a_pod(0).running(), a_pod(1).running())
    assert not once(a_running(2).with_status(ranks=None).it, *pods).changed
    # The pod may have ended before its node was deleted, and the watch may not have shown that yet.
    doubt = once(a_running(2).it, *pods, nodes_gone=frozenset({"n1"}))
    assert (doubt.changed, doubt.needs.consistent_list) == (False, True)
    done = once(a_running(2).it, *pods, nodes_gone=frozenset({"n1"}), consistent=True)
    assert (done.allocation.status.phase, done.allocation.status.reason) == (Phase.TERMINATING, Reason.NODE_LOST)
    assert [pod.metadata.name[-1] for pod in done.force_deletes] == ["1"]
    leaving = a_pod(1).running().deleted(at_s=20)
    later = once(done.allocation, a_pod(0).running(), leaving, nodes_gone=frozenset({"n1"}))
    assert [pod.metadata.name[-1] for pod in later.drop_pod_finalizers] == ["1"]


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImageNeverPull"])
def test_an_image_that_can_not_be_pulled_ends_it_with_its_name(reason: str) -> None:
    """An image that cannot be pulled ends the allocation with the image's name, after the limit, however many restarts
    are left."""
    story = an_allocation(maxRestarts=5).assigned().released().started()
    pod = a_pod().waiting(reason, "not found", since_s=2)
    early = once(story.it, pod, now=T0 + 301)
    assert early.allocation.status.phase is Phase.STARTING
    assert early.needs.recheck_at == T0 + 302
    late = once(story.it, pod, now=T0 + 302).allocation.status
    assert (late.phase, late.reason) == (Phase.TERMINATING, Reason.IMAGE_PULL)
    assert "python:3.11" in late.message
    ended = settled(story.it, pod.with_status(phase="Failed", reason="Killed"), now=T0 + 302)
    assert ended.status.phase is not Phase.STARTING


def test_an_err_image_pull_is_waited_out() -> None:
    """ErrImagePull does not end the attempt, because the kubelet retries by itself."""
    story = an_allocation().assigned().released().started()
    tried = settled(story.it, a_pod().waiting("ErrImagePull"), now=T0 + 9999)
    assert tried.status.phase is Phase.STARTING


def test_a_name_that_is_no_image_fails_at_once() -> None:
    """An invalid image name fails at once, because a retry cannot succeed."""
    story = an_allocation().assigned().released().started()
    done = once(story.it, a_pod().waiting("InvalidImageName", "bad reference"))
    assert done.allocation.status.reason == Reason.IMAGE_PULL


# --- gangs that may lose ranks, and daemons


def test_an_elastic_gang_goes_on_above_its_minimum() -> None:
    """An elastic gang continues above its minimum: with minAvailable 1 of 2, one failure is recorded, two end it."""
    story = a_running(2, minAvailable=1)
    one = once(story.it, a_pod(0).running(), a_pod(1).exited(1), now=NOW).allocation.status
    assert one.phase is Phase.RUNNING
    assert [rank.exit_code for rank in one.ranks or []] == [None, 1]
    two = settled(story.it, a_pod(0).exited(1), a_pod(1).exited(1))
    assert ending(two) == (Phase.TERMINATED, Result.FAILED, Reason.RANK_FAILED)
    survived = settled(story.it, a_pod(0).exited(0), a_pod(1).exited(1))
    assert survived.status.result is Result.SUCCEEDED


def test_a_roles_own_minimum_counts() -> None:
    """A role's own minimum is enforced: this gang may lose a worker, not its launcher."""
    roles = [RoleSpec(name="launcher", count=1, min_available=1), RoleSpec(name="worker", count=2)]
    story = an_allocation(minAvailable=2).with_spec(ranks=roles).assigned().released().running()
    worker_lost = once(story.it, a_pod(0).running(), a_pod(1).running(), a_pod(2).exited(1))
    assert worker_lost.allocation.status.phase is Phase.RUNNING
    launcher_lost = once(story.it, a_pod(0).exited(1), a_pod(1).running(), a_pod(2).running())
    assert launcher_lost.allocation.status.phase is Phase.TERMINATING


def test_daemons_do_not_keep_a_gang_alive() -> None:
    """When the other ranks have succeeded, the daemons are killed, and do not fail the gang."""
    signals = Signals(daemons=[1], attempt=1)
    story = a_running(2).with_spec(signals=signals)
    done = once(story.it, a_pod(0).exited(0), a_pod(1).running())
    assert (done.allocation.status.phase, done.allocation.status.reason) == (Phase.TERMINATING, Reason.COMPLETED)
    ended = settled(done.allocation, a_pod(0).exited(0), a_pod(1).exited(143, at_s=18).deleted(at_s=16))
    assert ending(ended) == (Phase.TERMINATED, Result.SUCCEEDED, Reason.COMPLETED)
