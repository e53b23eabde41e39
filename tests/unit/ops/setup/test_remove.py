"""After an uninstall nothing is stuck: the removal deletes what the services no longer release."""

import pytest

from slipway.crd.meta import LABEL_ALLOCATION_UID, TEARDOWN_FINALIZER, TRACKING_FINALIZER
from slipway.crd.schema import crd_manifests
from slipway.kube.claims import CLAIM_MAPS, claim_manifest
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, CRDS, NAMESPACES, PODS, SERVICES
from slipway.ops.setup.remove import ClusterRemover
from tests.support.failing_calls import failing
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core
from tests.support.virtual_time import VirtualClock, run_virtual

PLACE = "default"


async def _an_allocation(kube: CoreKube, name: str, *, node: str = "") -> None:
    """Create an allocation with a pod, a ConfigMap and a Service, as the services leave them behind."""
    made = await kube.create(
        ALLOCATIONS,
        {"metadata": {"name": name, "finalizers": [TEARDOWN_FINALIZER]}, "spec": {"kind": "command"}},
        namespace=PLACE,
    )
    meta = {"name": name, "labels": {LABEL_ALLOCATION_UID: made.metadata.uid}}
    spec = {"containers": [{"name": "main", "image": "none"}], **({"nodeName": node} if node else {})}
    await kube.create(PODS, {"metadata": {**meta, "finalizers": [TRACKING_FINALIZER]}, "spec": spec}, namespace=PLACE)
    await kube.create(CONFIG_MAPS, {"metadata": meta}, namespace=PLACE)
    await kube.create(SERVICES, {"metadata": meta, "spec": {"clusterIP": "None"}}, namespace=PLACE)


def test_nothing_is_left_of_allocations() -> None:
    """No object of allocations is left, bound or not, deleted before or not; objects without our label stay (V19)."""

    async def main() -> None:
        clock = VirtualClock()
        core = a_core(clock.now)
        kube: CoreKube = a_client(core)
        for manifest in crd_manifests():
            await kube.create(CRDS, manifest)
        await kube.create(NAMESPACES, {"metadata": {"name": PLACE}})
        await _an_allocation(kube, "waits")
        await _an_allocation(kube, "deleted")
        await kube.delete(ALLOCATIONS, "deleted", namespace=PLACE)
        await kube.create(CONFIG_MAPS, {"metadata": {"name": "theirs"}}, namespace=PLACE)
        await kube.create(CLAIM_MAPS, claim_manifest("run-k3x7q2m5ab", PLACE, "waits", clock.now()))
        await ClusterRemover(kube, clock).remove()
        assert not (await kube.list(ALLOCATIONS)).items
        assert not (await kube.list(PODS)).items
        assert not (await kube.list(SERVICES)).items
        assert [item.metadata.name for item in (await kube.list(CONFIG_MAPS)).items] == ["theirs"]

    run_virtual(main)


@pytest.mark.parametrize("verb", [Verb.LIST, Verb.DELETE, Verb.PATCH])
def test_a_call_that_fails_is_repeated_in_the_next_round(verb: Verb) -> None:
    """A failed call is repeated in the next round, so that a short outage of the API server leaves no allocations
    behind."""

    async def main() -> None:
        clock = VirtualClock()
        kube: CoreKube = a_client(a_core(clock.now))
        for manifest in crd_manifests():
            await kube.create(CRDS, manifest)
        await kube.create(NAMESPACES, {"metadata": {"name": PLACE}})
        await _an_allocation(kube, "waits")
        kube.before = failing(verb, ALLOCATIONS.plural, 2)
        await ClusterRemover(kube, clock).remove()
        assert not (await kube.list(ALLOCATIONS)).items
        assert not (await kube.list(PODS)).items

    run_virtual(main)
