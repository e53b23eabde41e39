"""What was used, by whom and on which day: from the daily totals, and from the objects that are not in them yet. Pure.

Invariant: an allocation that the totals of a day hold does not count again for that day, provided that the objects were
listed before the totals were read.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slipway.crd import totals
from slipway.crd.figures import DayTotals, DayUsage
from slipway.crd.totals import Key
from slipway.crd.usage import day_of, ms_of, sum_of, used
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase

_HOLDS_NOTHING = (Phase.PENDING, Phase.TERMINATED)


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What one key used on one day."""

    day: str
    key: Key
    usage: DayUsage
    ended: int = 0


def gather(
    days: Sequence[str], stored: Mapping[str, DayTotals], allocations: Iterable[Allocation], now: float
) -> list[Spent]:
    """Everything of these days. `allocations` were listed before `stored` was read."""
    found: list[Spent] = []
    for day, kept in stored.items():
        for row in kept.rows:
            key = (row.workspace, row.user, row.pool, row.queue, row.kind)
            found.append(Spent(day=day, key=key, usage=sum_of([row]), ended=row.ended))
    wanted = frozenset(days)
    booked = {day: totals.tokens_in(kept) for day, kept in stored.items()}
    for allocation in allocations:
        if totals.is_booked(allocation):
            continue
        end, token = _end_day(allocation), totals.token_of(allocation.metadata.uid)
        by_day = {**({end: DayUsage()} if end else {}), **used(allocation, now)}
        for day in by_day.keys() & wanted:
            if token not in booked.get(day, frozenset()):
                key = totals.key_of(allocation)
                found.append(Spent(day=day, key=key, usage=by_day[day], ended=int(day == end)))
    return found


def gpu_ms(spent: Iterable[Spent], pool: str) -> dict[str, dict[str, int]]:
    """{day: {queue: GPU-milliseconds}} of a pool."""
    found: dict[str, dict[str, int]] = {}
    for each in spent:
        _, _, of_pool, queue, _ = each.key
        if of_pool == pool:
            by_queue = found.setdefault(each.day, {})
            by_queue[queue] = by_queue.get(queue, 0) + sum(each.usage.slot_ms.values())
    return found


def gpus_held(allocations: Iterable[Allocation], pool: str) -> dict[str, int]:
    """{queue: GPUs that its work of this pool holds}."""
    found: dict[str, int] = {}
    for each in allocations:
        if each.spec.pool == pool and each.status.phase not in _HOLDS_NOTHING:
            found[each.spec.queue] = found.get(each.spec.queue, 0) + each.status.slots
    return found


def _end_day(allocation: Allocation) -> str:
    ended_at = allocation.status.ended_at
    return day_of(ms_of(ended_at)) if ended_at and allocation.status.phase is Phase.TERMINATED else ""
