"""Every key, type, life time, cap and consumer group, in one table.

Owns the names of everything that Slipway keeps in Redis. Knows nothing of how it gets there. The braces are
literal: they are Redis Cluster hash tags, so that an allocation's keys share a slot and shards spread.

Invariant: no key is written that is not in `TABLE`, and every family has a cap or a life time.
"""

import zlib
from typing import Annotated

import msgspec

from slipway.model.ids import AllocationId

SHARDS = 16
WORK_GROUP = "podworker"
WEBHOOK_GROUP = "webhooks"
DAY_S = 86_400


CursorText = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,18}-[0-9]{1,18}$")]
"""An id of an entry, as people type one."""


class KeyFamily(msgspec.Struct, frozen=True, kw_only=True):
    """One row: `ttl_s` counts from the last write (for events: from the end), 0 is no expiry."""

    prefix: str
    type: str
    length_max: int = 0
    ttl_s: int = 0
    group: str = ""
    trimmed_by: str = "cap"


ALLOCATION = KeyFamily(prefix="slipway:alloc:", type="stream", length_max=1_024, ttl_s=7 * DAY_S)
EVENTS = KeyFamily(prefix="slipway:events:", type="stream", length_max=100_000)
WORK = KeyFamily(prefix="slipway:work:", type="stream", group=WORK_GROUP, trimmed_by="acknowledged by every group")
BELL = KeyFamily(prefix="slipway:bell", type="stream", length_max=128)
"""Rung after hints were sent on a Redis Cluster, where no command can wait for all shards of the work queue."""
CLUSTER = KeyFamily(prefix="slipway:cluster", type="stream", length_max=4_000)
"""An entry holds what was published together; readers are seconds behind, or LIST."""
SNAPSHOT = KeyFamily(prefix="slipway:snapshot:", type="hash", ttl_s=DAY_S)
"""What the feed had told up to a moment, in pages; the last one and the one before it, in turn in two keys."""
SNAPSHOT_SLOTS = 2
WAKE = KeyFamily(prefix="slipway:wake", type="stream", length_max=128)
LOGS = KeyFamily(prefix="slipway:logs:", type="stream", ttl_s=7 * DAY_S, trimmed_by="the share of each log in bytes")
"""An entry holds lines of one rank that follow each other."""
LOG_STATE = KeyFamily(prefix="slipway:logstate:", type="hash", ttl_s=7 * DAY_S)
"""How far each log of an allocation is stored."""
LOG_PACKS = KeyFamily(prefix="slipway:logpacks:", type="hash", ttl_s=7 * DAY_S)
"""The entries of each log that may be removed, oldest first."""
DEAD = KeyFamily(prefix="slipway:dead", type="stream", length_max=10_000)
TRACE = KeyFamily(prefix="slipway:trace:", type="stream", length_max=256, ttl_s=7 * DAY_S)
"""An entry holds the spans of one process that ended at about the same time."""
ACTIVITY = KeyFamily(prefix="slipway:activity:", type="hash", ttl_s=30 * DAY_S)
ACTIVITY_SINCE = "since"
"""A source of activity that is no use: since when the others are on record. Without it, they were lost."""
WEBHOOK = KeyFamily(prefix="slipway:webhook:", type="stream", length_max=100_000, group=WEBHOOK_GROUP)
"""What a webhook is still to be sent; an entry goes when it was delivered or given up."""
LETTERS = KeyFamily(prefix="slipway:letters:", type="stream", length_max=10_000)
"""Events that the consumer group of an integration could not handle (`slipway.sdk.consume`), each with the cause."""

GATHER = KeyFamily(prefix="slipway:gather:", type="hash", ttl_s=3_600)
"""What the ranks of an attempt exchange, by the name of the gathering; also so long after it is complete. Without a
name: the bytes of the allocation's complete ones."""

LOGOUTS = KeyFamily(prefix="slipway:logouts", type="stream", length_max=10_000)
"""Logins of browsers that were ended; replicas of the api are seconds behind, and remember what they have read."""
USED_CODE = KeyFamily(prefix="slipway:code:", type="string", ttl_s=600)
"""A one-time code that was used; as long as the code would be good, at most so long."""
SIGN_IN = KeyFamily(prefix="slipway:signin:", type="string", ttl_s=7 * DAY_S)
"""What the issuer said last of one login of a browser, sealed by the api; as long as the login, at most so long."""
HEALTH = KeyFamily(prefix="slipway:health", type="stream", length_max=1)
"""Written to see whether writes are taken: a full server, or a replica, still answers a PING."""
DECISIONS = KeyFamily(prefix="slipway:decisions:", type="stream", length_max=4_096)
"""An entry holds one tick that decided something; the scheduler's settings cap their bytes besides."""

