"""What Kubernetes says about our pods (its Events) -> lines in their logs, for people.

Best effort: only what comes while this runs, each once per watch; nothing depends on it. Holds nothing in memory.
"""

from contextlib import aclosing
from typing import Protocol, cast

from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.errors import ControlPlaneError, InvariantError
from slipway.kube.objects import KubeEvent
from slipway.kube.ports import KubeReader, WatchType
from slipway.kube.resources import EVENTS
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.watcher.podlogs import event_line
from slipway.watcher.ports import LineSink
from slipway.watcher.world import World

RETRY_S = 10.0

_log = log.get_logger(__name__)


class _Closable(Protocol):
    async def aclose(self) -> None: ...


class PodEvents:
    """Follows the Events of pods."""

    def __init__(self, reader: KubeReader, sink: LineSink, world: World, clock: Clock) -> None:
        self._reader = reader
        self._sink = sink
        self._world = world
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled. Raises InvariantError only."""
        while True:
            try:
                await self._watch()
            except InvariantError:
                raise
            except ControlPlaneError as error:
                _log.debug("events interrupted", error=str(error))
            await self._clock.sleep(RETRY_S)

    async def _watch(self) -> None:
        start = (await self._reader.list(EVENTS, limit=1)).resource_version
        watch = self._reader.watch(EVENTS, resource_version=start)
        async with aclosing(cast("_Closable", watch)):
            async for event in watch:
                if event.object is not None and event.type is not WatchType.DELETED:
                    self._tell(event.object)

    def _tell(self, event: KubeEvent) -> None:
        about = event.involved_object
        pod = self._world.pods.by_uid(about.uid) if about.kind == "Pod" else None
        if pod is None or LABEL_ALLOCATION_UID not in pod.metadata.labels:
            return
        allocation, line = event_line(pod, f"{event.reason}: {event.message}", self._clock.now())
        self._sink.offer_line(allocation, line)
