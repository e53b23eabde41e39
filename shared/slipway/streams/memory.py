"""The ports in memory: the simulation runs on them, and tests compare Redis with them.

This module keeps the same promises as `redis_streams.py` and passes the same suite, on the server model of
`memory_server.py`. It is deterministic: time comes from the server's clock, ids from its state. It must not import
redis.
"""

import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from slipway.errors import ExpiredError, InvalidError, PermanentError, StaleError
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.streams import codec, keys, pages, snapshot
from slipway.streams.codec import judge_order
from slipway.streams.macs import Macs
from slipway.streams.memory_server import Fields, MemoryServer, pipeline
from slipway.streams.pages import ZERO, Id, id_text
from slipway.streams.ports import (
    Appended,
    Claimed,
    EntryOutcome,
    FeedEntry,
    FeedPosition,
    FirehoseEvent,
    StoredEvent,
    StreamBacklog,
    StreamEntry,
    Tally,
    WakeUp,
    WorkHint,
)

_FOLLOW_PAGE = 256
_FOLLOW_WAIT_S = 3_600.0


class MemoryEvents:
    """The `EventLog` in memory."""

    def __init__(self, server: MemoryServer, tally: Tally) -> None:
        self._server, self._tally = server, tally

    async def append(self, entries: Sequence[StreamEntry]) -> list[Appended]:
        await self._server.enter("events.append")
        return pipeline(partial(self._append, entry) for entry in entries)

    async def last_seqs(self, allocations: Sequence[AllocationId]) -> list[int | None]:
        await self._server.enter("events.last_seqs")
        return [self._last_seq(keys.allocation(allocation)) for allocation in allocations]

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 100) -> list[StoredEvent]:
        start = pages.start_of(after)
        await self._server.enter("events.read")
        return pages.events(self._server.after(keys.allocation(allocation), start, limit), self._tally)

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[StoredEvent]:
        position = pages.start_of(after)
        async with aclosing(_pages(self._server, keys.allocation(allocation), position)) as found:
            async for page in found:
                for stored in pages.events(page, self._tally):
                    yield stored

    def _append(self, entry: StreamEntry) -> Appended:
        with self._server.script():
            return self._append_in_script(entry)

    def _append_in_script(self, entry: StreamEntry) -> Appended:
        event, key = entry.event, keys.allocation(entry.event.allocation_id)
        newest = self._server.newest(key, 1)
        if newest and newest[0][0][0] != event.created_ms:
            self._server.drop(key)
            return Appended(outcome=EntryOutcome.GAP, last_seq=None)
        if not newest and self._server.stream(key) is not None:
            self._server.drop(key)  # another client emptied the stream
        last_seq = newest[0][0][1] if newest else None
        outcome = judge_order(entry, last_seq)
        ends = event.type is Event.TERMINATED
        ttl_s = entry.expire_s if entry.expire_s is not None else (keys.ALLOCATION.ttl_s if ends else 0)
        if outcome is EntryOutcome.APPENDED:
            fields = codec.encode_event(event)
            shard = keys.shard_of(event.allocation_id)
            self._server.add(keys.events(shard), fields, length_max=keys.EVENTS.length_max)
            last_seq = event.seq
            position = (event.created_ms, event.seq)
            try:
                self._server.add(key, fields, entry_id=position, length_max=keys.ALLOCATION.length_max)
            except PermanentError:  # another client removed the end of the stream
                self._server.drop(key)
                return Appended(outcome=EntryOutcome.GAP, last_seq=None)
        is_first = outcome is EntryOutcome.APPENDED or self._server.ttl_s(key) is None
        if outcome is not EntryOutcome.GAP and ttl_s and is_first:
            self._server.expire(key, ttl_s)
        return Appended(outcome=outcome, last_seq=last_seq)

    def _last_seq(self, key: str) -> int | None:
        return self._server.end(key)[1] or None


