"""Several versions of one custom kind, converted by name only: which versions are served, stored and remembered."""

import uuid
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import CRDS, GROUP, Json, definition

SPEC: Json = {"type": "object", "properties": {"size": {"type": "integer"}}}
NEWER: Json = {"type": "object", "properties": {"size": {"type": "integer"}, "note": {"type": "string"}}}


def _version(name: str, spec: Json, *, storage: bool = False, served: bool = True) -> Json:
    schema = {"type": "object", "properties": {"spec": deepcopy(spec)}}
    return {"name": name, "served": served, "storage": storage, "schema": {"openAPIV3Schema": schema}}


class VersionedDefinition:
    """A definition for each test, and the paths of its objects."""

    def __init__(self, kube: KubeHttp, ns: NamespacePaths) -> None:
        self.kube = kube
        self.ns = ns
        word = f"g{uuid.uuid4().hex[:8]}"
        self.plural, self.kind = f"{word}s", word.capitalize()
        self.crd = f"{CRDS}/{self.plural}.{GROUP}"

    async def declare(self, *versions: Json) -> None:
        body = definition(self.plural, self.kind)
        body["spec"]["versions"] = list(versions)
        answer = await self.kube.post(CRDS, body)
        assert answer.code == 201, answer.body
        for version in versions:
            await self.wait_served(version["name"], is_served=version["served"])

    async def redeclare(self, *versions: Json) -> Any:
        return await self.kube.patch(self.crd, {"spec": {"versions": list(versions)}})

    async def wait_served(self, version: str, *, is_served: bool = True) -> None:
        async def check() -> bool:
            return ((await self.kube.get(self.at(version))).code == 200) is is_served

        await eventually(check, f"{version} is served: {is_served}", within_s=30)

    def at(self, version: str, name: str = "") -> str:
        base = f"/apis/{GROUP}/{version}/namespaces/{self.ns.name}/{self.plural}"
        return f"{base}/{name}" if name else base

    def one(self, version: str, **spec: Any) -> Json:
        return {
            "apiVersion": f"{GROUP}/{version}",
            "kind": self.kind,
            "metadata": {"name": "g"},
            "spec": {"size": 1, **spec},
        }


@pytest.fixture
async def definition_under_test(kube: KubeHttp, ns: NamespacePaths) -> AsyncIterator[VersionedDefinition]:
    made = VersionedDefinition(kube, ns)
    yield made
    await kube.delete(made.crd)


async def test_both_versions_are_served(kube: KubeHttp, definition_under_test: VersionedDefinition) -> None:
    """An object written in one version can be read in the other, under that version's name, with the same
    resourceVersion."""
    await definition_under_test.declare(_version("v1alpha1", SPEC, storage=True), _version("v1", NEWER))
    made = await kube.post(definition_under_test.at("v1"), definition_under_test.one("v1"))
    old = await kube.get(definition_under_test.at("v1alpha1", "g"))
    assert (made.code, made.body["apiVersion"]) == (201, f"{GROUP}/v1")
    assert (old.body["apiVersion"], old.version, old.uid) == (f"{GROUP}/v1alpha1", made.version, made.uid)
    listed = await kube.get(definition_under_test.at("v1"))
    assert [item["apiVersion"] for item in listed.body["items"]] == [f"{GROUP}/v1"]
    changed = await kube.patch(definition_under_test.at("v1alpha1", "g"), {"spec": {"size": 2}})
    assert (await kube.get(definition_under_test.at("v1", "g"))).body["spec"] == changed.body["spec"] == {"size": 2}
    assert (await kube.delete(definition_under_test.at("v1", "g"))).code == 200
    assert (await kube.get(definition_under_test.at("v1alpha1", "g"))).code == 404


async def test_each_version_prunes_by_its_own_schema(
    kube: KubeHttp, definition_under_test: VersionedDefinition
) -> None:
    """A field that only one version has is not shown in the other."""
    await definition_under_test.declare(_version("v1alpha1", SPEC), _version("v1", NEWER, storage=True))
    await kube.post(definition_under_test.at("v1"), definition_under_test.one("v1", note="kept"))
    assert (await kube.get(definition_under_test.at("v1alpha1", "g"))).body["spec"] == {"size": 1}
    assert (await kube.get(definition_under_test.at("v1", "g"))).body["spec"] == {"size": 1, "note": "kept"}


async def test_watch_speaks_the_version_of_its_path(kube: KubeHttp, definition_under_test: VersionedDefinition) -> None:
    """Events contain objects in the watched version."""
    await definition_under_test.declare(_version("v1alpha1", SPEC, storage=True), _version("v1", NEWER))
    start = (await kube.get(definition_under_test.at("v1"))).version
    async with kube.watch(definition_under_test.at("v1"), resourceVersion=start) as watched:
        await kube.post(definition_under_test.at("v1alpha1"), definition_under_test.one("v1alpha1"))
        event = await watched.next()
    assert (event["type"], event["object"]["apiVersion"]) == ("ADDED", f"{GROUP}/v1")


async def test_watch_selects_by_the_fields_of_its_version(
    kube: KubeHttp, definition_under_test: VersionedDefinition
) -> None:
    """A watch selects by the fields of its version, also among present objects; a field of another version gets 400."""
    newer = {**_version("v1", NEWER), "selectableFields": [{"jsonPath": ".spec.size"}]}
    await definition_under_test.declare(_version("v1alpha1", SPEC, storage=True), newer)
    await kube.post(definition_under_test.at("v1"), definition_under_test.one("v1"))
    async with kube.watch(definition_under_test.at("v1"), fieldSelector="spec.size=1") as watched:
        first = await watched.next()
    assert (first["type"], first["object"]["apiVersion"]) == ("ADDED", f"{GROUP}/v1")
    refused = await kube.get(definition_under_test.at("v1alpha1"), watch="true", fieldSelector="spec.size=1")
    assert refused.code == 400


