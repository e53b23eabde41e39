"""All stream ports on one Redis client, as a composition root builds them.

This module owns the wiring. It does not connect before the first call.
"""

from slipway.runtime.clock import Clock, Random
from slipway.streams.accounts import BY_NAME, Account
from slipway.streams.client import RedisClient, RedisSettings
from slipway.streams.macs import Macs
from slipway.streams.ports import NoTally, Tally
from slipway.streams.redis_events import RedisEventGroup, RedisEvents, RedisFirehose
from slipway.streams.redis_logs import RedisLogs
from slipway.streams.redis_server_health import RedisServerHealthReader
from slipway.streams.redis_side import (
    RedisActivity,
    RedisDead,
    RedisDecisions,
    RedisFeed,
    RedisGatherings,
    RedisHealth,
    RedisLogouts,
    RedisTraces,
    RedisWake,
)
from slipway.streams.redis_webhooks import RedisWebhooks
from slipway.streams.redis_work import RedisHints, RedisWorkQueue
from slipway.streams.tail import Tail


class RedisStreams:
    """All ports on Redis."""

    def __init__(
        self,
        client: RedisClient,
        tally: Tally | None = None,
        *,
        account: Account | None = None,
        feed_macs: Macs | None = None,
        gather_macs: Macs | None = None,
    ) -> None:
        counts = tally if tally is not None else NoTally()
        tail = Tail(client)
        self._client = client
        self.health = RedisHealth(client)
        self.conditions = RedisServerHealthReader(client, account)
        self.events = RedisEvents(client, tail, counts)
        self.firehose = RedisFirehose(client, counts)
        self.hints = RedisHints(client, counts)
        self.wake = RedisWake(client)
        self.feed = RedisFeed(client, feed_macs)
        self.logs = RedisLogs(client, tail, counts)
        self.traces = RedisTraces(client, counts)
        self.activity = RedisActivity(client)
        self.dead = RedisDead(client)
        self.gatherings = RedisGatherings(client, gather_macs)
        self.logouts = RedisLogouts(client)
        self.decisions = RedisDecisions(client, counts)

    def work_queue(self, consumer: str) -> RedisWorkQueue:
        """Return the work queue for the consumer of that name (unique per process: the pod's uid)."""
        return RedisWorkQueue(self._client, consumer)

    def webhooks(self, consumer: str) -> RedisWebhooks:
        """Return the webhook deliveries for the consumer of that name (the same name after a restart)."""
        return RedisWebhooks(self._client, consumer)

    def event_group(self, group: str, consumer: str) -> RedisEventGroup:
        """Return a consumer group of an integration on the firehose, for the consumer of that name."""
        return RedisEventGroup(self._client, group, consumer)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def connect(
    settings: RedisSettings,
    *,
    clock: Clock,
    random: Random,
    tally: Tally | None = None,
    feed_macs: Macs | None = None,
    gather_macs: Macs | None = None,
) -> RedisStreams:
    """Return the streams of a Redis URL; does no IO. Raises `InvalidError` when it is not a Redis URL."""
    account = BY_NAME.get(settings.name)
    client = RedisClient(settings, clock, random)
    return RedisStreams(client, tally, account=account, feed_macs=feed_macs, gather_macs=gather_macs)
