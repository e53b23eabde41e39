"""What a cluster needs before Slipway can run on it: the CRDs, the namespaces, a pool and a queue.

Owns those manifests for local mode. Applying twice changes nothing; what somebody has edited since stays.
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
"""Local nodes run commands, whatever the image; but every pod names one."""
READY_S = 20.0
POLL_S = 0.05


async def furnish(
    kube: KubeClient, clock: Clock, *, system_namespace: str, local_defaults: bool, workload_domain: str = ""
) -> None:
    """Create what is missing; waits until the API server answers and serves the CRDs. Those of a cluster of our own
    (`local_defaults`) are brought up to date.

    `workload_domain` as in `kind_defaults`.

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
            # Of data that another version has kept: its definitions would drop the fields that are new.
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
    """Defaults of the kinds where there is no container image: the programs of this machine's Python.

    A notebook is JupyterLab when it is installed beside us, else a small page of our own. On a loopback address
    JupyterLab serves loopback names only, which keeps pages of other sites out; under `workload_domain` browsers reach
    it by `<AllocationID>.<workload_domain>`. Its kernels listen on socket files in a folder of the pod: from a loopback
    port they would send what cells print to every account that connects.
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
    """Whether pods here will find it: their PATH begins where this Python is."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return importlib.util.find_spec(module) is not None and shutil.which(program, path=path) is not None


async def _served(kube: KubeClient, clock: Clock) -> None:
    """A CRD is served a moment after it was created."""
    async with asyncio.timeout(READY_S):
        while True:
            try:
                await kube.list(RESOURCE_POOLS, limit=1)
                await kube.list(QUEUES, limit=1)
                return
            except NotFoundError:
                await clock.sleep(POLL_S)


async def _create(kube: KubeClient, resource: Resource[Any], manifest: RawObject) -> bool:
    """True when it was created, False when it was there."""
    try:
        await kube.create(resource, manifest)
    except AlreadyExistsError:
        return False
    return True
