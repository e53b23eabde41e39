"""Publishes a launch to the streams after it has committed, without delaying the request.

Owns the bounded buffer between requests and Redis. A lost entry costs only time: the watcher publishes the same entry,
and the scheduler finds the allocation in its next LIST.

Invariant: `launched` never blocks and never raises.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from slipway.crd.transitions import event_of, requested
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import PermanentError, StaleError, TransientError
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.streams import keys
from slipway.streams.ports import EventLog, StreamEntry, Wake

BUFFER_MAX = 2000
BATCH_MAX = 200
WAKE_REASON = "launch"

AllocationHook = Callable[[Allocation], object]

_log = log.get_logger(__name__)


class LaunchPublisher:
    """Appends `requested` events to the event log and wakes the scheduler, both in batches.

    A wake-up is called the bell: it is a signal without content.
    """

    def __init__(
        self,
        events: EventLog,
        wake: Wake,
        clock: Clock,
        *,
        on_write: AllocationHook = lambda _: None,
        on_delete: AllocationHook = lambda _: None,
    ) -> None:
        """`on_write` is called with each created or changed allocation, `on_delete` with each deleted one."""
        self._events = events
        self._wake = wake
        self._clock = clock
        self._on_write, self._on_delete = on_write, on_delete
        self._waiting: deque[Allocation] = deque(maxlen=BUFFER_MAX)
        self._something = asyncio.Event()
        self._is_busy = False
        self._is_owed = False
        self._rung_at_s = float("-inf")

    @property
    def is_idle(self) -> bool:
        """Whether all launches and changes have been published or dropped."""
        return not self._is_busy and not self._is_owed and not self._something.is_set()

    def launched(self, allocation: Allocation) -> None:
        """Buffer a committed create: `step` publishes its event and rings the bell."""
        self._on_write(allocation)
        self._waiting.append(allocation)
        self._something.set()

    def changed(self, allocation: Allocation | None = None) -> None:
        """Note a change of an allocation's spec, or of another object: `step` only rings the bell."""
        if allocation is not None:
            self._on_write(allocation)
        self._something.set()

    def deleted(self, allocation: Allocation) -> None:
        """Note a delete: `step` only rings the bell."""
        self._on_delete(allocation)
        self._something.set()

    async def step(self) -> None:
        """Wait for launches and changes, then publish them."""
        with liveness.rest(lambda: self._waiting):
            await self._something.wait()
        await self.flush(is_last=False)
        await self._clock.sleep(keys.GATHER_S)
        if self._is_owed:
            self._something.set()

    async def flush(self, *, is_last: bool = True) -> None:
        """Publish the buffered launches; entries that the streams refuse are dropped.

        The bell is delayed when it rang less than `BELL_S` ago, except with `is_last`.
        """
        self._something.clear()
        self._is_busy = True
        batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
        if self._waiting:
            self._something.set()
        try:
            # The bell first: the scheduler needs nothing else, and the watcher publishes the entry again anyway.
            self._is_owed = not is_last and self._clock.monotonic() - self._rung_at_s < keys.BELL_S
            if not self._is_owed:
                self._rung_at_s = self._clock.monotonic()
                await self._wake.ring(WAKE_REASON)
            if batch:
                await self._events.append([_entry(each) for each in batch])
        except (TransientError, PermanentError, StaleError) as error:
            _log.debug("launches not announced", launches=len(batch), error=str(error))
        finally:
            self._is_busy = False


def _entry(allocation: Allocation) -> StreamEntry:
    return StreamEntry(event=event_of(allocation, requested(allocation)), oldest_seq=1)
