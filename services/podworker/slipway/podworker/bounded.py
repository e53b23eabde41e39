"""Many calls at once, but never too many: the one place where the pod worker starts tasks.

Owns the limit on calls under way in this process and what happens when some of them fail. Knows nothing of the calls.

Invariants: never more than the limit at once, over everything that runs; after a first failure no further call is
begun, and those under way are finished (a cancelled write is a write of unknown outcome); of several failures the
one that matters most is raised.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from slipway.errors import ControlPlaneError, PermanentError, StaleError

T = TypeVar("T")
Call = Callable[[], Awaitable[None]]


class Lanes:
    """At most `limit` calls at once; further ones wait for a free lane."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = asyncio.Semaphore(limit)

    async def one(self, call: Callable[[], Awaitable[T]]) -> T:
        """Runs one call in a lane."""
        async with self._free:
            return await call()

    async def all(self, calls: Iterable[Call]) -> None:
        """Runs all calls, in their order as lanes become free.

        Raises:
            ControlPlaneError: the gravest failure: a permanent one, else a stale one, else a transient one.
        """
        waiting = list(calls)
        if len(waiting) <= 1:
            for call in waiting:
                await self.one(call)
            return
        failures: list[ControlPlaneError] = []
        rest = iter(waiting)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self._limit, len(waiting))):
                tasks.create_task(self._work(rest, failures))
        if failures:
            raise min(failures, key=_gravity)

    async def _work(self, rest: Iterator[Call], failures: list[ControlPlaneError]) -> None:
        for call in rest:
            async with self._free:
                if failures:
                    return
                try:
                    await call()
                except ControlPlaneError as error:
                    failures.append(error)


def _gravity(error: ControlPlaneError) -> int:
    if isinstance(error, PermanentError):
        return 0
    return 1 if isinstance(error, StaleError) else 2


class Turns:
    """One at a time per key, within this process: a delete never overtakes the create that it undoes."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, asyncio.Lock] = {}
        self._users: Counter[Hashable] = Counter()

    def is_taken(self, key: Hashable) -> bool:
        """Whether somebody is at it now."""
        return key in self._locks

    @contextlib.asynccontextmanager
    async def of(self, key: Hashable) -> AsyncGenerator[None]:
        """Waits for the turn of `key`, and holds it inside."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._users[key] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]
