"""The proxy between services and Redis: bytes, which are cut off, stalled, slowed or torn by the rules."""

import asyncio

from tests.chaos.proxy.kube import Upstream, reset
from tests.chaos.proxy.messages import PIECE
from tests.chaos.proxy.rules import ActiveRule, Effect, Rules

TORN_BYTES = 7
"""The bytes of a reply that pass before the connection is reset."""


class _Pair:
    """One connection of a process, and its connection to Redis."""

    def __init__(self, down: asyncio.StreamWriter) -> None:
        self.down = down
        self.is_stalled = False


class RedisListener:
    """The address that one process uses as its Redis."""

    def __init__(self, name: str, upstream: Upstream, rules: Rules) -> None:
        self.name = name
        self._upstream = upstream
        self._rules = rules
        self._pairs: set[_Pair] = set()

    def strike(self, active_rule: ActiveRule) -> None:
        """Apply a new rule to the open connections."""
        if not active_rule.rule.is_for(self.name):
            return
        for pair in self._pairs:
            active_rule.struck += 1
            if active_rule.rule.kind is Effect.REDIS_CUT:
                reset(pair.down)
            elif active_rule.rule.kind is Effect.REDIS_STALLED:
                pair.is_stalled = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of the process, until either side closes it."""
        pair, up = _Pair(writer), None
        cut = self._rules.holding(self.name, Effect.REDIS_CUT)
        stalled = self._rules.holding(self.name, Effect.REDIS_STALLED)
        pair.is_stalled = stalled is not None
        self._pairs.add(pair)
        try:
            if cut is not None:
                cut.struck += 1
                raise ConnectionResetError
            above, up = await self._upstream.connect()
            there = asyncio.ensure_future(self._copy(pair, reader, up, is_reply=False))
            back = asyncio.ensure_future(self._copy(pair, above, writer, is_reply=True))
            try:
                done, _ = await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                there.cancel()
                back.cancel()
                await asyncio.wait({there, back})
        except OSError:
            reset(writer)
        finally:
            self._pairs.discard(pair)
            writer.close()
            if up is not None:
                up.close()

    async def _copy(
        self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        while data := await reader.read(PIECE):
            if pair.is_stalled:
                continue
            slow = self._rules.holding(self.name, Effect.REDIS_SLOW)
            if slow is not None:
                slow.struck += 1
                await asyncio.sleep(slow.rule.delay_s)
            torn = self._rules.draw(self.name, frozenset({Effect.REDIS_TORN})) if is_reply else None
            writer.write(data[:TORN_BYTES] if torn else data)
            await writer.drain()
            if torn:
                raise ConnectionResetError
        if pair.is_stalled and is_reply:
            await asyncio.Event().wait()
