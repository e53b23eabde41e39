"""One reservation, and whether something that starts now would delay it."""

import msgspec

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.reservation.future import Future
from slipway.scheduler.plan.state.nodes import Bools


class Reservation(msgspec.Struct):
    """Places for `fact` from `start` on (None: as soon as they are free)."""

    fact: AllocationFact
    start: float | None
    ends: float | None
    future: Future
    placed: gang.PlacedGang
    removed: dict[str, frozenset[int]]
    """{uid: ranks} that had been taken off when it was made"""
    within: Bools | None = None
    """the nodes that no window closes to the head at its start; None: all"""
    is_due: bool = True
    """its head has had its turn: whatever comes after, respects it"""


def bears(reservation: Reservation, placed: gang.PlacedGang) -> bool:
    """Whether the head has its start still with `placed` running then; it may have to take other places for it.

    Several roles are placed again even where nothing overlaps: which of them goes where depends on what is beside them.
    """
    future, head = reservation.future, reservation.placed
    is_simple = len(head.parts) == 1 and _is_alone(head.allocation) and _is_alone(placed.allocation)
    if is_simple and future.has_room_for(placed):
        return future.may_keep_beside(head.allocation, head.demand(), placed)
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
    """Whether its ranks look at nobody beside them, so that what fits beside it leaves it where it is."""
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
