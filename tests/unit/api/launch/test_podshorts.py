"""The short forms of volumes and privileges: what they become in the pods of a launch, and how they are refused."""

from typing import Any

import pytest

from slipway.kube.resources import RESOURCE_POOLS
from tests.support.api_world import COMMAND, ApiWorld

MAIN: Any = {"name": "main", "image": "b", "volumeMounts": [{"name": "tmp", "mountPath": "/data"}]}
BARE: Any = {"name": "main", "image": "b"}
TMP: Any = {"name": "tmp", "emptyDir": {}}
OWN: Any = {"spec": {"containers": [MAIN], "volumes": [TMP]}}


async def pods_of(world: ApiWorld, **body: Any) -> list[Any]:
    """The pod specs of the templates of a launch that is accepted."""
    answer = await world.post("/allocations", {**COMMAND, "name": "train", **body})
    assert answer.status_code == 201, answer.text
    spec = (await world.stored("train")).spec
    return [spec.template["spec"], *(role.template["spec"] for role in spec.ranks if role.template)]


async def allow(world: ApiWorld, *privileges: str) -> None:
    """The pool allows these privileges."""
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"allowedPrivileges": list(privileges)}})


async def test_a_volume_is_mounted_in_every_role(world: ApiWorld) -> None:
    """The claim replaces what a template mounts at its path; other mounts and volumes stay."""
    roles = [{"name": "a"}, {"name": "b", "template": OWN}]
    for pod in await pods_of(world, ranks=roles, volumes={"/data": "dataset:ro", "/out": "results"}):
        mounts = {item["mountPath"]: item for item in pod["containers"][0]["volumeMounts"]}
        volumes = {item["name"]: item.get("persistentVolumeClaim") for item in pod["volumes"]}
        assert volumes[mounts["/data"]["name"]] == {"claimName": "dataset", "readOnly": True}
        assert volumes[mounts["/out"]["name"]] == {"claimName": "results"}
        assert mounts["/data"]["readOnly"] is True
        assert "readOnly" not in mounts["/out"]
        assert len(mounts) == 2


