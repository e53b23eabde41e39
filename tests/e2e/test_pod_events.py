"""Kubernetes' events about pods, as users see them in `slipway logs`, on the whole system."""

from datetime import UTC, datetime
from typing import Any

from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

EVENTS = "/api/v1/namespaces/default/events"
PRINTS = {"kind": "command", "command": ["sh", "-c", "echo hello; sleep 600"]}


def happen(stack: RunningStack, pod: dict[str, Any], name: str, reason: str, message: str) -> None:
    """Write the event that a kubelet would write; nodes of local mode pull no images."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"kind": "Pod", "namespace": "default", "name": pod["name"], "uid": pod["uid"]}
    meta = {"name": f"{pod['name']}.{name}", "namespace": "default"}
    body = {"metadata": meta, "involvedObject": about, "reason": reason, "message": message, "count": 1}
    stack.kubernetes("POST", EVENTS, {**body, "firstTimestamp": now, "lastTimestamp": now, "type": "Normal"})


def test_events_of_a_pod_stand_in_its_log_once_and_apart(stack: RunningStack) -> None:
    """Events are shown in words, marked, and omitted on request; a watcher that is killed and restarted does not
    repeat them."""
    id_ = stack.launch(PRINTS)
    stack.wait_for(id_, "Running")
    [pod] = stack.pods(id_)
    happen(stack, pod, "a", "Pulling", 'Pulling image "python:3.11"')
    happen(stack, pod, "b", "Pulled", 'Successfully pulled image "python:3.11" in 3.02s (3.02s including waiting)')

    def lines(*words: str) -> list[str]:
        return stack.command("logs", id_, *words).out.splitlines()

    said = ["-- Pulling image python:3.11", "-- image pulled in 3 s"]
    wait_until(lambda: sorted(lines()) == sorted(["hello", *said]), "the lines")
    assert sorted(lines("--stream", "event")) == sorted(said)
    assert lines("--stream", "stdout") == ["hello"]
    stack.kill("watcher")
    happen(stack, pod, "c", "Evicted", "The node was low on resource: memory.")
    evicted = "-- evicted: The node was low on resource: memory."
    wait_until(lambda: evicted in lines(), "what happened meanwhile", timeout_s=60)
    assert sorted(lines("--stream", "event")) == sorted([*said, evicted])
    assert stack.command("kill", id_, "--wait").code == 0
