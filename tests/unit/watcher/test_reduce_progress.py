"""How an attempt starts: from the release to Running and ready."""

from typing import Any

import msgspec
import pytest

from slipway.accounting.usage import used
from slipway.crd.v1alpha1 import Allocation, Signals
from slipway.kube.objects import ContainerState, StateRunning
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import Reason
from slipway.watcher.reduce import reduce
from tests.support.builders import T0, AllocationStory, PodStory, a_pod, an_allocation


def events_of(allocation: Allocation) -> list[Event]:
    return [entry.type for entry in allocation.status.transitions]


def test_an_unassigned_allocation_waits_for_the_scheduler() -> None:
    """Nothing is written for an allocation that was not assigned yet."""
    done = reduce(an_allocation().it, [], now=T0 + 9)
    assert not done.changed
    assert not done.needs.hint


def test_an_assignment_asks_for_the_pod_worker_and_writes_nothing() -> None:
    """An assignment without a release sends a hint to the pod worker and writes nothing."""
    done = reduce(an_allocation().assigned().it, [], now=T0 + 9)
    assert not done.changed
    assert done.needs.hint


def test_nothing_moves_until_every_rank_has_a_node() -> None:
    """Starting requires that all pods of the gang are scheduled."""
    allocation = an_allocation(2).assigned().released().it
    done = reduce(allocation, [a_pod(0).bound().it, a_pod(1).it], now=T0 + 2)
    assert not done.changed
    assert done.needs.hint


def test_pulling_and_starting_come_in_one_write() -> None:
    """When all pods are scheduled, Pulling and Starting are recorded in one write, each once, with the ranks."""
    allocation = an_allocation(2).assigned().released().it
    done = reduce(allocation, [a_pod(0).bound().it, a_pod(1).bound().it], now=T0 + 2)
    assert events_of(done.allocation)[-2:] == [Event.PULLING, Event.STARTING]
    assert done.allocation.status.nodes == "n0,n1"
    assert [rank.phase for rank in done.allocation.status.ranks or []] == [RankState.BOUND, RankState.BOUND]
    assert not done.needs.hint


def test_running_needs_every_rank_to_run() -> None:
    """A rank that still pulls keeps the gang at Starting; the state of the other rank is written after the interval."""
    allocation = an_allocation(2).assigned().released().started().it
    pods = [a_pod(0).running().it, a_pod(1).waiting("ErrImagePull").it]
    done = reduce(allocation, pods, now=T0 + 3)
    assert done.allocation.status.phase is Phase.STARTING
    both = reduce(allocation, [a_pod(0).running().it, a_pod(1).running().it], now=T0 + 3)
    assert events_of(both.allocation)[-1] is Event.RUNNING


def test_running_says_its_slices() -> None:
    """Slots are whole GPUs: 9 slices of 1/7 are two. The GPU time counts them as the sevenths that they are."""
    allocation = an_allocation(3).assigned().released().it
    pods = [a_pod(rank, requests={"nvidia.com/mig-1g.10gb": "3"}).running(at_s=2) for rank in range(3)]
    running = reduce(allocation, [pod.it for pod in pods], now=T0 + 9).allocation
    assert (running.status.slots, running.status.slices) == (2, {"nvidia.com/mig-1g.10gb": 9})
    days = used(running, T0 + 9 + 7)
    since_running = sum(day.slot_ms.get(Phase.RUNNING, 0) for day in days.values())
    elapsed = sum(day.ms.get(Phase.RUNNING, 0) for day in days.values())
    assert 0 <= since_running - elapsed * 9 // 7 <= 1


def test_running_says_where_since_when_and_with_how_much() -> None:
    """startedAt is the last container's start, which Kubernetes cut to the second; slots are whole GPUs."""
    allocation = an_allocation(2).assigned().released().it
    gpus = {"nvidia.com/gpu": "4"}
    pods = [a_pod(rank, requests=gpus).running(at_s=2).it for rank in range(2)]
    status = reduce(allocation, pods, now=T0 + 9).allocation.status
    assert (status.slots, status.slices) == (8, {})
    assert status.nodes == "n0,n1"
    assert status.started_at.startswith("2023-11-14T22:13:29")
    live = reduce(allocation, pods, now=T0 + 2.25).allocation.status
    assert live.transitions[-1].time == "2023-11-14T22:13:22.250Z"


