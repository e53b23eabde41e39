"""Estimates how long an allocation runs, from past run times. Pure.

Owns which allocations are similar (same queue, user and size; with too few of them, larger groups), and how a run limit
is used: with a limit, the used part of the limit is what repeats; without one, the run time itself. An allocation that
still runs is known to need at least its time so far. If running allocations were left out, long run times would seem
rarer than they are, so the Kaplan-Meier estimate is used.

Source: Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations", 1958; Efron, "The Two Sample Problem
with Censored Data", 1967 (the weight of a running allocation is distributed to all longer run times).
"""

import bisect
import itertools
from collections.abc import Iterable, Sequence

import msgspec

SAMPLES_MIN = 10
"""With fewer similar runs, a larger group is used; with fewer runs in all, nothing is known."""


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run of one allocation."""

    queue: str
    user: str
    gpus: int = 0
    """whole GPUs that it held"""
    ran_s: float
    limit_s: float | None = None
    has_ended: bool = True
    """False while it still runs"""


class RunTimes:
    """The distributions of run times, by groups of similar allocations."""

    def __init__(self, runs: Iterable[PastRun]) -> None:
        found: dict[tuple[bool, tuple[str, ...]], list[tuple[float, bool]]] = {}
        for run in runs:
            for group in _groups(run.queue, run.user, run.gpus):
                found.setdefault((False, group), []).append((run.ran_s, run.has_ended))
                if run.limit_s:
                    found.setdefault((True, group), []).append((run.ran_s / run.limit_s, run.has_ended))
        self._known = {group: _LengthDistribution(values) for group, values in found.items()}

    def draw(self, like: PastRun, chance: float) -> float | None:
        """Return the run time at quantile `chance` (0 to 1, without 1) of similar runs that were longer than
        `like.ran_s`.

        None when too few similar runs have ended. If no run was so long, the result is longer than `ran_s` by a factor
        by which the longest runs differ from one another.
        """
        unit_s = like.limit_s or 1.0
        ran = like.ran_s / unit_s
        groups = _groups(like.queue, like.user, like.gpus)
        known = [self._known[key] for group in groups if (key := (bool(like.limit_s), group)) in self._known]
        chosen = next((each for each in known if each.longer_count(ran) >= SAMPLES_MIN), known[-1] if known else None)
        return None if chosen is None or chosen.count < SAMPLES_MIN else chosen.draw(ran, chance) * unit_s


class _LengthDistribution:
    """The lengths of a group of runs, each with its weight."""

    def __init__(self, lengths: Iterable[tuple[float, bool]]) -> None:
        """`lengths`: (length, whether the run has ended)."""
        # At the same length, ended runs are first, because running ones will be longer.
        ordered = sorted(lengths, key=lambda each: (each[0], not each[1]))
        self._ended = [length for length, has_ended in ordered if has_ended]
        self._longest = ordered[-1][0]
        weights: list[float] = []
        weight = 1.0
        for left, (_, has_ended) in zip(range(len(ordered) - 1, -1, -1), ordered, strict=True):
            if has_ended:
                weights.append(weight)
            elif left:
                weight += weight / left
        self._sums = list(itertools.accumulate(weights, initial=0.0))
        self._beyond = 0.0 if ordered[-1][1] else weight
        """the weight of lengths beyond the longest one that was seen"""

    @property
    def count(self) -> int:
        """The number of ended runs."""
        return len(self._ended)

    def longer_count(self, ran: float) -> int:
        """Return how many ended runs were longer than `ran`."""
        return len(self._ended) - bisect.bisect_right(self._ended, ran)

    def draw(self, ran: float, chance: float) -> float:
        """Return the length at quantile `chance` of all lengths longer than `ran`."""
        begin = self._sums[bisect.bisect_right(self._ended, ran)]
        inside = self._sums[-1] - begin
        at = chance * (inside + self._beyond)
        if at < inside:
            return self._ended[min(bisect.bisect_right(self._sums, begin + at), len(self._ended)) - 1]
        rest = (at - inside) / self._beyond if self._beyond else chance
        return max(ran, self._longest) * _growth(self._ended, rest)


def _growth(ended: Sequence[float], chance: float) -> float:
    """Return a growth factor: the ratio of one of the longest runs to the run below them (peaks over a threshold)."""
    longest = ended[-SAMPLES_MIN:]
    below = ended[-SAMPLES_MIN - 1] if len(ended) > SAMPLES_MIN else longest[0]
    return longest[int(chance * len(longest))] / below if below > 0 else 1.0


def _groups(queue: str, user: str, gpus: int) -> tuple[tuple[str, ...], ...]:
    """Return the groups of a run, from the most similar one to all runs.

    Sizes are grouped by a factor of four: up to 1 GPU, to 7, to 31, to 127 ...
    """
    size = str(gpus.bit_length() // 2)
    return ((queue, user, size), (queue, "", size), (queue, user), (queue,), ())
