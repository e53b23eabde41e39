"""A deterministic model of the one Redis server, as far as Slipway uses it.

Owns streams, consumer groups, hashes and expiry in memory, on an injected clock. Knows nothing of what the
entries mean; `memory.py` puts the ports on top. Many clients may share one server, as processes share a Redis.

Faults that the simulation turns on: `flush()` (FLUSHALL), `absent` (nobody answers), and `on_call`, awaited before
each operation with its name, where a test adds latency, an error or a crash.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from slipway.errors import UnavailableError
from slipway.runtime.clock import Clock
from slipway.streams.pages import ZERO, Id

Fields = dict[str, bytes]
_MS = 1_000


@dataclass
class Pending:
    """One delivered and not acknowledged entry."""

    consumer: str
    delivered_s: float
    deliveries: int


@dataclass
class Group:
    """One consumer group."""

    delivered: Id = ZERO
    pending: dict[Id, Pending] = field(default_factory=dict[Id, Pending])
    heard: dict[str, float] = field(default_factory=dict[str, float])
    """{consumer: when it last asked for something}"""


@dataclass
class Stream:
    """One stream; `last` never falls while the key lives."""

    entries: dict[Id, Fields] = field(default_factory=dict[Id, Fields])
    last: Id = ZERO
    groups: dict[str, Group] = field(default_factory=dict[str, Group])


class MemoryServer:
    """The state that all clients share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.on_call: Callable[[str], Awaitable[None]] | None = None
        self._absent = False
        self._streams: dict[str, Stream] = {}
        self._hashes: dict[str, dict[str, bytes]] = {}
        self._expires: dict[str, float] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}

    @property
    def absent(self) -> bool:
        """Whether nobody answers; setting it wakes blocked readers, which then fail."""
        return self._absent

    @absent.setter
    def absent(self, value: bool) -> None:
        self._absent = value
        self.notify()

    def flush(self) -> None:
        """FLUSHALL."""
        self._streams.clear()
        self._hashes.clear()
        self._expires.clear()
        self.notify()

    async def enter(self, operation: str) -> None:
        """Where every operation starts: a point of suspension, and of faults."""
        await asyncio.sleep(0)
        if self.on_call is not None:
            await self.on_call(operation)
        self.check()

    def check(self) -> None:
        """Raise `UnavailableError` while the server is absent."""
        if self._absent:
            raise UnavailableError("redis is away")

    def notify(self) -> None:
        """Wake everybody who waits for a change."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def until_change(self, deadline_s: float) -> bool:
        """Wait for any change until the clock's `deadline_s` (monotonic); False when time ran out."""
        remaining_s = deadline_s - self.clock.monotonic()
        if remaining_s <= 0:
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(remaining_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.pop(waiter, None)
        return True

    def keys(self) -> list[str]:
        """Every key that lives."""
        for key in tuple(self._expires):
            self._purge(key)
        return [*self._streams, *self._hashes]

    def stream(self, key: str) -> Stream | None:
        """The stream at `key`, if it lives."""
        self._purge(key)
        return self._streams.get(key)

    def add(self, key: str, fields: Mapping[str, bytes], *, entry_id: Id | None = None, length_max: int = 0) -> Id:
        """XADD; the server's clock makes the id unless one is given (which must be above the last)."""
        self._purge(key)
        stream = self._streams.setdefault(key, Stream())
        if entry_id is None:
            now_ms = int(self.clock.now() * _MS)
            entry_id = (now_ms, 0) if now_ms > stream.last[0] else (stream.last[0], stream.last[1] + 1)
        stream.entries[entry_id] = dict(fields)
        stream.last = entry_id
        if length_max:
            for _ in range(len(stream.entries) - length_max):
                del stream.entries[next(iter(stream.entries))]
        self.notify()
        return entry_id

    def after(self, key: str, after: Id, limit: int) -> list[tuple[Id, Fields]]:
        """The oldest `limit` entries above an id."""
        stream = self.stream(key)
        if stream is None or stream.last <= after:
            return []
        found: list[tuple[Id, Fields]] = []
        for entry_id, fields in stream.entries.items():
            if entry_id > after:
                found.append((entry_id, fields))
                if len(found) == limit:
                    break
        return found

    def newest(self, key: str, limit: int) -> list[tuple[Id, Fields]]:
        """The newest `limit` entries, oldest first."""
        stream = self.stream(key)
        return list(stream.entries.items())[-limit:] if stream is not None else []

    def remove(self, key: str, entry_id: Id) -> bool:
        """XDEL of one entry."""
        stream = self.stream(key)
        return stream is not None and stream.entries.pop(entry_id, None) is not None

    def drop(self, key: str) -> None:
        """DEL."""
        self._streams.pop(key, None)
        self._hashes.pop(key, None)
        self._expires.pop(key, None)

    def trim_below(self, key: str, floor: Id) -> int:
        """XTRIM MINID."""
        stream = self.stream(key)
        if stream is None:
            return 0
        gone = [entry_id for entry_id in stream.entries if entry_id < floor]
        for entry_id in gone:
            del stream.entries[entry_id]
        return len(gone)

    def expire(self, key: str, ttl_s: float, *, keep_existing: bool = False) -> None:
        """EXPIRE; with `keep_existing` only when there is no expiry yet (NX)."""
        if not (keep_existing and key in self._expires):
            self._expires[key] = self.clock.monotonic() + ttl_s

    def ttl_s(self, key: str) -> float | None:
        """Seconds that the key has left; None without expiry."""
        at_s = self._expires.get(key)
        return None if at_s is None else at_s - self.clock.monotonic()

    def hash_set(self, key: str, values: Mapping[str, bytes]) -> None:
        """HSET."""
        self._purge(key)
        self._hashes.setdefault(key, {}).update(values)

    def hash_get(self, key: str) -> dict[str, bytes]:
        """HGETALL."""
        self._purge(key)
        return dict(self._hashes.get(key, {}))

    def hash_cut(self, key: str, fields: Iterable[str]) -> None:
        """HDEL."""
        self._purge(key)
        for field_name in fields:
            self._hashes.get(key, {}).pop(field_name, None)

    def group(self, key: str, name: str) -> Group:
        """The group, created from the start of the stream when it is not there (so is the stream)."""
        self._purge(key)
        return self._streams.setdefault(key, Stream()).groups.setdefault(name, Group())

    def deliver(self, key: str, group_name: str, consumer: str, limit: int) -> list[tuple[Id, Fields]]:
        """XREADGROUP `>`: the next entries that nobody got, now pending with the consumer."""
        group = self.group(key, group_name)
        group.heard[consumer] = self.clock.monotonic()
        fresh = self.after(key, group.delivered, limit)
        for entry_id, _ in fresh:
            group.delivered = entry_id
            group.pending[entry_id] = Pending(consumer, self.clock.monotonic(), 1)
        return fresh

    def claim(
        self, key: str, group_name: str, consumer: str, *, min_idle_s: float, limit: int
    ) -> list[tuple[Id, Fields, int]]:
        """XAUTOCLAIM: (id, fields, deliveries) of idle pending entries, now the consumer's; drops trimmed ones."""
        group, now_s = self.group(key, group_name), self.clock.monotonic()
        group.heard[consumer] = now_s
        entries = self._streams[key].entries
        claimed: list[tuple[Id, Fields, int]] = []
        for entry_id in sorted(group.pending):
            pending = group.pending[entry_id]
            if now_s - pending.delivered_s < min_idle_s:
                continue
            if entry_id not in entries:
                del group.pending[entry_id]
                continue
            group.pending[entry_id] = Pending(consumer, now_s, pending.deliveries + 1)
            claimed.append((entry_id, entries[entry_id], pending.deliveries + 1))
            if len(claimed) == limit:
                break
        return claimed

    def acknowledge(self, key: str, group_name: str, entry_ids: Iterable[Id]) -> None:
        """XACK."""
        stream = self.stream(key)
        if stream is not None and group_name in stream.groups:
            for entry_id in entry_ids:
                stream.groups[group_name].pending.pop(entry_id, None)

    def _purge(self, key: str) -> None:
        at_s = self._expires.get(key)
        if at_s is not None and at_s <= self.clock.monotonic():
            self.drop(key)
