"""Daily totals that outlive allocations: what is added to them, once, and when an allocation may be forgotten. Pure.

One ConfigMap a day in Slipway's namespace. An allocation is added before its last finalizer goes; the mark that says so
travels with the object (an annotation, set in the write that drops the finalizer), and until that is there, in the
totals themselves (`booked`). So a reader that lists the allocations first and then reads the totals counts each once.

Invariants: adding the same allocation again changes nothing; an allocation leaves `booked` only when its object carries
the mark or is gone, and not before `FORGET_S` has passed (`HURRY_S` when there are very many).
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
"""Much longer than any view of the cluster may lag, and than any reader takes."""
HURRY_S = 180
"""The same, when the totals grow towards what an object may hold: so many end at once."""
BYTES_HURRY = 600 * 1024
TOKEN_CHARS = 11
"""64 bits of a uid: two of one day hardly ever share them."""

Key = tuple[str, str, str, str, str]
"""workspace, user, pool, queue, kind"""


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """What one ended allocation adds to one day."""

    uid: str
    key: Key
    usage: DayUsage
    ended: bool


def name_of(day: str) -> str:
    """The ConfigMap of a day."""
    return f"slipway-usage-{day}"


def is_booked(allocation: Allocation) -> bool:
    """Whether the totals have it, by the mark on the object."""
    return allocation.metadata.annotations.get(ANNOTATION_USAGE) == BOOKED


def key_of(allocation: Allocation) -> Key:
    """Whose, and where."""
    spec = allocation.spec
    return allocation.metadata.namespace, user_of(allocation), spec.pool, spec.queue, spec.kind.value


def bills_of(allocation: Allocation) -> dict[str, Bill]:
    """{day: what it adds} of an allocation that has ended."""
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
    """A uid in few characters."""
    return base64.urlsafe_b64encode(hashlib.blake2b(uid.encode(), digest_size=8).digest()).decode()[:TOKEN_CHARS]


def tokens_in(totals: DayTotals) -> frozenset[str]:
    """Who stands in the totals, as far as they still say."""
    return frozenset(token for text in totals.booked.values() for token in _tokens(text))


def added(totals: DayTotals, bills: Iterable[Bill], now: float, unmarked: Set[str] | None) -> DayTotals | None:
    """`totals` with what is new of `bills`; None when nothing is.

    `unmarked` are the tokens of what has ended and does not carry the mark yet; None when that is not known.
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
    """What is still to be remembered of a minute."""
    if unmarked is None or (int(minute) + 1) * 60 > before:
        return text
    return "".join(token for token in _tokens(text) if token in unmarked)


def _tokens(text: str) -> list[str]:
    return [text[at : at + TOKEN_CHARS] for at in range(0, len(text), TOKEN_CHARS)]


def encode(totals: DayTotals) -> dict[str, str]:
    """As `data` of the ConfigMap."""
    return {DATA_KEY: msgspec.json.encode(totals).decode()}


def decode(data: Mapping[str, str]) -> DayTotals:
    """From `data` of the ConfigMap.

    Raises:
        msgspec.DecodeError: somebody has written something else there.
    """
    text = data.get(DATA_KEY, "")
    return msgspec.json.decode(text, type=DayTotals) if text else DayTotals()


def manifest(day: str, totals: DayTotals) -> RawObject:
    """The ConfigMap of a day that has none yet. It bears no label of what belongs to allocations: it outlives them."""
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
