"""The reservations of one tick: one for the blocked head of each queue that reserves places, in the order of the heads.

This is EASY backfill. Work may pass a head if it ends before the head's start, or if the head still has its places at
that time. A head whose start cannot be known (it waits for work that may run for ever) reserves nothing. Only if the
head has aged, its places are reserved from now on. Nothing is stored: the next tick finds the same start again, or an
earlier one.

Promises: work that passes never makes a start later. Work that had its turn before the head and ranks no lower may
still take the head's places; the reservation is then made again.

`allows` tells whether a reservation is kept if other work starts now.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from slipway.model.facts import AllocationFact, JobFact, QueueFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.placement import explain, gang
from slipway.scheduler.plan.placement.tick_state import Admitted, TickState
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.reservation.future import FuturePool, FutureRelease
from slipway.scheduler.plan.reservation.timeline import (
    EarliestStart,
    ReleaseStep,
    ReservedSpan,
    Timeline,
    earliest,
    steps_of,
)
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.pending import priority_of
from slipway.scheduler.plan.state.plan_types import Explanation, ReservedPlaces
from slipway.scheduler.plan.state.run_ends import ends_if_started, known_end, run_limit
from slipway.scheduler.plan.state.windows import Windows


class ChangedPool(msgspec.Struct, frozen=True):
    """The pool of a tick with a change: other nodes or another policy for them, other quotas, other slots of jobs."""

    make: Callable[[WhatIf], WhatIf]
    """returns the nodes as they are with the change"""
    tree: QueueTree
    jobs: Mapping[tuple[str, str], JobFact]
    within: Bools | None = None
    """the only nodes that may be used; None: all"""


class Reservation(msgspec.Struct):
    """Places for `fact` from `start` on (epoch seconds; None: as soon as they are free)."""

    fact: AllocationFact
    start: float | None
    ends: float | None
    future: FuturePool
    placed: gang.PlacedGang
    removed: dict[str, frozenset[int]]
    """{uid: ranks} that were removed when it was made"""
    within: Bools | None = None
    """the nodes that no window closes to the head at its start; None: all"""
    met: dict[str, gang.PlacedGang] = {}
    """{uid: reserved places} of the earlier heads that run at its start, as `future` contains them"""
    is_due: bool = True
    """whether its head has had its turn; then all work after the head must respect it"""


def allows(reservation: Reservation, placed: gang.PlacedGang) -> bool:
    """Whether the head can still start in time if `placed` runs then; the reservation may move to other places for it.

    With several roles the head is placed again even if nothing overlaps, because their places depend on each other.
    """
    future, head = reservation.future, reservation.placed
    is_simple = len(head.parts) == 1 and _is_alone(head.allocation) and _is_alone(placed.allocation)
    if is_simple and future.has_room_for(placed):
        return future.may_keep_beside(head, placed)
    future.drop(head)
    is_room = future.has_room_for(placed)
    moved = None
    if is_room:
        future.add(placed)
        moved = future.place(head.allocation, reservation.within)
        future.drop(placed)
    if moved is None:
        future.add(head)
        return False
    reservation.placed = moved
    return True


def _is_alone(fact: AllocationFact) -> bool:
    """Whether its ranks do not depend on the pods beside them, so that other work does not change its places."""
    return not any(role.affinity or role.spread for role in fact.roles)


def ends_before(ends: float | None, reservation: Reservation) -> bool:
    return ends is not None and reservation.start is not None and ends <= reservation.start


def without(within: Bools, placed: gang.PlacedGang) -> Bools:
    left = within.copy()
    for part in placed.parts:
        left[part.nodes] = False
    return left


def order_of(reservation: Reservation) -> tuple[float, str]:
    start = reservation.start
    return (float("-inf") if start is None else start, reservation.fact.uid)


BACKFILL = "Backfill"
TRIES_MAX = 4
"""The number of other placements that are tried for work that would take reserved places."""


class Reservations:
    """The reservations of one tick: makes them, and decides which work may pass."""

    def __init__(self, state: TickState) -> None:
        self._state = state
        self._made: list[Reservation] = []
        self._foreseen: set[str] = set()
        """uids of heads whose places were reserved before their turn"""
        self._timeline: Timeline | None = None
        self._known = 0
        """number of the state's admissions and evictions that the reservations include"""

    def is_entitled(self, fact: AllocationFact) -> bool:
        """Whether `fact` gets a reservation if it is the blocked head of its queue."""
        queue = self._queue(fact)
        return self._is_aged(fact) or (self._state.policy.backfill and queue is not None and queue.ordering == BACKFILL)

    def reserve_ahead(self, cursors: list[list[AllocationFact]]) -> None:
        """Reserve places before any queue has had a turn, so that lower-ranked work does not take them.

        Only heads that were waiting before this tick get places. Heads that may start now are included, since the
        reserved start may be now. The head of each of `cursors` is its first allocation that can ever start.
        """

        def order(cursor: list[AllocationFact]) -> tuple[int, int, float, str]:
            queue, own, age = self._rank(cursor[0])
            return (-queue, -own, -age, cursor[0].uid)

        for cursor in sorted((cursor for cursor in cursors if cursor and self.is_entitled(cursor[0])), key=order):
            for fact in cursor:
                if self._since(fact) < self._state.now and self._make(fact, is_due=False):
                    self._foreseen.add(fact.uid)
                    break
                if self.can_ever_start(fact):
                    break

    def has_started(self, admitted: Iterable[Admitted]) -> bool:
        """Whether one of `admitted` had places reserved before its turn, so that unused places are free again."""
        return any(each.placed.allocation.uid in self._foreseen for each in admitted)

    def make(self, fact: AllocationFact) -> bool:
        """Reserve for a blocked head that has had its turn, if it is entitled; return whether it has a reservation."""
        self.renew()
        for reservation in self._made:
            if reservation.fact.uid == fact.uid:
                reservation.is_due = True
                return True
        return self.is_entitled(fact) and self._make(fact, is_due=True)

    def settle(
        self, placed: gang.PlacedGang, demand: Resources, moved: Sequence[gang.PlacedGang] = ()
    ) -> gang.PlacedGang | Explanation:
        """Check `placed`, which has taken places for `demand`, against the reservations.

        Return `placed` if it delays no reserved start; or the same gang on other places that do not; or the reason
        against it, after its places were given back. `moved` is running work that starts again elsewhere to make room
        for `placed`, so its run limit begins again.
        """
        if not self._made:
            return placed
        if self._is_outdated():
            # `renew` computes from the current state, which must not include `placed`: it is not admitted yet.
            self._state.withdraw(placed)
            self.renew()
            self._state.retake(placed)
        fact = placed.allocation
        ends = ends_if_started(fact, self._queue(fact), self._state.now)
        binding = self._bound_to(fact, ends)
        settled, blocking = placed, self._delayed_by(placed, binding)
        if blocking is not None:
            self._state.withdraw(placed)
            other = self._elsewhere(fact, demand, binding)
            if other is None:
                return explain.behind_reservation(blocking.fact, blocking.start, self._state.now)
            settled = other
        passed: list[tuple[gang.PlacedGang, list[Reservation]]] = []
        for reservation in binding:
            reservation.future.admit(settled)
        for each in moved:
            bound = self._binding(each.allocation)
            blocking = self._delayed_by(each, bound)
            if blocking is not None:
                for let, kept in passed:
                    for reservation in kept:
                        reservation.future.drop(let)
                for reservation in binding:
                    reservation.future.admit(settled, -1)
                self._state.withdraw(settled)
                return explain.behind_reservation(blocking.fact, blocking.start, self._state.now)
            for reservation in bound:
                reservation.future.add(each)
            passed.append((each, bound))
        self._known += 1 if not moved and self._is_included(settled, binding, ends) else 0
        return settled

    def renew(self) -> None:
        """Make the reservations again if the state has changed since.

        Call it only while nothing is taken or removed provisionally, because the provisional state would be treated as
        final.
        """
        if self._made and self._is_outdated():
            before, self._made = self._made, []
            for each in before:
                if not any(each.fact.uid == admitted.placed.allocation.uid for admitted in self._state.admitted):
                    self._make(each.fact, is_due=each.is_due)

    def may_extend(self, placed: gang.PlacedGang, part: gang.PlacedRole) -> bool:
        """Whether a gang may keep the last rank of `part`, which is a surplus rank."""
        if not self._made:
            return True
        one = gang.PlacedGang(placed.allocation, (msgspec.structs.replace(part, nodes=part.nodes[-1:]),), False)
        binding = self._binding(placed.allocation)
        if self._delayed_by(one, binding) is not None:
            return False
        for reservation in binding:
            reservation.future.admit(one)
        return True

    def may_delay(self, fact: AllocationFact) -> bool:
        """Whether `fact` might delay a reserved start, so that room alone does not let it start."""
        return bool(self._binding(fact))

    def would_keep(self, fact: AllocationFact, changed: ChangedPool) -> bool:
        """Whether `fact`, which has no reservation, would get one in the `changed` pool.

        Leaves everything as it was.
        """
        if not self.is_entitled(fact) or any(each.fact.uid == fact.uid for each in self._made):
            return False
        state = self._state
        known = state.tree, state.snapshot
        state.tree, state.snapshot = changed.tree, msgspec.structs.replace(state.snapshot, jobs=changed.jobs)
        try:
            return self._drained(fact, changed.make, changed.within) is not None
        finally:
            state.tree, state.snapshot = known

    def passing_limit(self, fact: AllocationFact) -> float | None:
        """Return the longest run limit (seconds) with which `fact` would delay no reserved start, or None."""
        starts = [each.start for each in self._binding(fact)]
        known = [start for start in starts if start is not None]
        limit = min(known, default=0.0) - self._state.now
        return limit if limit > 0 and len(known) == len(starts) else None

    def kept(self) -> tuple[ReservedPlaces, ...]:
        """Return all reservations, as data."""
        self.renew()
        names = self._state.whatif.table.names
        return tuple(
            ReservedPlaces(
                allocation=each.fact.key,
                uid=each.fact.uid,
                start=each.start,
                placements={rank: names[node] for rank, node in each.placed.placements().items()},
            )
            for each in self._made
        )

    def can_ever_start(self, fact: AllocationFact) -> bool:
        """Whether `fact` would have a place if all work that may end had ended."""
        timeline = self._timeline_of()
        row = timeline.row_of(fact)
        if row is None:
            return self._drained(fact) is not None
        known, unknown = self._started()
        return timeline.can_ever_start(fact, row, [*known, *unknown])

    # --- making reservations ------------------------------------------------------------------------------------------

    def _make(self, fact: AllocationFact, *, is_due: bool) -> bool:
        found = self._find(fact)
        if found is not None:
            found.is_due = is_due
            self._made.append(found)
        return found is not None

    def _find(self, fact: AllocationFact) -> Reservation | None:
        state = self._state
        self._known = self._count()
        limit = run_limit(fact, self._queue(fact))
        boxes = {
            each.fact.uid: ReservedSpan(each.start, each.ends, each.placed)
            for each in self._made
            if each.start is not None
        }
        found = self._earliest(fact, limit, list(boxes.values()))
        if found is not None:
            ends = None if limit is None else found.at + limit
            met = {uid: box.placed for uid, box in boxes.items() if box.overlaps(found.at, ends)}
            return Reservation(fact, found.at, ends, found.future, found.placed, state.removed(), found.within, met)
        if not self._is_aged(fact):
            return None
        within = None if state.windows is None else state.windows.open_at(fact, state.now)
        drained = self._drained(fact, within=within)
        if drained is None:
            return None
        return Reservation(fact, None, None, drained.future, drained.placed, state.removed(), within)

    def _earliest(self, fact: AllocationFact, limit: float | None, boxes: list[ReservedSpan]) -> EarliestStart | None:
        windows = self._state.windows
        if windows is not None and windows.binding(fact):
            return self._between_windows(fact, limit, boxes, windows)
        timeline = self._timeline_of()
        row = timeline.row_of(fact)
        if row is not None:
            known, _ = self._started()
            return timeline.earliest(fact, row, limit, known, boxes)
        known, _ = self._releases()
        steps = [ReleaseStep(self._state.now, ()), *steps_of(known, boxes)]
        return earliest(FuturePool(self._state), fact, limit, steps, boxes)

    def _between_windows(
        self, fact: AllocationFact, limit: float | None, boxes: list[ReservedSpan], windows: Windows
    ) -> EarliestStart | None:
        """Return the earliest start when windows close nodes for a time; a start that fits once may not fit later."""
        now = self._state.now
        known, _ = self._releases()
        ends = windows.ends_until(fact, max((each.at for each in known), default=now))
        steps = [ReleaseStep(now, ()), *steps_of(known, boxes, ends)]

        def open_at(at: float) -> Bools | None:
            return windows.open_at(fact, max(at, now))

        return earliest(FuturePool(self._state), fact, limit, steps, boxes, open_at=open_at)

    def _timeline_of(self) -> Timeline:
        if self._timeline is None:
            self._timeline = Timeline(self._state)
        return self._timeline

    def _drained(
        self, fact: AllocationFact, made: Callable[[WhatIf], WhatIf] | None = None, within: Bools | None = None
    ) -> EarliestStart | None:
        """Return the head's places if all work that may end had ended; None when it has none even then.

        The nodes are those that `made` returns, and only `within` if given.
        """
        future = FuturePool(self._state, made)
        for releases in self._releases():
            for release in releases:
                future.release(release)
        placed = future.place(fact, within)
        return None if placed is None else EarliestStart(self._state.now, future, placed)

    def _releases(self) -> tuple[list[FutureRelease], list[FutureRelease]]:
        """Return the releases with a known time, and those with an unknown time."""
        state = self._state
        known: list[FutureRelease] = []
        unknown: list[FutureRelease] = []

        for uid, holding in state.snapshot.holdings.items():
            ranks = state.left_of(holding)
            if ranks:
                fact = holding.allocation
                is_leaving = uid in state.evicted and not state.evicted[uid].ranks
                end = state.now if is_leaving else known_end(fact, self._queue(fact), state.now)
                release = FutureRelease(0.0 if end is None else end, fact.uid, holding, ranks)
                (unknown if end is None else known).append(release)
        started, endless = self._started()
        return [*known, *started], [*unknown, *endless]

    def _started(self) -> tuple[list[FutureRelease], list[FutureRelease]]:
        """Return the same two lists for the gangs that this tick admits."""
        known: list[FutureRelease] = []
        unknown: list[FutureRelease] = []
        for admitted in self._state.admitted:
            fact = admitted.placed.allocation
            end = ends_if_started(fact, self._queue(fact), self._state.now)
            release = FutureRelease(0.0 if end is None else end, fact.uid, admitted)
            (unknown if end is None else known).append(release)
        return known, unknown

    def _is_outdated(self) -> bool:
        return self._known != self._count()

    def _count(self) -> int:
        return len(self._state.admitted) + len(self._state.evicted)

    # --- work that passes ---------------------------------------------------------------------------------------------

    def _binding(self, fact: AllocationFact) -> list[Reservation]:
        """Return the reservations that `fact` might delay if it started now."""
        return self._bound_to(fact, ends_if_started(fact, self._queue(fact), self._state.now))

    def _bound_to(self, fact: AllocationFact, ends: float | None) -> list[Reservation]:
        """Return the reservations that `fact` might delay if it ran from now to `ends`."""
        found: list[Reservation] = []
        for each in self._made:
            if each.fact.uid == fact.uid:
                break  # the later reservations were made around its own
            if self._is_bound(fact, each) and not ends_before(ends, each):
                found.append(each)
        return found

    def _is_bound(self, fact: AllocationFact, reservation: Reservation) -> bool:
        return reservation.is_due or self._rank(fact) < self._rank(reservation.fact)

    def _rank(self, fact: AllocationFact) -> tuple[int, int, float]:
        queue = self._queue(fact)
        priority = priority_of(fact, self._state.snapshot.job_of(fact))
        return (queue.priority if queue else 0, priority, -self._since(fact))

    def _delayed_by(self, placed: gang.PlacedGang, binding: list[Reservation]) -> Reservation | None:
        """Return the reservation with the earliest start that `placed` would delay; None when it delays none."""
        delayed = [each for each in binding if not self._allows(each, placed)]
        return min(delayed, key=order_of, default=None)

    def _allows(self, reservation: Reservation, placed: gang.PlacedGang) -> bool:
        """Like `allows`, but ranks that were removed to make room for `placed` are treated as gone at that time too."""
        gone = self._gone_since(reservation)
        for release in gone:
            reservation.future.release(release)
        is_borne = allows(reservation, placed)
        for release in gone:
            reservation.future.restore(release)
        return is_borne

    def _gone_since(self, reservation: Reservation) -> list[FutureRelease]:
        state, start = self._state, reservation.start
        found: list[FutureRelease] = []
        for uid, ranks in state.removed().items():
            fresh = tuple(sorted(ranks - reservation.removed.get(uid, frozenset())))
            holding = state.snapshot.holdings.get(uid)
            if not fresh or holding is None or start is None:
                continue
            end = known_end(holding.allocation, self._queue(holding.allocation), state.now)
            if end is None or end > start:
                found.append(FutureRelease(start, uid, holding, fresh))
        return found

    def _is_included(self, placed: gang.PlacedGang, binding: list[Reservation], ends: float | None) -> bool:
        """Whether all reservations include a gang that is admitted next, and that runs until `ends`.

        Otherwise they are made again. `binding` include it already. A head that starts has a reservation no longer.
        """
        fact = placed.allocation
        own = next((at for at, each in enumerate(self._made) if each.fact.uid == fact.uid), None)
        before = self._made if own is None else self._made[:own]
        if not all(each in binding or ends_before(ends, each) for each in before):
            return False
        if own is None:
            return True
        head = self._made.pop(own)
        if head.start is None or head.start > self._state.now or head.ends != ends:
            return False
        return all(self._begins(head, placed, each) for each in self._made[own:])

    def _begins(self, head: Reservation, placed: gang.PlacedGang, later: Reservation) -> bool:
        """Whether a later reservation, which was made around that of `head`, includes that the head starts now."""
        reserved = later.met.pop(head.fact.uid, None)
        if reserved is None:
            return ends_before(head.ends, later)
        return later.future.begin(reserved, placed)

    def _elsewhere(self, fact: AllocationFact, demand: Resources, binding: list[Reservation]) -> gang.PlacedGang | None:
        """Return places for `demand`, taken, that delay no reserved start; None when there are none."""
        within = binding[0].future.open_nodes(fact)
        for each in binding[1:]:
            within &= each.future.open_nodes(fact)
        for _ in range(TRIES_MAX):
            placed = gang.place(self._state.whatif, fact, within)
            if isinstance(placed, gang.PlacementFailure):
                return None
            if placed.demand() == demand and self._delayed_by(placed, binding) is None:
                return placed
            self._state.withdraw(placed)
            within = without(within, placed)
        return None

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _queue(self, fact: AllocationFact) -> QueueFact | None:
        return self._state.tree.queue(fact.queue)

    def _is_aged(self, fact: AllocationFact) -> bool:
        aging = self._state.snapshot.pool.aging
        return 0 < aging <= self._state.now - self._since(fact)

    def _since(self, fact: AllocationFact) -> float:
        return fact.waiting_since or fact.created
