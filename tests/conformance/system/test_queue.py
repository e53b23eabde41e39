"""The job queue, nodes, usage and history on a real API server: patches, permissions, times in whole seconds."""

import csv
import io
import json
import secrets
from typing import Any

import pytest

from slipway.errors import PermanentError
from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.system import System, a_body, an_allocation
from tests.support.wait import wait_until

LABEL = "slipway.dev/scheduling"
JOBS = f"{GROUP}/namespaces/default/jobs"


def patch(system: System, path: str, body: Json) -> Any:
    """PATCH of the REST API."""
    return system.ask(lambda api: api.patch(path, body))


def delete(system: System, path: str) -> None:
    """DELETE of the REST API."""
    system.ask(lambda api: api.call("DELETE", path))


def nodes_of(view: Json) -> set[str]:
    return {rank["node"] for rank in view["status"]["ranks"]}


def waiting(system: System) -> list[str]:
    """The ids that wait in the default queue, in their order."""
    return [each["id"] for each in system.get("/queues/default")["waiting"]]


@pytest.fixture
def drained(system: System) -> Any:
    """All nodes are drained, so that launched allocations wait."""
    for node in system.get("/nodes")["items"]:
        system.post(f"/nodes/{node['name']}/drain")
    yield
    for node in system.get("/nodes")["items"]:
        system.post(f"/nodes/{node['name']}/enable")


def test_a_node_out_of_use_is_seen_by_kubectl_and_left_by_gangs(system: System) -> None:
    """The node has the label; the gang runs again elsewhere as a whole, and no restart is counted."""
    id_ = system.launch(a_body("training", 2))
    node = sorted(nodes_of(system.wait_for(id_, "Running")))[0]
    assert system.cli("node", "disable", node).code == 0
    assert "disabled" in system.kubectl("get", "node", node, "-L", LABEL)
    again = system.wait_until(id_, lambda view: view["attempt"] == 2 and view["phase"] == "Running", "running again")
    assert node not in nodes_of(again)
    assert again["status"].get("restarts", 0) == 0
    assert [run.code for run in system.runs(id_) if run.attempt == 1] == [143, 143]
    system.started_once(id_, 2, attempt=2)
    assert system.post(f"/nodes/{node}/enable")["scheduling"] == "enabled"
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")


def test_a_node_is_drained_by_label_or_cordon(system: System, drained: None) -> None:
    """A label or a cordon by kubectl has the same effect: the explanation names it, and the allocation starts when
    the node is back."""
    id_ = system.launch(a_body())
    system.wait_until(id_, lambda view: "draining" in json.dumps(view["status"]), "explained as draining")
    (node, *_) = system.get("/nodes")["items"]
    name = node["name"]
    system.kubectl("cordon", name)
    system.kubectl("label", "node", name, f"{LABEL}-")
    assert system.get(f"/nodes/{name}")["scheduling"] == "cordoned"
    assert system.view(id_)["phase"] == "Pending"
    system.kubectl("uncordon", name)
    view = system.wait_for(id_, "Running", "Terminated")
    assert nodes_of(system.wait_until(id_, lambda one: bool(one["status"].get("ranks")), "placed")) == {name}, view


def test_jobs_are_the_same_by_api_and_by_kubectl(system: System, drained: None) -> None:
    """A job is created, changed, moved and removed by either; the API server's rules apply to both."""
    system.post("/jobs", {"name": "by-api", "maxSlots": 2, "priority": 60})
    by_hand = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "by-hand"},
        "spec": {"priority": 60},
    }
    system.kubectl("apply", "-f", "-", stdin=json.dumps(by_hand))
    status, message = system.operator.refusal(
        lambda: system.operator.change(f"{JOBS}/by-hand", {"spec": {"queuePosition": "first"}})
    )
    assert (status, "queuePosition" in message) == (422, True)
    first = [system.launch(a_body(job="by-api")) for _ in range(2)]
    second = [system.launch(a_body(job="by-hand")) for _ in range(2)]
    system.post("/jobs/by-hand/move", {"behind": "by-api"})
    system.post("/jobs/by-hand/move", {"aheadOf": "by-api"})
    assert set(waiting(system)[:2]) == set(second)
    assert system.operator.get(f"{JOBS}/by-hand")["spec"]["queuePosition"]
    system.operator.change(f"{JOBS}/by-api", {"spec": {"priority": 90}})
    assert set(waiting(system)[:2]) == set(first)
    patch(system, "/jobs/by-api", {"priority": None, "maxSlots": None})
    assert "priority" not in system.operator.get(f"{JOBS}/by-api")["spec"]
    batch = system.post("/jobs/batch", {"updates": [{"job": "by-api", "weight": 3}, {"job": "none", "weight": 3}]})
    assert (batch["failed"], system.get("/jobs/by-api")["weight"]) == (1, 3)
    with pytest.raises(PermanentError, match="is in use by"):
        delete(system, "/jobs/by-api")
    system.post("/jobs/by-api/kill")
    system.post("/jobs/by-hand/kill")
    for id_ in [*first, *second]:
        system.ended(id_, "Canceled")
    for name in ("by-api", "by-hand"):
        delete(system, f"/jobs/{name}")
        assert system.operator.find(f"{JOBS}/{name}") is None


