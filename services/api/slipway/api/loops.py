"""The loops of the api, and how long each may make no progress.

Owns the table. `runtime/liveness.py` defines the meaning of a bound. Answering requests is not a loop in this table:
the probe itself is a request, and fails when no request is answered.
"""

from slipway.runtime.liveness import Loop
from slipway.streams.producer import WRITE_BEHIND

STILL_S = 120.0

KUBERNETES = Loop(name="kubernetes", bound_s=STILL_S, moves="each check whether the API server answers")
TOKENS = Loop(name="tokens", bound_s=STILL_S, moves="each check of the folder of tokens")
SESSION_KEYS = Loop(name="session-keys", bound_s=STILL_S, moves="each check of the folder of session keys")
LOGOUTS = Loop(name="logouts", bound_s=STILL_S, moves="each check for logins that other replicas ended")
AUDIT = Loop(
    name="audit",
    bound_s=STILL_S,
    moves="each batch of audit events that its receiver accepts or refuses",
    rests="an event",
)
ANNOUNCE = Loop(name="announce", bound_s=STILL_S, moves="each batch of published launches", rests="a launch to publish")
WATCH = Loop(
    name="watch",
    bound_s=STILL_S,
    moves="each event, end and refusal of a watch; any time while the API server does not answer",
)
WEBHOOKS_ROUTE = Loop(name="webhooks-route", bound_s=STILL_S, moves="each check for events to route")
WEBHOOKS_DELIVER = Loop(name="webhooks-deliver", bound_s=STILL_S, moves="each check for deliveries")
WEBHOOKS_HEARTBEATS = Loop(
    name="webhooks-heartbeats", bound_s=STILL_S, moves="each heartbeat of the deliveries in progress"
)

LOOPS = (
    KUBERNETES,
    TOKENS,
    SESSION_KEYS,
    LOGOUTS,
    AUDIT,
    ANNOUNCE,
    WATCH,
    WEBHOOKS_ROUTE,
    WEBHOOKS_DELIVER,
    WEBHOOKS_HEARTBEATS,
    WRITE_BEHIND,
)
