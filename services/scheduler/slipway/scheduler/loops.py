"""The loops of the scheduler, and how long each may make no progress.

Owns the table. `runtime/liveness.py` explains what a bound means. All but the first and the last run once per pool.
"""

from slipway.runtime.liveness import Loop
from slipway.streams.producer import WRITE_BEHIND

STILL_S = 120.0
"""Longer than the deadline of any call."""
LEADER_STILL_S = 60.0
"""Shorter, because users notice at once when a queue is not scheduled."""

DISCOVER = Loop(name="discover", bound_s=STILL_S, moves="each LIST of the pools")
POOL = Loop(name="pool", bound_s=LEADER_STILL_S, moves="each check of the lease, and each renewal")
TICK = Loop(
    name="tick",
    bound_s=LEADER_STILL_S,
    moves="each tick, and each page, plan and write of a long tick, also when it failed; only on the leader",
)
CANDIDACY = Loop(
    name="candidacy", bound_s=STILL_S, moves="its beginning and its end", rests="the end of a leader's term"
)
FOLLOW = Loop(
    name="follow",
    bound_s=STILL_S,
    moves="each batch of the cluster feed, page of a LIST, and attempt",
    rests="a LIST that another loop makes",
)
WARM = Loop(name="warm", bound_s=STILL_S, moves="each update of the columns", rests="a change")
SPENDING = Loop(name="spending", bound_s=STILL_S, moves="each check of past usage, and each page and each day of it")
RECORDER = Loop(name="recorder", bound_s=STILL_S, moves="each recorded tick", rests="a tick to record")
WAKE_UPS = Loop(name="wake-ups", bound_s=STILL_S, moves="each wait for a wake-up, at most 30 s")

LOOPS = (DISCOVER, POOL, TICK, CANDIDACY, FOLLOW, WARM, SPENDING, RECORDER, WAKE_UPS, WRITE_BEHIND)
