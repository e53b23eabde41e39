"""The two clients of a cluster that must behave the same: the port over the core, and the real client over HTTP.

Both use a core of the local cluster, which a test may prepare through `cluster.core`. With
`SLIPWAY_CONTRACT_KUBECONFIG` the suite also runs against that cluster; tests that need the core are skipped there.
"""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncGenerator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from slipway.crd import rules, schema
from slipway.errors import AlreadyExistsError, NotFoundError
from slipway.kube.client import connect
from slipway.kube.ports import KubeApi
from slipway.kube.resources import ALLOCATIONS, CRDS, NAMESPACES
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.http import create_app
from slipway.runtime.clock import SeededRandom, SystemClock
from tests.support.http_stub import serve_app, write_kubeconfig
from tests.support.kube_core import CoreKube

BACKENDS = ["core", "http", *(["real"] if os.environ.get("SLIPWAY_CONTRACT_KUBECONFIG") else [])]


class Cluster:
    """A cluster with a namespace for one test."""

    def __init__(self, kube: KubeApi, core: ClusterCore | None, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        self._core = core

    @property
    def core(self) -> ClusterCore:
        """The core behind it; skips the test when there is none."""
        if self._core is None:
            pytest.skip("needs the core of a local cluster")
        return self._core

    def settle(self) -> None:
        """Let the cluster's own controllers finish, if they can be hurried."""
        if self._core is not None:
            self._core.settle()

    def pod(self, name: str = "p0", **spec: Any) -> dict[str, Any]:
        """A small pod with our scheduler's name, so that no other scheduler binds it."""
        container = {"name": "main", "image": "busybox", "command": ["true"]}
        defaults: dict[str, Any] = {"schedulerName": "slipway", "restartPolicy": "Never", "containers": [container]}
        return {"metadata": {"name": name, "namespace": self.namespace}, "spec": defaults | spec}

    def allocation(self, name: str = "run-a", **spec: Any) -> dict[str, Any]:
        """The smallest Allocation."""
        defaults: dict[str, Any] = {"kind": "command", "template": {"spec": {"containers": [{"name": "main"}]}}}
        return {"metadata": {"name": name, "namespace": self.namespace}, "spec": defaults | spec}


@pytest.fixture(params=BACKENDS)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Cluster, None]:
    """A fresh cluster with our definitions installed."""
    clock, random = SystemClock(), SeededRandom(7)
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    if request.param == "real":
        async with connect(os.environ["SLIPWAY_CONTRACT_KUBECONFIG"], clock=clock, random=random) as kube:
            await _install_once(kube)
            await kube.create(NAMESPACES, {"metadata": {"name": namespace}})
            try:
                yield Cluster(kube, None, namespace)
            finally:
                await kube.delete(NAMESPACES, namespace)
        return
    core = ClusterCore(clock=clock.now, new_uid=lambda: str(uuid.uuid4()), twins=rules.TWINS)
    core.bootstrap()
    local = CoreKube(core, random=random)
    await local.create(NAMESPACES, {"metadata": {"name": namespace}})
    await _install(local)
    core.settle()
    if request.param == "core":
        yield Cluster(local, core, namespace)
        return
    app = create_app(core)
    async with (
        serve_app(app, before_stop=app.state.server.close) as url,
        connect(write_kubeconfig(tmp_path, url), clock=clock, random=random) as kube,
    ):
        yield Cluster(kube, core, namespace)


@cache
def _done() -> list[bool]:
    return []


async def _install_once(kube: KubeApi) -> None:
    """Install our definitions once: a real cluster keeps them from test to test."""
    if not _done():
        await _install(kube)
        _done().append(True)


async def _install(kube: KubeApi) -> None:
    """Install our definitions if they are missing, and wait until they are served."""
    for manifest in schema.crd_manifests():
        with contextlib.suppress(AlreadyExistsError):
            await kube.create(CRDS, manifest)
    for _ in range(150):
        if await _is_served(kube):
            return
        await asyncio.sleep(0.2)
    raise AssertionError("our definitions are not served after 30 s")


async def _is_served(kube: KubeApi) -> bool:
    try:
        await kube.list(ALLOCATIONS, limit=1)
    except NotFoundError:
        return False
    return True
