"""Webhook deliveries on Redis: a consumer group over the firehose, and a stream for each webhook.

This module owns the commands of both stages. It must not know which event is delivered where. A copy is written before
its original is acknowledged, and a dead letter before its delivery is removed. The keys have different slots, so the
two writes are not atomic: a crash between them leaves a second copy or letter, but loses none.
"""

from collections.abc import Sequence
from typing import Final

from slipway.errors import ControlPlaneError, PermanentError, TransientError
from slipway.streams import codec, keys, rows, scripts
from slipway.streams.client import Command, RedisClient, command
from slipway.streams.pages import id_text
from slipway.streams.replies import GroupMissingError
from slipway.streams.routes import Reply
from slipway.streams.webhooks import Delivery, Routable

_POLL_S: Final = 0.2
_GROUP: Final = keys.WEBHOOK_GROUP
_BEYOND: Final = "18446744073709551615-0"
"""An id above that of any entry."""


class RedisWebhooks:
    """The `Webhooks` on Redis, for one consumer."""

    def __init__(self, client: RedisClient, consumer: str) -> None:
        self._client, self._consumer = client, consumer

    async def is_first(self, *, silence_s: float) -> bool:
        key = keys.EVENT_KEYS[0]
        reply = (await self._client.pipeline([Command(key, ("XINFO", "CONSUMERS", key, _GROUP))]))[0]
        if isinstance(reply, PermanentError):
            return True  # no such stream or group, so there is no other consumer yet
        [consumers] = rows.checked([reply])
        heard = [dict(zip(row[::2], row[1::2], strict=True)) for row in consumers]
        lively = (row[b"name"].decode() for row in heard if row[b"idle"] <= silence_s * 1_000)
        return self._consumer <= min(lively, default=self._consumer)

    async def take(self, *, limit: int, block_s: float) -> list[Routable]:
        if self._client.is_cluster:
            return await self._poll(limit, block_s)
        head = ("XREADGROUP", "GROUP", _GROUP, self._consumer, "COUNT", limit)
        streams = ("STREAMS", *keys.EVENT_KEYS, *(">" for _ in keys.EVENT_KEYS))
        block = ("BLOCK", max(1, int(block_s * 1_000)))
        try:
            reply = await self._client.block(Command(keys.EVENT_KEYS[0], (*head, *block, *streams)), block_s=block_s)
        except GroupMissingError:
            await self._create([(key, _GROUP) for key in keys.EVENT_KEYS], make=True)
            return []
        shards = {key: shard for shard, key in enumerate(keys.EVENT_KEYS)}
        return [entry for key, page in rows.by_stream(reply) for entry in _routables(shards[key], page)]

    async def take_again(self) -> list[Routable]:
        head = ("XREADGROUP", "GROUP", _GROUP, self._consumer, "COUNT", keys.WEBHOOK_HELD_MAX, "STREAMS")
        replies = await self._client.pipeline([Command(key, (*head, key, "0")) for key in keys.EVENT_KEYS])
        found: list[Routable] = []
        for shard, reply in enumerate(replies):
            if not _lacks_group(reply):
                for _, page in rows.by_stream(rows.checked([reply])[0]):
                    found += _routables(shard, page)
        return found

    async def take_abandoned(self, *, min_idle_s: float, limit: int) -> list[Routable]:
        tail = (_GROUP, self._consumer, int(min_idle_s * 1_000), "0-0", "COUNT", limit)
        # In Redis 7.0 a claim that finds nothing does not reset the idle time of the consumer. A read of its own
        # pending entries does.
        alive = ("XREADGROUP", "GROUP", _GROUP, self._consumer, "STREAMS", keys.EVENT_KEYS[0], _BEYOND)
        calls = [command("XAUTOCLAIM", key, *tail) for key in keys.EVENT_KEYS]
        _, *replies = await self._client.pipeline([Command(keys.EVENT_KEYS[0], alive), *calls])
        found: list[Routable] = []
        for shard, page in enumerate(_claimed(replies)):
            found += _routables(shard, page)
        return found

    async def route(self, routes: Sequence[tuple[Routable, Sequence[str]]]) -> None:
        copies = [
            command("XADD", keys.webhook(name), "MAXLEN", "~", keys.WEBHOOK.length_max, "*", *rows.flat(entry.fields))
            for entry, names in routes
            for name in names
        ]
        rows.checked(await self._client.pipeline(copies))
        by_shard: dict[int, list[str]] = {}
        for entry, _ in routes:
            by_shard.setdefault(entry.shard, []).append(entry.entry_id)
        acks = [command("XACK", keys.events(shard), _GROUP, *ids) for shard, ids in by_shard.items()]
        rows.checked(await self._client.pipeline(acks))

    async def claim(self, webhooks: Sequence[str], *, limit: int) -> list[Delivery]:
        return await self._read(webhooks, ">", limit)

    async def held(self, webhooks: Sequence[str]) -> list[Delivery]:
        return await self._read(webhooks, "0", keys.WEBHOOK_HELD_MAX)

    async def claim_abandoned(self, webhooks: Sequence[str], *, min_idle_s: float, limit: int) -> list[Delivery]:
        tail = (_GROUP, self._consumer, int(min_idle_s * 1_000), "0-0", "COUNT", limit)
        calls = [command("XAUTOCLAIM", keys.webhook(name), *tail) for name in webhooks]
        found: list[Delivery] = []
        for name, page in zip(webhooks, _claimed(await self._client.pipeline(calls)), strict=True):
            found += _deliveries(name, page)
        return found

    async def heartbeat(self, deliveries: Sequence[Delivery]) -> None:
        calls = [
            scripts.TOUCH.call(
                keys.webhook(name), _GROUP, self._consumer, *(part for each in ids for part in (each, ""))
            )
            for name, ids in _by_webhook(deliveries).items()
        ]
        rows.checked(await scripts.run_all(self._client, scripts.TOUCH, calls))

    async def done(self, deliveries: Sequence[Delivery]) -> None:
        calls: list[Command] = []
        for name, ids in _by_webhook(deliveries).items():
            calls += [
                command("XACK", keys.webhook(name), _GROUP, *ids),
                command("XDEL", keys.webhook(name), *ids),
            ]
        rows.checked(await self._client.pipeline(calls))

    async def dead_letter(self, delivery: Delivery, *, cause: str, tries: int) -> None:
        letter = rows.flat(codec.encode_dead_delivery(delivery, tries, cause))
        await self._client.run(command("XADD", keys.DEAD.prefix, "MAXLEN", "~", keys.DEAD.length_max, "*", *letter))
        await self.done([delivery])

    async def backlog(self, webhooks: Sequence[str]) -> list[int]:
        return rows.checked(await self._client.pipeline([command("XLEN", keys.webhook(name)) for name in webhooks]))

    async def forget(self, webhook: str) -> None:
        await self._client.run(command("DEL", keys.webhook(webhook)))

    async def _poll(self, limit: int, block_s: float) -> list[Routable]:
        """Read each shard, repeatedly, because on a Cluster no command can wait for shards of several nodes."""
        clock = self._client.clock
        deadline_s = clock.monotonic() + block_s
        head = ("XREADGROUP", "GROUP", _GROUP, self._consumer, "COUNT", limit, "STREAMS")
        while True:
            calls = [Command(key, (*head, key, ">")) for key in keys.EVENT_KEYS]
            replies = await self._client.pipeline(calls)
            missing = [key for key, reply in zip(keys.EVENT_KEYS, replies, strict=True) if _lacks_group(reply)]
            await self._create([(key, _GROUP) for key in missing], make=True)
            good = [reply for reply in replies if not isinstance(reply, ControlPlaneError)]
            if not good and not missing:
                rows.checked(replies)
            found: list[Routable] = []
            for reply in good:
                for key, page in rows.by_stream(reply):
                    found += _routables(keys.EVENT_KEYS.index(key), page)
            if found or clock.monotonic() >= deadline_s:
                return found
            await clock.sleep(_POLL_S)

    async def _read(self, webhooks: Sequence[str], position: str, limit: int) -> list[Delivery]:
        head = ("XREADGROUP", "GROUP", _GROUP, self._consumer, "COUNT", limit, "STREAMS")
        queues = [keys.webhook(name) for name in webhooks]
        calls = [Command(key, (*head, key, position)) for key in queues]
        replies = await self._client.pipeline(calls)
        missing = [place for place, reply in enumerate(replies) if _lacks_group(reply)]
        if missing:
            # A queue is created by its first delivery. Before that, a group cannot be created.
            await self._create([(queues[place], _GROUP) for place in missing], make=False)
            again = await self._client.pipeline([calls[place] for place in missing])
            for place, reply in zip(missing, again, strict=True):
                replies[place] = [] if _lacks_group(reply) else reply
        found: list[Delivery] = []
        for name, reply in zip(webhooks, rows.checked(replies), strict=True):
            for _, page in rows.by_stream(reply):
                found += _deliveries(name, page)
        return found

    async def _create(self, groups: Sequence[tuple[str, str]], *, make: bool) -> None:
        """Create the groups at the start of the existing entries: `$` would skip entries added while the group was
        lost.
        """
        extra = ("MKSTREAM",) if make else ()
        calls = [Command(key, ("XGROUP", "CREATE", key, group, "0", *extra)) for key, group in groups]
        for reply in await self._client.pipeline(calls):
            # Another process created the group first, or the queue does not exist yet.
            if isinstance(reply, ControlPlaneError) and not isinstance(reply, PermanentError):
                raise reply


def _lacks_group(reply: Reply | ControlPlaneError) -> bool:
    return isinstance(reply, GroupMissingError)


def _claimed(replies: Sequence[Reply | ControlPlaneError]) -> list[list[rows.Entry]]:
    """Return the entries of each XAUTOCLAIM; none for a stream without the group."""
    pages: list[list[rows.Entry]] = []
    for reply in replies:
        if isinstance(reply, TransientError):
            raise reply
        pages.append([] if _lacks_group(reply) else rows.entries(rows.checked([reply])[0][1]))
    return pages


def _routables(shard: int, page: Sequence[rows.Entry]) -> list[Routable]:
    return [Routable(shard=shard, entry_id=id_text(entry_id), fields=fields) for entry_id, fields in page]


def _deliveries(name: str, page: Sequence[rows.Entry]) -> list[Delivery]:
    return [Delivery(webhook=name, entry_id=id_text(entry_id), fields=fields) for entry_id, fields in page]


def _by_webhook(deliveries: Sequence[Delivery]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in deliveries:
        found.setdefault(each.webhook, []).append(each.entry_id)
    return found
