"""`slipway audit` on a whole local system: clean after real allocations, and manual damage is reported by invariant."""

import json
import os
import signal
import subprocess
from collections.abc import Generator
from typing import Any

import httpx2
import pytest

from tests.support.cli import CommandResult
from tests.support.local_stack import Json, RunningStack, cli_words, running_stack
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

BODY: Json = {
    "kind": "command",
    "ranks": [{"count": 2, "resources": {"cpu": "100m"}}],
    "template": {"spec": {"containers": [{"name": "main", "image": "local", "command": ["sleep", "0.3"]}]}},
}
LASTING: Json = {
    **BODY,
    "template": {"spec": {"containers": [{"name": "main", "image": "local", "command": ["sleep", "300"]}]}},
}
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    """A separate stack, so that the damage affects no other test."""
    with running_stack(tmp_path_factory.mktemp("audit") / "data", cpus=32, memory="64Gi") as running:
        yield running


def environment(stack: RunningStack) -> dict[str, str]:
    return {
        **stack.cli_environment(),
        "KUBECONFIG": stack.stack.kubeconfig,
        "SLIPWAY_REDIS_URL": stack.stack.redis_url,
        "COLUMNS": "80",
    }


def audit(stack: RunningStack, *words: str) -> CommandResult:
    """Run `slipway audit ...` as a user with a kubeconfig."""
    argv = cli_words("audit", *words)
    done = subprocess.run(argv, env=environment(stack), capture_output=True, text=True, timeout=120, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


def broken(ran: CommandResult) -> dict[str, list[Json]]:
    """{invariant: its violations}, from the JSON output"""
    lines: list[Json] = json.loads(ran.out)["invariants"]
    return {line["invariant"]: line["violations"] for line in lines if line["violations"]}


def test_a_run_of_launches_is_clean(own: RunningStack) -> None:
    """While gangs run and end, a table of 80 columns shows that no invariant is broken, and the exit code is 0."""
    own.launch(BODY)
    argv = cli_words("audit", "--for", "8s")
    with subprocess.Popen(argv, env=environment(own), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        ids = [own.launch(BODY) for _ in range(3)]
        for each in ids:
            own.wait_for(each, "Terminated")
        out, err = run.communicate(timeout=120)
    assert run.returncode == 0, out + err
    assert "0 violations; " in out
    assert max(map(len, out.splitlines())) <= 80
    assert "I3 " in out
    assert "at most one bound, live pod" in out

    once = audit(own, "--once", "-o", "json")
    assert once.code == 0, once.out + once.err
    seen = {line["invariant"]: line["lookedAt"] for line in json.loads(once.out)["invariants"]}
    assert seen["I7"] >= 4
    assert seen["I14"] >= 4
    assert seen["I2"] is None


def test_what_is_broken_by_hand_is_told_with_its_name(own: RunningStack) -> None:
    """A second live pod of a rank, a pod without an allocation, and a wrong stream are reported by name, with exit
    code 1."""
    id_ = own.launch(LASTING)
    view = own.wait_for(id_, "Running")
    pod = own.pods_of_uid(view)[0]
    labels = pod["metadata"]["labels"]
    twin = a_pod("twin", {**labels, "slipway.dev/attempt": "2"}, node=pod["spec"]["nodeName"])
    orphan = a_pod("orphan", {**labels, "slipway.dev/allocation-uid": "gone"}, node=pod["spec"]["nodeName"])
    # These services would repair the damage.
    own.halt("watcher", "podworker")
    for body in (twin, orphan):
        own.kubernetes("POST", PODS, body)
    key = f"slipway:alloc:{{{id_}}}"
    with own.redis() as client:
        entry, fields = client.xrange(key)[1]
        client.delete(key)
        client.xadd(key, {**fields, "data": fields["data"].replace("Assigned", "Terminated")}, id=entry)
    try:
        ran = audit(own, "-o", "json")
        assert ran.code == 1, ran.out + ran.err
        told = broken(ran)
        assert "twin" in json.dumps(told["I3"])
        assert id_ in json.dumps(told["I14"])
        assert all(each["next"] for each in told["I3"])
        page = audit(own)
        assert page.code == 1
        assert f"I14 {id_}" in page.out
        assert "next: " in page.out
    finally:
        for name in names(own) & {"twin", "orphan"}:
            own.kubernetes("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        own.resume("watcher", "podworker")


def test_it_serves_gauges(own: RunningStack) -> None:
    """`--listen` audits for ever: it serves a gauge for each judged invariant, the time of the last run, and /livez."""
    argv = cli_words("audit", "--every", "1s", "--listen", "127.0.0.1:0")
    with subprocess.Popen(
        argv, env=environment(own), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            url = address_of(run)

            def metrics() -> str:
                text = httpx2.get(f"{url}/metrics", verify=NO_TLS, trust_env=False).text
                return text if "slipway_audit_violations{" in text else ""

            found = wait_until(metrics, "the gauges of a first audit", timeout_s=60)
            assert 'slipway_audit_violations{invariant="I3"}' in found
            assert 'slipway_audit_violations{invariant="I2"}' not in found
            assert "slipway_audit_last_run_seconds 1" in found
            assert httpx2.get(f"{url}/livez", verify=NO_TLS, trust_env=False).status_code == 200
        finally:
            run.send_signal(signal.SIGTERM)
            run.communicate(timeout=30)
    assert run.returncode == 0


def test_where_it_can_not_look_it_says_so(own: RunningStack) -> None:
    """A missing API server or Redis gives exit code 2, and the output names what could not be read."""
    env = environment(own) | {"KUBECONFIG": os.devnull}
    done = subprocess.run(cli_words("audit"), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


def names(stack: RunningStack) -> set[str]:
    return {pod["metadata"]["name"] for pod in stack.kubernetes("GET", PODS)["items"]}


def a_pod(name: str, labels: dict[str, Any], *, node: str) -> Json:
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "local", "command": ["sleep", "300"]}]},
    }


def address_of(run: "subprocess.Popen[str]") -> str:
    """The address on which it reports to listen."""
    assert run.stderr is not None
    said: list[str] = []
    for line in run.stderr:
        said.append(line)
        if line.startswith("{") and (listen := json.loads(line).get("listen")):
            return f"http://{listen}"
    raise AssertionError(f"it never said where it listens: {said}")
