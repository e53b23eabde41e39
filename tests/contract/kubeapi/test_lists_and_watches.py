"""LIST and WATCH on every cluster behind the port: consistency, pages, selectors, positions, expiry."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple, cast

import pytest

from slipway.errors import ExpiredError, InvalidError
from slipway.kube.objects import ConfigMap
from slipway.kube.ports import WatchEvent, WatchType
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS
from tests.contract.kubeapi.conftest import Cluster


async def add(cluster: Cluster, name: str, **labels: str) -> ConfigMap:
    metadata = {"name": name, "labels": labels}
    return await cluster.kube.create(CONFIG_MAPS, {"metadata": metadata}, namespace=cluster.namespace)


def watching(cluster: Cluster, version: str, selector: str = "") -> AsyncGenerator[WatchEvent[ConfigMap], None]:
    stream = cluster.kube.watch(
        CONFIG_MAPS, resource_version=version, namespace=cluster.namespace, label_selector=selector
    )
    return cast("AsyncGenerator[WatchEvent[ConfigMap], None]", stream)


class Seen(NamedTuple):
    """One change."""

    type: WatchType
    object: ConfigMap
    version: int


async def take(stream: AsyncGenerator[WatchEvent[ConfigMap], None], count: int) -> list[Seen]:
    """Return the next changes, without bookmarks and the config map that a controller manager creates in each
    namespace."""
    found: list[Seen] = []
    async with asyncio.timeout(10):
        async for event in stream:
            if event.object is not None and event.object.metadata.name != "kube-root-ca.crt":
                found.append(Seen(event.type, event.object, int(event.resource_version)))
            if len(found) == count:
                break
    return found


async def test_list_is_consistent_and_complete(cluster: Cluster) -> None:
    """A LIST after a create contains the object, at its version or above."""
    made = [await add(cluster, f"m{number}") for number in range(3)]
    listing = await cluster.kube.list(CONFIG_MAPS, namespace=cluster.namespace)
    assert {item.metadata.uid for item in listing.items} >= {item.metadata.uid for item in made}
    assert int(listing.resource_version) >= made[-1].metadata.version


async def test_pages_join(cluster: Cluster) -> None:
    """Pages that a caller fetches by hand show one version and every object once."""
    for number in range(7):
        await add(cluster, f"m{number}", group="pages")
    names: list[str] = []
    versions: set[str] = set()
    continue_ = ""
    while True:
        page = await cluster.kube.list(
            CONFIG_MAPS, namespace=cluster.namespace, label_selector="group=pages", limit=3, continue_=continue_
        )
        names += [item.metadata.name for item in page.items]
        versions.add(page.resource_version)
        continue_ = page.continue_
        if not continue_:
            break
        await add(cluster, f"later-{len(names)}", group="pages")
    assert names == [f"m{number}" for number in range(7)]
    assert len(versions) == 1


async def test_selectors(cluster: Cluster) -> None:
    """Label and field selectors select; a selector by another field is refused."""
    await add(cluster, "a", colour="red")
    await add(cluster, "b", colour="blue")
    kube, namespace = cluster.kube, cluster.namespace
    red = await kube.list(CONFIG_MAPS, namespace=namespace, label_selector="colour=red")
    assert [item.metadata.name for item in red.items] == ["a"]
    named = await kube.list(CONFIG_MAPS, namespace=namespace, field_selector="metadata.name=b")
    assert [item.metadata.name for item in named.items] == ["b"]
    await kube.create(ALLOCATIONS, cluster.allocation())
    assert len((await kube.list(ALLOCATIONS, namespace=namespace, field_selector="status.phase=Pending")).items) == 1
    assert not (await kube.list(ALLOCATIONS, namespace=namespace, field_selector="status.phase=Assigned")).items
    with pytest.raises(InvalidError):
        await kube.list(PODS, namespace=namespace, field_selector="spec.nonsense=1")


async def test_list_over_all_namespaces(cluster: Cluster) -> None:
    """Without a namespace a LIST spans all of them."""
    made = await add(cluster, "everywhere")
    listing = await cluster.kube.list(CONFIG_MAPS, field_selector="metadata.name=everywhere")
    assert made.metadata.uid in {item.metadata.uid for item in listing.items}


async def test_watch_goes_on_from_a_list(cluster: Cluster) -> None:
    """Every change after the LIST arrives once, in order, with rising versions."""
    await add(cluster, "before")
    listing = await cluster.kube.list(CONFIG_MAPS, namespace=cluster.namespace)
    made = await add(cluster, "a")
    await cluster.kube.patch(CONFIG_MAPS, "a", {"data": {"x": "1"}}, namespace=cluster.namespace)
    await cluster.kube.delete(CONFIG_MAPS, "a", namespace=cluster.namespace)
    async with aclosing(watching(cluster, listing.resource_version)) as stream:
        events = await take(stream, 3)
    assert [event.type for event in events] == [WatchType.ADDED, WatchType.MODIFIED, WatchType.DELETED]
    assert {event.object.metadata.uid for event in events} == {made.metadata.uid}
    versions = [event.version for event in events]
    assert versions == sorted(set(versions))
    assert versions[0] == made.metadata.version


async def test_watch_sees_what_happens_while_it_runs(cluster: Cluster) -> None:
    """A change made after the watch began reaches it."""
    listing = await cluster.kube.list(CONFIG_MAPS, namespace=cluster.namespace)
    async with aclosing(watching(cluster, listing.resource_version)) as stream:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(take(stream, 1))
            await asyncio.sleep(0)
            await add(cluster, "live")
        assert first.result()[0].object.metadata.name == "live"


async def test_watch_with_a_selector_reports_leaving_as_deletion(cluster: Cluster) -> None:
    """An object that no longer matches is DELETED for that watcher."""
    listing = await cluster.kube.list(CONFIG_MAPS, namespace=cluster.namespace)
    await add(cluster, "a", colour="red")
    await add(cluster, "b", colour="blue")
    relabel = {"metadata": {"labels": {"colour": "blue"}}}
    await cluster.kube.patch(CONFIG_MAPS, "a", relabel, namespace=cluster.namespace)
    async with aclosing(watching(cluster, listing.resource_version, "colour=red")) as stream:
        events = await take(stream, 2)
    assert [(event.type, event.object.metadata.name) for event in events] == [("ADDED", "a"), ("DELETED", "a")]


async def test_watch_from_a_forgotten_version_expires(cluster: Cluster) -> None:
    """A 410 becomes ExpiredError, wherever the server puts it."""
    listing = await cluster.kube.list(CONFIG_MAPS, namespace=cluster.namespace)
    for number in range(3):
        await add(cluster, f"m{number}")
    cluster.core.store.compact()
    with pytest.raises(ExpiredError):
        await take(watching(cluster, listing.resource_version), 1)


async def test_a_list_whose_pages_expire_is_refused(cluster: Cluster) -> None:
    """A continue token that left the history raises ExpiredError for a caller who pages by hand."""
    for number in range(4):
        await add(cluster, f"m{number}")
    page = await cluster.kube.list(CONFIG_MAPS, namespace=cluster.namespace, limit=2)
    await add(cluster, "later")
    cluster.core.store.compact()
    with pytest.raises(ExpiredError):
        await cluster.kube.list(CONFIG_MAPS, namespace=cluster.namespace, limit=2, continue_=page.continue_)


async def test_big_objects_travel_in_a_watch(cluster: Cluster) -> None:
    """One event of a megabyte arrives whole."""
    listing = await cluster.kube.list(CONFIG_MAPS, namespace=cluster.namespace)
    value = "y" * 900_000
    body = {"metadata": {"name": "big"}, "data": {"x": value}}
    await cluster.kube.create(CONFIG_MAPS, body, namespace=cluster.namespace)
    async with aclosing(watching(cluster, listing.resource_version)) as stream:
        events = await take(stream, 1)
    assert events[0].object.data["x"] == value
