"""From the firehose to the receivers of webhooks: routing into queues, delivery out of them, and the two loops.

Delivery sends the events in the queue of each webhook to its receiver. It owns the order, the concurrency, the retries
and the dead letters, and knows neither HTTP (`sender.py`) nor Redis. It promises:

- Events of one subject are sent to a webhook one after another, by seq. Each is tried until it is delivered or given
  up.
- A webhook has at most `concurrency` concurrent tries and `held_max` claimed deliveries. Webhooks share neither, so
  that a slow or dead receiver does not delay the deliveries of other webhooks.
- A delivery leaves its queue only when the receiver answered 2xx, when its webhook is deleted or disabled, or as a dead
  letter. It is given up at once when another try would end the same way, else when it is older than `retry_s`.

Not promised: that no event is delivered twice. But this process does not send again what it has delivered itself.

Routing puts each event of the firehose into the queues of the webhooks whose filters match it. Only one replica takes
new events, so that the events of a subject stay in order: the first by name of those that were active lately. The
choice is no lock: two routers at once do no harm, and when the first replica is gone the next one continues.

Routing promises: an event reaches each webhook that existed before the event happened, although the watch may show the
webhook later than the event. For this, the events that were routed lately are matched against each webhook that the
watch shows for the first time.

Not promised:
- this promise, if the process that routed the event is killed before its watch has shown the webhook (usually some
  milliseconds after its creation), or if its clock and that of the API server differ by more than `SKEW_S`;
- that the first event after a change of a webhook is matched against the changed filters.

`start` begins the two loops, one for each; the composition root creates the parts.
"""

import asyncio
import contextlib
import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from slipway.api.deps import ApiDeps
from slipway.api.loops import WATCH, WEBHOOKS_DELIVER, WEBHOOKS_HEARTBEATS, WEBHOOKS_ROUTE
from slipway.api.ports import ShutdownSignal
from slipway.api.settings import Settings
from slipway.api.webhooks import formats
from slipway.api.webhooks.hook import Webhook
from slipway.api.webhooks.registry import WebhookRegistry
from slipway.api.webhooks.sender import DeliveryResult, Message
from slipway.errors import InvalidError, TransientError
from slipway.model.events import AllocationEvent
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.health import ProcessHealth
from slipway.runtime.service import ServiceContext
from slipway.runtime.tasks import TaskGroup
from slipway.streams import keys
from slipway.streams.codec import decode_event
from slipway.streams.webhooks import Delivery, Routable, Webhooks

POLL_S = 1.0
HEARTBEAT_S = 10.0
LEFT_S = 30.0
LEFT_EVERY_S = 15.0
LIST_S = 60.0
"""How old the names of the webhooks may be while there are no deliveries and no watch shows the webhooks."""
TRIES_MIN = 3
PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 300.0
DELIVERED_MAX = 50_000
STREAM = "webhook"

_log = log.get_logger(__name__)


class DeliveryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`retry_s` is the budget of one delivery, in seconds since it was queued."""

    concurrency: int = 8
    held_max: int = 256
    retry_s: float = 3600.0


class MessageSender(Protocol):
    """Sends a message once."""

    async def send(self, webhook: Webhook, message: Message) -> DeliveryResult: ...


class _SubjectQueue:
    """The deliveries of one subject to one webhook, by seq; `task` delivers them one after another."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, str, Delivery, AllocationEvent]] = []
        self.task: asyncio.Task[None] | None = None
        self.is_trying = False


