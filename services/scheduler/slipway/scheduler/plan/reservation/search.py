"""The earliest known instant at which a blocked head has its places, on a timeline of releases.

A few instants are tried one by one. Of many instants the first is found by halving, which assumes that a head that fits
at one instant also fits later. In both cases the result is checked by placing the head there.
"""

from collections.abc import Callable, Sequence

import msgspec

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.reservation.future import FuturePool, FutureRelease
from slipway.scheduler.plan.state.nodes import Bools

SCAN_MAX = 64
"""Up to this number of instants are tried one by one."""
WINDOWS_SCAN_MAX = 256
"""The same limit when windows close nodes for a time, so that halving could miss starts.

With more instants, neighbours are tried as one; the start that is found may then be later than the earliest.
"""
OpenAt = Callable[[float], Bools | None]
"""Returns the nodes that no window closes to the head if it starts at that time; None: all."""


class ReleaseStep(msgspec.Struct, frozen=True):
    """All releases at one instant."""

    at: float
    releases: tuple[FutureRelease, ...]


class ReservedSpan(msgspec.Struct, frozen=True):
    """The reserved places of an earlier head, from `start` until `ends` (None: for ever)."""

    start: float
    ends: float | None
    placed: gang.PlacedGang

    def overlaps(self, start: float, ends: float | None) -> bool:
        """Whether a run from `start` to `ends` (None: for ever) overlaps the reservation."""
        return (ends is None or self.start < ends) and (self.ends is None or start < self.ends)


class EarliestStart(msgspec.Struct, frozen=True):
    """The earliest start: the head is placed in `future`, together with the boxes that its run overlaps."""

    at: float
    future: FuturePool
    placed: gang.PlacedGang
    within: Bools | None = None
    """the nodes that no window closes to it; None: all"""


def steps_of(
    releases: Sequence[FutureRelease], boxes: Sequence[ReservedSpan], others: Sequence[float] = ()
) -> list[ReleaseStep]:
    """Return the instants in order; the ends of boxes and `others` are instants too."""
    by_instant: dict[float, list[FutureRelease]] = {box.ends: [] for box in boxes if box.ends is not None}
    by_instant |= {at: [] for at in others}
    for release in sorted(releases, key=lambda each: (each.at, each.uid)):
        by_instant.setdefault(release.at, []).append(release)
    return [ReleaseStep(at, tuple(by_instant[at])) for at in sorted(by_instant)]


def earliest(
    future: FuturePool,
    fact: AllocationFact,
    limit: float | None,
    steps: Sequence[ReleaseStep],
    boxes: Sequence[ReservedSpan],
    *,
    open_at: OpenAt | None = None,
) -> EarliestStart | None:
    """Return the first of `steps` at which `fact` has its places for its whole run; None when there is none.

    `open_at` must be given when windows close nodes for a time.
    """

    def look(there: FuturePool, at: float) -> EarliestStart | None:
        met = [box for box in boxes if box.overlaps(at, None if limit is None else at + limit)]
        for box in met:
            there.add(box.placed)
        within = None if open_at is None else open_at(at)
        placed = there.place(fact, within)
        if placed is not None:
            return EarliestStart(at, there, placed, within)
        for box in met:
            there.drop(box.placed)
        return None

    if open_at is not None:
        return _scan(future, _thinned(steps, WINDOWS_SCAN_MAX), look)
    return _scan(future, steps, look) if len(steps) <= SCAN_MAX else _halve(future, steps, look)


Look = Callable[[FuturePool, float], EarliestStart | None]


def _thinned(steps: Sequence[ReleaseStep], most: int) -> Sequence[ReleaseStep]:
    """Return at most `most` steps; neighbours are joined at the instant of the last of them."""
    stride = -(-len(steps) // most)
    chunks = [steps[first : first + stride] for first in range(0, len(steps), stride)] if stride > 1 else []
    joined = [ReleaseStep(chunk[-1].at, tuple(each for step in chunk for each in step.releases)) for chunk in chunks]
    return joined or steps


def _scan(future: FuturePool, steps: Sequence[ReleaseStep], look: Look) -> EarliestStart | None:
    for step in steps:
        _forward(future, [step])
        found = look(future, step.at)
        if found is not None:
            return found
    return None


def _halve(future: FuturePool, steps: Sequence[ReleaseStep], look: Look) -> EarliestStart | None:
    """Search by halving: `future` is before `steps[low]`, where the head does not fit; at `steps[high]` it fits."""
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


def _forward(future: FuturePool, steps: Sequence[ReleaseStep]) -> None:
    for step in steps:
        for release in step.releases:
            future.release(release)
