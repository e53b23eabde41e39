"""A hand-written Allocation is a first-class launch: applied with the real kubectl, it runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandResult
from tests.support.local_stack import ALLOCATION, RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

Json = dict[str, Any]
MANIFEST = """
apiVersion: slipway.dev/v1alpha1
kind: Allocation
metadata:
  name: NAME
spec:
  kind: training
  ranks:
  - {name: worker, count: 2, resources: {cpu: 100m, memory: 64Mi}}
  template:
    spec:
      containers:
      - name: main
        image: local
        command: [python, -c, "import os; print('rank', os.environ['RANK'], 'by hand')"]
"""


def kubectl(stack: RunningStack, *words: str, text: str = "") -> CommandResult:
    """Run it against the stack's cluster."""
    argv = ["kubectl", "--kubeconfig", stack.stack.kubeconfig, *words]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kubectl_apply_runs_it(stack: RunningStack, tmp_path: Path) -> None:
    """apply, wait, get, logs and delete work."""
    name, manifest = fresh("by-hand"), tmp_path / "allocation.yaml"
    manifest.write_text(MANIFEST.replace("NAME", name))
    applied = kubectl(stack, "apply", "-f", str(manifest))
    assert applied.code == 0, applied.err
    waited = kubectl(stack, "wait", f"alloc/{name}", "--for=jsonpath={.status.phase}=Terminated", "--timeout=40s")
    assert waited.code == 0, waited.err
    got = json.loads(kubectl(stack, "get", "alloc", name, "-o", "json").out)
    assert got["status"]["result"] == "Succeeded"
    id_ = f"{name}-{got['metadata']['uid'][:8]}"
    assert stack.view(id_)["user"] == "unknown"
    assert sorted(stack.command("logs", id_).out.splitlines()) == ["[0] rank 0 by hand", "[1] rank 1 by hand"]
    table = kubectl(stack, "get", "alloc").out
    assert table.splitlines()[0].split()[:5] == ["NAME", "KIND", "QUEUE", "PRIORITY", "PHASE"]
    again = kubectl(stack, "apply", "-f", str(manifest))
    assert "unchanged" in again.out, again.out + again.err
    assert kubectl(stack, "delete", "alloc", name, "--timeout=30s").code == 0
    assert kubectl(stack, "get", "alloc", name).code == 1


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kubectl_describe_tells_the_story(stack: RunningStack, tmp_path: Path) -> None:
    """`describe` shows where it waited and ran, that it restarted after a failure, and how it ended."""
    name, manifest = fresh("storied"), tmp_path / "allocation.yaml"
    text = MANIFEST.replace("NAME", name).replace("print('rank', os.environ['RANK'], 'by hand')", "os._exit(7)")
    manifest.write_text(text.replace("kind: training\n", "kind: training\n  maxRestarts: 1\n"))
    applied = kubectl(stack, "apply", "-f", str(manifest))
    assert applied.code == 0, applied.err
    waited = kubectl(stack, "wait", f"alloc/{name}", "--for=condition=Stalled", "--timeout=50s")
    assert waited.code == 0, waited.err

    def shown() -> list[str]:
        """The second column of the Events of `describe`."""
        described = kubectl(stack, "describe", "alloc", name).out.rpartition("\nEvents:")[2]
        return [line.split()[1] for line in described.splitlines() if line.startswith(("  Normal", "  Warning"))]

    steps = {"Queued", "Admitted", "Running", "Requeued", "Failed"}
    wait_until(lambda: steps <= set(shown()), "the story to be told", timeout_s=20)
    assert sorted(set(shown())) == sorted(shown()), "each step for one cause is one Event"
    assert kubectl(stack, "delete", "alloc", name, "--timeout=30s").code == 0


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
def test_kubectl_delete_cancels(stack: RunningStack) -> None:
    """A delete while it runs ends it as Canceled, and the object is deleted last."""
    name = fresh("to-delete")
    text = MANIFEST.replace("NAME", name).replace("print('rank', os.environ['RANK'], 'by hand')", "os.pause()")
    text = text.replace("os.pause()", "import signal; signal.pause()")
    assert kubectl(stack, "apply", "-f", "-", text=text).code == 0
    view = stack.wait_for(name, "Running")
    deleted = kubectl(stack, "delete", "alloc", name, "--timeout=40s")
    assert deleted.code == 0, deleted.err
    assert [item["rank"] for item in stack.pods_of_uid(view)] == []
    events = stack.stream_of(view["id"])
    assert (events[-1]["phase"], events[-1]["result"]) == ("Terminated", "Canceled")


def test_an_applied_object_runs_through_the_api_server(stack: RunningStack) -> None:
    """The object is POSTed to the Kubernetes API, without kubectl."""
    name = fresh("posted")
    body: Json = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": name},
        "spec": {
            "kind": "command",
            "template": {"spec": {"containers": [{"name": "main", "image": "local", "command": ["true"]}]}},
        },
    }
    stack.kubernetes("POST", ALLOCATION, body)
    wait_until(lambda: stack.view(name)["result"] == "Succeeded", "the posted object succeeds")
    stack.kubernetes("DELETE", f"{ALLOCATION}/{name}")
    names = lambda: [item["metadata"]["name"] for item in stack.kubernetes("GET", ALLOCATION)["items"]]  # noqa: E731
    wait_until(lambda: name not in names(), "the posted object is gone")


@pytest.mark.parametrize("tool", ["curl", "python", "kubectl"])
def test_a_launch_that_is_printed_for_another_tool_runs(stack: RunningStack, tmp_path: Path, tool: str) -> None:
    """The output of `--as` uses the token of the stack in a variable, or its kubeconfig; it never contains the
    token."""
    if tool == "kubectl" and shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    name = fresh(f"as-{tool}")
    words = ("--as", tool, "--image", "local", "--name", name, "--", "python", "-c", "print('printed')")
    printed = stack.command("run", *words)
    assert (printed.code, stack.stack.token in printed.out) == (0, False), printed
    if tool == "kubectl":
        applied = kubectl(stack, "apply", "-f", "-", text=printed.out)
        assert applied.code == 0, applied
    else:
        script = tmp_path / "printed"
        script.write_text(printed.out)
        argv = ["/bin/sh" if tool == "curl" else sys.executable, str(script)]
        env = {**os.environ, "SLIPWAY_API_TOKEN": stack.stack.token}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, name in done.stdout) == (0, True), done
    ended = stack.wait_for(name, "Terminated", timeout_s=60)
    assert ended["result"] == "Succeeded", ended
    assert "printed" in stack.command("logs", name).out