TABLE = (
    ALLOCATION,
    EVENTS,
    WORK,
    BELL,
    CLUSTER,
    SNAPSHOT,
    WAKE,
    LOGS,
    LOG_STATE,
    LOG_PACKS,
    DEAD,
    TRACE,
    ACTIVITY,
    GATHER,
    WEBHOOK,
    LETTERS,
    DECISIONS,
    LOGOUTS,
    USED_CODE,
    SIGN_IN,
    HEALTH,
)

DEAD_DELIVERY = "webhook"
"""The source of a dead letter that was meant for a webhook; which one is among its fields."""
WEBHOOK_HELD_MAX = 1_000

WORK_BACKLOG_MAX = 50_000
"""Hints are not sent to a shard that holds more than this (nobody works it off, and they are derived)."""
STANDING_MAX = 2_000
"""Entries of a shard that are counted when somebody asks how many wait: beyond it there are just very many."""
LAG_MAX = 250
"""Entries of a shard that are counted when an integration asks how far its group is behind."""
FEED_PACK_MAX = 64
"""Deltas in one entry of the feed."""
FEED_BATCH_MAX = 256
"""Deltas that are appended together."""
SPAN_PACK_MAX = 32
"""Spans in one entry of a trace."""
DELIVERIES_MAX = 5
MIN_IDLE_S = 30.0
GATHER_S = 0.02
"""After a write, so long until the next of its kind: what comes meanwhile goes together."""
BELL_S = 0.05
"""The scheduler's bell is not rung more often: it asks for a LIST at most, and the feed is quicker."""
FEED_SILENCE_S = 3.0
FEED_BEAT_S = 1.0

COUNTERS = (
    "spans_dropped",
    "activity_dropped",
    "hints_dropped",
    "entries_undecodable",
    "hints_done",
    "hints_retried",
    "hints_failed",
    "hints_claimed",
    "hints_dead",
)


def allocation(allocation_id: AllocationId) -> str:
    """The stream of one allocation's transitions."""
    return f"{ALLOCATION.prefix}{{{allocation_id}}}"


def log_state(allocation_id: AllocationId) -> str:
    """The positions of one allocation's logs."""
    return f"{LOG_STATE.prefix}{{{allocation_id}}}"


def log_packs(allocation_id: AllocationId) -> str:
    """The removable entries of one allocation's logs."""
    return f"{LOG_PACKS.prefix}{{{allocation_id}}}"


def logs(allocation_id: AllocationId) -> str:
    """The stream of one allocation's log lines."""
    return f"{LOGS.prefix}{{{allocation_id}}}"


def trace(allocation_id: AllocationId) -> str:
    """The stream of one allocation's spans."""
    return f"{TRACE.prefix}{{{allocation_id}}}"


def activity(allocation_id: AllocationId) -> str:
    """The hash of one allocation's activity."""
    return f"{ACTIVITY.prefix}{{{allocation_id}}}"


def gather(allocation_id: AllocationId, attempt: int, group: str) -> str:
    """The hash of one gathering of one attempt."""
    return f"{GATHER.prefix}{{{allocation_id}}}:{attempt}:{group}"


def gathered(allocation_id: AllocationId) -> str:
    """The hash that counts the bytes of an allocation's complete gatherings."""
    return f"{GATHER.prefix}{{{allocation_id}}}"


def events(shard: int) -> str:
    """One shard of the firehose."""
    return f"{EVENTS.prefix}{{{shard:02d}}}"


def work(shard: int) -> str:
    """One shard of the work queue."""
    return f"{WORK.prefix}{{{shard:02d}}}"


def webhook(name: str) -> str:
    """The queue of one webhook."""
    return f"{WEBHOOK.prefix}{{{name}}}"


def letters(group: str) -> str:
    """The dead letters of one consumer group of an integration."""
    return f"{LETTERS.prefix}{{{group}}}"


def decisions(pool: str) -> str:
    """The decision log of one pool."""
    return f"{DECISIONS.prefix}{{{pool}}}"


def used_code(code: str) -> str:
    """The mark of one used code."""
    return f"{USED_CODE.prefix}{{{code}}}"


def sign_in(login: str) -> str:
    """What is kept of one login."""
    return f"{SIGN_IN.prefix}{{{login}}}"


def snapshot(slot: int) -> str:
    """The hash of one snapshot of the feed."""
    return f"{SNAPSHOT.prefix}{{{slot}}}"


EVENT_KEYS = tuple(events(shard) for shard in range(SHARDS))
WORK_KEYS = tuple(work(shard) for shard in range(SHARDS))


def shard_of(allocation_id: AllocationId) -> int:
    """The shard of an allocation: crc32 modulo the number of shards, the same in every process and version."""
    return zlib.crc32(allocation_id.encode()) % SHARDS
