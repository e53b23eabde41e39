"""How the watcher reports pods of a real API server: each step once, and each loss with the reason of the table."""

from tests.conformance.system.operator import Json
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

PROGRESS = ("pulling", "starting", "running")


def progress(system: System, id_: str) -> list[str]:
    """The progress events of its stream, repeats included."""
    return [word for word in system.story(id_) if word in PROGRESS]


def pod_of(system: System, id_: str) -> Json:
    return wait_until(lambda: system.pods(id_), "its pod")[0]  # pyright: ignore[reportOptionalSubscript]


def test_pending_and_scheduled_emits_exactly_pulling_then_starting_once(system: System) -> None:
    """The containers take seconds to start; meanwhile a watcher is killed and another one started."""
    system.installation.resume("watcher-1")
    try:
        id_ = system.launch(a_body("training", 2, {"startsS": 6}))
        system.wait_for(id_, "Starting")
        system.installation.kill("watcher")
        pods = system.pods(id_)
        assert [(pod["status"]["phase"], bool(pod["spec"].get("nodeName"))) for pod in pods] == [("Pending", True)] * 2
        system.wait_for(id_, "Running")
        assert progress(system, id_) == [*PROGRESS]
    finally:
        system.installation.halt("watcher-1")
        system.installation.await_ready()


def test_pending_with_a_deletion_is_an_end(system: System) -> None:
    """A pod that is deleted by hand before its container ran causes a new attempt, which is not counted as a
    restart."""
    id_ = system.launch(a_body(script={"startsS": 8}))
    system.wait_for(id_, "Starting")
    system.kubectl("delete", "pod", pod_of(system, id_)["metadata"]["name"], "--wait=false")
    view = system.wait_until(id_, lambda view: view["attempt"] == 2, "in its second attempt")
    assert view["status"].get("restarts", 0) == 0
    assert "PodDeleted" in [event["data"].get("reason") for event in system.events(id_)]


def test_an_init_container_that_fails_is_named_with_its_code(system: System) -> None:
    """The failure names the init container and its exit code."""
    body = a_body(script={"initRunsS": 0.1, "initExit": 7})
    body["template"]["spec"]["initContainers"] = [{"name": "fetch-data", "image": "example.org/i:1"}]
    view = system.ended(system.launch(body), "Failed")
    assert view["reason"] == "InitContainerFailed"
    assert "init container fetch-data: exit code 7" in view["message"]


def test_an_image_pull_back_off_ends_with_the_image(system: System) -> None:
    """A pull that works at the second attempt is waited for."""
    late = system.launch(a_body(script={"pullFails": 1, "backoffS": 0.2, "runsS": 0.1}))
    never = system.launch(a_body(script={"pullFails": -1, "backoffS": 0.5}, maxRestarts=3))
    system.ended(late, "Succeeded")
    view = system.ended(never, "Failed")
    assert (view["reason"], view["attempt"]) == ("ImagePullBackOff", 1)
    assert "image example.org/work:1 cannot be pulled" in view["message"]


def test_what_podgc_collects_is_a_lost_node(system: System) -> None:
    """The machine dies and its Node is deleted: whether we or PodGC delete the pod first, the next attempt avoids
    that node's name."""
    system.nodes.add("collected")
    body = a_body()
    body["ranks"][0]["nodeSelector"] = {"kubernetes.io/hostname": "collected"}
    id_ = system.launch(body)
    system.wait_for(id_, "Running")
    system.nodes.remove("collected")
    view = system.wait_until(id_, lambda view: view["attempt"] == 2, "in its second attempt", timeout_s=120)
    assert view["status"]["avoidNodes"] == ["collected"]
    assert view["status"].get("restarts", 0) == 0
    assert "NodeLost" in [event["data"].get("reason") for event in system.events(id_)]
