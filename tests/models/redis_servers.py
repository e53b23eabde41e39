"""The two servers of a differential run, with the effects of an operator and of time: the model, and a real one.

Owns what no port can do: FLUSHALL, lost keys and groups, entries removed by hand, passing time, and the whole state as
a value. Must not know the ports.

The clients of both sides share one clock, which only the run moves. The real server's own clock cannot be moved, so the
run applies the effects of time: every expiry is shortened, and every pending entry's idle time is extended. Steps of
time are whole tens of seconds, and the limits that they are compared with end in five. Each step subtracts the real
time since the step before, so that real time decides nothing. If too much time has passed (the machine was busy), the
run reports that.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from slipway.runtime.clock import SeededRandom
from slipway.streams import keys
from slipway.streams.client import Command, RedisClient, RedisSettings
from slipway.streams.codec import cursor_parts
from slipway.streams.memory_server import MemoryServer, ServerRefusal
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.pages import id_text
from slipway.streams.ports import Streams
from slipway.streams.redis_streams import RedisStreams
from tests.support.clock import FakeClock

BEATS_FIELD: Final = "o"
"""A field of a gathering with times, which each side writes in its own form."""
PASSED_MAX_S: Final = 2.0
_SHIFT: Final = """
local ms = tonumber(ARGV[1])
for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then
    if left <= ms then redis.call('DEL', key) else redis.call('PEXPIRE', key, string.format('%.0f', left - ms)) end
  end
  if redis.call('TYPE', key).ok == 'stream' then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local name = group[2]
      for _, row in ipairs(redis.call('XPENDING', key, name, '-', '+', 100000)) do
        if redis.call('XRANGE', key, row[1], row[1])[1] then
          local idle = math.max(0, row[3] + ms)
          redis.call('XCLAIM', key, name, row[2], 0, row[1], 'IDLE', idle, 'RETRYCOUNT', row[4], 'JUSTID')
        end
      end
    end
  end
