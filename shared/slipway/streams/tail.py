"""Many followers of many streams on one blocking connection.

This module decides which follower reads for the others. There is no separate task. While followers wait, one of them
leads: it reads for all and puts the entries into the others' inboxes. When it has an entry itself, it passes the lead
on. The module must not know the meaning of the entries.

Promises to each follower: every entry after its position, in order, once; `UnavailableError` when the server is away
(follow again from the last cursor). An inbox is bounded. A follower that does not empty its inbox is left out of the
next rounds, and later reads on from the end of its inbox.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from slipway.streams import rows
from slipway.streams.client import Command, RedisClient, command
from slipway.streams.pages import Id, id_text

_ROUND_S: Final = 1.0
_PAGE: Final = 256
_INBOX_PAGES_MAX: Final = 4
_ALONE_MAX: Final = 256
"""Of the followers that read by themselves, this many wait on one connection each; further ones poll."""
_POLL_S: Final = 0.25


class _Follower:
    def __init__(self, key: str, position: Id) -> None:
        self.key = key
        self.position = position
        self.inbox: deque[list[rows.Entry]] = deque()
        self.woken = asyncio.Event()

    def offer(self, page: list[rows.Entry]) -> None:
        fresh = [entry for entry in page if entry[0] > self.position]
        if fresh:
            self.position = fresh[-1][0]
            self.inbox.append(fresh)
            self.woken.set()


class Tail:
    """Follows streams. There is one instance per process."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._followers: set[_Follower] = set()
        self._round: set[_Follower] = set()
        self._is_led = False
        self._alone = 0

    async def pages(self, key: str, position: Id) -> AsyncGenerator[list[rows.Entry]]:
        """Yield non-empty pages of entries after the position, for ever."""
        follower = _Follower(key, position)
        self._followers.add(follower)
        try:
            follower.offer(rows.entries(await self._client.run(_range(follower))))
            while True:
                while not follower.inbox:
                    await self._fill(follower)
                yield follower.inbox.popleft()
        finally:
            self._followers.discard(follower)

    async def _fill(self, follower: _Follower) -> None:
        if self._client.is_cluster:
            await self._read_alone(follower)
        elif not self._is_led:
            await self._lead()
        elif follower in self._round:
            follower.woken.clear()
            await follower.woken.wait()
        else:
            # The current round began without this follower, so it reads by itself until the next round.
            await self._read_alone(follower)

    async def _read_alone(self, follower: _Follower) -> None:
        """Read one stream by itself. On a Redis Cluster this is always so: no command reads streams of different
        slots.
        """
        if self._alone >= _ALONE_MAX:
            await self._client.clock.sleep(_POLL_S)
            follower.offer(rows.entries(await self._client.run(_range(follower))))
            return
        self._alone += 1
        try:
            reply = await self._client.block(_read({follower.key: follower.position}), block_s=_ROUND_S)
        finally:
            self._alone -= 1
        for _, page in rows.by_stream(reply):
            follower.offer(page)

    async def _lead(self) -> None:
        self._is_led = True
        try:
            self._round = {each for each in self._followers if len(each.inbox) < _INBOX_PAGES_MAX}
            positions: dict[str, Id] = {}
            for each in self._round:
                positions[each.key] = min(each.position, positions.get(each.key, each.position))
            reply = await self._client.block(_read(positions), block_s=_ROUND_S)
            pages = dict(rows.by_stream(reply))
            for each in self._round:
                each.offer(pages.get(each.key, []))
        finally:
            self._is_led, self._round = False, set()
            for each in self._followers:
                # Every follower without an entry checks again; the first of them leads.
                if not each.inbox:
                    each.woken.set()


def _range(follower: _Follower) -> Command:
    return command("XRANGE", follower.key, f"({id_text(follower.position)}", "+", "COUNT", _PAGE)


def _read(positions: dict[str, Id]) -> Command:
    """Return XREAD over the streams, routed by the first key (outside a cluster, one server has all keys)."""
    keys = tuple(positions)
    ids = tuple(id_text(position) for position in positions.values())
    return Command(keys[0], ("XREAD", "COUNT", _PAGE, "BLOCK", int(_ROUND_S * 1_000), "STREAMS", *keys, *ids))
