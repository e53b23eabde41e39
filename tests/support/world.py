"""The whole system in one process: the real services on a model of Kubernetes, of Redis and of time.

Owns the composition (the services' own `compose`), the life of the simulated processes (start, crash, restart, freeze)
and what is recorded for the checker: every version of every object, every effect, every entry of the event streams,
every container, and the answers to the client. Must not know any scenario.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from slipway.crd.meta import RawObject
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ControlPlaneError
from slipway.kube.resources import ALLOCATIONS, NAMESPACES, RESOURCE_POOLS
from slipway.local.apiserver.store import Commit
from slipway.logarchive.archive import LogArchive
from slipway.ops.audit.evidence import Canary, ClientRequest, RestartPeriod
from slipway.podworker import main as podworker_main
from slipway.podworker.settings import Settings as PodworkerSettings
from slipway.runtime import service
from slipway.runtime.clock import Random, SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.runtime.listen import ListenAddress
from slipway.runtime.service import ServiceContext, ServiceStop
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler import main as scheduler_main
from slipway.scheduler.settings import Settings as SchedulerSettings
from slipway.streams.factory import write_behind
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import NoTally
from slipway.streams.producer import BestEffortWriter
from slipway.watcher import main as watcher_main
from slipway.watcher.settings import Settings as WatcherSettings
from tests.support.archive_objects import MemoryObjects
from tests.support.fault_kube import ProcessKube
from tests.support.fault_redis import FaultyServer
from tests.support.fault_streams import ProcessStreams
from tests.support.fault_world import STALE_S, WorldFaults
from tests.support.faults import Fault, FaultInjector, Process
from tests.support.kube_core import CoreKube
from tests.support.kube_scheduler import KubeScheduler
from tests.support.kubelet import Kubelets
from tests.support.loop import OWNER, SimLoop, owned
from tests.support.small_cluster import a_core, furnish, launch, look
from tests.support.world_clock import ProcessClock, WorldClock

REDIS = "redis://model"
NAMESPACE = "slipway-system"
SERVICES = {"scheduler": 1, "podworker": 1, "watcher": 1, "api": 0}
"""{service: number of replicas, unless the setup sets another}"""
RESTART_S = 1.0


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The world at the start. `replicas` is {service: number of replicas}."""

    nodes: int = 2
    cpus: int = 4
    has_redis: bool = True
    replicas: dict[str, int] = {}
    lag_s: dict[str, float] = {}
    """{plural: lag of the watchers' watches, in seconds}"""
    watcher: dict[str, Any] = {}
    """settings of the watcher that differ from the defaults"""
    api: dict[str, Any] = {}
    """settings of the api that differ from the defaults"""
    skew_s: dict[str, float] = {}
    """{role: how far its wall clock is ahead}"""
    is_whole: bool = False
    """whether to run also the loops that only some settings start"""
    binding: str = "direct"
    """binding of the pool; with `delegate` a model of kube-scheduler runs too"""
    has_pod_groups: bool = False
    """whether the API server serves groups of pods, which kube-scheduler places whole"""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to the client: `launched`, `cancelled` or `deleted`, with the object's version."""

    kind: str
    uid: str
    name: str
    version: int
    at: float


class _Certificate:
    """A certificate that never changes."""

    def look(self) -> bool:
        return False


