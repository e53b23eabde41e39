"""The status of a pod is what a kubelet 1.36 writes at that moment of its life."""

from typing import Any

import msgspec

from tests.conformance.kubelets.builders import a_pod
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.objects import Json, Pod
from tests.conformance.kubelets.script import Script
from tests.conformance.kubelets.states import Verdict
from tests.conformance.kubelets.status import Rejection, Since, patch_of, rejected_status, status_of

BEGIN = 1_767_225_600.0
STARTED = "2026-01-01T00:00:00Z"


def said(life: Life, at: float = 0.0) -> Json:
    """The status so many seconds after the beginning."""
    life.advance(BEGIN + at)
    return status_of(life, Since(life.pod), pod_ip="10.0.0.1", host_ip="127.0.0.1", now=BEGIN + at)


def a_life(script: Script, **more: Any) -> Life:
    """A pod that was just admitted."""
    return Life(a_pod(**more), script, BEGIN)


def facts(status: Json) -> dict[str, tuple[str, str | None]]:
    """{condition: (status, reason)}."""
    return {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}


def test_while_it_is_created() -> None:
    """A new pod is Pending, without an address, ContainerCreating; it is initialized because it has no init
    containers."""
    status = said(a_life(Script(starts_s=9)))
    assert status["phase"] == "Pending"
    assert "podIP" not in status
    assert status["startTime"] == STARTED
    assert status["containerStatuses"] == [
        {
            "name": "main",
            "image": "busybox",
            "imageID": "",
            "ready": False,
            "started": False,
            "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}},
            "lastState": {},
        }
    ]
    assert facts(status) == {
        "PodReadyToStartContainers": ("False", None),
        "Initialized": ("True", None),
        "Ready": ("False", "ContainersNotReady"),
        "ContainersReady": ("False", "ContainersNotReady"),
        "PodScheduled": ("True", None),
    }
    assert status["conditions"][2]["message"] == "containers with unready status: [main]"


def test_while_it_runs() -> None:
    """All conditions of a running pod are true, and its container has an id."""
    status = said(a_life(Script(starts_s=0)))
    assert {value for value, _ in facts(status).values()} == {"True"}
    [container] = status["containerStatuses"]
    assert container["containerID"].startswith("containerd://")
    assert container["imageID"].startswith("busybox@sha256:")
    assert container["state"] == {"running": {"startedAt": STARTED}}
    assert status["podIPs"] == [{"ip": "10.0.0.1"}]
    assert status["observedGeneration"] == 1


def test_after_success_and_failure() -> None:
    """An ended pod shows PodCompleted or PodFailed, and its sandbox is gone."""
    good, bad = said(a_life(Script(starts_s=0, runs_s=1)), 0), said(a_life(Script(starts_s=0, runs_s=0, exit=1)))
    assert good["phase"] == "Running"
    good = said(a_life(Script(starts_s=0, runs_s=0)))
    assert (good["phase"], facts(good)["Ready"]) == ("Succeeded", ("False", "PodCompleted"))
    assert facts(good)["Initialized"] == ("True", "PodCompleted")
    assert (bad["phase"], facts(bad)["Ready"]) == ("Failed", ("False", "PodFailed"))
    assert facts(bad)["PodReadyToStartContainers"] == ("False", None)
    ended = bad["containerStatuses"][0]["state"]["terminated"]
    assert ended == {
        "exitCode": 1,
        "reason": "Error",
        "startedAt": STARTED,
        "finishedAt": STARTED,
        "containerID": bad["containerStatuses"][0]["containerID"],
    }


def test_with_init_containers() -> None:
    """A pod with init containers shows PodInitializing and the incomplete ones, in order."""
    life = a_life(Script(starts_s=0, init_runs_s=5), initContainers=[{"name": "one"}, {"name": "two"}])
    status = said(life)
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert facts(status)["Initialized"] == ("False", "ContainersNotInitialized")
    assert status["conditions"][1]["message"] == "containers with incomplete status: [one two]"
    status = said(life, 5)
    assert [item["ready"] for item in status["initContainerStatuses"]] == [True, False]


def test_deleted_before_it_began() -> None:
    """A pod deleted before its start is Failed with the conditions of a waiting pod; code 137 without times or id."""
    life = a_life(Script(starts_s=60))
    life.stop(BEGIN, 30)
    status = said(life)
    assert (status["phase"], facts(status)["Ready"]) == ("Failed", ("False", "ContainersNotReady"))
    [container] = status["containerStatuses"]
    assert container["state"]["terminated"] == {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container could not be located when the pod was terminated",
        "startedAt": None,
        "finishedAt": None,
    }
    assert "containerID" not in container


def test_a_pod_failure_is_reported_when_its_containers_have_ended() -> None:
    """The pod's reason, message and disruption condition appear only when nothing of it runs any more."""
    life = a_life(Script(starts_s=0, term_s=2))
    life.advance(BEGIN)
    life.stop(BEGIN, 9, verdict=Verdict(reason="Evicted", message="low", is_disruption=True))
    assert "reason" not in said(life)
    status = said(life, 2)
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "Evicted", "low")
    assert facts(status)["DisruptionTarget"] == ("True", "TerminationByKubelet")


def test_between_two_starts() -> None:
    """Between two starts a container shows CrashLoopBackOff, its last state and its id; the next restart is not
    counted yet."""
    life = a_life(Script(starts_s=0, runs_s=1, exit=1), restartPolicy="Always")
    for at in (0.0, 1.0, 2.0):
        status = said(life, at)
    [container] = status["containerStatuses"]
    assert container["restartCount"] == 1
    assert container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    words = "back-off 10s restarting failed container=main pod=p_default(u-1)"
    assert container["state"]["waiting"]["message"] == words
    assert container["lastState"]["terminated"]["containerID"] == container["containerID"]


def test_a_transition_time_changes_with_the_status_only() -> None:
    """A condition whose status does not change keeps its transition time."""
    life = a_life(Script(starts_s=0, runs_s=5))
    since = Since(life.pod)
    for at in (0.0, 5.0):
        life.advance(BEGIN + at)
        status = status_of(life, since, pod_ip="", host_ip="", now=BEGIN + at)
    times = {item["type"]: item["lastTransitionTime"] for item in status["conditions"]}
    assert times["PodScheduled"] == STARTED
    assert times["Initialized"] == STARTED
    assert times["Ready"] == "2026-01-01T00:00:05Z"


def test_a_rejected_pod_has_no_containers_and_no_conditions() -> None:
    """A rejected pod keeps only the conditions of other writers."""
    foreign: Json = {"type": "example.org/foreign", "status": "True"}
    mine: Json = {"type": "PodScheduled", "status": "True"}
    pod = a_pod(status={"conditions": [mine, foreign]})
    status = rejected_status(pod, Rejection(reason="OutOfcpu", message="too much"), BEGIN)
    assert status == {
        "phase": "Failed",
        "reason": "OutOfcpu",
        "message": "Pod was rejected: too much",
        "startTime": STARTED,
        "conditions": [{"$patch": "delete", "type": "PodScheduled"}],
    }


def test_a_patch_names_the_uid() -> None:
    """A patch contains the uid, so that it never applies to another pod of the same name."""
    pod: Pod = a_pod()
    assert msgspec.json.decode(patch_of(pod, {"phase": "Running"})) == {
        "metadata": {"uid": "u-1"},
        "status": {"phase": "Running"},
    }
