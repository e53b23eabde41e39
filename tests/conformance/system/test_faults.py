"""Faults on nodes, and whose fault each is: only the user's own faults use up the retries."""

import pytest

from tests.conformance.system.operator import Json
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

OTHERS = "/api/v1/namespaces/kube-public/pods"


def running_pod(system: System, id_: str, rank: int = 0) -> Json:
    """The pod of a rank of the running attempt."""
    view = system.wait_for(id_, "Running")
    name = f"{id_}-{view['attempt']}-{rank}"
    return next(pod for pod in system.pods(id_) if pod["metadata"]["name"] == name)


def wait_until_back(system: System, id_: str, rank: int, was: str) -> Json:
    """Wait until the rank runs in another pod than `was`, and return the pod."""

    def found() -> list[Json]:
        pods = [pod for pod in system.pods(id_) if pod["metadata"]["name"].endswith(f"-{rank}")]
        return [pod for pod in pods if pod["metadata"]["uid"] != was and pod["status"].get("phase") == "Running"]

    return wait_until(found, "the rank runs again", timeout_s=40.0)[0]


def second_attempt(system: System, id_: str) -> Json:
    """Wait until the second attempt of the allocation runs."""
    return system.wait_until(id_, lambda view: (view["attempt"], view["phase"]) == (2, "Running"), "running again")


def finish(system: System, id_: str) -> None:
    """End all ranks successfully."""
    for pod in system.pods(id_):
        if pod["status"]["phase"] == "Running":
            system.nodes.exit(pod["metadata"]["uid"], 0)
    system.ended(id_, "Succeeded")


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ({"runsS": 0.1, "exit": 3}, 3, "RankFailed"),
        ({"runsS": 0.1, "exit": 137, "reason": "OOMKilled"}, 137, "OutOfMemory"),
        ({"initRunsS": 0.1, "initExit": 9}, 9, "InitContainerFailed"),
    ],
)
def test_an_exit_code(system: System, script: Json, code: int, reason: str) -> None:
    """An allocation ends as Failed with the code of the rank that failed, and is not retried."""
    body = a_body("training", 2, script)
    if "initExit" in script:
        body["template"]["spec"]["initContainers"] = [{"name": "prepare", "image": "example.org/i:1"}]
    id_ = system.launch(body)
    view = system.ended(id_, "Failed")
    assert view["reason"] == reason
    assert str(code) in view["message"]
    assert view["attempt"] == 1


def test_the_users_own_failures_count(system: System) -> None:
    """With maxRestarts 1 there are two attempts, each rank once in each."""
    id_ = system.launch(a_body("training", 2, {"runsS": 0.1, "exit": 1}, maxRestarts=1))
    view = system.ended(id_, "Failed")
    assert view["attempt"] == 2
    assert "restarted" in system.story(id_)
    for attempt in (1, 2):
        system.started_once(id_, 2, attempt=attempt)


def test_a_rank_starts_again_in_its_place(system: System) -> None:
    """With `restart: rank` the other ranks run on; the new pod has the name and the node of the failed one."""
    id_ = system.launch(a_body("training", 2, restart="rank", maxRestarts=1))
    before = {pod["metadata"]["name"]: pod for pod in [running_pod(system, id_, rank) for rank in (0, 1)]}
    first, failed = before[f"{id_}-1-0"], before[f"{id_}-1-1"]
    system.nodes.exit(failed["metadata"]["uid"], 3)
    is_back = wait_until_back(system, id_, 1, failed["metadata"]["uid"])
    assert is_back["spec"]["nodeName"] == failed["spec"]["nodeName"]
    assert running_pod(system, id_)["metadata"]["uid"] == first["metadata"]["uid"]
    system.nodes.exit(is_back["metadata"]["uid"], 4)
    view = system.ended(id_, "Failed")
    assert (view["attempt"], view["status"]["restarts"]) == (1, 1)
    assert "exit code 4" in view["message"]
    assert system.nodes.doubles() == []


