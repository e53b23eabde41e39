"""Writes the status of pods and Events about them to the API server.

Only the newest status of a pod is written, with the last seen resource version, and the write is retried until one
succeeds. Knows nothing of containers: a callback builds the status for each write. Invariant: an unchanged status is
not written.

Events say why a pod cannot start, as those of a kubelet do. Best effort: a failed write is not retried. Each text is
written once per pod, and a pod gets at most `TEXTS_MAX` texts.
"""

import asyncio
from collections.abc import Callable

import msgspec

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import objects_of
from slipway.errors import ControlPlaneError, NotFoundError, PermanentError, StaleError, TransientError
from slipway.kube.ports import KubeApi
from slipway.kube.resources import EVENTS
from slipway.local.node.podview import PODS, NodePod
from slipway.model.times import format_time
from slipway.runtime import log, retry
from slipway.runtime.clock import Clock, Random

_log = log.get_logger(__name__)

NODE_WRITE = retry.RetryPolicy(name="node_write", attempts_max=1000, total_s=600.0, first_s=0.05, cap_s=2.0)
"""Retries of a node's own writes. The API server is on the same machine, and is restarted soon after it ends."""

Build = Callable[[NodePod], RawObject]


class StatusWriter:
    """Writes the status that `build` returns, after each call of `changed`."""

    def __init__(self, kube: KubeApi, pod: NodePod, build: Build, *, clock: Clock, random: Random) -> None:
        self.pod = pod
        self._kube = kube
        self._build = build
        self._clock = clock
        self._random = random
        self._wanted = 0
        self._written = 0
        self._dirty = asyncio.Event()
        self._progress = asyncio.Event()
        self._is_gone = False

    def observe(self, pod: NodePod) -> None:
        """Store a version of the object, unless it is older than the last seen version.

        When another writer has made the pod unready, the node's own status is written again.
        """
        if pod.metadata.version >= self.pod.metadata.version:
            is_denied = _is_ready(self.pod) and not _is_ready(pod)
            self.pod = pod
            if is_denied:
                self.changed()

    def changed(self) -> None:
        """Request a write, because the status may have changed."""
        self._wanted += 1
        self._dirty.set()

    def on_deleted(self) -> None:
        """Stop writing, because the object is deleted."""
        self._is_gone = True
        self._dirty.set()
        self._tell()

    async def flush(self) -> None:
        """Wait until all writes requested so far are done, or the object is deleted."""
        goal = self._wanted
        while self._written < goal and not self._is_gone:
            await self._progress.wait()

    async def run(self) -> None:
        """Write until cancelled, or until the object is deleted."""
        while not self._is_gone:
            await self._dirty.wait()
            self._dirty.clear()
            goal = self._wanted
            try:
                await retry.call(NODE_WRITE, self._write, clock=self._clock, random=self._random)
            except NotFoundError:
                self.on_deleted()
            except TransientError as error:
                _log.warning("pod status not written yet", pod=self.pod.metadata.name, error=str(error))
                self._dirty.set()
                continue
            except PermanentError as error:
                _log.error("pod status refused", pod=self.pod.metadata.name, error=str(error))
            self._written = goal
            self._tell()

    async def _write(self) -> None:
        """Write the current status once. Raises: NotFoundError when this pod is deleted."""
        while not self._is_gone:
            pod = self.pod
            status = self._build(pod)
            if status == pod.status:
                return
            try:
                self.observe(await self._kube.replace_status(PODS, msgspec.structs.replace(pod, status=status)))
                return
            except StaleError:
                meta = pod.metadata
                fresh = await self._kube.get(PODS, meta.name, namespace=meta.namespace)
                if fresh.metadata.uid != meta.uid:
                    raise NotFoundError(f"pod {meta.name} was replaced by another pod of the same name") from None
                self.observe(fresh)

    def _tell(self) -> None:
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()


def _is_ready(pod: NodePod) -> bool:
    conditions = objects_of(pod.status.get("conditions"))
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


TEXTS_MAX = 16
WRITE_S = 5.0
_MESSAGE_CHARS_MAX = 1024


class PodEventWriter:
    """Writes the Events of one pod."""

    def __init__(self, kube: KubeApi, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._said: set[tuple[str, str]] = set()

    async def warn(self, pod: NodePod, reason: str, message: str) -> None:
        """Write a warning Event about a reason that prevents the pod's start, once per reason and message."""
        if (reason, message) in self._said or len(self._said) >= TEXTS_MAX:
            return
        self._said.add((reason, message))
        now = self._clock.now()
        stamp = format_time(now, "seconds")
        meta = pod.metadata
        body = {
            "metadata": {"name": f"{meta.name}.{int(now * 1_000_000):x}", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
            "reason": reason,
            "message": message[:_MESSAGE_CHARS_MAX],
            "type": "Warning",
            "source": {"component": "kubelet", "host": pod.node},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            async with asyncio.timeout(WRITE_S):
                await self._kube.create(EVENTS, body, namespace=meta.namespace)
        except (ControlPlaneError, TimeoutError) as error:
            _log.info("event not written", pod=meta.name, reason=reason, error=str(error))
