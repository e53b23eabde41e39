"""A small cluster for tests of one service: the core with our CRDs, a workspace, a pool, a queue and nodes."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

from slipway.crd.meta import LABEL_WORKSPACE, RawObject
from slipway.crd.rules import TWINS
from slipway.crd.schema import crd_manifests
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ControlPlaneError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, CRDS, NAMESPACES, NODES, QUEUES, RESOURCE_POOLS
from slipway.local.apiserver.core import ClusterCore
from slipway.runtime.clock import SeededRandom
from tests.support.kube_core import CoreKube


def a_core(now: Callable[[], float], *, has_pod_groups: bool = False) -> ClusterCore:
    """An empty core with readable, deterministic uids."""
    numbers = itertools.count(1)
    core = ClusterCore(clock=now, new_uid=lambda: f"{next(numbers):08x}-0000-4000-8000-000000000000", twins=TWINS)
    if has_pod_groups:
        core.serve_pod_groups()
    return core


def a_client(core: ClusterCore, seed: int = 1) -> CoreKube:
    """One client of the core."""
    return CoreKube(core, random=SeededRandom(seed))


def refuse_one_delete(kube: CoreKube, error: ControlPlaneError) -> None:
    """Let the first delete of this client fail with `error`, as when a policy of the cluster protects the object."""
    refused: list[str] = []

    async def before(verb: Verb, plural: str) -> None:
        if verb is Verb.DELETE and not refused:
            refused.append(plural)
            raise error

    kube.before = before


async def furnish(kube: CoreKube, *, nodes: int = 2, cpus: int = 4, gpus: int = 0) -> None:
    """Create the CRDs, namespaces `default` (a workspace) and `slipway-system`, pool and queue `default`, and nodes n0,
    n1..."""
    for manifest in _definitions():
        await kube.create(CRDS, manifest)
    await kube.create(NAMESPACES, {"metadata": {"name": "default", "labels": {LABEL_WORKSPACE: "true"}}})
    await kube.create(NAMESPACES, {"metadata": {"name": "slipway-system"}})
    await kube.create(RESOURCE_POOLS, {"metadata": {"name": "default"}, "spec": {}})
    await kube.create(QUEUES, {"metadata": {"name": "default"}, "spec": {"pool": "default"}})
    for index in range(nodes):
        await add_node(kube, f"n{index}", cpus=cpus, gpus=gpus)


@functools.cache
def _definitions() -> tuple[RawObject, ...]:
    """The CRD manifests, made once because they are only read."""
    return tuple(crd_manifests())


async def add_node(
    kube: CoreKube, name: str, *, cpus: int = 4, gpus: int = 0, labels: dict[str, str] | None = None
) -> None:
    """Create a ready node."""
    allocatable = {"cpu": str(cpus), "memory": "16Gi", "pods": "110"}
    if gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
    manifest: RawObject = {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "status": {
            "allocatable": allocatable,
            "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    await kube.create(NODES, manifest)


def a_manifest(name: str = "job", *, ranks: int = 1, cpu: str = "1", **spec: Any) -> RawObject:
    """A hand-written Allocation that runs `true` on `ranks` ranks."""
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "kind": "command",
            "ranks": [{"name": "worker", "count": ranks, "resources": {"cpu": cpu}}],
            "template": {"spec": {"containers": [{"name": "main", "image": "python:3.11", "command": ["true"]}]}},
            **spec,
        },
    }


async def launch(kube: CoreKube, name: str = "job", **spec: Any) -> Allocation:
    """Apply a hand-written Allocation."""
    return await kube.create(ALLOCATIONS, a_manifest(name, **spec), namespace="default")


async def look(kube: CoreKube, name: str = "job") -> Allocation:
    """Read the Allocation."""
    return await kube.get(ALLOCATIONS, name, namespace="default")
