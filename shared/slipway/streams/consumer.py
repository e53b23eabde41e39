"""The work consumer: it claims hints, runs a handler, and acknowledges a hint after the handler has returned.

This module owns concurrency, serialisation per key, heartbeats, claims of abandoned entries, retries, dead letters and
the drain. It must not know the handler's work, nor Redis: it uses the `WorkStream` port, also in the simulation.

Promises:

- A hint is acknowledged only after the handler returned for it, or for a later hint of the same key.
- Two runs for one key never overlap in this process. Hints that arrive during a run cause one more run.
- At most `concurrency` handlers run. During a run its entry is heartbeaten, so no other worker claims it.
- An entry becomes a dead letter when it cannot be decoded, when its handler raises `PermanentError`, or when it was
  delivered more often than allowed. `TransientError` and `StaleError` are never counted against an entry. A bug in the
  handler (any other exception) is logged and counted, and delays no other key. `InvariantError` ends the process.

Not promised: that the handler runs once per hint (it must be idempotent), or in order.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import msgspec

from slipway.errors import InvariantError, PermanentError, StaleError, TransientError
from slipway.model.ids import AllocationId
from slipway.runtime import liveness
from slipway.runtime.clock import Clock
from slipway.runtime.health import ProcessHealth
from slipway.runtime.liveness import Loop
from slipway.runtime.tasks import TaskGroup
from slipway.streams import keys
from slipway.streams.ports import Claimed, NoTally, Tally, WorkHint, WorkStream

Handler = Callable[[WorkHint], Awaitable[None]]
Key = tuple[str, AllocationId]

_log = logging.getLogger(__name__)
_STALE_RUNS_MAX: Final = 3
_STALE_PAUSE_S: Final = 0.05
_TAKE_PAUSE_S: Final = keys.GATHER_S / 2
_FULL_SWEEP: Final = 20
"""Every so many sweeps, one sweep also trims and removes idle consumers, even if this process has done nothing."""
_LAST_CLAIM_S: Final = 1.0
"""Seconds that a blocked claim may continue after the stop, before it is cancelled. Hints that the server delivers at
the moment of the cancellation are claimed by another consumer after their idle time. When hints arrive often, the claim
ends before.
"""

_STILL_S: Final = 120.0
CLAIM = Loop(
    name="consumer", bound_s=_STILL_S, moves="each claim of hints, also of none", rests="a free place, all being taken"
)
HEARTBEATS = Loop(name="consumer-heartbeats", bound_s=_STILL_S, moves="each heartbeat of the hints in hand")
SWEEPS = Loop(name="consumer-sweeps", bound_s=_STILL_S, moves="each look for hints that others have abandoned")
ACKNOWLEDGEMENTS = Loop(
    name="consumer-acknowledgements", bound_s=_STILL_S, moves="each batch of acknowledgements", rests="a handled hint"
)
LOOPS: Final = (CLAIM, HEARTBEATS, SWEEPS, ACKNOWLEDGEMENTS)

_received: ContextVar[Claimed | None] = ContextVar("slipway_received", default=None)


def current_entry() -> Claimed | None:
    """Return the entry that the running handler was called for; None when the hint came from no stream."""
    return _received.get()


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a consumer; times in seconds."""

    concurrency: int = 32
    block_s: float = 5.0
    min_idle_s: float = keys.MIN_IDLE_S
    heartbeat_s: float = 10.0
    sweep_s: float = 15.0
    retry_first_s: float = 0.1
    retry_max_s: float = 2.0
    deliveries_max: int = keys.DELIVERIES_MAX


