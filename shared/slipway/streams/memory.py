"""The ports in memory: what the simulation runs on, and what Redis is compared with.

Owns the same promises as `redis.py`, kept by the same contract suite, on the server model of `memory_server.py`.
Deterministic: time comes from the server's clock, ids from its state. Must not import redis.
"""

import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from slipway.errors import ExpiredError, InvalidError, StaleError
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.streams import codec, keys, pages
from slipway.streams.memory_server import Fields, MemoryServer
from slipway.streams.order import judge
from slipway.streams.pages import ZERO, Id, id_text
from slipway.streams.ports import (
    Appended,
    Claimed,
    Entry,
    FeedEntry,
    FeedPosition,
    FirehoseEvent,
    LogLine,
    Outcome,
    StoredEvent,
    StoredLine,
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

    async def append(self, entries: Sequence[Entry]) -> list[Appended]:
        await self._server.enter("events.append")
        return [self._append(entry) for entry in entries]

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

    def _append(self, entry: Entry) -> Appended:
        event, key = entry.event, keys.allocation(entry.event.allocation_id)
        newest = self._server.newest(key, 1)
        if newest and newest[0][0][0] != event.created_ms:
            self._server.drop(key)
            return Appended(outcome=Outcome.GAP, last_seq=None)
        last_seq = newest[0][0][1] if newest else None
        outcome = judge(entry, last_seq)
        ends = event.type is Event.TERMINATED
        ttl_s = entry.expire_s if entry.expire_s is not None else (keys.ALLOCATION.ttl_s if ends else 0)
        if outcome is Outcome.APPENDED:
            fields = codec.encode_event(event)
            shard = keys.shard_of(event.allocation_id)
            self._server.add(keys.events(shard), fields, length_max=keys.EVENTS.length_max)
            last_seq = event.seq
            position = (event.created_ms, event.seq)
            self._server.add(key, fields, entry_id=position, length_max=keys.ALLOCATION.length_max)
        if outcome is not Outcome.GAP and ttl_s:
            self._server.expire(key, ttl_s, keep_existing=outcome is Outcome.DUPLICATE)
        return Appended(outcome=outcome, last_seq=last_seq)

    def _last_seq(self, key: str) -> int | None:
        newest = self._server.newest(key, 1)
        return newest[0][0][1] if newest else None


async def _pages(server: MemoryServer, key: str, position: Id) -> AsyncGenerator[list[tuple[Id, Fields]]]:
    """Pages of entries after a position, for ever."""
    while True:
        await server.enter("follow")
        page = server.after(key, position, _FOLLOW_PAGE)
        if page:
            position = page[-1][0]
            yield page
        else:
            await server.until_change(server.clock.monotonic() + _FOLLOW_WAIT_S)


class MemoryFirehose:
    """The `Firehose` in memory."""

    def __init__(self, server: MemoryServer, tally: Tally) -> None:
        self._server, self._tally = server, tally

    async def tail(self) -> str:
        await self._server.enter("firehose.tail")
        streams = (self._server.stream(key) for key in keys.EVENT_KEYS)
        return pages.firehose_cursor([stream.last if stream else ZERO for stream in streams])

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
            if found or not await self._server.until_change(deadline_s):
                return pages.firehose(found, positions, self._tally)


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
    """The `WorkQueue` in memory."""

    def __init__(self, server: MemoryServer, consumer: str) -> None:
        self._server, self._consumer = server, consumer
        self._turn = itertools.count()

    async def claim(self, *, limit: int, block_s: float) -> list[Claimed]:
        deadline_s = self._server.clock.monotonic() + block_s
        while True:
            await self._server.enter("queue.claim")
            found: list[Claimed] = []
            for shard in self._shards():
                fresh = self._server.deliver(keys.work(shard), keys.WORK_GROUP, self._consumer, limit - len(found))
                found += [codec.decode_claim(shard, id_text(entry_id), 1, fields) for entry_id, fields in fresh]
                if len(found) >= limit:
                    break
            if found or not await self._server.until_change(deadline_s):
                return found

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[Claimed]:
        await self._server.enter("queue.claim_abandoned")
        found: list[Claimed] = []
        for shard in self._shards():
            idle = self._server.claim(
                keys.work(shard), keys.WORK_GROUP, self._consumer, min_idle_s=min_idle_s, limit=limit - len(found)
            )
            found += [codec.decode_claim(shard, id_text(entry_id), count, fields) for entry_id, fields, count in idle]
            if len(found) >= limit:
                break
        return found

    async def ack(self, claimed: Sequence[Claimed]) -> None:
        await self._server.enter("queue.ack")
        for each in claimed:
            self._server.acknowledge(keys.work(each.shard), keys.WORK_GROUP, [codec.cursor_parts(each.entry_id)])

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
        return 0  # the model keeps no consumers beyond their pending entries

    async def backlog(self) -> int:
        await self._server.enter("queue.backlog")
        waiting = 0
        for key in keys.WORK_KEYS:
            stream = self._server.stream(key)
            if stream is not None:
                group = stream.groups.get(keys.WORK_GROUP)
                delivered = group.delivered if group else ZERO
                waiting += sum(entry_id > delivered for entry_id in stream.entries) + len(
                    group.pending if group else ()
                )
        return waiting

    def _shards(self) -> list[int]:
        start = next(self._turn) % keys.SHARDS
        return [(start + offset) % keys.SHARDS for offset in range(keys.SHARDS)]

    def _touch(self, claimed: Sequence[Claimed], *, deliveries: Callable[[Claimed], int] | None) -> None:
        for each in claimed:
            stream = self._server.stream(keys.work(each.shard))
            group = stream.groups.get(keys.WORK_GROUP) if stream is not None else None
            pending = group.pending.get(codec.cursor_parts(each.entry_id)) if group is not None else None
            if pending is not None and pending.consumer == self._consumer:
                pending.delivered_s = self._server.clock.monotonic()
                if deliveries is not None:
                    pending.deliveries = deliveries(each)


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
            stream = self._server.stream(keys.WAKE.prefix)
            last = stream.last if stream is not None else ZERO
            position = last if position is None else min(position, last)
            found = self._server.after(keys.WAKE.prefix, position, keys.WAKE.length_max)
            if found:
                reasons = tuple(fields.get("reason", b"").decode("utf-8", "replace") for _, fields in found)
                return WakeUp(cursor=id_text(found[-1][0]), reasons=reasons)
            if not await self._server.until_change(deadline_s):
                return WakeUp(cursor=id_text(position), reasons=())


class MemoryFeed:
    """The raw `Feed` in memory."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def append(self, entries: Sequence[FeedEntry], *, after: str | None) -> str:
        await self._server.enter("feed.append")
        if not entries:
            raise InvalidError("nothing to append")
        last = self._server.newest(keys.CLUSTER.prefix, 1)
        epoch = codec.feed_end(last[0][1])[0] if last else 0
        if after is None and last and epoch >= entries[0].epoch:
            raise StaleError("the feed has another publisher")
        if after is not None and (not last or id_text(last[0][0]) != after):
            if epoch > entries[0].epoch:
                raise StaleError("the feed has another publisher")
            raise ExpiredError("the end of the feed is not what this publisher wrote")
        cursor = ZERO
        for entry in entries:
            fields = codec.encode_feed([entry])
            cursor = self._server.add(keys.CLUSTER.prefix, fields, length_max=keys.CLUSTER.length_max)
        return id_text(cursor)

    async def read(self, after: str | None, *, limit: int, block_s: float) -> list[tuple[str, FeedEntry]]:
        position, deadline_s = pages.start_of(after), self._server.clock.monotonic() + block_s
        while True:
            await self._server.enter("feed.read")
            found = self._server.after(keys.CLUSTER.prefix, position, limit)
            if found or not await self._server.until_change(deadline_s):
                return pages.feed(found, limit)

    async def position(self) -> FeedPosition:
        await self._server.enter("feed.position")
        last = self._server.newest(keys.CLUSTER.prefix, 1)
        if not last:
            return FeedPosition(cursor=None, epoch=0, number=0)
        epoch, number = codec.feed_end(last[0][1])
        return FeedPosition(cursor=id_text(last[0][0]), epoch=epoch, number=number)


class MemoryLogs:
    """The `LogLines` in memory."""

    def __init__(self, server: MemoryServer, tally: Tally) -> None:
        self._server, self._tally = server, tally

    async def append(self, lines: Mapping[AllocationId, Sequence[LogLine]]) -> None:
        await self._server.enter("logs.append")
        for allocation, said in lines.items():
            key = keys.logs(allocation)
            for line in said:
                self._server.add(key, codec.encode_line(line), length_max=keys.LOGS.length_max)
            self._server.expire(key, keys.LOGS.ttl_s)

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 500) -> list[StoredLine]:
        start = pages.start_of(after)
        await self._server.enter("logs.read")
        return pages.lines(self._server.after(keys.logs(allocation), start, limit), self._tally)

    async def tail(self, allocation: AllocationId, *, limit: int) -> list[StoredLine]:
        await self._server.enter("logs.tail")
        return pages.lines(self._server.newest(keys.logs(allocation), limit), self._tally)

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[StoredLine]:
        position = pages.start_of(after)
        async with aclosing(_pages(self._server, keys.logs(allocation), position)) as found:
            async for page in found:
                for stored in pages.lines(page, self._tally):
                    yield stored
