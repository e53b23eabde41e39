"""From the firehose into the queues of the webhooks that want it.

Owns who of the replicas does this: the first by name of those that were heard of lately, so that the events of a
subject stay in order. It is no lock; two at once do no harm, and when the first is gone the next one goes on.

Invariant: an event is matched against a list of webhooks that was read after the event was taken, so that none is
missed by a webhook that was there before it happened.
"""

from collections.abc import Callable, Mapping, Sequence

from slipway.api.webhooks.hook import Webhook
from slipway.api.webhooks.registry import WebhookRegistry
from slipway.errors import InvalidError
from slipway.runtime import telemetry
from slipway.runtime.clock import Clock
from slipway.streams.codec import decode_event
from slipway.streams.webhooks import Routable, Webhooks

SILENCE_S = 10.0
"""A replica that was not heard of for so long is not the first."""
LOOK_S = 3.0
LEFT_S = 30.0
TAKE_MAX = 200
BLOCK_S = 2.0
GATHER_S = 0.25
"""Lists of the webhooks are at least so far apart: what comes meanwhile goes together."""


class Router:
    """Runs in each replica; one of them has something to do."""

    def __init__(
        self, queues: Webhooks, registry: WebhookRegistry, clock: Clock, *, routed: Callable[[], None] = lambda: None
    ) -> None:
        self._queues = queues
        self._registry = registry
        self._clock = clock
        self._routed = routed
        self._looked_at_s = float("-inf")
        self._has_begun = False
        self.is_first = False

    async def step(self) -> float:
        """Route what there is; answers how long to wait before the next step."""
        now_s = self._clock.monotonic()
        if not self._has_begun:
            await self._route(await self._queues.take_again())
            self._has_begun = True
        if now_s - self._looked_at_s >= LOOK_S:
            left = await self._queues.take_left(min_idle_s=LEFT_S, limit=TAKE_MAX)
            self.is_first = await self._queues.is_first(silence_s=SILENCE_S)
            self._looked_at_s = now_s
            await self._route(left)
        if not self.is_first:
            return LOOK_S
        taken = await self._queues.take(limit=TAKE_MAX, block_s=BLOCK_S)
        await self._route(taken)
        return GATHER_S if taken else 0.0

    async def _route(self, entries: Sequence[Routable]) -> None:
        if not entries:
            return
        webhooks = await self._registry.fresh()
        routes = [(entry, _wanting(entry, webhooks)) for entry in entries]
        await self._queues.route(routes)
        count = sum(len(names) for _, names in routes)
        if count:
            telemetry.WEBHOOK_EVENTS.inc(count)
            self._routed()


def _wanting(entry: Routable, webhooks: Mapping[str, Webhook]) -> list[str]:
    """Who is to get it; nobody gets what cannot be read, or is of a type that this version does not know."""
    if not webhooks:
        return []
    try:
        event = decode_event(entry.fields)
    except InvalidError:
        return []
    return [name for name, webhook in webhooks.items() if webhook.wants(event)]
