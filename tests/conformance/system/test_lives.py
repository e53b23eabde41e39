"""Every kind of allocation runs from launch to end, launched in every way, under the accounts of the chart."""

import pytest

from slipway.errors import InvalidError
from tests.conformance.cluster.credentials import ADMIN
from tests.conformance.system.operator import Json, must
from tests.conformance.system.system import MANAGED, System, a_body, an_allocation

SERVICES = ("notebook", "shell", "tensorboard")


@pytest.mark.parametrize(("kind", "ranks"), [("command", 1), ("training", 4)])
def test_an_allocation_that_ends_by_itself(system: System, kind: str, ranks: int) -> None:
    """From requested to terminated every rank is started once, its exit code is recorded, and nothing is left."""
    id_ = system.launch(a_body(kind, ranks, {"runsS": 0.3}))
    view = system.ended(id_, "Succeeded")
    assert [rank["exitCode"] for rank in view["status"]["ranks"]] == [0] * ranks
    story = system.story(id_)
    assert story[:2] == ["requested", "assigned"]
    assert story[-2:] == ["running", "terminated"]
    system.started_once(id_, ranks)
    system.nothing_left(system.object(id_)["metadata"]["uid"])


@pytest.mark.parametrize("kind", SERVICES)
def test_an_allocation_that_runs_until_it_is_killed(system: System, kind: str) -> None:
    """The allocation runs, is ready, and is ended by a kill within the grace; its container was started once."""
    id_ = system.launch(a_body(kind, ports=[{"name": "http", "port": 8888}]))
    system.wait_for(id_, "Running")
    system.post(f"/allocations/{id_}/ready", {"value": True})
    ready = system.wait_until(id_, lambda view: view["ready"], "ready")
    assert ready["phase"] == "Running"
    assert system.cli("kill", id_, "--wait").code == 0
    assert system.view(id_)["result"] == "Canceled"
    (run,) = system.runs(id_)
    assert (run.attempt, run.code) == (1, 143)
    system.nothing_left()


def test_a_gang_starts_whole(system: System) -> None:
    """Four ranks have one release, a headless Service, the address of the first rank, and owners for garbage
    collection."""
    id_ = system.launch(a_body("training", 4))
    view = system.wait_for(id_, "Running")
    pods = system.pods(id_)
    assert view["status"]["release"]["podUIDs"] == [pod["metadata"]["uid"] for pod in pods]
    uid = system.object(id_)["metadata"]["uid"]
    for pod in pods:
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner.get("blockOwnerDeletion", False)) == ("Allocation", uid, False)
        env = {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
        assert env["WORLD_SIZE"] == "4"
        assert env["SLIPWAY_API"] == "http://slipway-api.slipway-system.svc:8090", "the tasks' door"
    kinds = sorted(item.split()[0] for item in system.left(uid))
    assert kinds == ["configmaps", "pods", "pods", "pods", "pods", "services"]
    (service,) = system.operator.items("/api/v1/services", MANAGED)
    assert service["spec"]["clusterIP"] == "None"
    for pod in pods:
        assert system.nodes.exit(pod["metadata"]["uid"], 0)
    system.ended(id_, "Succeeded")
    system.started_once(id_, 4)


def test_the_command_launches(system: System) -> None:
    """`slipway run --detach`, `wait`, `describe`, `ps`."""
    words = ["--image", "example.org/work:1", "--cpus", "100m", "--memory", "64Mi", "--name", "by-cli"]
    must(system.cli("run", "--detach", *words, "--", "work"))
    id_ = system.applied_id("by-cli")
    system.wait_for(id_, "Running")
    assert "by-cli" in must(system.cli("ps"))
    system.nodes.exit(system.pods(id_)[0]["metadata"]["uid"], 0)
    must(system.cli("wait", id_))
    assert "Succeeded" in must(system.cli("describe", id_))
    assert must(system.cli("explain", id_))
    assert must(system.cli("timeline", id_))


@pytest.mark.parametrize("kind", ["command", "training", *SERVICES])
def test_an_applied_object_is_launched(system: System, kind: str) -> None:
    """`kubectl apply` launches like the REST API: each kind has the same life, and a second apply changes nothing."""
    name = f"applied-{kind}"
    manifest: Json = an_allocation(name, kind, ranks=2 if kind == "training" else 1, script={"runsS": 0.4})
    assert "created" in system.operator.apply(manifest)
    id_ = system.applied_id(name)
    view = system.ended(id_, "Succeeded")
    assert view["user"] == ADMIN[0], "whom the API server saw"
    assert system.story(id_)[0] == "requested"
    assert "unchanged" in system.operator.apply(manifest)
    system.started_once(id_, len(view["status"]["ranks"]))


def test_one_key_launches_once(system: System) -> None:
    """A second launch with the same Idempotency-Key returns the same id, also after the end."""
    body = a_body(script={"runsS": 0.1})
    ids = {system.ask(lambda api: api.launch(body, key="the-same-key"))["id"] for _ in range(3)}
    (id_,) = ids
    system.ended(id_, "Succeeded")
    assert system.ask(lambda api: api.launch(body, key="the-same-key"))["id"] == id_
    system.started_once(id_, 1)


def test_one_key_with_a_name_launches_once(system: System) -> None:
    """A key with a name launches once, by a claim that only the api's own account may write: other names, and none,
    are refused."""
    body = a_body(script={"runsS": 0.1})
    named = {**body, "name": "by-name"}
    (id_,) = {system.ask(lambda api: api.launch(named, key="a-key-with-a-name"))["id"] for _ in range(2)}
    for other in ({**body, "name": "by-another"}, body):
        with pytest.raises(InvalidError, match="by-name"):
            system.ask(lambda api, other=other: api.launch(other, key="a-key-with-a-name"))
    system.ended(id_, "Succeeded")
    system.started_once(id_, 1)


def test_files_travel_in_the_config_map(system: System) -> None:
    """Files of a launch are in the attempt's ConfigMap while the attempt lives, and deleted with it."""
    id_ = system.launch(a_body(files=[{"path": "train.py", "content": "print('hello')"}]))
    system.wait_for(id_, "Running")
    (found,) = system.operator.items("/api/v1/configmaps", f"slipway.dev/allocation={id_}")
    assert "print('hello')" in str(found)
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    system.nothing_left()
