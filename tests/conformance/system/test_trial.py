"""`helm test` on a real API server: the chart's pod is scheduled, its program runs under its account, and a launch
succeeds.

The nodes here are simulated: the program of the pod runs as a process of this machine, with the container's command and
environment and the account's token, as a kubelet would run it; its exit code is the container's.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.system.accounts import Credentials
from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.permissions import Account, denied
from tests.conformance.system.system import System
from tests.support import chart
from tests.support.wait import wait_until

PODS = f"/api/v1/namespaces/{chart.NAMESPACE}/pods"
LAUNCHES = f"{GROUP}/namespaces/default/allocations"


def _running(system: System) -> Json | None:
    pod = system.operator.find(f"{PODS}/slipway-trial")
    return pod if pod and pod["status"].get("phase") == "Running" else None


def _program(system: System, pod: Json, folder: Path, more: Mapping[str, str]) -> "subprocess.Popen[str]":
    (container,) = pod["spec"]["containers"]
    account = Account(namespace=chart.NAMESPACE, name=pod["spec"]["serviceAccountName"])
    told = {entry["name"]: entry.get("value", chart.NAMESPACE) for entry in container["env"]}
    here = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    kubeconfig = str(Credentials(system.operator, account, folder).kubeconfig)
    _, *words = container["command"]
    env = {**here, "HOME": str(folder), **told, **more, "KUBECONFIG": kubeconfig}
    return subprocess.Popen([sys.executable, *words], env=env, stderr=subprocess.PIPE, text=True)


def _end_the_rank(system: System) -> bool:
    """End the command of the trial as soon as it runs."""
    ranks = [
        item
        for item in system.operator.items("/api/v1/namespaces/default/pods", "slipway.dev/allocation-uid")
        if item["metadata"]["name"].startswith("trial-") and item["status"].get("phase") == "Running"
    ]
    return any([system.nodes.exit(item["metadata"]["uid"]) for item in ranks])


def _tried(system: System, folder: Path, more: Mapping[str, str], *, ends: bool) -> str:
    """The output of the pod's program."""
    pod = wait_until(lambda: _running(system), "the pod of the test runs")
    assert pod is not None
    with _program(system, pod, folder, more) as program:
        try:
            if ends:
                wait_until(lambda: _end_the_rank(system), "the rank has run")
            _, said = program.communicate(timeout=60)
        finally:
            program.kill()
    wait_until(lambda: system.nodes.exit(pod["metadata"]["uid"], program.returncode), "the pod of the test ends")
    return said


def test_a_release_that_works_passes(system: System, tmp_path: Path) -> None:
    """The trial leaves no launch, and no account that may launch."""
    since = system.audit.position()
    with ThreadPoolExecutor(1) as pool:
        tested = pool.submit(chart.try_out, system.operator.cluster.kubeconfig)
        _tried(system, tmp_path, {}, ends=True)
        tested.result(timeout=60)
    account = Account(namespace=chart.NAMESPACE, name="slipway-trial")
    asked = system.audit.requests(account, since=since)
    assert asked
    assert denied(asked) == []
    assert [item for item in system.operator.items(LAUNCHES) if item["metadata"]["name"].startswith("trial-")] == []
    accounts = f"/api/v1/namespaces/{chart.NAMESPACE}/serviceaccounts/slipway-trial"
    wait_until(lambda: system.operator.find(accounts) is None, "its account is gone")


def test_a_release_that_does_not_work_fails(system: System, tmp_path: Path) -> None:
    """Without the podworker no pod of a launch is created: the test fails, and the program reports the step that is
    missing."""
    system.installation.halt("podworker")
    try:
        with ThreadPoolExecutor(1) as pool:
            tested = pool.submit(chart.try_out, system.operator.cluster.kubeconfig)
            said = _tried(system, tmp_path, {"SLIPWAY_TRIAL_TIMEOUT_S": "3"}, ends=False)
            with pytest.raises(chart.HelmError):
                tested.result(timeout=60)
        assert "is Assigned after 3 s" in said
    finally:
        system.installation.resume("podworker")
        system.operator.delete(f"{PODS}/slipway-trial")
