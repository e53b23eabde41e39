"""Inputs of launches and where launches may run, on a real API server: archives, dry runs, workspaces, pools, and the
wrong objects that the server itself refuses.
"""

import hashlib
import os
import uuid
from collections.abc import Generator
from typing import Any, cast

import httpx2
import pytest
import yaml

from slipway.crd.meta import ANNOTATION_SERVICE_ACCOUNTS
from slipway.errors import InvalidError
from tests.conformance.system.operator import GROUP, Json, must
from tests.conformance.system.system import System, a_body, an_allocation
from tests.conformance.system.test_inside import a_token
from tests.support.archives import an_archive
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
def archive(system: System) -> Generator[bytes]:
    """Four MiB that were not uploaded before; the stored pieces are deleted at the end."""
    yield an_archive({"train.py": b"print(1)", "data/noise": os.urandom(4 * 1024 * 1024)})
    for item in system.operator.items(MAPS, "slipway.dev/context=index"):
        system.operator.delete(f"{MAPS}/{item['metadata']['name']}")
    wait_until(lambda: not system.operator.items(MAPS, "slipway.dev/context"), "every piece is gone", timeout_s=60)


def put(system: System, content: bytes) -> httpx2.Response:
    """Upload the archive."""
    headers = {"content-type": "application/gzip"}
    url = f"{system.installation.url}/api/v1/contexts"
    return httpx2.put(url, content=content, headers=headers, verify=NO_TLS, trust_env=False, timeout=120.0)


def test_an_archive_reaches_the_ranks(system: System, archive: bytes) -> None:
    """The archive is stored in pieces that belong to its index; each rank downloads it with its token on the port
    for tasks, byte by byte."""
    stored = put(system, archive)
    assert stored.status_code == 201, stored.text
    id_ = stored.json()["id"]
    assert id_ == hashlib.sha256(archive).hexdigest()
    assert put(system, archive).status_code == 200
    (index,) = system.operator.items(MAPS, "slipway.dev/context=index")
    pieces = system.operator.items(MAPS, "slipway.dev/context=piece")
    assert len(pieces) == 5
    owners = {owner["uid"] for item in pieces for owner in item["metadata"]["ownerReferences"]}
    assert owners == {index["metadata"]["uid"]}
    launched = system.launch(a_body("training", 2, context=id_))
    system.wait_for(launched, "Running")
    for pod in system.pods(launched):
        first = pod["spec"]["initContainers"][0]
        door = next(item["value"] for item in first["env"] if item["name"] == "SLIPWAY_API")
        assert door.endswith(":8090")
        token = {"Authorization": f"Bearer {a_token(system, pod)}"}
        url = f"http://{system.installation.doors['api']}/api/v1/allocations/{launched}/context"
        got = httpx2.get(url, headers=token, verify=NO_TLS, trust_env=False, timeout=60.0)
        assert got.status_code == 200, got.text
        assert got.content == archive
    system.post(f"/allocations/{launched}/kill")


def test_ranks_run_as_an_account_of_their_workspace(system: System) -> None:
    """Ranks use a service account when the workspace's annotation allows it: the api, the pod worker and the
    admission policy agree."""
    account = "/api/v1/namespaces/default/serviceaccounts"
    workspace = "/api/v1/namespaces/default"
    system.operator.create(account, {"metadata": {"name": "reader"}})
    body = a_body(ranks=2, serviceAccount="reader")
    try:
        answer = httpx2.post(
            f"{system.installation.url}/api/v1/allocations", json=body, verify=NO_TLS, trust_env=False, timeout=30.0
        )
        assert [error["pointer"] for error in answer.json()["errors"]] == ["/serviceAccount"], answer.text
        system.operator.change(workspace, {"metadata": {"annotations": {ANNOTATION_SERVICE_ACCOUNTS: "read*"}}})
        # The api caches the annotations of a workspace for some seconds.
        launched = wait_until(lambda: accepted(system, body), "the api has seen the annotation", timeout_s=60)
        system.wait_for(launched, "Running")
        accounts = [pod["spec"]["serviceAccountName"] for pod in system.pods(launched)]
        assert accounts == ["reader", "reader"]
        assert all(pod["spec"]["automountServiceAccountToken"] is False for pod in system.pods(launched))
        system.post(f"/allocations/{launched}/kill")
        missing = accepted(system, a_body(serviceAccount="reader-of-nothing"))
        system.wait_for(missing, "Terminated")
        step = "create it with `kubectl create serviceaccount reader-of-nothing --namespace default`"
        assert step in system.get(f"/allocations/{missing}")["message"]
    finally:
        system.operator.change(workspace, {"metadata": {"annotations": {ANNOTATION_SERVICE_ACCOUNTS: None}}})
        system.operator.delete(f"{account}/reader")


