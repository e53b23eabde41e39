"""The port of a consumer group that an integration has on the firehose: every event, at least once.

Owns the words and the promises. Must not know what a handler does with an event. Two implementations keep every
promise here and are held to one contract suite: `redis_event_groups.py` and `memory_event_groups.py`.

Promises:

- An event stays pending until it is acknowledged or is a dead letter. A dead letter is written before its event is
  acknowledged: a crash in between leaves a second letter, never none.
- A group that the server lost is created again, from the start of what is there.
- Every call ends: a claim within the time that it is given, all else within the command deadline.

Not promised: that nothing comes twice (drop an event whose id you have handled); that the events of one allocation come
in order when several consumers share the group; anything beyond the cap of the firehose.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from slipway.errors import InvalidError
from slipway.model.events import AllocationEvent
from slipway.streams import codec, keys
from slipway.streams.ports import DeadLetter


class EventDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event as it was delivered; `event` is None when this version cannot read it (`problem` says why).

    `deliveries` counts how often the group got it, from 1. `fields` are those of the entry, as they are.
    """

    shard: int
    entry_id: str
    deliveries: int
    fields: Mapping[str, bytes]
    event: AllocationEvent | None
    problem: str = ""

    @property
    def place(self) -> tuple[int, str]:
        """What tells two entries apart."""
        return self.shard, self.entry_id


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind.

    `waiting` events were delivered to no consumer yet (of each shard at most `keys.LAG_MAX` are counted). `pending`
    were delivered and are not acknowledged. `behind_s` is how much older the group's last event is than the newest one
    of its shard, in seconds, of the shard that is furthest behind.
    """

    waiting: int
    pending: int
    behind_s: float


class EventGroup(Protocol):
    """One group, as one of its consumers has it."""

    async def claim(self, *, limit: int, block_s: float) -> list[EventDelivery]:
        """New events, at most `limit` (at least one a shard); waits up to `block_s` seconds for the first."""
        ...

    async def claim_abandoned(self, *, min_idle_s: float, limit: int) -> list[EventDelivery]:
        """Events that were delivered, and neither acknowledged nor kept for `min_idle_s` seconds; at most `limit`."""
        ...

    async def keep(self, deliveries: Sequence[EventDelivery]) -> None:
        """Still at work on these: no other consumer may claim them for another idle period."""
        ...

    async def count_failure(self, delivery: EventDelivery) -> None:
        """The handler failed, and will be called again by this consumer: one delivery more."""
        ...

    async def acknowledge(self, deliveries: Sequence[EventDelivery]) -> None:
        """They are handled: forget them."""
        ...

    async def bury(self, delivery: EventDelivery, *, cause: str, deliveries: int) -> None:
        """Move one to the dead letters of the group."""
        ...

    async def lag(self) -> GroupLag:
        """How far the group is behind."""
        ...

    async def leave(self) -> None:
        """Remove this consumer from the group, where it holds nothing."""
        ...

    async def letters(self, *, after: str | None = None, limit: int = 100) -> list[DeadLetter]:
        """Up to `limit` dead letters of the group after an id, oldest first."""
        ...

    async def drop_letter(self, letter_id: str) -> None:
        """Remove a dead letter."""
        ...


def delivery(shard: int, entry_id: str, deliveries: int, fields: Mapping[str, bytes]) -> EventDelivery:
    """A delivered entry, readable or not."""
    try:
        event, problem = codec.decode_event(fields), ""
    except InvalidError as exc:
        event, problem = None, str(exc)
    return EventDelivery(
        shard=shard, entry_id=entry_id, deliveries=deliveries, fields=fields, event=event, problem=problem
    )


def letter_of(each: EventDelivery, deliveries: int, cause: str) -> dict[str, bytes]:
    """The fields of a dead letter about an event."""
    return codec.encode_dead(keys.events(each.shard), each.entry_id, deliveries, cause, each.fields)


def by_shard(deliveries: Sequence[EventDelivery]) -> dict[int, list[str]]:
    """{shard: ids of its entries}"""
    found: dict[int, list[str]] = {}
    for each in deliveries:
        found.setdefault(each.shard, []).append(each.entry_id)
    return found