class WebhookDispatcher:
    """Delivers events while `run` runs; the service calls `step` in a loop to claim new deliveries."""

    def __init__(
        self,
        queues: Webhooks,
        registry: WebhookRegistry,
        sender: MessageSender,
        *,
        clock: Clock,
        random: Random,
        limits: DeliveryLimits,
        health: ProcessHealth | None = None,
    ) -> None:
        self._health = health
        self._queues = queues
        self._registry = registry
        self._sender = sender
        self._clock = clock
        self._random = random
        self._limits = limits
        self._tasks: TaskGroup | None = None
        self._is_ending = False
        self._lanes: dict[tuple[str, str], _SubjectQueue] = {}
        self._held: dict[tuple[str, str], Delivery] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._delivered: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._left_at_s = self._listed_at_s = float("-inf")
        self._has_begun = False
        self._news = asyncio.Event()

    async def run(self, stop: ShutdownSignal) -> None:
        """Run until `stop`; then finish the current tries, and leave the other deliveries to other replicas."""
        async with TaskGroup() as tasks:
            self._tasks = tasks
            beats = self._heartbeats
            beating = tasks.create_task(
                self._health.supervise(WEBHOOKS_HEARTBEATS, beats) if self._health is not None else beats()
            )
            await stop.wait()
            self._is_ending = True
            beating.cancel()
            for lane in self._lanes.values():
                if lane.task is not None and not lane.is_trying:
                    lane.task.cancel()

    def wake(self) -> None:
        """Note that a queue has a new delivery."""
        self._news.set()

    async def step(self, *, is_first: bool) -> float:
        """Claim waiting deliveries and start them; then wait for `wake`, or for a while.

        Return how long to wait before the next step, in seconds.
        """
        pause_s = await self._look(is_first=is_first)
        if pause_s < POLL_S:
            return pause_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._news.wait()
        self._news.clear()
        return 0.0

    async def _look(self, *, is_first: bool) -> float:
        """Claim waiting deliveries and start them; return how long to wait before the next look, in seconds."""
        if not is_first or self._tasks is None or self._is_ending:
            return POLL_S
        names = list(await self._names())
        if not names:
            return POLL_S
        now_s = self._clock.monotonic()
        if not self._has_begun:
            await self._admit(await self._queues.held(names))
            self._has_begun = True
        if now_s - self._left_at_s >= LEFT_EVERY_S:
            self._left_at_s = now_s
            await self._admit(await self._queues.claim_abandoned(names, min_idle_s=LEFT_S, limit=self._limits.held_max))
            standing = sum(await self._queues.backlog(names))
            lag = telemetry.STREAM_LAG.labels(stream=STREAM, group=keys.WEBHOOK_GROUP)
            lag.set(max(0, standing - len(self._held)))
        counts: dict[str, int] = {}
        for name, _ in self._held:
            counts[name] = counts.get(name, 0) + 1
        by_room: dict[int, list[str]] = {}
        for name in names:
            room = min(64, self._limits.held_max - counts.get(name, 0))
            if room > 0:
                by_room.setdefault(room, []).append(name)
        found = 0
        for room, some in by_room.items():
            claimed = await self._queues.claim(some, limit=room)
            found += len(claimed)
            await self._admit(claimed)
        return 0.02 if found else POLL_S

    async def _names(self) -> Iterable[str]:
        """Return the names of the webhooks whose queues are read.

        While there are no deliveries, the API server is LISTed at most every `LIST_S`.
        """
        now_s = self._clock.monotonic()
        if self._held or now_s - self._listed_at_s >= LIST_S:
            self._listed_at_s = now_s
            return await self._registry.known()
        return self._registry.last

    async def _admit(self, deliveries: Iterable[Delivery]) -> None:
        unreadable: list[Delivery] = []
        for delivery in deliveries:
            key = (delivery.webhook, delivery.entry_id)
            if key in self._held or self._tasks is None:
                continue
            try:
                event = decode_event(delivery.fields)
            except InvalidError:
                unreadable.append(delivery)
                continue
            self._held[key] = delivery
            lane_key = (delivery.webhook, event.allocation_id)
            lane = self._lanes.setdefault(lane_key, _SubjectQueue())
            heapq.heappush(lane.waiting, (event.seq, delivery.entry_id, delivery, event))
            if lane.task is None:
                lane.task = self._tasks.create_task(self._work_off(lane_key, lane))
        if unreadable:
            await self._queues.done(unreadable)
        telemetry.WEBHOOK_HELD.set(len(self._held))

    async def _work_off(self, lane_key: tuple[str, str], lane: _SubjectQueue) -> None:
        try:
            # A receiver may be slow for up to `retry_s`; that must not count as a hang of the loop that claimed it.
            liveness.leave()
            while lane.waiting and not self._is_ending:
                _, _, delivery, event = heapq.heappop(lane.waiting)
                # A bug in `_deliver` must only fail this delivery, which is claimed again later, and not the process.
                [ended] = await asyncio.gather(self._deliver(delivery, event, lane), return_exceptions=True)
                lane.is_trying = False
                self._held.pop((delivery.webhook, delivery.entry_id), None)
                if isinstance(ended, TransientError):
                    _log.debug("delivery stays in its queue", webhook=delivery.webhook, error=str(ended))
                elif isinstance(ended, BaseException):
                    _log.error("delivery failed", exc_info=ended, webhook=delivery.webhook, event_id=event.event_id)
        finally:
            for _, _, delivery, _ in lane.waiting:
                self._held.pop((delivery.webhook, delivery.entry_id), None)
            del self._lanes[lane_key]
            telemetry.WEBHOOK_HELD.set(len(self._held))

    async def _deliver(self, delivery: Delivery, event: AllocationEvent, lane: _SubjectQueue) -> None:
        """Try until the event is delivered or given up, or its webhook is deleted or disabled."""
        slot = self._slots.setdefault(delivery.webhook, asyncio.Semaphore(self._limits.concurrency))
        tries, last = 0, ""
        while True:
            webhook = (await self._registry.known()).get(delivery.webhook)
            if webhook is None or not webhook.config.enabled or self._has(webhook, event):
                await self._queues.done([delivery])
                return
            form = webhook.config.format
            message = Message(
                id=event.event_id,
                body=formats.event_body(form, event, webhook.config.page_url),
                content_type=formats.content_type(form),
            )
            async with slot:
                # While `is_trying`, the end of the process waits, so that a delivered event is also removed from its
                # queue. Else it would be delivered twice.
                lane.is_trying = True
                answer, last = await self._try(webhook, message, event, last)
            tries += 1
            _note(webhook, event, answer, tries)
            if answer.delivered:
                self._remember(webhook, event)
                await self._queues.done([delivery])
                return
            is_late = self._clock.now() - delivery.queued_at >= self._limits.retry_s
            if answer.is_final or (tries >= TRIES_MIN and is_late):
                await self._queues.dead_letter(delivery, cause=answer.detail, tries=tries)
                telemetry.DEAD_LETTERS.labels(stream=STREAM).inc()
                _log.warning("delivery given up", webhook=webhook.name, event_id=event.event_id, tries=tries)
                return
            if self._is_ending:
                return
            lane.is_trying = False
            await self._clock.sleep(self._pause_s(answer, tries))

    async def _try(
        self, webhook: Webhook, message: Message, event: AllocationEvent, last: str
    ) -> tuple[DeliveryResult, str]:
        """Send once; return (result, traceparent of the span of the try). The span links to the previous try.

        The span is part of the allocation's trace, but only collectors receive it: a user who sees an allocation need
        not know its webhooks.
        """
        with telemetry.span(
            "POST",
            parent=event.traceparent,
            links=[last] if last else [],
            attributes={
                "http.request.method": "POST",
                "slipway.webhook": webhook.name,
                "cloudevents.event_id": message.id,
            },
            kind=telemetry.SpanKind.CLIENT,
        ) as span:
            answer = await self._sender.send(webhook, msgspec.structs.replace(message, traceparent=span.traceparent))
            if answer.status:
                span.set(http__response__status_code=answer.status)
            if not answer.delivered:
                span.fail("not delivered")
            return answer, span.traceparent

    def _pause_s(self, answer: DeliveryResult, tries: int) -> float:
        if answer.retry_after_s is not None:
            return answer.retry_after_s + self._random.uniform(0.0, PAUSE_FIRST_S)
        return self._random.uniform(0.5, 1.0) * min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(tries - 1, 30))

    def _has(self, webhook: Webhook, event: AllocationEvent) -> bool:
        return (webhook.uid, event.event_id) in self._delivered

    def _remember(self, webhook: Webhook, event: AllocationEvent) -> None:
        self._delivered[webhook.uid, event.event_id] = None
        if len(self._delivered) > DELIVERED_MAX:
            self._delivered.popitem(last=False)

    async def _heartbeats(self) -> None:
        while True:
            liveness.beat(HEARTBEAT_S)
            await self._clock.sleep(HEARTBEAT_S)
            held = list(self._held.values())
            if held:
                try:
                    await self._queues.heartbeat(held)
                except TransientError as error:
                    _log.debug("no heartbeat sent for deliveries in progress", error=str(error))