async def _pages(server: MemoryServer, key: str, position: Id) -> AsyncGenerator[list[tuple[Id, Fields]]]:
    """Yield pages of entries after a position, for ever."""
    while True:
        await server.enter("follow")
        page = server.after(key, position, _FOLLOW_PAGE)
        if page:
            position = page[-1][0]
            yield page
        else:
            await server.until_change(server.clock.monotonic() + _FOLLOW_WAIT_S, (key,))


class MemoryFirehose:
    """The `Firehose` in memory."""

    def __init__(self, server: MemoryServer, tally: Tally) -> None:
        self._server, self._tally = server, tally

    async def tail(self) -> str:
        await self._server.enter("firehose.tail")
        return pages.firehose_cursor([self._server.end(key) for key in keys.EVENT_KEYS])

    async def read(self, *, after: str | None = None, limit: int = 100, block_s: float = 0.0) -> list[FirehoseEvent]:
        positions = pages.firehose_positions(after)
        deadline_s = self._server.clock.monotonic() + block_s
        while True:
            await self._server.enter("firehose.read")
            found = [
                (entry_id, shard, fields)
                for shard, key in enumerate(keys.EVENT_KEYS)
                for entry_id, fields in self._server.after(key, positions[shard], limit)
            ]
            if found or not await self._server.until_change(deadline_s, keys.EVENT_KEYS):
                return pages.firehose(found, positions, self._tally)

    async def has_lost(self, after: str) -> bool:
        await self._server.enter("firehose.has_lost")
        positions = pages.firehose_positions(after)
        oldest = [self._server.oldest_left(key) for key in keys.EVENT_KEYS]
        return any(left > position for left, position in zip(oldest, positions, strict=True))


class MemoryHints:
    """The `WorkHints` in memory."""

    def __init__(self, server: MemoryServer, tally: Tally) -> None:
        self._server, self._tally = server, tally

    async def send(self, hints: Sequence[WorkHint]) -> None:
        await self._server.enter("hints.send")
        for hint in hints:
            key = keys.work(keys.shard_of(hint.allocation))
            stream = self._server.stream(key)
            if stream is not None and len(stream.entries) >= keys.WORK_BACKLOG_MAX:
                self._tally.count("hints_dropped")
            else:
                self._server.add(key, codec.encode_hint(hint))


