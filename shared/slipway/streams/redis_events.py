"""The event log and the firehose on Redis.

This module owns the order of the two writes: first the firehose, then the allocation's own stream. The last id of that
stream is the only cursor of a relay. On one server, a script does both writes or neither: one exchange, and no read
before it.

On a Redis Cluster the two keys have different slots, so there are two exchanges. A crash between the two causes a
duplicate in the firehose (consumers dedupe by id), never a loss. First the end of the stream is read. An entry that
does not fit this end is not published, and its result follows from this read. So the firehose has each subject in
order. The script checks again, atomically, because another relay may have changed the stream since.

Invariant: every entry of an allocation's stream was published to the firehose before.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from slipway.errors import PermanentError
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.streams import codec, keys, pages, rows, scripts
from slipway.streams.client import Argument, Command, RedisClient, command
from slipway.streams.order import judge
from slipway.streams.ports import Appended, EntryOutcome, FirehoseEvent, StoredEvent, StreamEntry, Tally
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
            outcome = judge(entry, last_seq)
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
