"""A dry run shows what would be made, and makes nothing; the objects are those that the pod worker makes."""

from typing import Any

import msgspec

from slipway.api.launch.preview import PODS_SHOWN_MAX, UID
from slipway.crd.resolve import resolve
from slipway.crd.v1alpha1 import AllocationSpec
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS, RESOURCE_POOLS
from slipway.pods import manifest
from slipway.pods.podspec import TaskOptions
from tests.support.api_world import ApiWorld

Json = dict[str, Any]
BODY: Json = {
    "name": "llm", "kind": "training", "image": "a", "command": ["x"],
    "ranks": [{"count": 3, "resources": {"cpu": "1"}}], "files": [{"path": "a.txt", "content": "a"}],
}  # fmt: skip


async def dry(world: ApiWorld, **changes: Any) -> Json:
    """A dry run that must be accepted."""
    response = await world.post("/allocations?dryRun=true", {**BODY, **changes})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_a_shared_service_is_among_the_objects(world: ApiWorld) -> None:
    """The Service has the allocation as its owner, and selects the first rank."""
    shown = await dry(world, service={"name": "chat", "port": 8000})
    assert [item["metadata"]["name"] for item in shown["objects"] if item["kind"] == "Service"][1:] == ["chat"]
    [service] = [item for item in shown["objects"] if item["metadata"]["name"] == "chat"]
    pods = [item["metadata"]["labels"] for item in shown["objects"] if item["kind"] == "Pod"]
    assert [service["spec"]["selector"].items() <= labels.items() for labels in pods] == [True, False, False]
    assert [owner["uid"] for owner in service["metadata"]["ownerReferences"]] == [UID]


async def test_the_objects_are_those_that_will_be(world: ApiWorld) -> None:
    """ConfigMap, Service and pods equal what the manifests of the launched allocation are, but for its uid."""
    shown = await dry(world)
    assert [item["kind"] for item in shown["objects"]] == ["ConfigMap", "Service", "Pod", "Pod", "Pod"]
    assert (await world.kube.list(ALLOCATIONS)).items == []
    await world.launch(**BODY)
    admitted = await world.run("llm")
    pool = await world.kube.get(RESOURCE_POOLS, "default")
    options: TaskOptions = world.parts.settings.task_options
    made = manifest.build(admitted, resolve(admitted, pool).spec, pool, options=options)
    really = [made.configmap, made.service, *(pod.manifest for pod in made.pods)]
    uid = admitted.metadata.uid
    text = msgspec.json.encode(really, order="sorted").decode().replace(uid, UID).replace(uid[:8], UID[:8])
    as_shown = msgspec.json.decode(msgspec.json.encode(shown["objects"]))
    expected: list[Json] = msgspec.json.decode(text)
    for one, other in zip(as_shown, expected, strict=True):
        for each in (one, other):
            # The hash covers the uid, and the user comes with the launch.
            each["metadata"]["annotations"].pop("slipway.dev/spec-hash")
        assert one == other


async def test_nothing_is_made(world: ApiWorld) -> None:
    """A preview makes no pod, no ConfigMap and no allocation."""
    await dry(world)
    assert (await world.kube.list(ALLOCATIONS)).items == []
    assert (await world.kube.list(PODS)).items == []
    assert [item.metadata.name for item in (await world.kube.list(CONFIG_MAPS, namespace="default")).items] in (
        [],
        ["kube-root-ca.crt"],
    )


async def test_of_a_large_gang_some_pods_are_shown(world: ApiWorld) -> None:
    """The answer states how many there are."""
    shown = await dry(world, ranks=[{"count": 100}])
    assert shown["pods"] == {"total": 100, "shown": PODS_SHOWN_MAX}
    assert len([item for item in shown["objects"] if item["kind"] == "Pod"]) == PODS_SHOWN_MAX


async def test_whether_there_is_room_now(world: ApiWorld) -> None:
    """Two nodes have 8 cpus each: the room is counted with the work that runs there."""
    ranks = [{"count": 4, "resources": {"cpu": "3"}}]
    assert (await dry(world, ranks=ranks))["capacity"] == {
        "pool": "default", "nodes": 2, "ranks": 4, "needed": 4, "fitNow": 4, "startsNow": True
    }  # fmt: skip
    await world.launch(name="busy", ranks=[{"count": 1, "resources": {"cpu": "6"}}])
    await world.run("busy")
    crowded = (await dry(world, ranks=ranks))["capacity"]
    assert (crowded["fitNow"], crowded["startsNow"]) == (2, False)


async def test_what_can_not_become_pods_is_refused(world: ApiWorld) -> None:
    """The preview gets the same 422 as a launch."""
    response = await world.post("/allocations?dryRun=true", {**BODY, "image": ""})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/image")


def test_every_field_of_a_spec_can_be_shown() -> None:
    """A body is the spec and a little more: nothing of a spec is unknown to a launch."""
    assert "context" in AllocationSpec.__struct_encode_fields__


async def test_secrets_for_images_are_shown(world: ApiWorld) -> None:
    """The preview has the pull secrets of the template, then those of the workspace, each once."""
    changed = await world.http.patch("/api/v1/workspaces/default", json={"imagePullSecrets": ["team", "own"]})
    assert changed.status_code == 200, changed.text
    template = {"spec": {"containers": [{"name": "main"}], "imagePullSecrets": [{"name": "own"}]}}
    for more, names in (({}, ["team", "own"]), ({"template": template}, ["own", "team"])):
        answer = (await world.post("/allocations?dryRun=true", {**BODY, **more})).json()
        assert [item["name"] for item in answer["objects"][-1]["spec"]["imagePullSecrets"]] == names


async def test_a_template_of_the_workspace_sets_up_every_pod(world: ApiWorld) -> None:
    """Pull secrets, shared memory, a working directory, a start-up hook and environment are stated once, for all
    launches."""
    hook = {"postStart": {"exec": {"command": ["sh", "-c", "echo ready"]}}}
    main = {
        "name": "main", "workingDir": "/work", "lifecycle": hook,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}], "env": [{"name": "A", "value": "1"}],
    }  # fmt: skip
    pod = {
        "containers": [main], "imagePullSecrets": [{"name": "pull"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    }  # fmt: skip
    await world.post("/templates", {"name": "team", "body": {"template": {"spec": pod}}})
    changed = await world.http.patch("/api/v1/workspaces/default", json={"defaultTemplate": "team"})
    assert changed.status_code == 200
    spec = (await dry(world))["objects"][2]["spec"]
    container = spec["containers"][0]
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in spec["volumes"]
    assert (container["workingDir"], container["lifecycle"], container["image"]) == ("/work", hook, "a")
    assert {"name": "A", "value": "1"} in container["env"]
