"""How the watcher interprets pods, one rule per test.

Tests of published results run a whole watcher beside a small cluster, in virtual time; tests of a decision reduce one
allocation and its pods.
"""

import asyncio

import pytest

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import ContainerState, StateRunning, StateTerminated
from slipway.kube.resources import PODS
from slipway.local.apiserver.objects import clone
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason, Result
from slipway.runtime.service import ServiceStop
from tests.support.builders import T0, PodStory, a_pod, an_allocation, at
from tests.support.reductions import NOW, a_running, ending, once, settled
from tests.support.watcher_harness import WatcherHarness, play

PROGRESS = (Event.PULLING, Event.STARTING, Event.RUNNING)


async def progress_in_stream(harness: WatcherHarness, allocation: Allocation) -> list[Event]:
    """The progress events in the allocation's stream, repeats included."""
    return [each.event.type for each in await harness.stream(allocation) if each.event.type in PROGRESS]


def test_pending_and_scheduled_emits_exactly_pulling_then_starting_once() -> None:
    """Pulling and Starting are emitted once, however long the containers wait and however often they are checked, by
    two watchers or a restarted one."""

    async def story(harness: WatcherHarness) -> None:
        harness.kubelet.starts_after_s = 200.0
        stops = [ServiceStop(), ServiceStop(), ServiceStop()]
        tasks = [
            asyncio.ensure_future(harness.run(harness.watcher, stops[0])),
            asyncio.ensure_future(harness.run(harness.another("two"), stops[1])),
        ]
        await harness.launch("n0", "n1")
        allocation = await harness.until(lambda found: found.status.phase is Phase.STARTING, "starting")
        assert all(pod.spec.node_name and pod.status.phase == "Pending" for pod in await harness.pods())
        await harness.clock.sleep(60)
        stops[0].set()
        await tasks[0]
        tasks.append(asyncio.ensure_future(harness.run(harness.another("three"), stops[2])))
        await harness.clock.sleep(60)
        assert await progress_in_stream(harness, allocation) == [Event.PULLING, Event.STARTING]
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running", timeout_s=200)
        await harness.clock.sleep(1)
        assert await progress_in_stream(harness, allocation) == [*PROGRESS]
        for stop in stops:
            stop.set()
        await asyncio.gather(*tasks)

    play(story, watches=False)


def test_one_rank_without_a_node_keeps_all_from_starting() -> None:
    """One rank without a node keeps the allocation from Starting: nothing is emitted until every rank is scheduled."""
    allocation = an_allocation(2).assigned().released().it
    waiting = once(allocation, a_pod(0).bound(), a_pod(1))
    assert not waiting.changed
    done = once(allocation, a_pod(0).bound(), a_pod(1).bound()).allocation
    assert [entry.type for entry in done.status.transitions][-2:] == [Event.PULLING, Event.STARTING]


def test_only_the_main_container_counts() -> None:
    """Only the main container counts: a running sidecar does not make the rank run, a failed one does not end it, and a
    continuing one does not keep it."""
    runs, failed = ContainerState(running=StateRunning(started_at=at(2))), StateTerminated(exit_code=1, reason="Error")
    started = an_allocation().assigned().released().started()
    side_first = a_pod().waiting("ContainerCreating").with_container("proxy", runs)
    assert once(started.it, side_first).allocation.status.phase is Phase.STARTING
    side_failed = a_pod().running().with_container("proxy", ContainerState(terminated=failed))
    assert once(started.it, side_failed).allocation.status.phase is Phase.RUNNING
    side_goes_on = a_pod().exited(0).with_container("proxy", runs).with_status(phase="Running")
    assert ending(settled(a_running().it, side_goes_on)) == (Phase.TERMINATED, Result.SUCCEEDED, Reason.COMPLETED)


