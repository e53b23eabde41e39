"""One pod on a node, from its binding to its end.

Owns the order of the steps: admit, prepare, init containers, containers, end, confirmed deletion. Other modules handle
files, processes, names and statuses.

Promises: a container is never started twice for the same restart count, even if the node's process dies; a deletion is
confirmed only after every process has stopped; a container that is reported as terminated no longer runs.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from slipway.crd.meta import RawObject
from slipway.errors import ControlPlaneError, InvariantError, NotFoundError, StaleError, TransientError
from slipway.kube.ports import KubeApi
from slipway.kube.scope import run_until
from slipway.local.node import containers
from slipway.local.node.capacity import Capacity, Shortage
from slipway.local.node.containers import PodVerdict, WaitingState
from slipway.local.node.disk import PodDisk
from slipway.local.node.environment import NotConfiguredError, PodPlace
from slipway.local.node.logs import ContainerLog
from slipway.local.node.names import Addresses, PeerNames, RendezvousPorts
from slipway.local.node.podview import PODS, NodePod
from slipway.local.node.preparation import Fetched, fetch
from slipway.local.node.runs import PodContainers
from slipway.local.node.tokens import keep_renewed
from slipway.local.node.writer import NODE_WRITE, PodEventWriter, StatusWriter
from slipway.model.times import parse_time
from slipway.runtime import log, retry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.tasks import TaskGroup

ORPHAN_GRACE_S = 2.0
"""Grace period in seconds of a pod whose object is already deleted, as with a kubelet."""
ROOM_WAIT_S = 5.0
"""Maximum seconds that a pod waits for another pod to end and release its resources."""
PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 2.0

_log = log.get_logger(__name__)


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that all pods of a node share."""

    kube: KubeApi
    clock: Clock
    random: Random
    folder: Path
    """The folder of all pods."""
    host_ip: str
    capacity: Capacity
    addresses: Addresses
    peers: PeerNames
    ports: RendezvousPorts


