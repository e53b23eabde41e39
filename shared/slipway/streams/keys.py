"""Every key, type, life time, cap and consumer group, in one table.

This module owns the names of everything that Slipway stores in Redis. It does not know how the data is written. The
braces in the keys are literal. They are Redis Cluster hash tags, so that an allocation's keys share a slot and shards
are distributed.

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
"""The id of an entry, as people type it."""


class KeyFamily(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `ttl_s` is the life time after the last write (for events: after the end); 0 means no expiry."""

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
"""An entry is added after hints were sent on a Redis Cluster, where no command can wait for all shards of the queue."""
CLUSTER = KeyFamily(prefix="slipway:cluster", type="stream", length_max=4_000)
"""An entry contains the deltas that were published together. A reader is seconds behind; otherwise it does a LIST."""
SNAPSHOT = KeyFamily(prefix="slipway:snapshot:", type="hash", ttl_s=DAY_S)
"""The content of the feed up to a moment, in pages. Two keys store the last snapshot and the one before it, in turn."""
SNAPSHOT_SLOTS = 2
WAKE = KeyFamily(prefix="slipway:wake", type="stream", length_max=128)
LOGS = KeyFamily(prefix="slipway:logs:", type="stream", ttl_s=7 * DAY_S, trimmed_by="the share of each log in bytes")
"""An entry contains consecutive lines of one rank."""
LOG_STATE = KeyFamily(prefix="slipway:logstate:", type="hash", ttl_s=7 * DAY_S)
"""The position up to which each log of an allocation is stored."""
LOG_PACKS = KeyFamily(prefix="slipway:logpacks:", type="hash", ttl_s=7 * DAY_S)
"""The entries of each log that may be removed, oldest first."""
DEAD = KeyFamily(prefix="slipway:dead", type="stream", length_max=10_000)
TRACE = KeyFamily(prefix="slipway:trace:", type="stream", length_max=256, ttl_s=7 * DAY_S)
"""An entry contains the spans of one process that ended at about the same time."""
ACTIVITY = KeyFamily(prefix="slipway:activity:", type="hash", ttl_s=30 * DAY_S)
ACTIVITY_SINCE = "since"
"""A field of the activity hash that records no use: since when the other sources are recorded. Without this field, the
earlier records were lost.
"""
WEBHOOK = KeyFamily(prefix="slipway:webhook:", type="stream", length_max=100_000, group=WEBHOOK_GROUP)
"""The events that a webhook has not received yet. An entry is removed when it was delivered or given up."""
LETTERS = KeyFamily(prefix="slipway:letters:", type="stream", length_max=10_000)
"""Events that the consumer group of an integration could not handle (`slipway.sdk.consume`), each with its cause."""

GATHER = KeyFamily(prefix="slipway:gather:", type="hash", ttl_s=3_600)
"""The data that the ranks of an attempt exchange, by the name of the gathering. It is kept this long after the last
write. The key without a name counts the bytes of the allocation's complete gatherings.
"""

LOGOUTS = KeyFamily(prefix="slipway:logouts", type="stream", length_max=10_000)
"""Ended logins of browsers. Replicas of the api are seconds behind, and remember the entries that they have read."""
USED_CODE = KeyFamily(prefix="slipway:code:", type="string", ttl_s=600)
"""A one-time code that was used. It is stored as long as the code would be valid, at most for this time."""
SIGN_IN = KeyFamily(prefix="slipway:signin:", type="string", ttl_s=7 * DAY_S)
"""The issuer's last answer about one login of a browser, sealed by the api. It is stored as long as the login, at most
for this time.
"""
HEALTH = KeyFamily(prefix="slipway:health", type="stream", length_max=1)
"""Written to check that the server accepts writes, because a full server or a replica still answers a PING."""
DECISIONS = KeyFamily(prefix="slipway:decisions:", type="stream", length_max=4_096)
"""An entry contains one tick with a decision. The scheduler's settings limit the bytes in addition."""

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
"""The source of a dead letter that was meant for a webhook. Its fields contain the webhook's name."""
WEBHOOK_HELD_MAX = 1_000

