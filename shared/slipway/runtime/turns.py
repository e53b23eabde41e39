"""Turns of the event loop: who sends in very small pieces does not keep it from others.

A coroutine gives others their turn only where it waits. Reading what is there already, and sending what the transport
takes at once, waits for nothing: a peer that sends a million pieces of one byte would have the loop for itself.
"""

import asyncio
from collections.abc import Callable

UNITS = 32
"""Messages or chunks for one turn: a few milliseconds."""
BYTES = 16 * 1024
"""What is given to a parser for one turn; of the smallest chunks these are some 3,000."""


class UnitTurns:
    """Counts what one coroutine passes on."""

    def __init__(self) -> None:
        self._passed = 0

    async def passed(self) -> None:
        """One more; now and then the others have their turn."""
        self._passed += 1
        if self._passed % UNITS == 0:
            await asyncio.sleep(0)


class ByteTurns:
    """Gives what was read to a parser in pieces of at most `BYTES`, one for each turn of the loop.

    `take` gets a piece and says whether it wants more; `may_read` says, when all is given, whether the transport may
    read again. Meanwhile the transport reads nothing, so that no more waits than one read brings.
    """

    def __init__(self, take: Callable[[bytes], bool], may_read: Callable[[], bool]) -> None:
        self._take = take
        self._may_read = may_read
        self._rest = b""
        self._is_waiting = False

    def add(self, data: bytes, transport: asyncio.Transport) -> None:
        """What was read."""
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
