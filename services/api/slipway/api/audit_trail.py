"""Audit events for an external reader: CloudEvents in a file or to a webhook, in addition to the lines of the log.

Owns the backlog between the requests and the reader, what happens at its limit, and when a delivery is given up. The
two destinations are in `audit_destinations.py`.

Promises: `offer` never waits and never raises. The reader gets the events in the order of this process, at least once;
an event has the same id at every try. Events are lost when the backlog is full, or when the reader is unavailable for
longer than `retry_s`. Then the reader gets an event of type `LOST` with the number and the times of the lost events.
Losses are also counted and logged.

Not promised: an order between replicas; the delivery of the backlog of a process that is killed.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from slipway.errors import ControlPlaneError, UnavailableError
from slipway.model.times import format_time
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock, Random

AUDIT, LOST = "dev.slipway.audit.v1", "dev.slipway.audit.lost.v1"
BATCH_MAX = 100
LAST_S = 5.0
"""How long a process that ends tries to deliver the rest."""
_ID_BYTES = 16

_log = log.get_logger(__name__)


class AuditDestination(Protocol):
    """The external reader of audit events."""

    async def write(self, events: Sequence[bytes], *, id_: str) -> None:
        """Write all of them, or none. `id_` is the id of the batch, the same at every try. Raises TransientError."""
        ...


class AuditCloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of CloudEvents 1.0, in structured mode."""

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    time: str
    subject: str = ""
    datacontenttype: str = "application/json"
    data: Mapping[str, object]


class AuditTrail:
    """The events of one process. `source` is the name of the process in each event."""

    def __init__(
        self,
        destination: AuditDestination,
        clock: Clock,
        random: Random,
        *,
        source: str,
        backlog_max: int,
        retry_s: float,
    ) -> None:
        self._destination = destination
        self._clock = clock
        self._random = random
        self._source = source
        self._backlog_max = backlog_max
        self._retry_s = retry_s
        self._waiting: deque[bytes] = deque()
        self._batch: tuple[bytes, ...] = ()
        self._batch_id = ""
        self._failing_since: float | None = None
        self._lost = 0
        self._lost_since = 0.0
        self._something = asyncio.Event()

    def offer(self, what: Mapping[str, object], *, subject: str) -> None:
        """Queue one event with the fields of the line in the log."""
        self._something.set()
        if len(self._waiting) + len(self._batch) >= self._backlog_max:
            self._lose(1, "the backlog is full")
            return
        self._tell_of_losses()
        self._waiting.append(self._event(AUDIT, what, subject=subject))

    async def step(self) -> None:
        """Wait for events, then deliver a batch. Raises UnavailableError when this try failed."""
        with liveness.rest(lambda: self._waiting or self._batch):
            await self._something.wait()
        await self._deliver()

    def wake(self) -> None:
        """End the wait of `step`, because the process ends."""
        self._something.set()

    async def flush(self) -> None:
        """Deliver the rest, as far as the reader accepts it within `LAST_S`."""
        try:
            async with asyncio.timeout(LAST_S):
                while self._waiting or self._batch or self._lost:
                    await self._deliver()
        except (ControlPlaneError, TimeoutError):
            left = len(self._waiting) + len(self._batch) + self._lost
            _log.warning("audit events not delivered at the end of the process", events=left)

    async def _deliver(self) -> None:
        if not self._batch:
            if not self._waiting:
                self._tell_of_losses()
            taken = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            self._batch, self._batch_id = tuple(taken), self._random.token_hex(_ID_BYTES)
        try:
            if self._batch:
                await self._destination.write(self._batch, id_=self._batch_id)
        except ControlPlaneError as error:
            self._failed(error)
            raise UnavailableError(f"audit events not delivered: {error}") from error
        telemetry.AUDIT_EVENTS.labels(outcome="delivered").inc(len(self._batch))
        self._failing_since, self._batch = None, ()
        if not self._waiting and not self._lost:
            self._something.clear()

    def _failed(self, error: ControlPlaneError) -> None:
        """Give the batch up when it has failed for `retry_s`, so that the next events are delivered."""
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._retry_s:
            given_up, self._batch = len(self._batch), ()
            self._failing_since = None
            self._lose(given_up, str(error))

    def _lose(self, events: int, why: str) -> None:
        if not self._lost:
            self._lost_since = self._clock.now()
            _log.error("audit events lost", why=why, how="check the reader, or raise SLIPWAY_AUDIT_BACKLOG_MAX")
        self._lost += events
        telemetry.AUDIT_EVENTS.labels(outcome="lost").inc(events)

    def _tell_of_losses(self) -> None:
        if self._lost and len(self._waiting) < self._backlog_max:
            told = {"lost": self._lost, "since": format_time(self._lost_since), "until": format_time(self._clock.now())}
            self._waiting.append(self._event(LOST, told, subject="audit"))
            self._lost = 0

    def _event(self, type_: str, data: Mapping[str, object], *, subject: str) -> bytes:
        return msgspec.json.encode(
            AuditCloudEvent(
                id=self._random.token_hex(_ID_BYTES),
                source=self._source,
                type=type_,
                time=format_time(self._clock.now()),
                subject=subject,
                data=data,
            )
        )