async def test_body_must_be_of_the_version_of_its_path(
    kube: KubeHttp, definition_under_test: VersionedDefinition
) -> None:
    """Another version in the body gets 400, which names both versions."""
    await definition_under_test.declare(_version("v1alpha1", SPEC, storage=True), _version("v1", NEWER))
    answer = await kube.post(definition_under_test.at("v1"), definition_under_test.one("v1alpha1"))
    assert (answer.code, answer.reason) == (400, "BadRequest")
    assert f"{GROUP}/v1alpha1" in answer.message


async def test_new_storage_version_is_remembered_beside_the_old(
    kube: KubeHttp, definition_under_test: VersionedDefinition
) -> None:
    """storedVersions grows; objects stay readable in both versions; the old version cannot be removed while it is in
    storedVersions."""
    await definition_under_test.declare(_version("v1alpha1", SPEC, storage=True))
    await kube.post(definition_under_test.at("v1alpha1"), definition_under_test.one("v1alpha1"))
    both = (_version("v1alpha1", SPEC), _version("v1", NEWER, storage=True))
    assert (await definition_under_test.redeclare(*both)).body["status"]["storedVersions"] == ["v1alpha1", "v1"]
    await definition_under_test.wait_served("v1")
    assert (await kube.get(definition_under_test.at("v1", "g"))).body["apiVersion"] == f"{GROUP}/v1"
    assert (await kube.get(definition_under_test.at("v1alpha1", "g"))).body["apiVersion"] == f"{GROUP}/v1alpha1"
    refused = await definition_under_test.redeclare(_version("v1", NEWER, storage=True))
    assert refused.code == 422
    assert refused.causes[0]["field"] == "status.storedVersions[0]"
    assert "v1alpha1 was previously a storage version" in refused.message


async def test_a_migrated_version_can_be_removed(kube: KubeHttp, definition_under_test: VersionedDefinition) -> None:
    """Once storedVersions no longer names it, a version can be dropped."""
    await definition_under_test.declare(_version("v1alpha1", SPEC), _version("v1", NEWER, storage=True))
    answer = await definition_under_test.redeclare(_version("v1", NEWER, storage=True))
    assert answer.code == 200, answer.body
    await definition_under_test.wait_served("v1alpha1", is_served=False)
    await definition_under_test.wait_served("v1")


async def test_stored_versions_are_dropped_through_the_status(
    kube: KubeHttp, definition_under_test: VersionedDefinition
) -> None:
    """A patch of the definition's status ends a migration; then the old version can be removed."""
    await definition_under_test.declare(_version("v1alpha1", SPEC, storage=True))
    await definition_under_test.redeclare(_version("v1alpha1", SPEC), _version("v1", NEWER, storage=True))
    done = await kube.patch(f"{definition_under_test.crd}/status", {"status": {"storedVersions": ["v1"]}})
    assert (done.code, done.body["status"]["storedVersions"]) == (200, ["v1"])
    assert (await definition_under_test.redeclare(_version("v1", NEWER, storage=True))).code == 200


async def test_unserved_version_is_not_found(kube: KubeHttp, definition_under_test: VersionedDefinition) -> None:
    """A version that is not served gets 404, though objects may be stored in it."""
    await definition_under_test.declare(_version("v1alpha1", SPEC, storage=True, served=False), _version("v1", NEWER))
    assert (await kube.post(definition_under_test.at("v1"), definition_under_test.one("v1"))).code == 201
    assert (await kube.patch(definition_under_test.at("v1", "g"), {"spec": {"size": 3}})).code == 200
    assert (await kube.get(definition_under_test.at("v1alpha1", "g"))).code == 404
    assert (await kube.delete(definition_under_test.at("v1", "g"))).code == 200


async def test_new_default_shows_on_what_was_stored_before(
    kube: KubeHttp, definition_under_test: VersionedDefinition
) -> None:
    """A default that is added to a definition later is shown on every read, without a write."""
    await definition_under_test.declare(_version("v1", SPEC, storage=True))
    made = await kube.post(definition_under_test.at("v1"), definition_under_test.one("v1"))
    richer: Json = deepcopy(SPEC)
    richer["properties"]["color"] = {"type": "string", "default": "red"}
    await definition_under_test.redeclare(_version("v1", richer, storage=True))

    async def shows() -> bool:
        return (await kube.get(definition_under_test.at("v1", "g"))).body["spec"] == {"size": 1, "color": "red"}

    await eventually(shows, "the default shows", within_s=30)
    assert (await kube.get(definition_under_test.at("v1", "g"))).version == made.version
    assert (await kube.get(definition_under_test.at("v1"))).body["items"][0]["spec"]["color"] == "red"


async def test_versions_are_discovered_in_their_order(
    kube: KubeHttp, definition_under_test: VersionedDefinition
) -> None:
    """Discovery lists GA before beta before alpha, whichever version is stored."""
    names = ("v1alpha1", "v2", "v1beta1", "v1")
    await definition_under_test.declare(*(_version(name, SPEC, storage=name == "v1beta1") for name in names))

    async def is_ordered() -> bool:
        entries = (await kube.get(f"/apis/{GROUP}")).body.get("versions", [])
        found = [entry["version"] for entry in entries]
        return [name for name in found if name in names] == ["v2", "v1", "v1beta1", "v1alpha1"]

    await eventually(is_ordered, "discovery lists the versions", within_s=30)
