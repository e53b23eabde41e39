"""The `LogLines` in memory: the twin of `lua/logs.lua`.

This module owns the size limit of each log. It must not import redis.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from slipway.model.ids import AllocationId
from slipway.streams import keys, logpacks, pages
from slipway.streams.logpacks import PACK_COST_BYTES, LogAppended, LogKey, LogPack, LogPosition, StoredLine
from slipway.streams.memory_server import MemoryServer
from slipway.streams.ports import Tally

_FOLLOW_PAGE = _READ_PAGE = 16
_FOLLOW_WAIT_S = 1.0


class MemoryLogs:
    """The `LogLines` in memory, with a size limit for each log."""

    def __init__(self, server: MemoryServer, tally: Tally) -> None:
        self._server, self._tally = server, tally

    async def append(self, packs: Sequence[LogPack]) -> list[LogAppended]:
        await self._server.enter("logs.append")
        return [self._append(pack) for pack in packs]

    async def positions(self, allocation: AllocationId) -> dict[LogKey, LogPosition]:
        await self._server.enter("logs.positions")
        return pages.positions(self._server.hash_get(keys.log_state(allocation)))

    async def position(self, allocation: AllocationId, source: LogKey) -> LogPosition:
        await self._server.enter("logs.position")
        return logpacks.decode_position(self._server.hash_get(keys.log_state(allocation)).get(source.name))

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 500) -> list[StoredLine]:
        start = pages.start_of(after)
        await self._server.enter("logs.read")
        position, found = start, list[StoredLine]()
        while len(found) < limit and (entries := self._server.after(keys.logs(allocation), position, _READ_PAGE)):
            found += pages.lines_after(entries, start, self._tally)
            position = entries[-1][0]
        return found[:limit]

    async def page(self, allocation: AllocationId, *, after: str | None = None) -> list[StoredLine]:
        start = position = pages.start_of(after)
        await self._server.enter("logs.page")
        while entries := self._server.after(keys.logs(allocation), position, logpacks.PAGE_PACKS):
            found = pages.lines_after(entries, start, self._tally)
            if found:
                return found
            position = entries[-1][0]
        return []

    async def tail(self, allocation: AllocationId, *, limit: int) -> list[StoredLine]:
        await self._server.enter("logs.tail")
        stream = self._server.stream(keys.logs(allocation))
        found: list[StoredLine] = []
        for entry in reversed(stream.entries.items() if stream is not None else ()):
            found = pages.lines_after([entry], pages.ZERO, self._tally) + found
            if len(found) >= limit:
                break
        return found[-limit:]

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[list[StoredLine]]:
        start = pages.start_of(after)
        async with aclosing(self._pages(keys.logs(allocation), start)) as found:
            async for page in found:
                lines = pages.lines_after(page, start, self._tally)
                if lines:
                    yield lines

    async def _pages(self, key: str, position: pages.Id) -> AsyncGenerator[pages.Page]:
        while True:
            await self._server.enter("follow")
            page = self._server.after(key, position, _FOLLOW_PAGE)
            if page:
                position = page[-1][0]
                yield page
            else:
                await self._server.until_change(self._server.clock.monotonic() + _FOLLOW_WAIT_S, (key,))

    def _append(self, pack: LogPack) -> LogAppended:
        states_key = keys.log_state(pack.allocation)
        name = pack.source.name
        states = self._server.hash_get(states_key)
        raw = states.get(name)
        state = _State(raw)
        if not pack.key and pack.after.place != state.position().place:
            return LogAppended(is_appended=False, position=state.position())
        said = int(states.get(f"key:{pack.key}", b"0"))
        if pack.key and said > 0 and pack.count < 2 * said:
            return LogAppended(is_appended=False, position=state.position())
        with self._server.script():
            return self._write(pack, state, is_new=raw is None)

    def _write(self, pack: LogPack, state: "_State", *, is_new: bool) -> LogAppended:
        server, allocation, name = self._server, pack.allocation, pack.source.name
        stream, states_key, packs_key = keys.logs(allocation), keys.log_state(allocation), keys.log_packs(allocation)
        if pack.key:
            server.hash_set(states_key, {f"key:{pack.key}": b"%d" % pack.count})
        older = logpacks.older_name(pack.source)
        if is_new and older and older in (states := server.hash_get(states_key)):
            before = _State(states[older])
            self._cut(allocation, older, before, logpacks.SHARE_BYTES_MIN)
            server.hash_set(states_key, {older: before.encoded()})
        first = state.number + 1 if pack.key else pack.first
        if pack.lines:
            fields = logpacks.encode_pack(pack)
            cost = PACK_COST_BYTES + sum(map(len, fields.values()))
            ms, seq = int(server.clock.now() * 1_000), 0
            newest = server.hash_get(states_key).get("last")
            if newest is not None:
                last_ms, last_seq = map(int, newest.split(b"-"))
                if last_ms >= ms:
                    ms, seq = last_ms, last_seq + 1
            entry = (ms, seq + len(pack.lines) - 1)
            there = server.stream(stream)
            if there is not None and entry <= there.last:
                entry = (there.last[0], there.last[1] + len(pack.lines))
            server.add(stream, fields, entry_id=entry)
            server.hash_set(states_key, {"last": b"%d-%d" % entry})
            last = first + len(pack.lines) - 1
            if state.head == 0 and state.first_bytes + cost <= pack.share_bytes // logpacks.FIRST_PART:
                state.first_bytes, state.first_end = state.first_bytes + cost, last
            else:
                server.hash_set(packs_key, {f"{name}:{state.head}": b"%d-%d %d %d" % (*entry, cost, first)})
                if state.head == state.tail:
                    state.kept_from = first
                state.head, state.kept_bytes = state.head + 1, state.kept_bytes + cost
                self._cut(allocation, name, state, pack.share_bytes)
            state.number = last
        else:
            state.number = max(state.number, first - 1)
        position = pack.position
        state.second, state.seen, state.time, state.is_ended = (
            position.second,
            position.seen,
            position.time,
            position.is_ended,
        )
        server.hash_set(states_key, {name: state.encoded()})
        for key in (stream, states_key, packs_key):
            server.expire(key, keys.LOGS.ttl_s)
        return LogAppended(is_appended=True, position=state.position())

    def _cut(self, allocation: AllocationId, name: str, state: "_State", most: int) -> None:
        packs_key = keys.log_packs(allocation)
        while state.kept_bytes > most and state.head - state.tail > 1:
            found = self._server.hash_get(packs_key)
            oldest = found.get(f"{name}:{state.tail}")
            if oldest is not None:
                entry, cost, _ = oldest.decode().split(" ")
                self._server.remove(keys.logs(allocation), pages.start_of(entry))
                self._server.hash_cut(packs_key, [f"{name}:{state.tail}"])
                state.kept_bytes -= int(cost)
            state.tail += 1
            following = found.get(f"{name}:{state.tail}")
            if following is not None:
                state.kept_from = int(following.decode().split(" ")[2])


class _State:
    """A log's position, with the store's own numbers."""

    def __init__(self, raw: bytes | None) -> None:
        position = logpacks.decode_position(raw)
        self.number, self.second, self.seen = position.number, position.second, position.seen
        self.time, self.is_ended = position.time, position.is_ended
        self.first_end, self.kept_from = position.first_end, position.kept_from
        rest = (raw or b"").decode().split(" ")[7:]
        self.first_bytes, self.kept_bytes, self.head, self.tail = map(int, rest) if len(rest) == 4 else (0, 0, 0, 0)

    def position(self) -> LogPosition:
        return LogPosition(
            number=self.number,
            second=self.second,
            seen=self.seen,
            time=self.time,
            is_ended=self.is_ended,
            first_end=self.first_end,
            kept_from=self.kept_from,
        )

    def encoded(self) -> bytes:
        rest = (self.first_bytes, self.kept_bytes, self.head, self.tail)
        return logpacks.encode_position(self.position(), rest).encode()
