"""The pool at a later instant: what still runs then, and what is reserved for heads of queues.

A future starts as a copy of the tick's nodes and is moved forward by releases. Of queues and job slots it stores only
the differences from now. It adds them to the tick's own counts while it checks quota and slots, and removes them again.
So what the tick admits is no difference any more. Invariant: the tick's state is left as it was found.
"""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.tick_state import Admitted, TickState
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.nodes import EVERY, Bools, Ints
from slipway.scheduler.plan.state.run_ends import RunEnds
from slipway.scheduler.plan.state.snapshot import Holding


class FutureRelease(msgspec.Struct, frozen=True):
    """A holding's `ranks`, or a gang of this tick, which releases its places at `at` (epoch seconds) at the latest."""

    at: float
    uid: str
    what: Holding | Admitted
    ranks: tuple[int, ...] = ()


def is_limited(state: TickState, fact: AllocationFact) -> bool:
    """Whether the use of other work limits what `fact` may use: a queue names a quota, or its job has `maxSlots`."""
    job = state.snapshot.job_of(fact)
    return bool(state.tree.named) or (job is not None and job.max_slots is not None)


class UseDelta:
    """The difference of queue and job use from now; negative amounts are less than now."""

    def __init__(self) -> None:
        self._moved: dict[tuple[str, bool], dict[str, int]] = {}
        """{(queue, preemptible): base units more than now}"""
        self._slots: dict[tuple[str, str], int] = {}

    def copy(self) -> "UseDelta":
        """Return an independent copy."""
        other = UseDelta()
        other._moved = {key: dict(amounts) for key, amounts in self._moved.items()}
        other._slots = dict(self._slots)
        return other

    def add(self, fact: AllocationFact, demand: Resources, times: int) -> None:
        """Add `times` times `demand` to the queue and job of `fact`."""
        amounts = self._moved.setdefault((fact.queue, fact.preemptible), {})
        known = amounts.get
        for name, amount in demand.amounts.items():
            amounts[name] = known(name, 0) + amount * times
        if fact.job:
            key = (fact.namespace, fact.job)
            self._slots[key] = self._slots.get(key, 0) + demand.gpus() * times

    def drop_rows(self, ends: RunEnds, rows: Ints) -> None:
        """Subtract the use of the ranks in `rows`, which have ended."""
        for use, count in ends.used_by(rows):
            amounts = self._moved.setdefault((use.queue, use.preemptible), {})
            for name, amount in use.amounts.items():
                amounts[name] = amounts.get(name, 0) - amount * count
            if use.job is not None:
                self._slots[use.job] = self._slots.get(use.job, 0) - use.gpus * count

    def may_use(self, state: TickState, fact: AllocationFact, demand: Resources) -> bool:
        """Whether `fact` may use `demand` then; the state is left as it was found."""
        if not is_limited(state, fact):
            return state.may_use(fact, demand) is None
        with self._applied_to(state):
            return state.may_use(fact, demand) is None

    @contextmanager
    def _applied_to(self, state: TickState) -> Generator[None]:
        slots = state.slots
        # The amounts are copied, because the tree assumes that a mapping it has seen does not change.
        moved = [(key, dict(amounts)) for key, amounts in sorted(self._moved.items()) if any(amounts.values())]
        for (queue, preemptible), amounts in moved:
            state.tree.take(queue, amounts, preemptible=preemptible)
        state.slots = slots | {job: slots.get(job, 0) + more for job, more in self._slots.items()}
        try:
            yield
        finally:
            state.slots = slots
            for (queue, preemptible), amounts in moved:
                state.tree.take(queue, {name: -amount for name, amount in amounts.items()}, preemptible=preemptible)