def test_a_pod_deleted_by_hand(system: System) -> None:
    """`kubectl delete pod` does not end the allocation: its next attempt is not counted as a restart."""
    id_ = system.launch(a_body("training", 2))
    pod = running_pod(system, id_)
    system.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    view = second_attempt(system, id_)
    assert view["status"].get("restarts", 0) == 0
    assert system.nodes.doubles() == []
    finish(system, id_)


def test_an_eviction(system: System) -> None:
    """A pod evicted by its node restarts on another node, and the restart is not counted."""
    id_ = system.launch(a_body("training", 1))
    pod = running_pod(system, id_)
    system.nodes.evict(pod["metadata"]["uid"])
    second_attempt(system, id_)
    assert {run.node for run in system.runs(id_) if run.attempt == 2} != {pod["spec"]["nodeName"]}
    finish(system, id_)


def test_an_eviction_through_the_api(system: System) -> None:
    """An eviction through the API, as by `kubectl drain`, has the same effect."""
    id_ = system.launch(a_body("training", 1))
    pod = running_pod(system, id_)["metadata"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["name"], "namespace": "default"}}
    system.operator.create(f"/api/v1/namespaces/default/pods/{pod['name']}/eviction", body)
    second_attempt(system, id_)
    finish(system, id_)


def test_a_node_that_is_gone(system: System) -> None:
    """When a node dies and is deleted, its gang restarts elsewhere as a whole."""
    system.nodes.add("doomed")
    body = a_body("training", 2)
    body["ranks"][0]["nodeSelector"] = {}
    id_ = system.launch(body)
    pod = running_pod(system, id_)
    system.nodes.remove(pod["spec"]["nodeName"])
    second_attempt(system, id_)
    assert pod["spec"]["nodeName"] not in {run.node for run in system.runs(id_) if run.attempt == 2}
    assert system.nodes.doubles() == []
    finish(system, id_)


def test_a_kubelet_that_refuses(system: System) -> None:
    """Another pod occupied the node in between: OutOfcpu is not the user's fault, and the next attempt runs
    elsewhere."""
    body = a_body("training", 1, {"runsS": 0.2})
    body["ranks"][0]["resources"] = {"cpu": "10"}
    worker = system.installation.processes["podworker"]
    worker.pause()
    try:
        id_ = system.launch(body)
        view = system.wait_for(id_, "Assigned")
        node = view["status"]["admission"]["placements"][0]["node"]
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "15"}}}
        intruder = {"metadata": {"name": "intruder"}, "spec": {"nodeName": node, "containers": [container]}}
        system.operator.create(OTHERS, intruder)
        wait_until(lambda: system.nodes.runs_of("kube-public/intruder"), "the intruder runs")
    finally:
        worker.go_on()
    try:
        view = system.ended(id_, "Succeeded")
    finally:
        system.operator.delete(f"{OTHERS}/intruder", {"gracePeriodSeconds": 0})
    assert "KubeletRejected" in str(system.events(id_)), system.events(id_)
    assert view["attempt"] == 2
    (run,) = system.runs(id_)
    assert (run.attempt, run.node != node) == (2, True)


def test_an_image_that_can_not_be_pulled(system: System) -> None:
    """A missing image is waited for for a while, then the allocation ends with the image's name; an image that
    appears late is no failure."""
    late = system.launch(a_body(script={"pullFails": 1, "backoffS": 0.5, "runsS": 0.1}))
    never = system.launch(a_body(script={"pullFails": -1, "backoffS": 0.5}))
    view = system.ended(never, "Failed")
    assert view["reason"] == "ImagePullBackOff"
    assert "example.org/work:1" in view["message"]
    assert system.runs(never) == []
    system.ended(late, "Succeeded")


def test_a_sidecar_neither_decides_nor_blocks(system: System) -> None:
    """The end of the main container is the end of the rank; the sidecar is ended with it."""
    body = a_body(script={"containers": {"main": {"runsS": 0.2}, "side": {}}})
    body["template"]["spec"]["containers"].append({"name": "side", "image": "example.org/side:1"})
    id_ = system.launch(body)
    system.ended(id_, "Succeeded")
    system.nothing_left()
    ends = {run.container: run.code for run in system.runs(id_)}
    assert ends == {"main": 0, "side": 143}
