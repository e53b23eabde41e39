"""Connections to one address, and the circuit that stops attempts to connect.

This module owns the rule that keeps replies with their requests. A connection returns to its pool only after every
reply was read. After a cancellation, a timeout or any error it is closed. It must not know the data on a connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeVar

from slipway.errors import BusyError, UnavailableError
from slipway.runtime.clock import Clock, Random
from slipway.streams.redis_library import AbstractConnection

T = TypeVar("T")

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 2.0
_FAILURES_BEFORE_OPEN: Final = 3


class Circuit:
    """A circuit breaker: after a failure, every call fails at once until a jittered backoff has passed."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock, self._random = clock, random
        self._failures = 0
        self._closed_at_s = 0.0

    def check(self) -> None:
        """Raise `UnavailableError` while the circuit is open."""
        remaining_s = self._closed_at_s - self._clock.monotonic()
        if remaining_s > 0:
            raise UnavailableError("redis is unavailable", retry_after_s=remaining_s)

    def succeeded(self) -> None:
        """Record that the server answered."""
        self._failures, self._closed_at_s = 0, 0.0

    def failed(self, *, at_once: bool) -> bool:
        """Record a failure, and return whether the circuit is open now. A refused connection opens the circuit at once;
        a single reset or timeout does not.
        """
        self._failures += 1
        steps = self._failures if at_once else self._failures - _FAILURES_BEFORE_OPEN + 1
        if steps > 0:
            limit_s = min(_BACKOFF_MAX_S, _BACKOFF_FIRST_S * 2 ** min(steps - 1, 16))
            self._closed_at_s = self._clock.monotonic() + limit_s * (0.5 + 0.5 * self._random.random())
        return steps > 0


class Pool:
    """Connections to one address, each for one exchange at a time. Waiting callers get one in the order of their
    calls.
    """

    def __init__(self, open_connection: Callable[[], Awaitable[AbstractConnection]], size: int) -> None:
        self._open = open_connection
        self._idle: list[AbstractConnection] = []
        self._size = size
        self._slots = asyncio.Semaphore(size)

    @contextlib.asynccontextmanager
    async def slot(self, wait_s: float) -> AsyncGenerator[None]:
        """Hold the right to one exchange. Raises BusyError when none was free within `wait_s` seconds."""
        try:
            async with asyncio.timeout(wait_s):
                await self._slots.acquire()
        except TimeoutError as error:
            raise BusyError(
                f"all {self._size} connections to redis have been in use for {wait_s:g} s", retry_after_s=1.0
            ) from error
        try:
            yield
        finally:
            self._slots.release()

    async def use(self, exchange: Callable[[AbstractConnection], Awaitable[T]]) -> T:
        """Return the result of the exchange. The caller must hold a slot.

        The connection returns to the pool only when the exchange ends without an exception.
        """
        connection = await self._take()
        clean = False
        try:
            answer = await exchange(connection)
            clean = True
        finally:
            if clean:
                self._idle.append(connection)
            else:
                await connection.disconnect(nowait=True)
        return answer

    async def close_idle(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    async def _take(self) -> AbstractConnection:
        while self._idle:
            connection = self._idle.pop()
            # Unexpected bytes or an end of file: this connection must not be used again.
            if connection.is_connected and not await connection.can_read():
                return connection
            await connection.disconnect(nowait=True)
        return await self._open()
