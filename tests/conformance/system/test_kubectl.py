"""The real kubectl, used without knowledge of our API: columns, conditions, help, logs."""

import json

import pytest

from tests.conformance.system.system import System, an_allocation


def test_the_columns(system: System) -> None:
    """`kubectl get alloc` shows what users ask for first; pools and queues have short names too."""
    system.operator.apply(an_allocation("shown", "training", ranks=2, priority=60))
    id_ = system.applied_id("shown")
    system.wait_for(id_, "Running")
    head, row = system.kubectl("get", "alloc", "shown").splitlines()
    assert head.split()[:5] == ["NAME", "KIND", "QUEUE", "PRIORITY", "PHASE"]
    assert row.split()[:5] == ["shown", "training", "default", "60", "Running"]
    assert "shown" in system.kubectl("get", "alloc", "-A", "--field-selector=status.phase=Running")
    assert "default" in system.kubectl("get", "rpool")
    assert "default" in system.kubectl("get", "sq")
    wide = system.kubectl("get", "alloc", "shown", "-o", "wide").splitlines()[0].split()
    assert len(wide) >= len(head.split())


@pytest.mark.parametrize("condition", ["Admitted", "PodsReady", "Complete"])
def test_wait_for_a_condition(system: System, condition: str) -> None:
    """`kubectl wait` understands the conditions, because their observedGeneration is the object's."""
    name = f"waited-{condition.lower()}"
    system.operator.apply(an_allocation(name, script={"runsS": 0.2 if condition == "Complete" else 5}))
    system.kubectl("wait", f"alloc/{name}", f"--for=condition={condition}", "--timeout=40s")


def test_wait_for_a_failure(system: System) -> None:
    """`kubectl wait` works with `--for=condition=Failed`, and with the phase."""
    system.operator.apply(an_allocation("failing", script={"runsS": 0.1, "exit": 7}))
    system.kubectl("wait", "alloc/failing", "--for=condition=Failed", "--timeout=40s")
    system.kubectl("wait", "alloc/failing", "--for=jsonpath={.status.phase}=Terminated", "--timeout=5s")
    found = json.loads(system.kubectl("get", "alloc", "failing", "-o", "json"))
    assert found["status"]["result"] == "Failed"
    assert "7" in found["status"]["message"]


def test_describe_and_explain(system: System) -> None:
    """The schema has descriptions; `kubectl describe` shows status, conditions and placements."""
    said = system.kubectl("explain", "alloc.spec")
    for field in ("ranks", "template", "priority", "desired"):
        assert field in said
    assert "DESCRIPTION" in system.kubectl("explain", "alloc.status.phase")
    assert "FIELD" in system.kubectl("explain", "rpool.spec.binding")
    system.operator.apply(an_allocation("described"))
    system.wait_for(system.applied_id("described"), "Running")
    described = system.kubectl("describe", "alloc", "described")
    for word in ("Placements", "Admitted", "Running"):
        assert word in described


def test_a_dry_run_and_a_typo(system: System) -> None:
    """The API server validates a manifest without storing it, and names unknown fields."""
    good = json.dumps(an_allocation("never-made"))
    assert "server dry run" in system.kubectl("apply", "--dry-run=server", "-f", "-", stdin=good)
    bad = an_allocation("never-made")
    bad["spec"]["prioritty"] = 5
    done = system.operator.kubectl("apply", "-f", "-", stdin=json.dumps(bad))
    assert done.code == 1
    assert "prioritty" in done.err
    worse = an_allocation("Never_Made")
    assert system.operator.kubectl("apply", "-f", "-", stdin=json.dumps(worse)).code == 1
    assert system.operator.kubectl("get", "alloc", "never-made").code == 1


def test_server_side_apply(system: System) -> None:
    """`kubectl apply --server-side` launches; a second apply changes nothing, and our own writes are no conflict."""
    manifest = json.dumps(an_allocation("by-server", script={"runsS": 1}))
    assert "serverside-applied" in system.kubectl("apply", "--server-side", "-f", "-", stdin=manifest)
    id_ = system.applied_id("by-server")
    system.wait_for(id_, "Running")
    before = system.object(id_)["metadata"]["generation"]
    system.kubectl("apply", "--server-side", "-f", "-", stdin=manifest)
    assert system.object(id_)["metadata"]["generation"] == before
    system.ended(id_, "Succeeded")


def test_logs(system: System) -> None:
    """`kubectl logs` of a pod and our API show the same lines: while the pod runs, and after it is gone."""
    lines = ["epoch 1", "epoch 2"]
    system.operator.apply(an_allocation("talking", script={"logs": lines, "runsS": 2}))
    id_ = system.applied_id("talking")
    system.wait_for(id_, "Running")
    pod = system.pods(id_)[0]["metadata"]["name"]
    assert system.kubectl("logs", pod).splitlines() == lines
    system.ended(id_, "Succeeded")
    system.nothing_left()
    assert system.cli("logs", id_, "--stream", "stdout").out.splitlines() == lines


def test_logs_of_all_ranks_follow(system: System) -> None:
    """`slipway logs -f` of a gang ends with the gang, and shows every line of every rank once."""
    system.operator.apply(an_allocation("chorus", "training", ranks=3, script={"logs": ["la"], "runsS": 1}))
    id_ = system.applied_id("chorus")
    system.wait_for(id_, "Running", "Terminated")
    assert sorted(system.cli("logs", "-f", id_, "--stream", "stdout").out.splitlines()) == [
        "[0] la",
        "[1] la",
        "[2] la",
    ]
    system.ended(id_, "Succeeded")
