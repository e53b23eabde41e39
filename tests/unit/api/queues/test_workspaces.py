"""Workspaces: made, found, changed, removed; a namespace that existed before is only borrowed."""

from typing import Any

import msgspec
import pytest

from slipway.api.queues.workspaces import WorkspaceBody, handed_out_by_namespace
from slipway.crd.transitions import record
from slipway.crd.v1alpha1 import Admission, Placement
from slipway.errors import InvalidError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, NAMESPACES, QUEUES, RESOURCE_POOLS, RESOURCE_QUOTAS, TEMPLATES
from slipway.model.lifecycle import Event, Phase
from tests.support.api_world import COMMAND, ApiWorld

Json = dict[str, Any]


async def patch(world: ApiWorld, name: str, body: Json) -> Any:
    """PATCH a workspace."""
    return await world.http.patch(f"/api/v1/workspaces/{name}", json=body)


async def test_a_workspace_is_created(world: ApiWorld) -> None:
    """The workspace is a labelled namespace with defaults and a quota; one may launch there at once."""
    body = {
        "name": "team",
        "defaultPool": "default",
        "defaultQueue": "default",
        "quota": {"nvidia.com/gpu": 8, "pods": "20"},
    }
    made = await world.post("/workspaces", body)
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/workspaces/team")
    view = made.json()
    assert (view["defaultPool"], view["isOwned"], view["pools"]) == ("default", True, ["default"])
    assert view["quota"] == {"requests.nvidia.com/gpu": "8", "pods": "20"}
    assert (await world.get("/workspaces/team")).json() == view
    assert [item["name"] for item in (await world.get("/workspaces")).json()["items"]] == ["default", "team"]
    quota = await world.kube.get(RESOURCE_QUOTAS, "slipway-quota", namespace="team")
    assert quota.spec.hard["pods"] == "20"
    labels = (await world.kube.get(NAMESPACES, "team")).metadata.labels
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert (await world.launch(workspace="team"))["workspace"] == "team"


async def test_the_quota_of_what_is_adopted_waits_for_its_label(world: ApiWorld) -> None:
    """The API server's policies see the label of a namespace a moment later, and refuse the quota until then."""
    await world.kube.create(NAMESPACES, {"metadata": {"name": "theirs"}})
    refusals = 2

    async def late(verb: Verb, plural: str) -> None:
        nonlocal refusals
        if verb is Verb.CREATE and plural == RESOURCE_QUOTAS.plural and refusals:
            refusals -= 1
            raise InvalidError("denied request: the namespace is no workspace, so it has no quota of Slipway's")

    world.kube.before = late
    made = await world.post("/workspaces", {"name": "theirs", "adopt": True, "quota": {"pods": 5}})
    assert (made.status_code, made.json()["quota"], refusals) == (201, {"pods": "5"}, 0)


async def test_defaults_and_quota_change(world: ApiWorld) -> None:
    """Fields that are not named stay; null removes a value."""
    await world.post("/workspaces", {"name": "team", "defaultPool": "default", "quota": {"pods": 5, "cpu": "4"}})
    changed = (await patch(world, "team", {"quota": {"pods": 6}})).json()
    assert (changed["quota"], changed["defaultPool"]) == ({"pods": "6"}, "default")
    assert (await patch(world, "team", {"defaultPool": None, "quota": None})).json()["quota"] == {}
    assert (await world.get("/workspaces/team")).json()["defaultPool"] == ""


async def test_secrets_for_images(world: ApiWorld) -> None:
    """A workspace names them, each once; another list replaces them, null and an empty list remove them."""
    made = (await world.post("/workspaces", {"name": "team", "imagePullSecrets": ["pull", "other", "pull"]})).json()
    assert made["imagePullSecrets"] == ["pull", "other"]
    assert (await patch(world, "team", {"quota": {"pods": 6}})).json()["imagePullSecrets"] == ["pull", "other"]
    marks = (await world.kube.get(NAMESPACES, "team")).metadata.annotations
    assert marks["slipway.dev/image-pull-secrets"] == "pull,other"
    assert (await patch(world, "team", {"imagePullSecrets": ["new"]})).json()["imagePullSecrets"] == ["new"]
    nothings: list[list[str] | None] = [None, []]
    for nothing in nothings:
        await patch(world, "team", {"imagePullSecrets": ["new"]})
        assert (await patch(world, "team", {"imagePullSecrets": nothing})).json()["imagePullSecrets"] == []
    assert "slipway.dev/image-pull-secrets" not in (await world.kube.get(NAMESPACES, "team")).metadata.annotations


