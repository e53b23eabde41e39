"""The objects that a cluster needs before Slipway can run on it: the CRDs, the namespaces, a pool and a queue.

Owns those manifests for local mode. Applying them twice changes nothing; later edits of the pool and the queue stay.
"""

import asyncio
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from slipway.crd.kinds import KIND_DEFAULTS
from slipway.crd.meta import LABEL_WORKSPACE, RawObject
from slipway.crd.schema import crd_manifests
from slipway.errors import AlreadyExistsError, NotFoundError, TransientError
from slipway.kube.client import KubeClient
from slipway.kube.resources import CRDS, NAMESPACES, QUEUES, RESOURCE_POOLS, Resource
from slipway.model.lifecycle import Kind
from slipway.runtime.clock import Clock

LOCAL_IMAGE = "local"
"""The image of every pod. Local nodes run commands and ignore the image, but a pod must name one."""
READY_S = 20.0
POLL_S = 0.05


async def create_initial_objects(
    kube: KubeClient, clock: Clock, *, system_namespace: str, local_defaults: bool, workload_domain: str = ""
) -> None:
    """Create the missing objects. Waits until the API server answers and serves the CRDs.

    local_defaults: the cluster is our own, so its CRDs are updated and its pool gets `kind_defaults`.
    workload_domain: as in `kind_defaults`.

    Raises:
        TransientError: the API server did not answer in time.
    """
    async with asyncio.timeout(READY_S):
        while True:
            try:
                await kube.list(NAMESPACES, limit=1)
                break
            except TransientError:
                await clock.sleep(POLL_S)
    for manifest in crd_manifests():
        if not await _create(kube, CRDS, manifest) and local_defaults:
            # The data folder may be from another version, whose definitions would drop new fields.
            await kube.patch(CRDS, str(manifest["metadata"]["name"]), {"spec": manifest["spec"]})
    workspace = {"metadata": {"name": "default", "labels": {LABEL_WORKSPACE: "true"}}}
    if not await _create(kube, NAMESPACES, workspace):
        await kube.patch(NAMESPACES, "default", {"metadata": {"labels": {LABEL_WORKSPACE: "true"}}})
    await _create(kube, NAMESPACES, {"metadata": {"name": system_namespace}})
    spec: RawObject = {"defaults": kind_defaults(workload_domain)} if local_defaults else {}
    await _served(kube, clock)
    await _create(kube, RESOURCE_POOLS, {"metadata": {"name": "default"}, "spec": spec})
    await _create(kube, QUEUES, {"metadata": {"name": "default"}, "spec": {"pool": "default"}})


def kind_defaults(workload_domain: str = "") -> RawObject:
    """Return the defaults of the kinds on nodes without container images: programs of this machine's Python.

    A notebook is JupyterLab when it is installed in this Python, else a small page of our own. On a loopback address
    JupyterLab serves only loopback names, so that pages of other sites cannot use it. With a `workload_domain` it also
    serves the name `<AllocationID>.<workload_domain>`, by which browsers reach it. Its kernels listen on socket files
    in a folder of the pod. On a loopback port they would send the output of cells to every account that connects.
    """
    page = [sys.executable, "-m", "slipway.local.pages"]
    defaults: RawObject = {kind: {"image": LOCAL_IMAGE} for kind in ("command", "training", "shell")}
    if not _has("jupyterlab", "jupyter-lab"):
        defaults["notebook"] = {"image": LOCAL_IMAGE, "command": [*page, "notebook"], "port": 8888}
    else:
        names = ("localhost", f"$(SLIPWAY_ALLOCATION_ID).{workload_domain}") if workload_domain else ()
        command = [*KIND_DEFAULTS[Kind.NOTEBOOK].command, *(f"--ServerApp.local_hostnames={name}" for name in names)]
        command.append("--KernelManager.transport=ipc")
        defaults["notebook"] = {"image": LOCAL_IMAGE, "command": command}
    if not _has("tensorboard", "tensorboard"):
        defaults["tensorboard"] = {"image": LOCAL_IMAGE, "command": [*page, "tensorboard"], "port": 6006}
    return defaults


def _has(module: str, program: str) -> bool:
    """Whether local pods will find the program. Their PATH begins with the folder of this Python."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return importlib.util.find_spec(module) is not None and shutil.which(program, path=path) is not None


async def _served(kube: KubeClient, clock: Clock) -> None:
    """Wait until the CRDs are served, which is a moment after their creation."""
    async with asyncio.timeout(READY_S):
        while True:
            try:
                await kube.list(RESOURCE_POOLS, limit=1)
                await kube.list(QUEUES, limit=1)
                return
            except NotFoundError:
                await clock.sleep(POLL_S)


async def _create(kube: KubeClient, resource: Resource[Any], manifest: RawObject) -> bool:
    """Create an object. Return True when it was created, False when it already existed."""
    try:
        await kube.create(resource, manifest)
    except AlreadyExistsError:
        return False
    return True
