"""The exact usage of an allocation, computed from the times of its transitions. Pure.

The time between two transitions belongs to the phase that the first one led to; it is split at midnight (UTC). GPU time
is this time multiplied by the GPUs that the allocation holds, so none while it is Pending. It is also summed by the
flavor of these GPUs, when the admission names one. The GPU time of a MIG slice is its part of a GPU; it is rounded in a
way that adjacent times add up without loss.

Invariants: the milliseconds of all days and phases add up to the time from the creation to the last transition (or to
the requested time). Counting in several steps gives the same result as counting at once. No time is counted twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from slipway.crd.figures import DayUsage, Milliseconds, Usage
from slipway.crd.transitions import ring_of, with_status
from slipway.crd.v1alpha1 import RING_LENGTH, Allocation, AllocationStatus, RingEntry
from slipway.model.lifecycle import Event, Phase
from slipway.model.mig import GPU_UNITS, units_in, whole_gpus
from slipway.model.times import format_time, parse_time

DAY_MS = 86_400_000
UNCOUNTED_MAX = RING_LENGTH - 4
"""The most uncounted transitions that may remain in the ring; the rest of the ring is room for those of one write."""
_NEVER_HELD = (Phase.PENDING, Phase.TERMINATED)


def day_of(at_ms: int) -> str:
    """Return the day (UTC) of a time in epoch milliseconds."""
    return format_time(at_ms / 1000, "seconds")[:10]


def ms_of(time: str) -> int:
    """Return the epoch milliseconds of an RFC 3339 time."""
    return round(parse_time(time) * 1000)


def carried(before: Allocation, after: Allocation) -> Allocation:
    """Return `after` with its usage brought up to date, if the attempt ends or the ring would lose uncounted
    transitions.

    The usage is also updated when the number of GPUs changes. Otherwise `after` is returned unchanged. `before` is the
    object that was read; `after` has at least one more transition.
    """
    is_over = after.status.phase is Phase.TERMINATED or after.status.attempt > before.status.attempt
    known = before.status.usage or Usage()
    entries = _joined(before, after)
    uncounted = sum(entry.seq > known.seq for entry in entries)
    held, later = gpu_units_of(before.status), gpu_units_of(after.status)
    has_other_gpus = bool(held) and later != held
    if not entries or not (is_over or has_other_gpus or uncounted > UNCOUNTED_MAX):
        return after
    units = held if has_other_gpus else later
    counted = counted_up_to(known, entries, until_ms=None, gpu_units=units, gpu_type=_gpu_type(before, after))
    return with_status(after, msgspec.structs.replace(after.status, usage=counted))


def used(allocation: Allocation, now: float) -> dict[str, DayUsage]:
    """Return {day: usage}, up to `now` (epoch seconds) if the allocation has not ended."""
    status = allocation.status
    known = status.usage or Usage()
    is_over = status.phase is Phase.TERMINATED
    until_ms = None if is_over else round(now * 1000)
    gpu_type = _gpu_type(allocation, allocation)
    units = gpu_units_of(status)
    return counted_up_to(known, ring_of(allocation), until_ms=until_ms, gpu_units=units, gpu_type=gpu_type).days


def gpu_units_of(status: AllocationStatus) -> int:
    """Return the GPUs that it holds or held, in `GPU_UNITS`: its slots, but each MIG slice only as its part of a
    GPU."""
    if not status.slices:
        return status.slots * GPU_UNITS
    slices = units_in(status.slices)
    return max(0, status.slots - whole_gpus(slices)) * GPU_UNITS + slices


def counted_up_to(
    known: Usage, entries: Sequence[RingEntry], *, until_ms: int | None, gpu_units: int, gpu_type: str = ""
) -> Usage:
    """Return `known` plus the usage of `entries` (oldest first), up to `until_ms`, or up to the last entry when it is
    None.

    The allocation held `gpu_units` (in `GPU_UNITS`) of the flavor `gpu_type`, which is empty when the pool has no
    flavors.
    """
    steps = _steps(entries)
    if not steps:
        return known
    last_ms = steps[-1][0]
    end_ms = last_ms if until_ms is None else max(until_ms, last_ms)
    done_ms = ms_of(known.until) if known.until else steps[0][0]
    days = dict(known.days)
    for (begun_ms, entry), (ended_ms, _) in pairwise([*steps, (end_ms, entries[-1])]):
        if entry.phase is not Phase.TERMINATED:
            held = 0 if entry.phase in _NEVER_HELD else gpu_units
            _spend(days, entry.phase.value, max(begun_ms, done_ms), ended_ms, gpus=(held, gpu_type))
    for at_ms, waited_ms in _admissions(steps, known.seq):
        day = days.get(day_of(at_ms), DayUsage())
        days[day_of(at_ms)] = msgspec.structs.replace(
            day, admitted=day.admitted + 1, waited_ms=day.waited_ms + waited_ms
        )
    until = format_time(max(end_ms, done_ms) / 1000)
    return Usage(seq=max(known.seq, entries[-1].seq), until=until, days=dict(sorted(days.items())))


def sum_of(parts: Iterable[DayUsage]) -> DayUsage:
    """Return the sum of `parts`."""
    found = DayUsage()
    for part in parts:
        found = DayUsage(
            ms=_plus(found.ms, part.ms),
            slot_ms=_plus(found.slot_ms, part.slot_ms),
            gpu_types={
                name: _plus(found.gpu_types.get(name, {}), part.gpu_types.get(name, {}))
                for name in sorted(found.gpu_types.keys() | part.gpu_types.keys())
            },
            admitted=found.admitted + part.admitted,
            waited_ms=found.waited_ms + part.waited_ms,
        )
    return found


def _plus(one: Mapping[str, int], other: Mapping[str, int]) -> Milliseconds:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted(one.keys() | other.keys())}


def _gpu_type(before: Allocation, after: Allocation) -> str:
    """Return the flavor of the attempt that is counted: the attempt that ends or continues with the write of
    `after`."""
    is_next = after.status.attempt > before.status.attempt
    admission = before.status.admission if is_next else after.status.admission or before.status.admission
    return admission.flavor if admission is not None else ""


def _joined(before: Allocation, after: Allocation) -> list[RingEntry]:
    """Return the transitions of both, oldest first, so that the limited ring of `after` loses none of them."""
    old = ring_of(before)
    last = old[-1].seq
    return [*old, *(entry for entry in after.status.transitions if entry.seq > last)]


def _steps(entries: Sequence[RingEntry]) -> list[tuple[int, RingEntry]]:
    """Return (time, transition) pairs. The times never decrease, so that a clock that was set back gives no negative
    time."""
    steps: list[tuple[int, RingEntry]] = []
    at_ms = 0
    for entry in entries:
        if entry.time:
            at_ms = max(at_ms, ms_of(entry.time))
            steps.append((at_ms, entry))
    return steps


def _spend(days: dict[str, DayUsage], phase: str, begun_ms: int, ended_ms: int, *, gpus: tuple[int, str]) -> None:
    """Add a period to the days that it covers. `gpus` were held in it: (number in `GPU_UNITS`, flavor or empty)."""
    units, flavor = gpus
    while begun_ms < ended_ms:
        midnight_ms = (begun_ms // DAY_MS + 1) * DAY_MS
        spent_ms = min(ended_ms, midnight_ms) - begun_ms
        name, until_ms = day_of(begun_ms), begun_ms + spent_ms
        # Both ends are rounded in the same way, so adjacent periods count no millisecond twice and lose none.
        slot_ms = {phase: until_ms * units // GPU_UNITS - begun_ms * units // GPU_UNITS} if units else {}
        added = DayUsage(
            ms={phase: spent_ms},
            slot_ms=slot_ms,
            gpu_types={flavor: slot_ms} if slot_ms and flavor else {},
        )
        days[name] = sum_of([days.get(name, DayUsage()), added])
        begun_ms = until_ms


def _admissions(steps: Sequence[tuple[int, RingEntry]], counted_seq: int) -> list[tuple[int, int]]:
    """Return (time, milliseconds of wait before it) for each admission that is not counted yet."""
    found: list[tuple[int, int]] = []
    began_ms: int | None = None
    for at_ms, entry in steps:
        if entry.type in (Event.REQUESTED, Event.RESTARTED):
            began_ms = at_ms
        elif entry.type is Event.ASSIGNED and entry.seq > counted_seq:
            found.append((at_ms, at_ms - began_ms if began_ms is not None else 0))
    return found
