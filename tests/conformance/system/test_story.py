"""The steps of an allocation as Events of Kubernetes, written by the watcher's own account on a real API server."""

from tests.conformance.system.operator import Json
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def events_of(system: System, id_: str) -> dict[str, list[Json]]:
    """{reason: its Events} of an allocation."""
    found: dict[str, list[Json]] = {}
    for item in system.operator.items(EVENTS):
        if item["metadata"]["name"].startswith(f"{id_}."):
            found.setdefault(item["reason"], []).append(item)
    return found


def test_each_step_is_told_once_and_what_comes_again_is_counted(system: System) -> None:
    """Two restarts for one cause are one Event with a count; a watcher that takes over finds the Events and
    continues them."""
    id_ = system.launch(a_body("training", 1, {"runsS": 0.1, "exit": 1}, maxRestarts=2))
    system.ended(id_, "Failed", timeout_s=90)
    wait_until(lambda: "Failed" in events_of(system, id_), "the event of the end", timeout_s=60)
    before = events_of(system, id_)
    assert {"Queued", "Admitted", "Running", "Requeued", "Failed"} <= set(before)
    assert {len(each) for each in before.values()} == {1}
    assert before["Requeued"][0]["series"]["count"] == 2
    assert before["Requeued"][0]["regarding"]["kind"] == "Allocation"
    system.installation.kill("watcher")
    system.installation.await_ready()
    other = system.launch(a_body(script={"runsS": 0.1}))
    system.ended(other, "Succeeded", timeout_s=60)
    wait_until(lambda: "Succeeded" in events_of(system, other), "the events of the next allocation", timeout_s=60)
    assert {reason: len(each) for reason, each in events_of(system, id_).items()} == {reason: 1 for reason in before}
