"""The whole system in one process: the real services on a model of Kubernetes, of Redis and of time.

Owns the composition (the services' own `compose`), the life of the simulated processes (start, crash, restart, freeze)
and what is recorded for the checker: every version of every object, every effect, every entry of the event streams,
every container, and what the client was promised. Must not know any scenario.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.resources import ALLOCATIONS, RESOURCE_POOLS
from slipway.local.apiserver.store import Change
from slipway.podworker import main as podworker_main
from slipway.podworker.settings import Settings as PodworkerSettings
from slipway.runtime import service
from slipway.runtime.clock import Random, SeededRandom
from slipway.runtime.health import Health
from slipway.runtime.listen import Address
from slipway.runtime.service import Context, Stop
from slipway.scheduler import main as scheduler_main
from slipway.scheduler.settings import Settings as SchedulerSettings
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.pages import Id
from slipway.streams.ports import NoTally
from slipway.streams.producer import BestEffort
from slipway.watcher import main as watcher_main
from slipway.watcher.settings import Settings as WatcherSettings
from tests.support.faults import Fault, Process, ProcessKube, ProcessStreams, Trouble
from tests.support.kube_core import CoreKube
from tests.support.kube_scheduler import KubeScheduler
from tests.support.kubelet import Kubelets
from tests.support.loop import EPOCH, OWNER, SimLoop, owned
from tests.support.small_cluster import a_core, furnish, launch, look

REDIS = "redis://model"
NAMESPACE = "slipway-system"
RESTART_S = 1.0
FREEZE_S = 30.0
"""Longer than any lease: somebody else leads by then."""


class WorldClock:
    """The clock of the world, and of every process: no skew."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return EPOCH + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What there is at the start. `replicas` is {service: how many}."""

    nodes: int = 2
    cpus: int = 4
    has_redis: bool = True
    replicas: dict[str, int] = {}
    lag_s: dict[str, float] = {}
    """{plural: how late the watchers' watches of it are}"""
    watcher: dict[str, Any] = {}
    """settings of the watcher that differ from the defaults"""
    binding: str = "direct"
    """of the pool; delegate: beside a model of kube-scheduler"""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What the client was told: `launched`, `cancelled` or `deleted`, with the object's version."""

    kind: str
    uid: str
    name: str
    version: int
    at: float


class WitnessedServer(MemoryServer):
    """Tells of every entry that is added."""

    def __init__(self, clock: WorldClock) -> None:
        super().__init__(clock)
        self.on_add: Callable[[str, dict[str, bytes], Id], None] = lambda _key, _fields, _id: None

    def add(self, key: str, fields: Mapping[str, bytes], *, entry_id: Id | None = None, length_max: int = 0) -> Id:
        added = super().add(key, fields, entry_id=entry_id, length_max=length_max)
        self.on_add(key, dict(fields), added)
        return added


