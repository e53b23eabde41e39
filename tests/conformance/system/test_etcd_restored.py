"""etcd of a real control plane is restored from an older copy: reflectors that watch the cluster return to that state
too."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from slipway.crd.meta import ObjectMeta
from slipway.errors import DeadlineError, UnavailableError
from slipway.kube.client import connect
from slipway.kube.objects import ConfigMap
from slipway.kube.ports import KubeApi
from slipway.kube.reflector import Reflector
from slipway.kube.resources import CONFIG_MAPS
from slipway.kube.store import ObjectStore
from slipway.runtime.clock import SeededRandom, SystemClock
from tests.conformance.cluster.servers import ClusterOptions, RealCluster, running_cluster
from tests.conformance.wanted import require_own_cluster

AGAIN_S = 90.0
"""The time for the servers to start, during which the reflector backs off."""
ALONE = ClusterOptions(controller_manager=False, scheduler=False, audit=False)


def test_a_reflector_follows_an_etcd_that_was_put_back(tmp_path: Path) -> None:
    """Objects created after the copy disappear from the store, deleted ones are back, and later changes arrive."""
    require_own_cluster()
    with running_cluster(tmp_path, ALONE) as cluster:
        asyncio.run(_story(cluster))


async def _story(cluster: RealCluster) -> None:
    store: ObjectStore[ConfigMap] = ObjectStore()
    clock, random = SystemClock(), SeededRandom(1)
    async with connect(str(cluster.kubeconfig), clock=clock, random=random) as kube:
        reflector = Reflector(kube, CONFIG_MAPS, store, clock=clock, random=random, namespace="default")
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reflector.run(stop))
            await _add(kube, "kept")
            await _add(kube, "deleted-later")
            await _until(lambda: store.get("deleted-later", "default") is not None)
            await asyncio.to_thread(_copy, cluster)
            await _eventually(lambda: _add(kube, "lost"))
            await kube.delete(CONFIG_MAPS, "deleted-later", namespace="default")
            for number in range(200):
                await _add(kube, f"filler-{number}")
            await _until(lambda: store.get("filler-199", "default") is not None)
            assert store.get("deleted-later", "default") is None
            seen = store.version

            await asyncio.to_thread(_put_back, cluster)
            await _until(lambda: store.get("deleted-later", "default") is not None)
            assert store.version < seen
            assert store.get("lost", "default") is None
            assert store.get("kept", "default") is not None
            assert reflector.restarts["rewound"] == 1
            await _eventually(lambda: _add(kube, "new"))
            await _until(lambda: store.get("new", "default") is not None)
            stop.set()


def _copy(cluster: RealCluster) -> None:
    """Copy etcd's folder, as of a stopped etcd."""
    _stop(cluster)
    shutil.copytree(cluster.folder / "etcd", cluster.folder / "copy")
    _start(cluster)


def _put_back(cluster: RealCluster) -> None:
    _stop(cluster)
    shutil.rmtree(cluster.folder / "etcd")
    shutil.move(cluster.folder / "copy", cluster.folder / "etcd")
    _start(cluster)


def _stop(cluster: RealCluster) -> None:
    cluster.stop_part("apiserver")
    cluster.stop_part("etcd")


def _start(cluster: RealCluster) -> None:
    cluster.start_part("etcd")
    cluster.start_part("apiserver")
    cluster.await_ready()


async def _add(kube: KubeApi, name: str) -> None:
    await kube.create(CONFIG_MAPS, ConfigMap(metadata=ObjectMeta(name=name, namespace="default")))


async def _until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(AGAIN_S):
        while not check():  # noqa: ASYNC110 - another process decides when
            await asyncio.sleep(0.05)


async def _eventually(call: Callable[[], Awaitable[None]]) -> None:
    """Retry for a while: the server has just started, and old connections may still break."""
    async with asyncio.timeout(AGAIN_S):
        while True:
            try:
                return await call()
            except (UnavailableError, DeadlineError):
                await asyncio.sleep(0.2)
