"""The earliest known instant at which a blocked head has its places, on a timeline of releases.

Few instants are looked at one by one; of many the first is found by halving, which takes it that what fits once goes
on to fit. Either way the answer is checked by placing the head there.
"""

from collections.abc import Callable, Sequence

import msgspec

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.reservation.future import Future, FutureRelease

SCAN_MAX = 64
"""Instants that are looked at one by one."""


class ReleaseStep(msgspec.Struct, frozen=True):
    """Everything that ends at one instant."""

    at: float
    releases: tuple[FutureRelease, ...]


class Box(msgspec.Struct, frozen=True):
    """What is kept for an earlier head: its places from `start` until `ends` (None: for ever)."""

    start: float
    ends: float | None
    placed: gang.PlacedGang

    def overlaps(self, start: float, ends: float | None) -> bool:
        """Whether a run from `start` to `ends` meets it."""
        return (ends is None or self.start < ends) and (self.ends is None or start < self.ends)


class EarliestStart(msgspec.Struct, frozen=True):
    """The head stands in `future`, together with the boxes that its run meets."""

    at: float
    future: Future
    placed: gang.PlacedGang


def steps_of(releases: Sequence[FutureRelease], boxes: Sequence[Box]) -> list[ReleaseStep]:
    """The instants in order; the end of a box is one too."""
    by_instant: dict[float, list[FutureRelease]] = {box.ends: [] for box in boxes if box.ends is not None}
    for release in sorted(releases, key=lambda each: (each.at, each.uid)):
        by_instant.setdefault(release.at, []).append(release)
    return [ReleaseStep(at, tuple(by_instant[at])) for at in sorted(by_instant)]


def earliest(
    future: Future, fact: AllocationFact, limit: float | None, steps: Sequence[ReleaseStep], boxes: Sequence[Box]
) -> EarliestStart | None:
    """The first of `steps` at which `fact` has its places for its whole run; None when it has them at none."""

    def look(there: Future, at: float) -> EarliestStart | None:
        met = [box for box in boxes if box.overlaps(at, None if limit is None else at + limit)]
        for box in met:
            there.add(box.placed)
        placed = there.place(fact)
        if placed is not None:
            return EarliestStart(at, there, placed)
        for box in met:
            there.drop(box.placed)
        return None

    return _scan(future, steps, look) if len(steps) <= SCAN_MAX else _halve(future, steps, look)


Look = Callable[[Future, float], EarliestStart | None]


def _scan(future: Future, steps: Sequence[ReleaseStep], look: Look) -> EarliestStart | None:
    for step in steps:
        _forward(future, [step])
        found = look(future, step.at)
        if found is not None:
            return found
    return None


def _halve(future: Future, steps: Sequence[ReleaseStep], look: Look) -> EarliestStart | None:
    """`future` stands before `steps[low]`, where it does not fit; at `steps[high]` it does."""
    low, high = 0, len(steps) - 1
    last = future.copy()
    _forward(last, steps)
    best = look(last, steps[high].at)
    if best is None:
        return None
    while low < high:
        middle = (low + high) // 2
        there = future.copy()
        _forward(there, steps[low : middle + 1])
        base = there.copy()
        found = look(there, steps[middle].at)
        if found is not None:
            best, high = found, middle
        else:
            future, low = base, middle + 1
    return best


def _forward(future: Future, steps: Sequence[ReleaseStep]) -> None:
    for step in steps:
        for release in step.releases:
            future.release(release)
