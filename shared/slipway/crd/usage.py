"""What an allocation used, exactly, from the times of its transitions. Pure.

A stretch between two transitions counts for the phase that the first one led to, split at midnight (UTC). It counts
times the GPUs that were held while there was a place, so not while Pending, and by the flavor of these GPUs where the
admission names one. A MIG slice counts as the part of a GPU that it is: from one moment to another it counts the whole
milliseconds that lie between the two.

Invariants: the milliseconds of all days and phases add up to the time from the creation to the last transition (or to
the moment asked for); counting further and further gives what counting at once gives; no stretch counts twice.
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
"""So many transitions may stand in the ring uncounted: some room is left for those of one write."""
_NEVER_HELD = (Phase.PENDING, Phase.TERMINATED)


def day_of(at_ms: int) -> str:
    """The day (UTC) of a time in epoch milliseconds."""
    return format_time(at_ms / 1000, "seconds")[:10]


def ms_of(time: str) -> int:
    """Epoch milliseconds of an RFC 3339 time."""
    return round(parse_time(time) * 1000)


def carried(before: Allocation, after: Allocation) -> Allocation:
    """`after`, with what was used counted into it, when a transition would else leave the ring or the attempt ends.

    `before` is the object that was read; `after` has one transition more, or several.
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
    """{day: what it used}, up to `now` (epoch seconds) while it lives."""
    status = allocation.status
    known = status.usage or Usage()
    is_over = status.phase is Phase.TERMINATED
    until_ms = None if is_over else round(now * 1000)
    gpu_type = _gpu_type(allocation, allocation)
    units = gpu_units_of(status)
    return counted_up_to(known, ring_of(allocation), until_ms=until_ms, gpu_units=units, gpu_type=gpu_type).days


def gpu_units_of(status: AllocationStatus) -> int:
    """The GPUs that it holds or held, in `GPU_UNITS`: its slots, with the slices among them as what they are."""
    if not status.slices:
        return status.slots * GPU_UNITS
    slices = units_in(status.slices)
    return max(0, status.slots - whole_gpus(slices)) * GPU_UNITS + slices


def counted_up_to(
    known: Usage, entries: Sequence[RingEntry], *, until_ms: int | None, gpu_units: int, gpu_type: str = ""
) -> Usage:
    """`known` and what `entries` (oldest first) add to it, up to `until_ms` or, without it, the last of them.

    `gpu_units` (in `GPU_UNITS`) of the flavor `gpu_type` were held; it is empty where the pool has no flavors.
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
    """All of them together."""
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
    """Of the attempt that is counted: the one that ends, or goes on, with the write from `before` to `after`."""
    is_next = after.status.attempt > before.status.attempt
    admission = before.status.admission if is_next else after.status.admission or before.status.admission
    return admission.flavor if admission is not None else ""


def _joined(before: Allocation, after: Allocation) -> list[RingEntry]:
    """The transitions of both, oldest first: none is lost to the ring's length between the two."""
    old = ring_of(before)
    last = old[-1].seq
    return [*old, *(entry for entry in after.status.transitions if entry.seq > last)]


def _steps(entries: Sequence[RingEntry]) -> list[tuple[int, RingEntry]]:
    """(when, transition): a clock that was set back does not make a stretch negative."""
    steps: list[tuple[int, RingEntry]] = []
    at_ms = 0
    for entry in entries:
        if entry.time:
            at_ms = max(at_ms, ms_of(entry.time))
            steps.append((at_ms, entry))
    return steps


def _spend(days: dict[str, DayUsage], phase: str, begun_ms: int, ended_ms: int, *, gpus: tuple[int, str]) -> None:
    """Add a stretch to the days it lies in, in which `gpus` were held: (how many, in `GPU_UNITS`; flavor, or empty)."""
    units, flavor = gpus
    while begun_ms < ended_ms:
        midnight_ms = (begun_ms // DAY_MS + 1) * DAY_MS
        spent_ms = min(ended_ms, midnight_ms) - begun_ms
        name, until_ms = day_of(begun_ms), begun_ms + spent_ms
        # What begins where another ends counts no millisecond twice, and loses none.
        slot_ms = {phase: until_ms * units // GPU_UNITS - begun_ms * units // GPU_UNITS} if units else {}
        added = DayUsage(
            ms={phase: spent_ms},
            slot_ms=slot_ms,
            gpu_types={flavor: slot_ms} if slot_ms and flavor else {},
        )
        days[name] = sum_of([days.get(name, DayUsage()), added])
        begun_ms = until_ms


def _admissions(steps: Sequence[tuple[int, RingEntry]], counted_seq: int) -> list[tuple[int, int]]:
    """(when, how long it had waited) of each admission that is not counted yet."""
    found: list[tuple[int, int]] = []
    began_ms: int | None = None
    for at_ms, entry in steps:
        if entry.type in (Event.REQUESTED, Event.RESTARTED):
            began_ms = at_ms
        elif entry.type is Event.ASSIGNED and entry.seq > counted_seq:
            found.append((at_ms, at_ms - began_ms if began_ms is not None else 0))
    return found
