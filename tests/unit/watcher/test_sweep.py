"""The sweep with a cache that is behind: the cache only shows where to look, and a read decides what is deleted."""

from typing import Any

import msgspec
import pytest

from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvalidError
from slipway.kube.errors import Verb
from slipway.kube.objects import Pod
from slipway.kube.resources import NAMESPACES, PODS
from slipway.watcher.informers import Informers, fill
from slipway.watcher.sweep import GETS_MAX, Sweeper
from tests.support.clock import FakeClock
from tests.support.small_cluster import a_client, a_core, furnish, launch, refuse_one_delete

SPACE, FAR = "default", "far"
MANY = GETS_MAX + 4


class SweepHarness:
    """A cluster, and a watcher that has seen only the objects of the test."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.kube = a_client(a_core(self.clock.now))
        self.world = Informers()
        self.sweeper = Sweeper(self.kube, self.world, self.clock)
        self.calls: list[tuple[Verb, str]] = []

        async def note(verb: Verb, plural: str) -> None:
            self.calls.append((verb, plural))

        self.kube.after = note

    async def pod(self, name: str, owner: Allocation | None, *, uid: str = "gone", attempt: int = 0) -> Pod:
        """Create a pod of the allocation, or of a deleted one."""
        meta: dict[str, Any] = {"name": name, "labels": {LABEL_ALLOCATION_UID: uid, LABEL_ATTEMPT: str(attempt)}}
        called = name if owner is None else owner.metadata.name
        if owner is not None:
            meta["labels"][LABEL_ALLOCATION_UID] = uid = owner.metadata.uid
        meta["ownerReferences"] = [
            {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "name": called, "uid": uid}
        ]
        body = {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "i"}]}}
        return await self.kube.create(PODS, body, namespace=SPACE)

    async def pods(self) -> set[str]:
        """The names of the existing pods."""
        return {pod.metadata.name for pod in (await self.kube.list(PODS)).items}


@pytest.fixture
async def harness() -> SweepHarness:
    """A furnished harness."""
    found = SweepHarness()
    await furnish(found.kube)
    return found


@pytest.mark.parametrize("count", [1, MANY])
async def test_what_is_wanted_stays_when_the_cache_has_not_seen_its_owner(harness: SweepHarness, count: int) -> None:
    """A wanted pod stays when the cache has not seen its owner, whether few owners are read by name or many by a LIST;
    an orphan among them is deleted."""
    for number in range(count):
        await harness.pod(f"pod-{number}", await launch(harness.kube, f"run-{number}"))
    await harness.pod("orphan", None)
    await fill(harness.world, harness.kube)
    harness.world.allocations.replace([], harness.world.allocations.version + 1)
    harness.calls.clear()
    assert await harness.sweeper.sweep() == 1
    assert ((Verb.LIST, "allocations") in harness.calls) is (count == MANY)
    assert await harness.pods() == {f"pod-{number}" for number in range(count)}


async def test_what_is_wanted_stays_when_the_cache_shows_another_of_its_owners_name(harness: SweepHarness) -> None:
    """A wanted pod stays when the cache shows a previous allocation of its owner's name, or one in another
    namespace."""
    await harness.kube.create(NAMESPACES, {"metadata": {"name": FAR}})
    owner = await launch(harness.kube, "run")
    await harness.pod("pod", owner)
    await fill(harness.world, harness.kube)
    before = msgspec.structs.replace(owner, metadata=msgspec.structs.replace(owner.metadata, uid="before"))
    away = msgspec.structs.replace(before, metadata=msgspec.structs.replace(owner.metadata, namespace=FAR, uid="away"))
    harness.world.allocations.replace([], harness.world.allocations.version + 1)
    harness.world.allocations.replace([before, away], harness.world.allocations.version + 1)
    assert (await harness.sweeper.sweep(), await harness.pods()) == (0, {"pod"})


@pytest.mark.parametrize("count", [1, MANY])
async def test_a_pod_that_carries_no_owner_any_more_stays(harness: SweepHarness, count: int) -> None:
    """A pod whose owner label was removed stays, although the cache still shows the label."""
    for number in range(count):
        await harness.pod(f"pod-{number}", None)
    await fill(harness.world, harness.kube)
    patch = {"metadata": {"labels": {LABEL_ALLOCATION_UID: None}}}
    for number in range(count):
        await harness.kube.patch(PODS, f"pod-{number}", patch, namespace=SPACE)
    assert (await harness.sweeper.sweep(), len(await harness.pods())) == (0, count)


async def test_a_pod_that_was_made_anew_under_its_name_stays(harness: SweepHarness) -> None:
    """When the orphan in the cache is gone, the new pod of its name stays."""
    await harness.pod("pod", None)
    await fill(harness.world, harness.kube)
    await harness.kube.delete(PODS, "pod", namespace=SPACE)
    await harness.pod("pod", await launch(harness.kube, "run"))
    assert (await harness.sweeper.sweep(), await harness.pods()) == (0, {"pod"})


async def test_pods_that_are_gone_do_not_hide_an_orphan(harness: SweepHarness) -> None:
    """Deleted pods that the cache still shows do not hide an orphan, however many there are."""
    for number in range(MANY):
        await harness.pod(f"a-{number}", None)
    await harness.pod("orphan", None)
    await fill(harness.world, harness.kube)
    for number in range(MANY):
        await harness.kube.delete(PODS, f"a-{number}", namespace=SPACE)
    assert (await harness.sweeper.sweep(), await harness.pods()) == (1, set())


async def test_an_orphan_whose_delete_is_refused_does_not_keep_the_others(harness: SweepHarness) -> None:
    """A policy of the cluster may protect an orphan: it stays, and the other orphans are deleted."""
    for number in range(3):
        await harness.pod(f"orphan-{number}", None)
    await fill(harness.world, harness.kube)
    refuse_one_delete(harness.kube, InvalidError("ValidatingAdmissionPolicy 'keep' denied request"))
    assert (await harness.sweeper.sweep(), len(await harness.pods())) == (2, 1)


async def test_a_cache_that_is_right_costs_no_read(harness: SweepHarness) -> None:
    """A correct cache costs no read: when nothing looks like an orphan, neither pods nor allocations are read."""
    await harness.pod("pod", await launch(harness.kube, "run"))
    await fill(harness.world, harness.kube)
    harness.calls.clear()
    assert await harness.sweeper.sweep() == 0
    assert harness.calls == [(Verb.LIST, "configmaps"), (Verb.LIST, "services")]