class World:
    """One run. Create it inside the loop; `start` the services, then run the story."""

    def __init__(self, setup: Setup, *, seed: int = 0, faults: tuple[Fault, ...] = ()) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.loop = loop
        self.setup = setup
        self.seed = seed
        self.clock = WorldClock(loop)
        self.random: Random = SeededRandom(f"world-{seed}")
        self.injector = FaultInjector(faults, SeededRandom(f"latency-{seed}"), self.clock.now)
        self.injector.inject = WorldFaults(self).inject
        self.injector.sleep = loop.sleep
        self.injector.later = self._later
        self.injector.lasts = self.troubled_for
        self.core = a_core(self.clock.now, has_pod_groups=setup.has_pod_groups)
        self.kube = CoreKube(self.core, random=SeededRandom(f"user-{seed}"))
        self.server = FaultyServer(self.clock)
        self.server.absent = not setup.has_redis
        self.streams = MemoryStreams(self.server)
        self.kubelets = Kubelets(self.core, self.clock.now, SeededRandom(f"kubelet-{seed}"))
        self.kube_scheduler = KubeScheduler(self.core, SeededRandom(f"kube-scheduler-{seed}"))
        self.changes: list[tuple[float, str, Commit]] = []
        """(time, the process that wrote, the commit); the process is empty for the user, kubelets and controllers"""
        self.processes: dict[str, Process] = {}
        self.promises: list[Promise] = []
        self.broken: list[str] = []
        """The errors that ended processes, other than planned faults."""
        self.last_fault_at = 0.0
        self.stale: dict[str, int] = {}
        """{role: the version of the lagging API replica that its next process meets}"""
        self.behind: dict[str, BestEffortWriter] = {}
        """{role: its best-effort writes}"""
        self.apps: dict[str, tuple[Process, Any]] = {}
        """{role of an api: (the process, its application)}"""
        self.audits: dict[str, Any] = {}
        """{role of an api: its audit log}"""
        self.archived = MemoryObjects()
        """the archive of logs, when there is one"""
        self.answers: list[ClientRequest] = []
        """The answers that clients received."""
        self.canaries: list[Canary] = []
        self.restarts: list[RestartPeriod] = []
        """Restarts of all our services that must leave the allocations as they were."""
        self.healths: dict[str, ProcessHealth] = {}
        """{role: the health of its process}"""
        self._stops: dict[str, ServiceStop] = {}
        self._changed = asyncio.Event()
        self._generations: dict[str, int] = {}
        self._committed: dict[int, float] = {}
        self._outside = owned(None)
        loop.on_close = self._close
        self.core.subscribe(self._record)

    def _close(self) -> None:
        self.injector.is_closed = True

    async def start(self) -> None:
        """Furnish the cluster and start everything."""
        await furnish(self.kube, nodes=self.setup.nodes, cpus=self.setup.cpus)
        if self.setup.binding != "direct":
            await self.kube.patch(RESOURCE_POOLS, "default", {"spec": {"binding": self.setup.binding}})
            self.loop.create_task(self.kube_scheduler.run(), context=self._outside)
        self.loop.create_task(self.kubelets.run(), context=self._outside)
        for name, usual in SERVICES.items():
            for index in range(self.setup.replicas.get(name, usual)):
                self.spawn(name if index == 0 else f"{name}{index + 1}")

    # --- processes --------------------------------------------------------------------------------------------------

    def spawn(self, role: str) -> Process:
        """Start a new process with empty memory."""
        generation = self._generations[role] = self._generations.get(role, 0) + 1
        process = Process(role, generation, ProcessClock(self.loop))
        self.processes[role] = process
        process.clock.jump(self.setup.skew_s.get(role, 0.0))
        if role in self.stale:
            process.stale_version, process.stale_until = self.stale.pop(role), self.loop.time() + STALE_S
        self.loop.create_task(self._live(process), name=process.name, context=owned(process))
        return process

    def crash(self, process: Process) -> None:
        """`kill -9`; a new process starts after RESTART_S. A dead process is restarted only once."""
        if process.is_dead:
            return
        self.loop.kill(process)
        self.troubled_for(0.0)
        self.loop.call_later(RESTART_S, self.spawn, process.role, context=self._outside)

    async def restart(self, role: str) -> None:
        """SIGTERM: the process drains and ends, and is started anew."""
        process, stop = self.processes[role], self._stops.get(role)
        if process.is_dead or stop is None:
            return  # it restarts anyway
        stop.set()

        async def is_over() -> bool:
            return process.has_ended or process.is_dead

        await self.until(is_over)
        if process.has_ended:
            self.spawn(role)

    def freeze(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`."""
        self.loop.freeze(process)
        self.troubled_for(seconds)
        self.loop.call_later(seconds, self.thaw, process, context=self._outside)

    def thaw(self, process: Process) -> None:
        """SIGCONT."""
        if process.is_frozen:
            self.loop.thaw(process)
            self.troubled_for(0.0)

    def troubled_for(self, seconds: float) -> None:
        """Note that a fault lasts for `seconds` from now."""
        self.last_fault_at = max(self.last_fault_at, self.clock.now() + seconds)

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Call it after `seconds`, as no process."""
        self.loop.call_later(seconds, call, context=self._outside)

    def _later(self, seconds: float, call: Callable[[], Awaitable[Any]]) -> None:
        async def happen() -> None:
            with suppress(ControlPlaneError):
                await call()

        self.troubled_for(seconds)
        self.after(seconds, lambda: self.loop.create_task(happen(), context=self._outside))

    async def _live(self, process: Process) -> None:
        kube = ProcessKube(
            CoreKube(self.core, random=SeededRandom(f"{process.name}-{self.seed}"), logs=self.kubelets),
            process,
            self.injector,
        )
        streams: Any = ProcessStreams(MemoryStreams(self.server), process, self.injector)
        self.behind[process.role] = behind = BestEffortWriter(streams, process.clock, NoTally())
        kind = process.role.rstrip("0123456789")
        if kind == "watcher":
            kube.lag_s = dict(self.setup.lag_s)
            kube.committed_at = lambda version: self._committed.get(version, 0.0)
        try:
            async with TaskGroup() as tasks:
                context: ServiceContext[Any] = ServiceContext(
                    service=kind,
                    settings=self._settings(kind, process.name),
                    once=False,
                    clock=process.clock,
                    random=SeededRandom(f"{process.name}-{self.seed}"),
                    health=ProcessHealth(process.clock, exit_process=partial(self._exited, process)),
                    stop=ServiceStop(),
                    tasks=tasks,
                    resources=AsyncExitStack(),
                    address=ListenAddress("", 0),
                )
                match kind:
                    case "scheduler":
                        scheduler_main.compose(context, kube, streams)
                    case "podworker":
                        podworker_main.compose(context, kube, streams)
                    case "api":
                        self._serve(process, context, kube, streams)
                    case _:
                        archive = LogArchive(self.archived) if self.setup.is_whole else None
                        watcher_main.compose(context, kube, streams, behind, archive)
                if self.setup.is_whole:
                    self._start_the_rest(process, context, streams)
                self._stops[process.role] = context.stop
                self.healths[process.role] = context.health
                await context.stop.wait()
            process.has_ended = True
        except Exception as error:  # noqa: BLE001 - whatever ends a process that nobody killed is a finding
            self.end(process, f"{process.name} ended: {error!r} {getattr(error, 'exceptions', '')}")

    def _exited(self, process: Process, code: int) -> None:
        self.end(process, f"{process.name} exited with {code}: its work does not end")

    def _serve(self, process: Process, context: ServiceContext[Any], kube: ProcessKube, streams: Any) -> None:
        from slipway.api import main as api_main  # most runs have no api, and its import is slow

        api_main.compose(context, kube, streams, self.behind[process.role])
        self.apps[process.role] = (process, context.app)

    def _start_the_rest(self, process: Process, context: ServiceContext[Any], streams: Any) -> None:
        service.follow_certificate(context, _Certificate())
        match context.service:
            case "scheduler" | "podworker":
                context.tasks.create_task(write_behind(self.behind[process.role], context))
            case "watcher":
                watcher_main.follow_lag(context, streams)
            case _:
                from slipway.api import main as api_main
                from slipway.api.auth.ended_sessions import EndedSessions
                from slipway.api.auth.session import BrowserSessions, SealKeys
                from slipway.api.auth.token_auth import TokenAuth

                class NoTokens(TokenAuth):
                    """A folder without files: nothing of the simulation reads a disk."""

                    async def look(self) -> None:
                        self._records = {}

                class NoKeys(SealKeys):
                    """Keys without files."""

                    async def look(self) -> None:
                        pass

                ended = EndedSessions(streams.logouts, context.clock)
                keys, random = NoKeys(Path(), context.clock), context.random
                sessions = BrowserSessions(keys, ended, context.clock, random, domain="", life_s=60.0)
                api_main.follow_tokens(context, NoTokens(Path(), context.clock))
                api_main.follow_logins(context, sessions)

                class AuditReader:
                    """A reader that accepts everything."""

                    async def write(self, events: Any, *, id_: str) -> None:
                        await asyncio.sleep(0)

                self.audits[process.role] = api_main.follow_audit(context, AuditReader())

    def end(self, process: Process, why: str) -> None:
        """Record that a process ended by itself, which is a bug, and restart it as Kubernetes would."""
        self.broken.append(why)
        self.crash(process)

    def _settings(self, kind: str, identity: str) -> Any:
        redis_url = REDIS if self.setup.has_redis else ""
        match kind:
            case "scheduler":
                return SchedulerSettings(redis_url=redis_url, namespace=NAMESPACE, identity=identity)
            case "api":
                from slipway.api.settings import Settings as ApiSettings

                return ApiSettings(namespace=NAMESPACE, **self.setup.api)
            case "podworker":
                return PodworkerSettings(redis_url=redis_url, namespace=NAMESPACE, worker_identity=identity)
            case _:
                # Write no Events of Kubernetes: nothing waits for them, and each would be one more step to crash at.
                more: dict[str, Any] = {"kubernetes_events": False, **self.setup.watcher}
                return WatcherSettings(redis_url=redis_url, namespace=NAMESPACE, identity=identity, **more)

    # --- the user ---------------------------------------------------------------------------------------------------

    async def launch(self, name: str = "job", **spec: Any) -> Allocation:
        """Launch an allocation; the answer must be 2xx."""
        made = await launch(self.kube, name, **spec)
        self._promise("launched", made)
        return made

    async def apply(self, manifest: RawObject) -> Allocation:
        """Like `launch`, with a whole manifest."""
        made = await self.kube.create(ALLOCATIONS, manifest, namespace="default")
        self._promise("launched", made)
        return made

    async def cancel(self, name: str = "job") -> None:
        """Kill an allocation; the answer must be 2xx."""
        stopped = await self.kube.patch(ALLOCATIONS, name, {"spec": {"desired": "Stopped"}}, namespace="default")
        self._promise("cancelled", stopped)

    async def delete(self, name: str = "job") -> None:
        """`kubectl delete`."""
        found = await look(self.kube, name)
        await self.kube.delete(ALLOCATIONS, name, namespace="default")
        self._promise("deleted", found)

    async def delete_namespace(self) -> None:
        """`kubectl delete namespace` of the workspace, with all that is in it."""
        for found in (await self.kube.list(ALLOCATIONS, namespace="default")).items:
            self._promise("deleted", found)
        await self.kube.delete(NAMESPACES, "default")

    def _promise(self, kind: str, allocation: Allocation) -> None:
        meta = allocation.metadata
        self.promises.append(
            Promise(kind=kind, uid=meta.uid, name=meta.name, version=meta.version, at=self.clock.now())
        )

    async def when(
        self, condition: Callable[[Allocation], object], *, name: str = "job", timeout_s: float = 180.0
    ) -> Allocation:
        """Return the allocation at the first version for which `condition` is true; it is checked after every
        commit."""
        begun = self.clock.now()
        while True:
            self._changed.clear()
            found = await look(self.kube, name)
            if condition(found):
                return found
            await self._next(begun, timeout_s)

    async def created(self, resource: str, *, timeout_s: float = 180.0) -> None:
        """Wait until an object of that plural exists; return in the same instant."""
        begun = self.clock.now()
        while not any(change.resource == resource for _, _, change in self.changes):
            self._changed.clear()
            await self._next(begun, timeout_s)

    async def until(self, condition: Callable[[], Awaitable[object]], *, timeout_s: float = 180.0) -> None:
        """Poll until `condition` is true."""
        begun = self.clock.now()
        while not await condition():
            if self.clock.now() > max(begun, self.last_fault_at) + timeout_s:
                raise TimeoutError
            await asyncio.sleep(0.1)

    async def _next(self, begun: float, timeout_s: float) -> None:
        """Wait for the next commit. Raises TimeoutError when `timeout_s` have passed since both `begun` and the last
        fault."""
        while not self._changed.is_set():
            left_s = max(begun, self.last_fault_at) + timeout_s - self.clock.now()
            if left_s <= 0:
                raise TimeoutError
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()

    # --- the records -------------------------------------------------------------------------------------------

    def _record(self, change: Commit) -> None:
        owner = OWNER.get()
        self.changes.append((self.clock.now(), owner.name if owner is not None else "", change))
        self._committed[change.version] = self.loop.time()
        self._changed.set()


def run_world(
    play: Callable[[World], Awaitable[Any]],
    setup: Setup,
    *,
    seed: int = 0,
    faults: tuple[Fault, ...] = (),
    loop: SimLoop | None = None,
) -> Any:
    """Run one story from its start, on `loop` if one is given."""
    loop = loop or SimLoop(seed)

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