class FuturePool:
    """What a head of a queue would find at one later instant."""

    def __init__(self, state: TickState, made: Callable[[WhatIf], WhatIf] | None = None) -> None:
        """Start at now; `made` may return other nodes than the tick's, or the same with another policy for them."""
        self._state = state
        now = state.whatif if made is None else made(state.whatif)
        self.whatif = WhatIf(now.usage, now.policy, state.whatif.plan_extenders)
        self._counts = UseDelta()

    def copy(self) -> "FuturePool":
        """Return an independent copy."""
        other = FuturePool.__new__(FuturePool)
        other._state = self._state
        other.whatif = WhatIf(self.whatif.usage, self.whatif.policy, self.whatif.plan_extenders)
        other._counts = self._counts.copy()
        return other

    def release_rows(self, ends: RunEnds, rows: Ints) -> None:
        """Release the ranks in `rows`, which have ended."""
        ends.free(self.whatif.usage, rows)
        self._counts.drop_rows(ends, rows)

    def release(self, release: FutureRelease) -> None:
        """Release what has ended."""
        self._move(release, -1)

    def restore(self, release: FutureRelease) -> None:
        """Undo `release`."""
        self._move(release, 1)

    def _move(self, release: FutureRelease, times: int) -> None:
        what, usage = release.what, self.whatif.usage
        if isinstance(what, Admitted):
            for part in what.placed.parts:
                usage.take(part.row.request, part.nodes, times)
            self._count(what.placed.allocation, what.placed.demand(), times)
            return
        for rank in release.ranks:
            charge = what.charges[rank]
            node = usage.table.index.get(charge.node)
            if node is not None:
                usage.charge(charge, node, times)
        is_whole = len(release.ranks) == len(what.charges)
        used = Resources(what.used) if is_whole else what.used_by(release.ranks)
        self._count(what.allocation, used, times)

    def add(self, placed: gang.PlacedGang) -> None:
        """Take the places of a gang that runs then; it was placed on another what-if copy."""
        for part in placed.parts:
            self.whatif.usage.take(part.row.request, part.nodes)
        self._count(placed.allocation, placed.demand(), 1)

    def admit(self, placed: gang.PlacedGang, times: int = 1) -> None:
        """Take the places of a gang that this tick admits, and that still runs then; -1 undoes it.

        The tick adds its use to the present counts, so the difference from them does not change.
        """
        for part in placed.parts:
            self.whatif.usage.take(part.row.request, part.nodes, times)

    def begin(self, reserved: gang.PlacedGang, placed: gang.PlacedGang) -> bool:
        """Replace the places of an earlier head, which `add` took, by those that this tick admits it to.

        Return False when those are not free then; its reserved places are dropped even so.
        """
        self.drop(reserved)
        if [part.nodes for part in reserved.parts] != [part.nodes for part in placed.parts]:
            is_alike = reserved.demand() == placed.demand()
            if not is_alike or self.whatif.usage.pod_index.is_watched or not self._has_amounts_for(placed):
                return False
        self.admit(placed)
        return True

    def drop(self, placed: gang.PlacedGang) -> None:
        """Undo `add`, or the placing of a head."""
        for part in placed.parts:
            self.whatif.usage.take(part.row.request, part.nodes, -1)
        self._count(placed.allocation, placed.demand(), -1)

    def place(self, fact: AllocationFact, within: Bools | None = None) -> gang.PlacedGang | None:
        """Return places for `fact`, taken together with its quota and slots; None, with nothing changed, without."""
        if self._is_short(fact, within) or not self._may_use(fact, rank_request.smallest_demand(fact)):
            return None
        placed = gang.place(self.whatif, fact, within)
        if isinstance(placed, gang.PlacementFailure):
            return None
        demand = placed.demand()
        if not placed.is_as_wanted and not self._may_use(fact, demand):
            gang.withdraw(self.whatif, placed.parts)
            return None
        self._count(fact, demand, 1)
        return placed

    def _is_short(self, fact: AllocationFact, within: Bools | None) -> bool:
        """Whether amounts alone show that `fact` has no place; cheaper than a failed placement with its diagnosis."""
        if len(fact.roles) != 1 or self.whatif.plan_extenders is not None or self.whatif.usage.pod_index.is_watched:
            return False
        row, want = self._state.whatif.row(fact.roles[0]), rank_request.targets(fact)[0]
        room = self.whatif.usage.room(row.request, EVERY, want)
        return int(room[row.passed if within is None else row.passed & within].sum()) < want

    def has_room_for(self, placed: gang.PlacedGang) -> bool:
        """Whether all ranks of `placed` fit on their nodes, beside all that runs and is reserved; takes nothing."""
        usage = self.whatif.usage
        if not usage.pod_index.is_watched:
            return self._has_amounts_for(placed)
        taken: list[tuple[gang.PlacedRole, int]] = []
        is_room = True
        for part in placed.parts:
            row = self.whatif.row(part.role, part.row.request.avoid)
            for node in part.nodes:
                row.refresh()
                if not row.fits[node]:
                    is_room = False
                    break
                usage.take(row.request, [node])
                taken.append((part, node))
            if not is_room:
                break
        for part, node in taken:
            usage.take(part.row.request, [node], -1)
        return is_room

    def _has_amounts_for(self, placed: gang.PlacedGang) -> bool:
        """Like `has_room_for` for ranks that do not depend on the pods beside them; uses the rows of `placed`."""
        usage = self.whatif.usage
        if len(placed.parts) == 1:
            part = placed.parts[0]
            if len(part.nodes) == 1:
                return bool(part.row.passed[part.nodes[0]]) and usage.fits_on(part.row.request, part.nodes[0])
            counts = Counter(part.nodes)
            at = np.fromiter(counts, np.int64, len(counts))
            room = usage.room(part.row.request, at, max(counts.values(), default=0))
            return bool((part.row.passed[at] & (room >= list(counts.values()))).all())
        taken: list[tuple[gang.PlacedRole, int]] = []
        is_room = True
        for part in placed.parts:
            for node in part.nodes if is_room else ():
                is_room = bool(part.row.passed[node]) and usage.fits_on(part.row.request, node)
                if not is_room:
                    break
                usage.take(part.row.request, [node])
                taken.append((part, node))
        for part, node in taken:
            usage.take(part.row.request, [node], -1)
        return is_room

    def open_nodes(self, fact: AllocationFact) -> Bools:
        """Return the nodes with room for a rank of some role of `fact`."""
        rows = [self.whatif.row(role) for role in fact.roles]
        for row in rows:
            row.refresh()
        found = rows[0].fits.copy()
        for row in rows[1:]:
            found |= row.fits
        return found

    def may_keep_beside(self, head: gang.PlacedGang, placed: gang.PlacedGang) -> bool:
        """Whether `head`, which is counted here already, keeps its quota and slots if `placed` runs too."""
        fact, demand = head.allocation, head.demand
        if not is_limited(self._state, fact):
            return self._state.spaces is None or self._state.may_use(fact, demand()) is None
        self.add(placed)
        is_within = self.may_keep(fact, demand())
        self.drop(placed)
        return is_within

    def may_keep(self, fact: AllocationFact, demand: Resources) -> bool:
        """Whether `fact`, whose `demand` is counted here already, keeps its quota and slots."""
        self._count(fact, demand, -1)
        is_within = self._may_use(fact, demand)
        self._count(fact, demand, 1)
        return is_within

    def _may_use(self, fact: AllocationFact, demand: Resources) -> bool:
        return self._counts.may_use(self._state, fact, demand)

    def _count(self, fact: AllocationFact, demand: Resources, times: int) -> None:
        self._counts.add(fact, demand, times)
