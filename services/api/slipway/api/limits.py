"""The deadlines of an allocation, in words: the times at which it is ended automatically, and why. Pure.

The times are the deadlines that the scheduler uses: they are stored in the object, or computed from it. Use postpones
the idle deadline, and only Redis has the record of use.
"""

from collections.abc import Mapping

from slipway.api.schemas import Deadline
from slipway.crd.facts import deadlines_of, run_limit
from slipway.crd.transitions import stop_reason
from slipway.crd.v1alpha1 import Allocation
from slipway.model.duration import stored_duration
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time
from slipway.streams.keys import ACTIVITY_SINCE

IDLE, PREEMPTION, START = "idle", "preemption", "start"
_WORDS = {
    "pending": "its pendingTimeout of {limit} is over then",
    START: "if it cannot start until then, it ends",
    "maxRuntime": "its maxRuntime of {limit} is over then",
    PREEMPTION: "its ranks were asked to save their work; ranks that still run are killed then",
}

Seen = Mapping[str, float]
"""{source: when it was last in use}"""


def is_watched(allocation: Allocation) -> bool:
    """Whether the allocation has an idle deadline, so that its last use matters."""
    return IDLE in allocation.status.deadlines and _is_open(allocation)


def limits(allocation: Allocation, seen: Seen | None, now: float) -> list[Deadline]:
    """Return the deadlines, the next one first; `seen` is None while Redis is unavailable."""
    if not _is_open(allocation):
        return []
    known = deadlines_of(allocation)
    if stop_reason(allocation) is not None:
        # The allocation is already being stopped, so only its grace period is left.
        known = {name: at for name, at in known.items() if name == PREEMPTION}
    if known.get(START, 0.0) > known.get("pending", float("inf")):
        known.pop(START)
    found = [
        _idle(allocation, at, seen, now) if name == IDLE else _plain(allocation, name, at)
        for name, at in known.items()
        if name == IDLE or name in _WORDS
    ]
    return sorted(found, key=lambda item: (not item.at, item.at))


def _is_open(allocation: Allocation) -> bool:
    return allocation.status.phase not in (Phase.TERMINATING, Phase.TERMINATED)


def _plain(allocation: Allocation, name: str, at: float) -> Deadline:
    limit = {"pending": allocation.spec.pending_timeout, "maxRuntime": run_limit(allocation)}.get(name)
    return Deadline(name=name, at=format_time(at), detail=_WORDS[name].format(limit=limit or ""))


def _idle(allocation: Allocation, at: float, seen: Seen | None, now: float) -> Deadline:
    limit = allocation.spec.idle_timeout or "0s"
    if seen is None:
        detail = (
            "its last use is unknown while Redis is unavailable, and its idleTimeout does not end it until Redis "
            "is back"
        )
        return Deadline(name=IDLE, detail=detail)
    if ACTIVITY_SINCE not in seen:
        last, said = now, "its last use is not recorded, so it is treated as in use now"
    else:
        last = min(max(seen.values()), now)
        used = max((when for source, when in seen.items() if source != ACTIVITY_SINCE), default=None)
        said = f"last used {format_time(min(used, now))}" if used is not None else "not used since it began to run"
    until = max(at, last + stored_duration(limit))
    return Deadline(
        name=IDLE, at=format_time(until), detail=f"unless it is used before that: idleTimeout {limit}, {said}"
    )