@pytest.mark.parametrize("is_bound", [False, True], ids=["no node yet", "on a node"])
def test_pending_with_a_deletion_is_an_end(is_bound: bool) -> None:
    """A pending pod that is being deleted will never run. Without a node the rank has ended; with a node its end is
    certain. It is not the user's fault."""
    pod = a_pod().bound() if is_bound else a_pod()
    found = once(an_allocation().assigned().released().it, pod.deleted(at_s=9)).allocation.status
    assert (found.phase, found.reason) == (Phase.TERMINATING, Reason.POD_DELETED)
    gone = pod.deleted(at_s=9).with_status(phase="Failed") if is_bound else pod.deleted(at_s=9)
    after = settled(an_allocation().assigned().released().it, gone).status
    assert (after.phase, after.attempt, after.restarts) == (Phase.PENDING, 2, 0)


def test_an_init_container_that_fails_is_named_with_its_code() -> None:
    """A failed init container is the user's failure: the message has its name, code and output."""
    ended = StateTerminated(exit_code=7, reason="Error", message="no such bucket")
    pod = a_pod().with_container("fetch-data", ContainerState(terminated=ended), init=True).bound()
    found = settled(a_running().it, pod.with_status(phase="Failed")).status
    assert (found.phase, found.result, found.reason) == (Phase.TERMINATED, Result.FAILED, Reason.INIT_FAILED)
    assert found.message == "rank 0 on n0: init container fetch-data: exit code 7: no such bucket"


def test_an_image_pull_back_off_ends_with_the_image() -> None:
    """ImagePullBackOff ends the attempt after the limit, with the image's name, and without a retry; ErrImagePull alone
    does not."""
    story = an_allocation(maxRestarts=3).assigned().released().started()
    waiting = a_pod().waiting("ErrImagePull", "not found", since_s=2)
    assert once(story.it, waiting, now=T0 + 9_999).allocation.status.phase is Phase.STARTING
    pod = a_pod().waiting("ImagePullBackOff", "not found", since_s=2)
    assert once(story.it, pod, now=T0 + 100).allocation.status.phase is Phase.STARTING
    ending_now = once(story.it, pod, now=T0 + 302).allocation
    assert ending_now.status.message == "rank 0 on n0: image python:3.11 cannot be pulled (ImagePullBackOff): not found"
    ended = settled(ending_now, pod.deleted().with_status(phase="Failed"), now=T0 + 310).status
    assert (ended.phase, ended.result, ended.reason) == (Phase.TERMINATED, Result.FAILED, Reason.IMAGE_PULL)
    assert "python:3.11" in ended.message


