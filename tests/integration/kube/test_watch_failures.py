"""Breaking watches of the real client and its reflectors, through a proxy on the loopback.

All kinds that services watch are watched at the same time; when one watch breaks, the others must not be affected.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from slipway.crd import rules, schema
from slipway.kube.client import connect
from slipway.kube.reflector import AnyReflector, Reflector
from slipway.kube.resources import (
    ALLOCATIONS,
    CRDS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    QUEUES,
    RESOURCE_POOLS,
    VOLUME_CLAIMS,
    Resource,
)
from slipway.kube.rest import Timeouts
from slipway.kube.store import ObjectStore
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.http import create_app
from slipway.runtime.clock import SeededRandom, SystemClock
from tests.support.http_stub import serve_app, write_kubeconfig
from tests.support.plain_http import NO_TLS
from tests.support.watch_proxy import WatchProxy, watch_proxy

RECONNECT_S = 45.0
"""The longest time that a watch may be silent without being noticed."""
SILENCE_S = 1.0
WITHIN_S = 30.0
POLL_S = 0.01
NAMESPACE = "team"
WATCHED: tuple[Resource[Any], ...] = (
    ALLOCATIONS,
    RESOURCE_POOLS,
    QUEUES,
    JOBS,
    PODS,
    NODES,
    NAMESPACES,
    VOLUME_CLAIMS,
)
HALVES = (WATCHED[::2], WATCHED[1::2])
BODIES: dict[str, dict[str, Any]] = {
    "allocations": {"spec": {"kind": "command"}},
    "pods": {"spec": {"containers": [{"name": "main", "image": "none"}]}},
    "persistentvolumeclaims": {"spec": {}},
}


class ProxiedReflectors:
    """A core, the proxy in front of it, and a reflector for each kind."""

    def __init__(self, core: ClusterCore, proxy: WatchProxy, reflectors: dict[str, AnyReflector]) -> None:
        self.core = core
        self.proxy = proxy
        self.reflectors = reflectors

    def create(self, resource: Resource[Any], name: str) -> None:
        """Create one more object directly in the core."""
        body = {"metadata": {"name": name}, **BODIES.get(resource.plural, {"spec": {}})}
        self.core.create(_named(resource), NAMESPACE if resource.namespaced else "", body)

    def knows(self, resource: Resource[Any], name: str) -> bool:
        """Whether the reflector of that kind has the object."""
        namespace = NAMESPACE if resource.namespaced else ""
        return self.reflectors[resource.plural].store.get(name, namespace) is not None

    def restarts(self, resource: Resource[Any]) -> Counter[str]:
        """{cause: number of restarts of the reflector of that kind}"""
        return self.reflectors[resource.plural].restarts


@asynccontextmanager
async def watched(folder: Path, *resources: Resource[Any]) -> AsyncGenerator[ProxiedReflectors, None]:
    """All reflectors running and up to date."""
    core = ClusterCore(clock=SystemClock().now, new_uid=lambda: str(uuid.uuid4()), twins=rules.TWINS)
    core.bootstrap()
    for manifest in schema.crd_manifests():
        core.create(_named(CRDS), "", manifest)
    core.create("namespaces", "", {"metadata": {"name": NAMESPACE}})
    app, stop = create_app(core), asyncio.Event()
    clock, random = SystemClock(), SeededRandom(3)
    timeouts = Timeouts(silence_s=SILENCE_S)
    async with (
        serve_app(app, before_stop=app.state.server.close) as url,
        watch_proxy(url) as proxy,
        connect(write_kubeconfig(folder, proxy.url), clock=clock, random=random, timeouts=timeouts) as kube,
        asyncio.TaskGroup() as tasks,
    ):
        reflectors: dict[str, AnyReflector] = {
            resource.plural: Reflector(kube, resource, ObjectStore(), clock=clock, random=random)
            for resource in resources or WATCHED
        }
        for reflector in reflectors.values():
            tasks.create_task(reflector.run(stop))
        found = ProxiedReflectors(core, proxy, reflectors)
        await _eventually(lambda: all(proxy.asked[plural, True] for plural in reflectors))
        yield found
        stop.set()


@pytest.mark.parametrize("broken", HALVES, ids=["one-half", "the-other"])
async def test_a_watch_that_expires_inside_of_a_200_lists_again(
    tmp_path: Path, broken: tuple[Resource[Any], ...]
) -> None:
    """The reflector has the changes in between, the other watches go on, and it backs off instead of looping (V2,
    V17)."""
    async with watched(tmp_path) as those:
        those.proxy.expires |= {resource.plural for resource in broken}
        those.proxy.sever()
        await _eventually(lambda: all(those.restarts(resource)["expired"] >= 2 for resource in broken))
        for resource in broken:
            assert those.proxy.asked[resource.plural, False] <= 2 + those.restarts(resource)["expired"]
            those.create(resource, "meanwhile")
        await _eventually(lambda: all(those.knows(resource, "meanwhile") for resource in broken))
        those.proxy.expires.clear()
        for resource in WATCHED:
            those.create(resource, "after")
        await _eventually(lambda: all(those.knows(resource, "after") for resource in WATCHED))
        assert not any(those.restarts(resource)["expired"] for resource in WATCHED if resource not in broken)


@pytest.mark.parametrize("broken", HALVES, ids=["one-half", "the-other"])
async def test_a_watch_that_closes_at_once_is_asked_for_again_with_patience(
    tmp_path: Path, broken: tuple[Resource[Any], ...]
) -> None:
    """A server that ends every watch causes no hot loop; once it keeps a watch open, nothing was missed (V2)."""
    async with watched(tmp_path) as those:
        those.proxy.closes |= {resource.plural for resource in broken}
        those.proxy.sever()
        await _eventually(lambda: all(those.restarts(resource)["short"] >= 2 for resource in broken))
        for resource in broken:
            assert those.proxy.asked[resource.plural, True] <= 3 + those.restarts(resource)["short"]
            assert those.proxy.asked[resource.plural, False] <= 2, "the first LIST, and a look after the break"
            those.create(resource, "meanwhile")
        those.proxy.closes.clear()
        await _eventually(lambda: all(those.knows(resource, "meanwhile") for resource in broken))
        assert not any(those.restarts(resource)["short"] for resource in WATCHED if resource not in broken)


async def test_a_black_hole_is_noticed_and_what_was_missed_is_made_good(tmp_path: Path) -> None:
    """Every connection stays open and carries nothing: each kind is watched again, and no change stays unseen (V16)."""
    assert Timeouts().silence_s <= RECONNECT_S
    async with watched(tmp_path) as those:
        for resource in WATCHED:
            those.create(resource, "before")
        await _eventually(lambda: all(those.knows(resource, "before") for resource in WATCHED))
        those.proxy.black_hole()
        for resource in WATCHED:
            those.create(resource, "unheard")
        await _eventually(lambda: all(those.knows(resource, "unheard") for resource in WATCHED))
        assert all(reflector.restarts["unavailable"] == 1 for reflector in those.reflectors.values())


async def test_a_list_from_a_lagging_replica_is_refused(tmp_path: Path) -> None:
    """After a 410 the LIST is answered by a server that lags: no existing object is treated as deleted (V17)."""
    async with watched(tmp_path, PODS, ALLOCATIONS) as those:
        async with httpx2.AsyncClient(base_url=those.proxy.url, verify=NO_TLS, trust_env=False) as client:
            old = (await client.get(PODS.path())).content
        those.create(PODS, "known")
        await _eventually(lambda: those.knows(PODS, "known"))
        those.proxy.stale[PODS.plural] = old
        those.proxy.expires.add(PODS.plural)
        those.proxy.sever()
        await _eventually(lambda: those.reflectors[PODS.plural].restarts["stale"] >= 1)
        assert those.knows(PODS, "known")
        those.proxy.expires.clear()
        those.proxy.stale.clear()
        those.create(PODS, "later")
        await _eventually(lambda: those.knows(PODS, "later"))
        assert those.knows(PODS, "known")


async def test_the_position_never_comes_from_the_items_of_a_list(tmp_path: Path) -> None:
    """The position is the resourceVersion of a LIST, not of its items, which may be older or newer (V17)."""
    async with watched(tmp_path, PODS, NODES) as those:
        listing = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": str(those.core.version)}}
        item = {"metadata": {"name": "ahead", "namespace": NAMESPACE, "uid": "u", "resourceVersion": "999999999"}}
        those.proxy.stale[PODS.plural] = msgspec.json.encode({**listing, "items": [item]})
        those.proxy.expires.add(PODS.plural)
        those.proxy.sever()
        await _eventually(lambda: those.knows(PODS, "ahead"))
        assert those.reflectors[PODS.plural].store.version <= those.core.version
        those.proxy.expires.clear()
        those.create(PODS, "heard")
        await _eventually(lambda: those.knows(PODS, "heard"))


def _named(resource: Resource[Any]) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


async def _eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            if check():
                return
            await asyncio.sleep(POLL_S)
