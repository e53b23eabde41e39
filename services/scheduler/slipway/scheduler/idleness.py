"""Checks whether an allocation whose idle deadline has passed is really unused.

Owns the reads of activity. The stored deadline is the earliest possible one. Activity postpones it and is stored only
in Redis, so that an idle system writes no objects. It stops no allocation itself.

Promises: an allocation that was used within its idle timeout is never reported as idle. Activity that cannot be read,
or that was lost (the mark that is set when an attempt begins to run is missing), is treated as activity now; a lost
mark is set again. Without Redis no allocation is ever idle.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from slipway.errors import ControlPlaneError, InvariantError
from slipway.model import ids
from slipway.model.facts import AllocationFact
from slipway.model.ids import AllocationId
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.streams import keys

READ_DEADLINE_S = 2.0

_log = log.get_logger(__name__)


class ActivityReads(Protocol):
    """Reads and writes when allocations were last used, by source."""

    async def touch(self, times: Mapping[AllocationId, Mapping[str, float]]) -> None: ...

    async def read(self, allocations: Sequence[AllocationId]) -> list[Mapping[str, float]]: ...


class Idleness:
    """Reads the activity in Redis."""

    def __init__(self, activity: ActivityReads, clock: Clock) -> None:
        self._activity = activity
        self._clock = clock

    async def idle_at(self, facts: Sequence[AllocationFact]) -> list[float]:
        """Return for each allocation the earliest time at which it is idle (epoch seconds)."""
        if not facts:
            return []
        now = self._clock.now()
        known = [ids.allocation_id(fact.name, fact.uid) for fact in facts]
        try:
            async with asyncio.timeout(READ_DEADLINE_S):
                seen = await self._activity.read(known)
                lost = [id_ for id_, times in zip(known, seen, strict=True) if keys.ACTIVITY_SINCE not in times]
                if lost:
                    _log.info("activity lost; the time is counted from now", count=len(lost))
                    await self._activity.touch({id_: {keys.ACTIVITY_SINCE: now} for id_ in lost})
        except InvariantError:
            raise
        except (ControlPlaneError, TimeoutError) as exc:
            _log.warning("activity not read; the time is counted from now", count=len(facts), error=str(exc))
            return [now + fact.idle_timeout for fact in facts]
        return [_idle_at(fact, times, now) for fact, times in zip(facts, seen, strict=True)]


def _idle_at(fact: AllocationFact, times: Mapping[str, float], now: float) -> float:
    if keys.ACTIVITY_SINCE not in times:
        return now + fact.idle_timeout
    since = times[keys.ACTIVITY_SINCE]
    if since > now and 0 < fact.started <= now:
        # A clock that was ahead has set the mark; the recorded start was corrected since.
        since = fact.started
    last = max({**times, keys.ACTIVITY_SINCE: since}.values())
    return min(last, now) + fact.idle_timeout