async def test_as_whom_launches_run(world: ApiWorld) -> None:
    """A workspace states users and groups as numbers; another value replaces all of it, null removes it."""
    said = {"user": 1001, "group": 2001, "groups": [3001]}
    assert (await world.post("/workspaces", {"name": "team", "runAs": said})).json()["runAs"] == said
    assert (await patch(world, "team", {"quota": {"pods": 6}})).json()["runAs"] == said
    assert (await patch(world, "team", {"runAs": {"user": 7}})).json()["runAs"] == {"user": 7}
    assert (await patch(world, "team", {"runAs": None})).json()["runAs"] == {}
    assert "slipway.dev/run-as" not in (await world.kube.get(NAMESPACES, "team")).metadata.annotations


async def test_of_what_homes_are_made(world: ApiWorld) -> None:
    """Launches with a home are refused, with what to do, until the workspace states how homes are made."""
    body = {"kind": "command", "image": "a", "command": ["x"], "workspace": "team", "home": True}
    assert (await world.post("/workspaces", {"name": "team"})).json()["home"] is None
    refused = await world.post("/allocations", body)
    [error] = refused.json()["errors"]
    assert error["pointer"] == "/home"
    assert "slipway workspace set team --home 10Gi" in error["detail"]
    home = {"size": "10Gi", "accessMode": "ReadWriteMany"}
    assert (await patch(world, "team", {"home": home})).json()["home"] == home
    taken = await world.post("/allocations", body)
    assert taken.status_code == 201, taken.text
    assert taken.json()["spec"]["home"] is True
    assert (await patch(world, "team", {"home": None})).json()["home"] is None


@pytest.mark.parametrize(
    ("home", "pointer"),
    [({}, "/home/size"), ({"size": "much"}, "/home/size"), ({"size": "0"}, "/home/size"),
     ({"size": "1Gi", "accessMode": "x"}, "/home/accessMode")],
)  # fmt: skip
async def test_homes_of_which_no_claim_can_be_made(world: ApiWorld, home: dict[str, str], pointer: str) -> None:
    """A workspace with such a home is refused at the field, and nothing is made."""
    refused = await world.post("/workspaces", {"name": "team", "home": home})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    assert (await world.get("/workspaces/team")).status_code == 404


async def test_a_namespace_that_exists(world: ApiWorld) -> None:
    """The namespace gets 409 unless it is to be adopted; removing the workspace then leaves the namespace as it was."""
    await world.kube.create(NAMESPACES, {"metadata": {"name": "theirs", "labels": {"their": "own"}}})
    refused = await world.post("/workspaces", {"name": "theirs"})
    assert (refused.status_code, "set adopt to true" in refused.json()["detail"]) == (409, True)
    taken = await world.post(
        "/workspaces",
        {
            "name": "theirs",
            "adopt": True,
            "defaultPool": "default",
            "imagePullSecrets": ["pull"],
            "quota": {"pods": 1},
        },
    )
    assert (taken.status_code, taken.json()["isOwned"]) == (201, False)
    again = await world.post("/workspaces", {"name": "theirs", "adopt": True})
    assert (again.status_code, "PATCH" in again.json()["detail"]) == (409, True)
    assert (await world.http.delete("/api/v1/workspaces/theirs")).status_code == 204
    left = await world.kube.get(NAMESPACES, "theirs")
    assert left.metadata.labels.get("their") == "own"
    assert "slipway.dev/workspace" not in left.metadata.labels
    assert left.metadata.annotations == {}
    assert (await world.kube.list(RESOURCE_QUOTAS, namespace="theirs")).items == []


