"""Allocations deleted at any step of their launch, with any service down: nothing is stuck, nothing is left (V19)."""

import os
import subprocess
import sys
import uuid
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.conformance.system.accounts import Credentials
from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.permissions import Account, denied
from tests.conformance.system.system import System, an_allocation
from tests.support import chart
from tests.support.wait import wait_until

STUCK_S = 60.0
CLEARS_UP = {"uninstall": {"removeAllocations": True}}
STEPS: dict[str, tuple[str, Json]] = {
    "held": ("Pending", {"hold": True}),
    "waits": ("Pending", {"queue": "nowhere"}),
    "starts": ("Assigned Pulling Starting", {"script": {"startsS": 300}, "ranks": 2}),
    "runs": ("Running", {"ranks": 2}),
    "preempts": ("Running", {"script": {"ignoresTerm": True}}),
    "ends": ("Running", {"script": {"ignoresTerm": True}}),
    "ended": ("Terminated", {"script": {"runsS": 0.1}}),
}
"""{name: (the phases to wait for, how it is launched)}"""


@pytest.fixture
def place(system: System) -> Generator[str]:
    """A workspace of this test, with an allocation at every step of its life."""
    name = f"stuck-{uuid.uuid4().hex[:6]}"
    labels = {"slipway.dev/workspace": "true"}
    system.operator.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    wait_until(lambda: system.operator.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "its account")
    for step, (_, how) in STEPS.items():
        system.operator.apply(an_allocation(step, namespace=name, **how))
    for step, (phases, _) in STEPS.items():
        wait_until(lambda step=step, phases=phases: _phase(system, name, step) in phases.split(), f"{step}: {phases}")
    wait_until(lambda: len(_pods(system, name, "starts")) == 2, "pods of what starts")
    attempt = {"n": 1, "reason": "test", "attempt": 1}
    system.operator.change(_path(name, "preempts"), {"spec": {"signals": {"preempt": attempt, "attempt": 1}}})
    system.operator.change(_path(name, "ends"), {"spec": {"desired": "Stopped"}})
    yield name
    system.operator.delete(f"/api/v1/namespaces/{name}")


def test_a_namespace_goes_at_every_step(system: System, place: str) -> None:
    """A namespace that is deleted with an allocation at every step disappears with everything in it."""
    _delete_namespace(system, place)
    _nothing_is_left(system, place)


def test_what_is_deleted_while_services_are_away_goes_when_they_come_back(system: System, place: str) -> None:
    """One more allocation was assigned while the pod worker was down; every service is down while all are deleted."""
    system.installation.halt("podworker")
    system.operator.apply(an_allocation("assigned", namespace=place))
    wait_until(lambda: _phase(system, place, "assigned") == "Assigned", "it is assigned")
    system.installation.halt("api", "scheduler", "watcher")
    for step in (*STEPS, "assigned"):
        system.operator.delete(_path(place, step))
    system.installation.resume(*chart.SERVICES)
    wait_until(lambda: not _allocations(system, place), "no allocation is left", timeout_s=STUCK_S)
    _delete_namespace(system, place)
    _nothing_is_left(system, place)


def test_after_an_uninstall_the_removal_lets_go_of_everything(system: System, place: str) -> None:
    """The services never return: one command removes deleted allocations and all others."""
    system.installation.halt(*chart.SERVICES)
    try:
        system.operator.delete(_path(place, "runs"))
        _delete_namespace(system, place)
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        env["KUBECONFIG"] = str(system.operator.cluster.kubeconfig)
        argv = [sys.executable, "-m", "slipway.ops.setup.remove"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        _nothing_is_left(system, place)
    finally:
        system.installation.resume(*chart.SERVICES)


def test_before_an_uninstall_the_account_of_the_chart_removes_everything(
    system: System, place: str, tmp_path: Path
) -> None:
    """With `uninstall.removeAllocations` the command of the hook removes everything, as the hook's account, beside
    running services."""
    documents = [item for item in chart.render(CLEARS_UP) if _is_before_an_uninstall(item)]
    job, *account = sorted(documents, key=lambda item: item["kind"] != "Job")
    pod = job["spec"]["template"]["spec"]
    since = system.audit.position()
    system.operator.apply(*account)
    try:
        who = Account(namespace=chart.NAMESPACE, name=pod["serviceAccountName"])
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        env["KUBECONFIG"] = str(Credentials(system.operator, who, tmp_path).kubeconfig)
        _, *words = pod["containers"][0]["command"]
        argv = [sys.executable, *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        asked = system.audit.requests(who, since=since)
        assert asked
        assert denied(asked) == []
        assert _allocations(system, place) == []
    finally:
        for item in account:
            place_of = ("--namespace", item["metadata"]["namespace"]) if "namespace" in item["metadata"] else ()
            system.operator.kubectl("delete", item["kind"], item["metadata"]["name"], *place_of)
    _delete_namespace(system, place)
    _nothing_is_left(system, place)


def _is_before_an_uninstall(item: Json) -> bool:
    return item["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-delete"


def _delete_namespace(system: System, name: str) -> None:
    system.operator.delete(f"/api/v1/namespaces/{name}")


def _nothing_is_left(system: System, name: str) -> None:
    path = f"/api/v1/namespaces/{name}"
    try:
        wait_until(lambda: system.operator.find(path) is None, "the namespace is gone", timeout_s=STUCK_S)
    except AssertionError as error:
        conditions = (system.operator.find(path) or {}).get("status", {}).get("conditions")
        raise AssertionError(f"{error}: {conditions}; {_allocations(system, name)}") from None
    system.nothing_left()


def _allocations(system: System, namespace: str) -> list[str]:
    return [item["metadata"]["name"] for item in system.operator.items(f"{GROUP}/namespaces/{namespace}/allocations")]


def _path(namespace: str, name: str) -> str:
    return f"{GROUP}/namespaces/{namespace}/allocations/{name}"


def _phase(system: System, namespace: str, name: str) -> str:
    return str(system.operator.get(_path(namespace, name)).get("status", {}).get("phase"))


def _pods(system: System, namespace: str, name: str) -> list[Json]:
    return system.pods(system.applied_id(name, namespace))
