"""Positions in a queue, as decimal numbers in text, and the one sort order of waiting allocations.

Pure. Owns the comparison of positions, the default position (the creation time), and the number between two neighbours.
A move writes one number, on the allocation that is moved; the others are not renumbered.

Invariant: `work_key` is a total order. The scheduler and every view of a queue use it, so that the displayed order is
the order in which allocations are considered.
"""

from decimal import Decimal, localcontext

POSITION_PATTERN = r"^([0-9]{1,20}(\.[0-9]{1,40})?)?$"
"""The form of a position. An empty one means that the allocation was never moved."""
STEP = Decimal(1000)
"""Distance of a new first or last position from its neighbour: one second, because default positions are
milliseconds."""
_OFFSET_MS = 10**14
_FRACTION_DIGITS_MAX = 40
_DIGITS_MAX = 20
_PRECISION = 80
_UID_DIGITS = 8
"""number of digits of the uid that the AllocationID contains"""
_UID_PLACES = 10
_UID_SCALE = 10 ** (_FRACTION_DIGITS_MAX - _UID_PLACES)

PlaceKey = tuple[int, int]
"""(whole part, fraction in units of the last digit that is allowed)"""
WorkKey = tuple[int, int, PlaceKey, int, int, int, str]
_AGED, _YOUNG = 0, 1


class NoRoomError(ValueError):
    """No number is left between two neighbours, or before the first."""


def default_position(created: float, uid: str = "") -> str:
    """Return the position of an allocation that was never moved: its creation time, so that all positions are
    comparable.

    Creation times are whole seconds. The uid distinguishes allocations of the same second, so that there are numbers
    between them.
    """
    whole, part = milliseconds(created) + _OFFSET_MS, _part_of(uid)
    return f"{whole:015d}.{part:0{_UID_PLACES}d}" if part else f"{whole:015d}"


def milliseconds(seconds: float) -> int:
    """Return a time in seconds as whole milliseconds; times are compared in this unit."""
    return round(seconds * 1000)


def place_key(position: str) -> PlaceKey:
    """Return the sort key of a position: the order of the numbers; a text that is no number sorts after all numbers."""
    whole, _, fraction = position.partition(".")
    if not (whole.isascii() and whole.isdigit()) or (fraction and not (fraction.isascii() and fraction.isdigit())):
        return (10 ** (_DIGITS_MAX + 1), 0)
    return (int(whole), int(fraction.ljust(_FRACTION_DIGITS_MAX, "0")) if fraction else 0)


def work_key(
    priority: int,
    position: str,
    *,
    weight: int,
    own: int,
    created: float,
    uid: str,
    aged_since: float | None = None,
) -> WorkKey:
    """Return the sort key within a queue, ascending: priority, position, the job's weight, own priority, age, uid.

    `priority` is the effective one (the job's when the job sets one), `own` that of the allocation; `position` may be
    empty. An aged allocation goes before all others; aged ones are ordered by the start of their wait (`aged_since`).
    """
    created_ms = milliseconds(created)
    # Most allocations were never moved, and there may be many. So their key is computed without a position as text.
    place = place_key(position) if position else (created_ms + _OFFSET_MS, _part_of(uid) * _UID_SCALE)
    if aged_since is not None:
        return (_AGED, milliseconds(aged_since), place, -weight, -own, created_ms, uid)
    return (_YOUNG, -priority, place, -weight, -own, created_ms, uid)


def ages_at(since: float, aging: float) -> float | None:
    """Return the time at which an allocation that waits since `since` has aged; None when `aging` (seconds) is off."""
    return since + aging if aging > 0 else None


def _part_of(uid: str) -> int:
    """Return a number that distinguishes objects, from the start of the uid; 0 when the uid does not have the form
    that Kubernetes gives it."""
    head, hyphen, _ = uid.partition("-")
    try:
        return int(head, 16) if hyphen and len(head) == _UID_DIGITS and head.isalnum() else 0
    except ValueError:
        return 0


def between(before: str | None, after: str | None) -> str:
    """Return a position between two others with as few digits as possible.

    When one of them is None, the position lies beyond the other.

    Raises:
        NoRoomError: there is no number between them, or the first position is 0.
    """
    with localcontext(prec=_PRECISION):
        high = None if after is None else Decimal(after)
        low = Decimal(before) if before is not None else None
        if high is None:
            return _text((low or Decimal(0)) + STEP)
        if low is None:
            # The new first position is one step before `after`, or between 0 and `after`.
            low = max(high - 2 * STEP, Decimal(0))
        middle = (low + high) / 2
        for digits in range(_FRACTION_DIGITS_MAX + 1):
            place = middle.quantize(Decimal(1).scaleb(-digits))
            if low < place < high:
                return _text(place)
    raise NoRoomError(f"there is no place left between {before or 'the beginning'} and {after}")


def _text(place: Decimal) -> str:
    text = f"{place:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
