"""Context archives that no allocation needs are deleted an hour after their last use; an archive in use stays."""

import uuid
from typing import Any

import msgspec
import pytest

from slipway.crd import rules, schema
from slipway.crd.meta import ObjectMeta
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvalidError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, CRDS, NAMESPACES
from slipway.local.apiserver.core import ClusterCore
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time
from slipway.pods.context import (
    ANNOTATION_USED,
    INDEX_MAPS,
    LABEL_CONTEXT,
    PIECE_MAPS,
    Index,
    IndexMap,
    index_manifest,
    piece_manifest,
)
from slipway.runtime.clock import SeededRandom
from slipway.watcher import sweep
from slipway.watcher.informers import Informers, fill
from slipway.watcher.sweep import ArchiveSweeper, unused
from tests.support.builders import NAMESPACE, T0, an_allocation
from tests.support.clock import FakeClock
from tests.support.kube_core import CoreKube

ID = "ab" * 32
KEEP_S = 3600.0


class ContextGcHarness:
    """A cluster with one archive of one piece, which was just uploaded."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.core = ClusterCore(clock=self.clock.now, new_uid=lambda: str(uuid.uuid4()), twins=rules.TWINS)
        self.core.bootstrap()
        self.kube = CoreKube(self.core, random=SeededRandom(1))
        self.seen = Informers()
        """the objects that the watcher has observed"""
        self.sweeper = ArchiveSweeper(self.kube, self.seen, self.clock, keep_s=KEEP_S)

    async def upload(self) -> IndexMap:
        """Create the index and its piece."""
        for manifest in schema.crd_manifests():
            await self.kube.create(CRDS, manifest)
        self.core.settle()
        await self.kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        used_at = format_time(self.clock.now())
        index = Index(id=ID, bytes=1, pieces=1, files=1, unpacked_bytes=1, complete=True)
        home = await self.kube.create(INDEX_MAPS, index_manifest(index, NAMESPACE, used_at))
        await self.kube.create(PIECE_MAPS, piece_manifest(home, ID, 0, b"x"))
        return home

    async def launch(self, name: str = "job", context: str = ID) -> None:
        """Create an allocation of that archive, as kubectl applies it."""
        manifest = msgspec.to_builtins(an_allocation(context=context).it)
        spec = {key: value for key, value in manifest["spec"].items() if value is not None}
        await self.kube.create(ALLOCATIONS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})

    async def maps(self) -> int:
        """Return the number of ConfigMaps after the garbage collection."""
        self.core.settle()
        return len((await self.kube.list(CONFIG_MAPS, label_selector=LABEL_CONTEXT)).items)


async def test_after_an_hour_it_goes_with_its_pieces() -> None:
    """The archive and its pieces are deleted after an hour, not before; a second sweep finds nothing."""
    harness = ContextGcHarness()
    await harness.upload()
    harness.clock.advance(KEEP_S - 60)
    assert await harness.sweeper.sweep() == 0
    harness.clock.advance(120)
    assert await harness.sweeper.sweep() == 1
    assert await harness.maps() == 0
    assert await harness.sweeper.sweep() == 0


async def test_one_that_is_used_in_this_moment_stays() -> None:
    """A launch marks the archive between the LIST and the delete, so the delete is refused."""
    harness = ContextGcHarness()
    home = await harness.upload()
    harness.clock.advance(KEEP_S * 2)

    async def before(verb: Verb, plural: str) -> None:
        if verb is Verb.DELETE:
            harness.kube.before = quiet
            change = {"metadata": {"annotations": {ANNOTATION_USED: format_time(harness.clock.now())}}}
            await harness.kube.patch(INDEX_MAPS, home.metadata.name, change, namespace=NAMESPACE)

    async def quiet(_verb: Verb, _plural: str) -> None:
        return None

    harness.kube.before = before
    assert await harness.sweeper.sweep() == 0
    assert await harness.maps() == 2


async def test_an_archive_whose_delete_is_refused_stays_and_ends_no_sweep() -> None:
    """A policy of the cluster may protect an archive: it stays, and the sweep goes on."""
    harness = ContextGcHarness()
    await harness.upload()
    harness.clock.advance(KEEP_S * 2)

    async def before(verb: Verb, plural: str) -> None:
        del plural
        if verb is Verb.DELETE:
            raise InvalidError("ValidatingAdmissionPolicy 'keep' denied request")

    harness.kube.before = before
    assert (await harness.sweeper.sweep(), await harness.maps()) == (0, 2)


async def test_a_failed_list_deletes_nothing() -> None:
    """A failed LIST is no evidence that no allocation uses the archive."""
    harness = ContextGcHarness()
    await harness.upload()
    harness.clock.advance(KEEP_S * 2)

    async def before(verb: Verb, plural: str) -> None:
        if plural == "allocations":
            raise UnavailableError("gone")

    harness.kube.before = before
    with pytest.raises(UnavailableError):
        await harness.sweeper.sweep()
    assert await harness.maps() == 2


async def test_what_is_in_use_costs_no_list_of_allocations() -> None:
    """The watched allocations show what is in use; only when an archive looks unused are allocations LISTed."""
    harness = ContextGcHarness()
    await harness.upload()
    await harness.launch()
    await fill(harness.seen, harness.kube)
    harness.clock.advance(KEEP_S * 2)
    listed: list[str] = []

    async def before(verb: Verb, plural: str) -> None:
        listed.append(f"{verb} {plural}")

    harness.kube.before = before
    assert await harness.sweeper.sweep() == 0
    assert listed == ["list configmaps"]
    harness.seen.allocations.replace([], harness.seen.allocations.version + 1)
    listed.clear()
    assert await harness.sweeper.sweep() == 0
    assert "list allocations" in listed
    assert await harness.maps() == 2


async def test_what_the_watch_does_not_show_yet_is_seen_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that an allocation needs is not deleted, also when the watch has not shown the allocation yet and the
    LIST has several pages."""
    monkeypatch.setattr(sweep, "PAGE_SIZE", 1)
    harness = ContextGcHarness()
    await harness.upload()
    for name in ("other", "holds", "third"):
        await harness.launch(name, context=ID if name == "holds" else "cd" * 32)
    harness.clock.advance(KEEP_S * 2)
    assert await harness.sweeper.sweep() == 0
    assert await harness.maps() == 2


