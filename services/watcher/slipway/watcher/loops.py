"""The loops of the watcher, and how long each may make no progress.

Owns the table. `runtime/liveness.py` explains what a bound means; the place that starts a loop shows what it runs.
"""

from slipway.runtime.liveness import Loop
from slipway.streams.producer import WRITE_BEHIND

STILL_S = 120.0
"""Longer than the deadline of any call, and than a watch may be silent."""
LEASE_STILL_S = 60.0

WATCH = Loop(
    name="watch",
    bound_s=STILL_S,
    moves="each event, end and refusal of a watch; any time while the API server does not answer",
)
RECONCILE = Loop(
    name="reconcile",
    bound_s=STILL_S,
    moves="each key, and each stage of a key that takes long",
    rests="a key in the queue",
)
RELAY = Loop(name="relay", bound_s=STILL_S, moves="each batch of relayed events", rests="an event to relay")
HINTS = Loop(name="hints", bound_s=STILL_S, moves="each batch of sent hints", rests="a hint to send")
BELL = Loop(name="bell", bound_s=STILL_S, moves="each wake-up of the scheduler", rests="a reason to wake the scheduler")
BOOKS = Loop(name="books", bound_s=STILL_S, moves="each day's totals", rests="an ended allocation")
LOGS = Loop(name="logs", bound_s=STILL_S, moves="each batch of log lines", rests="lines to store")
RESYNC = Loop(name="resync", bound_s=STILL_S, moves="each round, and each batch of streams that it compares")
LEASE = Loop(name="lease", bound_s=LEASE_STILL_S, moves="each check of the lease, and each renewal")
FEED = Loop(name="feed", bound_s=STILL_S, moves="each heartbeat and each batch of the cluster feed")
FOLLOW_LOGS = Loop(name="follow-logs", bound_s=STILL_S, moves="its start", rests="the end of the leader's term")
POD_EVENTS = Loop(
    name="pod-events", bound_s=STILL_S, moves="each Event of a pod, and each end or refusal of their watch"
)
STORY = Loop(name="story", bound_s=STILL_S, moves="each batch of Events about allocations", rests="an Event to write")
STREAMS = Loop(name="streams", bound_s=STILL_S, moves="each batch of streams that it compares", rests="a lost stream")
SWEEP = Loop(name="sweep", bound_s=STILL_S, moves="each sweep, each delete")
RETENTION = Loop(name="retention", bound_s=STILL_S, moves="each round, each delete")
ARCHIVES = Loop(name="archives", bound_s=STILL_S, moves="each round, each delete")
CLAIMS = Loop(name="claims", bound_s=STILL_S, moves="each round, each delete")
LOG_ARCHIVE = Loop(name="log-archive", bound_s=STILL_S, moves="each check, and each piece of a log")
LOG_EXPIRY = Loop(name="log-expiry", bound_s=STILL_S, moves="each round, and each record that it checks")
LAG = Loop(name="lag", bound_s=STILL_S, moves="each check of the work queue")

LOOPS = (
    WATCH,
    RECONCILE,
    RELAY,
    HINTS,
    BELL,
    BOOKS,
    LOGS,
    RESYNC,
    LEASE,
    FEED,
    FOLLOW_LOGS,
    POD_EVENTS,
    STORY,
    STREAMS,
    SWEEP,
    RETENTION,
    ARCHIVES,
    CLAIMS,
    LOG_ARCHIVE,
    LOG_EXPIRY,
    LAG,
    WRITE_BEHIND,
)