def test_the_run_limit_becomes_a_stored_deadline() -> None:
    """`status.deadlines.maxRuntime` counts from Running."""
    allocation = an_allocation(maxRuntime="1h").assigned().released().it
    status = reduce(allocation, [a_pod().running(at_s=3).it], now=T0 + 3).allocation.status
    assert status.deadlines == {"maxRuntime": "2023-11-14T23:13:23.000Z"}


@pytest.mark.parametrize(("asked", "of_queue"), [("1h", "30m"), (None, "30m"), ("30m", "1h")])
def test_the_shorter_run_limit_of_its_queue_counts(asked: str | None, of_queue: str) -> None:
    """The shorter run limit of the queue applies, as stored in the admission; the queue may have changed since."""
    spec: dict[str, Any] = {"maxRuntime": asked} if asked else {}
    story = an_allocation(**spec).assigned().released()
    assert story.it.status.admission is not None
    admission = msgspec.structs.replace(story.it.status.admission, max_runtime=of_queue)
    allocation = story.with_status(admission=admission).it
    status = reduce(allocation, [a_pod().running(at_s=3).it], now=T0 + 3).allocation.status
    assert status.deadlines == {"maxRuntime": "2023-11-14T22:43:23.000Z"}


@pytest.mark.parametrize(("asked", "override", "until"), [("2h", "2h", "00:13:23"), ("1h", "2h", "23:13:23")])
def test_an_administrators_limit_stands_in_for_the_queues(asked: str, override: str, until: str) -> None:
    """An administrator's limit replaces the queue's, also while the allocation runs: the deadline moves. The
    allocation's own shorter limit still applies."""
    story = an_allocation(maxRuntime=asked).assigned().released()
    assert story.it.status.admission is not None
    admission = msgspec.structs.replace(story.it.status.admission, max_runtime="30m")
    pods = [a_pod().running(at_s=3).it]
    running = reduce(story.with_status(admission=admission).it, pods, now=T0 + 3).allocation
    assert running.status.deadlines["maxRuntime"].endswith("T22:43:23.000Z")
    longer = AllocationStory(running).with_spec(max_runtime_override=override).it
    assert reduce(longer, pods, now=T0 + 9).allocation.status.deadlines["maxRuntime"].endswith(f"T{until}.000Z")


@pytest.mark.parametrize("kind", ["notebook", "shell", "tensorboard"])
def test_a_service_is_ready_with_its_pod(kind: str) -> None:
    """Kinds with a port are ready when the pod's Ready condition is true, in the same write as Running."""
    allocation = an_allocation(kind=kind).assigned().released().it
    done = reduce(allocation, [a_pod().running(ready=True).it], now=T0 + 3)
    assert events_of(done.allocation)[-2:] == [Event.RUNNING, Event.READY]
    assert done.allocation.status.ready


def test_a_command_is_ready_when_it_says_so() -> None:
    """Other kinds are ready only when they report it, and only in the attempt that reported it."""
    story = an_allocation().assigned().released().running()
    pods = [a_pod().running(ready=True).it]
    assert (
        not reduce(story.it, pods, now=T0 + 5).changed or not reduce(story.it, pods, now=T0 + 5).allocation.status.ready
    )
    said = story.with_spec(signals=Signals(ready=True, attempt=1)).it
    assert reduce(said, pods, now=T0 + 5).allocation.status.ready
    stale = story.with_spec(signals=Signals(ready=True, attempt=2)).it
    assert not reduce(stale, pods, now=T0 + 5).allocation.status.ready


def test_waiting_follows_the_signal() -> None:
    """A TensorBoard without files reports `waiting`, which is published as `updated`."""
    story = an_allocation().assigned().released().running().with_spec(signals=Signals(waiting=True, attempt=1))
    done = reduce(story.it, [a_pod().running().it], now=T0 + 5)
    assert done.allocation.status.waiting
    assert events_of(done.allocation)[-1] is Event.UPDATED


