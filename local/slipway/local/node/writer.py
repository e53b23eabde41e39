"""The status of one pod on its way to the API server.

Owns the writing: the newest status only, under the version that was seen last, for as long as it takes. Knows nothing
of containers: it asks for the status when it writes. Invariant: a status that says nothing new is not written.
"""

import asyncio
from collections.abc import Callable

import msgspec

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import objects_of
from slipway.errors import NotFoundError, PermanentError, StaleError, TransientError
from slipway.kube.ports import KubeApi
from slipway.local.node.podview import PODS, NodePod
from slipway.runtime import log, retry
from slipway.runtime.clock import Clock, Random

_log = log.get_logger(__name__)

NODE_WRITE = retry.RetryPolicy(name="node_write", attempts_max=1000, total_s=600.0, first_s=0.05, cap_s=2.0)
"""A node's own writes: the API server is on the same machine, and is back soon after it is gone."""

Build = Callable[[NodePod], RawObject]


class StatusWriter:
    """Writes what `build` says of the pod each time that `changed` was called."""

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
        """A version of the object that somebody saw; whether the pod is ready, nobody else says for long."""
        if pod.metadata.version >= self.pod.metadata.version:
            is_denied = _is_ready(self.pod) and not _is_ready(pod)
            self.pod = pod
            if is_denied:
                self.changed()

    def changed(self) -> None:
        """There may be something new to say."""
        self._wanted += 1
        self._dirty.set()

    def vanish(self) -> None:
        """The object is gone: nothing is written any more."""
        self._is_gone = True
        self._tell()

    async def flush(self) -> None:
        """Returns once everything that was to be said at this moment has been written, or cannot be."""
        goal = self._wanted
        while self._written < goal and not self._is_gone:
            await self._progress.wait()

    async def run(self) -> None:
        """Writes until it is cancelled."""
        while not self._is_gone:
            await self._dirty.wait()
            self._dirty.clear()
            goal = self._wanted
            try:
                await retry.call(NODE_WRITE, self._write, clock=self._clock, random=self._random)
            except NotFoundError:
                self.vanish()
            except TransientError as error:
                _log.warning("pod status not written yet", pod=self.pod.metadata.name, error=str(error))
                self._dirty.set()
                continue
            except PermanentError as error:
                _log.error("pod status refused", pod=self.pod.metadata.name, error=str(error))
            self._written = goal
            self._tell()

    async def _write(self) -> None:
        """Raises: NotFoundError when this very pod is gone."""
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
                    raise NotFoundError(f"pod {meta.name} is another one now") from None
                self.observe(fresh)

    def _tell(self) -> None:
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()


def _is_ready(pod: NodePod) -> bool:
    conditions = objects_of(pod.status.get("conditions"))
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
