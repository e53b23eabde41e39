"""All local nodes of this process: one watch of pods, and one `PodRun` for each pod that is bound to them.

Owns the pods' runs, the registration of the nodes and their heartbeat, and the leftovers of an earlier process. Knows
no container.

Promises: after the deletion of a pod's object the pod is ended and its folder removed; at the start, a folder without a
pod is removed with every process that still belongs to it; on `stop` every pod ends within `STOP_GRACE_S`.

Processes that left the process group of their pod are found by the pod's folders in their environment, and killed.
Linux only: other systems have no `/proc`, so there only process groups are ended. Invariant: only processes whose HOME
or TMPDIR is below the given folder are killed. TMPDIR is checked too, because sshd sets another HOME for its sessions.
"""

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from pathlib import Path

from slipway.crd.roleresources import object_of
from slipway.errors import ControlPlaneError, InvalidError, NotFoundError, StaleError, TransientError
from slipway.kube.ports import KubeApi
from slipway.kube.reflector import Reflector
from slipway.kube.scope import StopSignal
from slipway.kube.store import ObjectStore
from slipway.local.node.capacity import Capacity
from slipway.local.node.disk import PodDisk, remove_sockets
from slipway.local.node.endpoint import LogEndpoint
from slipway.local.node.logs import LogQuery, read
from slipway.local.node.names import Addresses, PeerNames, RendezvousPorts
from slipway.local.node.pod import NodeContext, PodRun
from slipway.local.node.podview import PODS, NodePod
from slipway.local.node.preparation import NotStartedError
from slipway.local.node.registration import (
    HOST_IP,
    PREFIX,
    RENEW_S,
    NodeShape,
    node_manifest,
    register,
    renew,
    report,
    retire,
)
from slipway.local.node.shim import Program, Shim
from slipway.runtime import log
from slipway.runtime.clock import Clock, Random
from slipway.runtime.tasks import TaskGroup

_PROC = Path("/proc")


