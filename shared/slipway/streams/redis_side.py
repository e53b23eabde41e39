"""The smaller ports on Redis: wake-ups, the raw feed, traces, activity, dead letters, decisions, logouts, gatherings.

There is one small class per port, which does not know the meaning of the entries. The decision log is one stream per
pool. `Logouts` are a capped stream of ended logins, and one key with an expiry for each used code and each renewed
login. A gathering is one hash, whose numbers `lua/gather.lua` changes.

Source: https://redis.io/docs/latest/commands/set/ (NX)
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from slipway.errors import ExpiredError, InvalidError, StaleError
from slipway.model.ids import AllocationId
from slipway.streams import codec, keys, pages, rows, scripts, snapshot
from slipway.streams.allgather import (
    BYTES_MAX,
    COST_BYTES,
    KEPT_BYTES_MAX,
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
from slipway.streams.client import Argument, Command, RedisClient, command
from slipway.streams.decisions import DecisionEntry, DecisionLogLimits, StoredDecision
from slipway.streams.macs import Macs
from slipway.streams.ports import (
    DeadLetter,
    FeedEntry,
    FeedPosition,
    LogoutPage,
    SpanRecord,
    Tally,
    WakeUp,
)

_FEED_WIDTH: Final = 6
_FEED_WIDTH_SIGNED: Final = 8


class RedisWake:
    """The `Wake` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def ring(self, reason: str) -> None:
        key = keys.WAKE.prefix
        await self._client.run(command("XADD", key, "MAXLEN", "~", keys.WAKE.length_max, "*", "reason", reason))

    async def wait(self, after: str | None, *, timeout_s: float) -> WakeUp:
        position = await self._last() if after is None else codec.cursor_parts(after)
        block_ms = max(1, int(timeout_s * 1_000))
        args = ("XREAD", "BLOCK", block_ms, "STREAMS", keys.WAKE.prefix, pages.id_text(position))
        reply = await self._client.block(Command(keys.WAKE.prefix, args), block_s=timeout_s)
        found = [entry for _, page in rows.by_stream(reply) for entry in page]
        if not found:
            # A cursor above the end is older than a loss of the stream. A read from it would receive nothing for a long
            # time.
            return WakeUp(cursor=pages.id_text(min(position, await self._last())), reasons=())
        reasons = tuple(fields.get("reason", b"").decode("utf-8", "replace") for _, fields in found)
        return WakeUp(cursor=pages.id_text(found[-1][0]), reasons=reasons)

    async def _last(self) -> pages.Id:
        newest = rows.entries(await self._client.run(command("XREVRANGE", keys.WAKE.prefix, "+", "-", "COUNT", 1)))
        return newest[0][0] if newest else pages.ZERO