async def test_what_was_adopted_loses_everything_that_it_was_given(world: ApiWorld) -> None:
    """All fields of a workspace are removed; what an administrator wrote on the namespace by hand stays."""
    own = {"slipway.dev/service-accounts": "robot", "their/own": "note"}
    await world.kube.create(NAMESPACES, {"metadata": {"name": "theirs", "annotations": own}})
    await world.kube.create(TEMPLATES, {"metadata": {"name": "base", "namespace": "theirs"}, "spec": {"body": {}}})
    fields: dict[str, Any] = {
        "defaultPool": "default",
        "defaultQueue": "default",
        "defaultTemplate": "base",
        "imagePullSecrets": ["pull"],
        "runAs": {"user": 2000},
        "home": {"size": "1Gi"},
        "quota": {"pods": 1},
    }
    assert {*fields} == {*WorkspaceBody.__struct_encode_fields__} - {"name", "adopt"}
    made = await world.post("/workspaces", {"name": "theirs", "adopt": True, **fields})
    assert made.status_code == 201, made.text
    assert (await world.http.delete("/api/v1/workspaces/theirs")).status_code == 204
    left = (await world.kube.get(NAMESPACES, "theirs")).metadata
    assert left.annotations == own
    assert "slipway.dev/workspace" not in left.labels
    again = (await world.post("/workspaces", {"name": "theirs", "adopt": True})).json()
    assert {field: again.get(field) for field in fields} == {
        "defaultPool": "",
        "defaultQueue": "",
        "defaultTemplate": "",
        "imagePullSecrets": [],
        "runAs": {},
        "home": None,
        "quota": {},
    }


async def test_a_workspace_in_use_is_not_removed(world: ApiWorld) -> None:
    """It gets 409 with the names; when all work has ended it is removed, with its namespace if that was ours."""
    await world.post("/workspaces", {"name": "team"})
    launched = await world.launch(workspace="team", name="busy")
    refused = await world.http.delete("/api/v1/workspaces/team")
    assert (refused.status_code, "busy" in refused.json()["detail"]) == (409, True)
    assert launched["name"] == "busy"
    found = await world.stored("busy", "team")
    await world.kube.replace_status(ALLOCATIONS, record(found, Event.TERMINATED, now=world.clock.now()))
    assert (await world.http.delete("/api/v1/workspaces/team")).status_code == 204
    assert (await world.get("/workspaces/team")).json()["phase"] == "Terminating"


@pytest.mark.parametrize(
    ("body", "pointer", "said"),
    [
        ({}, "/name", "is required"),
        ({"name": "Bad Name"}, "/name", "use lower case letters, digits and hyphens"),
        ({"name": "kube-public"}, "/name", "belongs to the system"),
        ({"name": "slipway-system"}, "/name", "belongs to the system"),
        ({"name": "a" * 64}, "/name", "at most 63 characters"),
        ({"name": "team", "defaultPool": "none"}, "/defaultPool", "there is no pool none"),
        ({"name": "team", "defaultPool": "theirs"}, "/defaultPool", "is not for workspace team"),
        ({"name": "team", "defaultQueue": "none"}, "/defaultQueue", "there is no queue none"),
        ({"name": "team", "defaultQueue": "gpu"}, "/defaultQueue", "belongs to pool theirs"),
        ({"name": "team", "imagePullSecrets": ["No Such"]}, "/imagePullSecrets/0", "use lower case letters"),
        ({"name": "team", "imagePullSecrets": ["a"] * 17}, "/imagePullSecrets", "at most 16"),
        ({"name": "team", "runAs": {"user": 0}}, "/runAs/user", "at least 1"),
        ({"name": "team", "runAs": {"uid": 7}}, "/runAs/uid", "known are fsGroup, group, groups, user"),
        ({"name": "team", "quota": {"cpu": "many"}}, "/quota/cpu", "is not a quantity"),
        ({"name": "team", "quota": {"cpu": "-1"}}, "/quota/cpu", "negative"),
        ({"name": "team", "quota": {"a b": 1}}, "/quota/a b", "not the name of a resource"),
        ({"name": "team", "quota": {"gpus": 1}}, "/quota/gpus", "is not the name of a resource"),
        ({"name": "team", "quota": {"cpu": True}}, "/quota/cpu", "must be a whole number or text"),
        ({"name": "team", "defaultpool": "default"}, "/defaultpool", "did you mean defaultPool?"),
    ],
)
async def test_what_is_wrong_is_named(world: ApiWorld, body: Json, pointer: str, said: str) -> None:
    """A bad workspace gets 422 with the pointer, and no namespace is made."""
    await world.kube.create(RESOURCE_POOLS, {"metadata": {"name": "theirs"}, "spec": {"workspaces": ["them"]}})
    await world.kube.create(QUEUES, {"metadata": {"name": "gpu"}, "spec": {"pool": "theirs"}})
    response = await world.post("/workspaces", body)
    errors = {error["pointer"]: error["detail"] for error in response.json()["errors"]}
    assert response.status_code == 422
    assert said in errors[pointer]
    assert [item["name"] for item in (await world.get("/workspaces")).json()["items"]] == ["default"]