def _note(webhook: Webhook, event: AllocationEvent, answer: DeliveryResult, tries: int) -> None:
    outcome = "delivered" if answer.delivered else "final" if answer.is_final else "failed"
    telemetry.WEBHOOK_TRIES.labels(outcome=outcome).inc()
    telemetry.WEBHOOK_DURATION.observe(answer.duration_s)
    if not answer.delivered:
        # Neither the URL nor the receiver's answer is logged: both may contain secrets.
        _log.info(
            "delivery attempt failed",
            webhook=webhook.name,
            event_id=event.event_id,
            tries=tries,
            status=answer.status,
            detail=answer.detail,
        )


SILENCE_S = 10.0
"""A replica that was silent for this long cannot be the first."""
LOOK_S = 3.0
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


BACKOFF_MAX_S = 15.0


def start(context: ServiceContext[Settings], parts: ApiDeps, *, answered_since: Callable[[], float]) -> None:
    """Route and deliver until the process stops; without Redis, start nothing.

    `answered_since` returns the monotonic time since when the API server has answered each probe.
    """
    settings = context.settings
    if not settings.redis_url:
        return
    dispatcher = WebhookDispatcher(
        parts.deliveries,
        parts.webhooks,
        parts.sender,
        clock=context.clock,
        random=context.random,
        health=context.health,
        limits=DeliveryLimits(concurrency=settings.webhook_concurrency, retry_s=settings.webhook_retry_s),
    )

    watch = WATCH.of(parts.webhooks.plural)
    watching = context.health.supervise(watch, partial(parts.webhooks.run, context.stop), since=answered_since)
    context.tasks.create_task(watching, name="watch")
    router = WebhookRouter(parts.deliveries, parts.webhooks, context.clock, routed=dispatcher.wake)

    async def deliver() -> float:
        return await dispatcher.step(is_first=router.is_first)

    context.tasks.create_task(dispatcher.run(context.stop), name="webhooks")
    context.loop(WEBHOOKS_ROUTE, router.step, min_interval_s=0.0, max_backoff_s=BACKOFF_MAX_S)
    context.loop(WEBHOOKS_DELIVER, deliver, min_interval_s=0.0, max_backoff_s=BACKOFF_MAX_S)
