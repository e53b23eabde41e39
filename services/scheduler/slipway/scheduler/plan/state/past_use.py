"""The past GPU use of queues and users, as a plan sees it, and the budgets of queues. Pure.

Past use is decayed, and in whole numbers. This module owns how a queue's past changes its weight (`step_of`) and how
the users of one queue are compared (`UserTurns`). A pool without `fairShare` has no past, and then nothing here is
called.

Invariants: of two equal queues, the one that has used more never gets the larger step. Of two users of a queue with
work of one priority, the one that has used more never comes first.

Budgets: which queues have used up their GPU-hours of a window, and when the next window begins. The windows follow one
another from time 0, in whole milliseconds, and what was used in them is a fact of the snapshot. An exhausted budget
closes its queue, and all queues below it, to new work that requests GPUs. Running work continues.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from slipway.model.decay import ByUser, level
from slipway.model.facts import LEAST_USED, BudgetFact, PoolFact, QueueFact
from slipway.model.mig import GPU_UNITS
from slipway.model.position import milliseconds

STEPS = 8
"""The step of a queue whose past has no effect: weights change in eighths."""
STEP_MIN, STEP_MAX = 4, 16
"""The least and the greatest step: a queue's weight is at most halved or doubled."""


class PastUse(msgspec.Struct, frozen=True, kw_only=True):
    """The past use of one pool at the time of one plan."""

    half_life_ms: int
    history: int = 1000
    """thousandths: how strongly past use changes what queues deserve"""
    used: ByUser = {}
    """{queue: {user: GPU-milliseconds}}, for leaf queues"""
    held: Mapping[str, Mapping[str, int]] = {}
    """{queue: {user: GPUs in use, in `GPU_UNITS`}}"""

    def of_queue(self, queue: str) -> int:
        """Return what the work of `queue` itself has used (GPU-milliseconds)."""
        return sum(self.used.get(queue, {}).values())


def user_queues(pool: PoolFact, queues: Iterable[QueueFact]) -> frozenset[str]:
    """Return the queues whose users take turns."""
    if pool.fair_share is None:
        return frozenset()
    return frozenset(queue.name for queue in queues if queue.user_order == LEAST_USED)


def step_of(used: int, expected: int, history: int) -> int:
    """Return the eighths of its weight that a queue gets when it has used `used` and deserved `expected`.

    This is KAI's formula, weight + k * (weight - usage). Usage is measured relative to what the queue deserved in the
    same time.
    """
    if used and expected <= 0:
        return STEP_MIN if history else STEPS
    excess = 1000 - (used * 1000 // expected if expected > 0 else 0)
    eighths = (STEPS * (1_000_000 + history * excess) + 500_000) // 1_000_000
    return min(max(eighths, STEP_MIN), STEP_MAX)


class UserTurns(dict[str, int]):
    """{user: level of use} of one queue during one plan. The user with the lowest level comes first.

    A level is computed when it is read first. An admission changes the order at once.
    """

    def __init__(self, past: PastUse, queue: str, waiting: Iterable[str] = ()) -> None:
        super().__init__()
        self._used = past.used.get(queue, {})
        self._held = dict(past.held.get(queue, {}))
        self.order = sorted((self[user], user) for user in waiting)
        """(level, user) of the users whose work waits, ascending"""
        self.charges = 0
        """how often `charge` was called: until it changes, the levels stay the same"""

    def __missing__(self, user: str) -> int:
        found = self[user] = level(self._used.get(user, 0), self._held.get(user, 0))
        return found

    def charge(self, user: str, gpu_units: int) -> None:
        """Record that work of `user` with `gpu_units` GPUs starts."""
        self.charges += 1
        before = (self[user], user)
        self._held[user] = self._held.get(user, 0) + gpu_units
        del self[user]
        at = bisect_left(self.order, before)
        if self.order[at : at + 1] == [before]:
            del self.order[at]
            insort(self.order, (self[user], user))


Spent = Mapping[float, Mapping[str, int]]
"""{length of a window (seconds): {queue: GPU-milliseconds that its own work used in the current one}}"""


class QueueUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What the queues had used up to one moment, per day, and the GPUs that they had at that moment.

    Later use is computed from these GPUs.
    """

    at: float = 0.0
    days: Mapping[float, Mapping[str, int]] = {}
    """{when the day began (epoch seconds): {queue: GPU-milliseconds}}"""
    held: Mapping[str, int] = {}
    """{queue: GPUs, in `GPU_UNITS`}"""

    def spent(self, lengths: Iterable[float], now: float) -> Spent:
        """Return what was used in the current windows of these lengths; each length is a number of whole days."""
        found: dict[float, dict[str, int]] = {}
        for window_s in lengths:
            begin = begin_of(window_s, now)
            used = found.setdefault(window_s, {})
            for day, by_queue in self.days.items():
                for queue, gpu_ms in by_queue.items() if day >= begin else ():
                    used[queue] = used.get(queue, 0) + gpu_ms
            since_ms = max(0, milliseconds(now) - milliseconds(max(self.at, begin)))
            for queue, units in self.held.items():
                used[queue] = used.get(queue, 0) + units * since_ms // GPU_UNITS
        return found


class Exhausted(msgspec.Struct, frozen=True):
    """Queue `queue` has used up `budget`, so no work with GPUs starts before `until` (epoch seconds)."""

    queue: str
    budget: BudgetFact
    until: float


def begin_of(window_s: float, now: float) -> float:
    """Return when the current window began (epoch seconds)."""
    length_ms = max(1, milliseconds(window_s))
    return milliseconds(now) // length_ms * length_ms / 1000


def budget_windows(queues: Mapping[str, QueueFact]) -> list[float]:
    """Return the window lengths that any budget uses, ascending."""
    return sorted({budget.window_s for queue in queues.values() for budget in queue.budgets})


def exhausted(queues: Mapping[str, QueueFact], spent: Spent, now: float) -> dict[str, Exhausted]:
    """Return {queue: the exhausted budget that closes it for longest}; the budget may be that of a queue above it."""
    budgeted = [queue for queue in queues.values() if queue.budgets]
    if not budgeted:
        return {}
    used: dict[tuple[str, float], int] = {}
    for window_s, by_queue in spent.items():
        for name, gpu_ms in by_queue.items():
            for above in _path(queues, name):
                used[above, window_s] = used.get((above, window_s), 0) + gpu_ms
    closed: dict[str, Exhausted] = {}
    for queue in budgeted:
        over = [budget for budget in queue.budgets if used.get((queue.name, budget.window_s), 0) >= budget.gpu_ms]
        for budget in over:
            until = begin_of(budget.window_s, now) + budget.window_s
            known = closed.get(queue.name)
            if known is None or until > known.until:
                closed[queue.name] = Exhausted(queue.name, budget, until)
    if not closed:
        return {}
    found: dict[str, Exhausted] = {}
    for name in queues:
        over = [closed[above] for above in _path(queues, name) if above in closed]
        if over:
            found[name] = max(over, key=lambda item: item.until)
    return found


def _path(queues: Mapping[str, QueueFact], name: str) -> Iterator[str]:
    seen: set[str] = set()
    while name in queues and name not in seen:
        seen.add(name)
        yield name
        name = queues[name].parent
