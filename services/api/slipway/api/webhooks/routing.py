"""Routes each event from the firehose into the queues of the webhooks whose filters match it.

Only one replica takes new events, so that the events of a subject stay in order. Owns the choice of this replica: the
first by name of those that were active lately. The choice is no lock: two routers at once do no harm, and when the
first replica is gone the next one continues.

Promise: an event reaches each webhook that existed before the event happened, although the watch may show the webhook
later than the event. For this, the events that were routed lately are matched against each webhook that the watch shows
for the first time.

Not promised:
- this promise, if the process that routed the event is killed before its watch has shown the webhook (usually some
  milliseconds after its creation), or if its clock and that of the API server differ by more than `SKEW_S`;
- that the first event after a change of a webhook is matched against the changed filters.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from slipway.api.webhooks.hook import Webhook
from slipway.api.webhooks.registry import WebhookRegistry
from slipway.errors import InvalidError
from slipway.runtime import telemetry
from slipway.runtime.clock import Clock
from slipway.streams.codec import decode_event
from slipway.streams.webhooks import Routable, Webhooks

SILENCE_S = 10.0
"""A replica that was silent for this long cannot be the first."""
LOOK_S = 3.0
LEFT_S = 30.0
TAKE_MAX = 200
BLOCK_S = 2.0
GATHER_S = 0.25
"""The pause between two batches; events that arrive in it are routed together."""
LATE_S = 60.0
LATE_MAX = 2_000
SKEW_S = 1.0
"""Routed events are kept for webhooks that the watch has yet to show: for `LATE_S`, at most `LATE_MAX`.

A dead connection of the watch is noticed sooner. `SKEW_S` is the largest assumed difference between the clocks of the
API server and of this process.
"""


class WebhookRouter:
    """Runs in each replica; only the first replica takes new events."""

    def __init__(
        self, queues: Webhooks, registry: WebhookRegistry, clock: Clock, *, routed: Callable[[], None] = lambda: None
    ) -> None:
        self._queues = queues
        self._registry = registry
        self._clock = clock
        self._routed = routed
        self._looked_at_s = float("-inf")
        self._has_begun = False
        self._recent: deque[tuple[float, Routable, frozenset[str]]] = deque(maxlen=LATE_MAX)
        """(when it was routed, in epoch seconds; the entry; the names of its webhooks)"""
        self._created: list[str] = []
        registry.on_created = self._created.append
        self.is_first = False

    async def step(self) -> float:
        """Route waiting events; return how long to wait before the next step, in seconds."""
        now_s = self._clock.monotonic()
        if not self._has_begun:
            await self._route(await self._queues.take_again())
            self._has_begun = True
        if now_s - self._looked_at_s >= LOOK_S:
            left = await self._queues.take_abandoned(min_idle_s=LEFT_S, limit=TAKE_MAX)
            self.is_first = await self._queues.is_first(silence_s=SILENCE_S)
            self._looked_at_s = now_s
            await self._route(left)
        if not self.is_first:
            return LOOK_S
        taken = await self._queues.take(limit=TAKE_MAX, block_s=BLOCK_S)
        await self._route(taken)
        return GATHER_S if taken else 0.0

    async def _route(self, entries: Sequence[Routable]) -> None:
        if not entries and not self._created:
            return
        webhooks = await self._registry.fresh()
        created = list(self._created)
        missed = self._missed({name: webhooks[name] for name in created if name in webhooks})
        routes = [(entry, _wanting(entry, webhooks)) for entry in entries]
        if missed or routes:
            # The missed events of a new webhook are first, so that the events of a subject stay in order.
            await self._queues.route([*missed, *routes])
        del self._created[: len(created)]
        now = self._clock.now()
        self._recent.extend((now, entry, frozenset(names)) for entry, names in routes)
        count = sum(len(names) for _, names in (*missed, *routes))
        if count:
            telemetry.WEBHOOK_EVENTS.inc(count)
            self._routed()

    def _missed(self, created: Mapping[str, Webhook]) -> list[tuple[Routable, list[str]]]:
        """Return (entry, webhooks) of events that were routed before the watch showed these webhooks."""
        since = self._clock.now() - LATE_S
        found: list[tuple[Routable, list[str]]] = []
        for at, entry, names in self._recent if created else ():
            # An event that was routed before the webhook was created also happened before.
            may = {name: it for name, it in created.items() if name not in names and at >= it.created_at - SKEW_S}
            late = _wanting(entry, may) if at >= since else []
            if late:
                found.append((entry, late))
        return found


def _wanting(entry: Routable, webhooks: Mapping[str, Webhook]) -> list[str]:
    """Return the names of the webhooks that must get the event.

    None of them gets an event that cannot be decoded, or whose type this version does not know.
    """
    if not webhooks:
        return []
    try:
        event = decode_event(entry.fields)
    except InvalidError:
        return []
    return [name for name, webhook in webhooks.items() if webhook.wants(event)]
