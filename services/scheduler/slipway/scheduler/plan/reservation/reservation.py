"""One reservation, and whether work that starts now would delay it."""

import msgspec

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.reservation.future import FuturePool
from slipway.scheduler.plan.state.nodes import Bools


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
