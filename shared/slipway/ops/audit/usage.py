"""Checks of accounting: at rest, the daily totals contain each ended allocation once, to the millisecond.

I26. Pure: evidence in, violations out.
"""

from collections.abc import Iterator

import msgspec

from slipway.crd.figures import DayTotals, DayUsage, TotalsRow
from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.crd.totals import LABEL_USAGE, Key, bills_of, decode, name_of
from slipway.crd.usage import sum_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import CONFIG_MAPS, AuditEvidence, InvariantViolation

Sums = dict[tuple[str, Key], tuple[DayUsage, int]]
"""{(day, key of a totals row): (usage, number of ended allocations)}."""


def usage_is_exact(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I26: the totals are the sum of all finished allocations: nothing is missing, nothing is counted twice."""
    expected, found = _expected(evidence), _found(evidence)
    for key in sorted(expected.keys() | found.keys()):
        if expected.get(key) != found.get(key):
            day, whose = key
            message = f"{day}: the totals say {found.get(key)}, but the allocations say {expected.get(key)}"
            yield InvariantViolation(invariant="I26", subject="/".join(whose), message=message)


def was_released(history: list[Allocation]) -> bool:
    """Whether the allocation ended and had the last finalizer, which is removed now."""
    last = history[-1]
    had_it = any(TEARDOWN_FINALIZER in each.metadata.finalizers for each in history)
    return had_it and last.status.phase is Phase.TERMINATED and TEARDOWN_FINALIZER not in last.metadata.finalizers


def _expected(evidence: AuditEvidence) -> Sums:
    sums: Sums = {}
    for versions in evidence.allocations.values():
        history = [each.allocation for each in versions]
        if versions[-1].version.is_deletion:
            # Its last state still shows the finalizer, because removing the finalizer was the deletion.
            history[-1] = _unheld(history[-1])
        if not was_released(history):
            continue
        for day, bill in bills_of(history[-1]).items():
            usage, ended = sums.get((day, bill.key), (DayUsage(), 0))
            sums[day, bill.key] = (sum_of([usage, bill.usage]), ended + bill.ended)
    return sums


def _unheld(allocation: Allocation) -> Allocation:
    meta = msgspec.structs.replace(allocation.metadata, finalizers=[])
    return msgspec.structs.replace(allocation, metadata=meta)


def _found(evidence: AuditEvidence) -> Sums:
    sums: Sums = {}
    for version in evidence.last((CONFIG_MAPS,)).values():
        if LABEL_USAGE not in version.obj["metadata"].get("labels", {}):
            continue
        day = version.name.removeprefix(name_of(""))
        totals: DayTotals = decode(version.obj.get("data", {}))
        for row in totals.rows:
            sums[day, _key_of(row)] = (sum_of([row]), row.ended)
    return sums


def _key_of(row: TotalsRow) -> Key:
    return row.workspace, row.user, row.pool, row.queue, row.kind
