"""The history that a live audit records: every version from its beginning on, and whether the history is complete."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS
from slipway.local.apiserver.store import Commit
from slipway.ops.audit.evidence import ALLOCATIONS as ALLOCATIONS_NAME
from slipway.ops.audit.evidence import PODS as PODS_NAME
from slipway.ops.audit.live.collector import HistoryCollector, Metadata, ObservedObject, changed_at
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core, furnish, launch
from tests.support.virtual_time import VirtualClock, run_virtual

KINDS = ("allocations", "pods", "configmaps", "services", "nodes", "resourcepools", "queues")
OURS = {"slipway.dev/allocation-uid": "u"}


class CollectorHarness:
    """A collector beside a cluster whose every commit is known."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.core = a_core(self.clock.now)
        self.kube = a_client(self.core)
        self.its: CoreKube = a_client(self.core, seed=2)
        self.changes: list[Commit] = []
        self.core.subscribe(self.changes.append)
        self.collector = HistoryCollector(self.its, self.clock)

    def committed(self, since: int) -> list[tuple[int, str, bool]]:
        """(version, name, whether it is a deletion) of each commit after `since`, for the recorded kinds."""
        return [
            (change.version, change.key[1], change.type == "DELETED")
            for change in self.changes
            if change.version > since and change.resource.split(".")[0] in KINDS
        ]

    def recorded(self, since: int) -> list[tuple[int, str, bool]]:
        found = self.collector.evidence().versions
        return [(each.number, each.name, each.is_deletion) for each in found if each.number > since]

    async def busy(self, name: str) -> None:
        """Create, change and delete an allocation with a pod and a ConfigMap."""
        await launch(self.kube, name)
        pod = {"metadata": {"name": name, "labels": OURS}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
        await self.kube.create(PODS, pod, namespace="default")
        await self.kube.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": OURS}}, namespace="default")
        await self.kube.patch(ALLOCATIONS, name, {"spec": {"priority": 7}}, namespace="default")
        await self.kube.delete(PODS, name, namespace="default", grace_s=0)
        await self.kube.delete(CONFIG_MAPS, name, namespace="default")


@asynccontextmanager
async def following(harness: CollectorHarness) -> AsyncGenerator[None]:
    await furnish(harness.kube)
    await harness.collector.begin()
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(harness.collector.follow())
        await asyncio.sleep(1)
        yield
        following.cancel()


def run_with_harness(test: Callable[[CollectorHarness], Awaitable[None]]) -> None:
    async def main() -> None:
        harness = CollectorHarness()
        async with following(harness):
            await test(harness)

    run_virtual(main)


def test_every_version_is_recorded_in_order() -> None:
    """Every commit after the beginning is recorded once, with the version that it replaced; every object that existed
    before is recorded once."""

    async def test(harness: CollectorHarness) -> None:
        begun = harness.changes[-1].version
        for number in range(5):
            await harness.busy(f"job{number}")
            await asyncio.sleep(1)

        evidence = harness.collector.evidence()
        assert harness.recorded(begun) == harness.committed(begun)
        assert [version.number for version in evidence.versions] == sorted({each.number for each in evidence.versions})
        assert (evidence.is_sampled, evidence.starts_late, evidence.listed_to) == (False, True, begun)
        changed = [each for each in evidence.of(ALLOCATIONS_NAME) if each.before is not None]
        assert [(each.before or {})["spec"].get("priority") for each in changed] == [50] * 5
        assert {each.obj["spec"].get("priority") for each in changed} == {7}
        assert len(evidence.last([ALLOCATIONS_NAME])) == 5
        assert not evidence.last([PODS_NAME])

    run_with_harness(test)


def test_watches_that_end_lose_nothing() -> None:
    """A closed watch is resumed at its position, so nothing is lost."""

    async def test(harness: CollectorHarness) -> None:
        begun = harness.changes[-1].version
        for number in range(5):
            harness.its.closes_watches = True
            await harness.busy(f"job{number}")
            harness.its.closes_watches = False
            await asyncio.sleep(2)
        assert harness.recorded(begun) == harness.committed(begun)
        assert not harness.collector.is_sampled

    run_with_harness(test)


def test_a_history_that_was_cut_is_said_to_be() -> None:
    """After a compaction the kind is listed again: missing objects are recorded as deleted, and the history is marked
    as incomplete."""

    async def test(harness: CollectorHarness) -> None:
        await launch(harness.kube, "gone")
        await asyncio.sleep(1)
        harness.its.is_stalled = True
        await harness.kube.delete(ALLOCATIONS, "gone", namespace="default")
        await launch(harness.kube, "new")
        harness.core.store.compact()
        harness.its.is_stalled = False
        harness.its.closes_watches = True
        await asyncio.sleep(1)
        harness.its.closes_watches = False
        await asyncio.sleep(5)
        evidence = harness.collector.evidence()
        assert evidence.is_sampled
        assert [key[2] for key in evidence.last([ALLOCATIONS_NAME])] == ["new"]

    run_with_harness(test)


def test_an_object_is_as_old_as_its_server_notes() -> None:
    """The age of an object comes from its latest managedFields entry, to the second; without entries from the latest
    time in it. An allocation that must stop is never old."""

    def changed(**fields: object) -> float:
        return changed_at(msgspec.convert({"metadata": {}, **fields}, ObservedObject), 1_000_000.0)

    created = {"creationTimestamp": "1970-01-01T00:01:00Z"}
    noted = {**created, "managedFields": [{"time": "1970-01-01T00:02:00Z"}, {"time": "1970-01-01T00:03:00Z"}]}
    assert changed(metadata=noted) == 181.0
    assert changed(metadata=created, status={"conditions": [{"lastTransitionTime": "1970-01-01T00:05:00Z"}]}) == 300.0
    assert changed(metadata=created, spec={"desired": "Stopped"}, status={"phase": "Running"}) == 1_000_000.0
    assert changed() == 1_000_000.0


def test_what_a_config_map_holds_is_not_kept() -> None:
    """The data of a ConfigMap is not recorded: the evidence is about objects, not about users' data."""
    read = msgspec.convert({"metadata": {"name": "x"}, "data": {"secret": "s"}}, ObservedObject)
    assert read.body == {"metadata": {"name": "x"}}
    assert Metadata(name="x").version == 0