class MemoryWorkQueue:
    """The `WorkStream` in memory."""

    def __init__(self, server: MemoryServer, consumer: str) -> None:
        self._server, self._consumer = server, consumer
        self._turn = itertools.count()

    async def claim(self, *, limit: int, block_s: float) -> list[Claimed]:
        deadline_s = self._server.clock.monotonic() + block_s
        while True:
            await self._server.enter("queue.claim")
            missing = [key for key in keys.WORK_KEYS if self._server.group(key, keys.WORK_GROUP) is None]
            found = [] if missing and block_s > 0 else self._deliver(limit)
            for key in missing:
                self._server.create_group(key, keys.WORK_GROUP, make=True)
            if missing and not found:
                found = self._deliver(limit)
            if found or not await self._server.until_change(deadline_s, keys.WORK_KEYS):
                return found

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[Claimed]:
        await self._server.enter("queue.claim_abandoned")
        found: list[Claimed] = []
        start = next(self._turn)
        cursors = {(start + offset) % keys.SHARDS: ZERO for offset in range(keys.SHARDS)}
        while cursors and len(found) < limit:
            count = max(1, (limit - len(found)) // len(cursors))
            for shard in list(cursors):
                cursors[shard], idle = self._server.claim(
                    keys.work(shard),
                    keys.WORK_GROUP,
                    self._consumer,
                    min_idle_s=min_idle_s,
                    limit=count,
                    start=cursors[shard],
                )
                found += [codec.decode_claim(shard, id_text(each), times, fields) for each, fields, times in idle]
                if cursors[shard] == ZERO:
                    del cursors[shard]
        return found

    async def ack(self, claimed: Sequence[Claimed]) -> None:
        await self._server.enter("queue.ack")
        pipeline(
            partial(
                self._server.acknowledge, keys.work(each.shard), keys.WORK_GROUP, [codec.cursor_parts(each.entry_id)]
            )
            for each in claimed
        )

    async def heartbeat(self, claimed: Sequence[Claimed]) -> None:
        await self._server.enter("queue.heartbeat")
        self._touch(claimed, deliveries=None)

    async def release(self, claimed: Sequence[Claimed]) -> None:
        await self._server.enter("queue.release")
        self._touch(claimed, deliveries=lambda each: max(0, each.deliveries - 1))

    async def dead_letter(self, claimed: Claimed, *, cause: str) -> None:
        await self._server.enter("queue.dead_letter")
        key, entry_id = keys.work(claimed.shard), codec.cursor_parts(claimed.entry_id)
        stream = self._server.stream(key)
        fields = stream.entries.get(entry_id, {}) if stream is not None else {}
        letter = codec.encode_dead(key, claimed.entry_id, claimed.deliveries, cause, fields)
        self._server.add(keys.DEAD.prefix, letter, length_max=keys.DEAD.length_max)
        self._server.acknowledge(key, keys.WORK_GROUP, [entry_id])

    async def trim(self) -> int:
        await self._server.enter("queue.trim")
        gone = 0
        for key in keys.WORK_KEYS:
            stream = self._server.stream(key)
            if stream is not None and stream.groups:
                floors = [min([group.delivered, *group.pending]) for group in stream.groups.values()]
                gone += self._server.trim_below(key, min(floors))
        return gone

    async def forget_consumers(self, *, idle_s: float = 3_600.0) -> int:
        await self._server.enter("queue.forget_consumers")
        return sum(self._server.forget_consumers(key, keys.WORK_GROUP, idle_s=idle_s) for key in keys.WORK_KEYS)

    async def backlog(self) -> int:
        await self._server.enter("queue.backlog")
        return sum(self._count(keys.WORK_BACKLOG_MAX))

    async def standing(self) -> StreamBacklog:
        await self._server.enter("queue.standing")
        return self._count(keys.STANDING_MAX)

    def _count(self, most: int) -> StreamBacklog:
        waiting = in_work = 0
        for key in keys.WORK_KEYS:
            stream = self._server.stream(key)
            if stream is not None:
                group = stream.groups.get(keys.WORK_GROUP)
                delivered = group.delivered if group else ZERO
                waiting += min(most, sum(entry_id > delivered for entry_id in stream.entries))
                in_work += len(group.pending if group else ())
        return StreamBacklog(waiting=waiting, in_work=in_work)

    def _deliver(self, limit: int) -> list[Claimed]:
        """Return the new entries of every shard that has the group; each shard contributes its share of `limit`."""
        count = max(1, limit // keys.SHARDS)
        return [
            codec.decode_claim(shard, id_text(entry_id), 1, fields)
            for shard, key in enumerate(keys.WORK_KEYS)
            if self._server.hears_of_more(key, keys.WORK_GROUP, self._consumer)
            for entry_id, fields in self._server.deliver(key, keys.WORK_GROUP, self._consumer, count)
        ]

    def _touch(self, claimed: Sequence[Claimed], *, deliveries: Callable[[Claimed], int] | None) -> None:
        for each in claimed:
            times = deliveries(each) if deliveries is not None else None
            entry_id = codec.cursor_parts(each.entry_id)
            self._server.touch(keys.work(each.shard), keys.WORK_GROUP, self._consumer, entry_id, deliveries=times)


class MemoryWake:
    """The `Wake` in memory."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def ring(self, reason: str) -> None:
        await self._server.enter("wake.ring")
        self._server.add(keys.WAKE.prefix, {"reason": reason.encode()}, length_max=keys.WAKE.length_max)

    async def wait(self, after: str | None, *, timeout_s: float) -> WakeUp:
        position = None if after is None else codec.cursor_parts(after)
        deadline_s = self._server.clock.monotonic() + timeout_s
        while True:
            await self._server.enter("wake.wait")
            last = self._server.end(keys.WAKE.prefix)
            position = last if position is None else min(position, last)
            found = self._server.after(keys.WAKE.prefix, position, keys.WAKE.length_max)
            if found:
                reasons = tuple(fields.get("reason", b"").decode("utf-8", "replace") for _, fields in found)
                return WakeUp(cursor=id_text(found[-1][0]), reasons=reasons)
            if not await self._server.until_change(deadline_s, (keys.WAKE.prefix,)):
                return WakeUp(cursor=id_text(position), reasons=())


class MemoryFeed:
    """The raw `Feed` in memory."""

    def __init__(self, server: MemoryServer, macs: Macs | None = None) -> None:
        """With `macs`, written entries are signed, and signatures are required on reading."""
        self._server, self._macs = server, macs

    async def append(self, entries: Sequence[FeedEntry], *, after: str | None) -> str:
        await self._server.enter("feed.append")
        if not 0 < len(entries) <= keys.FEED_BATCH_MAX:
            raise InvalidError(f"a feed batch holds 1 to {keys.FEED_BATCH_MAX} entries")
        with self._server.script():
            return self._append(entries, after)

    def _append(self, entries: Sequence[FeedEntry], after: str | None) -> str:
        last = self._server.newest(keys.CLUSTER.prefix, 1)
        epoch = codec.feed_end(last[0][1], self._macs)[0] if last else 0
        if after is None and last and epoch >= entries[0].epoch:
            raise StaleError("the feed has another publisher")
        if after is not None and (not last or id_text(last[0][0]) != after):
            if epoch > entries[0].epoch:
                raise StaleError("the feed has another publisher")
            raise ExpiredError("the end of the feed is not what this publisher wrote")
        cursor = ZERO
        for start in range(0, len(entries), keys.FEED_PACK_MAX):
            fields = codec.encode_feed(entries[start : start + keys.FEED_PACK_MAX], self._macs)
            cursor = self._server.add(keys.CLUSTER.prefix, fields, length_max=keys.CLUSTER.length_max)
        return id_text(cursor)

    async def read(self, after: str | None, *, limit: int, block_s: float) -> list[tuple[str, FeedEntry]]:
        position, deadline_s = pages.start_of(after), self._server.clock.monotonic() + block_s
        while True:
            await self._server.enter("feed.read")
            found = self._server.after(keys.CLUSTER.prefix, position, limit)
            if found or not await self._server.until_change(deadline_s, (keys.CLUSTER.prefix,)):
                return pages.feed(found, limit, self._macs)

    async def position(self) -> FeedPosition:
        await self._server.enter("feed.position")
        last = self._server.newest(keys.CLUSTER.prefix, 1)
        if not last:
            return FeedPosition(cursor=None, epoch=0, number=0)
        epoch, number = codec.feed_end(last[0][1], self._macs)
        return FeedPosition(cursor=id_text(last[0][0]), epoch=epoch, number=number)

    async def keep(self, slot: int, parts: Mapping[str, bytes], *, anew: bool) -> None:
        await self._server.enter("feed.keep")
        key = keys.snapshot(slot)
        calls: list[Callable[[], object]] = [
            partial(self._server.hash_set, key, snapshot.signed(key, parts, self._macs)),
            partial(self._server.expire, key, keys.SNAPSHOT.ttl_s),
        ]
        pipeline([partial(self._server.drop, key), *calls] if anew else calls)

    async def kept(self, slot: int, parts: Sequence[str]) -> list[bytes | None]:
        await self._server.enter("feed.kept")
        key = keys.snapshot(slot)
        found = self._server.hash_get(key)
        values = [found.get(name) for name in snapshot.fields_of(parts, self._macs)]
        return snapshot.checked(key, parts, values, self._macs)
