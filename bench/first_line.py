"""From the POST to a container's first line on a real node, compared with a plain Kubernetes Job.

The nodes are two kubelets with containerd and runc, with the real control plane and the installed chart
(docs/adr/0046). A rank and a Job's pod have the same image, command and resources. They run alternately, one at a time;
the next begins when the pod of the last one is gone. The time of a first line is when containerd read it. A client that
watches dates the steps before it. On the node, the kubelet's log folders date them: the pod's folder changes when its
sandbox is ready, the container's folder when the container was created.

The Job has the usual form, so its pod has a service account's token, which ours has not. Our API listens on loopback,
as in the chart, so our POST goes through `kubectl port-forward`. The Job's POST goes to the API server directly.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import aiohttp
import msgspec

from bench.bench_cluster import account
from bench.bench_stack import DEADLINE_S, LINE_LIMIT, Watching, launch_through
from bench.opening import session_into
from bench.runner import Row, paired, percentile, row
from slipway.runtime.clock import SystemClock
from tests.node.cluster_folder import a_cluster_folder
from tests.node.conftest import installed, started
from tests.node.images import WORKLOAD, ensure_images
from tests.node.programs import ensure_programs, spaces

PAIRS_PER_RUN, WARM_UP = 3, 6
JOBS = "/apis/batch/v1/namespaces/default/jobs"
COMMAND = ("sh", "-c", "echo ready; sleep 1")
ASKED = {"cpu": "50m", "memory": "128Mi"}
PEER = "a Job of Kubernetes"
POLL_S, PAUSE_S = 0.02, 0.5
STEPS = {
    "answered": "the POST is answered",
    "Assigned": "it is admitted",
    "pod": "its pod is there",
    "release": "it is released",
    "bound": "its pod is bound",
    "sandbox": "the pod's sandbox is up",
    "container": "the container is made",
}
Times = dict[str, float]
"""{step: milliseconds since the POST was sent}"""


class Samples(msgspec.Struct, frozen=True):
    """All samples of both sides."""

    ours: list[Times]
    peer: list[Times]


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark. Raises MissingProgramError when this machine cannot run a real node."""
    programs = await asyncio.to_thread(ensure_programs)
    await asyncio.to_thread(ensure_images, programs)
    with tempfile.NamedTemporaryFile() as file, a_cluster_folder() as cluster_folder:
        argv = spaces([sys.executable, "-m", "bench.first_line", file.name, str(runs * PAIRS_PER_RUN)])
        process = await asyncio.create_subprocess_exec(
            *argv, env={**os.environ, "SLIPWAY_NODE_DIR": str(cluster_folder.folder)}
        )
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code:
            raise RuntimeError(f"the measurement inside the nodes' namespaces ended with {code}")
        found = msgspec.json.decode(file.read(), type=Samples)
    return rows_of(found)


def rows_of(found: Samples) -> list[Row]:
    """Return medians and p95, and the time of each step."""
    ours, peer = ([each["first"] for each in side] for side in (found.ours, found.peer))
    work = "POST to a container's first line, 1 rank on a real node"
    rows = [
        row("FIRST-p50", f"{work}, p50", ours, "ms", peer=peer, peer_name=PEER),
        row(
            "FIRST-p95",
            f"{work}, p95",
            [percentile(ours, 95)],
            "ms",
            peer=[percentile(peer, 95)],
            peer_name=PEER,
            note=f"of {len(ours)} and {len(peer)}",
        ),
    ]
    for step, what in STEPS.items():
        mine, theirs = ([each[step] for each in side if step in each] for side in (found.ours, found.peer))
        name = PEER if theirs else None
        rows.append(row(f"FIRST-at-{step}", f"of that: until {what}", mine, "ms", peer=theirs, peer_name=name))
    return rows


