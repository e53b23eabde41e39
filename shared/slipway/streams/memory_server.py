"""A deterministic model of a single Redis server, limited to the commands that Slipway uses.

This module owns streams, consumer groups, hashes and expiry in memory, on an injected clock. It does not know the
meaning of the entries; `memory.py` implements the ports with it. Many clients may share one server, as processes share
a Redis.

Faults that the simulation can turn on: `flush()` (FLUSHALL), `absent` (the server does not answer), `refuses` (the
server answers with an error), and `on_call`. `on_call` is awaited before each operation with its name; there a test
adds latency, an error or a crash. `python -m tests.models redis` compares the whole model with real servers.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from slipway.errors import ControlPlaneError, PermanentError, ThrottledError, UnavailableError
from slipway.runtime.clock import Clock
from slipway.streams.pages import ZERO, Id

Fields = dict[str, bytes]
T = TypeVar("T")
_MS = 1_000
_CLAIM_LOOKS = 10
"""XAUTOCLAIM examines at most this many times the number of entries that it may claim."""


@dataclass
class Pending:
    """One entry that was delivered and not acknowledged."""

    consumer: str
    delivered_s: float
    deliveries: int


@dataclass
class MemoryGroup:
    """One consumer group."""

    delivered: Id = ZERO
    pending: dict[Id, Pending] = field(default_factory=dict[Id, Pending])
    heard: dict[str, float] = field(default_factory=dict[str, float])
    """{consumer: when it last called a command of the group}."""


@dataclass
class MemoryStream:
    """One stream. `last` and `added`, the number of entries it ever got, never fall while the key exists."""

    entries: dict[Id, Fields] = field(default_factory=dict[Id, Fields])
    last: Id = ZERO
    added: int = 0
    groups: dict[str, MemoryGroup] = field(default_factory=dict[str, MemoryGroup])


class ServerRefusal(StrEnum):
    """The reason why a server that answers refuses a command."""

    OOM = "OOM"
    """Its memory is full, and it evicts nothing: commands that need more memory fail, all others work."""
    READONLY = "READONLY"
    """It was made a replica: only reads work."""
    MISCONF = "MISCONF"
    """It cannot save to its disk: only reads work."""
    LOADING = "LOADING"
    """It has just started and is loading its file."""


class GroupLostError(PermanentError):
    """NOGROUP: the consumer group or its stream does not exist."""


def pipeline(calls: Iterable[Callable[[], T]]) -> list[T]:
    """Make all calls and return their results. Afterwards raise the first error, if there was one."""
    answers, error = list[T](), None
    for call in calls:
        try:
            answers.append(call())
        except ControlPlaneError as exc:
            error = error or exc
    if error is not None:
        raise error
    return answers


class MemoryServer:
    """The state that all clients share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.on_call: Callable[[str], Awaitable[None]] | None = None
        self._absent = False
        self.refuses: ServerRefusal | None = None
        self._script_wrote: bool | None = None
        """Whether the running script has changed something; None while no script runs."""
        self._streams: dict[str, MemoryStream] = {}
        self._hashes: dict[str, dict[str, bytes]] = {}
        self._expires: dict[str, float] = {}
        self._waiters: dict[asyncio.Future[bool], Sequence[str]] = {}
        """{waiter: the streams that it waits for; empty for any change}."""

    @property
    def absent(self) -> bool:
        """Whether the server does not answer. Setting it wakes blocked readers, which then fail."""
        return self._absent

    @absent.setter
    def absent(self, value: bool) -> None:
        self._absent = value
        self.notify()

    def flush(self) -> None:
        """Remove all keys (FLUSHALL)."""
        self._streams.clear()
        self._hashes.clear()
        self._expires.clear()
        self.notify()

    async def enter(self, operation: str) -> None:
        """Start an operation: a point of suspension, and of injected faults."""
        await asyncio.sleep(0)
        if self.on_call is not None:
            await self.on_call(operation)
        self.check()

    def check(self) -> None:
        """Raise `UnavailableError` while the server is absent or loading its file."""
        if self._absent:
            raise UnavailableError("redis is unavailable")
        if self.refuses is ServerRefusal.LOADING:
            raise UnavailableError("redis does not answer for now: LOADING")

    def before_write(self, *, grows: bool = False) -> None:
        """Check a write before it runs: every command that may change something calls this. Raises the server's
        refusal.
        """
        if self._script_wrote:
            return
        if self.refuses in (ServerRefusal.READONLY, ServerRefusal.MISCONF):
            raise UnavailableError(f"redis does not answer for now: {self.refuses}")
        if grows and self.refuses is ServerRefusal.OOM:
            raise ThrottledError("redis is out of memory")
        if self._script_wrote is not None:
            self._script_wrote = True

    @contextmanager
    def script(self) -> Generator[None]:
        """Run the calls inside as one script. After its first change, the server refuses no further command of the
        script.
        """
        self._script_wrote = False
        try:
            yield
        finally:
            self._script_wrote = None

    def notify(self, key: str = "") -> None:
        """Wake every waiter for a change of this stream; without a key, wake all waiters."""
        for waiter, awaited in list(self._waiters.items()):
            if not key or not awaited or key in awaited:
                del self._waiters[waiter]
                _settle(waiter, True)

    async def until_change(self, deadline_s: float, awaited: Sequence[str] = ()) -> bool:
        """Wait for a change of one of these streams until the clock's `deadline_s` (monotonic); False when it has
        passed.

        Without `awaited`, any change is enough.
        """
        remaining_s = deadline_s - self.clock.monotonic()
        if remaining_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters[waiter] = awaited
        timer = loop.call_later(remaining_s, _settle, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    def keys(self) -> list[str]:
        """Return every key that has not expired."""
        for key in tuple(self._expires):
            self._purge(key)
        return [*self._streams, *self._hashes]

    def stream(self, key: str) -> MemoryStream | None:
        """Return the stream at `key`, if it has not expired."""
        if key in self._expires:
            self._purge(key)
        return self._streams.get(key)

    def add(self, key: str, fields: Mapping[str, bytes], *, entry_id: Id | None = None, length_max: int = 0) -> Id:
        """XADD; the server's clock makes the id unless one is given.

        Raises:
            PermanentError: the given id is not above every earlier id of the stream.
        """
        self.before_write(grows=True)
        self._purge(key)
        stream = self._streams.setdefault(key, MemoryStream())
        if entry_id is None:
            now_ms = int(self.clock.now() * _MS)
            entry_id = (now_ms, 0) if now_ms > stream.last[0] else (stream.last[0], stream.last[1] + 1)
        elif entry_id <= stream.last:
            raise PermanentError("redis answered: the ID is equal or smaller than the target stream top item")
        stream.entries[entry_id] = dict(fields)
        stream.last = entry_id
        stream.added += 1
        if length_max:
            for _ in range(len(stream.entries) - length_max):
                del stream.entries[next(iter(stream.entries))]
        self.notify(key)
        return entry_id

    def after(self, key: str, after: Id, limit: int) -> list[tuple[Id, Fields]]:
        """Return the oldest `limit` entries above an id."""
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
        """Return the newest `limit` entries, oldest first."""
        stream = self.stream(key)
        if stream is None:
            return []
        return [*itertools.islice(reversed(stream.entries.items()), limit)][::-1]

    def oldest_left(self, key: str) -> Id:
        """Return the id of the oldest entry when older entries were removed (XINFO STREAM), else zero."""
        stream = self.stream(key)
        if stream is None or stream.added <= len(stream.entries):
            return ZERO
        return next(iter(stream.entries), stream.last)

    def end(self, key: str) -> Id:
        """Return the id of the newest entry; zero when there is none."""
        newest = self.newest(key, 1)
        return newest[0][0] if newest else ZERO

    def remove(self, key: str, entry_id: Id) -> bool:
        """XDEL of one entry."""
        self.before_write()
        stream = self.stream(key)
        return stream is not None and stream.entries.pop(entry_id, None) is not None

    def drop(self, key: str) -> None:
        """DEL."""
        self.before_write()
        self._discard(key)

    def _discard(self, key: str) -> None:
        self._streams.pop(key, None)
        self._hashes.pop(key, None)
        self._expires.pop(key, None)

    def trim_below(self, key: str, floor: Id) -> int:
        """XTRIM MINID."""
        self.before_write()
        stream = self.stream(key)
        if stream is None:
            return 0
        gone = [entry_id for entry_id in stream.entries if entry_id < floor]
        for entry_id in gone:
            del stream.entries[entry_id]
        return len(gone)

    def expire(self, key: str, ttl_s: float, *, keep_existing: bool = False) -> None:
        """EXPIRE; with `keep_existing` only when there is no expiry yet (NX). A key that does not exist gets no
        expiry.
        """
        self.before_write()
        self._purge(key)
        if (key in self._streams or key in self._hashes) and not (keep_existing and key in self._expires):
            self._expires[key] = self.clock.monotonic() + ttl_s

    def ttl_s(self, key: str) -> float | None:
        """Return the seconds until the key expires; None without expiry."""
        at_s = self._expires.get(key)
        return None if at_s is None else at_s - self.clock.monotonic()

    def hash_set(self, key: str, values: Mapping[str, bytes]) -> None:
        """HSET."""
        self.before_write(grows=True)
        self._purge(key)
        self._hashes.setdefault(key, {}).update(values)

    def hash_get(self, key: str) -> dict[str, bytes]:
        """HGETALL."""
        self._purge(key)
        return dict(self._hashes.get(key, {}))

    def hash_cut(self, key: str, fields: Iterable[str]) -> None:
        """HDEL. When its last field is removed, the hash is removed."""
        self.before_write()
        self._purge(key)
        found = self._hashes.get(key, {})
        for field_name in fields:
            found.pop(field_name, None)
        if key in self._hashes and not found:
            self._discard(key)

    def create_group(self, key: str, name: str, *, make: bool) -> None:
        """XGROUP CREATE at 0. With `make` (MKSTREAM) it creates a missing stream too; otherwise a missing stream is
        ignored.
        """
        self.before_write(grows=True)
        self._purge(key)
        stream = self._streams.setdefault(key, MemoryStream()) if make else self._streams.get(key)
        if stream is not None:
            stream.groups.setdefault(name, MemoryGroup())

    def group(self, key: str, name: str) -> MemoryGroup | None:
        """Return the group, if it and its stream exist."""
        stream = self.stream(key)
        return stream.groups.get(name) if stream is not None else None

    def hears_of_more(self, key: str, group_name: str, consumer: str) -> bool:
        """Whether `deliver` would return entries; most polls find none. Records the call of the consumer.

        Raises the same errors as `deliver`, except for a lost group.
        """
        group = self.group(key, group_name)
        if group is None:
            return False
        self.before_write()
        group.heard[consumer] = self.clock.monotonic()
        return self._streams[key].last > group.delivered

    def deliver(self, key: str, group_name: str, consumer: str, limit: int) -> list[tuple[Id, Fields]]:
        """XREADGROUP `>`: the next entries that no consumer received. They are pending with this consumer now.

        Raises:
            GroupLostError: there is no such group.
        """
        self.before_write()
        stream, group = self._streams.get(key), self._group_of(key, group_name)
        now_s = self.clock.monotonic()
        group.heard[consumer] = now_s
        if stream is not None and stream.last <= group.delivered:
            return []
        fresh = self.after(key, group.delivered, limit)
        for entry_id, _ in fresh:
            group.delivered = entry_id
            group.pending[entry_id] = Pending(consumer, now_s, 1)
        return fresh

    def deliver_again(self, key: str, group_name: str, consumer: str, limit: int) -> list[tuple[Id, Fields]]:
        """XREADGROUP 0: the entries pending with the consumer, as another delivery. Trimmed entries stay pending and
        are left out.

        Raises:
            GroupLostError: there is no such group.
        """
        self.before_write()
        group = self._group_of(key, group_name)
        now_s = self.clock.monotonic()
        group.heard[consumer] = now_s
        entries = self._streams[key].entries
        own = [entry_id for entry_id in sorted(group.pending) if group.pending[entry_id].consumer == consumer][:limit]
        there = [entry_id for entry_id in own if entry_id in entries]
        for entry_id in there:
            group.pending[entry_id] = Pending(consumer, now_s, group.pending[entry_id].deliveries + 1)
        return [(entry_id, entries[entry_id]) for entry_id in there]

    def claim(
        self, key: str, group_name: str, consumer: str, *, min_idle_s: float, limit: int, start: Id = ZERO
    ) -> tuple[Id, list[tuple[Id, Fields, int]]]:
        """XAUTOCLAIM: return the next start and (id, fields, deliveries) of idle pending entries, which now belong to
        the consumer.

        Trimmed pending entries are dropped, whatever their age, and are counted in the limit. Returns no entries when
        there is no such group.
        """
        self.before_write()
        group, now_s = self.group(key, group_name), self.clock.monotonic()
        if group is None:
            return ZERO, []
        group.heard[consumer] = now_s
        entries = self._streams[key].entries
        claimed: list[tuple[Id, Fields, int]] = []
        left = limit
        for looked_at, entry_id in enumerate(sorted(each for each in group.pending if each >= start)):
            if not left or looked_at == limit * _CLAIM_LOOKS:
                return entry_id, claimed
            pending = group.pending[entry_id]
            if entry_id not in entries:
                del group.pending[entry_id]
                left -= 1
            elif now_s - pending.delivered_s >= min_idle_s:
                group.pending[entry_id] = Pending(consumer, now_s, pending.deliveries + 1)
                claimed.append((entry_id, entries[entry_id], pending.deliveries + 1))
                left -= 1
        return ZERO, claimed

    def touch(self, key: str, group_name: str, consumer: str, entry_id: Id, *, deliveries: int | None = None) -> None:
        """XCLAIM by the owner: reset the idle time, and set the deliveries when given. A trimmed entry is dropped."""
        group = self.group(key, group_name)
        pending = group.pending.get(entry_id) if group is not None else None
        if group is None or pending is None or pending.consumer != consumer:
            return
        self.before_write()
        if entry_id not in self._streams[key].entries:
            del group.pending[entry_id]
            return
        pending.delivered_s = self.clock.monotonic()
        if deliveries is not None:
            pending.deliveries = deliveries

    def forget_consumers(self, key: str, group_name: str, *, idle_s: float) -> int:
        """XGROUP DELCONSUMER of consumers without pending entries that were idle for `idle_s`; return their number."""
        group, now_s = self.group(key, group_name), self.clock.monotonic()
        if group is None:
            return 0
        busy = {pending.consumer for pending in group.pending.values()}
        gone = [name for name, at_s in group.heard.items() if name not in busy and now_s - at_s >= idle_s]
        for name in gone:
            self.before_write()
            del group.heard[name]
        return len(gone)

    def acknowledge(self, key: str, group_name: str, entry_ids: Iterable[Id]) -> None:
        """XACK."""
        self.before_write()
        stream = self.stream(key)
        if stream is not None and group_name in stream.groups:
            for entry_id in entry_ids:
                stream.groups[group_name].pending.pop(entry_id, None)

    def _group_of(self, key: str, name: str) -> MemoryGroup:
        group = self.group(key, name)
        if group is None:
            raise GroupLostError("the consumer group is not there")
        return group

    def _purge(self, key: str) -> None:
        at_s = self._expires.get(key)
        if at_s is not None and at_s <= self.clock.monotonic():
            self._discard(key)


def _settle(waiter: "asyncio.Future[bool]", answer: bool) -> None:
    if not waiter.done():
        waiter.set_result(answer)
