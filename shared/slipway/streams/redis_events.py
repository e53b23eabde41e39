"""The event log and the firehose on Redis.

This module owns the order of the two writes: first the firehose, then the allocation's own stream. The last id of that
stream is the only cursor of a relay. On one server, a script does both writes or neither: one exchange, and no read
before it.

On a Redis Cluster the two keys have different slots, so there are two exchanges. A crash between the two causes a
duplicate in the firehose (consumers dedupe by id), never a loss. First the end of the stream is read. An entry that
does not fit this end is not published, and its result follows from this read. So the firehose has each subject in
order. The script checks again, atomically, because another relay may have changed the stream since.

Invariant: every entry of an allocation's stream was published to the firehose before.

Consumer groups on the firehose use only the commands of the account `reader`, which may run no script.
"""

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from slipway.errors import ControlPlaneError, PermanentError, TransientError, UnavailableError
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.streams import codec, keys, pages, rows, scripts
from slipway.streams.client import Argument, Command, RedisClient, command
from slipway.streams.codec import judge_order
from slipway.streams.event_groups import EventDelivery, GroupLag, by_shard, delivery, letter_of
from slipway.streams.pages import id_text
from slipway.streams.ports import Appended, DeadLetter, EntryOutcome, FirehoseEvent, StoredEvent, StreamEntry, Tally
from slipway.streams.replies import GroupMissingError
from slipway.streams.routes import Reply
from slipway.streams.tail import Tail

_BATCH: Final = 256
_POLL_S: Final = 0.05
_NEVER: Final = -1


_Found = tuple[pages.Id, int, dict[str, bytes]]


class RedisEvents:
    """The `EventLog` on Redis."""

    def __init__(self, client: RedisClient, tail: Tail, tally: Tally) -> None:
        self._client, self._tail, self._tally = client, tail, tally

    async def append(self, entries: Sequence[StreamEntry]) -> list[Appended]:
        found: list[Appended] = []
        append = self._append_on_cluster if self._client.is_cluster else self._append_at_once
        for start in range(0, len(entries), _BATCH):
            found += await append(entries[start : start + _BATCH])
        return found

    async def last_seqs(self, allocations: Sequence[AllocationId]) -> list[int | None]:
        return [end[1] if end is not None else None for end in await self._newest(allocations)]

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 100) -> list[StoredEvent]:
        start = pages.id_text(pages.start_of(after))
        reply = await self._client.run(command("XRANGE", keys.allocation(allocation), f"({start}", "+", "COUNT", limit))
        return pages.events(rows.entries(reply), self._tally)

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[StoredEvent]:
        async with aclosing(self._tail.pages(keys.allocation(allocation), pages.start_of(after))) as found:
            async for page in found:
                for stored in pages.events(page, self._tally):
                    yield stored

    async def _append_at_once(self, batch: Sequence[StreamEntry]) -> list[Appended]:
        calls = [_append(entry, rows.flat(codec.encode_event(entry.event)), hose=True) for entry in batch]
        return [_appended(reply) for reply in rows.checked(await scripts.run_all(self._client, scripts.APPEND, calls))]

    async def _append_on_cluster(self, batch: Sequence[StreamEntry]) -> list[Appended]:
        allocations = [entry.event.allocation_id for entry in batch]
        ends = dict(zip(allocations, await self._newest(allocations), strict=True))
        answers: list[Appended | None] = []
        calls: list[Command] = []
        before: list[Command] = []
        for entry in batch:
            event, end = entry.event, ends[entry.event.allocation_id]
            if end is not None and end[0] != event.created_ms:
                calls.append(_append(entry, (), may_begin=False))  # clears a stream of another object
                answers.append(None)
                ends[event.allocation_id] = None
                continue
            last_seq = end[1] if end is not None else None
            outcome = judge_order(entry, last_seq)
            if outcome is EntryOutcome.APPENDED:
                flat = rows.flat(codec.encode_event(event))
                # An entry that follows another must not begin a stream, in case the server has lost the stream since.
                calls.append(_append(entry, flat, may_begin=end is None))
                before.append(_publish(event, flat))
                answers.append(None)
                ends[event.allocation_id] = (event.created_ms, event.seq)
                continue
            if outcome is EntryOutcome.DUPLICATE and (ttl_s := _ttl_s(entry)):
                before.append(command("EXPIRE", keys.allocation(event.allocation_id), ttl_s, "NX"))
            answers.append(Appended(outcome=outcome, last_seq=last_seq))
        rows.checked(await self._client.pipeline(before))
        replies = iter(rows.checked(await scripts.run_all(self._client, scripts.APPEND, calls)))
        return [answer if answer is not None else _appended(next(replies)) for answer in answers]

    async def _newest(self, allocations: Sequence[AllocationId]) -> list[pages.Id | None]:
        commands = [command("XREVRANGE", keys.allocation(each), "+", "-", "COUNT", 1) for each in allocations]
        newest = [rows.entries(reply) for reply in rows.checked(await self._client.pipeline(commands))]
        return [page[0][0] if page else None for page in newest]


