"""A watcher beside a small cluster, with a polling pod worker and a fake kubelet: whole lives of allocations, in
virtual time.

`play` runs a story: the story launches, admits and checks, while the services do their work. The kubelet runs each pod
for `runs` seconds and ends it with `codes`; a pod that is deleted ends with 143.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from slipway.crd.meta import RawObject
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ControlPlaneError
from slipway.kube.errors import Verb
from slipway.kube.objects import Pod
from slipway.kube.resources import ALLOCATIONS, PODS
from slipway.local.apiserver.objects import clone
from slipway.model.times import format_time
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.runtime.service import ServiceStop
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import NoTally, StoredEvent
from slipway.streams.producer import BestEffortWriter
from slipway.watcher.settings import Settings
from slipway.watcher.watcher import Watcher, WatcherDeps
from tests.support.podworker_harness import PodWorkerHarness, hint_for
from tests.support.small_cluster import a_client, furnish, look
from tests.support.stepping import over_and_over
from tests.support.virtual_time import run_virtual

STEP_S = 0.05
POLL_S = 0.2
SETTINGS = Settings(redis_url="redis://model", namespace="slipway-system", restart_backoff_s=1.0)


class Kubelet:
    """Pretends to run pods on every node."""

    def __init__(self, worker_harness: PodWorkerHarness) -> None:
        self._core = worker_harness.core
        self._now = worker_harness.clock.now
        self.starts_after_s = 0.1
        self.runs_s: dict[int, float] = {}
        """rank -> how long its container runs; for ever when absent"""
        self.codes: dict[int, int] = {}
        self.is_away: set[str] = set()
        """nodes whose kubelet does nothing"""
        self._bound_at: dict[str, float] = {}
        self._started_at: dict[str, float] = {}

    async def run(self) -> None:
        while True:
            for record in self._core.list("pods").records:
                self._sync(clone(record.obj))
            self._core.settle()
            await asyncio.sleep(STEP_S)

    def _sync(self, pod: RawObject) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
        node, uid = spec.get("nodeName", ""), meta["uid"]
        if not node or node in self.is_away or status.get("phase") in ("Succeeded", "Failed"):
            if node and meta.get("deletionTimestamp") and node not in self.is_away:
                self._finish_deletion(meta)
            return
        rank = int(meta["labels"].get("slipway.dev/rank", 0))
        now = self._now()
        bound_at = self._bound_at.setdefault(uid, now)
        if meta.get("deletionTimestamp"):
            self._exit(pod, 143)
        elif uid not in self._started_at:
            if now - bound_at >= self.starts_after_s:
                self._start(pod)
        elif rank in self.runs_s and now - self._started_at[uid] >= self.runs_s[rank]:
            self._exit(pod, self.codes.get(rank, 0))

    def _start(self, pod: RawObject) -> None:
        self._started_at[pod["metadata"]["uid"]] = self._now()
        self._put(pod, "Running", {"running": {"startedAt": format_time(self._now(), "seconds")}})

    def _exit(self, pod: RawObject, code: int) -> None:
        started = self._started_at.get(pod["metadata"]["uid"], self._now())
        ended = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": format_time(started, "seconds"),
            "finishedAt": format_time(self._now(), "seconds"),
        }
        self._put(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    def _put(self, pod: RawObject, phase: str, state: RawObject) -> None:
        pod["status"]["phase"] = phase
        pod["status"]["containerStatuses"] = [
            {"name": item["name"], "state": state, "ready": phase == "Running", "restartCount": 0, "image": "i"}
            for item in pod["spec"]["containers"]
        ]
        word = "True" if phase == "Running" else "False"
        pod["status"]["conditions"] = [{"type": "Ready", "status": word}]
        self._core.update_status("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], pod)

    def _finish_deletion(self, meta: RawObject) -> None:
        if meta.get("deletionGracePeriodSeconds"):
            self._core.delete("pods", meta["namespace"], meta["name"], {"gracePeriodSeconds": 0})


class WatcherHarness:
    """A watcher, its cluster and its Redis: `kube` is the story's client, `its` the watcher's."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.worker_harness = PodWorkerHarness()
        self.clock = self.worker_harness.clock
        self.core = self.worker_harness.core
        self.kube = self.worker_harness.kube
        self.kubelet = Kubelet(self.worker_harness)
        self.server = MemoryServer(self.clock)
        self.streams = MemoryStreams(self.server)
        self.behind = BestEffortWriter(self.streams, self.clock, NoTally())
        self.settings = settings
        self.its = a_client(self.core, seed=5)
        self.writes: list[tuple[Verb, str]] = []
        self.its.after = self._note
        self.watcher = self.another()
        self.works = True

    def another(self, identity: str = "one", settings: Settings | None = None) -> Watcher:
        """A watcher process with empty memory; `its_streams` are the streams of the latest one."""
        self.its_streams = MemoryStreams(self.server)
        return Watcher(
            WatcherDeps(
                kube=self.its,
                streams=self.its_streams,
                behind=self.behind,
                clock=self.clock,
                random=SeededRandom(identity),
                health=ProcessHealth(self.clock),
                settings=settings or self.settings,
                identity=identity,
            )
        )

    async def launch(self, *nodes: str, name: str = "job", **spec: Any) -> Allocation:
        """Create an admitted allocation: rank r on the r-th node."""
        return await self.worker_harness.assign(*(nodes or ("n0",)), name=name, **spec)

    async def until(
        self, condition: Callable[[Allocation], object], what: str, *, name: str = "job", timeout_s: float = 60.0
    ) -> Allocation:
        """Wait until `condition` is true for the allocation, within `timeout_s` of virtual time; return it."""
        waited_s = 0.0
        while True:
            found = await look(self.kube, name)
            if condition(found):
                return found
            if waited_s >= timeout_s:
                raise AssertionError(f"waited {timeout_s} s for: {what}; it is {found.status}")
            waited_s += STEP_S
            await asyncio.sleep(STEP_S)

    async def pods(self) -> list[Pod]:
        """All pods."""
        return (await self.kube.list(PODS)).items

    async def stream(self, allocation: Allocation) -> list[StoredEvent]:
        """The events in the allocation's stream."""
        return await self.streams.events.read(id_of(allocation))

    async def run(self, watcher: Watcher, stop: ServiceStop) -> None:
        """Run a watcher until `stop` is set."""
        await watcher.run(stop)

    async def _note(self, verb: Verb, plural: str) -> None:
        if verb not in (Verb.GET, Verb.LIST, Verb.WATCH, Verb.LOG):
            self.writes.append((verb, plural))

    async def _work(self) -> None:
        """Run the polls of the pod worker."""
        while True:
            await asyncio.sleep(POLL_S)
            for allocation in (await self.kube.list(ALLOCATIONS)).items if self.works else []:
                try:
                    await self.worker_harness.worker.handle(hint_for(allocation))
                except ControlPlaneError:
                    continue

    async def stage(self, story: Coroutine[Any, Any, None], *, watches: bool) -> None:
        """Run the story beside the services and the kubelet."""
        stop = ServiceStop()
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(work) for work in (self._work(), self.kubelet.run(), over_and_over(self.behind.step))
            ]
            watching = tasks.create_task(self.run(self.watcher, stop)) if watches else None
            await story
            stop.set()
            if watching is not None:
                await watching
            for other in others:
                other.cancel()


def play(
    story: Callable[[WatcherHarness], Coroutine[Any, Any, None]],
    *,
    nodes: int = 2,
    watches: bool = True,
    settings: Settings = SETTINGS,
) -> None:
    """Run a story from its start on a fresh cluster."""

    async def main() -> None:
        harness = WatcherHarness(settings)
        await furnish(harness.kube, nodes=nodes)
        await harness.stage(story(harness), watches=watches)

    run_virtual(main)
