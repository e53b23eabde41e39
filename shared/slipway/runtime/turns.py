"""Turns of the event loop: a peer that sends very small pieces does not block other tasks.

A coroutine lets others run only where it waits. Reading data that has already arrived does not wait, nor does sending
data that the transport accepts at once. So a peer that sends a million pieces of one byte would occupy the event loop.
"""

import asyncio
from collections.abc import Callable

UNITS = 32
"""Messages or chunks per turn: a few milliseconds of work."""
BYTES = 16 * 1024
"""Bytes that a parser receives per turn: some 3,000 chunks of the smallest size."""


class UnitTurns:
    """A counter of the messages or chunks that one coroutine passes on."""

    def __init__(self) -> None:
        self._passed = 0

    async def passed(self) -> None:
        """Count one more. After every `UNITS`, let other tasks run."""
        self._passed += 1
        if self._passed % UNITS == 0:
            await asyncio.sleep(0)


class ByteTurns:
    """Pass the bytes that were read to a parser in pieces of at most `BYTES`, one per turn of the event loop.

    `take` receives a piece and returns whether it wants more. When all pieces are passed, `may_read` returns whether
    the transport may read again. Until then the transport is paused, so that at most the data of one read waits.
    """

    def __init__(self, take: Callable[[bytes], bool], may_read: Callable[[], bool]) -> None:
        self._take = take
        self._may_read = may_read
        self._rest = b""
        self._is_waiting = False

    def add(self, data: bytes, transport: asyncio.Transport) -> None:
        """Add the bytes that were read."""
        if self._is_waiting:
            self._rest += data
        else:
            self._go_on(data, transport)

    def _go_on(self, data: bytes, transport: asyncio.Transport) -> None:
        self._rest = data[BYTES:]
        wants_more = self._take(data[:BYTES])
        if not wants_more or transport.is_closing():
            self._rest, self._is_waiting = b"", False
        elif self._rest:
            self._is_waiting = True
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._next, transport)
        elif self._is_waiting:
            self._is_waiting = False
            if self._may_read():
                transport.resume_reading()

    def _next(self, transport: asyncio.Transport) -> None:
        if self._is_waiting:
            self._go_on(self._rest, transport)
