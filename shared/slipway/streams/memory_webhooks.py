"""Webhook deliveries in memory, on the model of the server. Must not import redis."""

from collections.abc import Sequence
from functools import partial

from slipway.streams import codec, keys
from slipway.streams.memory_server import MemoryServer, pipeline
from slipway.streams.pages import id_text
from slipway.streams.webhooks import Delivery, Routable

_GROUP = keys.WEBHOOK_GROUP


class MemoryWebhooks:
    """The `Webhooks` in memory, for one consumer."""

    def __init__(self, server: MemoryServer, consumer: str) -> None:
        self._server, self._consumer = server, consumer

    async def is_first(self, *, silence_s: float) -> bool:
        await self._server.enter("webhooks.is_first")
        group = self._server.group(keys.EVENT_KEYS[0], _GROUP)
        now_s = self._server.clock.monotonic()
        heard = group.heard if group is not None else {}
        lively = (name for name, at_s in heard.items() if now_s - at_s <= silence_s)
        return self._consumer <= min(lively, default=self._consumer)

    async def take(self, *, limit: int, block_s: float) -> list[Routable]:
        deadline_s = self._server.clock.monotonic() + block_s
        while True:
            await self._server.enter("webhooks.take")
            if missing := [key for key in keys.EVENT_KEYS if self._server.group(key, _GROUP) is None]:
                for key in missing:
                    self._server.create_group(key, _GROUP, make=True)
                return []
            found = [
                Routable(shard=shard, entry_id=id_text(entry_id), fields=fields)
                for shard, key in enumerate(keys.EVENT_KEYS)
                for entry_id, fields in self._server.deliver(key, _GROUP, self._consumer, limit)
            ]
            if found or not await self._server.until_change(deadline_s, keys.EVENT_KEYS):
                return found

    async def take_again(self) -> list[Routable]:
        await self._server.enter("webhooks.take_again")
        return [
            Routable(shard=shard, entry_id=id_text(entry_id), fields=fields)
            for shard, key in enumerate(keys.EVENT_KEYS)
            if self._server.group(key, _GROUP) is not None
            for entry_id, fields in self._server.deliver_again(key, _GROUP, self._consumer, keys.WEBHOOK_HELD_MAX)
        ]

    async def take_abandoned(self, *, min_idle_s: float, limit: int) -> list[Routable]:
        await self._server.enter("webhooks.take_abandoned")
        return [
            Routable(shard=shard, entry_id=id_text(entry_id), fields=fields)
            for shard, key in enumerate(keys.EVENT_KEYS)
            for entry_id, fields, _ in self._server.claim(
                key, _GROUP, self._consumer, min_idle_s=min_idle_s, limit=limit
            )[1]
        ]

    async def route(self, routes: Sequence[tuple[Routable, Sequence[str]]]) -> None:
        await self._server.enter("webhooks.route")
        cap = keys.WEBHOOK.length_max
        pipeline(
            partial(self._server.add, keys.webhook(name), entry.fields, length_max=cap)
            for entry, names in routes
            for name in names
        )
        await self._server.enter("webhooks.ack")
        for entry, _ in routes:
            self._server.acknowledge(keys.events(entry.shard), _GROUP, [codec.cursor_parts(entry.entry_id)])

    async def claim(self, webhooks: Sequence[str], *, limit: int) -> list[Delivery]:
        await self._server.enter("webhooks.claim")
        return [
            Delivery(webhook=name, entry_id=id_text(entry_id), fields=fields)
            for name in self._there(webhooks)
            for entry_id, fields in self._server.deliver(keys.webhook(name), _GROUP, self._consumer, limit)
        ]

    async def held(self, webhooks: Sequence[str]) -> list[Delivery]:
        await self._server.enter("webhooks.held")
        limit = keys.WEBHOOK_HELD_MAX
        return [
            Delivery(webhook=name, entry_id=id_text(entry_id), fields=fields)
            for name in self._there(webhooks)
            for entry_id, fields in self._server.deliver_again(keys.webhook(name), _GROUP, self._consumer, limit)
        ]

    async def claim_abandoned(self, webhooks: Sequence[str], *, min_idle_s: float, limit: int) -> list[Delivery]:
        await self._server.enter("webhooks.claim_abandoned")
        return [
            Delivery(webhook=name, entry_id=id_text(entry_id), fields=fields)
            for name in webhooks
            for entry_id, fields, _ in self._server.claim(
                keys.webhook(name), _GROUP, self._consumer, min_idle_s=min_idle_s, limit=limit
            )[1]
        ]

    async def heartbeat(self, deliveries: Sequence[Delivery]) -> None:
        await self._server.enter("webhooks.heartbeat")
        for each in deliveries:
            entry_id = codec.cursor_parts(each.entry_id)
            self._server.touch(keys.webhook(each.webhook), _GROUP, self._consumer, entry_id)

    async def done(self, deliveries: Sequence[Delivery]) -> None:
        await self._server.enter("webhooks.done")
        for each in deliveries:
            key, entry_id = keys.webhook(each.webhook), codec.cursor_parts(each.entry_id)
            self._server.acknowledge(key, _GROUP, [entry_id])
            self._server.remove(key, entry_id)

    async def dead_letter(self, delivery: Delivery, *, cause: str, tries: int) -> None:
        await self._server.enter("webhooks.dead_letter")
        letter = codec.encode_dead_delivery(delivery, tries, cause)
        self._server.add(keys.DEAD.prefix, letter, length_max=keys.DEAD.length_max)
        await self.done([delivery])

    async def backlog(self, webhooks: Sequence[str]) -> list[int]:
        await self._server.enter("webhooks.backlog")
        streams = (self._server.stream(keys.webhook(name)) for name in webhooks)
        return [len(stream.entries) if stream is not None else 0 for stream in streams]

    async def forget(self, webhook: str) -> None:
        await self._server.enter("webhooks.forget")
        self._server.drop(keys.webhook(webhook))

    def _there(self, webhooks: Sequence[str]) -> list[str]:
        """Return the webhooks that have a queue, and create their groups. A queue is created by its first delivery."""
        for name in webhooks:
            if self._server.group(keys.webhook(name), _GROUP) is None:
                self._server.create_group(keys.webhook(name), _GROUP, make=False)
        return [name for name in webhooks if self._server.stream(keys.webhook(name)) is not None]
