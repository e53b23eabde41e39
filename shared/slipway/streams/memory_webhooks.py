"""Webhook deliveries in memory, on the model of the server. Must not import redis."""

from collections.abc import Sequence

from slipway.streams import codec, keys
from slipway.streams.memory_server import MemoryServer
from slipway.streams.pages import id_text
from slipway.streams.webhooks import Delivery, Routable

_GROUP = keys.WEBHOOK_GROUP


class MemoryWebhooks:
    """The `Webhooks` in memory, for one consumer."""

    def __init__(self, server: MemoryServer, consumer: str) -> None:
        self._server, self._consumer = server, consumer

    async def is_first(self, *, silence_s: float) -> bool:
        await self._server.enter("webhooks.is_first")
        stream = self._server.stream(keys.EVENT_KEYS[0])
        group = stream.groups.get(_GROUP) if stream is not None else None
        now_s = self._server.clock.monotonic()
        heard = group.heard if group is not None else {}
        lively = (name for name, at_s in heard.items() if now_s - at_s <= silence_s)
        return self._consumer <= min(lively, default=self._consumer)

    async def take(self, *, limit: int, block_s: float) -> list[Routable]:
        deadline_s = self._server.clock.monotonic() + block_s
        while True:
            await self._server.enter("webhooks.take")
            found = [
                Routable(shard=shard, entry_id=id_text(entry_id), fields=fields)
                for shard, key in enumerate(keys.EVENT_KEYS)
                for entry_id, fields in self._server.deliver(key, _GROUP, self._consumer, limit)
            ]
            if found or not await self._server.until_change(deadline_s):
                return found

    async def take_again(self) -> list[Routable]:
        await self._server.enter("webhooks.take_again")
        found: list[Routable] = []
        for shard, key in enumerate(keys.EVENT_KEYS):
            stream = self._server.stream(key)
            group = stream.groups.get(_GROUP) if stream is not None else None
            if stream is None or group is None:
                continue
            for entry_id, pending in sorted(group.pending.items()):
                if pending.consumer == self._consumer and entry_id in stream.entries:
                    found.append(Routable(shard=shard, entry_id=id_text(entry_id), fields=stream.entries[entry_id]))
        return found

    async def take_left(self, *, min_idle_s: float, limit: int) -> list[Routable]:
        await self._server.enter("webhooks.take_left")
        return [
            Routable(shard=shard, entry_id=id_text(entry_id), fields=fields)
            for shard, key in enumerate(keys.EVENT_KEYS)
            if self._server.stream(key) is not None
            for entry_id, fields, _ in self._server.claim(
                key, _GROUP, self._consumer, min_idle_s=min_idle_s, limit=limit
            )
        ]

    async def route(self, routes: Sequence[tuple[Routable, Sequence[str]]]) -> None:
        await self._server.enter("webhooks.route")
        for entry, names in routes:
            for name in names:
                self._server.add(keys.webhook(name), entry.fields, length_max=keys.WEBHOOK.length_max)
        await self._server.enter("webhooks.ack")
        for entry, _ in routes:
            self._server.acknowledge(keys.events(entry.shard), _GROUP, [codec.cursor_parts(entry.entry_id)])

    async def claim(self, webhooks: Sequence[str], *, limit: int) -> list[Delivery]:
        await self._server.enter("webhooks.claim")
        return [
            Delivery(webhook=name, entry_id=id_text(entry_id), fields=fields)
            for name in webhooks
            if self._server.stream(keys.webhook(name)) is not None
            for entry_id, fields in self._server.deliver(keys.webhook(name), _GROUP, self._consumer, limit)
        ]

    async def held(self, webhooks: Sequence[str]) -> list[Delivery]:
        await self._server.enter("webhooks.held")
        found: list[Delivery] = []
        for name in webhooks:
            stream = self._server.stream(keys.webhook(name))
            if stream is None or _GROUP not in stream.groups:
                continue
            for entry_id, pending in sorted(stream.groups[_GROUP].pending.items()):
                if pending.consumer == self._consumer and entry_id in stream.entries:
                    found.append(Delivery(webhook=name, entry_id=id_text(entry_id), fields=stream.entries[entry_id]))
        return found

    async def claim_left(self, webhooks: Sequence[str], *, min_idle_s: float, limit: int) -> list[Delivery]:
        await self._server.enter("webhooks.claim_left")
        return [
            Delivery(webhook=name, entry_id=id_text(entry_id), fields=fields)
            for name in webhooks
            if self._server.stream(keys.webhook(name)) is not None
            for entry_id, fields, _ in self._server.claim(
                keys.webhook(name), _GROUP, self._consumer, min_idle_s=min_idle_s, limit=limit
            )
        ]

    async def heartbeat(self, deliveries: Sequence[Delivery]) -> None:
        await self._server.enter("webhooks.heartbeat")
        for each in deliveries:
            stream = self._server.stream(keys.webhook(each.webhook))
            group = stream.groups.get(_GROUP) if stream is not None else None
            pending = group.pending.get(codec.cursor_parts(each.entry_id)) if group is not None else None
            if pending is not None and pending.consumer == self._consumer:
                pending.delivered_s = self._server.clock.monotonic()

    async def done(self, deliveries: Sequence[Delivery]) -> None:
        await self._server.enter("webhooks.done")
        for each in deliveries:
            key, entry_id = keys.webhook(each.webhook), codec.cursor_parts(each.entry_id)
            self._server.acknowledge(key, _GROUP, [entry_id])
            self._server.remove(key, entry_id)

    async def bury(self, delivery: Delivery, *, cause: str, tries: int) -> None:
        await self._server.enter("webhooks.bury")
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