def accepted(system: System, body: Json) -> str:
    """The id of a launch; empty when the api refuses it."""
    try:
        return system.launch(body)
    except InvalidError:
        return ""


def test_secret_values_are_in_a_secret_that_goes_with_the_work(system: System) -> None:
    """The ranks refer to the Secret, in each attempt; the allocation, which owns it, contains only the names. The
    Secret is immutable, and is deleted when nothing runs any more."""
    id_ = system.launch(a_body("training", 2, secretValues={"HF_TOKEN": "canary-8d1f"}, maxRestarts=1))
    system.wait_for(id_, "Running")
    stored = system.object(id_)
    uid = stored["metadata"]["uid"]
    assert stored["spec"]["secretVariables"] == ["HF_TOKEN"]
    assert "canary" not in str(stored)
    path = f"/api/v1/namespaces/default/secrets/slipway-values-{uid}"
    secret = system.operator.get(path)
    assert (secret["type"], secret["immutable"], secret["data"]) == ("Opaque", True, {"HF_TOKEN": "Y2FuYXJ5LThkMWY="})
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [uid]
    source = {"secretKeyRef": {"name": f"slipway-values-{uid}", "key": "HF_TOKEN"}}
    for attempt in (1, 2):
        pods = system.pods(id_)
        for pod in pods:
            given = [item for item in pod["spec"]["containers"][0]["env"] if item["name"] == "HF_TOKEN"]
            assert given == [{"name": "HF_TOKEN", "valueFrom": source}]
        if attempt == 1:
            system.nodes.exit(pods[0]["metadata"]["uid"], 3)
            system.wait_until(
                id_, lambda view: (view["attempt"], view["phase"]) == (2, "Running"), "in its second attempt"
            )
    system.post(f"/allocations/{id_}/kill")
    system.ended(id_, "Canceled")
    wait_until(lambda: system.operator.find(path) is None, "its Secret is gone")


def test_pieces_of_an_archive_that_is_gone_are_replaced(system: System, archive: bytes) -> None:
    """A piece of the same name that no index owns is not trusted."""
    id_ = hashlib.sha256(archive).hexdigest()
    left = {"name": f"slipway-context-{id_[:40]}-1", "labels": {"slipway.dev/context": "piece"}}
    system.operator.create(MAPS, {"metadata": left, "binaryData": {"piece": "eHh4"}})
    assert put(system, archive).status_code == 201
    launched = system.launch(a_body(context=id_, hold=True))
    got = httpx2.get(
        f"{system.installation.url}/api/v1/allocations/{launched}/context", verify=NO_TLS, trust_env=False, timeout=60.0
    )
    assert got.content == archive


def test_an_unused_archive_is_deleted(system: System, archive: bytes) -> None:
    """An unused archive is deleted with all its pieces after its time; one that a waiting launch names stays. A
    launch with a deleted archive is refused."""
    id_ = put(system, archive).json()["id"]
    launched = system.launch(a_body(context=id_, hold=True))
    must(system.installation.run("watcher", "--once", more={"SLIPWAY_CONTEXT_KEEP_S": "0.001"}))
    assert system.get(f"/contexts/{id_}")["id"] == id_
    system.post(f"/allocations/{launched}/kill")
    system.ended(launched, "Canceled")
    must(system.installation.run("watcher", "--once", more={"SLIPWAY_CONTEXT_KEEP_S": "0.001"}))
    wait_until(lambda: not system.operator.items(MAPS, "slipway.dev/context"), "it is gone", timeout_s=60)
    with pytest.raises(InvalidError) as refused:
        system.launch(a_body(context=id_))
    assert [field.pointer for field in refused.value.fields] == ["/context"]


