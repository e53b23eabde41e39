"""Places in a queue: decimal numbers as text, and the one order of what waits.

Pure. Owns how places compare, the place of what was never moved (its time of creation), and the number between two
neighbours. Moving writes one number on what is moved and never renumbers the others.

Invariant: `work_key` is a total order; the scheduler and everything that shows a queue use it, so that what is shown is
what happens.
"""

from decimal import Decimal, localcontext

POSITION_PATTERN = r"^([0-9]{1,20}(\.[0-9]{1,40})?)?$"
"""Empty: never moved."""
STEP = Decimal(1000)
"""How far before the first or behind the last: a second, in the milliseconds of places that follow from times."""
_OFFSET_MS = 10**14
_FRACTION_DIGITS_MAX = 40
_DIGITS_MAX = 20
_PRECISION = 80
_UID_DIGITS = 8
"""of the uid: what its AllocationID shows of it"""
_UID_PLACES = 10
_UID_SCALE = 10 ** (_FRACTION_DIGITS_MAX - _UID_PLACES)

PlaceKey = tuple[int, int]
"""(whole, fraction in units of the last digit that there may be)"""
WorkKey = tuple[int, int, PlaceKey, int, int, int, str]
_AGED, _YOUNG = 0, 1


class NoRoomError(ValueError):
    """There is no number left between two neighbours, or before the first."""


def default_position(created: float, uid: str = "") -> str:
    """The place of what was never moved: its creation time, so that any place compares with any other.

    Objects are born in whole seconds; the uid tells those of one second apart, so that there is room between them.
    """
    whole, part = milliseconds(created) + _OFFSET_MS, _part_of(uid)
    return f"{whole:015d}.{part:0{_UID_PLACES}d}" if part else f"{whole:015d}"


def milliseconds(seconds: float) -> int:
    """Whole milliseconds of a time in seconds: what times are compared by."""
    return round(seconds * 1000)


def place_key(position: str) -> PlaceKey:
    """Orders places as the numbers that they are; what is no number comes behind all numbers."""
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
    """Ascending within a queue: priority, place, the job's weight, the allocation's own priority, age, uid.

    `priority` is what counts (the job's when it gives one), `own` the allocation's; `position` may be empty. What has
    aged goes before all that has not, and among its kind by the time since which it waits (`aged_since`).
    """
    created_ms = round(created * 1000)
    # Most were never moved, and there may be many: their place is not spelled out first.
    place = place_key(position) if position else (created_ms + _OFFSET_MS, _part_of(uid) * _UID_SCALE)
    if aged_since is not None:
        return (_AGED, milliseconds(aged_since), place, -weight, -own, created_ms, uid)
    return (_YOUNG, -priority, place, -weight, -own, created_ms, uid)


def ages_at(since: float, aging: float) -> float | None:
    """When what waits since then goes before all younger work; None where `aging` (seconds) is off."""
    return since + aging if aging > 0 else None


def _part_of(uid: str) -> int:
    """A number that is another one for another object; 0 when the uid is none of Kubernetes' own."""
    head, hyphen, _ = uid.partition("-")
    try:
        return int(head, 16) if hyphen and len(head) == _UID_DIGITS and head.isalnum() else 0
    except ValueError:
        return 0


def between(before: str | None, after: str | None) -> str:
    """The place in the middle of two, in as few digits as tell it apart; beyond one of them when the other is None.

    Raises:
        NoRoomError: they are as close as places can be, or the first stands at 0.
    """
    with localcontext(prec=_PRECISION):
        high = None if after is None else Decimal(after)
        low = Decimal(before) if before is not None else None
        if high is None:
            return _text((low or Decimal(0)) + STEP)
        if low is None:
            # The first: a step before it, or as far as numbers go down.
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