@pytest.mark.parametrize(
    ("pod", "main"),
    [
        (a_pod(containers=("main", "proxy"), main="proxy"), "proxy"),
        (a_pod(containers=("proxy", "main")), "main"),
        (a_pod(containers=("proxy", "other")), "proxy"),
    ],
)
def test_only_the_main_container_counts(pod: PodStory, main: str) -> None:
    """Only the main container counts: the annotation's, else `main`, else the first; a sidecar neither decides nor
    blocks."""
    allocation = an_allocation().assigned().released().it
    statuses = [
        status
        if status.name != main
        else type(status)(name=main, state=ContainerState(running=StateRunning(started_at="2023-11-14T22:13:22Z")))
        for status in pod.waiting("PodInitializing").it.status.container_statuses
    ]
    seen = pod.bound().with_status(phase="Running", container_statuses=statuses).it
    assert reduce(allocation, [seen], now=T0 + 3).allocation.status.phase is Phase.RUNNING


def test_rank_detail_is_written_at_most_once_a_second() -> None:
    """When one rank starts before the others, its state is written after the interval since the last write."""
    first = reduce(
        an_allocation(2).assigned().released().it, [a_pod(0).bound().it, a_pod(1).bound().it], now=T0 + 2
    ).allocation
    pods = [a_pod(0).running().it, a_pod(1).bound().it]
    early = reduce(first, pods, now=T0 + 2.4)
    assert not early.changed
    assert early.needs.recheck_at == T0 + 3
    late = reduce(first, pods, now=T0 + 3)
    assert late.changed
    assert late.allocation.status.seq == first.status.seq


def test_a_view_that_is_older_than_the_record_takes_nothing_back() -> None:
    """When two watchers act on watches of different versions, the one with the older view takes nothing back."""
    first = reduce(
        an_allocation(2).assigned().released().it, [a_pod(0).bound().it, a_pod(1).bound().it], now=T0 + 2
    ).allocation
    newer = [a_pod(0).running().it, a_pod(1).bound().it]
    ahead = reduce(first, newer, now=T0 + 3).allocation
    for older in ([a_pod(0).bound().it, a_pod(1).bound().it], [a_pod(0).it, a_pod(1).it]):
        behind = reduce(ahead, older, now=T0 + 30)
        assert not behind.changed
        assert behind.needs.recheck_at is None


def test_a_transition_on_an_older_view_keeps_what_another_one_saw() -> None:
    """A transition on an older view keeps the ranks that another watcher recorded: a cancel is written at once, with
    these ranks."""
    begun = an_allocation(2, minAvailable=1).assigned().released().running().it
    going = [a_pod(0).running().disrupted("DeletionByTaintManager").deleted().it, a_pod(1).running().it]
    ahead = reduce(begun, going, now=T0 + 9).allocation
    known = [(rank.phase, rank.reason) for rank in ahead.status.ranks or ()]
    assert known == [(RankState.RELEASING, Reason.EVICTED), (RankState.RUNNING, "")]
    before_that = [a_pod(0).running().it, a_pod(1).bound().it]
    told = reduce(AllocationStory(ahead).killed().it, before_that, now=T0 + 30).allocation.status
    assert told.phase is Phase.TERMINATING
    assert told.ranks == ahead.status.ranks


def test_a_pod_of_another_attempt_or_uid_is_no_rank() -> None:
    """Only the uids of the release are ranks: another pod with a rank's name is ignored."""
    allocation = an_allocation().assigned().released().it
    impostor = a_pod().running().with_metadata(uid="another").it
    assert not reduce(allocation, [impostor], now=T0 + 3).changed


def test_a_pod_that_is_not_seen_changes_nothing() -> None:
    """A pod that the watch does not show changes nothing: it only requires a consistent read."""
    allocation = an_allocation().assigned().released().running().it
    done = reduce(allocation, [], now=T0 + 60)
    assert not done.changed
    assert done.needs.consistent_list