WORK_BACKLOG_MAX = 50_000
"""No hints are sent to a shard with more entries than this, because then no worker consumes them. Hints can be derived
again.
"""
STANDING_MAX = 2_000
"""Limit on the entries of a shard that are counted for the number of waiting hints. Beyond it, the exact number is of
no use.
"""
LAG_MAX = 250
"""Limit on the entries of a shard that are counted for the lag of an integration's group."""
FEED_PACK_MAX = 64
"""Deltas in one entry of the feed."""
FEED_BATCH_MAX = 256
"""Deltas that are appended together."""
SPAN_PACK_MAX = 32
"""Spans in one entry of a trace."""
DELIVERIES_MAX = 5
MIN_IDLE_S = 30.0
GATHER_S = 0.02
"""Seconds between a write and the next write of its kind. Values that arrive between the two are written together."""
BELL_S = 0.05
"""Minimum seconds between two entries that wake the scheduler. Such an entry causes only a LIST, and the feed is
faster.
"""
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
    """Return the stream of one allocation's transitions."""
    return f"{ALLOCATION.prefix}{{{allocation_id}}}"


def log_state(allocation_id: AllocationId) -> str:
    """Return the hash with the positions of one allocation's logs."""
    return f"{LOG_STATE.prefix}{{{allocation_id}}}"


def log_packs(allocation_id: AllocationId) -> str:
    """Return the hash with the removable entries of one allocation's logs."""
    return f"{LOG_PACKS.prefix}{{{allocation_id}}}"


def logs(allocation_id: AllocationId) -> str:
    """Return the stream of one allocation's log lines."""
    return f"{LOGS.prefix}{{{allocation_id}}}"


def trace(allocation_id: AllocationId) -> str:
    """Return the stream of one allocation's spans."""
    return f"{TRACE.prefix}{{{allocation_id}}}"


def activity(allocation_id: AllocationId) -> str:
    """Return the hash of one allocation's activity."""
    return f"{ACTIVITY.prefix}{{{allocation_id}}}"


def gather(allocation_id: AllocationId, attempt: int, group: str) -> str:
    """Return the hash of one gathering of one attempt."""
    return f"{GATHER.prefix}{{{allocation_id}}}:{attempt}:{group}"


def gathered(allocation_id: AllocationId) -> str:
    """Return the hash that counts the bytes of an allocation's complete gatherings."""
    return f"{GATHER.prefix}{{{allocation_id}}}"


def events(shard: int) -> str:
    """Return one shard of the firehose."""
    return f"{EVENTS.prefix}{{{shard:02d}}}"


def work(shard: int) -> str:
    """Return one shard of the work queue."""
    return f"{WORK.prefix}{{{shard:02d}}}"


def webhook(name: str) -> str:
    """Return the queue of one webhook."""
    return f"{WEBHOOK.prefix}{{{name}}}"


def letters(group: str) -> str:
    """Return the dead letters of one consumer group of an integration."""
    return f"{LETTERS.prefix}{{{group}}}"


def decisions(pool: str) -> str:
    """Return the decision log of one pool."""
    return f"{DECISIONS.prefix}{{{pool}}}"


def used_code(code: str) -> str:
    """Return the key that marks a code as used."""
    return f"{USED_CODE.prefix}{{{code}}}"


def sign_in(login: str) -> str:
    """Return the key with the issuer's last answer about one login."""
    return f"{SIGN_IN.prefix}{{{login}}}"


def snapshot(slot: int) -> str:
    """Return the hash of one snapshot of the feed."""
    return f"{SNAPSHOT.prefix}{{{slot}}}"


EVENT_KEYS = tuple(events(shard) for shard in range(SHARDS))
WORK_KEYS = tuple(work(shard) for shard in range(SHARDS))


def shard_of(allocation_id: AllocationId) -> int:
    """Return the shard of an allocation: crc32 modulo the number of shards, the same in every process and version."""
    return zlib.crc32(allocation_id.encode()) % SHARDS
