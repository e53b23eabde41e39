"""The promises of the reduction, for any allocation and any pods."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway.crd.rules import violations
from slipway.crd.v1alpha1 import Allocation, PreemptSignal, Signals
from slipway.kube.objects import Pod
from slipway.kube.wire import metadata_of
from slipway.model.lifecycle import Event, Phase, RankState, is_behind, is_legal, is_legal_step
from slipway.model.reasons import Reason
from slipway.watcher.reduce import Reduction, reduce
from tests.support.builders import T0, AllocationStory, PodStory, a_pod, an_allocation, as_json

RANKS = 3
FOLLOWING_MAX = 8

moments = st.integers(min_value=4, max_value=40)


@st.composite
def stories(draw: st.DrawFn) -> AllocationStory:
    """An allocation at any point of its life, perhaps with a stop request."""
    minimum = draw(st.sampled_from([None, 1, 2, 3]))
    spec: dict[str, Any] = {} if minimum is None else {"minAvailable": minimum}
    spec |= draw(st.sampled_from(EXTRAS))
    if spec.get("restart") == "rank":
        # The launch is refused with a smaller minimum, so no such allocation has pods.
        spec.pop("minAvailable", None)
    story = an_allocation(RANKS, maxRestarts=draw(st.integers(0, 2)), kind=draw(st.sampled_from(KINDS)), **spec)
    stage = draw(st.integers(0, 5))
    story = story.assigned() if stage >= 1 else story
    story = story.released() if stage >= 2 else story
    story = story.started() if stage == 3 else story
    story = story.running() if stage >= 4 else story
    story = story.ready() if stage == 5 else story
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=2)):
        story = change(story)
    return story


KINDS = ["command", "notebook", "training"]
EXTRAS: list[dict[str, Any]] = [
    {},
    {"preemptible": True, "preemptionGrace": "10s"},
    {"idleTimeout": "10s", "maxRuntime": "20s"},
    {"hold": True, "pendingTimeout": "10s"},
    {"pendingTimeout": "10s"},
    {"failurePolicy": {"rules": [{"action": "fail", "exitCodes": [1]}, {"action": "ignore"}]}},
    {"failurePolicy": {"rules": [{"action": "retry", "disruption": True}, {"action": "notCounted"}]}},
    {"successPolicy": {"targets": [{"count": 2}]}, "failurePolicy": {"rules": [{"action": "ignore"}]}},
    {"restart": "rank"},
    {"restart": "rank", "failurePolicy": {"rules": [{"action": "notCounted", "exitCodes": [1]}]}},
    {"successPolicy": {"operator": "Any", "targets": [{"role": "worker", "indexes": [0]}, {"count": 3}]}},
]
CHANGES: list[Callable[[AllocationStory], AllocationStory]] = [
    lambda story: story.killed(),
    lambda story: story.deleted(),
    lambda story: story.stopped("MaxRuntime"),
    lambda story: story.stopped("IdleTimeout"),
    lambda story: story.with_spec(hold=not story.it.spec.hold),
    lambda story: signalled(story, daemons=[1]),
    lambda story: signalled(story, daemons=[0, 1, 2]),
    lambda story: signalled(story, lost_nodes=["n1"]),
    lambda story: signalled(story, preempt=PreemptSignal(n=1, requeue=True), acks={"1": 1}),
    lambda story: story.stopped("Preempted", requeue=True),
    lambda story: story.stopped("PreemptionGrace"),
    lambda story: story.asked_to_preempt(),
    lambda story: story.asked_to_preempt().acknowledged(0, 1, 2),
    lambda story: story.condition("Stuck", "Denied"),
    lambda story: story.condition("Refused", "InvalidSpec", "no"),
]


def signalled(story: AllocationStory, **signals: Any) -> AllocationStory:
    """The allocation with signals of its ranks or its user."""
    before = story.it.spec.signals or Signals(attempt=1)
    return story.with_spec(signals=msgspec.structs.replace(before, **signals))


@st.composite
def pods_of(draw: st.DrawFn, rank: int, attempt: int = 1) -> PodStory | None:
    """A pod of one rank in any state, or none."""
    state = draw(st.sampled_from(["absent", "unbound", "bound", "waiting", "running", "exited", "failed"]))
    if state == "absent":
        return None
    pod = a_pod(rank, attempt=attempt)
    second = draw(moments)
    match state:
        case "bound":
            pod = pod.bound()
        case "waiting":
            pod = pod.waiting(draw(st.sampled_from(["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])))
        case "running":
            pod = pod.running(ready=draw(st.booleans()))
        case "exited":
            pod = pod.exited(draw(st.sampled_from([0, 1, 137, 143])), at_s=second)
        case "failed":
            pod = pod.failed(draw(st.sampled_from(["Evicted", "OutOfcpu", "NodeLost", ""])))
        case _:
            pass
    pod = pod.disrupted("DeletionByTaintManager") if draw(st.booleans()) and state == "running" else pod
    return pod.deleted(at_s=draw(moments)) if draw(st.integers(0, 3)) == 0 else pod


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Allocation, list[Pod]]:
    """An allocation and the observed pods."""
    story = draw(stories())
    found = [draw(pods_of(rank)) for rank in range(RANKS)]
    found.append(draw(pods_of(0, attempt=2)))
    return story.it, [pod.it for pod in found if pod is not None]


def follow(
    allocation: Allocation, pods: Sequence[Pod], *, now: float, consistent: bool, gone: frozenset[str]
) -> list[Reduction]:
    """Every reduction until nothing changes any more."""
    done: list[Reduction] = []
    for _ in range(FOLLOWING_MAX):
        reduction = reduce(allocation, pods, now=now, consistent=consistent, nodes_gone=gone)
        done.append(reduction)
        if not reduction.changed:
            return done
        allocation = reduction.allocation
    raise AssertionError("it never settles")


relaxed = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
nodes = st.sampled_from([frozenset[str](), frozenset({"n1"})])


@relaxed
@given(scene=scenes(), now=moments, consistent=st.booleans(), gone=nodes)
def test_reduction_converges_and_breaks_no_rule(
    scene: tuple[Allocation, list[Pod]], now: int, consistent: bool, gone: frozenset[str]
) -> None:
    """Transitions are legal, seq and attempt never fall, exits are written once, and the API server accepts every
    write."""
    allocation, pods = scene
    for reduction in follow(allocation, pods, now=T0 + now, consistent=consistent, gone=gone):
        before, after = allocation.status, reduction.allocation.status
        assert after.seq >= before.seq
        assert is_legal_step(before.phase, after.phase, same_attempt=after.attempt == before.attempt)
        phase = before.phase
        for entry in after.transitions:
            if entry.seq > max(1, before.seq):
                assert is_legal(phase, entry.type)
                phase = entry.phase
        times = [entry.time for entry in after.transitions]
        assert times == sorted(times)
        broken = violations("Allocation", as_json(reduction.allocation), as_json(allocation))
        assert [rule for rule in broken if rule.pointer.startswith("/status")] == []
        allocation = reduction.allocation


@relaxed
@given(scene=scenes(), now=moments, gone=nodes)
def test_an_inconsistent_view_is_reduced_in_one_step(
    scene: tuple[Allocation, list[Pod]], now: int, gone: frozenset[str]
) -> None:
    """A second reduction with the same pods at the same time changes nothing, except ends that wait for their exits
    to be recorded."""
    allocation, pods = scene
    first = reduce(allocation, pods, now=T0 + now, nodes_gone=gone)
    second = reduce(first.allocation, pods, now=T0 + now, nodes_gone=gone)
    assert not second.changed
    assert second.drop_pod_finalizers == first.drop_pod_finalizers


@relaxed
@given(scene=scenes(), now=moments)
def test_absence_ends_nothing(scene: tuple[Allocation, list[Pod]], now: int) -> None:
    """Without a consistent read no rank is lost because it was not observed, and no attempt begins."""
    allocation, pods = scene
    after = reduce(allocation, pods, now=T0 + now).allocation.status
    assert after.attempt == allocation.status.attempt
    assert all(rank.reason != Reason.POD_LOST for rank in after.ranks or ())


@relaxed
@given(scene=scenes(), now=moments, gone=nodes)
def test_an_attempt_begins_only_when_nothing_of_the_last_lives(
    scene: tuple[Allocation, list[Pod]], now: int, gone: frozenset[str]
) -> None:
    """Every pod of the last attempt is Succeeded, Failed, or was deleted before it had a node."""
    allocation, pods = scene
    last = follow(allocation, pods, now=T0 + now, consistent=True, gone=gone)[-1].allocation
    if last.status.attempt > allocation.status.attempt:
        for pod in pods:
            is_unbound = not pod.spec.node_name and metadata_of(pod).deletion_timestamp is not None
            assert pod.status.phase in ("Succeeded", "Failed") or is_unbound


@relaxed
@given(scene=scenes(), now=moments, consistent=st.booleans())
def test_recorded_exits_are_the_containers_own(scene: tuple[Allocation, list[Pod]], now: int, consistent: bool) -> None:
    """Each recorded code is that of the pod with that uid."""
    allocation, pods = scene
    codes = {
        pod.metadata.uid: pod.status.container_statuses[0].state.terminated.exit_code
        for pod in pods
        if pod.status.container_statuses and pod.status.container_statuses[0].state.terminated is not None
    }
    for reduction in follow(allocation, pods, now=T0 + now, consistent=consistent, gone=frozenset()):
        for rank in reduction.allocation.status.ranks or ():
            if rank.exit_code is not None:
                assert codes[rank.pod_uid] == rank.exit_code
            if rank.phase is RankState.SUCCEEDED:
                assert codes[rank.pod_uid] == 0


@relaxed
@given(scene=scenes(), now=moments, later=moments)
def test_terminated_is_absorbing(scene: tuple[Allocation, list[Pod]], now: int, later: int) -> None:
    """This is true whatever happens to the pods afterwards."""
    allocation, pods = scene
    last = follow(allocation, pods, now=T0 + now, consistent=True, gone=frozenset())[-1].allocation
    if last.status.phase is Phase.TERMINATED:
        for change in CHANGES:
            assert not reduce(change(AllocationStory(last)).it, pods, now=T0 + now + later, consistent=True).changed


@st.composite
def lives(draw: st.DrawFn, rank: int) -> list[PodStory]:
    """The views of one pod during its life, until a stop is requested: oldest first."""
    going = a_pod(rank).running().deleted(at_s=draw(moments))
    lost = going.disrupted(draw(st.sampled_from(["DeletionByTaintManager", "DeletionByPodGC"])))
    seen = [a_pod(rank), a_pod(rank).bound(), a_pod(rank).waiting("ErrImagePull"), a_pod(rank).running(), going, lost]
    return seen[: draw(st.integers(1, len(seen)))]


def recorded(allocation: Allocation, views: Sequence[Sequence[Pod]], since: int) -> list[Allocation]:
    """The allocation, and the record after its reduction with each of these views in turn."""
    written = [allocation]
    for later, view in enumerate(views):
        reduction = reduce(written[-1], view, now=T0 + since + later * 5)
        if reduction.changed:
            written.append(reduction.allocation)
    return written


@relaxed
@given(data=st.data(), stage=st.sampled_from(["started", "running", "ending"]))
def test_views_of_any_age_in_any_order_come_to_the_same_record(data: st.DataObject, stage: str) -> None:
    """With any number of watchers, each with a view of another age, no rank goes back. The record ends as the newest
    view shows it, and when that has no news nothing is written."""
    story = an_allocation(RANKS, minAvailable=1).assigned().released()
    story = story.started() if stage == "started" else story.running()
    story = story.killed().recorded(Event.TERMINATING, at_s=4, reason="Killed") if stage == "ending" else story
    seen: list[list[PodStory]] = [data.draw(lives(rank)) for rank in range(RANKS)]
    newest = [life[-1].it for life in seen]
    ages: st.SearchStrategy[tuple[int, ...]] = st.tuples(*(st.integers(0, len(life) - 1) for life in seen))
    seen_then: list[tuple[int, ...]] = data.draw(st.lists(ages, max_size=12))
    views = [[life[age].it for life, age in zip(seen, each, strict=True)] for each in seen_then]
    views.insert(data.draw(st.integers(0, len(views))), newest)
    begun = reduce(story.it, [life[0].it for life in seen], now=T0 + 5).allocation
    written = recorded(begun, views, since=10)
    for before, after in pairwise(written):
        for was, now in zip(before.status.ranks or (), after.status.ranks or (), strict=False):
            assert not is_behind(now.phase, was.phase)
            assert now.node or not was.node
            assert now.reason or not was.reason
    last = recorded(written[-1], [newest], since=90)[-1]
    assert recorded(last, [newest], since=100) == [last]
    for again in recorded(last, [*views, newest], since=100):
        # Only the newest view shows what keeps a rank from starting: an older one may report it once more.
        assert again.status.ranks == last.status.ranks
        assert again.status.phase is last.status.phase
    direct = recorded(begun, [newest, newest], since=10)[-1]
    # Ranks without a change that is worth a write are not recorded yet.
    assert direct.status.ranks in (None, last.status.ranks)
    assert last.status.phase is direct.status.phase
