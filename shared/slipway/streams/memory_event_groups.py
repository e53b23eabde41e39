"""A consumer group on the firehose in memory, on the model of the server. Must not import redis."""

import itertools
from collections.abc import Sequence

from slipway.streams import codec, keys
from slipway.streams.event_groups import EventDelivery, GroupLag, delivery, letter_of
from slipway.streams.memory_server import MemoryServer
from slipway.streams.pages import ZERO, id_text
from slipway.streams.ports import DeadLetter


class MemoryEventGroup:
    """The `EventGroup` in memory, for one consumer."""

    def __init__(self, server: MemoryServer, group: str, consumer: str) -> None:
        self._server, self._group, self._consumer = server, group, consumer
        self._turn = itertools.count()

    async def claim(self, *, limit: int, block_s: float) -> list[EventDelivery]:
        deadline_s = self._server.clock.monotonic() + block_s
        count = max(1, limit // keys.SHARDS)
        while True:
            await self._server.enter("events.claim")
            for key in keys.EVENT_KEYS:
                if self._server.group(key, self._group) is None:
                    self._server.create_group(key, self._group, make=True)
            found = [
                delivery(shard, id_text(entry_id), 1, fields)
                for shard, key in enumerate(keys.EVENT_KEYS)
                for entry_id, fields in self._server.deliver(key, self._group, self._consumer, count)
            ]
            if found or not await self._server.until_change(deadline_s, keys.EVENT_KEYS):
                return found

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[EventDelivery]:
        await self._server.enter("events.claim_abandoned")
        start = next(self._turn) * limit
        count = max(1, limit // keys.SHARDS)
        return [
            delivery(shard, id_text(entry_id), times, fields)
            for shard in sorted({(start + offset) % keys.SHARDS for offset in range(min(limit, keys.SHARDS))})
            for entry_id, fields, times in self._server.claim(
                keys.events(shard), self._group, self._consumer, min_idle_s=min_idle_s, limit=count
            )[1]
        ]

    async def keep(self, deliveries: Sequence[EventDelivery]) -> None:
        await self._server.enter("events.keep")
        for each in deliveries:
            entry_id = codec.cursor_parts(each.entry_id)
            self._server.touch(keys.events(each.shard), self._group, self._consumer, entry_id)

    async def count_failure(self, delivery: EventDelivery) -> None:
        await self._server.enter("events.count_failure")
        key, entry_id = keys.events(delivery.shard), codec.cursor_parts(delivery.entry_id)
        group = self._server.group(key, self._group)
        pending = group.pending.get(entry_id) if group is not None else None
        if pending is not None:
            self._server.touch(key, self._group, self._consumer, entry_id, deliveries=pending.deliveries + 1)

    async def acknowledge(self, deliveries: Sequence[EventDelivery]) -> None:
        await self._server.enter("events.acknowledge")
        for each in deliveries:
            self._server.acknowledge(keys.events(each.shard), self._group, [codec.cursor_parts(each.entry_id)])

    async def dead_letter(self, delivery: EventDelivery, *, cause: str, deliveries: int) -> None:
        await self._server.enter("events.dead_letter")
        letter = letter_of(delivery, deliveries, cause)
        self._server.add(keys.letters(self._group), letter, length_max=keys.LETTERS.length_max)
        await self.acknowledge([delivery])

    async def lag(self) -> GroupLag:
        await self._server.enter("events.lag")
        waiting, pending, behind_s = 0, 0, 0.0
        for key in keys.EVENT_KEYS:
            group = self._server.group(key, self._group)
            delivered = group.delivered if group is not None else ZERO
            pending += len(group.pending) if group is not None else 0
            page, newest = self._server.after(key, delivered, keys.LAG_MAX), self._server.newest(key, 1)
            waiting += len(page)
            if page and newest:
                behind_s = max(behind_s, (newest[0][0][0] - (delivered[0] or page[0][0][0])) / 1_000)
        return GroupLag(waiting=waiting, pending=pending, behind_s=behind_s)

    async def leave(self) -> None:
        await self._server.enter("events.leave")
        for key in keys.EVENT_KEYS:
            group = self._server.group(key, self._group)
            if group is not None and all(each.consumer != self._consumer for each in group.pending.values()):
                group.heard.pop(self._consumer, None)

    async def letters(self, *, after: str | None = None, limit: int = 100) -> list[DeadLetter]:
        await self._server.enter("events.letters")
        start = codec.cursor_parts(after) if after is not None else ZERO
        found = self._server.after(keys.letters(self._group), start, limit)
        return [codec.decode_dead(id_text(entry_id), fields) for entry_id, fields in found]

    async def drop_letter(self, letter_id: str) -> None:
        await self._server.enter("events.drop_letter")
        self._server.remove(keys.letters(self._group), codec.cursor_parts(letter_id))