class RedisFeed:
    """The raw `Feed` on Redis."""

    def __init__(self, client: RedisClient, macs: Macs | None = None) -> None:
        """With `macs`, written entries are signed, and signatures are required on reading."""
        self._client, self._macs = client, macs

    async def append(self, entries: Sequence[FeedEntry], *, after: str | None) -> str:
        if not 0 < len(entries) <= keys.FEED_BATCH_MAX:
            raise InvalidError(f"a feed batch holds 1 to {keys.FEED_BATCH_MAX} entries")
        packs = [entries[start : start + keys.FEED_PACK_MAX] for start in range(0, len(entries), keys.FEED_PACK_MAX)]
        fields = [part for pack in packs for part in rows.flat(codec.encode_feed(pack, self._macs))]
        outcome, end = await self._appended(entries[0].epoch, after, fields)
        if outcome == b"stale" and self._macs is not None and codec.is_forged(await self._newest(), end, self._macs):
            outcome, end = await self._appended(entries[0].epoch, after, fields, forged=end)
        match outcome:
            case b"ok":
                return end.decode()
            case b"stale":
                raise StaleError("the feed has another publisher")
            case _:
                raise ExpiredError("the end of the feed is not what this publisher wrote")

    async def _appended(
        self, epoch: int, after: str | None, fields: Sequence[Argument], *, forged: bytes = b""
    ) -> tuple[bytes, bytes]:
        """Return (outcome, the new end or the end that conflicts). The end `forged` is never a conflict."""
        width = _FEED_WIDTH if self._macs is None else _FEED_WIDTH_SIGNED
        call = (epoch, after or "", keys.CLUSTER.length_max, width, forged, *fields)
        outcome, end = await scripts.run(self._client, scripts.FEED, keys.CLUSTER.prefix, *call)
        return outcome, end

    async def _newest(self) -> pages.Page:
        return rows.entries(await self._client.run(command("XREVRANGE", keys.CLUSTER.prefix, "+", "-", "COUNT", 1)))

    async def read(self, after: str | None, *, limit: int, block_s: float) -> list[tuple[str, FeedEntry]]:
        start = pages.id_text(pages.start_of(after))
        block = ("BLOCK", max(1, int(block_s * 1_000))) if block_s > 0 else ()
        args = ("XREAD", "COUNT", limit, *block, "STREAMS", keys.CLUSTER.prefix, start)
        reply = await self._client.block(Command(keys.CLUSTER.prefix, args), block_s=block_s)
        return [entry for _, page in rows.by_stream(reply) for entry in pages.feed(page, limit, self._macs)]

    async def position(self) -> FeedPosition:
        newest = await self._newest()
        if not newest:
            return FeedPosition(cursor=None, epoch=0, number=0)
        epoch, number = codec.feed_end(newest[0][1], self._macs)
        return FeedPosition(cursor=pages.id_text(newest[0][0]), epoch=epoch, number=number)

    async def keep(self, slot: int, parts: Mapping[str, bytes], *, anew: bool) -> None:
        key = keys.snapshot(slot)
        signed = snapshot.signed(key, parts, self._macs)
        commands = [command("HSET", key, *rows.flat(signed)), command("EXPIRE", key, keys.SNAPSHOT.ttl_s)]
        rows.checked(await self._client.pipeline([command("DEL", key), *commands] if anew else commands))

    async def kept(self, slot: int, parts: Sequence[str]) -> list[bytes | None]:
        key = keys.snapshot(slot)
        found = await self._client.run(command("HMGET", key, *snapshot.fields_of(parts, self._macs)))
        return snapshot.checked(key, parts, found, self._macs)


class RedisTraces:
    """The `TraceLog` on Redis."""

    def __init__(self, client: RedisClient, tally: Tally) -> None:
        self._client, self._tally = client, tally

    async def append(self, spans: Mapping[AllocationId, Sequence[SpanRecord]]) -> None:
        commands: list[Command] = []
        cap = ("MAXLEN", "~", keys.TRACE.length_max, "*")
        for allocation, ended in spans.items():
            key = keys.trace(allocation)
            for start in range(0, len(ended), keys.SPAN_PACK_MAX):
                pack = ended[start : start + keys.SPAN_PACK_MAX]
                commands.append(command("XADD", key, *cap, *rows.flat(codec.encode_spans(pack))))
            commands.append(command("EXPIRE", key, keys.TRACE.ttl_s))
        rows.checked(await self._client.pipeline(commands))

    async def read(self, allocation: AllocationId, *, limit: int = 500) -> list[SpanRecord]:
        each = command("XREVRANGE", keys.trace(allocation), "+", "-", "COUNT", limit)
        return pages.spans(rows.entries(await self._client.run(each))[::-1], self._tally)[-limit:]


