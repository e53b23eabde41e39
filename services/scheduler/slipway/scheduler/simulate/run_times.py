"""How long work runs, by what has ended: of the same queue and user, else of the queue, else of all. Pure.

Owns which ended work counts as alike, and how a run limit is used: for work with a limit the part of the limit that
was used is what repeats, for work without one it is the run time itself.
"""

from collections.abc import Iterable

import msgspec

from slipway.scheduler.simulate.metrics import percentile

SAMPLES_MIN = 10
"""With fewer of them, more work counts as alike; with fewer of all, nothing is known."""


class EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Work that has ended."""

    queue: str
    user: str
    ran_s: float
    limit_s: float | None


class RunTimes:
    """The run times of ended work."""

    def __init__(self, ended: Iterable[EndedRun]) -> None:
        self._runs: dict[tuple[str, ...], list[float]] = {}
        self._used: dict[tuple[str, ...], list[float]] = {}
        """parts of limits"""
        for run in ended:
            for group in _groups(run.queue, run.user):
                self._runs.setdefault(group, []).append(run.ran_s)
                if run.limit_s:
                    self._used.setdefault(group, []).append(run.ran_s / run.limit_s)
        for values in (*self._runs.values(), *self._used.values()):
            values.sort()

    def percentile(self, queue: str, user: str, limit_s: float | None, ran_s: float, percent: int) -> float | None:
        """The run time that `percent` of such work does not exceed, of that which has run for more than `ran_s`; None
        where too little of it has ended."""
        times = limit_s or 1.0
        for group in _groups(queue, user):
            known = (self._used if limit_s else self._runs).get(group, [])
            longer = [value * times for value in known if value * times > ran_s]
            if len(longer) >= SAMPLES_MIN:
                return percentile(longer, percent)
        return None


def _groups(queue: str, user: str) -> tuple[tuple[str, ...], ...]:
    """From what is most alike to all."""
    return ((queue, user), (queue,), ())