class Sides:
    """Both ways to start a container, watched by one client."""

    def __init__(self, api_url: str, kubernetes: str, kube: aiohttp.ClientSession, web: aiohttp.ClientSession) -> None:
        self._api_url, self._kubernetes, self._kube, self._web = api_url, kubernetes, kube, web
        self._folder = Path(os.environ["SLIPWAY_NODE_DIR"])
        self.watching = Watching(kube, kubernetes)

    async def ours(self) -> Times:
        """Make one launch."""
        body = {
            "kind": "command",
            "image": WORKLOAD,
            "command": COMMAND,
            "ranks": [{"name": "worker", "count": 1, "resources": ASKED}],
        }
        wall_s = SystemClock().now()
        id_, sent_s, answered_s = await launch_through(self._web, self._api_url, msgspec.json.encode(body))
        return await self._times(id_, wall_s, sent_s, answered_s)

    async def peer(self, number: int) -> Times:
        """Make one Job; it is deleted when its line was read."""
        name = f"plain-{number}"
        container = {"name": "main", "image": WORKLOAD, "command": COMMAND, "resources": {"requests": ASKED}}
        pod = {"restartPolicy": "Never", "containers": [container]}
        body = {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}
        wall_s, sent_s = SystemClock().now(), time.perf_counter()
        async with self._kube.post(f"{self._kubernetes}{JOBS}", json=body) as answer:
            answer.raise_for_status()
            await answer.read()
        return await self._times(name, wall_s, sent_s, time.perf_counter(), path=f"{JOBS}/{name}")

    async def _times(self, owner: str, wall_s: float, sent_s: float, answered_s: float, *, path: str = "") -> Times:
        """Return the times of a launch or Job after its pod is gone."""
        at = await self._on_node(owner)
        times = {step: (when - wall_s) * 1_000 for step, when in at.items()}
        if path:
            params = {"propagationPolicy": "Background"}
            async with self._kube.delete(f"{self._kubernetes}{path}", params=params) as answer:
                answer.raise_for_status()
        marks = self.watching.of(owner)
        await marks.until(lambda: bool(marks.gone), f"the end of the pod of {owner}")
        seen = {**marks.at, "answered": answered_s, "bound": marks.at["bound:1"]}
        times |= {step: (seen[step] - sent_s) * 1_000 for step in STEPS if step in seen}
        await asyncio.sleep(PAUSE_S)
        return times

    async def _on_node(self, owner: str) -> dict[str, float]:
        """Return {step: time in seconds of the wall clock}, from the kubelet's folders."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for log in self._folder.glob(f"node-*/pods/default_{owner}-*/main/0.log"):
                    line = log.read_text().partition("\n")[0]
                    if line.endswith(" stdout F ready"):
                        first = datetime.fromisoformat(line.split()[0]).timestamp()
                        container, pod = log.parent, log.parent.parent
                        return {"first": first, "sandbox": pod.stat().st_mtime, "container": container.stat().st_mtime}
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def sides() -> AsyncGenerator[Sides]:
    """Provide two nodes with the installed chart."""
    with started() as cluster, installed(cluster) as product:
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        kubeconfig = cluster.folder / "bench.kubeconfig"
        account(cluster.control, kubeconfig)
        async with (
            session_into(kubeconfig, timeout=timeout, read_bufsize=LINE_LIMIT) as kube,
            aiohttp.ClientSession(timeout=timeout) as web,
        ):
            found = Sides(product.url, cluster.control.url, kube, web)
            await found.watching.start()
            try:
                yield found
            finally:
                await found.watching.stop()


async def _inside(file: Path, pairs: int) -> None:
    async with sides() as both:
        for number in range(WARM_UP):
            await both.ours()
            await both.peer(1_000 + number)
        found = Samples([], [])

        async def ours(_number: int) -> float:
            found.ours.append(await both.ours())
            return found.ours[-1]["first"]

        async def peer(number: int) -> float:
            found.peer.append(await both.peer(number))
            return found.peer[-1]["first"]

        await paired(pairs, ours, peer)
    await asyncio.to_thread(file.write_bytes, msgspec.json.encode(found))


if __name__ == "__main__":
    asyncio.run(_inside(Path(sys.argv[1]), int(sys.argv[2])))
