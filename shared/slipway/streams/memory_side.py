"""The side ports in memory (traces, activity, dead letters, health) and the facade over all ports.

This module owns `MemoryStreams`, which the simulation passes to the services. It must not import redis.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from slipway.model.ids import AllocationId
from slipway.streams import codec, keys, pages
from slipway.streams.macs import Macs
from slipway.streams.memory import (
    MemoryEvents,
    MemoryFeed,
    MemoryFirehose,
    MemoryHints,
    MemoryWake,
    MemoryWorkQueue,
)
from slipway.streams.memory_decisions import MemoryDecisions
from slipway.streams.memory_event_groups import MemoryEventGroup
from slipway.streams.memory_gather import MemoryGatherings
from slipway.streams.memory_logouts import MemoryLogouts
from slipway.streams.memory_logs import MemoryLogs
from slipway.streams.memory_server import Fields, MemoryServer, pipeline
from slipway.streams.memory_webhooks import MemoryWebhooks
from slipway.streams.pages import id_text
from slipway.streams.ports import DeadLetter, NoTally, SpanRecord, Tally
from slipway.streams.server_health import ServerHealth


class MemoryTraces:
    """The `TraceLog` in memory."""

    def __init__(self, server: MemoryServer, tally: Tally) -> None:
        self._server, self._tally = server, tally

    async def append(self, spans: Mapping[AllocationId, Sequence[SpanRecord]]) -> None:
        await self._server.enter("traces.append")
        calls: list[Callable[[], object]] = []
        for allocation, ended in spans.items():
            key = keys.trace(allocation)
            for start in range(0, len(ended), keys.SPAN_PACK_MAX):
                pack = codec.encode_spans(ended[start : start + keys.SPAN_PACK_MAX])
                calls.append(partial(self._server.add, key, pack, length_max=keys.TRACE.length_max))
            calls.append(partial(self._server.expire, key, keys.TRACE.ttl_s))
        pipeline(calls)

    async def read(self, allocation: AllocationId, *, limit: int = 500) -> list[SpanRecord]:
        await self._server.enter("traces.read")
        return pages.spans(self._server.newest(keys.trace(allocation), limit), self._tally)[-limit:]


class MemoryActivity:
    """The `Activity` in memory."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def touch(self, times: Mapping[AllocationId, Mapping[str, float]]) -> None:
        await self._server.enter("activity.touch")
        pipeline(partial(self._touch, keys.activity(allocation), sources) for allocation, sources in times.items())

    async def read(self, allocations: Sequence[AllocationId]) -> list[Mapping[str, float]]:
        await self._server.enter("activity.read")
        return [codec.decode_times(self._server.hash_get(keys.activity(allocation))) for allocation in allocations]

    def _touch(self, key: str, sources: Mapping[str, float]) -> None:
        known = self._server.hash_get(key)
        values = {source: codec.encode_time(at_s) for source, at_s in sources.items()}
        newer = {name: at for name, at in values.items() if name not in known or int(known[name]) < int(at)}
        with self._server.script():
            if newer:
                self._server.hash_set(key, newer)
            self._server.expire(key, keys.ACTIVITY.ttl_s)


class MemoryDead:
    """The `DeadLetters` in memory."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def page(self, *, after: str | None = None, limit: int = 100) -> list[DeadLetter]:
        start = pages.start_of(after)
        await self._server.enter("dead.page")
        found = self._server.after(keys.DEAD.prefix, start, limit)
        return [codec.decode_dead(id_text(entry_id), fields) for entry_id, fields in found]

    async def find(self, letter_id: str) -> DeadLetter | None:
        fields = await self._find(letter_id)
        return None if fields is None else codec.decode_dead(id_text(codec.cursor_parts(letter_id)), fields)

    async def replay(self, letter_id: str) -> bool:
        fields = await self._find(letter_id)
        if fields is None:
            return False
        key, original = codec.replay_of(codec.decode_dead(letter_id, fields), fields)
        if original:
            self._server.add(key, original)
        return self._server.remove(keys.DEAD.prefix, codec.cursor_parts(letter_id))

    async def drop(self, letter_id: str) -> bool:
        entry_id = codec.cursor_parts(letter_id)
        await self._server.enter("dead.drop")
        return self._server.remove(keys.DEAD.prefix, entry_id)

    async def _find(self, letter_id: str) -> Fields | None:
        entry_id = codec.cursor_parts(letter_id)
        await self._server.enter("dead.find")
        stream = self._server.stream(keys.DEAD.prefix)
        return stream.entries.get(entry_id) if stream is not None else None


class MemoryHealth:
    """The `StreamsHealth` of the server model."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def ping(self) -> float:
        await self._server.enter("ping")
        self._server.add(keys.HEALTH.prefix, {"v": b"1"}, length_max=keys.HEALTH.length_max)
        return 0.0


class MemoryServerHealthReader:
    """The `Conditions` of the server model, which has no settings."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def look(self) -> ServerHealth:
        await self._server.enter("look")
        now = self._server.clock.now()
        dead = self._server.stream(keys.DEAD.prefix)
        return ServerHealth(
            product="model",
            version="7.0.0",
            time=now,
            asked_at=now,
            role="master",
            policy="noeviction",
            dead=len(dead.entries) if dead is not None else 0,
        )


class MemoryStreams:
    """All ports on one server model. Make one per simulated process."""

    def __init__(
        self,
        server: MemoryServer,
        tally: Tally | None = None,
        *,
        feed_macs: Macs | None = None,
        gather_macs: Macs | None = None,
    ) -> None:
        counts = tally if tally is not None else NoTally()
        self._server = server
        self.events = MemoryEvents(server, counts)
        self.firehose = MemoryFirehose(server, counts)
        self.hints = MemoryHints(server, counts)
        self.wake = MemoryWake(server)
        self.feed = MemoryFeed(server, feed_macs)
        self.logs = MemoryLogs(server, counts)
        self.traces = MemoryTraces(server, counts)
        self.activity = MemoryActivity(server)
        self.dead = MemoryDead(server)
        self.gatherings = MemoryGatherings(server, gather_macs)
        self.decisions = MemoryDecisions(server, counts)
        self.logouts = MemoryLogouts(server)
        self.health = MemoryHealth(server)
        self.conditions = MemoryServerHealthReader(server)

    def work_queue(self, consumer: str) -> MemoryWorkQueue:
        """Return the work queue for the consumer of that name."""
        return MemoryWorkQueue(self._server, consumer)

    def webhooks(self, consumer: str) -> MemoryWebhooks:
        """Return the webhook deliveries for the consumer of that name."""
        return MemoryWebhooks(self._server, consumer)

    def event_group(self, group: str, consumer: str) -> MemoryEventGroup:
        """Return a consumer group of an integration on the firehose, for the consumer of that name."""
        return MemoryEventGroup(self._server, group, consumer)

    async def aclose(self) -> None:
        """Nothing to close."""
