"""The ends of running work as columns, so that the search for a head's start tests most instants with numbers alone.

Owns this shortcut (`Timeline`) and the conditions for it: for a head of one role, whether it fits at an instant is then
a sum over nodes. The head is placed only at the instant that is found. Invariant: the result equals that of `earliest`
over the same releases.

`earliest` finds the first known instant at which a blocked head has its places. A few instants are tried one by one. Of
many instants the first is found by halving, which assumes that a head that fits at one instant also fits later. In both
cases the result is checked by placing the head there.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow
from slipway.scheduler.plan.placement.gang import PlacedGang
from slipway.scheduler.plan.placement.tick_state import Admitted, TickState
from slipway.scheduler.plan.reservation.future import FuturePool, FutureRelease, UseDelta, is_limited
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.nodes import EVERY, Bools, Ints
from slipway.scheduler.plan.state.run_ends import Floats, RunEnds

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
    """Search by halving: `future` is before `steps[low]`, where the head does not fit; at `steps[high]` it fits.

    The first step is tried before the others, because many heads fit at once.
    """
    now = future.copy()
    _forward(now, steps[:1])
    best = look(now, steps[0].at)
    if best is not None:
        return best
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


CELLS_MAX = 100_000
"""Up to this number of nodes times instants, testing all instants at once is cheaper than one after the other."""


class Timeline:
    """The ends of all running work, as one tick finds them."""

    def __init__(self, state: TickState) -> None:
        snapshot = state.snapshot
        holdings = ((holding.allocation, holding.charges) for holding in snapshot.holdings.values())
        self._state = state
        self.ends: RunEnds = snapshot.ends.start(holdings, snapshot.table)
        self._rows, self._times, self._unknown = self.ends.in_order(self._run_limit, state.now)

    def row_of(self, fact: AllocationFact) -> FeasibilityRow | None:
        """Return the row of a head for which amounts alone decide whether it fits; None for all other heads."""
        whatif = self._state.whatif
        if len(fact.roles) != 1 or fact.topology is not None or whatif.plan_extenders is not None:
            return None
        role = fact.roles[0]
        if role.topology is not None or role.gpu_milli or role.host_ports:
            return None
        if not self.ends.is_plain(whatif.usage) or not all(_is_plain(each.placed) for each in self._state.admitted):
            return None
        row = whatif.row(role)
        return None if row.is_coupled or row.request.missing or row.request.gpu_milli else row

    def earliest(
        self,
        fact: AllocationFact,
        row: FeasibilityRow,
        limit: float | None,
        admitted: Iterable[FutureRelease],
        boxes: Sequence[ReservedSpan],
    ) -> EarliestStart | None:
        """Return the first instant at which `fact` has its places for its whole run, beside `boxes`, or None.

        `admitted` are the gangs that this tick starts and that end at a known time.
        """
        track = _SearchSteps(self._state, self.ends, self._left(), sorted(admitted, key=lambda each: each.at), boxes)
        return track.earliest(fact, row, limit)

    def can_ever_start(self, fact: AllocationFact, row: FeasibilityRow, admitted: Iterable[FutureRelease]) -> bool:
        """Whether `fact` fits after all work that may end has ended, including `admitted`."""
        gone = [row for uid, ranks in self._state.removed().items() for row in self.ends.rows_of(uid, ranks)]
        rows = np.concatenate([self._rows, self._unknown])
        look = _AmountTest(self._state, self.ends, fact, row)
        look.free(rows[~np.isin(rows, gone)] if gone else rows, admitted)
        return look.fits(())

    def _left(self) -> tuple[Ints, Floats]:
        """Return (rows, their ends), without removed ranks; evicted work that is still there ends now."""
        state, rows, times = self._state, self._rows, self._times
        gone = [row for uid, ranks in state.removed().items() for row in self.ends.rows_of(uid, ranks)]
        leaving: list[int] = []
        for uid, evict in state.evicted.items():
            holding = state.snapshot.holdings.get(uid)
            if holding is not None and not evict.ranks:
                leaving += self.ends.rows_of(uid, state.left_of(holding))
        if not gone and not leaving:
            return rows, times
        left = ~np.isin(rows, [*gone, *leaving])
        rows = np.concatenate([np.array(leaving, dtype=np.int64), rows[left]])
        times = np.concatenate([np.full(len(leaving), state.now), times[left]])
        order = np.argsort(times, kind="stable")
        return rows[order], times[order]

    def _run_limit(self, queue: str) -> float | None:
        found = self._state.tree.queue(queue)
        return None if found is None else found.max_runtime


class _SearchSteps:
    """The instants of one search, in order; the first is now, before any release."""

    def __init__(
        self,
        state: TickState,
        ends: RunEnds,
        ended: tuple[Ints, Floats],
        admitted: list[FutureRelease],
        boxes: Sequence[ReservedSpan],
    ) -> None:
        """`ended`: (rows, the end of each), ordered by the ends."""
        self._rows, times = ended
        self._state, self._ends, self._admitted, self._boxes = state, ends, admitted, boxes
        is_last = np.append(times[1:] != times[:-1], True)[: times.size]
        later, counts = times[is_last], np.flatnonzero(is_last) + 1
        others = {each.at for each in admitted} | {box.ends for box in boxes if box.ends is not None}
        if others:
            added = np.setdiff1d(np.array(sorted(others)), later, assume_unique=True)
            at = np.searchsorted(later, added)
            later, counts = np.insert(later, at, added), np.insert(counts, at, np.append(0, counts)[at])
        self._instants: Floats = np.append(state.now, later)
        self._counts: Ints = np.append(0, counts)
        """number of `_rows` that have ended at each instant"""

    def earliest(self, fact: AllocationFact, row: FeasibilityRow, limit: float | None) -> EarliestStart | None:
        """Return the first instant at which the head fits, by the same steps as `search.earliest`."""
        look, last = _AmountTest(self._state, self._ends, fact, row), len(self._instants) - 1
        if look.fits(self._met(0, limit)):
            return self._place_at(fact, 0, limit)
        if len(self._instants) * len(row.passed) <= CELLS_MAX:
            has_room = self._has_room(row, rank_request.targets(fact)[0], limit)
            return self._place_at_first(fact, look, has_room, limit)
        if last < SCAN_MAX:
            for at in range(1, last + 1):
                look.free(*self._between(at - 1, at))
                if look.fits(self._met(at, limit)):
                    return self._place_at(fact, at, limit)
            return None
        high, low, base = last, 0, look
        end = look.copy()
        end.free(*self._between(-1, last))
        if not end.fits(self._met(last, limit)):
            return None
        freed = -1
        while low < high:
            middle = (low + high) // 2
            there = base.copy()
            there.free(*self._between(freed, middle))
            if there.fits(self._met(middle, limit)):
                high = middle
            else:
                base, freed, low = there, middle, middle + 1
        return self._place_at(fact, high, limit)

    def _place_at_first(
        self, fact: AllocationFact, look: "_AmountTest", has_room: Bools, limit: float | None
    ) -> EarliestStart | None:
        """Like `earliest`, when `has_room` already states for each instant whether there is room."""
        known: dict[int, bool] = {}

        def fits(at: int) -> bool:
            if at not in known:
                known[at] = bool(has_room[at]) and (not look.is_limited or self._may_use(look, at, limit))
            return known[at]

        low, high = 0, len(self._instants) - 1
        if high < SCAN_MAX:
            first = next((at for at in np.flatnonzero(has_room).tolist() if fits(at)), None)
            return None if first is None else self._place_at(fact, first, limit)
        if not fits(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle + 1, high)
        return self._place_at(fact, high, limit)

    def _may_use(self, look: "_AmountTest", at: int, limit: float | None) -> bool:
        there = look.copy()
        there.free(*self._between(-1, at))
        return there.fits(self._met(at, limit))

    def _has_room(self, row: FeasibilityRow, want: int, limit: float | None) -> Bools:
        """Return for each instant whether there is room for `want` ranks, computed for all instants at once."""
        usage, times = self._state.whatif.usage, self._instants
        size, nodes = times.size, len(row.passed)
        room: Ints = np.full((size, nodes), want, dtype=np.int64)
        of_row: Ints = np.repeat(np.arange(1, size, dtype=np.int64), np.diff(self._counts))
        starts = [(box, self._meets(box, limit)) for box in self._boxes]
        ended_at = (np.searchsorted(times[1:], [each.at for each in self._admitted]) + 1).tolist()
        for resource, amount in row.request.steps:
            free: Ints = np.zeros((size, nodes), dtype=np.int64)
            free[0] = usage.free(resource, EVERY)
            self._ends.add_freed_at(free, of_row, resource, self._rows, len(usage.table.resources))
            for release, at in zip(self._admitted, ended_at, strict=True):
                _add(free[at], _gangs([release]), resource, 1)
            free = np.cumsum(free, axis=0)
            for box, is_met in starts:
                taken: Ints = np.zeros(nodes, dtype=np.int64)
                _add(taken, [box.placed], resource, 1)
                free -= np.where(is_met[:, None], taken, 0)
            np.minimum(room, free // amount, out=room)
        return np.maximum(room, 0)[:, row.passed].sum(axis=1) >= want

    def _meets(self, box: ReservedSpan, limit: float | None) -> Bools:
        return np.array(
            [box.overlaps(start, None if limit is None else start + limit) for start in self._instants.tolist()],
            dtype=np.bool_,
        )

    def _between(self, before: int, at: int) -> tuple[Ints, list[FutureRelease]]:
        """Return what ends after instant `before` (-1: from the beginning) up to instant `at`."""
        if at <= 0:
            return self._rows[:0], []
        first = 0 if before < 0 else self._counts[before]
        since = float(self._instants[before]) if before > 0 else float("-inf")
        until = float(self._instants[at])
        return self._rows[first : self._counts[at]], [each for each in self._admitted if since < each.at <= until]

    def _met(self, at: int, limit: float | None) -> list[ReservedSpan]:
        start = float(self._instants[at])
        return [box for box in self._boxes if box.overlaps(start, None if limit is None else start + limit)]

    def _place_at(self, fact: AllocationFact, at: int, limit: float | None) -> EarliestStart | None:
        """Return the head placed at instant `at`; None when the placement fails."""
        future = FuturePool(self._state)
        rows, admitted = self._between(-1, at)
        future.release_rows(self._ends, rows)
        for release in admitted:
            future.release(release)
        for box in self._met(at, limit):
            future.add(box.placed)
        placed = future.place(fact)
        return None if placed is None else EarliestStart(float(self._instants[at]), future, placed)


class _AmountTest:
    """Tests with numbers whether a head fits: what is free of its requested resources, and its quota."""

    def __init__(self, state: TickState, ends: RunEnds, fact: AllocationFact, row: FeasibilityRow) -> None:
        self._state, self._ends, self._fact, self._row = state, ends, fact, row
        self._want = rank_request.targets(fact)[0]
        self._free: dict[int, Ints] = {
            resource: state.whatif.usage.free(resource, EVERY) for resource, _ in row.request.steps
        }
        self.is_limited = is_limited(state, fact)
        """whether the use of other work limits what the head may use"""
        self._counts = UseDelta() if self.is_limited else None
        """None when the end of other work does not change what the head may use"""
        self._demand = rank_request.smallest_demand(fact)
        self._is_permitted = self._counts is not None or state.may_use(fact, self._demand) is None
        """whether the head may use its demand, as far as that does not depend on other work"""

    def copy(self) -> "_AmountTest":
        """Return an independent copy."""
        other = _AmountTest.__new__(_AmountTest)
        other._state, other._ends, other._fact, other._row = self._state, self._ends, self._fact, self._row
        other._want, other.is_limited = self._want, self.is_limited
        other._demand, other._is_permitted = self._demand, self._is_permitted
        other._free = {resource: amounts.copy() for resource, amounts in self._free.items()}
        other._counts = None if self._counts is None else self._counts.copy()
        return other

    def free(self, rows: Ints, admitted: Iterable[FutureRelease]) -> None:
        """Release the ranks in `rows` and the gangs of `admitted`, which have ended."""
        if rows.size:
            for resource, free in self._free.items():
                self._ends.add_freed(free, resource, rows, len(self._state.whatif.table.resources))
            if self._counts is not None:
                self._counts.drop_rows(self._ends, rows)
        self._move(_gangs(admitted), 1)

    def fits(self, met: Sequence[ReservedSpan]) -> bool:
        """Whether the head fits beside the boxes of `met`."""
        if not self._is_permitted:
            return False
        gangs = [box.placed for box in met]
        self._move(gangs, -1)
        is_fit = self._has_room() and self._may_use()
        self._move(gangs, 1)
        return is_fit

    def _has_room(self) -> bool:
        counts = np.full(len(self._state.whatif.table), self._want, dtype=np.int64)
        for resource, amount in self._row.request.steps:
            np.minimum(counts, self._free[resource] // amount, out=counts)
        return int(np.maximum(counts, 0)[self._row.passed].sum()) >= self._want

    def _may_use(self) -> bool:
        return self._counts is None or self._counts.may_use(self._state, self._fact, self._demand)

    def _move(self, gangs: Sequence[PlacedGang], times: int) -> None:
        """Release what `gangs` use (1), or take it again (-1)."""
        for resource, free in self._free.items():
            _add(free, gangs, resource, times)
        if self._counts is not None:
            for placed in gangs:
                self._counts.add(placed.allocation, placed.demand(), -times)


def _gangs(admitted: Iterable[FutureRelease]) -> list[PlacedGang]:
    return [each.what.placed for each in admitted if isinstance(each.what, Admitted)]


def _add(amounts: Ints, gangs: Sequence[PlacedGang], resource: int, times: int) -> None:
    """Add what `gangs` use of a resource to `amounts`, per node, `times` times."""
    nodes: list[int] = []
    added: list[int] = []
    for placed in gangs:
        for part in placed.parts:
            for row, amount in part.row.request.steps:
                if row == resource:
                    nodes += part.nodes
                    added += [amount * times] * len(part.nodes)
    if nodes:
        np.add.at(amounts, np.array(nodes, dtype=np.int64), np.array(added, dtype=np.int64))


def _is_plain(placed: PlacedGang) -> bool:
    """Whether the gang uses only amounts of its nodes, and no share of a single GPU."""
    return not any(part.row.request.gpu_milli for part in placed.parts)
