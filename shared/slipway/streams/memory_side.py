"""The side ports in memory, and the facade over all ports. Must not import redis.

`MemoryStreams`, which the simulation passes to the services, has them all: traces, activity, dead letters, health, the
decision log (the twin of `lua/decisions.lua`), consumer groups on the firehose, gatherings (the twin of
`lua/gather.lua`), logouts, and webhook deliveries. They stand on the model of the server (`memory_server.py`).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from slipway.model.ids import AllocationId
from slipway.streams import codec, keys, pages
from slipway.streams.allgather import (
    BYTES_MAX,
    COST_BYTES,
    DATA_FIELD,
    KEPT_BYTES_MAX,
    MAC_FIELD,
    SEAT_FIELD,
    SILENCE_S,
    AllgatherState,
    Gathered,
    GatherKey,
    Seat,
    seat_code,
    seats_of,
    token_of,
)
from slipway.streams.decisions import DecisionEntry, DecisionLogLimits, StoredDecision
from slipway.streams.event_groups import EventDelivery, GroupLag, delivery, letter_of
from slipway.streams.macs import Macs
from slipway.streams.memory import (
    MemoryEvents,
    MemoryFeed,
    MemoryFirehose,
    MemoryHints,
    MemoryWake,
    MemoryWorkQueue,
)
from slipway.streams.memory_logs import MemoryLogs
from slipway.streams.memory_server import Fields, MemoryServer, pipeline
from slipway.streams.pages import ZERO, id_text
from slipway.streams.ports import DeadLetter, LogoutPage, NoTally, ServerHealth, SpanRecord, Tally
from slipway.streams.webhooks import Delivery, Routable

_SUM = "s"


class MemoryDecisions:
    """The `DecisionLog` in memory."""

    def __init__(self, server: MemoryServer, tally: Tally) -> None:
        self._server, self._tally = server, tally

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None, caps: DecisionLogLimits) -> str | None:
        codec.check_decision(entry, caps)
        await self._server.enter("decisions.append")
        with self._server.script():
            return self._append(keys.decisions(pool), entry, base, caps)

    def _append(self, key: str, entry: DecisionEntry, base: str | None, caps: DecisionLogLimits) -> str | None:
        newest = self._server.newest(key, 1)
        total = (int(newest[0][1].get(_SUM, b"0")) if newest else 0) + len(entry.data)
        stream = self._server.stream(key)
        while stream is not None and stream.entries:
            oldest_id, oldest = next(iter(stream.entries.items()))
            before = int(oldest.get(_SUM, b"0")) - len(oldest.get("d", b""))
            if oldest.get("n") == b"0" and len(stream.entries) < caps.entries and total - before <= caps.size:
                break
            self._server.remove(key, oldest_id)
        if base is not None and (stream is None or codec.cursor_parts(base) not in stream.entries):
            return None
        return pages.id_text(self._server.add(key, {_SUM: b"%d" % total, **codec.encode_decision(entry)}))

    async def read(self, pool: str, *, after: str | None = None, limit: int = 100) -> list[StoredDecision]:
        start = pages.start_of(after)
        await self._server.enter("decisions.read")
        return pages.decisions(self._server.after(keys.decisions(pool), start, limit), self._tally)


class MemoryEventGroup:
    """The `EventGroup` in memory, for one consumer."""

    def __init__(self, server: MemoryServer, group: str, consumer: str) -> None:
        self._server, self._group, self._consumer = server, group, consumer
        self._turn = itertools.count()

    async def claim(self, *, limit: int, block_s: float) -> list[EventDelivery]:
        deadline_s = self._server.clock.monotonic() + block_s
        count = max(1, limit // keys.SHARDS)
        while True:
            await self._server.enter("events.claim")
            for key in keys.EVENT_KEYS:
                if self._server.group(key, self._group) is None:
                    self._server.create_group(key, self._group, make=True)
            found = [
                delivery(shard, id_text(entry_id), 1, fields)
                for shard, key in enumerate(keys.EVENT_KEYS)
                for entry_id, fields in self._server.deliver(key, self._group, self._consumer, count)
            ]
            if found or not await self._server.until_change(deadline_s, keys.EVENT_KEYS):
                return found

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[EventDelivery]:
        await self._server.enter("events.claim_abandoned")
        start = next(self._turn) * limit
        count = max(1, limit // keys.SHARDS)
        return [
            delivery(shard, id_text(entry_id), times, fields)
            for shard in sorted({(start + offset) % keys.SHARDS for offset in range(min(limit, keys.SHARDS))})
            for entry_id, fields, times in self._server.claim(
                keys.events(shard), self._group, self._consumer, min_idle_s=min_idle_s, limit=count
            )[1]
        ]

    async def keep(self, deliveries: Sequence[EventDelivery]) -> None:
        await self._server.enter("events.keep")
        for each in deliveries:
            entry_id = codec.cursor_parts(each.entry_id)
            self._server.touch(keys.events(each.shard), self._group, self._consumer, entry_id)

    async def count_failure(self, delivery: EventDelivery) -> None:
        await self._server.enter("events.count_failure")
        key, entry_id = keys.events(delivery.shard), codec.cursor_parts(delivery.entry_id)
        group = self._server.group(key, self._group)
        pending = group.pending.get(entry_id) if group is not None else None
        if pending is not None:
            self._server.touch(key, self._group, self._consumer, entry_id, deliveries=pending.deliveries + 1)

    async def acknowledge(self, deliveries: Sequence[EventDelivery]) -> None:
        await self._server.enter("events.acknowledge")
        for each in deliveries:
            self._server.acknowledge(keys.events(each.shard), self._group, [codec.cursor_parts(each.entry_id)])

    async def dead_letter(self, delivery: EventDelivery, *, cause: str, deliveries: int) -> None:
        await self._server.enter("events.dead_letter")
        letter = letter_of(delivery, deliveries, cause)
        self._server.add(keys.letters(self._group), letter, length_max=keys.LETTERS.length_max)
        await self.acknowledge([delivery])

    async def lag(self) -> GroupLag:
        await self._server.enter("events.lag")
        waiting, pending, behind_s = 0, 0, 0.0
        for key in keys.EVENT_KEYS:
            group = self._server.group(key, self._group)
            delivered = group.delivered if group is not None else ZERO
            pending += len(group.pending) if group is not None else 0
            page, newest = self._server.after(key, delivered, keys.LAG_MAX), self._server.newest(key, 1)
            waiting += len(page)
            if page and newest:
                behind_s = max(behind_s, (newest[0][0][0] - (delivered[0] or page[0][0][0])) / 1_000)
        return GroupLag(waiting=waiting, pending=pending, behind_s=behind_s)

    async def leave(self) -> None:
        await self._server.enter("events.leave")
        for key in keys.EVENT_KEYS:
            group = self._server.group(key, self._group)
            if group is not None and all(each.consumer != self._consumer for each in group.pending.values()):
                group.heard.pop(self._consumer, None)

    async def letters(self, *, after: str | None = None, limit: int = 100) -> list[DeadLetter]:
        await self._server.enter("events.letters")
        start = codec.cursor_parts(after) if after is not None else ZERO
        found = self._server.after(keys.letters(self._group), start, limit)
        return [codec.decode_dead(id_text(entry_id), fields) for entry_id, fields in found]

    async def drop_letter(self, letter_id: str) -> None:
        await self._server.enter("events.drop_letter")
        self._server.remove(keys.letters(self._group), codec.cursor_parts(letter_id))


class MemoryGatherings:
    """The `Gatherings` in memory."""

    def __init__(self, server: MemoryServer, macs: Macs | None = None) -> None:
        """With `macs`, seats are signed, and signatures are required on reading."""
        self._server, self._macs = server, macs

    async def join(self, key: GatherKey, seat: Seat, *, peers: int, owner: str) -> Gathered:
        await self._server.enter("gather.join")
        with self._server.script():
            found = self._join(key, seat, peers=peers, owner=owner)
        is_in = found.outcome in (AllgatherState.OPEN, AllgatherState.COMPLETED)
        name, kept = _name(key), keys.gathered(key.allocation)
        if is_in and found.present == 1 and _number(self._server.hash_get(kept), "b") > KEPT_BYTES_MAX:
            self._server.drop(name)
            return msgspec.structs.replace(found, outcome=AllgatherState.SPENT)
        if found.outcome is AllgatherState.COMPLETED:
            self._add(kept, "b", _number(self._server.hash_get(name), "b") + COST_BYTES)
            self._server.expire(kept, keys.GATHER.ttl_s, keep_existing=True)
        return found

    def _join(self, key: GatherKey, seat: Seat, *, peers: int, owner: str) -> Gathered:
        name, id_ = _name(key), seat.request_id
        if self._is_done(name):
            return self._answer(name, AllgatherState.DONE)
        self._beat(name, owner)
        before = self._server.hash_get(name)
        sat = before.get(SEAT_FIELD + id_)
        others = _number(before, "c") - (sat is not None)
        if others > 0 and _number(before, "n") != peers:
            return self._answer(name, AllgatherState.MISMATCH)
        size = _number(before, "b") - len(before.get(DATA_FIELD + id_, b"")) + len(seat.data)
        if size > BYTES_MAX:
            return self._answer(name, AllgatherState.FULL)
        if sat is not None and token_of(sat) != seat.token:
            self._add(name, "v", 1)
        if "v" not in before:
            self._server.hash_set(name, {"v": _text(int(self._server.clock.now() * 1_000))})
        numbers = {"n": _text(peers), "c": _text(others + 1), "b": _text(size)}
        seated = f"{owner} {seat.token} {seat.rank}".encode()
        code = seat_code(name, seat, peers, self._macs)
        self._server.hash_cut(name, (MAC_FIELD + id_,))
        signed = {MAC_FIELD + id_: code} if code else {}
        self._server.hash_set(name, {**numbers, SEAT_FIELD + id_: seated, DATA_FIELD + id_: seat.data, **signed})
        self._server.expire(name, keys.GATHER.ttl_s)
        if others + 1 < peers:
            return self._answer(name, AllgatherState.OPEN)
        self._server.hash_set(name, {"s": b"1"})
        return self._answer(name, AllgatherState.COMPLETED)

    async def look(self, key: GatherKey, *, owner: str) -> Gathered:
        await self._server.enter("gather.look")
        name = _name(key)
        if not self._server.hash_get(name):
            return Gathered(outcome=AllgatherState.GONE, peers=0, present=0, version=0)
        if self._is_done(name):
            return self._answer(name, AllgatherState.DONE)
        with self._server.script():
            self._beat(name, owner)
            self._server.expire(name, keys.GATHER.ttl_s)
        return self._answer(name, AllgatherState.OPEN)

    async def leave(self, key: GatherKey, seat: Seat) -> None:
        await self._server.enter("gather.leave")
        name = _name(key)
        sat = self._server.hash_get(name).get(SEAT_FIELD + seat.request_id)
        is_own = sat is not None and token_of(sat) == seat.token
        with self._server.script():
            if not self._is_done(name) and is_own and self._drop(name, seat.request_id) == 0:
                self._server.drop(name)

    async def tokens(self, key: GatherKey, request_ids: Sequence[str]) -> list[str]:
        await self._server.enter("gather.tokens")
        found = self._server.hash_get(_name(key))
        raw = [found.get(SEAT_FIELD + request_id) for request_id in request_ids]
        return [token_of(each) if each is not None else "" for each in raw]

    async def seats(self, key: GatherKey, *, are_all: bool = False) -> list[Seat]:
        await self._server.enter("gather.seats")
        name = _name(key)
        return seats_of(self._server.hash_get(name), name, self._macs, are_all=are_all)

    async def forget(self, key: GatherKey) -> None:
        await self._server.enter("gather.forget")
        self._server.drop(_name(key))

    def _is_done(self, name: str) -> bool:
        return self._server.hash_get(name).get("s") == b"1"

    def _answer(self, name: str, outcome: AllgatherState) -> Gathered:
        found = self._server.hash_get(name)
        peers, present, version = (_number(found, field) for field in ("n", "c", "v"))
        return Gathered(outcome=outcome, peers=peers, present=present, version=version)

    def _beat(self, name: str, owner: str) -> None:
        now_s = self._server.clock.monotonic()
        found = self._server.hash_get(name)
        beats = dict(part.split("=") for part in found.get("o", b"").decode().split())
        gone = {each for each, at in beats.items() if each != owner and now_s - float(at) > SILENCE_S}
        kept = {each: at for each, at in beats.items() if each not in gone} | {owner: repr(now_s)}
        self._server.hash_set(name, {"o": " ".join(f"{each}={at}" for each, at in kept.items()).encode()})
        for field, raw in found.items():
            if field.startswith(SEAT_FIELD) and raw.split(b" ")[0].decode() in gone:
                self._drop(name, field.removeprefix(SEAT_FIELD))
                self._add(name, "v", 1)

    def _drop(self, name: str, request_id: str) -> int:
        size = len(self._server.hash_get(name)[DATA_FIELD + request_id])
        self._add(name, "b", -size)
        self._server.hash_cut(name, (SEAT_FIELD + request_id, DATA_FIELD + request_id, MAC_FIELD + request_id))
        return self._add(name, "c", -1)

    def _add(self, name: str, field: str, amount: int) -> int:
        value = _number(self._server.hash_get(name), field) + amount
        self._server.hash_set(name, {field: _text(value)})
        return value


def _name(key: GatherKey) -> str:
    return keys.gather(key.allocation, key.attempt, key.group)


def _number(fields: dict[str, bytes], name: str) -> int:
    return int(fields.get(name, b"0"))


def _text(number: int) -> bytes:
    return str(number).encode()


class MemoryLogouts:
    """The `Logouts` on the server model."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def append(self, ended: Mapping[str, float]) -> None:
        await self._server.enter("logouts.append")
        key, cap = keys.LOGOUTS.prefix, keys.LOGOUTS.length_max
        pipeline(
            partial(self._server.add, key, codec.encode_logout(login, ends_at), length_max=cap)
            for login, ends_at in ended.items()
        )

    async def read(self, after: str | None, *, limit: int) -> LogoutPage:
        start, key = pages.start_of(after), keys.LOGOUTS.prefix
        await self._server.enter("logouts.read")
        if self._server.end(key) < start:
            return LogoutPage(ended={}, cursor=None, is_lost=True)
        return pages.logouts(self._server.after(key, start, limit), after, limit)

    async def keep(self, login: str, text: str, ttl_s: int) -> None:
        await self._server.enter("logouts.keep")
        key = keys.sign_in(login)
        with self._server.script():
            self._server.hash_set(key, {"text": text.encode()})
            self._server.expire(key, ttl_s)

    async def kept(self, login: str) -> str:
        await self._server.enter("logouts.kept")
        return self._server.hash_get(keys.sign_in(login)).get("text", b"").decode()

    async def take(self, code: str, ttl_s: int) -> bool:
        await self._server.enter("logouts.take")
        key = keys.used_code(code)
        if self._server.hash_get(key):
            return False
        with self._server.script():
            self._server.hash_set(key, {"used": b"1"})
            self._server.expire(key, ttl_s)
        return True


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