class World:
    """One run. Make it inside the loop; `start` the services, then play."""

    def __init__(self, setup: Setup, *, seed: int = 0, faults: tuple[Fault, ...] = ()) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.loop = loop
        self.setup = setup
        self.seed = seed
        self.clock = WorldClock(loop)
        self.random: Random = SeededRandom(f"world-{seed}")
        self.trouble = Trouble(faults, SeededRandom(f"latency-{seed}"), self.clock.now)
        self.trouble.crash = self.crash
        self.trouble.freeze = self.freeze
        self.core = a_core(self.clock.now)
        self.kube = CoreKube(self.core, random=SeededRandom(f"user-{seed}"))
        self.server = WitnessedServer(self.clock)
        self.server.absent = not setup.has_redis
        self.trouble.flush = self.server.flush
        self.streams = MemoryStreams(self.server)
        self.kubelets = Kubelets(self.core, self.clock.now, SeededRandom(f"kubelet-{seed}"))
        self.kube_scheduler = KubeScheduler(self.core, SeededRandom(f"kube-scheduler-{seed}"))
        self.changes: list[tuple[float, str, Change]] = []
        """(time, the process that wrote, the commit); empty for the user, kubelets and controllers"""
        self.processes: dict[str, Process] = {}
        self.promises: list[Promise] = []
        self.broken: list[str] = []
        """What ended a process that nobody killed."""
        self.last_fault_at = 0.0
        self._changed = asyncio.Event()
        self._generations: dict[str, int] = {}
        self._committed: dict[int, float] = {}
        self._outside = owned(None)
        loop.on_close = self._close
        self.core.subscribe(self._record)

    def _close(self) -> None:
        self.trouble.is_closed = True

    async def start(self) -> None:
        """Furnish the cluster and start everything."""
        await furnish(self.kube, nodes=self.setup.nodes, cpus=self.setup.cpus)
        if self.setup.binding != "direct":
            await self.kube.patch(RESOURCE_POOLS, "default", {"spec": {"binding": self.setup.binding}})
            self.loop.create_task(self.kube_scheduler.run(), context=self._outside)
        self.loop.create_task(self.kubelets.run(), context=self._outside)
        for name in ("scheduler", "podworker", "watcher"):
            for index in range(self.setup.replicas.get(name, 1)):
                self.spawn(name if index == 0 else f"{name}{index + 1}")

    # --- processes --------------------------------------------------------------------------------------------------

    def spawn(self, role: str) -> Process:
        """A fresh process with empty memory."""
        generation = self._generations[role] = self._generations.get(role, 0) + 1
        process = Process(role, generation)
        self.processes[role] = process
        self.loop.create_task(self._live(process), name=process.name, context=owned(process))
        return process

    def crash(self, process: Process) -> None:
        """`kill -9`; it comes back after a while."""
        self.loop.kill(process)
        self.last_fault_at = max(self.last_fault_at, self.clock.now())
        self.loop.call_later(RESTART_S, self.spawn, process.role, context=self._outside)

    def freeze(self, process: Process) -> None:
        """SIGSTOP, and SIGCONT after everybody else has gone on without it."""
        self.loop.freeze(process)
        self.last_fault_at = max(self.last_fault_at, self.clock.now() + FREEZE_S)
        self.loop.call_later(FREEZE_S, self.loop.thaw, process, context=self._outside)

    async def _live(self, process: Process) -> None:
        kube = ProcessKube(
            CoreKube(self.core, random=SeededRandom(f"{process.name}-{self.seed}"), logs=self.kubelets),
            process,
            self.trouble,
        )
        streams: Any = ProcessStreams(MemoryStreams(self.server), process, self.trouble)
        kind = process.role.rstrip("0123456789")
        if kind == "watcher":
            kube.lag_s = dict(self.setup.lag_s)
            kube.committed_at = lambda version: self._committed.get(version, 0.0)
        try:
            async with asyncio.TaskGroup() as tasks:
                context: Context[Any] = Context(
                    service=kind,
                    settings=self._settings(kind, process.name),
                    once=False,
                    clock=self.clock,
                    random=SeededRandom(f"{process.name}-{self.seed}"),
                    health=Health(self.clock),
                    stop=Stop(),
                    tasks=tasks,
                    resources=AsyncExitStack(),
                    address=Address("", 0),
                )
                match kind:
                    case "scheduler":
                        scheduler_main.compose(context, kube, streams)
                    case "podworker":
                        podworker_main.compose(context, kube, streams)
                    case _:
                        watcher_main.compose(context, kube, streams, BestEffort(streams, self.clock, NoTally()))
                await context.stop.wait()
        except Exception as error:  # noqa: BLE001 - whatever ends a process that nobody killed is a finding
            self.end(process, f"{process.name} ended: {error!r} {getattr(error, 'exceptions', '')}")

    def end(self, process: Process, why: str) -> None:
        """A process ended by itself: a bug; it is started again as Kubernetes would."""
        self.broken.append(why)
        self.crash(process)

    def _settings(self, kind: str, identity: str) -> Any:
        redis_url = REDIS if self.setup.has_redis else ""
        match kind:
            case "scheduler":
                return SchedulerSettings(redis_url=redis_url, namespace=NAMESPACE, identity=identity)
            case "podworker":
                return PodworkerSettings(redis_url=redis_url, namespace=NAMESPACE, worker_identity=identity)
            case _:
                return WatcherSettings(
                    redis_url=redis_url, namespace=NAMESPACE, identity=identity, **self.setup.watcher
                )

    # --- the user ---------------------------------------------------------------------------------------------------

    async def launch(self, name: str = "job", **spec: Any) -> Allocation:
        """A launch that was answered 2xx."""
        made = await launch(self.kube, name, **spec)
        self._promise("launched", made)
        return made

    async def cancel(self, name: str = "job") -> None:
        """A kill that was answered 2xx."""
        stopped = await self.kube.patch(ALLOCATIONS, name, {"spec": {"desired": "Stopped"}}, namespace="default")
        self._promise("cancelled", stopped)

    async def delete(self, name: str = "job") -> None:
        """`kubectl delete`."""
        found = await look(self.kube, name)
        await self.kube.delete(ALLOCATIONS, name, namespace="default")
        self._promise("deleted", found)

    def _promise(self, kind: str, allocation: Allocation) -> None:
        meta = allocation.metadata
        self.promises.append(
            Promise(kind=kind, uid=meta.uid, name=meta.name, version=meta.version, at=self.clock.now())
        )

    async def when(
        self, condition: Callable[[Allocation], object], *, name: str = "job", timeout_s: float = 180.0
    ) -> Allocation:
        """The allocation at the first version for which `condition` holds; looked at after every commit."""
        async with asyncio.timeout(timeout_s):
            while True:
                self._changed.clear()
                found = await look(self.kube, name)
                if condition(found):
                    return found
                await self._changed.wait()

    async def created(self, resource: str, *, timeout_s: float = 180.0) -> None:
        """Until there has been an object of that plural, that very instant."""
        async with asyncio.timeout(timeout_s):
            while not any(change.resource == resource for _, _, change in self.changes):
                self._changed.clear()
                await self._changed.wait()

    async def until(self, condition: Callable[[], Awaitable[object]], *, timeout_s: float = 180.0) -> None:
        """Polls."""
        async with asyncio.timeout(timeout_s):
            while True:
                if await condition():
                    return
                await asyncio.sleep(0.1)

    # --- what is recorded -------------------------------------------------------------------------------------------

    def _record(self, change: Change) -> None:
        owner = OWNER.get()
        self.changes.append((self.clock.now(), owner.name if owner is not None else "", change))
        self._committed[change.version] = self.loop.time()
        self._changed.set()


def run_world(
    play: Callable[[World], Awaitable[Any]], setup: Setup, *, seed: int = 0, faults: tuple[Fault, ...] = ()
) -> Any:
    """Runs one play from its start."""
    loop = SimLoop(seed)

    async def main() -> Any:
        world = World(setup, seed=seed, faults=faults)

        def exit_process(code: int) -> None:
            owner = OWNER.get()
            if isinstance(owner, Process):
                world.end(owner, f"{owner.name} exited with {code}: an invariant of its own is broken")

        exits: dict[str, Any] = service.loop.__kwdefaults__ or {}
        before, exits["exit_process"] = exits["exit_process"], exit_process
        try:
            await world.start()
            return await play(world)
        finally:
            exits["exit_process"] = before

    return loop.run(main())


__all__ = ["Promise", "Setup", "World", "id_of", "run_world"]