def test_moves_between_allocations_of_one_second(system: System, drained: None) -> None:
    """Creation times have whole seconds here; an allocation can be moved between two of one second all the same,
    also an applied one."""
    # With a name of its own, a second try of this test does not find the ended object of the first.
    name = f"applied-{secrets.token_hex(4)}"
    ids = [system.launch(a_body()) for _ in range(3)]
    system.kubectl("apply", "-f", "-", stdin=json.dumps(an_allocation(name)))
    ids.append(system.applied_id(name))
    order = wait_until(lambda: found if len(found := waiting(system)) == 4 else None, "all wait")
    assert order is not None
    system.post(f"/allocations/{order[3]}/move", {"aheadOf": order[1]})
    assert waiting(system) == [order[0], order[3], order[1], order[2]]
    system.operator.change(f"{GROUP}/namespaces/default/allocations/{name}", {"spec": {"queuePosition": "1"}})
    wait_until(lambda: waiting(system)[0] == ids[3], "the applied one is first")


def test_a_new_priority_of_a_running_job(system: System) -> None:
    """A preemptible job restarts with the new priority; other jobs run on."""
    system.post("/jobs", {"name": "prio", "priority": 10})
    id_ = system.launch(a_body("training", 1, job="prio", preemptible=True, preemptionGrace="1s"))
    system.wait_for(id_, "Running")
    assert patch(system, "/jobs/prio", {"priority": 20})["preempted"] == [id_]
    again = system.wait_until(id_, lambda view: view["attempt"] == 2 and view["phase"] == "Running", "running again")
    assert again["status"].get("restarts", 0) == 0
    fixed = system.launch(a_body("training", 1, job="prio"))
    system.wait_for(fixed, "Running")
    with pytest.raises(PermanentError, match="cannot be preempted"):
        patch(system, "/jobs/prio", {"priority": 30})
    assert [len(system.runs(each)) for each in (id_, fixed)] == [2, 1]
    system.post("/jobs/prio/kill")
    for each in (id_, fixed):
        system.ended(each, "Canceled")
    delete(system, "/jobs/prio")


def test_usage_outlives_what_is_deleted_by_hand(system: System) -> None:
    """After `kubectl delete` of a running allocation, its seconds are in the totals, once, and the object is gone."""

    def seconds() -> float:
        text = system.cli("usage", "--by", "kind,day", "--csv").out
        return sum(
            float(row["running_seconds"]) for row in csv.DictReader(io.StringIO(text)) if row["kind"] == "training"
        )

    system.settle()
    before = seconds()
    ids = [system.launch(a_body("training", 2)) for _ in range(3)]
    for id_ in ids:
        system.wait_for(id_, "Running")
    moments = {id_: system.view(id_)["startedAt"] for id_ in ids}
    for id_ in ids:
        system.kubectl("delete", "alloc", id_.rsplit("-", 1)[0], "--wait=false")
    for id_ in ids:
        wait_until(lambda id_=id_: system.is_gone(id_), f"{id_} is gone", timeout_s=60.0)
    assert seconds() > before
    assert seconds() == pytest.approx(seconds())
    totals = system.operator.items("/api/v1/configmaps", "slipway.dev/usage=true")
    assert all(each["metadata"]["name"].startswith("slipway-usage-20") for each in totals)
    then = system.ask(lambda api: api.get("/history", {"at": moments[ids[0]]}))
    assert ids[0] in [each["id"] for each in then["items"]]
    assert system.get("/queue-stats")["days"]
