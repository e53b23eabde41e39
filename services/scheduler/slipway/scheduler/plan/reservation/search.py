"""The earliest known instant at which a blocked head has its places, on a timeline of releases.

Few instants are looked at one by one; of many the first is found by halving, which takes it that what fits once goes
on to fit. Either way the answer is checked by placing the head there.
"""

from collections.abc import Callable, Sequence

import msgspec

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.reservation.future import Future, FutureRelease
from slipway.scheduler.plan.state.nodes import Bools

SCAN_MAX = 64
"""Instants that are looked at one by one."""
WINDOWS_SCAN_MAX = 256
"""The same where windows close nodes for a time, so that halving would miss starts. Of more instants, neighbours are
looked at as one: the start that is found may then be later than the earliest."""
OpenAt = Callable[[float], Bools | None]
"""The nodes that no window closes to the head, if it starts then; None: all."""


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
    within: Bools | None = None
    """the nodes that no window closed to it; None: all"""


def steps_of(
    releases: Sequence[FutureRelease], boxes: Sequence[Box], others: Sequence[float] = ()
) -> list[ReleaseStep]:
    """The instants in order; the end of a box is one too, and so are `others`."""
    by_instant: dict[float, list[FutureRelease]] = {box.ends: [] for box in boxes if box.ends is not None}
    by_instant |= {at: [] for at in others}
    for release in sorted(releases, key=lambda each: (each.at, each.uid)):
        by_instant.setdefault(release.at, []).append(release)
    return [ReleaseStep(at, tuple(by_instant[at])) for at in sorted(by_instant)]


def earliest(
    future: Future,
    fact: AllocationFact,
    limit: float | None,
    steps: Sequence[ReleaseStep],
    boxes: Sequence[Box],
    *,
    open_at: OpenAt | None = None,
) -> EarliestStart | None:
    """The first of `steps` at which `fact` has its places for its whole run; None when it has them at none.

    With `open_at`, windows close nodes for a time.
    """

    def look(there: Future, at: float) -> EarliestStart | None:
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


Look = Callable[[Future, float], EarliestStart | None]


def _thinned(steps: Sequence[ReleaseStep], most: int) -> Sequence[ReleaseStep]:
    """At most so many: neighbours as one, at the instant of the last of them."""
    stride = -(-len(steps) // most)
    chunks = [steps[first : first + stride] for first in range(0, len(steps), stride)] if stride > 1 else []
    joined = [ReleaseStep(chunk[-1].at, tuple(each for step in chunk for each in step.releases)) for chunk in chunks]
    return joined or steps


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