def _publish(event: AllocationEvent, flat: Sequence[Argument]) -> Command:
    return command("XADD", _shard_key(event), "MAXLEN", "~", keys.EVENTS.length_max, "*", *flat)


def _ttl_s(entry: StreamEntry) -> int:
    """Return the life of the stream after this entry in seconds; 0 means no expiry."""
    ends = entry.event.type is Event.TERMINATED
    return entry.expire_s if entry.expire_s is not None else (keys.ALLOCATION.ttl_s if ends else 0)


def _append(entry: StreamEntry, flat: Sequence[Argument], *, may_begin: bool = True, hose: bool = False) -> Command:
    event = entry.event
    bridged: str | int = ""
    if event.truncated is not None:
        first, last = codec.truncated_range(event.truncated)
        bridged = first if last == event.seq - 1 else _NEVER
    oldest_seq = _NEVER if not may_begin else "" if entry.oldest_seq is None else entry.oldest_seq
    args = (
        event.created_ms,
        event.seq,
        oldest_seq,
        bridged,
        keys.ALLOCATION.length_max,
        _ttl_s(entry),
        keys.EVENTS.length_max,
        *flat,
    )
    key = keys.allocation(event.allocation_id)
    if hose:
        return scripts.APPEND.call_on_two(key, _shard_key(event), *args)
    return scripts.APPEND.call(key, *args)


def _shard_key(event: AllocationEvent) -> str:
    return keys.EVENT_KEYS[keys.shard_of(event.allocation_id)]


def _appended(reply: Reply) -> Appended:
    outcome, last_seq = reply
    return Appended(outcome=EntryOutcome(outcome.decode()), last_seq=last_seq if last_seq >= 0 else None)


class RedisFirehose:
    """The `Firehose` on Redis."""

    def __init__(self, client: RedisClient, tally: Tally) -> None:
        self._client, self._tally = client, tally

    async def tail(self) -> str:
        commands = [command("XREVRANGE", key, "+", "-", "COUNT", 1) for key in keys.EVENT_KEYS]
        newest = [rows.entries(reply) for reply in rows.checked(await self._client.pipeline(commands))]
        return pages.firehose_cursor([page[0][0] if page else pages.ZERO for page in newest])

    async def read(self, *, after: str | None = None, limit: int = 100, block_s: float = 0.0) -> list[FirehoseEvent]:
        positions = pages.firehose_positions(after)
        found = await self._read_now(positions, limit)
        if not found and block_s > 0:
            found = await self._wait(positions, limit, block_s)
        return pages.firehose(found, positions, self._tally)

    async def has_lost(self, after: str) -> bool:
        positions = pages.firehose_positions(after)
        replies = await self._client.pipeline([Command(key, ("XINFO", "STREAM", key)) for key in keys.EVENT_KEYS])
        oldest = [pages.ZERO if isinstance(reply, PermanentError) else rows.oldest_left(reply) for reply in replies]
        return any(left > position for left, position in zip(oldest, positions, strict=True))

    async def _read_now(self, positions: Sequence[pages.Id], limit: int) -> list[_Found]:
        commands = [
            command("XRANGE", key, f"({pages.id_text(position)}", "+", "COUNT", limit)
            for key, position in zip(keys.EVENT_KEYS, positions, strict=True)
        ]
        replies = rows.checked(await self._client.pipeline(commands))
        return [
            (entry_id, shard, fields) for shard, reply in enumerate(replies) for entry_id, fields in rows.entries(reply)
        ]

    async def _wait(self, positions: Sequence[pages.Id], limit: int, block_s: float) -> list[_Found]:
        if self._client.is_cluster:
            clock = self._client.clock
            deadline_s = clock.monotonic() + block_s
            while clock.monotonic() < deadline_s:
                await clock.sleep(_POLL_S)
                if found := await self._read_now(positions, limit):
                    return found
            return []
        ids = [pages.id_text(position) for position in positions]
        block_ms = max(1, int(block_s * 1_000))
        each = Command(
            keys.EVENT_KEYS[0], ("XREAD", "COUNT", limit, "BLOCK", block_ms, "STREAMS", *keys.EVENT_KEYS, *ids)
        )
        shards = {key: shard for shard, key in enumerate(keys.EVENT_KEYS)}
        reply = await self._client.block(each, block_s=block_s)
        return [(entry_id, shards[key], fields) for key, page in rows.by_stream(reply) for entry_id, fields in page]


_GROUP_POLL_S: Final = 0.2
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
            await clock.sleep(_GROUP_POLL_S)

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