def kill_orphans(pods: Path, *, spare: Callable[[str], bool] = lambda _uid: False) -> int:
    """Kill the processes of pods below `pods`, except pods for which `spare(uid)` is true. Return the number of kills.

    O(processes of the machine).
    """
    marks = tuple(name + os.fsencode(pods) + b"/" for name in (b"HOME=", b"TMPDIR="))
    count = 0
    for entry in _PROC.iterdir() if (_PROC / "self" / "environ").exists() else ():
        uid = _pod_of(entry, marks) if entry.name.isdigit() else None
        if uid is not None and not spare(uid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
                count += 1
    return count


def _pod_of(entry: Path, marks: tuple[bytes, ...]) -> str | None:
    """Return the uid of the pod that a process belongs to, or None."""
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:  # a process of another account, or one that has ended
        return None
    if not any(mark in environment for mark in marks):  # nearly always; much faster than the list of variables
        return None
    for item in environment.split(b"\0"):
        for mark in marks:
            if item.startswith(mark):
                return os.fsdecode(item[len(mark) :].split(b"/", 1)[0])
    return None


STOP_GRACE_S = 5.0
STOP_WAIT_S = 3.0
"""Seconds after the grace period for writing the last statuses."""
REGISTER_PAUSE_S = 0.05
SWEEP_S = 2.0

_log = log.get_logger(__name__)


class Kubelet:
    """The nodes `node-0`, `node-1` and so on (or with another prefix), with their state below `folder`."""

    def __init__(
        self,
        kube: KubeApi,
        folder: Path,
        *,
        nodes: int,
        shape: NodeShape,
        clock: Clock,
        random: Random,
        tls: ssl.SSLContext | None = None,
        prefix: str = PREFIX,
    ) -> None:
        self._kube = kube
        self._pods = folder / "pods"
        self._shape = shape
        self._clock = clock
        self._random = random
        self._addresses = Addresses()
        self._peers = PeerNames()
        self._ports = RendezvousPorts()
        self._prefix = prefix
        self._names = [f"{prefix}-{index}" for index in range(nodes)]
        allocatable = shape.resources()
        self._kits = {name: self._kit(Capacity(allocatable)) for name in self._names}
        self._runs: dict[str, PodRun] = {}
        self._tasks: TaskGroup | None = None
        self._pods_running: set[asyncio.Task[None]] = set()
        self._endpoint = LogEndpoint(self, clock, random, tls=tls)
        self._swept_for = asyncio.Event()
        self._store: ObjectStore[NodePod] = ObjectStore()
        self._store.on_change(self._on_change)

    async def run(self, stop: StopSignal) -> None:
        """Run pods until `stop` is set, then end them."""
        self._pods.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._endpoint.start()
        async with TaskGroup() as tasks:
            self._tasks = tasks
            reflector = Reflector(self._kube, PODS, self._store, clock=self._clock, random=self._random)
            watching = tasks.create_task(self._watch(reflector, stop))
            idle = [tasks.create_task(self._beat()), tasks.create_task(self._sweep())]
            await stop.wait()
            for task in idle:
                task.cancel()
            await self._end_pods()
            watching.cancel()
        await self._endpoint.close()
        await asyncio.to_thread(remove_sockets, self._pods.parent)

    def uid_of(self, namespace: str, name: str) -> str:
        """Return the uid of our pod with that name. Raises: NotFoundError."""
        for uid, run in self._runs.items():
            if (run.pod.metadata.namespace, run.pod.metadata.name) == (namespace, name):
                return uid
        raise NotFoundError(f'pod "{name}" does not exist')

    def lines(self, uid: str, container: str, query: LogQuery, *, previous: bool) -> AsyncGenerator[bytes, None]:
        """Return the log of one container. Raises: NotFoundError or InvalidError."""
        run = self._runs.get(uid)
        if run is None:
            raise NotFoundError(f"pod {uid} is not on this node")
        pod = run.pod
        names = [str(each.get("name")) for each in (*pod.containers, *pod.init_containers)]
        name = container or names[0]
        if name not in names:
            raise InvalidError(f"container {name} is not valid for pod {pod.metadata.name}")
        whose = f'container "{name}" in pod "{pod.metadata.name}"'
        waiting = run.waiting(name)
        # Between two runs of a container, the last ended run is both the current and the previous run.
        number = run.disk.starts(name) - 1 - (previous and waiting is None)
        if number >= 0:
            return read(run.disk.logs(name, number), query, None if previous else run.log_of(name))
        if previous:
            raise InvalidError(f"previous terminated {whose} not found")
        reported = pod.reported(name)
        if pod.is_over and not reported:
            raise InvalidError(f"{whose} is not available")
        if "terminated" in reported:
            identity = object_of(reported["terminated"]).get("containerID")
            return _lost(str(identity)) if identity else read(run.disk.logs(name, 0), query)
        if waiting is None and pod.is_over:
            waiting = str(object_of(reported.get("waiting")).get("reason") or "")
        raise InvalidError(f"{whose} is waiting to start: {waiting or 'ContainerCreating'}")

    def exec_program(self, uid: str, container: str, command: Sequence[str]) -> tuple[Program, Shim]:
        """Return a command for one container, and the container's program. Raises: NotFoundError or InvalidError."""
        run = self._runs.get(uid)
        if run is None:
            raise NotFoundError(f"pod {uid} is not on this node")
        try:
            found = run.runs.exec_program(container, command)
        except NotStartedError as error:
            raise InvalidError(f"failed to exec in container: {error}") from error
        if found is None:
            raise NotFoundError(f'unable to upgrade connection: container not found ("{container}")')
        return found

    # --- pods ---------------------------------------------------------------------------------------------------

    def _kit(self, capacity: Capacity) -> NodeContext:
        return NodeContext(
            kube=self._kube,
            clock=self._clock,
            random=self._random,
            folder=self._pods,
            host_ip=HOST_IP,
            capacity=capacity,
            addresses=self._addresses,
            peers=self._peers,
            ports=self._ports,
        )

    def _on_change(self, old: NodePod | None, new: NodePod | None) -> None:
        if new is None:
            if old is not None:
                self._gone(old)
            return
        ours = not new.node or new.node in self._kits
        if new.subdomain or new.node in self._kits:
            known = str(new.status.get("podIP") or "")
            address = self._addresses.claim(new.metadata.uid, known) if ours else known
            self._peers.put(new, address)
        run = self._runs.get(new.metadata.uid)
        if run is not None:
            run.observe(new)
        elif new.node in self._kits and self._tasks is not None:
            run = PodRun(new, self._kits[new.node], on_end=self._swept_for.set)
            self._runs[run.uid] = run
            task = self._tasks.create_task(self._live(run))
            self._pods_running.add(task)
            task.add_done_callback(self._pods_running.discard)

    async def _sweep(self) -> None:
        """End processes that left their pod's process group, `SWEEP_S` after a pod's end: one search for many pods."""
        while True:
            await self._swept_for.wait()
            await self._clock.sleep(SWEEP_S)
            self._swept_for.clear()
            count = await asyncio.to_thread(kill_orphans, self._pods, spare=self._is_live)
            if count:
                _log.info("stray processes ended", count=count)

    def _is_live(self, uid: str) -> bool:
        run = self._runs.get(uid)
        return run is not None and run.is_live

    def _gone(self, pod: NodePod) -> None:
        self._peers.drop(pod)
        run = self._runs.get(pod.metadata.uid)
        if run is not None:
            run.on_deleted()
        else:
            self._addresses.release(pod.metadata.uid)

    async def _live(self, run: PodRun) -> None:
        await run.run()
        if run.is_closing:
            return
        del self._runs[run.uid]
        self._addresses.release(run.uid)
        self._ports.release(run.uid)
        await asyncio.to_thread(run.disk.remove)

    async def _end_pods(self) -> None:
        self._tasks = None  # from now on no pod starts
        for run in self._runs.values():
            run.shut_down(STOP_GRACE_S)
        if self._pods_running:
            _, late = await asyncio.wait(set(self._pods_running), timeout=STOP_GRACE_S + STOP_WAIT_S)
            for task in late:
                task.cancel()
        await asyncio.to_thread(kill_orphans, self._pods)

    # --- the nodes themselves -----------------------------------------------------------------------------------

    async def _watch(self, reflector: Reflector[NodePod], stop: StopSignal) -> None:
        # The folders are listed before the first pod starts, because later folders are not leftovers.
        left = {entry.name for entry in self._pods.iterdir()}
        await self._register()
        async with TaskGroup() as tasks:
            tasks.create_task(reflector.run(stop))
            await reflector.wait_synced()
            await asyncio.to_thread(_clear, self._pods, left - self._runs.keys())
            self._swept_for.set()

    async def _register(self) -> None:
        """Register the nodes. Retries until the API server answers, because both may start at the same time."""
        while True:
            try:
                for index, name in enumerate(self._names):
                    now = self._clock.now()
                    manifest = node_manifest(
                        name, index, self._shape, log_endpoint=self._endpoint.url, port=self._endpoint.port, now=now
                    )
                    await register(self._kube, manifest)
                await retire(self._kube, self._prefix, keep=set(self._names))
                break
            except (TransientError, StaleError):
                await self._clock.sleep(REGISTER_PAUSE_S)
        _log.info("nodes registered", nodes=len(self._names))

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(RENEW_S)
            for name in self._names:
                try:
                    await renew(self._kube, name, self._clock)
                    await report(self._kube, name, self._clock)
                except ControlPlaneError as error:
                    _log.warning("node heartbeat failed", node=name, error=str(error))


async def _lost(identity: str) -> AsyncGenerator[bytes]:
    """Yield the text that a kubelet answers with code 200 when the container no longer exists."""
    yield f"unable to retrieve container logs for {identity}".encode()


def _clear(folder: Path, uids: Set[str]) -> None:
    for uid in uids:
        PodDisk(folder, uid).remove()
