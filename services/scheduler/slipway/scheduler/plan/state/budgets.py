"""Budgets: which queues have used up their GPU-hours of a window, and when the next window begins.

Owns the arithmetic of budget windows, which follow one another from time 0. Past use is a fact of the snapshot. An
exhausted budget closes its queue, and all queues below it, to new work that requests GPUs. Running work continues.
Pure; computes in whole milliseconds.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from slipway.model.facts import BudgetFact, QueueFact
from slipway.model.mig import GPU_UNITS
from slipway.model.position import milliseconds

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


def windows(queues: Mapping[str, QueueFact]) -> list[float]:
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
