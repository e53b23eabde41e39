"""A consumer group on the firehose on Redis, limited to the commands of the account `reader`, which may run no script.

This module owns the commands. It must not know what a handler does with an event.
"""

import itertools
from collections.abc import Sequence
from typing import Final

from slipway.errors import ControlPlaneError, TransientError, UnavailableError
from slipway.streams import codec, keys, rows
from slipway.streams.client import Command, RedisClient, command
from slipway.streams.event_groups import EventDelivery, GroupLag, by_shard, delivery, letter_of
from slipway.streams.pages import id_text
from slipway.streams.ports import DeadLetter
from slipway.streams.replies import GroupMissingError
from slipway.streams.routes import Reply

_POLL_S: Final = 0.2
_OWN_MAX: Final = 10_000
"""Limit on the consumer's own pending entries of a shard that are read; far more than a consumer claims."""


class RedisEventGroup:
    """The `EventGroup` on Redis, for one consumer."""

    def __init__(self, client: RedisClient, group: str, consumer: str) -> None:
        self._client, self._group, self._consumer = client, group, consumer
        self._turn = itertools.count()

    async def claim(self, *, limit: int, block_s: float) -> list[EventDelivery]:
        for attempt in itertools.count():
            try:
                return await self._claim(max(1, limit // keys.SHARDS), block_s)
            except GroupMissingError as exc:
                if attempt:
                    raise UnavailableError("the consumer group is deleted while it is created") from exc
                await self._create()
        return []

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[EventDelivery]:
        # Only some shards per call: each may return at least one entry, and `limit` must not be exceeded.
        start = next(self._turn) * limit
        shards = sorted({(start + offset) % keys.SHARDS for offset in range(min(limit, keys.SHARDS))})
        tail = (self._group, self._consumer, int(min_idle_s * 1_000), "0-0", "COUNT", max(1, limit // keys.SHARDS))
        replies = await self._client.pipeline([command("XAUTOCLAIM", keys.events(shard), *tail) for shard in shards])
        _raise_if_all_failed(replies)
        found: list[tuple[int, str, dict[str, bytes]]] = []
        for shard, reply in zip(shards, replies, strict=True):
            if isinstance(reply, GroupMissingError | TransientError):
                continue
            page = rows.entries(rows.checked([reply])[0][1])
            found += [(shard, id_text(entry_id), fields) for entry_id, fields in page]
        counts = await self._client.pipeline(
            [command("XPENDING", keys.events(shard), self._group, each, each, 1) for shard, each, _ in found]
        )
        return [
            delivery(shard, each, 1 if isinstance(reply, ControlPlaneError) or not reply else int(reply[0][3]), fields)
            for (shard, each, fields), reply in zip(found, counts, strict=True)
        ]

    async def keep(self, deliveries: Sequence[EventDelivery]) -> None:
        await self._touch({shard: set(ids) for shard, ids in by_shard(deliveries).items()}, "JUSTID")

    async def count_failure(self, delivery: EventDelivery) -> None:
        await self._touch({delivery.shard: {delivery.entry_id}})

    async def acknowledge(self, deliveries: Sequence[EventDelivery]) -> None:
        calls = [command("XACK", keys.events(shard), self._group, *ids) for shard, ids in by_shard(deliveries).items()]
        rows.checked(await self._client.pipeline(calls))

    async def dead_letter(self, delivery: EventDelivery, *, cause: str, deliveries: int) -> None:
        letter = rows.flat(letter_of(delivery, deliveries, cause))
        key = keys.letters(self._group)
        await self._client.run(command("XADD", key, "MAXLEN", "~", keys.LETTERS.length_max, "*", *letter))
        await self.acknowledge([delivery])

    async def lag(self) -> GroupLag:
        groups = await self._client.pipeline([Command(key, ("XINFO", "GROUPS", key)) for key in keys.EVENT_KEYS])
        newest = await self._client.pipeline(
            [command("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys.EVENT_KEYS]
        )
        _raise_if_all_failed(groups)
        places = [_place_of(self._group, reply) for reply in groups]
        # Entries are counted, because the server's lag stays wrong after a trim of an entry that the group never
        # received.
        calls = [
            command("XRANGE", key, f"({after}", "+", "COUNT", keys.LAG_MAX)
            for key, (_, after) in zip(keys.EVENT_KEYS, places, strict=True)
        ]
        waiting, behind_s = 0, 0.0
        for page, reply, (_, after) in zip(await self._client.pipeline(calls), newest, places, strict=True):
            if isinstance(page, ControlPlaneError) or isinstance(reply, ControlPlaneError) or not page or not reply:
                continue
            waiting += len(page)
            # For a group that has read nothing yet, the lag starts at the oldest waiting event.
            since_ms = codec.cursor_parts(after)[0] or rows.entry_id(page[0][0])[0]
            behind_s = max(behind_s, (rows.entry_id(reply[0][0])[0] - since_ms) / 1_000)
        return GroupLag(waiting=waiting, pending=sum(pending for pending, _ in places), behind_s=behind_s)

    async def leave(self) -> None:
        replies = await self._own_pending(keys.EVENT_KEYS, 1)
        # A consumer with pending entries stays in the group, because deleting it would lose them.
        empty = [key for key, reply in zip(keys.EVENT_KEYS, replies, strict=True) if not reply]
        calls = [Command(key, ("XGROUP", "DELCONSUMER", key, self._group, self._consumer)) for key in empty]
        await self._client.pipeline(calls)

    async def letters(self, *, after: str | None = None, limit: int = 100) -> list[DeadLetter]:
        start = f"({after}" if after is not None else "-"
        reply = await self._client.run(command("XRANGE", keys.letters(self._group), start, "+", "COUNT", limit))
        return [codec.decode_dead(id_text(entry_id), fields) for entry_id, fields in rows.entries(reply)]

    async def drop_letter(self, letter_id: str) -> None:
        await self._client.run(command("XDEL", keys.letters(self._group), letter_id))

    async def _claim(self, count: int, block_s: float) -> list[EventDelivery]:
        if self._client.is_cluster or block_s <= 0:
            return await self._poll(count, block_s)
        head = ("XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", count)
        block = ("BLOCK", max(1, int(block_s * 1_000)), "STREAMS", *keys.EVENT_KEYS, *(">" for _ in keys.EVENT_KEYS))
        return _delivered(await self._client.block(Command(keys.EVENT_KEYS[0], (*head, *block)), block_s=block_s))

    async def _poll(self, count: int, block_s: float) -> list[EventDelivery]:
        """Read each shard in turn, repeatedly. On a Cluster no command can wait for shards of several nodes."""
        clock = self._client.clock
        deadline_s = clock.monotonic() + block_s
        head = ("XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", count, "STREAMS")
        while True:
            replies = await self._client.pipeline([Command(key, (*head, key, ">")) for key in keys.EVENT_KEYS])
            good = [reply for reply in replies if not isinstance(reply, ControlPlaneError)]
            found = [each for reply in good for each in _delivered(reply)]
            missing = [reply for reply in replies if isinstance(reply, GroupMissingError)]
            if missing and not found:
                raise missing[0]
            if missing:
                await self._create()
            elif not good:
                rows.checked(replies)
            if found or clock.monotonic() >= deadline_s:
                return found
            await clock.sleep(_POLL_S)

    async def _create(self) -> None:
        """Create the groups at the start of the existing entries: `$` would skip entries added while the group was
        lost.
        """
        calls = [Command(key, ("XGROUP", "CREATE", key, self._group, "0", "MKSTREAM")) for key in keys.EVENT_KEYS]
        for reply in await self._client.pipeline(calls):
            if isinstance(reply, ControlPlaneError) and "BUSYGROUP" not in str(reply):
                raise reply

    async def _touch(self, wanted: dict[int, set[str]], *options: str) -> None:
        """XCLAIM of the consumer's own entries. Another consumer may have claimed an entry since, and keeps it."""
        names = [keys.events(shard) for shard in wanted]
        replies = rows.checked(await self._own_pending(names, _OWN_MAX))
        calls: list[Command] = []
        for (shard, ids), reply in zip(wanted.items(), replies, strict=True):
            own = [each[0].decode() for each in reply if each[0].decode() in ids]
            if own:
                calls.append(command("XCLAIM", keys.events(shard), self._group, self._consumer, 0, *own, *options))
        touched = await self._client.pipeline(calls)
        # A group that was lost since then has no pending entries: its events are delivered again.
        rows.checked([[] if isinstance(reply, GroupMissingError) else reply for reply in touched])

    async def _own_pending(self, names: Sequence[str], most: int) -> list[Reply | ControlPlaneError]:
        tail = (self._group, "-", "+", most, self._consumer)
        replies = await self._client.pipeline([command("XPENDING", key, *tail) for key in names])
        return [[] if isinstance(reply, GroupMissingError) else reply for reply in replies]


def _raise_if_all_failed(replies: Sequence[Reply | ControlPlaneError]) -> None:
    if replies and all(isinstance(reply, TransientError) for reply in replies):
        rows.checked(replies)


def _place_of(group: str, reply: Reply | ControlPlaneError) -> tuple[int, str]:
    """Return (entries pending, the id after which nothing was delivered) of the group in an XINFO GROUPS reply."""
    if not isinstance(reply, ControlPlaneError):
        for each in reply:
            row = dict(zip(each[::2], each[1::2], strict=True))
            if row[b"name"].decode() == group:
                return row[b"pending"], row[b"last-delivered-id"].decode()
    return 0, "0-0"


def _delivered(reply: Reply) -> list[EventDelivery]:
    return [
        delivery(keys.EVENT_KEYS.index(key), id_text(entry_id), 1, fields)
        for key, page in rows.by_stream(reply)
        for entry_id, fields in page
    ]
