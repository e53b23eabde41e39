"""The consumer of events: it claims them for a group, calls a handler, and acknowledges an event after the handler
returned.

This module owns the order within an allocation, retries, dead letters, the limit on events in hand, claims of events
that a dead consumer left, and the stop. It must not know Redis or the handler's work: it uses the `EventGroup` port.

Promises:

- An event is acknowledged only after the handler returned for it, or after its dead letter was written.
- At most `prefetch` events are in hand, and at most `concurrency` handlers run. At the limit, no event is claimed until
  a place is free.
- The events of one allocation are handled one after another, in their order of arrival. A failed event is retried, with
  growing pauses. The later events of its allocation wait; those of other allocations do not.
- An event whose handler failed `deliveries_max` times, in this process and in others, becomes a dead letter with the
  last reason. So does an event that this version cannot read, and one whose handler raised `PermanentError` (at once).
  `TransientError` is not counted: the event is retried until it succeeds.
- This process does not handle the same event id again, for the last `remembered` ids.
- While Redis is away, the consumer waits, with growing pauses, and reports it. Events that it handled are acknowledged
  afterwards.
- After the stop, no event is claimed. Events in hand are finished within `stop_s` seconds. The others stay pending, and
  another consumer claims them after `min_idle_s`.

Not promised: that a handler runs once for an event. It must tolerate the same event again.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import msgspec

from slipway.errors import InvalidError, PermanentError, TransientError
from slipway.model.events import AllocationEvent
from slipway.runtime.clock import Clock, Random
from slipway.runtime.tasks import TaskGroup
from slipway.streams import keys
from slipway.streams.event_groups import EventDelivery, EventGroup, GroupLag

EventHandler = Callable[[AllocationEvent], Awaitable[None]]

_log = logging.getLogger(__name__)
_AWAY_FIRST_S: Final = 0.2
_AWAY_MAX_S: Final = 5.0
_CAUSE_CHARS_MAX: Final = 500


class EventConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a consumer; times in seconds."""

    concurrency: int = 8
    prefetch: int = 64
    block_s: float = 5.0
    min_idle_s: float = keys.MIN_IDLE_S
    keep_s: float = 10.0
    sweep_s: float = 15.0
    retry_first_s: float = 1.0
    retry_max_s: float = 30.0
    deliveries_max: int = keys.DELIVERIES_MAX
    remembered: int = 10_000
    stop_s: float = 25.0
    status_s: float = 15.0

    def __post_init__(self) -> None:
        """Raises InvalidError for numbers that cannot work."""
        for name in ("concurrency", "deliveries_max", "remembered"):
            if getattr(self, name) < 1:
                raise InvalidError(f"{name}: must be at least 1, not {getattr(self, name)}")
        if self.prefetch < keys.SHARDS:
            raise InvalidError(f"prefetch: must be at least {keys.SHARDS}, one for each shard, not {self.prefetch}")
        if not 0 < self.keep_s < self.min_idle_s:
            raise InvalidError(f"keep_s: must be above 0 and below min_idle_s, which is {self.min_idle_s:g}")


class ConsumerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a consumer has done since its start, and its state now.

    `failures` is the number of handler calls that raised. `lag` is None until it is known, and while Redis is away.
    `away_s` is the seconds since Redis stopped answering, 0 while it answers.
    """

    handled: int
    failures: int
    dead: int
    duplicates: int
    in_hand: int
    lag: GroupLag | None
    away_s: float


class EventConsumer:
    """A consumer that passes the events of a group to one handler."""

    def __init__(
        self,
        group: EventGroup,
        handler: EventHandler,
        *,
        clock: Clock,
        random: Random,
        settings: EventConsumerSettings | None = None,
        wants: Callable[[AllocationEvent], bool] = lambda _: True,
        around: Callable[[AllocationEvent, int], AbstractContextManager[object]] = lambda _, __: nullcontext(),
        told: Callable[[ConsumerStatus], None] = lambda _: None,
    ) -> None:
        """`wants` selects events; other events are acknowledged without a call of the handler. `around` is entered for
        each call of the handler, with the event and the number of the delivery. `told` receives the status every
        `status_s` seconds, and whenever Redis goes away or comes back.
        """
        self._group, self._handler, self._clock, self._random = group, handler, clock, random
        self._settings = settings if settings is not None else EventConsumerSettings()
        self._wants, self._around, self._told = wants, around, told
        self._slots = asyncio.Semaphore(self._settings.concurrency)
        self._lanes: dict[str, deque[EventDelivery]] = {}
        """{allocation: its events in hand, the one to handle first in front}."""
        self._held: dict[tuple[int, str], EventDelivery] = {}
        """All events in hand, including those that are handled but not acknowledged yet."""
        self._done: list[EventDelivery] = []
        self._seen: dict[str, None] = {}
        """Ids of handled events, the oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._stop = asyncio.Event()
        self._handled = self._failures = self._dead = self._duplicates = 0
        self._lag: GroupLag | None = None
        self._away_since: float | None = None

    @property
    def status(self) -> ConsumerStatus:
        """The status of the consumer now."""
        away_s = 0.0 if self._away_since is None else self._clock.monotonic() - self._away_since
        return ConsumerStatus(
            handled=self._handled,
            failures=self._failures,
            dead=self._dead,
            duplicates=self._duplicates,
            in_hand=len(self._held),
            lag=self._lag,
            away_s=away_s,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then finish the events in hand and return.

        Raises:
            PermanentError: Redis refuses the account, or returns an error that no retry can fix.
        """
        self._stop = stop
        async with TaskGroup() as group:
            chores = [group.create_task(chore()) for chore in (self._keep_held, self._acknowledge_done, self._tell)]
            await self._take_in(group)
            await self._finish()
            for chore in chores:
                chore.cancel()
        await self._let_go()

    async def _take_in(self, group: TaskGroup) -> None:
        sweep_at_s, failures = self._clock.monotonic(), 0
        while not self._stop.is_set():
            room = self._settings.prefetch - len(self._held)
            if room < keys.SHARDS:
                await self._first(self._changed)
                continue
            try:
                if self._clock.monotonic() >= sweep_at_s:
                    found = await self._group.claim_abandoned(min_idle_s=self._settings.min_idle_s, limit=room)
                    # While sweeps find events, the next sweep follows at once.
                    sweep_at_s = self._clock.monotonic() + (0.0 if found else self._settings.sweep_s)
                else:
                    found = await self._claim(room)
            except TransientError as exc:
                failures += 1
                await self._is_away(exc, failures)
                continue
            failures = 0
            self._is_back()
            for each in found:
                self._admit(each, group)

    async def _claim(self, room: int) -> list[EventDelivery]:
        """Return new events; none when the stop is set first. Events that the server delivers at that moment stay
        pending.
        """
        claiming = asyncio.ensure_future(self._group.claim(limit=room, block_s=self._settings.block_s))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((claiming, stopping), return_when=asyncio.FIRST_COMPLETED)
            return claiming.result() if claiming.done() else []
        finally:
            for each in (claiming, stopping):
                each.cancel()

    async def _is_away(self, error: TransientError, failures: int) -> None:
        limit_s = min(_AWAY_MAX_S, _AWAY_FIRST_S * 2 ** min(failures - 1, 10))
        pause_s = max(limit_s * (0.5 + 0.5 * self._random.random()), error.retry_after_s or 0.0)
        if self._away_since is None:
            self._away_since, self._lag = self._clock.monotonic(), None
            self._told(self.status)
        _log.warning("redis is unavailable: %s; retrying in %.1f s", error, pause_s)
        await self._first(self._stop, pause_s)

    def _is_back(self) -> None:
        if self._away_since is not None:
            _log.warning("redis is available again after %.1f s", self._clock.monotonic() - self._away_since)
            self._away_since = None
            self._told(self.status)

    def _admit(self, each: EventDelivery, group: TaskGroup) -> None:
        if each.place in self._held:
            return  # Redis was away for so long that our own event was claimed as abandoned
        self._held[each.place] = each
        if each.event is not None and not self._wants(each.event):
            self._settle(each)
            return
        lane = each.event.allocation_id if each.event is not None else f"{each.shard}/{each.entry_id}"
        if lane in self._lanes:
            self._lanes[lane].append(each)
            return
        self._lanes[lane] = deque([each])
        task = group.create_task(self._work_off(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_off(self, lane: str) -> None:
        """Handle the events of one allocation until none is left. After the stop, the others stay pending."""
        queue = self._lanes[lane]
        try:
            while queue and await self._handle(queue[0]):
                self._settle(queue.popleft())
        finally:
            del self._lanes[lane]
            for each in queue:
                self._held.pop(each.place, None)
            self._changed.set()

    async def _handle(self, each: EventDelivery) -> bool:
        """Return whether this event is done: handled, a duplicate, or a dead letter. False when the stop is set
        first.
        """
        settings, event, deliveries = self._settings, each.event, each.deliveries
        if event is None:
            return await self._bury(each, deliveries, f"cannot be read: {each.problem}")
        if event.event_id in self._seen:
            self._duplicates += 1
            return True
        if deliveries > settings.deliveries_max:
            return await self._bury(
                each, deliveries, f"delivered {deliveries} times, and no consumer finished handling it"
            )
        for tries in itertools.count():
            async with self._slots:
                [error] = await asyncio.gather(self._call(event, deliveries), return_exceptions=True)
            if error is None:
                self._handled += 1
                self._remember(event.event_id)
                return True
            self._failures += 1
            if not isinstance(error, Exception):
                raise error
            cause = f"{type(error).__name__}: {error}"[:_CAUSE_CHARS_MAX]
            is_counted = not isinstance(error, TransientError)
            if isinstance(error, PermanentError) or (is_counted and deliveries >= settings.deliveries_max):
                return await self._bury(each, deliveries, cause)
            pause_s = min(settings.retry_max_s, settings.retry_first_s * 2 ** min(tries, 20))
            if isinstance(error, TransientError) and error.retry_after_s is not None:
                pause_s = error.retry_after_s
            _log.warning(
                "the handler failed for event %s (delivery %d of %d); retrying in %.1f s: %s",
                event.event_id,
                deliveries,
                settings.deliveries_max,
                pause_s,
                cause,
                exc_info=error if is_counted else None,
            )
            if is_counted:
                deliveries += 1
                await self._quietly(self._group.count_failure(each))
            await self._first(self._stop, pause_s)
            if self._stop.is_set():
                return False
        raise AssertionError("the loop has no end")

    async def _call(self, event: AllocationEvent, delivery: int) -> None:
        with self._around(event, delivery):
            await self._handler(event)

    async def _bury(self, each: EventDelivery, deliveries: int, cause: str) -> bool:
        name = each.event.event_id if each.event is not None else each.entry_id
        for tries in itertools.count():
            if await self._quietly(self._group.dead_letter(each, cause=cause, deliveries=deliveries)):
                break
            await self._first(self._stop, min(_AWAY_MAX_S, _AWAY_FIRST_S * 2 ** min(tries, 10)))
            if self._stop.is_set():
                return False
        self._dead += 1
        _log.error("event %s is a dead letter now: %s", name, cause)
        return True

    def _settle(self, each: EventDelivery) -> None:
        self._done.append(each)
        self._settled.set()

    def _remember(self, event_id: str) -> None:
        self._seen[event_id] = None
        if len(self._seen) > self._settings.remembered:
            del self._seen[next(iter(self._seen))]

    async def _acknowledge_done(self) -> None:
        """Acknowledge handled events in batches. A failed acknowledgement is repeated."""
        while True:
            await self._settled.wait()
            if not await self._acknowledge():
                await self._clock.sleep(_AWAY_FIRST_S)
            await self._clock.sleep(keys.GATHER_S)

    async def _acknowledge(self) -> bool:
        self._settled.clear()
        done = tuple(self._done)
        if done and not await self._quietly(self._group.acknowledge(done)):
            self._settled.set()
            return False
        del self._done[: len(done)]
        for each in done:
            self._held.pop(each.place, None)
        self._changed.set()
        return True

    async def _keep_held(self) -> None:
        while True:
            await self._clock.sleep(self._settings.keep_s)
            if self._held:
                await self._quietly(self._group.keep(tuple(self._held.values())))

    async def _tell(self) -> None:
        while True:
            try:
                self._lag = await self._group.lag()
            except TransientError:
                self._lag = None
            self._told(self.status)
            await self._clock.sleep(self._settings.status_s)

    async def _finish(self) -> None:
        """Wait for the running handlers, for at most `stop_s` seconds."""
        if self._tasks:
            _, late = await asyncio.wait(tuple(self._tasks), timeout=self._settings.stop_s)
            if late:
                _log.warning("%d handlers had not returned %.0f s after the stop", len(late), self._settings.stop_s)
            for task in late:
                task.cancel()

    async def _let_go(self) -> None:
        await self._acknowledge()
        if not self._done:
            await self._quietly(self._group.leave())

    async def _first(self, event: asyncio.Event, timeout_s: float | None = None) -> None:
        """Wait for `event` or the stop, for at most `timeout_s` seconds."""
        if event is self._changed:
            self._changed.clear()
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(each.wait()) for each in {event, self._stop}]
        if timeout_s is not None:
            waiting.append(asyncio.ensure_future(self._clock.sleep(timeout_s)))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    async def _quietly(self, call: Awaitable[None]) -> bool:
        """Return whether Redis accepted the call. After a failure, the call is repeated or the event is delivered
        again.
        """
        try:
            await call
        except TransientError as exc:
            _log.debug("redis did not accept an acknowledgement", extra={"error": str(exc)})
            return False
        return True