async def test_a_claim_at_two_paths_is_one_volume(world: ApiWorld) -> None:
    """The volume is writable if one of the paths is, and its name is not used in the template."""
    taken: Any = {"name": "volume-0", "emptyDir": {}}
    template: Any = {"spec": {"containers": [BARE], "volumes": [taken]}}
    [pod] = await pods_of(world, template=template, volumes={"/a": "data", "/b": "data:ro"})
    assert pod["volumes"] == [
        taken,
        {"name": "volume-1", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    assert pod["containers"][0]["volumeMounts"] == [
        {"name": "volume-1", "mountPath": "/a"},
        {"name": "volume-1", "mountPath": "/b", "readOnly": True},
    ]


async def test_privileges_that_the_pool_allows_are_in_the_pod(world: ApiWorld) -> None:
    """`root` holds for the whole pod, though its workspace states another user; capabilities for the main container
    only."""
    await allow(world, "root", "hostIPC", "hostNetwork", "IPC_LOCK")
    await world.http.patch("/api/v1/workspaces/default", json={"runAs": {"user": 20, "group": 21}})
    [pod] = await pods_of(world, privileges=["root", "hostIPC", "hostNetwork", "IPC_LOCK"])
    context = pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (0, 21, False)
    assert (pod["hostIPC"], pod["hostNetwork"]) == (True, True)
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"], "drop": ["ALL"]}


async def test_a_privilege_that_the_pool_does_not_allow_is_named(world: ApiWorld) -> None:
    """The error names the place of each in the client's list, once, however many templates it affects."""
    body = {"privileges": ["root", "hostIPC", "IPC_LOCK"], "ranks": [{"template": OWN}]}
    refused = await world.post("/allocations", {**COMMAND, **body})
    assert refused.status_code == 422
    errors = {error["pointer"]: error["detail"] for error in refused.json()["errors"]}
    assert len(refused.json()["errors"]) == 3
    for place, name in enumerate(body["privileges"]):
        detail = errors[f"/privileges/{place}"]
        assert f"have an administrator add {name} to allowedPrivileges of the pool" in detail
        assert "must be false" not in detail


@pytest.mark.parametrize(
    ("checkpoints", "claim", "folder"),
    [("work", "work", "$(SLIPWAY_ALLOCATION_ID)"), ("work/llm/v2", "work", "llm/v2")],
)
async def test_checkpoints_are_a_folder_on_a_claim(world: ApiWorld, checkpoints: str, claim: str, folder: str) -> None:
    """The folder is the allocation's own, or one that several launches name; it is in every role, beside other
    volumes."""
    roles = [{"name": "a"}, {"name": "b", "template": OWN}]
    for pod in await pods_of(world, ranks=roles, volumes={"/out": "results"}, checkpoints=checkpoints):
        mounts = {item["mountPath"]: item["name"] for item in pod["containers"][0]["volumeMounts"]}
        volumes = {item["name"]: item.get("persistentVolumeClaim") for item in pod["volumes"]}
        assert volumes[mounts["/checkpoints"]] == {"claimName": claim}
        assert volumes[mounts["/out"]] == {"claimName": "results"}
    spec = (await world.stored("train")).spec
    for template in (spec.template, spec.ranks[1].template or {}):
        assert template["metadata"]["annotations"] == {"slipway.dev/checkpoint-dir": f"/checkpoints/{folder}"}


@pytest.mark.parametrize(
    ("body", "at"),
    [
        ({"volumes": {"data": "dataset"}}, "/volumes/data"),
        ({"volumes": {"/": "dataset"}}, "/volumes/~1"),
        ({"volumes": {"/a/../b": "dataset"}}, "/volumes/~1a~1..~1b"),
        ({"volumes": {"/data": "Data_Set"}}, "/volumes/~1data"),
        ({"volumes": {"/data": "dataset:write"}}, "/volumes/~1data"),
        ({"volumes": {"/data": ""}}, "/volumes/~1data"),
        ({"checkpoints": "Work"}, "/checkpoints"),
        ({"checkpoints": "work/"}, "/checkpoints"),
        ({"checkpoints": "work/../other"}, "/checkpoints"),
        ({"checkpoints": "work/$(HOME)"}, "/checkpoints"),
        ({"checkpoints": "work", "volumes": {"/checkpoints": "other"}}, "/checkpoints"),
        ({"privileges": ["ALL"]}, "/privileges/0"),
        ({"privileges": ["hostPID"]}, "/privileges/0"),
        ({"privileges": ["root"], "runAs": {"user": 1001}}, "/privileges/0"),
        (
            {"privileges": ["root"], "template": {"spec": {"securityContext": {"runAsUser": 7}, "containers": [MAIN]}}},
            "/privileges/0",
        ),
    ],
)
async def test_a_wrong_short_form_is_refused_at_its_place(world: ApiWorld, body: dict[str, Any], at: str) -> None:
    """The error is at its field, and nothing is created."""
    await allow(world, "root")
    refused = await world.post("/allocations", {**COMMAND, **body})
    assert refused.status_code == 422, refused.text
    assert [error["pointer"] for error in refused.json()["errors"]] == [at]


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": 5},
        {"volumes": [{"name": ["a"]}]},
        {"containers": [{"name": "main", "image": "a", "volumeMounts": {"a": 1}}]},
        {"containers": [{"name": "main", "image": "a", "volumeMounts": [{"mountPath": ["/x"]}]}]},
        {"containers": [{"name": "main", "image": "a", "securityContext": {"capabilities": {"add": 5}}}]},
    ],
)
async def test_a_template_of_another_form_is_judged_beside_short_forms(world: ApiWorld, spec: dict[str, Any]) -> None:
    """The answer is the same as without the short forms."""
    await allow(world, "IPC_LOCK")
    body = {**COMMAND, "template": {"spec": {"containers": [MAIN], **spec}}}
    without = await world.post("/allocations", {**body, "name": "without"})
    beside = {"volumes": {"/data": "dataset"}, "privileges": ["IPC_LOCK"]}
    assert (await world.post("/allocations", {**body, **beside})).status_code == without.status_code, without.text


async def test_the_architecture_is_a_label_of_the_nodes(world: ApiWorld) -> None:
    """The label is set beside those of the template; another architecture in a template or a role is refused."""
    template = {"spec": {"nodeSelector": {"disk": "fast"}, "containers": [MAIN]}}
    [pod] = await pods_of(world, architecture="arm64", template=template)
    assert pod["nodeSelector"] == {"disk": "fast", "kubernetes.io/arch": "arm64"}
    for other in (
        {"template": {"spec": {"nodeSelector": {"kubernetes.io/arch": "amd64"}, "containers": [MAIN]}}},
        {"ranks": [{"nodeSelector": {"kubernetes.io/arch": "amd64"}}]},
    ):
        answer = await world.post("/allocations?dryRun=true", {"kind": "command", "architecture": "arm64", **other})
        [error] = [each for each in answer.json()["errors"] if each["pointer"] == "/architecture"]
        assert "sets 'amd64' too: leave one of them out" in error["detail"]
    answer = await world.post("/allocations", {"kind": "command", "architecture": "riscv"})
    assert (answer.status_code, "/architecture" in answer.text) == (422, True)
