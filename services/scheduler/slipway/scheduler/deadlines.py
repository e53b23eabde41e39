"""Finds which stored deadlines have passed, and when the next one passes.

Deadlines are times in the object (`status.deadlines`, and the pending timeout of the spec), so a restart of any service
never resets one. The scheduler fires them as `status.stop`. They are sorted by time, and follow the changes of the
leader's table: the cost of a tick depends on the changes, not on the number of allocations. No IO.

Invariants: of several deadlines the earliest fires; no deadline fires before its time, after its allocation has ended,
or while another stop is set. Only the idle deadline may be postponed, by the activity that `idleness.py` reads.

`TimerQueue` orders keys by time: which keys are due, and when the next one is due. Pure data. A key has one time;
setting another one replaces it. `set` costs the logarithm of the number of keys, `next` costs next to nothing, `due`
costs the number of due keys.
"""

from heapq import heapify, heappop, heappush

import msgspec

from slipway.facts.custom_resources import is_settled
from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason
from slipway.scheduler.cluster import FactTable

STALE_MAX = 1000
"""The heap keeps at most so many replaced times, plus as many as there are keys."""


class TimerQueue:
    """The time of each key, and a heap of these times."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        """A heap that also contains replaced times, which are dropped when they become due."""

    def set(self, key: str, at: float | None) -> None:
        """Set the time of `key` (epoch seconds), or remove it (None)."""
        if at is None:
            self._at.pop(key, None)
        elif self._at.get(key) != at:
            self._at[key] = at
            heappush(self._heap, (at, key))
        if len(self._heap) > 2 * len(self._at) + STALE_MAX:
            self._heap = [(at, key) for key, at in self._at.items()]
            heapify(self._heap)

    @property
    def size(self) -> int:
        """The number of times in the heap, including replaced ones."""
        return len(self._heap)

    def due(self, now: float) -> list[str]:
        """Return the keys whose time has come, the earliest first; they stay due until they are set again."""
        found: dict[str, float] = {}
        while self._heap and self._heap[0][0] <= now:
            at, key = heappop(self._heap)
            if self._at.get(key) == at:
                found[key] = at
        for key, at in found.items():
            heappush(self._heap, (at, key))
        return list(found)

    def next(self) -> float | None:
        """Return the earliest time, even if it has passed; None without any key."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._at)


IDLE = "idle"
REASONS: dict[str, Reason] = {
    IDLE: Reason.IDLE,
    "maxRuntime": Reason.MAX_RUNTIME,
    "pending": Reason.PENDING_TIMEOUT,
    "preemption": Reason.PREEMPTION_GRACE,
}
"""Name of a deadline -> the reason of the stop that it fires."""


class PassedDeadline(msgspec.Struct, frozen=True):
    """A deadline that has passed."""

    allocation: AllocationFact
    reason: Reason


class Deadlines:
    """The deadlines of one pool's allocations."""

    def __init__(self, pool: str, table: FactTable[AllocationFact]) -> None:
        self._pool = pool
        self._table = table
        self._changes = table.changes()
        self._ends = TimerQueue()
        self._backoffs = TimerQueue()
        self._put_off: dict[str, tuple[str, int, float]] = {}
        """{key: (uid, attempt, until)} of postponed idle deadlines"""
        self._again_at: dict[str, float] = {}
        """{key: when to retry} of deadlines that could not be fired"""

    def passed(self, now: float) -> list[PassedDeadline]:
        """Return the earliest passed deadline of each allocation without a stop, in order of time."""
        self._read_changes()
        found: list[PassedDeadline] = []
        for key in self._ends.due(now):
            fact = self._table.get(key)
            due = self._due(fact) if fact is not None else None
            if fact is not None and due is not None and due[0] <= now:
                found.append(PassedDeadline(fact, due[1]))
        return found

    def postpone(self, fact: AllocationFact, until: float) -> None:
        """Postpone the idle deadline of an allocation in use to `until` (epoch seconds)."""
        self._put_off[fact.key] = (fact.uid, fact.attempt, until)
        self._set(fact.key)

    def retry(self, fact: AllocationFact, at: float) -> None:
        """Fire a deadline again at `at` (epoch seconds), because it could not be fired now.

        Until then, `passed` does not return it, so it does not delay other deadlines.
        """
        self._again_at[fact.key] = at
        self._set(fact.key)

    def next_due(self, now: float) -> float | None:
        """Return when the next deadline or backoff after `now` ends (epoch seconds), or None."""
        self._read_changes()
        # A backoff that is over needs no further tick; every tick looks for deadlines that have passed.
        for key in self._backoffs.due(now):
            self._backoffs.set(key, None)
        times = [self._ends.next(), self._backoffs.next()]
        return min((at for at in times if at is not None and at > now), default=None)

    def _read_changes(self) -> None:
        for key in self._changes.take():
            self._set(key)

    def _set(self, key: str) -> None:
        fact = self._table.get(key)
        if fact is None or fact.pool != self._pool or is_settled(fact):
            self._ends.set(key, None)
            self._backoffs.set(key, None)
            self._put_off.pop(key, None)
            self._again_at.pop(key, None)
            return
        due = self._due(fact)
        self._ends.set(key, due[0] if due is not None else None)
        self._backoffs.set(key, fact.not_before if fact.phase is Phase.PENDING and fact.not_before else None)

    def _due(self, fact: AllocationFact) -> tuple[float, Reason] | None:
        if fact.stopping or fact.phase is Phase.TERMINATED:
            return None
        known = {name: at for name, at in fact.deadlines.items() if name in REASONS and at > 0}
        uid, attempt, until = self._put_off.get(fact.key, ("", 0, 0.0))
        if IDLE in known and (uid, attempt) == (fact.uid, fact.attempt):
            known[IDLE] = max(known[IDLE], until)
        first = min(((at, REASONS[name]) for name, at in known.items()), default=None)
        return (max(first[0], self._again_at.get(fact.key, 0.0)), first[1]) if first is not None else None
