"""The port of an integration's consumer group on the firehose: every event, at least once.

This module owns the terms and the promises. It must not know what a handler does with an event. Two implementations
keep every promise and pass one contract suite: `redis_events.py` and `memory_side.py`.

Promises:

- An event stays pending until it is acknowledged or is a dead letter. A dead letter is written before its event is
  acknowledged. So a crash between the two leaves a second letter, never none.
- A group that the server lost is created again, from the start of the existing entries.
- Every call ends: a claim within the given time, other calls within the command deadline.

Not promised: that an event is delivered only once (drop an event whose id you have handled); that the events of one
allocation are in order when several consumers share the group; any event beyond the cap of the firehose.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from slipway.errors import InvalidError
from slipway.model.events import AllocationEvent
from slipway.streams import codec, keys
from slipway.streams.ports import DeadLetter


class EventDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One delivered event. `event` is None when this version cannot read it (`problem` states why).

    `deliveries` is how often the group received it, from 1. `fields` are the unchanged fields of the entry.
    """

    shard: int
    entry_id: str
    deliveries: int
    fields: Mapping[str, bytes]
    event: AllocationEvent | None
    problem: str = ""

    @property
    def place(self) -> tuple[int, str]:
        """The shard and id that identify the entry."""
        return self.shard, self.entry_id


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind.

    `waiting` is the number of events that were delivered to no consumer yet (at most `keys.LAG_MAX` of each shard are
    counted). `pending` events were delivered and are not acknowledged. `behind_s` is by how many seconds the group's
    last event is older than the newest event of its shard, for the shard that is furthest behind.
    """

    waiting: int
    pending: int
    behind_s: float


class EventGroup(Protocol):
    """One group, as seen by one of its consumers."""

    async def claim(self, *, limit: int, block_s: float) -> list[EventDelivery]:
        """Return new events, at most `limit` (at least one per shard). Waits up to `block_s` seconds for the first."""
        ...

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[EventDelivery]:
        """Return events that were delivered, but neither acknowledged nor kept for `min_idle_s` seconds; at most
        `limit`.
        """
        ...

    async def keep(self, deliveries: Sequence[EventDelivery]) -> None:
        """Report that these events are still in work. No other consumer may claim them for another idle period."""
        ...

    async def count_failure(self, delivery: EventDelivery) -> None:
        """Count one more delivery, because the handler failed and this consumer will call it again."""
        ...

    async def acknowledge(self, deliveries: Sequence[EventDelivery]) -> None:
        """Remove these events from the pending ones, because they are handled."""
        ...

    async def dead_letter(self, delivery: EventDelivery, *, cause: str, deliveries: int) -> None:
        """Move an event to the dead letters of the group."""
        ...

    async def lag(self) -> GroupLag:
        """Return how far the group is behind."""
        ...

    async def leave(self) -> None:
        """Remove this consumer from the group where it has no pending events."""
        ...

    async def letters(self, *, after: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Return up to `limit` dead letters of the group after an id, oldest first."""
        ...

    async def drop_letter(self, letter_id: str) -> None:
        """Remove a dead letter."""
        ...


def delivery(shard: int, entry_id: str, deliveries: int, fields: Mapping[str, bytes]) -> EventDelivery:
    """Return a delivered entry, whether it can be read or not."""
    try:
        event, problem = codec.decode_event(fields), ""
    except InvalidError as exc:
        event, problem = None, str(exc)
    return EventDelivery(
        shard=shard, entry_id=entry_id, deliveries=deliveries, fields=fields, event=event, problem=problem
    )


def letter_of(each: EventDelivery, deliveries: int, cause: str) -> dict[str, bytes]:
    """Return the fields of a dead letter for an event."""
    return codec.encode_dead(keys.events(each.shard), each.entry_id, deliveries, cause, each.fields)


def by_shard(deliveries: Sequence[EventDelivery]) -> dict[int, list[str]]:
    """Return {shard: ids of its entries}."""
    found: dict[int, list[str]] = {}
    for each in deliveries:
        found.setdefault(each.shard, []).append(each.entry_id)
    return found
