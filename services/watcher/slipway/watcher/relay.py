"""Copies the transitions of each allocation to its event stream and to the firehose.

Owns what is being sent, and the last known entry of each stream. `producer.missing_entries` computes which entries a
stream lacks, and the server refuses entries that are out of order, so several relays may run.

Promises: a transition is sent to the streams as soon as its status is observed or written. `check` finds entries that
were lost on the way, or by the server, and sends them again. It does so for every allocation that has not ended, or
whose stream has not expired. Without Redis no stream exists, and nothing here waits for one.
"""

import asyncio
from collections.abc import Iterable, Sequence

from slipway.crd.transitions import events_after, id_of, seq_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import TransientError
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.streams import keys
from slipway.streams.ports import EntryOutcome, StreamEntry
from slipway.streams.producer import Ring, missing_entries
from slipway.watcher.ports import EventStreamWriter

BATCH_MAX = 256
FRESH_END_S = 60.0
"""If an allocation ended longer ago than this, a rebuilt stream expires when the original one would have expired."""

_log = log.get_logger(__name__)


class Relay:
    """Brings the streams up to date with the objects. `enabled` is False when no Redis is configured."""

    def __init__(self, events: EventStreamWriter, clock: Clock, *, enabled: bool) -> None:
        self._events = events
        self._clock = clock
        self._enabled = enabled
        self._dirty: dict[str, Allocation] = {}
        self._held: dict[AllocationId, int] = {}
        """{stream: its last seq, as far as known}"""
        self._something = asyncio.Event()

    def offer(self, allocation: Allocation) -> None:
        """Queue an allocation whose stream may lack its last transitions."""
        if not self._enabled or self.is_published(allocation):
            return
        uid = allocation.metadata.uid
        waiting = self._dirty.get(uid)
        if waiting is None or waiting.metadata.version <= allocation.metadata.version:
            self._dirty[uid] = allocation
            self._something.set()

    def is_published(self, allocation: Allocation) -> bool:
        """Whether the stream is known to have the last transition, or there is no stream to wait for."""
        if not self._enabled or self._life_s(allocation) == 0:
            return True
        return self._held.get(id_of(allocation), 0) >= seq_of(allocation)

    def forget(self, allocation: Allocation) -> None:
        """Forget an allocation whose object is gone."""
        self._held.pop(id_of(allocation), None)

    async def step(self) -> None:
        """Wait for something to relay, then relay a batch.

        Raises:
            TransientError: Redis cannot be reached; the batch is queued again.
        """
        with liveness.rest(lambda: self._dirty):
            await self._something.wait()
        await self.flush()
        await self._clock.sleep(keys.GATHER_S)

    async def flush(self) -> None:
        """Relay all queued allocations."""
        while self._dirty:
            batch = [self._dirty.pop(uid) for uid in list(self._dirty)[:BATCH_MAX]]
            try:
                await self._publish(batch)
            except TransientError:
                for allocation in batch:
                    self.offer(allocation)
                raise
            liveness.beat()
        self._something.clear()

    async def check(self, allocations: Iterable[Allocation]) -> int:
        """Compare the streams of all existing objects with the objects, and queue what is missing.

        Return how many streams lacked entries.

        Raises:
            TransientError: Redis cannot be reached.
        """
        if not self._enabled:
            return 0
        every = list(allocations)
        self._forget_others(every)
        living = [allocation for allocation in every if self._life_s(allocation) != 0]
        lacking = 0
        for start in range(0, len(living), BATCH_MAX):
            batch = living[start : start + BATCH_MAX]
            await self._read_last_seqs(batch)
            liveness.beat()
            missing = [allocation for allocation in batch if not self.is_published(allocation)]
            lacking += len(missing)
            for allocation in missing:
                self.offer(allocation)
        return lacking

    def _forget_others(self, allocations: Sequence[Allocation]) -> None:
        """Forget streams whose object was deleted while its entries were being appended or read."""
        if len(self._held) > len(allocations):
            kept = {id_of(allocation) for allocation in (*allocations, *self._dirty.values())}
            self._held = {id_: seq for id_, seq in self._held.items() if id_ in kept}

    async def check_quietly(self, allocations: Iterable[Allocation]) -> None:
        """Call `check`; an error is only logged, because the next check repeats it."""
        try:
            await self.check(allocations)
        except TransientError as error:
            _log.debug("streams not checked", error=str(error))

    async def _read_last_seqs(self, batch: Sequence[Allocation]) -> None:
        last_seqs = await self._events.last_seqs([id_of(allocation) for allocation in batch])
        for allocation, last_seq in zip(batch, last_seqs, strict=True):
            self._held[id_of(allocation)] = last_seq or 0

    async def _publish(self, batch: Sequence[Allocation]) -> None:
        unknown = [allocation for allocation in batch if id_of(allocation) not in self._held]
        fresh = [allocation for allocation in unknown if len(allocation.status.transitions) <= 1]
        for allocation in fresh:
            # Most unknown streams are new. If one is not, the server refuses the entries as a gap.
            self._held[id_of(allocation)] = 0
        if len(fresh) < len(unknown):
            await self._read_last_seqs([allocation for allocation in unknown if id_of(allocation) not in self._held])
        again = await self._append(batch)
        if again:
            # Another process wrote, or the server lost entries: read the last seq and try once more.
            # The next check does the rest.
            await self._read_last_seqs(again)
            await self._append(again)

    async def _append(self, batch: Sequence[Allocation]) -> list[Allocation]:
        """Append the missing entries; return the allocations whose streams differ from what we believed."""
        entries: list[StreamEntry] = []
        owners: list[Allocation] = []
        for allocation in batch:
            found = self._missing(allocation)
            entries.extend(found)
            owners.extend([allocation] * len(found))
        if not entries:
            return []
        wrong: dict[str, Allocation] = {}
        answers = await self._events.append(entries)
        for allocation, answer in zip(owners, answers, strict=True):
            telemetry.STREAM_APPENDS.labels(stream="alloc", outcome=answer.outcome.value).inc()
            self._held[id_of(allocation)] = answer.last_seq or 0
            if answer.outcome is EntryOutcome.GAP:
                wrong[allocation.metadata.uid] = allocation
        return list(wrong.values())

    def _missing(self, allocation: Allocation) -> list[StreamEntry]:
        life_s = self._life_s(allocation)
        if life_s == 0:
            return []
        held = self._held.get(id_of(allocation), 0)
        ring = Ring(events=tuple(events_after(allocation, 0)), expire_s=life_s)
        return missing_entries(ring, held or None)

    def _life_s(self, allocation: Allocation) -> int | None:
        """Return the seconds until the stream expires:
        None for the default of its key, 0 when it must not be rebuilt."""
        status = allocation.status
        if status.phase is not Phase.TERMINATED or not status.ended_at:
            return None
        ended_s = self._clock.now() - parse_time(status.ended_at)
        return None if ended_s < FRESH_END_S else max(0, int(keys.ALLOCATION.ttl_s - ended_s))
