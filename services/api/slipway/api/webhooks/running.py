"""The loops of the webhooks in one process: one routes events, one delivers them.

Owns the names and intervals of the loops. The composition root creates the parts.
"""

from collections.abc import Callable
from functools import partial

from slipway.api.deps import ApiDeps
from slipway.api.loops import WATCH, WEBHOOKS_DELIVER, WEBHOOKS_ROUTE
from slipway.api.settings import Settings
from slipway.api.webhooks.delivery import DeliveryLimits, WebhookDispatcher
from slipway.api.webhooks.routing import WebhookRouter
from slipway.runtime.service import ServiceContext

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
