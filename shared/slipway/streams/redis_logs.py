"""The `LogLines` on Redis.

This module owns the commands. `logpacks.py` owns the content of an entry, `lua/logs.lua` the size limit of each log.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from slipway.errors import PermanentError
from slipway.model.ids import AllocationId
from slipway.streams import keys, logpacks, pages, rows, scripts
from slipway.streams.client import Command, RedisClient, command
from slipway.streams.logpacks import LogAppended, LogKey, LogPack, LogPosition, StoredLine
from slipway.streams.ports import Tally
from slipway.streams.replies import ScriptMissingError
from slipway.streams.tail import Tail

_ENTRIES: Final = 32
"""Entries per exchange; each may contain many lines."""
_ANY: Final = -1


class RedisLogs:
    """The `LogLines` on Redis."""

    def __init__(self, client: RedisClient, tail: Tail, tally: Tally) -> None:
        self._client, self._tail, self._tally = client, tail, tally

    async def append(self, packs: Sequence[LogPack]) -> list[LogAppended]:
        now_ms = int(self._client.clock.now() * 1_000)
        replies = await scripts.run_all(self._client, scripts.LOGS, [_call(pack, now_ms) for pack in packs])
        if any(isinstance(reply, ScriptMissingError) for reply in replies):
            raise PermanentError("the server takes no scripts")
        return [
            LogAppended(is_appended=appended == 1, position=logpacks.decode_position(raw))
            for appended, raw in rows.checked(replies)
        ]

    async def positions(self, allocation: AllocationId) -> dict[LogKey, LogPosition]:
        reply = await self._client.run(command("HGETALL", keys.log_state(allocation)))
        return pages.positions(rows.fields(reply))

    async def position(self, allocation: AllocationId, source: LogKey) -> LogPosition:
        return logpacks.decode_position(
            await self._client.run(command("HGET", keys.log_state(allocation), source.name))
        )

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 500) -> list[StoredLine]:
        start = position = pages.start_of(after)
        found: list[StoredLine] = []
        count = min(_ENTRIES, limit)
        while len(found) < limit:
            call = command("XRANGE", keys.logs(allocation), f"({pages.id_text(position)}", "+", "COUNT", count)
            page = rows.entries(await self._client.run(call))
            found += pages.lines_after(page, start, self._tally)
            if len(page) < count:
                break
            position = page[-1][0]
        return found[:limit]

    async def page(self, allocation: AllocationId, *, after: str | None = None) -> list[StoredLine]:
        start = position = pages.start_of(after)
        while True:
            first = f"({pages.id_text(position)}"
            call = command("XRANGE", keys.logs(allocation), first, "+", "COUNT", logpacks.PAGE_PACKS)
            page = rows.entries(await self._client.run(call))
            found = pages.lines_after(page, start, self._tally)
            if found or len(page) < logpacks.PAGE_PACKS:
                return found
            # None of these packs can be read; they were counted.
            position = page[-1][0]

    async def tail(self, allocation: AllocationId, *, limit: int) -> list[StoredLine]:
        found: list[StoredLine] = []
        end = "+"
        while len(found) < limit:
            call = command("XREVRANGE", keys.logs(allocation), end, "-", "COUNT", min(_ENTRIES, limit))
            page = rows.entries(await self._client.run(call))[::-1]
            found = pages.lines_after(page, pages.ZERO, self._tally) + found
            if not page or len(page) < min(_ENTRIES, limit):
                break
            end = f"({pages.id_text(page[0][0])}"
        return found[-limit:]

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[list[StoredLine]]:
        start = pages.start_of(after)
        async with aclosing(self._tail.pages(keys.logs(allocation), start)) as found:
            async for page in found:
                lines = pages.lines_after(page, start, self._tally)
                if lines:
                    yield lines


def _call(pack: LogPack, now_ms: int) -> Command:
    allocation, position, is_event = pack.allocation, pack.position, bool(pack.key)
    of = (keys.logs(allocation), keys.log_state(allocation), keys.log_packs(allocation))
    where = (pack.source.name, _ANY if is_event else pack.after.number, pack.key, pack.count)
    what = (pack.first, len(pack.lines), now_ms)
    bounds = (pack.share_bytes // logpacks.FIRST_PART, pack.share_bytes, keys.LOGS.ttl_s)
    older = (logpacks.older_name(pack.source), logpacks.SHARE_BYTES_MIN)
    reached = (position.second or "-", position.seen, position.time or "-", int(position.is_ended))
    stands = (pack.after.second or "-", pack.after.seen)
    fields = rows.flat(logpacks.encode_pack(pack)) if pack.lines else []
    return scripts.LOGS.call_on_all(of, *where, *what, *bounds, *older, *reached, *stands, *fields)
