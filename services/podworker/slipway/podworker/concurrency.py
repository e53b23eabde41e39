"""Runs many calls at once, within one limit, and lets only one task at a time work on a key.

Owns the limit on the concurrent calls of this process, and what happens when some calls fail. It does not know what the
calls do.

Invariants: the number of running calls never exceeds the limit, over all work of the process. A free slot is given to
the call whose launch has progressed furthest; among equal calls, to the one that has waited longest. After the first
failure no further call of the group begins; calls that are running are finished, because a cancelled write has an
unknown outcome. Of several failures the most important one is raised.
"""

import asyncio
import contextlib
import heapq
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Iterator
from enum import IntEnum
from itertools import count
from typing import TypeVar

from slipway.errors import ControlPlaneError, PermanentError, StaleError
from slipway.runtime import liveness
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup

T = TypeVar("T")
Call = Callable[[], Awaitable[None]]


class LaunchStage(IntEnum):
    """How far the launch of a call has progressed; the lowest value gets the next free slot.

    Without this order, many concurrent launches would all create their pods before the first of them is bound. So a new
    launch waits for the launches that have begun: one launch after the other finishes while the slots stay full. No
    launch starves, because a launch that has begun makes a bounded number of calls.
    """

    LAST = 0
    """bindings and deletes"""
    RANKS = 1
    FIRST = 2


class PriorityLimiter:
    """Runs at most `limit` calls at once; further calls wait for a free slot.

    The end of each call is reported to the liveness check, as progress of the loop that runs the call.
    """

    def __init__(self, limit: int, clock: Clock | None = None) -> None:
        self._limit, self._clock = limit, clock
        self._moved_at = 0.0
        self._left = limit
        self._waiting: list[tuple[LaunchStage, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def stalled_since(self) -> float:
        """Return the time before which no hint is regarded as stalled (monotonic seconds).

        While calls wait for a slot, this is the end of the last call; else 0.
        """
        return self._moved_at if self._waiting else 0.0

    async def run(self, call: Callable[[], Awaitable[T]], stage: LaunchStage = LaunchStage.LAST) -> T:
        """Run one call in a slot and return its result."""
        async with self._slot(stage):
            return await call()

    async def run_all(self, calls: Iterable[Call], stage: LaunchStage = LaunchStage.LAST) -> None:
        """Run all calls, in their order, as slots become free.

        Raises:
            ControlPlaneError: the gravest failure: a permanent one, else a stale one, else a transient one.
        """
        waiting = list(calls)
        if len(waiting) <= 1:
            for call in waiting:
                await self.run(call, stage)
            return
        failures: list[ControlPlaneError] = []
        rest = iter(waiting)
        async with TaskGroup() as tasks:
            for _ in range(min(self._limit, len(waiting))):
                tasks.create_task(self._run_from(rest, failures, stage))
        if failures:
            raise min(failures, key=_severity)

    async def _run_from(self, rest: Iterator[Call], failures: list[ControlPlaneError], stage: LaunchStage) -> None:
        for call in rest:
            async with self._slot(stage):
                if failures:
                    return
                try:
                    await call()
                except ControlPlaneError as error:
                    failures.append(error)

    @contextlib.asynccontextmanager
    async def _slot(self, stage: LaunchStage) -> AsyncGenerator[None]:
        if self._left:
            self._left -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (stage, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._release_slot()
                raise
        try:
            yield
        finally:
            self._release_slot()

    def _release_slot(self) -> None:
        """Give a slot that has become free to the next waiting call; without one, the slot stays free."""
        liveness.beat()
        if self._clock is not None:
            self._moved_at = self._clock.monotonic()
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._left += 1


def _severity(error: ControlPlaneError) -> int:
    if isinstance(error, PermanentError):
        return 0
    return 1 if isinstance(error, StaleError) else 2


class KeyedLock:
    """Lets one task of this process at a time work on a key: a delete never overtakes the create that it undoes."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._users: Counter[Hashable] = Counter()

    def is_locked(self, key: Hashable) -> bool:
        """Whether a task works on this key now, or waits to."""
        return key in self._locks

    @contextlib.asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncGenerator[None]:
        """Wait for the lock of `key`, and keep it inside the context."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] += 1
        try:
            # The task that holds the lock is watched itself, so this wait is no standstill.
            with liveness.rest():
                await lock.acquire()
            try:
                yield
            finally:
                lock.release()
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]
