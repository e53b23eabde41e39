"""One watch through the proxy: the rules stall, end, repeat or delay its events.

Owns the order: events are passed in the order of their arrival.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from slipway.runtime.clock import SystemClock
from tests.chaos.proxy.messages import chunk
from tests.chaos.proxy.rules import Effect, Rules

GONE = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version","reason":"Expired","code":410}}\n'
)


class Watch:
    """A watch of one process."""

    def __init__(self, listener: str, rules: Rules, writer: asyncio.StreamWriter) -> None:
        self._listener = listener
        self._rules = rules
        self._writer = writer
        self._clock = SystemClock()
        self._held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self.is_stalled = False
        """whether its events are dropped silently, until the client closes the connection"""
        self._ending = asyncio.Event()
        self._last_words = b""

    def strike(self, kind: Effect) -> None:
        """Apply an effect that needs no event."""
        match kind:
            case Effect.WATCH_STALLED:
                self.is_stalled = True
            case Effect.WATCH_CLOSED | Effect.WATCH_GONE:
                self._last_words = GONE if kind is Effect.WATCH_GONE else b""
                self._ending.set()
            case _:
                pass

    async def run(self, events: AsyncGenerator[bytes, None], reader: asyncio.StreamReader) -> None:
        """Run until the server ends it, a rule does, or the client closes."""
        for kind in (Effect.WATCH_STALLED, Effect.WATCH_CLOSED, Effect.WATCH_GONE):
            if self._rules.holding(self._listener, kind) is not None:
                self.strike(kind)
        if self._ending.is_set():
            await events.aclose()
            await self._end()
            return
        gone = asyncio.ensure_future(reader.read(1))
        taking = asyncio.ensure_future(self._take(events))
        passing = asyncio.ensure_future(self._pass())
        ending = asyncio.ensure_future(self._ending.wait())
        tasks = {gone, taking, passing, ending}
        try:
            await asyncio.wait({gone, passing, ending}, return_when=asyncio.FIRST_COMPLETED)
            if self.is_stalled and not gone.done():
                await gone
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not gone.cancelled():
            return
        if passing.done() and not passing.cancelled() and passing.exception() is not None:
            raise ConnectionResetError
        await self._end()

    async def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.write((chunk(self._last_words) if self._last_words else b"") + chunk(b""))
            await self._writer.drain()

    async def _take(self, events: AsyncGenerator[bytes, None]) -> None:
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    delayed = self._rules.holding(self._listener, Effect.WATCH_DELAYED)
                    due = self._clock.monotonic() + (delayed.rule.delay_s if delayed else 0.0)
                    if delayed:
                        delayed.struck += 1
                    self._held.put_nowait((due, event))
        except (OSError, asyncio.IncompleteReadError):
            self._held.put_nowait((-1.0, b""))
            return
        self._held.put_nowait((0.0, b""))

    async def _pass(self) -> None:
        """Write the events that are due; an empty line is the end, a time below 0 a bad end."""
        while True:
            due, event = await self._held.get()
            if not event and due < 0:
                raise ConnectionResetError
            if not event:
                return
            await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
            if self.is_stalled:
                continue
            self._writer.write(chunk(event))
            twice = self._rules.holding(self._listener, Effect.WATCH_DUPLICATED)
            if twice:
                twice.struck += 1
                self._writer.write(chunk(event))
            await self._writer.drain()
