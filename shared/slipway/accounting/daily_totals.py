"""Daily usage totals that outlive allocations: each allocation is added exactly once. Pure.

There is one ConfigMap per day in Slipway's namespace. An allocation is added before its last finalizer is removed. The
write that removes the finalizer also sets an annotation that marks the allocation as added. Until then, the totals
themselves contain the mark (`booked`). So a reader that lists the allocations first and then reads the totals counts
each allocation once.

Invariants: adding the same allocation again changes nothing. An allocation is removed from `booked` only when its
object has the mark or is deleted, and not before `FORGET_S` has passed (`HURRY_S` when there are very many).

Usage by user and day comes from the daily totals, and from the allocations that are not in them yet.

Invariant: an allocation in the totals of a day is not counted again for that day, provided that the caller listed the
objects before it read the totals.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import msgspec

from slipway.accounting.usage import DAY_MS, day_of, gpu_units_of, ms_of, sum_of, used
from slipway.crd.figures import DayTotals, DayUsage, TotalsRow
from slipway.crd.meta import API_GROUP, RawObject
from slipway.crd.transitions import user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.decay import HALF_LIVES_READ, spread
from slipway.model.lifecycle import Phase

ANNOTATION_USAGE = f"{API_GROUP}/usage"
BOOKED = "booked"
LABEL_USAGE = f"{API_GROUP}/usage"
DATA_KEY = "totals"
FORGET_S = 600
"""Seconds for which the totals remember an allocation: much longer than a cached view may lag or a read may take."""
HURRY_S = 180
"""Seconds in place of `FORGET_S` when very many allocations end at once, so that the totals approach the size limit of
an object."""
BYTES_HURRY = 600 * 1024
TOKEN_CHARS = 11
"""Characters of a token, which is a 64-bit hash of a uid: two allocations of one day hardly ever have the same."""

Key = tuple[str, str, str, str, str]
"""workspace, user, pool, queue, kind"""


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """The usage that one ended allocation adds to the totals of one day."""

    uid: str
    key: Key
    usage: DayUsage
    ended: bool


def name_of(day: str) -> str:
    """Return the name of the ConfigMap of a day."""
    return f"slipway-usage-{day}"


def is_booked(allocation: Allocation) -> bool:
    """Whether the object has the mark that the totals contain the allocation."""
    return allocation.metadata.annotations.get(ANNOTATION_USAGE) == BOOKED


def key_of(allocation: Allocation) -> Key:
    """Return the key of the totals row for the allocation."""
    spec = allocation.spec
    return allocation.metadata.namespace, user_of(allocation), spec.pool, spec.queue, spec.kind.value


def bills_of(allocation: Allocation) -> dict[str, Bill]:
    """Return {day: bill} of an allocation that has ended; empty when it has not ended."""
    status = allocation.status
    if status.phase is not Phase.TERMINATED:
        return {}
    end = day_of(ms_of(status.ended_at)) if status.ended_at else ""
    days = used(allocation, 0.0)
    if end:
        days.setdefault(end, DayUsage())
    uid, key = allocation.metadata.uid, key_of(allocation)
    return {day: Bill(uid=uid, key=key, usage=usage, ended=day == end) for day, usage in sorted(days.items())}


def token_of(uid: str) -> str:
    """Return the token of a uid: a hash in few characters."""
    return base64.urlsafe_b64encode(hashlib.blake2b(uid.encode(), digest_size=8).digest()).decode()[:TOKEN_CHARS]


def tokens_in(totals: DayTotals) -> frozenset[str]:
    """Return the tokens of the allocations that the totals still remember."""
    return frozenset(token for text in totals.booked.values() for token in _tokens(text))


def added(totals: DayTotals, bills: Iterable[Bill], now: float, unmarked: Set[str] | None) -> DayTotals | None:
    """Return `totals` plus the bills that are new; None when no bill is new.

    `unmarked` are the tokens of ended allocations whose objects do not have the mark yet; None when they are not known.
    """
    booked = tokens_in(totals)
    fresh = {token: bill for bill in bills if (token := token_of(bill.uid)) not in booked}
    if not fresh:
        return None
    rows = {_key_of(row): row for row in totals.rows}
    for bill in fresh.values():
        rows[bill.key] = _with(rows.get(bill.key), bill)
    forget_s = HURRY_S if sum(map(len, totals.booked.values())) > BYTES_HURRY else FORGET_S
    kept = {at: left for at, text in totals.booked.items() if (left := _kept(at, text, now - forget_s, unmarked))}
    minute = str(int(now) // 60)
    kept[minute] = kept.get(minute, "") + "".join(fresh)
    return DayTotals(booked=kept, rows=[rows[key] for key in sorted(rows)])


def _kept(minute: str, text: str, before: float, unmarked: Set[str] | None) -> str:
    """Return the tokens of a minute that must still be remembered."""
    if unmarked is None or (int(minute) + 1) * 60 > before:
        return text
    return "".join(token for token in _tokens(text) if token in unmarked)


def _tokens(text: str) -> list[str]:
    return [text[at : at + TOKEN_CHARS] for at in range(0, len(text), TOKEN_CHARS)]


def encode(totals: DayTotals) -> dict[str, str]:
    """Return the totals as `data` of the ConfigMap."""
    return {DATA_KEY: msgspec.json.encode(totals).decode()}


def decode(data: Mapping[str, str]) -> DayTotals:
    """Return the totals in `data` of the ConfigMap.

    Raises:
        msgspec.DecodeError: the data are not totals: another writer has changed them.
    """
    text = data.get(DATA_KEY, "")
    return msgspec.json.decode(text, type=DayTotals) if text else DayTotals()


def manifest(day: str, totals: DayTotals) -> RawObject:
    """Return a new ConfigMap for a day.

    It has none of the labels of objects that belong to allocations, because it outlives them.
    """
    return {"metadata": {"name": name_of(day), "labels": {LABEL_USAGE: "true"}}, "data": encode(totals)}


def _key_of(row: TotalsRow) -> Key:
    return row.workspace, row.user, row.pool, row.queue, row.kind


def _with(row: TotalsRow | None, bill: Bill) -> TotalsRow:
    workspace, user, pool, queue, kind = bill.key
    usage = bill.usage if row is None else sum_of([row, bill.usage])
    return TotalsRow(
        workspace=workspace,
        user=user,
        pool=pool,
        queue=queue,
        kind=kind,
        ended=(row.ended if row else 0) + bill.ended,
        ms=usage.ms,
        slot_ms=usage.slot_ms,
        gpu_types=usage.gpu_types,
        admitted=usage.admitted,
        waited_ms=usage.waited_ms,
    )


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
        found.append(KeyUsage(day=day, key=key_of(allocation), usage=usage, ended=int(is_end)))
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
    return frozenset(day for each in allocations if not is_booked(each) for day in used(each, now))


def _not_in_totals(
    days: Sequence[str], stored: Mapping[str, DayTotals], allocations: Iterable[Allocation], now: float
) -> Iterator[tuple[Allocation, str, DayUsage]]:
    """Yield (allocation, day, usage) for the usage that is not in the totals."""
    wanted = frozenset(days)
    booked = {day: tokens_in(kept) for day, kept in stored.items()}
    for allocation in allocations:
        if is_booked(allocation):
            continue
        end, token = _end_day(allocation), token_of(allocation.metadata.uid)
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