class RedisActivity:
    """The `Activity` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def touch(self, times: Mapping[AllocationId, Mapping[str, float]]) -> None:
        calls: list[Command] = []
        for allocation, sources in times.items():
            values = [part for source, at_s in sources.items() for part in (source, codec.encode_time(at_s))]
            calls.append(scripts.NEWEST.call(keys.activity(allocation), keys.ACTIVITY.ttl_s, *values))
        rows.checked(await scripts.run_all(self._client, scripts.NEWEST, calls))

    async def read(self, allocations: Sequence[AllocationId]) -> list[Mapping[str, float]]:
        commands = [command("HGETALL", keys.activity(allocation)) for allocation in allocations]
        replies = rows.checked(await self._client.pipeline(commands))
        return [codec.decode_times(rows.fields(reply)) for reply in replies]


class RedisHealth:
    """The `StreamsHealth` of Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def ping(self) -> float:
        start_s = self._client.clock.monotonic()
        key = keys.HEALTH.prefix
        await self._client.run(command("XADD", key, "MAXLEN", keys.HEALTH.length_max, "*", "v", "1"))
        return self._client.clock.monotonic() - start_s


class RedisDead:
    """The `DeadLetters` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def page(self, *, after: str | None = None, limit: int = 100) -> list[DeadLetter]:
        start = pages.id_text(pages.start_of(after))
        reply = await self._client.run(command("XRANGE", keys.DEAD.prefix, f"({start}", "+", "COUNT", limit))
        return [codec.decode_dead(pages.id_text(entry_id), fields) for entry_id, fields in rows.entries(reply)]

    async def find(self, letter_id: str) -> DeadLetter | None:
        one = pages.id_text(codec.cursor_parts(letter_id))
        found = rows.entries(await self._client.run(command("XRANGE", keys.DEAD.prefix, one, one)))
        return codec.decode_dead(one, found[0][1]) if found else None

    async def replay(self, letter_id: str) -> bool:
        one = pages.id_text(codec.cursor_parts(letter_id))
        found = rows.entries(await self._client.run(command("XRANGE", keys.DEAD.prefix, one, one)))
        if not found:
            return False
        key, original = codec.replay_of(codec.decode_dead(one, found[0][1]), found[0][1])
        if original:
            await self._client.run(command("XADD", key, "*", *rows.flat(original)))
        return await self.drop(one)

    async def drop(self, letter_id: str) -> bool:
        one = pages.id_text(codec.cursor_parts(letter_id))
        return await self._client.run(command("XDEL", keys.DEAD.prefix, one)) == 1


class RedisDecisions:
    """The `DecisionLog` on Redis."""

    def __init__(self, client: RedisClient, tally: Tally) -> None:
        self._client, self._tally = client, tally

    async def append(self, pool: str, entry: DecisionEntry, *, base: str | None, caps: DecisionLogLimits) -> str | None:
        codec.check_decision(entry, caps)
        fields = rows.flat(codec.encode_decision(entry))
        key, limits = keys.decisions(pool), (caps.entries, caps.size, len(entry.data))
        written: bytes = await scripts.run(self._client, scripts.DECISIONS, key, base or "", *limits, *fields)
        return written.decode() or None

    async def read(self, pool: str, *, after: str | None = None, limit: int = 100) -> list[StoredDecision]:
        start = pages.id_text(pages.start_of(after))
        each = command("XRANGE", keys.decisions(pool), f"({start}", "+", "COUNT", limit)
        return pages.decisions(rows.entries(await self._client.run(each)), self._tally)


class RedisLogouts:
    """The `Logouts` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def append(self, ended: Mapping[str, float]) -> None:
        key, cap = keys.LOGOUTS.prefix, ("MAXLEN", "~", keys.LOGOUTS.length_max, "*")
        fields = [codec.encode_logout(login, ends_at) for login, ends_at in ended.items()]
        rows.checked(await self._client.pipeline([command("XADD", key, *cap, *rows.flat(each)) for each in fields]))

    async def read(self, after: str | None, *, limit: int) -> LogoutPage:
        start, key = pages.start_of(after), keys.LOGOUTS.prefix
        newest = rows.entries(await self._client.run(command("XREVRANGE", key, "+", "-", "COUNT", 1)))
        if (newest[0][0] if newest else pages.ZERO) < start:
            return LogoutPage(ended={}, cursor=None, is_lost=True)
        reply = await self._client.run(command("XRANGE", key, f"({pages.id_text(start)}", "+", "COUNT", limit))
        return pages.logouts(rows.entries(reply), after, limit)

    async def keep(self, login: str, text: str, ttl_s: int) -> None:
        await self._client.run(command("SET", keys.sign_in(login), text, "EX", ttl_s))

    async def kept(self, login: str) -> str:
        found = await self._client.run(command("GET", keys.sign_in(login)))
        return found.decode("ascii", "replace") if isinstance(found, bytes) else ""

    async def take(self, code: str, ttl_s: int) -> bool:
        return await self._client.run(command("SET", keys.used_code(code), "1", "NX", "EX", ttl_s)) is not None