def test_a_dry_run_shows_the_pods_that_come(system: System) -> None:
    """The shown pods are those that the pod worker creates, except for uid, user, trace and hash, and fields that
    the server adds."""
    body = {**a_body("training", 2), "name": "rehearsed"}
    answer: Json = system.ask(lambda api: api.post("/allocations", body, {"dryRun": "true"}))
    shown: list[Json] = [item for item in answer["objects"] if item["kind"] == "Pod"]
    assert system.operator.find(f"{GROUP}/namespaces/default/allocations/rehearsed") is None
    id_ = system.launch(body)
    system.wait_for(id_, "Running")
    for mine, real in zip(shown, system.pods(id_), strict=True):
        assert mine["metadata"]["name"].replace("00000000", id_.rpartition("-")[2]) == real["metadata"]["name"]
        for field in ("containers", "volumes", "hostname", "subdomain", "schedulerName", "securityContext"):
            assert _within(mine["spec"][field], real["spec"][field], id_), field
    system.post(f"/allocations/{id_}/kill")


def _within(mine: Any, real: Any, id_: str) -> bool:
    """Whether `real` contains everything in `mine`; additions of the server and the trace of the launch are ignored."""
    if isinstance(mine, dict):
        return all(name in real and _within(value, real[name], id_) for name, value in cast("Json", mine).items())
    if isinstance(mine, list):
        items = cast("list[Any]", mine)
        named: Json = {item["name"]: item for item in real if isinstance(item, dict) and "name" in item}
        return all(
            _within(item, named[item["name"]] if isinstance(item, dict) and "name" in item else real[place], id_)
            for place, item in enumerate(items)
        )
    return str(mine).replace("00000000", id_.rpartition("-")[2]) == str(real)