async def test_a_default_template_must_be_there(world: ApiWorld) -> None:
    """A template that does not exist gets 422 at the field, at a change and at an adoption.

    A new workspace may name its template before it is created.
    """
    await world.kube.create(NAMESPACES, {"metadata": {"name": "theirs"}})
    for refused in (
        await patch(world, "default", {"defaultTemplate": "gone"}),
        await world.post("/workspaces", {"name": "theirs", "adopt": True, "defaultTemplate": "gone"}),
    ):
        (error,) = refused.json()["errors"]
        assert (refused.status_code, error["pointer"]) == (422, "/defaultTemplate")
        assert "there is no template gone" in error["detail"]
    assert [item["name"] for item in (await world.get("/workspaces")).json()["items"]] == ["default"]
    assert (await world.post("/workspaces", {"name": "team", "defaultTemplate": "later"})).status_code == 201


async def test_what_is_not_there(world: ApiWorld) -> None:
    """A namespace that is no workspace, and odd names, get 404; `default` stays."""
    for name in ("kube-system", "nowhere", "No%20Such", "..%2fx"):
        for method in ("GET", "PATCH", "DELETE"):
            response = await world.http.request(method, f"/api/v1/workspaces/{name}", json={})
            assert response.status_code in (404,), response.text
    assert (await world.http.delete("/api/v1/workspaces/default")).status_code == 409
    assert COMMAND["kind"] == "command"


@pytest.mark.parametrize(
    ("resources", "device", "count"),
    [({"nvidia.com/gpu": 2}, [0, 3], 2), ({"nvidia.com/gpu": 2}, [], 0), ({"slipway.dev/gpu-milli": 500}, [0], 0)],
    ids=["handed out", "of the device plugin", "a part of one"],
)
async def test_gpus_that_were_handed_out_are_used(
    world: ApiWorld, resources: dict[str, int], device: list[int], count: int
) -> None:
    """Pods with such GPUs request none from Kubernetes, so the status of the quota lacks them. GPUs of the device
    plugin are in it."""
    await world.post("/workspaces", {"name": "team", "quota": {"nvidia.com/gpu": 8}})
    await world.launch(workspace="team", name="job", ranks=[{"resources": resources}])
    placements = [Placement(rank=0, role="worker", node="n1", device=device)]
    found = await world.kube.get(ALLOCATIONS, "job", namespace="team")
    admission = Admission(decision_id="d1", epoch=1, attempt=1, placements=placements)
    status = msgspec.structs.replace(found.status, phase=Phase.ASSIGNED, admission=admission)
    assert handed_out_by_namespace([msgspec.structs.replace(found, status=status)]) == (
        {"team": count} if count else {}
    )
