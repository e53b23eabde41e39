"""Usage by user and day: from the daily totals, and from the allocations that are not in them yet. Pure.

Invariant: an allocation in the totals of a day is not counted again for that day, provided that the caller listed the
objects before it read the totals.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from slipway.crd import totals
from slipway.crd.figures import DayTotals, DayUsage
from slipway.crd.totals import Key
from slipway.crd.transitions import user_of
from slipway.crd.usage import DAY_MS, day_of, gpu_units_of, ms_of, sum_of, used
from slipway.crd.v1alpha1 import Allocation
from slipway.model.decay import HALF_LIVES_READ, spread
from slipway.model.lifecycle import Phase

_HOLDS_NOTHING = (Phase.PENDING, Phase.TERMINATED)


class KeyUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one key on one day."""

    day: str
    key: Key
    usage: DayUsage
    ended: int = 0


def usage_by_key(
    days: Sequence[str], stored: Mapping[str, DayTotals], allocations: Iterable[Allocation], now: float
) -> list[KeyUsage]:
    """Return all usage of these days. `allocations` were listed before `stored` was read."""
    found: list[KeyUsage] = []
    for day, kept in stored.items():
        for row in kept.rows:
            key = (row.workspace, row.user, row.pool, row.queue, row.kind)
            found.append(KeyUsage(day=day, key=key, usage=sum_of([row]), ended=row.ended))
    for allocation, day, usage in _not_in_totals(days, stored, allocations, now):
        is_end = day == _end_day(allocation)
        found.append(KeyUsage(day=day, key=totals.key_of(allocation), usage=usage, ended=int(is_end)))
    return found


class UsageInterval(msgspec.Struct, frozen=True, kw_only=True):
    """GPU time that a user used in a queue, evenly between two times (epoch milliseconds)."""

    day: str
    queue: str
    user: str
    gpu_ms: int
    begin_ms: int
    end_ms: int


def usage_intervals(
    days: Sequence[str], stored: Mapping[str, DayTotals], allocations: Iterable[Allocation], pool: str, now: float
) -> Iterator[UsageInterval]:
    """Yield the GPU time of a pool on these days. `allocations` were listed before `stored` was read.

    GPU time from the totals is spread evenly over its day. GPU time of an allocation that is not in the totals is
    spread over the part of the day between its creation and its end.
    """
    now_ms = round(now * 1000)
    for day in days:
        sums: dict[tuple[str, str], int] = {}
        for row in stored[day].rows if day in stored else ():
            if row.pool == pool:
                sums[row.queue, row.user] = sums.get((row.queue, row.user), 0) + sum(row.slot_ms.values())
        begin_ms, end_ms = _bounds(day, now_ms)
        for (queue, user), gpu_ms in sorted(sums.items()):
            if gpu_ms:
                yield UsageInterval(day=day, queue=queue, user=user, gpu_ms=gpu_ms, begin_ms=begin_ms, end_ms=end_ms)
    own = (each for each in allocations if each.spec.pool == pool)
    for allocation, day, usage in _not_in_totals(days, stored, own, now):
        gpu_ms = sum(usage.slot_ms.values())
        if gpu_ms:
            begin_ms, end_ms = _bounds(day, now_ms)
            yield UsageInterval(
                day=day,
                queue=allocation.spec.queue,
                user=user_of(allocation),
                gpu_ms=gpu_ms,
                begin_ms=max(begin_ms, ms_of(allocation.metadata.creation_timestamp or f"{day}T00:00:00Z")),
                end_ms=min(end_ms, ms_of(allocation.status.ended_at)) if allocation.status.ended_at else end_ms,
            )


def undecayed_days(now: float, half_life_ms: int) -> list[str]:
    """Return the days (UTC) whose usage has not fully decayed at `now`, the newest last."""
    now_ms = round(now * 1000)
    first = (now_ms - HALF_LIVES_READ * half_life_ms) // DAY_MS * DAY_MS
    return [day_of(at_ms) for at_ms in range(max(0, first), now_ms + 1, DAY_MS)]


def add_decayed(
    used: dict[str, dict[str, int]], found: Iterable[UsageInterval], now: float, half_life_ms: int
) -> dict[str, dict[str, int]]:
    """Add the decayed usage of `found` at `now` to `used` ({queue: {user: GPU-milliseconds}}), and return `used`."""
    now_ms = round(now * 1000)
    for each in found:
        left = spread(each.gpu_ms, each.begin_ms, each.end_ms, now_ms, half_life_ms)
        users = used.setdefault(each.queue, {})
        users[each.user] = users.get(each.user, 0) + left
    return used


def days_open(allocations: Iterable[Allocation], now: float) -> frozenset[str]:
    """Return the days whose totals may still grow by these allocations."""
    return frozenset(day for each in allocations if not totals.is_booked(each) for day in used(each, now))


def _not_in_totals(
    days: Sequence[str], stored: Mapping[str, DayTotals], allocations: Iterable[Allocation], now: float
) -> Iterator[tuple[Allocation, str, DayUsage]]:
    """Yield (allocation, day, usage) for the usage that is not in the totals."""
    wanted = frozenset(days)
    booked = {day: totals.tokens_in(kept) for day, kept in stored.items()}
    for allocation in allocations:
        if totals.is_booked(allocation):
            continue
        end, token = _end_day(allocation), totals.token_of(allocation.metadata.uid)
        by_day = {**({end: DayUsage()} if end else {}), **used(allocation, now)}
        for day in by_day.keys() & wanted:
            if token not in booked.get(day, frozenset()):
                yield allocation, day, by_day[day]


def _bounds(day: str, now_ms: int) -> tuple[int, int]:
    """Return the start of the day, and its end or, if earlier, the time now."""
    begin_ms = ms_of(f"{day}T00:00:00Z")
    return begin_ms, max(begin_ms, min(begin_ms + DAY_MS, now_ms))


def gpu_ms(spent: Iterable[KeyUsage], pool: str) -> dict[str, dict[str, int]]:
    """Return {day: {queue: GPU-milliseconds}} of a pool."""
    found: dict[str, dict[str, int]] = {}
    for each in spent:
        _, _, of_pool, queue, _ = each.key
        if of_pool == pool:
            by_queue = found.setdefault(each.day, {})
            by_queue[queue] = by_queue.get(queue, 0) + sum(each.usage.slot_ms.values())
    return found


def gpus_held(allocations: Iterable[Allocation], pool: str) -> dict[str, int]:
    """Return {queue: GPUs that its allocations in this pool hold, in `GPU_UNITS`}."""
    found: dict[str, int] = {}
    for each in allocations:
        if each.spec.pool == pool and each.status.phase not in _HOLDS_NOTHING:
            found[each.spec.queue] = found.get(each.spec.queue, 0) + gpu_units_of(each.status)
    return found


def _end_day(allocation: Allocation) -> str:
    ended_at = allocation.status.ended_at
    return day_of(ms_of(ended_at)) if ended_at and allocation.status.phase is Phase.TERMINATED else ""
