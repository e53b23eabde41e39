"""Roles of one gang that start in order, on a whole system: all are placed, and one waits for the other."""

from pathlib import Path
from typing import Any

from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

SMALL = {"cpu": "50m", "memory": "64Mi"}


def a_role(name: str, script: str, *, prepares: str = "", **more: Any) -> dict[str, Any]:
    """A role of one rank that runs a script, after one that prepares it."""
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "local", "command": ["sh", "-c", script]}]}
    if prepares:
        spec["initContainers"] = [{"name": "prepare", "image": "local", "command": ["sh", "-c", prepares]}]
    return {"name": name, "resources": SMALL, "template": {"spec": spec}, **more}


def test_a_role_starts_when_the_one_that_it_depends_on_has(stack: RunningStack, marks: Path) -> None:
    """Its pod is placed and waits with a sentence in the log; then both run, and the gang ends together."""
    stamp, now = "date +%s%N >", f"{marks}"
    server = a_role(
        "server",
        f"{stamp} {now}/server; until test -s {now}/worker; do sleep 0.1; done",
        prepares=f"until test -e {now}/go; do sleep 0.1; done",
    )
    worker = a_role("worker", f"{stamp} {now}/worker", dependsOn=[{"role": "server"}])
    id_ = stack.launch({"kind": "training", "name": fresh("ordered"), "ranks": [server, worker]})

    def waits() -> bool:
        return (
            "waits for role server (0 of 1 ranks started)"
            in stack.command("logs", id_, "--container", "slipway-start-order").out
        )

    wait_until(waits, "the worker says for whom it waits")
    assert "; role worker waits for server (started)" in stack.command("explain", id_).out
    assert all(pod["node"] for pod in stack.pods(id_))
    assert list(marks.iterdir()) == []
    (marks / "go").touch()
    assert stack.wait_for(id_, "Terminated")["result"] == "Succeeded"
    assert int((marks / "server").read_text()) <= int((marks / "worker").read_text())