end
return 0
"""
_DUMP: Final = """
local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('TYPE', key).ok == 'stream' then
    local groups = {}
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local row = {}
      for i = 1, #group, 2 do row[group[i]] = group[i + 1] end
      local pending = redis.call('XPENDING', key, row['name'], '-', '+', 100000)
      groups[#groups + 1] = {row['name'], row['last-delivered-id'], pending}
    end
    all[#all + 1] = {key, redis.call('PTTL', key), redis.call('XRANGE', key, '-', '+'), groups}
  else
    all[#all + 1] = {key, redis.call('PTTL', key), redis.call('HGETALL', key)}
  end
end
return all
"""

Label = Callable[[str, str], Any]


class GroupState(msgspec.Struct, frozen=True):
    """A group: the number of present entries that it has read, and {entry: (consumer, deliveries)}."""

    seen: int
    pending: dict[Any, tuple[str, int]]


class KeyState(msgspec.Struct, frozen=True):
    """A key: its remaining seconds (in tens), its entries by label or its fields, its groups."""

    left: int | None
    entries: tuple[Any, ...]
    groups: dict[str, GroupState]


class ComparedServer(Protocol):
    """One server and its clients."""

    def connect(self) -> Streams: ...
    async def flush(self) -> None: ...
    async def keys(self) -> list[str]: ...
    async def delete(self, key: str) -> None: ...
    async def lose_group(self, key: str, group: str) -> None: ...
    async def ids(self, key: str) -> list[str]: ...
    async def remove(self, key: str, entry_id: str) -> None: ...
    async def trim(self, key: str, length: int) -> None: ...
    async def add(self, key: str, fields: dict[str, bytes]) -> None: ...
    async def pass_time(self, seconds: int) -> None: ...
    async def refuse(self, why: ServerRefusal | None) -> None: ...
    async def state(self, label: Label) -> dict[str, KeyState]: ...


class LateError(Exception):
    """More real time passed than the comparison allows: the sequence must be played again."""


class ModelServer:
    """The model."""

    def __init__(self, clock: FakeClock) -> None:
        self.server = MemoryServer(clock)

    def connect(self) -> Streams:
        return MemoryStreams(self.server)

    async def flush(self) -> None:
        self.server.flush()

    async def keys(self) -> list[str]:
        return sorted(self.server.keys())

    async def delete(self, key: str) -> None:
        self.server.drop(key)

    async def lose_group(self, key: str, group: str) -> None:
        stream = self.server.stream(key)
        if stream is not None:
            stream.groups.pop(group, None)

    async def ids(self, key: str) -> list[str]:
        stream = self.server.stream(key)
        return [id_text(entry_id) for entry_id in stream.entries] if stream is not None else []

    async def remove(self, key: str, entry_id: str) -> None:
        self.server.remove(key, cursor_parts(entry_id))

    async def trim(self, key: str, length: int) -> None:
        stream = self.server.stream(key)
        for entry_id in list(stream.entries)[: -length or None] if stream is not None else []:
            self.server.remove(key, entry_id)

    async def add(self, key: str, fields: dict[str, bytes]) -> None:
        self.server.add(key, fields)

    async def pass_time(self, seconds: int) -> None:
        """Do nothing: the shared clock has moved already."""

    async def refuse(self, why: ServerRefusal | None) -> None:
        self.server.refuses = why

    async def state(self, label: Label) -> dict[str, KeyState]:
        found: dict[str, KeyState] = {}
        for key in sorted(self.server.keys()):
            stream, left_s = self.server.stream(key), self.server.ttl_s(key)
            if stream is None:
                entries = _fields(self.server.hash_get(key))
                found[key] = KeyState(_tens(left_s), entries, {})
                continue
            groups = {
                name: GroupState(
                    sum(entry_id <= group.delivered for entry_id in stream.entries),
                    {
                        label(key, id_text(entry_id)): (each.consumer, each.deliveries)
                        for entry_id, each in sorted(group.pending.items())
                    },
                )
                for name, group in sorted(stream.groups.items())
            }
            entries = tuple(
                (label(key, id_text(entry_id)), _known(key, fields)) for entry_id, fields in stream.entries.items()
            )
            found[key] = KeyState(_tens(left_s), entries, groups)
        return found


class RealServer:
    """A real server."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        self._url, self._clock = url, clock
        self._operator = self._client()
        self._synced_s = time.monotonic()
        self._open: list[Streams] = []

    def _client(self) -> RedisClient:
        return RedisClient(RedisSettings(url=self._url, command_timeout_s=30.0), self._clock, SeededRandom(1))

    async def prepare(self) -> None:
        """Make trimming by `~` exact, as in the model, and let the server end waits of a millisecond in time."""
        await self.refuse(None)  # another sequence may have left it refusing
        for name, value in (("stream-node-max-entries", "1"), ("hz", "500")):
            await self.command("CONFIG", "SET", name, value)

    async def command(self, *args: str | bytes | int) -> Any:
        """Run any command, as an operator would."""
        return await self._operator.run(Command("slipway", args))

    def connect(self) -> Streams:
        streams = RedisStreams(self._client())
        self._open.append(streams)
        return streams

    async def flush(self) -> None:
        await self.command("FLUSHALL")
        self._synced_s = time.monotonic()
        await self._next_millisecond()

    async def keys(self) -> list[str]:
        return sorted(key.decode() for key in await self.command("KEYS", "*"))

    async def delete(self, key: str) -> None:
        await self.command("DEL", key)
        await self._next_millisecond()

    async def lose_group(self, key: str, group: str) -> None:
        if await self.command("EXISTS", key):
            await self.command("XGROUP", "DESTROY", key, group)

    async def ids(self, key: str) -> list[str]:
        if await self.command("TYPE", key) != b"stream":
            return []
        return [raw.decode() for raw, _ in await self.command("XRANGE", key, "-", "+")]

    async def remove(self, key: str, entry_id: str) -> None:
        await self.command("XDEL", key, entry_id)

    async def trim(self, key: str, length: int) -> None:
        if await self.command("TYPE", key) == b"stream":
            await self.command("XTRIM", key, "MAXLEN", length)

    async def add(self, key: str, fields: dict[str, bytes]) -> None:
        # Ids of log lines use the writer's clock, which both sides share; all other ids use the server's.
        entry_id = f"{int(self._clock.now() * 1_000)}-*" if key.startswith("slipway:logs:") else "*"
        await self.command("XADD", key, entry_id, *(part for item in fields.items() for part in item))

    async def pass_time(self, seconds: int) -> None:
        passed_s = self.check_time()
        self._synced_s += passed_s
        await self.command("EVAL", _SHIFT, 0, int((seconds - passed_s) * 1_000))
        await self._next_millisecond()

    def check_time(self) -> float:
        """The real time since it was last subtracted. Raises `LateError` when it was too much."""
        passed_s = time.monotonic() - self._synced_s
        if passed_s > PASSED_MAX_S:
            raise LateError
        return passed_s

    async def refuse(self, why: ServerRefusal | None) -> None:
        await self.command("CONFIG", "SET", "maxmemory", "1" if why is ServerRefusal.OOM else "0")
        await self.command("REPLICAOF", *(("127.0.0.1", 1) if why is ServerRefusal.READONLY else ("NO", "ONE")))

    async def state(self, label: Label) -> dict[str, KeyState]:
        found: dict[str, KeyState] = {}
        for raw_key, left_ms, content, *more in sorted(await self.command("EVAL", _DUMP, 0)):
            key, left_s = raw_key.decode(), None if left_ms < 0 else left_ms / 1_000
            if not more:
                names = [name.decode() for name in content[::2]]
                found[key] = KeyState(_tens(left_s), _fields(dict(zip(names, content[1::2], strict=True))), {})
                continue
            ids = [cursor_parts(raw.decode()) for raw, _ in content]
            groups = {
                name.decode(): GroupState(
                    sum(entry_id <= cursor_parts(seen.decode()) for entry_id in ids),
                    {label(key, raw.decode()): (owner.decode(), count) for raw, owner, _, count in pending},
                )
                for name, seen, pending in sorted(more[0])
            }
            entries = tuple((label(key, raw.decode()), _known(key, _pairs(flat))) for raw, flat in content)
            found[key] = KeyState(_tens(left_s), entries, groups)
        return found

    async def aclose(self) -> None:
        """Close every connection."""
        for each in (*self._open, self._operator):
            await each.aclose()

    async def _next_millisecond(self) -> None:
        """Wait for the next millisecond, so that new entries have other ids than earlier ones."""
        before = await self._now_ms()
        while await self._now_ms() <= before:  # noqa: ASYNC110 - a server's clock
            await asyncio.sleep(0)

    async def _now_ms(self) -> int:
        seconds, micros = await self.command("TIME")
        return int(seconds) * 1_000 + int(micros) // 1_000


def _tens(left_s: float | None) -> int | None:
    """Life times are whole seconds that end in 0 or 5; the real time makes them a little less."""
    return None if left_s is None else int((left_s + 3) // 10)


def _fields(found: dict[str, bytes]) -> tuple[Any, ...]:
    return tuple(sorted((name, value) for name, value in found.items() if name != BEATS_FIELD))


def _known(key: str, fields: dict[str, bytes]) -> dict[str, bytes]:
    """The fields of an entry without those that contain an id; a read of a dead letter compares these."""
    return {name: value for name, value in fields.items() if (key, name) != (keys.DEAD.prefix, "entry")}


def _pairs(flat: list[bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
