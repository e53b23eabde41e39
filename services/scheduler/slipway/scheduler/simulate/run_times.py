"""How long work runs, by what ran before. Pure.

Owns which work is alike (of the same queue, user and size; with too little of it, more counts as alike), and how a run
limit is used: for work with a limit the part of the limit that was used is what repeats, for work without one it is
the run time itself. Work that still runs is known to take at least as long as it has run. Without it long work would
seem rarer than it is, so the run times are the Kaplan-Meier estimate.

Source: Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations", 1958; Efron, "The Two Sample Problem
with Censored Data", 1967 (the weight of what still runs is spread over all that is longer).
"""

import bisect
import itertools
from collections.abc import Iterable, Sequence

import msgspec

SAMPLES_MIN = 10
"""With fewer of them, more work counts as alike; with fewer of all, nothing is known."""


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """Work that has run."""

    queue: str
    user: str
    gpus: int = 0
    """whole GPUs that it held"""
    ran_s: float
    limit_s: float | None = None
    has_ended: bool = True
    """False: it still runs"""


class RunTimes:
    """The run times of work."""

    def __init__(self, runs: Iterable[PastRun]) -> None:
        found: dict[tuple[bool, tuple[str, ...]], list[tuple[float, bool]]] = {}
        for run in runs:
            for group in _groups(run.queue, run.user, run.gpus):
                found.setdefault((False, group), []).append((run.ran_s, run.has_ended))
                if run.limit_s:
                    found.setdefault((True, group), []).append((run.ran_s / run.limit_s, run.has_ended))
        self._known = {group: _Lengths(values) for group, values in found.items()}

    def draw(self, like: PastRun, chance: float) -> float | None:
        """The run time at `chance` (0 to 1, without 1) among those of work like this that ran for more than its
        `ran_s`; None where too little of it has ended. Where nothing ran so long, it is one that is longer by as much
        as the longest runs differ among each other."""
        unit_s = like.limit_s or 1.0
        ran = like.ran_s / unit_s
        groups = _groups(like.queue, like.user, like.gpus)
        known = [self._known[key] for group in groups if (key := (bool(like.limit_s), group)) in self._known]
        chosen = next((each for each in known if each.longer_count(ran) >= SAMPLES_MIN), known[-1] if known else None)
        return None if chosen is None or chosen.count < SAMPLES_MIN else chosen.draw(ran, chance) * unit_s


class _Lengths:
    """The lengths of some work, each with its weight."""

    def __init__(self, lengths: Iterable[tuple[float, bool]]) -> None:
        """Each with whether it has ended."""
        # At the same length what has ended comes first: what still runs takes longer.
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
        """the weight of what is longer than everything that was seen"""

    @property
    def count(self) -> int:
        """How many have ended."""
        return len(self._ended)

    def longer_count(self, ran: float) -> int:
        """How many of those were longer than `ran`."""
        return len(self._ended) - bisect.bisect_right(self._ended, ran)

    def draw(self, ran: float, chance: float) -> float:
        """The length at `chance` of all that are longer than `ran`."""
        begin = self._sums[bisect.bisect_right(self._ended, ran)]
        inside = self._sums[-1] - begin
        at = chance * (inside + self._beyond)
        if at < inside:
            return self._ended[min(bisect.bisect_right(self._sums, begin + at), len(self._ended)) - 1]
        rest = (at - inside) / self._beyond if self._beyond else chance
        return max(ran, self._longest) * _growth(self._ended, rest)


def _growth(ended: Sequence[float], chance: float) -> float:
    """How many times as long: what the longest runs are of the one below them (peaks over a threshold)."""
    longest = ended[-SAMPLES_MIN:]
    below = ended[-SAMPLES_MIN - 1] if len(ended) > SAMPLES_MIN else longest[0]
    return longest[int(chance * len(longest))] / below if below > 0 else 1.0


def _groups(queue: str, user: str, gpus: int) -> tuple[tuple[str, ...], ...]:
    """From what is most alike to all. Sizes are alike within a factor of four: up to 1 GPU, to 7, to 31, to 127 ..."""
    size = str(gpus.bit_length() // 2)
    return ((queue, user, size), (queue, "", size), (queue, user), (queue,), ())
