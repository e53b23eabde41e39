"""Seeded bugs of the streams: ids, order, holes, trims, groups, dead letters."""

from typing import Any

import msgspec
import pytest

from slipway.crd import transitions
from slipway.streams import codec, keys, memory
from slipway.streams.consumer import WorkConsumer
from slipway.streams.memory import MemoryWorkQueue
from slipway.streams.memory_server import MemoryGroup, MemoryServer, MemoryStream
from slipway.streams.ports import Appended, EntryOutcome, StreamEntry
from slipway.watcher import relay
from tests.simulation.bugs.bug import Bug


def _entries_depend_on_the_teller(patch: pytest.MonkeyPatch) -> None:
    event_of = transitions.event_of

    def seeded(allocation: Any, entry: Any, *, truncated: str | None = None) -> Any:
        told = event_of(allocation, entry, truncated=truncated)
        return msgspec.structs.replace(told, data={**told.data, "version": allocation.metadata.resource_version})

    patch.setattr(transitions, "event_of", seeded)


def _whatever_is_told_is_appended(patch: pytest.MonkeyPatch) -> None:
    """A bare XADD: no check of the stream's end, and ids from the server's clock."""

    def append(self: Any, entry: StreamEntry) -> Appended:
        event = entry.event
        key = keys.allocation(event.allocation_id)
        fields = codec.encode_event(event)
        self._server.add(keys.events(keys.shard_of(event.allocation_id)), fields)
        self._server.add(key, fields)
        return Appended(outcome=EntryOutcome.APPENDED, last_seq=event.seq)

    def last_seq(self: Any, key: str) -> int | None:
        newest = self._server.newest(key, 1)
        return int(codec.decode_event(newest[0][1]).seq) if newest else None

    patch.setattr(memory.MemoryEvents, "_append_in_script", append)
    patch.setattr(memory.MemoryEvents, "_last_seq", last_seq)


def _holes_are_not_marked(patch: pytest.MonkeyPatch) -> None:
    missing = relay.missing_entries

    def seeded(*given: Any) -> list[StreamEntry]:
        found = missing(*given)
        return [
            msgspec.structs.replace(item, event=msgspec.structs.replace(item.event, truncated=None)) for item in found
        ]

    patch.setattr(relay, "missing_entries", seeded)


def _streams_are_trimmed_by_length(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keys, "ALLOCATION", msgspec.structs.replace(keys.ALLOCATION, length_max=3))


def _work_is_trimmed_by_length(patch: pytest.MonkeyPatch) -> None:
    """The work stream is trimmed although entries are unread or unacknowledged."""

    async def trim(self: Any) -> int:
        await self._server.enter("queue.trim")
        for key in keys.WORK_KEYS:
            stream = self._server.stream(key)
            if stream is not None:
                stream.entries.clear()
        return 1

    patch.setattr(MemoryWorkQueue, "trim", trim)


def _groups_begin_at_the_end(patch: pytest.MonkeyPatch) -> None:
    def create(self: Any, key: str, name: str, *, make: bool) -> None:
        self._purge(key)
        stream = self._streams.setdefault(key, MemoryStream()) if make else self._streams.get(key)
        if stream is not None:
            stream.groups.setdefault(name, MemoryGroup(delivered=stream.last))

    patch.setattr(MemoryServer, "create_group", create)


def _consumers_go_with_what_they_hold(patch: pytest.MonkeyPatch) -> None:
    """A consumer that starts deletes the pending entries of all others."""
    claim = MemoryWorkQueue.claim_abandoned

    async def seeded(self: Any, **how: Any) -> Any:
        for key in keys.WORK_KEYS:
            stream = self._server.stream(key)
            for group in stream.groups.values() if stream is not None else ():
                for entry_id in [each for each, held in group.pending.items() if held.consumer != self._consumer]:
                    del group.pending[entry_id]
        return await claim(self, **how)

    patch.setattr(MemoryWorkQueue, "claim_abandoned", seeded)


def _nothing_abandoned_is_claimed(patch: pytest.MonkeyPatch) -> None:
    async def none(_self: Any, **_how: Any) -> list[Any]:
        return []

    patch.setattr(MemoryWorkQueue, "claim_abandoned", none)


def _poison_is_tried_for_ever(patch: pytest.MonkeyPatch) -> None:
    async def again(self: Any, claimed: Any, _cause: str) -> None:
        await self._quietly(self._queue.release([claimed]))

    patch.setattr(WorkConsumer, "_bury", again)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="stream entries depend on the teller",
        breaks="a stream entry is a function of the object and one ring entry",
        install=_entries_depend_on_the_teller,
        hunts=(("launch-1", ""), ("restart", "flush@watcher:*:after")),
        told_by=("I14",),
    ),
    Bug(
        name="whatever is told is appended",
        breaks="an entry is appended as the last one plus one, under an id made from its seq",
        install=_whatever_is_told_is_appended,
        hunts=(("launch-1", "timeout-applied@watcher:*append events:after"),),
        told_by=("I14",),
    ),
    Bug(
        name="a hole is not marked",
        breaks="a stream says which entries it lacks",
        install=_holes_are_not_marked,
        hunts=(("much-told", ""),),
        told_by=("I14", "I15"),
    ),
    Bug(
        name="streams are trimmed by length",
        breaks="a stream holds every transition, or says which it lacks",
        install=_streams_are_trimmed_by_length,
        hunts=(("launch-1", ""),),
        told_by=("I14",),
    ),
    Bug(
        name="work is trimmed by length",
        breaks="a hint is trimmed after it was acknowledged",
        install=_work_is_trimmed_by_length,
        hunts=(("launch-4", ""), ("launch-4", "crash@podworker:*create pods:after")),
        told_by=("I16",),
    ),
    Bug(
        name="a group begins at the end",
        breaks="a group is made at the beginning of its stream",
        install=_groups_begin_at_the_end,
        hunts=(("flushed-alone", ""),),
        told_by=("I16",),
    ),
    Bug(
        name="consumers go with what they hold",
        breaks="a consumer is forgotten when nothing is delivered to it any more",
        install=_consumers_go_with_what_they_hold,
        hunts=(("launch-4", "crash@podworker:*create pods:after"),),
        told_by=("I16",),
        replicas=2,
    ),
    Bug(
        name="nothing abandoned is claimed",
        breaks="what a dead worker held is claimed by another",
        install=_nothing_abandoned_is_claimed,
        hunts=(("launch-1", "crash@podworker:*create pods:after"),),
        told_by=("I16", "I18"),
    ),
    Bug(
        name="poison is tried for ever",
        breaks="what can never be handled goes to the dead letters",
        install=_poison_is_tried_for_ever,
        hunts=(("poison", ""),),
        told_by=("I16", "I17", "I18"),
    ),
)
