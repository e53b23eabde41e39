"""The content of a live system's streams, as evidence. It only reads.

This module owns the paging and the concurrency. It must not know the checks.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.ops.audit.evidence import HintHistory
from slipway.streams.ports import DeadLetter, EventLog, Streams

PAGE = 500
AT_ONCE = 16
NAME = "audit"
_MS = 1_000.0


class Flows(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one look. `streams` is {AllocationID: its events}."""

    streams: dict[str, list[AllocationEvent]]
    pending_hints: int = 0
    deliveries: tuple[HintHistory, ...] = ()
    """Deliveries of the hints that became dead letters."""


async def read(streams: Streams, allocations: Iterable[AllocationId]) -> Flows:
    """Return all stream content of these allocations.

    Raises:
        TransientError: the streams cannot be read.
    """
    slots, found = asyncio.Semaphore(AT_ONCE), dict[str, list[AllocationEvent]]()

    async def one(allocation: AllocationId) -> None:
        async with slots:
            found[str(allocation)] = await _events(streams.events, allocation)

    await asyncio.gather(*map(one, allocations))
    return Flows(
        streams=found,
        pending_hints=await streams.work_queue(NAME).backlog(),
        deliveries=tuple(_delivered(letter) for letter in await _letters(streams)),
    )


async def _events(log: EventLog, allocation: AllocationId) -> list[AllocationEvent]:
    events: list[AllocationEvent] = []
    after: str | None = None
    while True:
        page = await log.read(allocation, after=after, limit=PAGE)
        events += [stored.event for stored in page]
        if len(page) < PAGE:
            return events
        after = page[-1].cursor


async def _letters(streams: Streams) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    after: str | None = None
    while True:
        page = await streams.dead.page(after=after, limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found
        after = page[-1].id


def _delivered(letter: DeadLetter) -> HintHistory:
    key = letter.fields.get("key", "")
    return HintHistory(
        hint=f"{letter.source} {letter.entry_id}",
        allocation=key.rpartition("/")[2],
        times=letter.deliveries,
        added_at=int(letter.entry_id.partition("-")[0] or 0) / _MS,
        dead_at=int(letter.id.partition("-")[0] or 0) / _MS,
        # An entry that names no allocation could not be decoded.
        is_poison=not key,
    )