class PodRun:
    """One pod. `observe` and `on_deleted` report changes of its object; `run` lasts as long as the pod."""

    def __init__(self, pod: NodePod, kit: NodeContext, *, on_end: Callable[[], object] = lambda: None) -> None:
        self.uid = pod.metadata.uid
        self.disk = PodDisk(kit.folder, self.uid)
        self._kit = kit
        self._on_end = on_end
        self._is_known = not self.disk.is_new
        self._was_over = pod.is_over
        ip = kit.addresses.claim(self.uid, str(pod.status.get("podIP") or ""))
        self._place = PodPlace(pod_ip=ip, host_ip=kit.host_ip, allocatable=kit.capacity.allocatable)
        self._writer = StatusWriter(kit.kube, pod, self._status, clock=kit.clock, random=kit.random)
        self.runs = PodContainers(
            pod,
            self.disk,
            self._place,
            kit.peers,
            ports=kit.ports,
            clock=kit.clock,
            on_change=self._writer.changed,
        )
        self._announcer = PodEventWriter(kit.kube, kit.clock)
        self._leaving = asyncio.Event()
        self._dismissed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._gone = asyncio.Event()
        self._kill_at = 0.0
        self._verdict: PodVerdict | None = None
        self._is_rejected = False
        self.is_closing = False
        self._started_at = _started_at(pod) or kit.clock.now()

    @property
    def pod(self) -> NodePod:
        """The last seen version of the object."""
        return self._writer.pod

    def log_of(self, container: str) -> ContainerLog | None:
        """Return the log of a running container, else None."""
        return self.runs.log_of(container)

    def waiting(self, container: str) -> str | None:
        """Return the reason why the container waits, or None when it does not wait."""
        state = next(each.state for each in self.runs.containers if each.name == container)
        return state.reason if isinstance(state, WaitingState) and not self._was_over else None

    def observe(self, pod: NodePod) -> None:
        """Handle a change of the object."""
        self._writer.observe(pod)
        if pod.is_deleting:
            self._dismissed.set()
        if pod.is_deleting or (pod.is_over and self.runs.is_running):
            # Another writer, such as a garbage collector, may report the pod as over; then its processes must end.
            self._leave(pod.grace_s)

    def on_deleted(self) -> None:
        """Handle the deletion of the object."""
        self._writer.on_deleted()
        self._gone.set()
        self._dismissed.set()
        self._leave(ORPHAN_GRACE_S)

    def shut_down(self, grace_s: float) -> None:
        """End the pod within `grace_s`, because the node stops."""
        self.is_closing = True
        if not self.pod.is_over and not self.runs.is_closed and not self._gone.is_set():
            message = "Pod was terminated in response to imminent node shutdown."
            self._verdict = PodVerdict(reason="Terminated", message=message, is_failed=True, is_disruption=True)
        self._leave(min(grace_s, self.pod.grace_s))
        self._gone.set()
        self._dismissed.set()

    @property
    def is_live(self) -> bool:
        """Whether processes of the pod may run."""
        return not self._was_over and not self.runs.is_closed

    async def run(self) -> None:
        """Run the pod to its end, then wait until its object is deleted."""
        with log.bind(pod=self.pod.metadata.name, uid=self.uid):
            self.observe(self.pod)
            async with TaskGroup() as tasks:
                writing = tasks.create_task(self._writer.run())
                await self._live()
                writing.cancel()

    async def _live(self) -> None:
        if not self._was_over:
            if not self._leaving.is_set():
                await run_until(self._leaving, self._last())
            await self._end()
        self._kit.capacity.release(self.uid)
        self._on_end()
        await self._dismissed.wait()
        await self._writer.flush()
        if not self.is_closing and not self._is_confirmed:
            await self._confirm()
        await self._gone.wait()

    async def _last(self) -> None:
        """Run the pod until its last container has ended or its deadline has passed."""
        limit = self.pod.spec.get("activeDeadlineSeconds")
        left = None if limit is None else float(limit) + self._started_at - self._kit.clock.now()
        deadline = asyncio.timeout(left)
        try:
            async with deadline:
                await self._work()
        except TimeoutError:
            if not deadline.expired():
                raise
            message = "Pod was active on the node longer than the specified deadline"
            self._verdict = PodVerdict(reason="DeadlineExceeded", message=message, is_failed=True)

    async def _work(self) -> None:
        shortage = await self._enter()
        if shortage is not None:
            self._verdict = PodVerdict(reason=shortage.reason, message=shortage.message, is_failed=True)
            self._is_rejected = True
            return
        bundles = await self._prepared()
        kit, are_fresh = self._kit, not self._is_known
        renewing = asyncio.ensure_future(keep_renewed(kit.kube, self.pod, self.disk, kit.clock, are_fresh=are_fresh))
        try:
            await self.runs.run(bundles, again=partial(self._fetched_again, bundles), warn=self._warn)
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})

    async def _enter(self) -> Shortage | None:
        """Admit the pod and return None, or return the shortage. Waits up to `ROOM_WAIT_S` while another pod ends."""
        capacity, clock = self._kit.capacity, self._kit.clock
        try:
            asks = self.pod.asks()
        except ValueError as error:
            return Shortage(reason="UnexpectedAdmissionError", message=str(error))
        if self._is_known:
            capacity.hold(self.uid, asks)
            return None
        until = clock.monotonic() + ROOM_WAIT_S
        while True:
            shortage = capacity.admit(self.uid, asks)
            if shortage is None or not capacity.is_leaving or clock.monotonic() > until:
                return shortage
            await clock.sleep(PAUSE_MIN_S)

    async def _prepared(self) -> Fetched:
        """Fill the volumes and return the ConfigMaps and Secrets. Waits until all exist, as a kubelet does."""
        pause_s = PAUSE_MIN_S
        while True:
            try:
                self.disk.make()
                bundles = await fetch(self._kit.kube, self.pod)
                self.disk.fill(self.pod, self._place, bundles)
                return bundles
            except NotConfiguredError as error:
                self._writer.changed()
                await self._warn(error.reason, str(error))
            except (ControlPlaneError, OSError, ValueError, TypeError) as error:
                if isinstance(error, InvariantError):
                    raise
                self.runs.wait_all(WaitingState(reason="ContainerCreating", message=f"not prepared yet: {error}"))
                _log.warning("pod not prepared yet", error=str(error))
            await self._kit.clock.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, pause_s * 2)

    async def _fetched_again(self, known: Fetched) -> Fetched:
        """Return the current ConfigMaps and Secrets, or `known` while the API server does not answer."""
        try:
            return await fetch(self._kit.kube, self.pod)
        except TransientError:
            return known

    async def _warn(self, reason: str, message: str) -> None:
        await self._announcer.warn(self.pod, reason, message)

    async def _end(self) -> None:
        """End every process: by SIGTERM, and by SIGKILL after the grace period."""
        self.runs.signal(signal.SIGTERM)
        if not self._leaving.is_set():
            self._kill_at = self._kit.clock.monotonic() + self.pod.grace_s
        while self.runs.is_running:
            left_s = self._kill_at - self._kit.clock.monotonic()
            if left_s <= 0:
                self.runs.signal(signal.SIGKILL)
                await self.runs.ended()
                break
            self._hurry.clear()
            await _first(self.runs.ended(), self._hurry.wait(), timeout_s=left_s)
        self.runs.close()
        if self.pod.is_deleting and not self.runs.is_over and self._verdict is None:
            self._verdict = PodVerdict(is_failed=True)
        self._writer.changed()

    async def _confirm(self) -> None:
        """Delete the object with grace 0, because no process of the pod runs any more."""
        meta = self.pod.metadata

        async def delete() -> None:
            await self._kit.kube.delete(PODS, meta.name, namespace=meta.namespace, uid=self.uid, grace_s=0)

        while not self._gone.is_set():
            try:
                await retry.call(NODE_WRITE, delete, clock=self._kit.clock, random=self._kit.random)
                return
            except (NotFoundError, StaleError):
                return
            except TransientError as error:
                _log.warning("deletion not confirmed yet", error=str(error))

    @property
    def _is_confirmed(self) -> bool:
        """Whether the deletion is already confirmed, so that only finalizers can delay it."""
        return self.pod.is_over and self.pod.metadata.deletion_grace_period_seconds == 0

    def _leave(self, grace_s: float) -> None:
        """Make the pod end within `grace_s` from now; a later call can only shorten this time."""
        at = self._kit.clock.monotonic() + grace_s
        if not self._leaving.is_set() or at < self._kill_at:
            self._kill_at = at
            self._leaving.set()
            self._kit.capacity.leaving(self.uid)
            self._hurry.set()

    def _status(self, pod: NodePod) -> RawObject:
        now = self._kit.clock.now()
        if self._is_rejected and self._verdict is not None:
            return containers.rejected(pod, self._verdict, now)
        is_final = self.runs.is_closed
        return containers.status_of(
            pod,
            self.runs.containers,
            pod_ip=self._place.pod_ip,
            host_ip=self._place.host_ip,
            started_at=self._started_at,
            now=now,
            verdict=self._verdict if is_final else None,
            is_final=is_final,
        )


async def _first(*waits: Coroutine[Any, Any, object], timeout_s: float) -> None:
    """Wait until one of `waits` returns, or until the timeout; then cancel the others."""
    async with TaskGroup() as tasks:
        running = [tasks.create_task(wait) for wait in waits]
        await asyncio.wait(running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()


def _started_at(pod: NodePod) -> float | None:
    text = pod.status.get("startTime")
    return parse_time(str(text)) if text else None
