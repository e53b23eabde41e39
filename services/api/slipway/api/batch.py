"""One verb for many allocations: how many at a time, in which order, until when, and what became of each.

Owns the bounds that keep a batch of one user from the others: a user's batches run one after the other; of one batch
`LANES` calls of Kubernetes are under way at most, of all together `LANES_OF_ALL`, first come, first served; what has
not begun when the time is over is not begun. Does not know what a verb does (`verbs.py`) nor who may (the route).

Invariants: every subject has exactly one item, in the order in which it was given. One that fails keeps no other from
being done. What is not reached was not touched.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from slipway.errors import ControlPlaneError, InvariantError, ThrottledError
from slipway.runtime.clock import Clock

S = TypeVar("S")
T = TypeVar("T")

LANES = 12
LANES_OF_ALL = 24
TIME_SHARE = 0.6
"""Of the time of a request; the rest is for what is under way when it is over, and for the answer."""


class NotReachedError(ControlPlaneError):
    """The time was over before its turn came."""


Tried = T | ControlPlaneError


class BatchLanes:
    """The bounds of all batches of this process."""

    def __init__(self, clock: Clock, *, request_s: float) -> None:
        self._clock = clock
        self._time_s = request_s * TIME_SHARE
        self._all = asyncio.Semaphore(LANES_OF_ALL)
        self._users: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncGenerator["Batch"]:
        """One batch of a user at a time. Raises ThrottledError when those before it take all of its time."""
        until_s = self._clock.monotonic() + self._time_s
        lock = self._users.setdefault(user, asyncio.Lock())
        try:
            async with asyncio.timeout(self._time_s):
                await lock.acquire()
        except TimeoutError:
            raise ThrottledError(
                f"another batch of {user[:128]} is under way; one runs at a time: send this one again when it is done"
            ) from None
        try:
            yield Batch(self._clock, self._all, until_s)
        finally:
            lock.release()


class Batch:
    """One batch under way."""

    def __init__(self, clock: Clock, lanes_of_all: asyncio.Semaphore, until_s: float) -> None:
        self._clock = clock
        self._all = lanes_of_all
        self._until_s = until_s

    async def each(
        self, subjects: Sequence[S], do: Callable[[S], Awaitable[T]], *, lanes: int = LANES
    ) -> list[Tried[T]]:
        """What `do` made of each, or the error of the tree that it raised.

        Raises:
            InvariantError: a fault of ours; what has not begun is not begun.
        """
        found: list[Tried[T]] = [NotReachedError("not reached")] * len(subjects)
        left = iter(enumerate(subjects))

        async def lane() -> None:
            for number, subject in left:
                async with self._all:
                    if self._clock.monotonic() >= self._until_s:
                        return
                    found[number] = await _tried(do, subject)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(lanes, len(subjects))):
                    group.create_task(lane())
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from faults
        return found


async def _tried(do: Callable[[S], Awaitable[T]], subject: S) -> Tried[T]:
    try:
        return await do(subject)
    except InvariantError:
        raise
    except ControlPlaneError as error:
        return error
