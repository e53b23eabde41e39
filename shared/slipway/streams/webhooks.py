"""The port of webhooks: events of the firehose on their way to external receivers, each at least once.

This module owns the terms and the promises. It must not know HTTP, receivers or filters. Two implementations keep every
promise and pass one contract suite: `redis_webhooks.py` and `memory_side.py`.

There are two stages, so that a slow or dead receiver delays no other one. The group `webhooks` reads the firehose and
copies each event into the queue of every webhook that wants it (`take`, then `route`). Each queue is processed
separately (`claim`, then `done` or `dead_letter`).

Promises:

- An event is acknowledged in the firehose only after it is in every queue. A delivery is removed from its queue only by
  `done` or `dead_letter`. Other processes take over the entries of a dead process (`take_abandoned`,
  `claim_abandoned`).
- Groups that the server lost are created again, from the start of the existing entries.

Not promised: that an event is delivered only once (receivers dedupe by the event's id); any event beyond the caps of
the streams.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

Fields = Mapping[str, bytes]


class Routable(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the firehose, undecoded, because without webhooks there is no need to decode it."""

    shard: int
    entry_id: str
    fields: Fields


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event in the queue of one webhook."""

    webhook: str
    entry_id: str
    fields: Fields

    @property
    def queued_at(self) -> float:
        """When the delivery was queued (epoch seconds, by the server's clock)."""
        return int(self.entry_id.partition("-")[0]) / 1_000


class Webhooks(Protocol):
    """Both stages, for one consumer."""

    async def is_first(self, *, silence_s: float) -> bool:
        """Whether no consumer with a lower name called a command of the group in the last `silence_s` seconds.

        One consumer at a time works, so that events of a subject are sent in order. This is no lock: two consumers at
        once do no harm.
        """
        ...

    async def take(self, *, limit: int, block_s: float) -> list[Routable]:
        """Return new entries of the firehose, up to `limit` per shard. Waits up to `block_s` seconds for the first."""
        ...

    async def take_again(self) -> list[Routable]:
        """Return the entries that this consumer took before and did not route, to continue with after a restart."""
        ...

    async def take_abandoned(self, *, min_idle_s: float, limit: int) -> list[Routable]:
        """Return entries that any consumer took and did not route for `min_idle_s` seconds. Also a sign of life of this
        consumer.
        """
        ...

    async def route(self, routes: Sequence[tuple[Routable, Sequence[str]]]) -> None:
        """Put each entry into the queues of these webhooks (empty: no webhook wants it), then acknowledge it."""
        ...

    async def claim(self, webhooks: Sequence[str], *, limit: int) -> list[Delivery]:
        """Return new deliveries of these queues, up to `limit` each, without waiting."""
        ...

    async def held(self, webhooks: Sequence[str]) -> list[Delivery]:
        """Return the deliveries that this consumer claimed before and did not finish, to continue with after a
        restart.
        """
        ...

    async def claim_abandoned(self, webhooks: Sequence[str], *, min_idle_s: float, limit: int) -> list[Delivery]:
        """Return deliveries that any consumer claimed and did not heartbeat for `min_idle_s` seconds."""
        ...

    async def heartbeat(self, deliveries: Sequence[Delivery]) -> None:
        """Report that these deliveries are still in work."""
        ...

    async def done(self, deliveries: Sequence[Delivery]) -> None:
        """Remove deliveries that are delivered or no longer wanted."""
        ...

    async def dead_letter(self, delivery: Delivery, *, cause: str, tries: int) -> None:
        """Move a delivery to the dead letters. It is written there before it is removed here."""
        ...

    async def backlog(self, webhooks: Sequence[str]) -> list[int]:
        """Return the number of deliveries in each queue, in hand or waiting."""
        ...

    async def forget(self, webhook: str) -> None:
        """Remove the queue of a deleted webhook with all its deliveries."""
        ...
