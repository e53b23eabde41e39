"""Runs one operation for many subjects of a request, with limits on concurrency and time.

Owns the limits that protect other users from a large batch: the batches of one user run one after the other; one batch
has at most `LANES` operations in progress, and all batches together at most `LANES_OF_ALL`, first come, first served;
after the deadline no operation begins. Does not know what an operation does (`verbs.py`), nor who has the permission
for it (the route).

Invariants: every subject has exactly one result, in the order in which the subjects were given. A failed operation does
not stop the others. A subject that is not reached was not changed.
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
"""Part of the request's timeout in which operations may begin; the rest is for running operations and the answer."""


class BatchDeadlineError(ControlPlaneError):
    """The deadline of the batch passed before the operation began."""


Tried = T | ControlPlaneError


class BatchLimits:
    """The limits of all batches of this process."""

    def __init__(self, clock: Clock, *, request_s: float) -> None:
        self._clock = clock
        self._time_s = request_s * TIME_SHARE
        self._all = asyncio.Semaphore(LANES_OF_ALL)
        self._users: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncGenerator["Batch"]:
        """Run one batch of a user at a time. Raises ThrottledError when earlier batches use up its time."""
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
    """One running batch."""

    def __init__(self, clock: Clock, lanes_of_all: asyncio.Semaphore, until_s: float) -> None:
        self._clock = clock
        self._all = lanes_of_all
        self._until_s = until_s

    async def each(
        self, subjects: Sequence[S], do: Callable[[S], Awaitable[T]], *, lanes: int = LANES
    ) -> list[Tried[T]]:
        """Run `do` for each subject. Return its result, or the ControlPlaneError that it raised, for each.

        Raises:
            InvariantError: a bug of ours; no further operation begins.
        """
        found: list[Tried[T]] = [BatchDeadlineError("not reached")] * len(subjects)
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
