"""Ranks that another scheduler must bind: a refused rank is returned to our scheduler soon, a rank without an answer
later."""

import msgspec
import pytest

from slipway.crd.meta import ANNOTATION_OPENED, Condition
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason
from slipway.model.times import format_time
from slipway.watcher.ends import LifecyclePolicy
from slipway.watcher.obstacles import unbound_pod
from tests.support.builders import T0, AllocationStory, PodStory, a_pod, an_allocation
from tests.support.reductions import once, settled

POLICY = LifecyclePolicy(unschedulable_limit_s=30.0, stuck_limit_s=600.0)
WORDS = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector."
OPENED_S = 2.0


def left(rank: int = 0, *, opened: bool = True) -> PodStory:
    """A pod that is left to kube-scheduler."""
    pod = a_pod(rank)
    spec = msgspec.structs.replace(pod.it.spec, scheduler_name="default-scheduler")
    pod = PodStory(msgspec.structs.replace(pod.it, spec=spec))
    if not opened:
        return pod
    marks = {**pod.it.metadata.annotations, ANNOTATION_OPENED: format_time(T0 + OPENED_S)}
    return pod.with_metadata(annotations=marks)


def refused(rank: int = 0, *, reason: str = "Unschedulable") -> PodStory:
    """The pod, with kube-scheduler's condition that it cannot place it; the condition has the time at which the pod was
    created."""
    said = Condition(type="PodScheduled", status="False", reason=reason, message=WORDS)
    return left(rank).with_status(conditions=[said])


def a_released(ranks: int = 2) -> AllocationStory:
    return an_allocation(ranks).assigned().released()


@pytest.mark.parametrize(
    ("pod", "limit_s", "reason"),
    [
        (refused(), 30.0, Reason.PLACEMENT_REFUSED),
        (refused(reason="SchedulerError"), 30.0, Reason.PLACEMENT_REFUSED),
        (refused(reason="SchedulingGated"), 600.0, Reason.LAUNCH_STUCK),
        (left(), 600.0, Reason.LAUNCH_STUCK),
    ],
)
def test_the_time_runs_from_the_opening_of_the_gate(pod: PodStory, limit_s: float, reason: Reason) -> None:
    """The time runs from the opening of the gate: short after a refusal, long without an answer, because the scheduler
    may be in an upgrade."""
    found = unbound_pod(pod.it, POLICY)
    assert found is not None
    assert (found.until, found.reason) == (T0 + OPENED_S + limit_s, reason)


FOR_ITS_MATES = (
    "minCount (2) cannot be satisfied: 1 scheduled, 0 remaining",
    "minCount (2) is not yet satisfied: 1 scheduled, 0 remaining, no preemption victims found",
    "failed to schedule other pod from a pod group: nodeaffinity: bad",
    "pod group is unschedulable",
)


@pytest.mark.parametrize("words", FOR_ITS_MATES)
def test_the_rank_without_a_place_is_named_where_its_whole_group_is_refused(words: str) -> None:
    """The pods that have a place only say that their group is refused: their ranks are not named, and their nodes are
    not avoided."""
    said = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=words)
    mate = left(0).with_status(conditions=[said])
    found = unbound_pod(mate.it, POLICY)
    assert found is not None
    assert (found.until, found.reason) == (T0 + OPENED_S + 600.0, Reason.LAUNCH_STUCK)
    ended = once(a_released().it, mate, refused(1), now=T0 + 33, policy=POLICY).allocation.status
    assert (ended.phase, ended.reason) == (Phase.TERMINATING, Reason.PLACEMENT_REFUSED)
    assert ended.message.startswith("rank 1 on n1: default-scheduler does not place it there: 0/3 nodes")
    assert ended.transitions[-1].data["node"] == "n1"


def test_a_gate_is_open_for_no_longer_than_its_pod_is_there() -> None:
    """The gate's time is not taken as earlier than the creation of its pod: the clock of the process that opened the
    gate may be behind."""
    found = unbound_pod(left().with_metadata(creation_timestamp=format_time(T0 + 60.0)).it, POLICY)
    assert found is not None
    assert found.until == T0 + 60.0 + 600.0


@pytest.mark.parametrize("pod", [left(opened=False), left().bound(), refused().deleted(), left().running()])
def test_whoever_is_not_waiting_is_not_judged(pod: PodStory) -> None:
    """A pod is not judged when its gate is still closed (the pod worker opens it), when it has a node, or when it
    ends."""
    assert unbound_pod(pod.it, POLICY) is None


def test_refused_rank_is_waited_for_first() -> None:
    """A refused rank gets time, because the obstacle may disappear; the watcher checks again when the time is over."""
    reduction = once(a_released().it, left(0).bound(), refused(1), now=T0 + 20, policy=POLICY)
    assert reduction.allocation.status.phase is Phase.ASSIGNED
    assert reduction.needs.recheck_at == T0 + OPENED_S + 30


def test_gang_with_a_refused_rank_is_given_back_whole() -> None:
    """A gang with a refused rank is torn down whole: it is not the user's fault, the message has kube-scheduler's own
    words, and the node is avoided."""
    ended = once(a_released().it, left(0).running(), refused(1), now=T0 + 33, policy=POLICY).allocation.status
    assert (ended.phase, ended.reason) == (Phase.TERMINATING, Reason.PLACEMENT_REFUSED)
    assert "Insufficient cpu" in ended.message
    assert ended.message.startswith("rank 1 on n1: default-scheduler does not place it there: 0/3 nodes")
    assert ended.transitions[-1].data["node"] == "n1"
    after = settled(
        a_released().it, left(0).exited(143, at_s=40).deleted(at_s=35), refused(1).deleted(), now=T0 + 60, policy=POLICY
    ).status
    assert (after.phase, after.attempt) == (Phase.PENDING, 2)
    assert (after.restarts, after.infra_restarts) == (0, 1)


def test_node_that_was_refused_is_avoided() -> None:
    """After a pause the next attempt tries other nodes first."""
    given_back = once(a_released(1).it, refused(), now=T0 + 33, policy=POLICY).allocation
    after = settled(given_back, refused().deleted(), now=T0 + 34, policy=POLICY).status
    assert (after.phase, after.attempt, after.avoid_nodes) == (Phase.PENDING, 2, ["n0"])
    assert after.not_before


def test_silence_is_no_reason_to_avoid_the_node() -> None:
    """A scheduler that does not answer has not refused the node, so the node is not avoided."""
    given_back = once(a_released(1).it, left(), now=T0 + 603, policy=POLICY).allocation
    assert given_back.status.reason == Reason.LAUNCH_STUCK
    after = settled(given_back, left().deleted(), now=T0 + 604, policy=POLICY).status
    assert (after.phase, after.attempt, after.avoid_nodes) == (Phase.PENDING, 2, [])


def test_cancel_of_a_refused_gang_is_a_cancel() -> None:
    """A canceled gang ends as canceled, whatever kube-scheduler says."""
    ended = once(a_released().killed().it, left(0).running(), refused(1), now=T0 + 33, policy=POLICY).allocation
    assert ended.status.reason == Reason.KILLED
