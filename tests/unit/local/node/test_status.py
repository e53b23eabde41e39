"""The status that follows from the containers, and the pods that a node admits."""

from slipway.crd.meta import ObjectMeta, RawObject
from slipway.crd.roleresources import objects_of
from slipway.local.node.capacity import Capacity
from slipway.local.node.containers import (
    PodVerdict,
    RunningContainer,
    RunningState,
    State,
    Terminated,
    WaitingState,
    exited,
    phase_of,
    status_of,
)
from slipway.local.node.podview import NodePod
from slipway.model.resources import Resources

NOW = 1_700_000_000.0
GOOD = Terminated(exit_code=0, finished_at=NOW, started_at=NOW, reason="Completed")
BAD = Terminated(exit_code=1, finished_at=NOW, started_at=NOW, reason="Error")
RUNS = RunningState(started_at=NOW)


def pod(policy: str = "Never", status: RawObject | None = None) -> NodePod:
    return NodePod(metadata=ObjectMeta(name="p"), spec={"restartPolicy": policy}, status=status or {})


def mains(*states: State) -> list[RunningContainer]:
    return [RunningContainer(spec={"name": f"c{n}"}, state=state, is_ready=True) for n, state in enumerate(states)]


def test_phases():
    """The phase is that of a kubelet's getPhase, by restart policy."""
    never, always, again = pod(), pod("Always"), pod("OnFailure")
    init = [RunningContainer(spec={"name": "init"}, is_init=True, state=RUNS)]
    crash = [RunningContainer(spec={"name": "c"}, state=WaitingState(reason="CrashLoopBackOff"), last=BAD)]
    assert phase_of(never, mains(WaitingState())) == "Pending"
    assert phase_of(never, [*init, *mains(WaitingState())]) == "Pending"
    assert phase_of(never, mains(RUNS, BAD)) == "Running"
    assert phase_of(never, mains(GOOD, GOOD)) == "Succeeded"
    assert phase_of(never, mains(GOOD, BAD)) == "Failed"
    assert phase_of(always, mains(GOOD)) == "Running"
    assert phase_of(always, mains(GOOD), is_final=True) == "Succeeded"
    assert phase_of(again, crash) == "Running"


def test_a_terminal_pod_waits_for_its_sidecars():
    """A terminal pod waits for its sidecars: it has not ended while a container runs."""
    side = RunningContainer(spec={"name": "s", "restartPolicy": "Always"}, is_init=True, state=RUNS)
    assert phase_of(pod(), [side, *mains(GOOD)]) == "Running"


def test_conditions_of_others_are_kept_and_times_move_only_with_the_status():
    """PodScheduled stays; Ready keeps its transition time while it stays True."""
    old = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    kept = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    known = pod(status={"conditions": [old, kept], "qosClass": "Burstable"})
    status = status_of(known, mains(RUNS), pod_ip="127.70.0.1", host_ip="127.0.0.1", started_at=NOW, now=NOW)
    by_type = {condition["type"]: condition for condition in objects_of(status["conditions"])}
    assert by_type["PodScheduled"] == kept
    assert by_type["Ready"] == old
    assert status["qosClass"] == "Burstable"
    again = status_of(
        NodePod(metadata=known.metadata, spec=known.spec, status=status),
        mains(RUNS), pod_ip="127.70.0.1", host_ip="127.0.0.1", started_at=NOW, now=NOW + 60,
    )  # fmt: skip
    assert again == status


def test_a_verdict_overrules():
    """A shutdown of the node fails the pod, whatever its containers did, and the status names the node as the cause."""
    verdict = PodVerdict(reason="Terminated", message="m", is_failed=True, is_disruption=True)
    status = status_of(
        pod(), mains(GOOD), pod_ip="i", host_ip="h", started_at=NOW, now=NOW, verdict=verdict, is_final=True
    )
    assert (status["phase"], status["reason"]) == ("Failed", "Terminated")
    target = next(each for each in objects_of(status["conditions"]) if each["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "TerminationByKubelet")


def test_an_unknown_end_is_said_to_be_unknown():
    """An unknown end is reported as 137 and ContainerStatusUnknown, as a kubelet reports a lost container."""
    lost = exited(None, started_at=NOW, finished_at=NOW)
    assert (lost.exit_code, lost.reason) == (137, "ContainerStatusUnknown")


def test_a_node_takes_what_fits():
    """A node admits pods that fit. Released resources are free again, and a pod is not counted against itself."""
    capacity = Capacity(Resources.parse({"cpu": 2, "pods": 2}))
    one = Resources.parse({"cpu": 1, "pods": 1})
    assert capacity.admit("a", one) is None
    assert capacity.admit("a", one) is None
    assert capacity.admit("b", one) is None
    shortage = capacity.admit("c", one)
    assert shortage is not None
    assert shortage.reason == "OutOfcpu"
    assert "requested: 1000, used: 2000, capacity: 2000" in shortage.message
    capacity.leaving("a")
    assert capacity.is_leaving
    capacity.release("a")
    assert not capacity.is_leaving
    assert capacity.admit("c", one) is None
