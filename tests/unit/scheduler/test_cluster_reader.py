"""The LIST of everything is read page by page, and enters the tables all at once."""

import asyncio
import copy
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from slipway.errors import ExpiredError, TransientError, UnavailableError
from slipway.facts.custom_resources import SpecCache
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.kube.rest import LIST_STARTS_MAX, PAGE_SIZE
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.cluster_sync import list_everything
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core, a_manifest, furnish
from tests.support.virtual_time import VirtualClock, run_virtual

COUNT = PAGE_SIZE * 2 + 1


def on_a_long_list(test: Callable[[CoreKube], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        kube = a_client(a_core(VirtualClock().now))
        await furnish(kube)
        for number in range(COUNT):
            await kube.create(ALLOCATIONS, a_manifest(f"job{number}"))
        await test(kube)

    run_virtual(main)


def test_no_reader_sees_a_partial_list() -> None:
    """Tasks that run while the LIST is read find a table empty, or whole."""

    async def test(kube: CoreKube) -> None:
        cluster = Cluster()
        seen: set[int] = set()
        async with asyncio.TaskGroup() as tasks:
            listing = tasks.create_task(list_everything(kube, cluster, SpecCache()))
            while not listing.done():
                seen.add(len(cluster.allocations))
                await asyncio.sleep(0)
        assert len(cluster.allocations) == COUNT
        assert seen <= {0, COUNT}
        assert listing.result() == cluster.allocations.newest

    on_a_long_list(test)


@pytest.mark.parametrize("failures", [1, LIST_STARTS_MAX])
def test_a_list_that_is_forgotten_midway_begins_again(failures: int) -> None:
    """The server may compact a LIST away before its last page; the pages of two LISTs are never joined."""

    async def test(kube: CoreKube) -> None:
        left, pages = failures, 0

        async def forget(verb: Verb, plural: str) -> None:
            nonlocal left, pages
            await asyncio.sleep(0)
            if verb is Verb.LIST and plural == ALLOCATIONS.plural:
                pages += 1
                if left and pages > 1:
                    left, pages = left - 1, 0
                    raise ExpiredError("too old")

        kube.before = forget
        cluster = Cluster()
        if failures < LIST_STARTS_MAX:
            await list_everything(kube, cluster, SpecCache())
            assert len(cluster.allocations) == COUNT
            return
        with pytest.raises(ExpiredError):
            await list_everything(kube, cluster, SpecCache())
        assert len(cluster.allocations) == 0

    on_a_long_list(test)


def test_a_list_that_fails_says_why() -> None:
    """The error of a page is the error of the LIST, as it is."""

    async def test(kube: CoreKube) -> None:
        async def fail(verb: Verb, plural: str) -> None:
            await asyncio.sleep(0)
            if plural == ALLOCATIONS.plural:
                raise UnavailableError("away")

        kube.before = fail
        with pytest.raises(TransientError):
            await list_everything(kube, Cluster(), SpecCache())

    on_a_long_list(test)


def test_a_list_again_keeps_what_has_not_changed() -> None:
    """A second LIST keeps the fact of each object whose version is the same."""

    async def test(kube: CoreKube) -> None:
        cluster = Cluster()
        await list_everything(kube, cluster, SpecCache())
        before = {fact.key: fact for fact in cluster.allocations.values()}
        generation = cluster.generation
        await list_everything(kube, cluster, SpecCache())
        assert cluster.generation == generation
        assert all(before[fact.key] is fact for fact in cluster.allocations.values())

    on_a_long_list(test)


def test_a_list_of_a_server_that_went_back_in_time_is_the_truth() -> None:
    """etcd was restored from an older copy: newer objects and deletions are gone, and the tables equal the LIST."""

    async def test(kube: CoreKube) -> None:
        cluster = Cluster()
        older = copy.deepcopy(kube.core)
        for number in range(3):
            await kube.delete(ALLOCATIONS, f"job{number}", namespace="default")
        await kube.create(ALLOCATIONS, a_manifest("lost"))
        await list_everything(kube, cluster, SpecCache())
        assert cluster.allocations.get("default/lost") is not None
        cluster.allocations.drop("default/job3", cluster.allocations.newest + 1)

        kube.core = older
        assert await list_everything(kube, cluster, SpecCache()) == older.version
        assert len(cluster.allocations) == COUNT
        assert cluster.allocations.get("default/lost") is None

    on_a_long_list(test)


def test_our_own_write_during_a_list_is_no_other_history() -> None:
    """What was written after the LIST began is newer than it, and stays."""

    async def test(kube: CoreKube) -> None:
        cluster = Cluster()
        await list_everything(kube, cluster, SpecCache())
        known = cluster.allocations.get("default/job0")
        assert known is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(list_everything(kube, cluster, SpecCache()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cluster.allocations.put("default/written", known, kube.core.version + 5)
        assert cluster.allocations.get("default/written") is known

    on_a_long_list(test)
