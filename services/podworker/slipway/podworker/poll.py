"""Finds work by consistent LISTs, without hints: while Redis is absent or does not answer, and for `--once`.

Owns which LISTs find which work. Must not know what the work is: each allocation that is found is passed to the same
handler, which reads the allocation again.

The quick pass finds launches and ends in progress. The full pass also finds all other work: a gang that is only partly
bound, and objects that outlived their attempt. The watcher sweeps objects whose allocation does not exist any more.
"""

import asyncio
from collections.abc import Iterable
from functools import partial

from slipway.crd.meta import LABEL_ALLOCATION, LABEL_ALLOCATION_UID, LABEL_MANAGED_BY, MANAGED_BY
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ControlPlaneError, InvariantError, StaleError, TransientError
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS, SERVICES, MetadataOnly, Resource, brief
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Phase
from slipway.pods.ended import attempt_of
from slipway.podworker.concurrency import PriorityLimiter
from slipway.podworker.loops import Watch, unwatched
from slipway.podworker.ports import Kube, Pinger
from slipway.podworker.worker import Worker
from slipway.runtime import liveness, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.streams.ports import WorkHint

QUICK_PHASES = (Phase.ASSIGNED, Phase.TERMINATING)
FULL_EVERY_S = 20.0
JITTER = 0.25
REST_MAX_S = 30.0
CALM = 4
"""While Redis answers, the time between two pings is up to this many times as long: the consumer of hints notices first
that Redis is unreachable. Problems that only the ping shows (no memory, no writes) are noticed that much later."""


OWN_KINDS = (brief(PODS), brief(CONFIG_MAPS), brief(SERVICES))


class Poller:
    """Looks for work by LISTs. `pinger` is None when no Redis is configured."""

    def __init__(
        self,
        *,
        kube: Kube,
        worker: Worker,
        limiter: PriorityLimiter,
        clock: Clock,
        random: Random,
        pinger: Pinger | None,
        interval_s: float,
        watch: Watch = unwatched,
    ) -> None:
        self._watch = watch
        self._kube = kube
        self._worker = worker
        self._limiter = limiter
        self._clock = clock
        self._random = random
        self._pinger = pinger
        self._interval_s = interval_s
        self._full_at_s = 0.0
        self._resting: asyncio.Timeout | None = None

    async def step(self) -> float:
        """Look for work once, or only pause if Redis answers; return after how many seconds the next step is due."""
        pause_s = self._interval_s * self._random.uniform(1 - JITTER, 1 + JITTER)
        if await self._redis_answers():
            await self._rest(min(REST_MAX_S, pause_s * (CALM - 1)))
            return pause_s
        with telemetry.suppressed():
            hints = await self._due()
        await self.handle_all(hints)
        return pause_s

    def end_rest(self) -> None:
        """End a rest now, because Redis may be unreachable or the process is to end."""
        if self._resting is not None and not self._resting.expired():
            self._resting.reschedule(asyncio.get_running_loop().time())

    async def run_once(self) -> list[ControlPlaneError]:
        """Handle all work that there is now; return the failures."""
        return await self.handle_all(await self._all_hints())

    async def handle_all(self, hints: Iterable[WorkHint]) -> list[ControlPlaneError]:
        """Handle the hints, several at a time; a hint whose allocation is being handled already is left out."""
        failures: list[ControlPlaneError] = []
        idle = [hint for hint in hints if not self._worker.is_busy(hint)]
        await self._limiter.run_all([partial(self._handle, hint, failures) for hint in idle])
        return failures

    async def _handle(self, hint: WorkHint, failures: list[ControlPlaneError]) -> None:
        try:
            with self._watch(hint):
                await self._worker.handle(hint, may_retry=False)
        except InvariantError:
            raise
        except ControlPlaneError as error:
            # The worker has logged the error, and a later step finds the work again. A wait here would delay others.
            failures.append(error)

    async def _rest(self, seconds: float) -> None:
        liveness.beat(seconds)
        try:
            async with asyncio.timeout(None) as self._resting:
                await self._clock.sleep(seconds)
        except TimeoutError:
            return
        finally:
            self._resting = None

    async def _redis_answers(self) -> bool:
        if self._pinger is None:
            return False
        try:
            await self._pinger.ping()
        except (TransientError, StaleError):
            return False
        return True

    async def _due(self) -> list[WorkHint]:
        now_s = self._clock.monotonic()
        if now_s >= self._full_at_s:
            self._full_at_s = now_s + FULL_EVERY_S
            return await self._all_hints()
        found: list[Allocation] = []
        for phase in QUICK_PHASES:
            found += (await self._kube.list(ALLOCATIONS, field_selector=f"status.phase={phase}")).items
        return self._hints_of(found)

    async def _all_hints(self) -> list[WorkHint]:
        # The objects are listed first: an object that is created after the LIST of allocations must not look like a
        # leftover.
        owned = [item.metadata for kind in OWN_KINDS for item in await self._list_own(kind)]
        live = (await self._kube.list(ALLOCATIONS, field_selector=f"status.phase!={Phase.TERMINATED}")).items
        attempts = {item.metadata.uid: item.status.attempt for item in live}
        hints = {hint.key: hint for hint in self._hints_of(live)}
        for meta in owned:
            uid = meta.labels.get(LABEL_ALLOCATION_UID, "")
            if attempt_of(meta) < attempts.get(uid, attempt_of(meta) + 1) and meta.deletion_timestamp is None:
                allocation = AllocationId(meta.labels.get(LABEL_ALLOCATION, ""))
                hint = WorkHint(namespace=meta.namespace, allocation=allocation)
                hints.setdefault(hint.key, hint)
        return list(hints.values())

    async def _list_own(self, kind: Resource[MetadataOnly]) -> list[MetadataOnly]:
        # Our objects without the label of an allocation (uploads, usage totals) are not the pod worker's.
        selector = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_ALLOCATION_UID}"
        return (await self._kube.list(kind, label_selector=selector)).items

    def _hints_of(self, allocations: Iterable[Allocation]) -> list[WorkHint]:
        return [
            WorkHint(namespace=item.metadata.namespace, allocation=id_of(item))
            for item in allocations
            if not self._worker.is_settled(item)
        ]
