"""Events of kubelets and the API server about pods, as users read them in the log of an allocation."""

from typing import Any

from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until


def log_messages(system: System, id_: str) -> list[str]:
    """The log lines that no rank printed."""
    return [item["text"] for item in lines(system, id_) if item["stream"] == "event"]


def lines(system: System, id_: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = system.ask(
        lambda api: api.call("GET", f"/allocations/{id_}/logs", headers={"Accept": "application/json"}).json()["items"]
    )
    return found


def test_each_start_message_is_logged_once(system: System) -> None:
    """The log shows image, pull and start once; a watcher that is killed and restarted does not repeat them."""
    id_ = system.launch(a_body())
    system.wait_for(id_, "Running")
    wait_until(lambda: "container main started" in log_messages(system, id_), f"the start: {log_messages(system, id_)}")
    before = sorted(log_messages(system, id_))
    assert before == ["Pulling image example.org/work:1", "container main started", "image pulled in 0.04 s"]
    system.installation.kill("watcher")
    system.installation.await_ready()
    [pod] = system.pods(id_)
    system.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    wait_until(
        lambda: "container main is being stopped" in log_messages(system, id_),
        f"the stop: {log_messages(system, id_)}",
        timeout_s=60,
    )
    first = [item["text"] for item in lines(system, id_) if item["stream"] == "event" and item["attempt"] == 1]
    assert sorted(first) == sorted([*before, "container main is being stopped"])


def test_an_image_that_can_not_be_had_is_told(system: System) -> None:
    """A missing image is shown in two lines, instead of the five events of Kubernetes."""
    id_ = system.launch(a_body(script={"pullFails": -1, "backoffS": 0.5}))
    view = system.wait_for(id_, "Terminated", timeout_s=60)
    assert "cannot be pulled" in view["message"], view["message"]
    found = log_messages(system, id_)
    assert any("could not be pulled" in text for text in found), found
    assert not any("ErrImagePull" in text for text in found), found
