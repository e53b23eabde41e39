"""The event log and the firehose on Redis.

Owns the order of the two writes: first the firehose, then the allocation's own stream, whose last id is the only
cursor of who relays. They have different slots in a Redis Cluster, so they are two exchanges; a crash between them
costs a duplicate in the firehose (consumers dedupe by id), never a loss.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.streams import codec, keys, pages, rows, scripts
from slipway.streams.client import Command, RedisClient, command
from slipway.streams.ports import Appended, Entry, FirehoseEvent, Outcome, StoredEvent, Tally
from slipway.streams.routes import Reply
from slipway.streams.tail import Tail

_BATCH: Final = 256
_POLL_S: Final = 0.05


_Found = tuple[pages.Id, int, dict[str, bytes]]


class RedisEvents:
    """The `EventLog` on Redis."""

    def __init__(self, client: RedisClient, tail: Tail, tally: Tally) -> None:
        self._client, self._tail, self._tally = client, tail, tally

    async def append(self, entries: Sequence[Entry]) -> list[Appended]:
        found: list[Appended] = []
        for start in range(0, len(entries), _BATCH):
            found += await self._append_batch(entries[start : start + _BATCH])
        return found

    async def last_seqs(self, allocations: Sequence[AllocationId]) -> list[int | None]:
        commands = [command("XREVRANGE", keys.allocation(each), "+", "-", "COUNT", 1) for each in allocations]
        newest = [rows.entries(reply) for reply in rows.checked(await self._client.pipeline(commands))]
        return [page[0][0][1] if page else None for page in newest]

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 100) -> list[StoredEvent]:
        start = pages.id_text(pages.start_of(after))
        reply = await self._client.run(command("XRANGE", keys.allocation(allocation), f"({start}", "+", "COUNT", limit))
        return pages.events(rows.entries(reply), self._tally)

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[StoredEvent]:
        async with aclosing(self._tail.pages(keys.allocation(allocation), pages.start_of(after))) as found:
            async for page in found:
                for stored in pages.events(page, self._tally):
                    yield stored

    async def _append_batch(self, batch: Sequence[Entry]) -> list[Appended]:
        # What is there already would only repeat itself in the firehose.
        known = await self.last_seqs([entry.event.allocation_id for entry in batch])
        news = [entry.event for entry, last in zip(batch, known, strict=True) if last is None or entry.event.seq > last]
        rows.checked(await self._client.pipeline([_publish(event) for event in news]))
        begun: dict[AllocationId, int] = {}
        calls: list[Command] = []
        for entry in batch:
            # Only the first of a batch may begin a stream: the order holds even when a script is loaded half-way.
            first = begun.setdefault(entry.event.allocation_id, entry.event.seq)
            calls.append(_append(entry, oldest_seq=entry.oldest_seq if first == entry.event.seq else first))
        replies = rows.checked(await scripts.run_all(self._client, scripts.APPEND, calls))
        return [_appended(reply) for reply in replies]


def _publish(event: AllocationEvent) -> Command:
    key = keys.events(keys.shard_of(event.allocation_id))
    return command("XADD", key, "MAXLEN", "~", keys.EVENTS.length_max, "*", *rows.flat(codec.encode_event(event)))


def _append(entry: Entry, *, oldest_seq: int | None) -> Command:
    event = entry.event
    bridged: str | int = ""
    if event.truncated is not None:
        first, last = codec.truncated_range(event.truncated)
        bridged = first if last == event.seq - 1 else -1
    ends = event.type is Event.TERMINATED
    ttl_s = entry.expire_s if entry.expire_s is not None else (keys.ALLOCATION.ttl_s if ends else 0)
    return scripts.APPEND.call(
        keys.allocation(event.allocation_id),
        event.created_ms,
        event.seq,
        "" if oldest_seq is None else oldest_seq,
        bridged,
        keys.ALLOCATION.length_max,
        ttl_s,
        *rows.flat(codec.encode_event(event)),
    )


def _appended(reply: Reply) -> Appended:
    outcome, last_seq = reply
    return Appended(outcome=Outcome(outcome.decode()), last_seq=last_seq if last_seq >= 0 else None)


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