AS_THE_TABLE_SAYS: dict[str, tuple[PodStory, Reason, list[str]]] = {
    "deleted by hand": (a_pod().exited(143, at_s=9).deleted(at_s=5), Reason.POD_DELETED, []),
    "deleted by hand, confirmed by its kubelet": (
        a_pod().exited(143, at_s=9).deleted(at_s=11, grace_s=0),
        Reason.POD_DELETED,
        [],
    ),
    "deleted by hand, ended with 0 in that second": (a_pod().exited(0, at_s=5).deleted(at_s=5), Reason.POD_DELETED, []),
    "deleted by force, ended with 0 in that second": (
        a_pod().exited(0, at_s=5).deleted(at_s=5, grace_s=0),
        Reason.POD_DELETED,
        [],
    ),
    "node lost": (a_pod().failed("NodeLost", "the node is gone"), Reason.NODE_LOST, ["n0"]),
    "node lost, container unknown": (a_pod().exited(137, reason="ContainerStatusUnknown"), Reason.NODE_LOST, ["n0"]),
    # A kubelet reports 137 and no times for a container that it never started.
    "deleted by hand before it started": (
        a_pod()
        .exited(137, reason="ContainerStatusUnknown", said="The container could not be located")
        .without_times()
        .deleted(at_s=5),
        Reason.POD_DELETED,
        [],
    ),
    "deleted by hand before it started, confirmed by its kubelet": (
        a_pod().exited(137, reason="ContainerStatusUnknown").without_times().deleted(at_s=11, grace_s=0),
        Reason.POD_DELETED,
        [],
    ),
    "evicted through the api before it started": (
        a_pod()
        .exited(137, reason="ContainerStatusUnknown")
        .without_times()
        .disrupted("EvictionByEvictionAPI")
        .deleted(at_s=5),
        Reason.EVICTED,
        ["n0"],
    ),
    "node lost before it started, and collected": (
        a_pod()
        .exited(137, reason="ContainerStatusUnknown")
        .without_times()
        .disrupted("DeletionByPodGC")
        .deleted(at_s=5),
        Reason.NODE_LOST,
        ["n0"],
    ),
    "node rebooted before it was deleted": (
        a_pod().exited(255, reason="Unknown", at_s=3).deleted(at_s=5),
        Reason.NODE_LOST,
        ["n0"],
    ),
    "start broken off by a kubelet that ended": (
        a_pod().exited(128, reason="StartError", said="failed to start containerd task: context canceled"),
        Reason.NODE_LOST,
        ["n0"],
    ),
    "node rebooted": (a_pod().exited(255, reason="Unknown"), Reason.NODE_LOST, ["n0"]),
    "evicted by the kubelet": (
        a_pod().exited(137).with_status(reason="Evicted").disrupted("TerminationByKubelet"),
        Reason.EVICTED,
        ["n0"],
    ),
    "refused by a kubelet that evicts": (
        a_pod().failed("Evicted", "had condition: [DiskPressure]"),
        Reason.EVICTED,
        ["n0"],
    ),
    "evicted through the api": (
        a_pod().exited(143, at_s=9).disrupted("EvictionByEvictionAPI").deleted(at_s=5),
        Reason.EVICTED,
        ["n0"],
    ),
    "evicted by a taint": (a_pod().exited(137).disrupted("DeletionByTaintManager"), Reason.EVICTED, ["n0"]),
    "collected by PodGC": (
        a_pod().running().disrupted("DeletionByPodGC").deleted().with_status(phase="Failed"),
        Reason.NODE_LOST,
        ["n0"],
    ),
    "refused by the kubelet": (a_pod().failed("OutOfcpu", "no cpu"), Reason.REJECTED, ["n0"]),
}


@pytest.mark.parametrize("case", AS_THE_TABLE_SAYS)
def test_what_the_infrastructure_does_to_a_pod_is_retried_and_not_counted(case: str) -> None:
    """A loss by the infrastructure starts another attempt even without restarts left, and avoids the node that caused
    it."""
    pod, reason, avoided = AS_THE_TABLE_SAYS[case]
    found = settled(a_running(maxRestarts=0).it, pod).status
    assert (found.phase, found.attempt, found.restarts, found.infra_restarts) == (Phase.PENDING, 2, 0, 1)
    assert found.transitions[-1].reason == reason
    assert found.avoid_nodes == avoided


@pytest.mark.parametrize("case", AS_THE_TABLE_SAYS)
def test_what_the_infrastructure_does_to_a_pod_of_a_cancelled_allocation_is_an_end(case: str) -> None:
    """A loss by the infrastructure ends a canceled allocation: the cancel wins."""
    pod, _, _ = AS_THE_TABLE_SAYS[case]
    assert ending(settled(a_running().killed().it, pod))[:2] == (Phase.TERMINATED, Result.CANCELED)


def test_an_exit_is_on_record_before_the_pod_may_go() -> None:
    """After PodGC, a delete by hand, or a drain our finalizer keeps the pod until its exit is in the status."""
    pod = a_pod().exited(3, at_s=9).deleted(at_s=15)
    seen = once(a_running().it, pod, now=NOW)
    assert seen.changed
    ranks = seen.allocation.status.ranks or []
    assert [rank.exit_code for rank in ranks] == [3]
    assert [each.metadata.name for each in seen.drop_pod_finalizers] == [pod.it.metadata.name]