def test_the_pause_follows_the_time_of_keeping() -> None:
    """The watcher checks every ten minutes for a retention of an hour, and at most once a minute for shorter ones."""
    harness = ContextGcHarness()

    def pause_s(keep_s: float) -> float:
        return ArchiveSweeper(harness.kube, harness.seen, harness.clock, keep_s=keep_s).pause_s

    assert (pause_s(1.0), pause_s(3600.0), pause_s(1e6)) == (60.0, 600.0, 600.0)


def a_map(used_at: float, data: dict[str, str] | None = None) -> IndexMap:
    """An index that was last used at `used_at`."""
    index = Index(id=ID, bytes=1, pieces=1, files=1, unpacked_bytes=1, complete=True)
    manifest: dict[str, Any] = index_manifest(index, NAMESPACE, format_time(used_at))
    made = IndexMap(metadata=ObjectMeta(**manifest["metadata"]), data=manifest["data"])
    return made if data is None else IndexMap(metadata=made.metadata, data=data)


def test_an_allocation_that_goes_on_holds_it() -> None:
    """An allocation that has not ended holds its archive, also through restarts, however long. An allocation of another
    workspace or another context does not."""
    held = an_allocation(context=ID).it
    assert unused([a_map(0.0)], [held], before=1e9) == []
    other = an_allocation(context="cd" * 32).it
    assert len(unused([a_map(0.0)], [other, _elsewhere(held)], before=1e9)) == 1


def test_one_that_has_ended_holds_it_for_an_hour() -> None:
    """An allocation that has ended holds its archive for an hour after its end."""
    status = {"phase": Phase.TERMINATED, "ended_at": format_time(T0)}
    ended, at = an_allocation(context=ID).with_status(**status).it, T0
    assert unused([a_map(0.0)], [ended], before=at - 1) == []
    assert len(unused([a_map(0.0)], [ended], before=at + 1)) == 1


def test_an_index_that_can_not_be_read_goes_too() -> None:
    """An index that cannot be read is deleted, because no allocation can use it."""
    assert len(unused([a_map(0.0, data={"index.json": "nonsense"})], [], before=1e9)) == 1


def _elsewhere(allocation: Allocation) -> Allocation:
    meta = msgspec.structs.replace(allocation.metadata, namespace="elsewhere")
    return msgspec.structs.replace(allocation, metadata=meta)
