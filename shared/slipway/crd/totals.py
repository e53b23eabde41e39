"""Daily usage totals that outlive allocations: each allocation is added exactly once. Pure.

There is one ConfigMap per day in Slipway's namespace. An allocation is added before its last finalizer is removed. The
write that removes the finalizer also sets an annotation that marks the allocation as added. Until then, the totals
themselves contain the mark (`booked`). So a reader that lists the allocations first and then reads the totals counts
each allocation once.

Invariants: adding the same allocation again changes nothing. An allocation is removed from `booked` only when its
object has the mark or is deleted, and not before `FORGET_S` has passed (`HURRY_S` when there are very many).
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Set

import msgspec

from slipway.crd.figures import DayTotals, DayUsage, TotalsRow
from slipway.crd.meta import API_GROUP, RawObject
from slipway.crd.transitions import user_of
from slipway.crd.usage import day_of, ms_of, sum_of, used
from slipway.crd.v1alpha1 import Allocation
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
