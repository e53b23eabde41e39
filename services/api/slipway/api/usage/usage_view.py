"""Usage by user, workspace, pool and other dimensions. Pure.

The sums cover the daily totals and the usage that is not in them yet. Owns the grouping and the two forms of the answer
(JSON and CSV). Milliseconds are summed as whole numbers and shown as seconds.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from slipway.accounting import daily_totals
from slipway.accounting.daily_totals import KeyUsage
from slipway.accounting.usage import sum_of, used
from slipway.crd.figures import DayUsage
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase

PHASES = tuple(phase.value for phase in Phase if phase is not Phase.TERMINATED)
_KEY_NAMES = ("workspace", "user", "pool", "queue", "kind")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One group. `seconds` and `slotSecondsByPhase` are by phase. When grouped by gpuType, a row has only GPU time."""

    by: dict[str, str]
    ended: int
    admitted: int
    waited_seconds: float
    """how long the admitted allocations had waited"""
    running_seconds: float
    slot_seconds: float
    """GPUs times seconds, from the admission on"""
    seconds: dict[str, float]
    slot_seconds_by_phase: dict[str, float]


class UsageView(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """Usage from one day to another. Days are in UTC; both are included."""

    by: list[str]
    from_: str
    to: str
    items: list[UsageRow]
    total: UsageRow


class RawRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The usage of one allocation within the requested days."""

    id: str
    workspace: str
    user: str
    pool: str
    queue: str
    kind: str
    job: str
    phase: str
    result: str
    attempts: int
    created_at: str
    started_at: str
    ended_at: str
    waited_seconds: float
    running_seconds: float
    slot_seconds: float
    seconds: dict[str, float]


class RawView(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """Usage by allocation. Deleted allocations are only in the totals, not here."""

    from_: str
    to: str
    items: list[RawRow]


GPU_TYPE = "gpuType"
"""The dimension for sums by flavor. An allocation has one flavor, but a row of the totals may contain several."""
Wanted = Mapping[str, str]
"""{workspace, user, pool, queue or kind: the only value that is included}"""
DIMENSIONS: Mapping[str, Callable[[KeyUsage], str]] = {
    "day": lambda spent: spent.day,
    "month": lambda spent: spent.day[:7],
    "workspace": lambda spent: spent.key[0],
    "user": lambda spent: spent.key[1],
    "pool": lambda spent: spent.key[2],
    "queue": lambda spent: spent.key[3],
    "kind": lambda spent: spent.key[4],
    GPU_TYPE: lambda spent: next(iter(spent.usage.gpu_types), ""),
}


def is_wanted(spent: KeyUsage, wanted: Wanted) -> bool:
    """Whether the usage matches the requested workspace, user, pool, queue and kind."""
    return all(wanted.get(name, "") in ("", value) for name, value in zip(_KEY_NAMES, spent.key, strict=True))


def grouped(spent: Iterable[KeyUsage], by: Sequence[str]) -> list[UsageRow]:
    """Return one row for each group, sorted by the values of `by`."""
    groups: dict[tuple[str, ...], list[KeyUsage]] = {}
    for each in _by_gpu_type(spent) if GPU_TYPE in by else spent:
        groups.setdefault(tuple(DIMENSIONS[name](each) for name in by), []).append(each)
    return [_row(dict(zip(by, key, strict=True)), members) for key, members in sorted(groups.items())]


def _by_gpu_type(spent: Iterable[KeyUsage]) -> Iterable[KeyUsage]:
    """Yield the GPU time of each flavor separately, and the GPU time without a known flavor."""
    for each in spent:
        known = each.usage.gpu_types
        for name, slot_ms in known.items():
            usage = DayUsage(slot_ms=slot_ms, gpu_types={name: slot_ms})
            yield msgspec.structs.replace(each, usage=usage, ended=0)
        rest = {
            phase: left
            for phase, spent_ms in each.usage.slot_ms.items()
            if (left := spent_ms - sum(slot_ms.get(phase, 0) for slot_ms in known.values()))
        }
        if rest:
            yield msgspec.structs.replace(each, usage=DayUsage(slot_ms=rest), ended=0)


def whole(spent: Iterable[KeyUsage]) -> UsageRow:
    """Return the sum of all usage as one row."""
    return _row({}, list(spent))


def raw_rows(allocations: Iterable[Allocation], days: Sequence[str], wanted: Wanted, now: float) -> list[RawRow]:
    """Return one row for each matching allocation with usage on these days, oldest first."""
    span = frozenset(days)
    found: list[RawRow] = []
    for each in sorted(allocations, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name)):
        mine = [usage for day, usage in used(each, now).items() if day in span]
        if mine and is_wanted(KeyUsage(day="", key=daily_totals.key_of(each), usage=DayUsage()), wanted):
            found.append(_raw(each, sum_of(mine)))
    return found


def as_csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as CSV (RFC 4180). A text that a spreadsheet would treat as a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(head)
    writer.writerows([_safe(cell) for cell in row] for row in rows)
    return out.getvalue()


def usage_csv(rows: Sequence[UsageRow], by: Sequence[str]) -> str:
    """Format the groups as CSV."""
    phases = [f"{phase.lower()}_seconds" for phase in PHASES]
    head = [*by, "ended", "admitted", "waited_seconds", "slot_seconds", *phases]
    return as_csv(
        head,
        (
            [
                *(row.by[name] for name in by),
                row.ended,
                row.admitted,
                row.waited_seconds,
                row.slot_seconds,
                *(row.seconds.get(phase, 0.0) for phase in PHASES),
            ]
            for row in rows
        ),
    )


def raw_csv(rows: Sequence[RawRow]) -> str:
    """Format the allocations as CSV."""
    plain = [name for name in RawRow.__struct_fields__ if name != "seconds"]
    phases = [f"{phase.lower()}_seconds" for phase in PHASES if phase != Phase.RUNNING.value]
    others = [phase for phase in PHASES if phase != Phase.RUNNING.value]
    return as_csv(
        [*plain, *phases],
        ([*(getattr(row, name) for name in plain), *(row.seconds.get(one, 0.0) for one in others)] for row in rows),
    )


def _row(by: dict[str, str], members: Sequence[KeyUsage]) -> UsageRow:
    usage = sum_of(each.usage for each in members)
    return UsageRow(
        by=by,
        ended=sum(each.ended for each in members),
        admitted=usage.admitted,
        waited_seconds=usage.waited_ms / 1000,
        running_seconds=usage.ms.get(Phase.RUNNING.value, 0) / 1000,
        slot_seconds=sum(usage.slot_ms.values()) / 1000,
        seconds=_seconds(usage.ms),
        slot_seconds_by_phase=_seconds(usage.slot_ms),
    )


def _raw(allocation: Allocation, usage: DayUsage) -> RawRow:
    spec, status = allocation.spec, allocation.status
    return RawRow(
        id=id_of(allocation),
        workspace=allocation.metadata.namespace,
        user=user_of(allocation),
        pool=spec.pool,
        queue=spec.queue,
        kind=spec.kind.value,
        job=spec.job or "",
        phase=status.phase.value,
        result=status.result.value if status.result else "",
        attempts=status.attempt,
        created_at=allocation.metadata.creation_timestamp or "",
        started_at=status.started_at,
        ended_at=status.ended_at,
        waited_seconds=usage.waited_ms / 1000,
        running_seconds=usage.ms.get(Phase.RUNNING.value, 0) / 1000,
        slot_seconds=sum(usage.slot_ms.values()) / 1000,
        seconds=_seconds(usage.ms),
    )


def _seconds(ms: Mapping[str, int]) -> dict[str, float]:
    return {phase: spent / 1000 for phase, spent in ms.items()}


def _safe(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
