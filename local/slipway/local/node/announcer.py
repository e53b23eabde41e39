"""Events that a node writes about its pods, as a kubelet does: the reason why a pod cannot start.

Owns the form of the Events. Best effort: a failed write is not retried. Each text is written once per pod, and a pod
gets at most `TEXTS_MAX` texts.
"""

import asyncio

from slipway.errors import ControlPlaneError
from slipway.kube.ports import KubeApi
from slipway.kube.resources import EVENTS
from slipway.local.node.podview import NodePod
from slipway.model.times import format_time
from slipway.runtime import log
from slipway.runtime.clock import Clock

TEXTS_MAX = 16
WRITE_S = 5.0
_MESSAGE_CHARS_MAX = 1024

_log = log.get_logger(__name__)


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
