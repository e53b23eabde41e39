"""How `slipway up` treats the objects that a cluster already has."""

import copy
from typing import Any, cast

import pytest

from slipway.crd.schema import crd_manifests
from slipway.kube.client import KubeClient
from slipway.kube.resources import ALLOCATIONS, CRDS
from slipway.local.bootstrap import create_initial_objects
from tests.support.small_cluster import a_client, a_core, a_manifest
from tests.support.virtual_time import VirtualClock, run_virtual

Json = dict[str, Any]


def older(manifest: Json) -> Json:
    """The definition as of an earlier version, without `home` of an allocation."""
    found = copy.deepcopy(manifest)
    if found["metadata"]["name"] == "allocations.slipway.dev":
        schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        del schema["properties"]["spec"]["properties"]["home"]
    return found


@pytest.mark.parametrize(("is_ours", "kept"), [(True, True), (False, False)])
def test_data_of_an_older_version_takes_new_fields(is_ours: bool, kept: bool) -> None:
    """Data of an older version gets the new fields in our own cluster. The definitions of another cluster belong to its
    administrators."""

    async def story() -> None:
        clock = VirtualClock()
        kube = a_client(a_core(clock.now))
        for manifest in crd_manifests():
            await kube.create(CRDS, older(manifest))
        client = cast("KubeClient", kube)
        await create_initial_objects(client, clock, system_namespace="slipway-system", local_defaults=is_ours)
        await kube.create(ALLOCATIONS, a_manifest("job", home=True), namespace="default")
        stored = await kube.get(ALLOCATIONS, "job", namespace="default")
        assert stored.spec.home is kept

    run_virtual(story)