class WorkConsumer:
    """A consumer that handles the hints of the queue with one handler."""

    def __init__(
        self,
        queue: WorkStream,
        handler: Handler,
        clock: Clock,
        *,
        settings: ConsumerSettings | None = None,
        tally: Tally | None = None,
        troubled: Callable[[], object] = lambda: None,
        health: ProcessHealth | None = None,
    ) -> None:
        """`troubled` is called whenever the queue cannot be reached. `LOOPS` run under `health`, when it is given. The
        caller must supervise a handler that may stand still.
        """
        self._queue, self._handler, self._clock = queue, handler, clock
        self._troubled, self._health = troubled, health
        self._claiming: asyncio.Timeout | None = None
        self._settings = settings if settings is not None else ConsumerSettings()
        self._tally: Tally = tally if tally is not None else NoTally()
        self._slots = asyncio.Semaphore(self._settings.concurrency)
        self._running: dict[Key, Claimed] = {}
        self._waiting: dict[Key, Claimed] = {}
        self._done: list[Claimed] = []
        """Handled, but not acknowledged yet."""
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._handled = 0
        self._has_acknowledged = False
        """Whether an entry was acknowledged since the last trim."""

    @property
    def in_hand(self) -> int:
        """Number of hints whose handler runs, or that wait for their key."""
        return len(self._running) + len(self._waiting)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then finish the hints in hand and return. When cancelled, leave them to other
        consumers.
        """
        async with TaskGroup() as group:
            chores = [
                group.create_task(self._watched(HEARTBEATS, self._heartbeats)),
                group.create_task(self._watched(SWEEPS, partial(self._sweeps, group, stop))),
                group.create_task(self._watched(ACKNOWLEDGEMENTS, self._acknowledgements)),
                group.create_task(self._end_claim(stop)),
            ]
            await self._watched(CLAIM, partial(self._take_in, group, stop))
            await self._until_done()
            for chore in chores:
                chore.cancel()
        await self._acknowledge()

    def _watched(self, loop: Loop, work: Callable[[], Coroutine[Any, Any, None]]) -> Coroutine[Any, Any, None]:
        return self._health.supervise(loop, work) if self._health is not None else work()

    async def drain_once(self) -> int:
        """Handle all entries that exist now, including abandoned ones, and return how many runs succeeded.

        Raises `TransientError` when the queue cannot be reached.
        """
        before = self._handled
        async with TaskGroup() as group:
            heart = group.create_task(self._heartbeats())
            while found := await self._there_now():
                await self._admit(found, group)
                await self._until_done()
                await self._acknowledge()
            heart.cancel()
        return self._handled - before

    async def _there_now(self) -> list[Claimed]:
        limit = self._settings.concurrency
        found = await self._queue.claim(limit=limit, block_s=0)
        return found or await self._queue.claim_abandoned(min_idle_s=self._settings.min_idle_s, limit=limit)

    async def _take_in(self, group: TaskGroup, stop: asyncio.Event) -> None:
        failures = 0
        while not stop.is_set():
            liveness.beat()
            room = self._settings.concurrency - len(self._running)
            if room <= 0:
                self._changed.clear()
                with liveness.rest():
                    await self._changed.wait()
                continue
            try:
                claimed = await self._claim(room)
            except TransientError as exc:
                failures += 1
                self._troubled()
                await self._clock.sleep(self._pause_s(exc, failures))
                continue
            failures = 0
            await self._admit(claimed, group)
            if claimed:
                await self._clock.sleep(_TAKE_PAUSE_S)  # so that hints that arrive close together are claimed together

    async def _claim(self, room: int) -> Sequence[Claimed]:
        """Return new hints; none when the stop is set before a hint arrives."""
        try:
            async with asyncio.timeout(None) as self._claiming:
                return await self._queue.claim(limit=room, block_s=self._settings.block_s)
        except TimeoutError:
            return ()
        finally:
            self._claiming = None

    async def _end_claim(self, stop: asyncio.Event) -> None:
        """End the blocking claim shortly after the stop."""
        await stop.wait()
        if self._claiming is not None:
            self._claiming.reschedule(asyncio.get_running_loop().time() + _LAST_CLAIM_S)

    async def _sweeps(self, group: TaskGroup, stop: asyncio.Event) -> None:
        """Take over abandoned entries and trim acknowledged ones, at intervals.

        A process that has acknowledged entries trims. Other processes trim rarely, in case that process died before.
        """
        for number in itertools.count():
            liveness.beat()
            if stop.is_set():
                return
            is_full = number % _FULL_SWEEP == 0
            try:
                room = self._settings.concurrency - len(self._running)
                if room > 0:
                    claimed = await self._queue.claim_abandoned(min_idle_s=self._settings.min_idle_s, limit=room)
                    self._tally.count("hints_claimed", len(claimed))
                    await self._admit(claimed, group)
                if self._has_acknowledged or is_full:
                    self._has_acknowledged = False
                    await self._queue.trim()
                if is_full:
                    await self._queue.forget_consumers()
            except TransientError as exc:
                _log.debug("sweep of the work queue postponed", extra={"error": str(exc)})
            await self._clock.sleep(self._settings.sweep_s)

    async def _heartbeats(self) -> None:
        while True:
            liveness.beat(self._settings.heartbeat_s)
            await self._clock.sleep(self._settings.heartbeat_s)
            held = (*self._running.values(), *self._waiting.values())
            if held:
                await self._quietly(self._queue.heartbeat(held))

    async def _acknowledgements(self) -> None:
        """Acknowledge handled entries in batches."""
        while True:
            with liveness.rest(lambda: self._done):
                await self._settled.wait()
            await self._acknowledge()
            await self._clock.sleep(keys.GATHER_S)

    async def _acknowledge(self) -> None:
        """Acknowledge all handled entries. A lost acknowledgement only costs another run; a cancelled one is
        repeated.
        """
        self._settled.clear()
        done = tuple(self._done)
        if done:
            await self._quietly(self._queue.ack(done))
            self._has_acknowledged = True
            del self._done[: len(done)]

    async def _admit(self, claimed: Sequence[Claimed], group: TaskGroup) -> None:
        for each in claimed:
            if each.hint is None:
                await self._bury(each, f"undecodable: {each.problem}")
            elif each.deliveries > self._settings.deliveries_max:
                await self._bury(each, f"delivered {each.deliveries} times without success")
            elif each.hint.key not in self._running:
                self._running[each.hint.key] = each
                group.create_task(self._work(each.hint, each))
            elif not _is_same(self._running[each.hint.key], each):
                # One more run is enough for any number of hints. The newest hint stays pending for all of them.
                waiting = self._waiting.get(each.hint.key)
                if waiting is not None and not _is_same(waiting, each):
                    self._acknowledge_soon(waiting)
                self._waiting[each.hint.key] = each

    def _acknowledge_soon(self, claimed: Claimed) -> None:
        self._done.append(claimed)
        self._settled.set()

    async def _work(self, hint: WorkHint, claimed: Claimed) -> None:
        # From now on the handler must make progress, and not the loop that claimed the hint.
        liveness.leave()
        try:
            async with self._slots:
                _received.set(claimed)
                await self._settle(claimed, await self._handle(hint))
                while (following := self._waiting.pop(hint.key, None)) is not None and following.hint is not None:
                    self._running[hint.key] = following
                    _received.set(following)
                    await self._settle(following, await self._handle(following.hint))
        finally:
            del self._running[hint.key]
            self._changed.set()

    async def _handle(self, hint: WorkHint) -> BaseException | None:
        """Run the handler; return None when it succeeded, else the exception that it raised."""
        ended: BaseException | None = None
        started_s = self._clock.monotonic()
        for run in range(1, _STALE_RUNS_MAX + 1):
            [ended] = await asyncio.gather(self._handler(hint), return_exceptions=True)
            if not isinstance(ended, StaleError) or run == _STALE_RUNS_MAX:
                break
            await self._clock.sleep(_STALE_PAUSE_S * run)
        self._tally.took(self._clock.monotonic() - started_s, hint.traceparent)
        return ended

    async def _settle(self, claimed: Claimed, ended: BaseException | None) -> None:
        match ended:
            case None:
                self._handled += 1
                self._tally.count("hints_done")
                self._acknowledge_soon(claimed)
            case InvariantError():
                raise ended
            case TransientError() | StaleError():
                self._tally.count("hints_retried")
                await self._quietly(self._queue.release([claimed]))
            case PermanentError():
                await self._bury(claimed, f"{type(ended).__name__}: {ended}")
            case _:
                self._tally.count("hints_failed")
                _log.error(
                    "the handler of a work hint failed",
                    exc_info=ended,
                    extra={"entry": claimed.entry_id, "deliveries": claimed.deliveries},
                )

    async def _bury(self, claimed: Claimed, cause: str) -> None:
        self._tally.count("hints_dead")
        await self._quietly(self._queue.dead_letter(claimed, cause=cause))
        self._has_acknowledged = True

    async def _quietly(self, call: Awaitable[None]) -> None:
        """Await a queue call whose failure is harmless: the entry stays pending and is delivered again."""
        try:
            await call
        except TransientError as exc:
            _log.debug("the work queue did not take an answer", extra={"error": str(exc)})

    async def _until_done(self) -> None:
        while self._running:
            self._changed.clear()
            await self._changed.wait()

    def _pause_s(self, error: TransientError, failures: int) -> float:
        limit_s = min(self._settings.retry_max_s, self._settings.retry_first_s * 2 ** min(failures - 1, 10))
        return limit_s if error.retry_after_s is None else max(limit_s, error.retry_after_s)


def _is_same(one: Claimed, other: Claimed) -> bool:
    return (one.shard, one.entry_id) == (other.shard, other.entry_id)
