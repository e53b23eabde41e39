"""The port of webhooks: events of the firehose on their way to receivers outside, each at least once.

Owns the words and the promises. Must not know HTTP, receivers, or what a filter is. Two implementations keep every
promise here and are held to one contract suite: `redis_webhooks.py` and `memory_webhooks.py`.

There are two stages, so that a receiver that is slow or dead holds up no other one. The group `webhooks` reads the
firehose and copies each event into the queue of every webhook that wants it (`take`, then `route`); each queue is
worked off by itself (`claim`, then `done` or `bury`).

Promises:

- An event is acknowledged in the firehose only after it is in every queue; a delivery leaves its queue only with
  `done` or `bury`. What a process that died had in hand is taken over by others (`take_left`, `claim_left`).
- Groups that the server lost are created again, from the start of what is there.

Not promised: that nothing comes twice (receivers dedupe by the event's id); anything beyond the caps of the streams.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

Fields = Mapping[str, bytes]


class Routable(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the firehose, undecoded: without webhooks nobody needs to look into it."""

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
        """When it was queued (epoch seconds, by the server's clock)."""
        return int(self.entry_id.partition("-")[0]) / 1_000


class Webhooks(Protocol):
    """Both stages, for one consumer."""

    async def is_first(self, *, silence_s: float) -> bool:
        """Whether no consumer with a lower name was heard of in the last `silence_s` seconds.

        One at a time works, so that events of a subject go out in order. It is no lock: two at once do no harm.
        """
        ...

    async def take(self, *, limit: int, block_s: float) -> list[Routable]:
        """New entries of the firehose, up to `limit` a shard; waits up to `block_s` seconds for the first."""
        ...

    async def take_again(self) -> list[Routable]:
        """What this consumer took before and did not route: what it is to go on with after a restart."""
        ...

    async def take_left(self, *, min_idle_s: float, limit: int) -> list[Routable]:
        """Entries that somebody took and did not route for `min_idle_s` seconds. Also says that we are here."""
        ...

    async def route(self, routes: Sequence[tuple[Routable, Sequence[str]]]) -> None:
        """Put each entry into the queues of these webhooks (none: nobody wants it), then acknowledge it."""
        ...

    async def claim(self, webhooks: Sequence[str], *, limit: int) -> list[Delivery]:
        """New deliveries of these queues, up to `limit` each, without waiting."""
        ...

    async def held(self, webhooks: Sequence[str]) -> list[Delivery]:
        """What this consumer claimed before and did not finish: what it is to go on with after a restart."""
        ...

    async def claim_left(self, webhooks: Sequence[str], *, min_idle_s: float, limit: int) -> list[Delivery]:
        """Deliveries that somebody claimed and did not heartbeat for `min_idle_s` seconds."""
        ...

    async def heartbeat(self, deliveries: Sequence[Delivery]) -> None:
        """Still at work on these."""
        ...

    async def done(self, deliveries: Sequence[Delivery]) -> None:
        """Delivered, or not wanted any more: remove them."""
        ...

    async def bury(self, delivery: Delivery, *, cause: str, tries: int) -> None:
        """Move a delivery to the dead letters; written there before it is removed here."""
        ...

    async def backlog(self, webhooks: Sequence[str]) -> list[int]:
        """How many deliveries each queue holds, in hand or waiting."""
        ...

    async def forget(self, webhook: str) -> None:
        """Remove a queue with everything in it: the webhook is gone."""
        ...