_SILENCE_MS = int(SILENCE_S * 1_000)


class RedisGatherings:
    """The `Gatherings` on Redis."""

    def __init__(self, client: RedisClient, macs: Macs | None = None) -> None:
        """With `macs`, seats are signed, and signatures are required on reading."""
        self._client, self._macs = client, macs

    async def join(self, key: GatherKey, seat: Seat, *, peers: int, owner: str) -> Gathered:
        limits = (BYTES_MAX, keys.GATHER.ttl_s, _SILENCE_MS)
        call = (seat.request_id, seat.token, owner, seat.rank, peers, *limits, seat.data)
        code = seat_code(_name(key), seat, peers, self._macs)
        state = await self._run(key, "join", *call, *([code] if code else []))
        is_in = state.outcome in (AllgatherState.OPEN, AllgatherState.COMPLETED)
        if is_in and state.present == 1 and await self._is_spent(key):
            await self._client.run(command("DEL", _name(key)))
            return msgspec.structs.replace(state, outcome=AllgatherState.SPENT)
        if state.outcome is AllgatherState.COMPLETED:
            await self._count(key)
        return state

    async def look(self, key: GatherKey, *, owner: str) -> Gathered:
        return await self._run(key, "look", owner, keys.GATHER.ttl_s, _SILENCE_MS)

    async def leave(self, key: GatherKey, seat: Seat) -> None:
        await self._run(key, "leave", seat.request_id, seat.token)

    async def tokens(self, key: GatherKey, request_ids: Sequence[str]) -> list[str]:
        if not request_ids:
            return []
        names = [f"{SEAT_FIELD}{request_id}" for request_id in request_ids]
        found = await self._client.run(command("HMGET", _name(key), *names))
        return [token_of(raw) if raw is not None else "" for raw in found]

    async def seats(self, key: GatherKey, *, are_all: bool = False) -> list[Seat]:
        name = _name(key)
        found = rows.fields(await self._client.run(command("HGETALL", name)))
        return seats_of(found, name, self._macs, are_all=are_all)

    async def forget(self, key: GatherKey) -> None:
        await self._client.run(command("DEL", _name(key)))

    async def _count(self, key: GatherKey) -> None:
        """Add a complete gathering to the stored bytes. The window ends when the oldest of them may have expired."""
        size = int(await self._client.run(command("HGET", _name(key), "b")) or 0) + COST_BYTES
        kept = keys.gathered(key.allocation)
        counted = command("HINCRBY", kept, "b", size)
        rows.checked(await self._client.pipeline([counted, command("EXPIRE", kept, keys.GATHER.ttl_s, "NX")]))

    async def _is_spent(self, key: GatherKey) -> bool:
        kept = await self._client.run(command("HGET", keys.gathered(key.allocation), "b"))
        return int(kept or 0) > KEPT_BYTES_MAX

    async def _run(self, key: GatherKey, what: str, *args: Argument) -> Gathered:
        call = (_name(key), what, int(self._client.clock.now() * 1_000), *args)
        outcome, peers, present, version = await scripts.run(self._client, scripts.GATHER, *call)
        return Gathered(outcome=AllgatherState(outcome.decode()), peers=peers, present=present, version=version)


def _name(key: GatherKey) -> str:
    return keys.gather(key.allocation, key.attempt, key.group)
