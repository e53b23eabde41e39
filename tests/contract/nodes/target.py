"""The node on which the suite runs pods: the local cluster's, as a process, or the real one that the environment names.

`SLIPWAY_CONTRACT_NODE` is the name of a node with a kubelet and a container runtime, `SLIPWAY_CONTRACT_NODE_KUBECONFIG`
a kubeconfig of its throw-away cluster, and `SLIPWAY_CONTRACT_IMAGE` an image that the node has, with `sh` and
`python3`.
"""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import msgspec

from slipway.local.apiserver.core import ClusterCore
from tests.contract.kube.target import Target, serving, target_of
from tests.support.http_stub import write_kubeconfig
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

_TOKEN = "administrator"
STAND_IN = "node-0"
READY_S = 30.0


class NodeTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A node and its API server. `is_real`: a kubelet with containers."""

    api: Target
    node: str
    image: str
    is_real: bool


@contextmanager
def running_node() -> Generator[NodeTarget]:
    """The node that the environment names, or a new one of the local cluster, which is stopped at the end."""
    name = os.environ.get("SLIPWAY_CONTRACT_NODE", "")
    if name:
        api = target_of(Path(os.environ["SLIPWAY_CONTRACT_NODE_KUBECONFIG"]))
        yield NodeTarget(api=api, node=name, image=os.environ["SLIPWAY_CONTRACT_IMAGE"], is_real=True)
        return
    core = ClusterCore(clock=time.time, new_uid=lambda: str(uuid.uuid4()))  # noqa: TID251
    core.bootstrap()
    with serving(core, token=_TOKEN) as url, tempfile.TemporaryDirectory(prefix="slipway-nodes-") as folder:
        api = Target(url=url, headers={"authorization": f"Bearer {_TOKEN}"})
        with _stand_in(Path(folder), api):
            yield NodeTarget(api=api, node=STAND_IN, image="none", is_real=False)


@contextmanager
def _stand_in(folder: Path, api: Target) -> Generator[None]:
    kubeconfig = write_kubeconfig(folder, api.url, {"token": _TOKEN})
    argv = [sys.executable, "-m", "slipway.local.node", "--state", str(folder / "pods"), "--nodes", "1"]
    log = folder / "node.log"
    with log.open("wb") as out:
        process = subprocess.Popen([*argv, "--kubeconfig", kubeconfig], stdout=out, stderr=out)

    def is_registered() -> bool:
        answer = httpx2.get(f"{api.url}/api/v1/nodes/{STAND_IN}", headers=api.headers, verify=NO_TLS, trust_env=False)
        assert process.poll() is None, log.read_text()
        return answer.status_code == 200

    try:
        wait_until(is_registered, f"{STAND_IN} is registered", timeout_s=READY_S)
        yield
    finally:
        process.terminate()
        process.wait(READY_S)
