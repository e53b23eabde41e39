"""Sends hints to the pod worker and wake-ups to the scheduler: derived from the objects, lossy, repeated.

Owns when a hint was last sent, and for which version. A lost hint costs at most one resync interval; a superfluous hint
costs the pod worker one read.
"""

import asyncio

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import TransientError
from slipway.kube.tracing import traceparent_of
from slipway.runtime import liveness
from slipway.runtime.clock import Clock
from slipway.streams import keys
from slipway.streams.ports import WorkHint
from slipway.streams.producer import hint_traceparent
from slipway.watcher.ports import HintSink, WakeSink

RESEND_S = 15.0
_BATCH_MAX = 512


class HintSender:
    """Sends each hint once per version of its object, and again after `RESEND_S`."""

    def __init__(self, hints: HintSink, clock: Clock) -> None:
        self._hints = hints
        self._clock = clock
        self._sent: dict[str, tuple[int, float]] = {}
        """{uid: (version, monotonic time)}"""
        self._waiting: dict[str, WorkHint] = {}
        self._something = asyncio.Event()

    def offer(self, allocation: Allocation) -> None:
        """Queue a hint: the pod worker has something to do for the allocation."""
        uid, version = allocation.metadata.uid, allocation.metadata.version
        moment = self._clock.monotonic()
        said_version, said_at = self._sent.get(uid, (-1, 0.0))
        if version <= said_version and moment - said_at < RESEND_S:
            return
        self._sent[uid] = (version, moment)
        self._waiting[uid] = WorkHint(
            namespace=allocation.metadata.namespace,
            allocation=id_of(allocation),
            traceparent=_cause(allocation, is_news=version > said_version),
        )
        self._something.set()

    def forget(self, uid: str) -> None:
        """Forget an allocation that is gone, or at rest."""
        self._sent.pop(uid, None)
        self._waiting.pop(uid, None)

    def forget_all(self) -> None:
        """Forget what was sent, because it is lost: the next offer of each allocation is sent again."""
        self._sent.clear()

    async def step(self) -> None:
        """Wait for hints, then send them."""
        with liveness.rest(lambda: self._waiting):
            await self._something.wait()
        await self.flush()
        await self._clock.sleep(keys.GATHER_S)

    async def flush(self) -> None:
        """Send the queued hints; without Redis they are dropped, and the pod worker finds its work by LIST."""
        while self._waiting:
            uids = list(self._waiting)[:_BATCH_MAX]
            batch = [self._waiting.pop(uid) for uid in uids]
            try:
                await self._hints.send(batch)
            except TransientError:
                self._waiting.clear()
                break
            liveness.beat()
        self._something.clear()


class SchedulerWaker:
    """Wakes the scheduler, once for many reasons at about the same time."""

    def __init__(self, sink: WakeSink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._reason = ""
        self._something = asyncio.Event()

    def wake(self, reason: str) -> None:
        """Wake the scheduler soon, because it has something to plan."""
        self._reason = reason
        self._something.set()

    async def step(self) -> None:
        """Wait for a reason, then wake the scheduler."""
        with liveness.rest(self._something.is_set):
            await self._something.wait()
        self._something.clear()
        try:
            await self._sink.ring(self._reason)
        except TransientError:
            return
        await self._clock.sleep(keys.BELL_S)


def _cause(allocation: Allocation, *, is_news: bool) -> str:
    """Return the traceparent for the hint: a new span for a new version, else that of the allocation."""
    root = traceparent_of(allocation.metadata)
    return hint_traceparent(root, id_of(allocation)) if is_news else root