@pytest.fixture
def workspace(system: System) -> Generator[str]:
    """A workspace of this test, created and removed through the API."""
    name = f"team-{uuid.uuid4().hex[:6]}"
    system.post("/workspaces", {"name": name})
    wait_until(lambda: system.operator.find(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "its account")
    yield name
    system.ask(lambda api: api.call("DELETE", f"/workspaces/{name}"))
    gone = f"/api/v1/namespaces/{name}"
    wait_until(lambda: system.operator.find(gone) is None, "the namespace is gone", timeout_s=60)


def test_a_workspace_is_made_filled_and_removed(system: System) -> None:
    """Namespace, defaults and quota are created: a launch beyond the quota waits until the quota allows it; then all
    of it is deleted."""
    made: Json = system.post("/workspaces", {"name": "made", "defaultPool": "default", "quota": {"pods": 1}})
    assert (made["isOwned"], made["quota"]) == (True, {"pods": "1"})
    account = "/api/v1/namespaces/made/serviceaccounts/default"
    wait_until(lambda: system.operator.find(account), "its account")
    wait_until(lambda: system.get("/workspaces/made")["used"], "its quota counts")
    first = system.launch(a_body(workspace="made"))
    system.wait_for(first, "Running")
    second = system.launch(a_body(workspace="made", script={"runsS": 0.1}))
    told = f"/allocations/{second}"
    code = "ExceedsResourceQuota"
    wait_until(lambda: system.get(f"{told}/explain")["code"] == code, "it is told")
    assert "made" in [item["name"] for item in system.get("/workspaces")["items"]]
    changed: Json = system.ask(lambda api: api.patch("/workspaces/made", {"quota": {"pods": 2}, "defaultPool": None}))
    assert (changed["quota"], changed["defaultPool"]) == ({"pods": "2"}, "")
    system.ended(second, "Succeeded", timeout_s=60)
    assert "have not ended" in system.cli("workspace", "rm", "made").err
    system.post(f"/allocations/{first}/kill")
    system.ended(first, "Canceled")
    must(system.cli("workspace", "set", "made", "--quota", "none"))
    assert system.operator.find("/api/v1/namespaces/made/resourcequotas/slipway-quota") is None
    must(system.cli("workspace", "rm", "made"))
    wait_until(lambda: system.operator.find("/api/v1/namespaces/made") is None, "it is gone", timeout_s=60)


def test_a_second_pool_for_one_workspace(system: System, workspace: str) -> None:
    """The pool has a queue and a leader of its own. The API refuses launches of other workspaces; applied by hand,
    they wait."""
    pool = {"apiVersion": "slipway.dev/v1alpha1", "kind": "ResourcePool", "metadata": {"name": "apart"}}
    queue = {**pool, "kind": "Queue", "spec": {"pool": "apart"}}
    system.operator.apply({**pool, "spec": {"workspaces": [workspace], "nodeSelector": {"none": "such"}}}, queue)
    try:
        wait_until(lambda: "apart" in [item["name"] for item in system.get("/pools")["items"]], "it is seen")
        refused = system.cli("run", "-d", "--image", "a", "--pool", "apart", "--", "true")
        assert (refused.code, "is not for workspace default" in refused.err) == (2, True)
        held = system.launch(a_body(workspace=workspace, pool="apart"))
        assert system.view(held)["queue"] == "apart"
        wait_until(lambda: system.get(f"/allocations/{held}/explain")["code"] == "NoFit", "its own leader explains")
        system.operator.apply(an_allocation("stranger", pool="apart", queue="apart"))
        stranger = system.applied_id("stranger")
        code = "PoolNotForWorkspace"
        wait_until(lambda: system.get(f"/allocations/{stranger}/explain")["code"] == code, "it is told")
        for id_ in (held, stranger):
            system.post(f"/allocations/{id_}/kill")
            system.ended(id_, "Canceled")
    finally:
        system.operator.delete(f"{GROUP}/queues/apart")
        system.operator.delete(f"{GROUP}/resourcepools/apart")


MISTAKES: list[tuple[Json, str]] = [
    ({"kind": "jobb"}, "spec.kind"),
    ({"priority": 5000}, "spec.priority"),
    ({"priority": "high"}, "spec.priority"),
    ({"ranks": [{"count": 0}]}, "spec.ranks[0].count"),
    ({"ranks": [{"cuont": 2}]}, "spec.ranks[0].cuont"),
    ({"maxRuntime": "soon"}, "spec.maxRuntime"),
    ({"env": {"A": 1}}, "spec.env.A"),
    ({"context": "nope"}, "spec.context"),
    ({"imagee": "x"}, "spec.imagee"),
    ({"files": [{"path": "a"}]}, "spec.files[0].content"),
]


@pytest.mark.parametrize(("change", "field"), MISTAKES, ids=[field for _, field in MISTAKES])
def test_what_the_api_server_refuses(system: System, change: Json, field: str) -> None:
    """`kubectl apply` reports the wrong field, and no object is created."""
    manifest = an_allocation("wrong")
    manifest["spec"] |= change
    done = system.operator.kubectl("apply", "-f", "-", stdin=_yaml(manifest))
    assert done.code != 0
    assert field in done.err
    assert system.operator.find(f"{GROUP}/namespaces/default/allocations/wrong") is None


MAIN = {"name": "main", "image": "a", "command": ["x"]}
INVALID: list[tuple[Json, str]] = [
    ({"ranks": [{"resources": {"gpu": 1}}]}, "/ranks/0/resources/gpu"),
    ({"minAvailable": 9}, "/minAvailable"),
    ({"files": [{"path": "../up", "content": ""}]}, "/files/0/path"),
    ({"env": {"A=B": "x"}}, "/env/A=B"),
    ({"template": {"spec": {"hostNetwork": True, "containers": [MAIN]}}}, "/template/spec/hostNetwork"),
    ({"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}, "/ports/1/name"),
]


@pytest.mark.parametrize(("change", "pointer"), INVALID, ids=[pointer for _, pointer in INVALID])
def test_what_the_scheduler_marks_invalid(system: System, change: Json, pointer: str) -> None:
    """An object that breaks a rule beyond the schema waits as Invalid, and shows the field and the fix; it never
    runs."""
    manifest = an_allocation("crooked")
    manifest["spec"] |= change
    system.operator.apply(manifest)
    id_ = system.applied_id("crooked")
    try:
        wait_until(lambda: pointer in str(system.get(f"/allocations/{id_}/explain")), pointer)
        assert system.pods(id_) == []
    finally:
        system.kubectl("delete", "alloc", "crooked", "--timeout=40s")


def _yaml(manifest: Json) -> str:
    return str(yaml.safe_dump(manifest))