def test_a_pod_deleted_by_hand_is_replaced_by_the_next_attempt_and_all_is_told() -> None:
    """A pod that was deleted by hand leads to Terminating and a second attempt with its own progress, and all of it is
    published."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch("n0")
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        [pod] = await harness.pods()
        await harness.kube.delete(PODS, pod.metadata.name, namespace="default")
        again = await harness.until(lambda found: found.status.attempt == 2, "the second attempt")
        assert (again.status.restarts, again.status.infra_restarts) == (0, 1)
        await harness.worker_harness.admit("n1")
        running = await harness.until(
            lambda found: found.status.attempt == 2 and found.status.phase is Phase.RUNNING, "running again"
        )
        await harness.clock.sleep(1)
        assert await progress_in_stream(harness, running) == [*PROGRESS, *PROGRESS]

    play(story)


def test_a_pod_that_vanishes_without_a_trace_is_looked_for_and_then_retried() -> None:
    """When a user has removed our finalizer and deleted the pod by force, its absence alone ends nothing; a consistent
    read that does not find it ends the attempt."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch("n0")
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        [pod] = await harness.pods()
        await harness.kube.patch(PODS, pod.metadata.name, {"metadata": {"finalizers": None}}, namespace="default")
        await harness.kube.delete(PODS, pod.metadata.name, namespace="default", grace_s=0)
        again = await harness.until(lambda found: found.status.attempt == 2, "the second attempt")
        assert again.status.transitions[-1].reason == Reason.POD_LOST

    play(story)


FILLED_ITS_FOLDER = {
    "its container is told as ended": a_pod().exited(137),
    # Observed in one of five cases with kubelets v1.36: the container is removed before the pod's last status is
    # written.
    "its container is told as waiting": a_pod().waiting("ContainerCreating").with_status(phase="Failed"),
    "an init container filled it": a_pod()
    .waiting("PodInitializing")
    .with_container("fetch", ContainerState(terminated=StateTerminated(exit_code=137, reason="Error")), init=True)
    .with_status(phase="Failed"),
}


@pytest.mark.parametrize("case", FILLED_ITS_FOLDER)
def test_a_pod_evicted_for_its_own_limits_has_failed(case: str) -> None:
    """The kubelet evicts a pod that fills its emptyDir without the condition DisruptionTarget: this is a failure,
    because another attempt would end the same way."""
    words = 'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". '
    pod = FILLED_ITS_FOLDER[case].with_status(reason="Evicted", message=words)
    found = settled(a_running(maxRestarts=0).it, pod).status
    assert (found.phase, found.result, found.reason) == (Phase.TERMINATED, Result.FAILED, Reason.RANK_FAILED)
    assert words.strip() in found.message
    assert settled(a_running(maxRestarts=1).it, pod).status.restarts == 1


def test_an_eviction_while_the_watcher_is_away_is_told_with_its_reason() -> None:
    """The reason of an eviction is read from the pod itself, also when the watcher was away at the time."""

    async def story(harness: WatcherHarness) -> None:
        stop = ServiceStop()
        first = asyncio.ensure_future(harness.run(harness.watcher, stop))
        await harness.launch("n0")
        allocation = await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        stop.set()
        await first
        [pod] = await harness.pods()
        stored = clone(harness.core.get("pods", "default", pod.metadata.name))
        stored["status"] = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        harness.core.update_status("pods", "default", pod.metadata.name, stored)
        await harness.clock.sleep(30)
        stop = ServiceStop()
        second = asyncio.ensure_future(harness.run(harness.another("two"), stop))
        again = await harness.until(lambda found: found.status.attempt == 2, "the second attempt")
        assert again.status.avoid_nodes == ["n0"]
        reasons = [each.event.reason for each in await harness.stream(allocation)]
        assert Reason.EVICTED in reasons
        assert id_of(again) == id_of(allocation)
        stop.set()
        await second

    play(story, watches=False)
