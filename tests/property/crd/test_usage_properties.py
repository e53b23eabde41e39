"""Any history of transitions adds up exactly, over midnights, attempts and more transitions than the ring holds."""

from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slipway.accounting.usage import DAY_MS, carried, day_of, sum_of, used
from slipway.crd.figures import DayUsage
from slipway.crd.transitions import record, with_status
from slipway.crd.v1alpha1 import Admission, Allocation
from slipway.model.lifecycle import Event, Phase, advance, is_legal
from slipway.model.mig import GPU_UNITS
from slipway.model.times import format_time

BORN_S = 1_767_312_000.0  # 2026-01-02T00:00:00Z
GAPS_MS = st.one_of(
    st.integers(0, 5_000), st.integers(0, 3 * DAY_MS), st.sampled_from([0, DAY_MS, DAY_MS - 1, 12 * 3_600_000])
)
SLICE = "nvidia.com/mig-1g.10gb"
EVENTS = [event for event in Event if event is not Event.REQUESTED]


class Step(msgspec.Struct, frozen=True):
    """One transition; `joins`: it is written together with the one before it; `flavor` belongs to an admission.
    `sevenths` are the slices of 1/7 among its devices."""

    event: Event
    at_ms: int
    slots: int
    sevenths: int
    joins: bool
    flavor: str

    @property
    def units(self) -> int:
        return (self.slots - -(-self.sevenths // 7)) * GPU_UNITS + self.sevenths * GPU_UNITS // 7


def born() -> Allocation:
    meta = {"name": "a", "namespace": "default", "uid": "a-uid", "creationTimestamp": format_time(BORN_S, "seconds")}
    return msgspec.convert({"metadata": meta, "spec": {"kind": "command"}}, Allocation)


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Legal steps, up to 60; an attempt gets its slots in its first step after the admission and keeps them."""
    steps: list[Step] = []
    phase, at_ms, slots, sevenths = Phase.PENDING, round(BORN_S * 1000), 0, 0
    for _ in range(draw(st.integers(0, 60))):
        choices = [event for event in EVENTS if is_legal(phase, event)]
        if not choices:
            break
        waiting = [event for event in choices if event is Event.UPDATED]
        event = draw(st.sampled_from(choices + waiting))
        at_ms += draw(GAPS_MS)
        phase = advance(phase, event)
        joins = draw(st.booleans()) and event is not Event.RESTARTED and bool(steps)
        joins = joins and steps[-1].event is not Event.RESTARTED
        if event is Event.RESTARTED:
            slots = sevenths = 0
        elif slots == 0 and phase in (Phase.PULLING, Phase.STARTING, Phase.RUNNING):
            sevenths = draw(st.integers(0, 10))
            slots = draw(st.integers(0, 8)) + -(-sevenths // 7)
        flavor = draw(st.sampled_from(["", "h100", "a100"])) if event is Event.ASSIGNED else ""
        steps.append(Step(event, at_ms, slots, sevenths, joins, flavor))
    return steps


def writes(steps: list[Step]) -> Iterator[list[Step]]:
    """The steps of one write, at most three."""
    batch: list[Step] = []
    for step in steps:
        if batch and not (step.joins and len(batch) < 3):
            yield batch
            batch = []
        batch.append(step)
    if batch:
        yield batch


def written(found: Allocation, batch: list[Step]) -> Allocation:
    after = found
    for step in batch:
        changes: dict[str, Any] = {"slots": step.slots, "slices": {SLICE: step.sevenths} if step.sevenths else {}}
        if step.event is Event.TERMINATED:
            changes["ended_at"] = format_time(step.at_ms / 1000)
        if step.event is Event.ASSIGNED:
            changes["admission"] = Admission(decision_id="d1", epoch=1, flavor=step.flavor)
        if step.event is Event.RESTARTED:
            changes["admission"] = None
        after = record(after, step.event, now=step.at_ms / 1000, **changes)
    return carried(found, after)


def by_hand(steps: list[Step], end_ms: int) -> dict[str, DayUsage]:
    """The usage from the whole list, stretch by stretch and day by day."""
    attempts: list[list[Step]] = [[]]
    for step in steps:
        attempts[-1].append(step)
        if step.event is Event.RESTARTED:
            attempts.append([])
    ms: dict[tuple[str, str], int] = {}
    slot_ms: dict[tuple[str, str], int] = {}
    by_type: dict[tuple[str, str], dict[str, int]] = {}
    phase, since = Phase.PENDING, round(BORN_S * 1000)

    def spend(until: int, units: int, flavor: str) -> None:
        at = since
        while at < until:
            stop = min(until, (at // DAY_MS + 1) * DAY_MS)
            key = (day_of(at), phase.value)
            ms[key] = ms.get(key, 0) + stop - at
            if units and phase is not Phase.PENDING:
                held_ms = stop * units // GPU_UNITS - at * units // GPU_UNITS
                slot_ms[key] = slot_ms.get(key, 0) + held_ms
                if flavor:
                    of_type = by_type.setdefault((key[0], flavor), {})
                    of_type[phase.value] = of_type.get(phase.value, 0) + held_ms
            at = stop

    for attempt in attempts:
        held, flavor = max((step.units for step in attempt), default=0), flavor_of(attempt)
        for step in attempt:
            spend(step.at_ms, held, flavor)
            phase, since = advance(phase, step.event), step.at_ms
    if phase is not Phase.TERMINATED:
        spend(end_ms, max((step.units for step in attempts[-1]), default=0), flavor_of(attempts[-1]))
    days = sorted({day for day, _ in ms})
    return {
        day: DayUsage(
            ms={name: spent for (on, name), spent in sorted(ms.items()) if on == day},
            slot_ms={name: spent for (on, name), spent in sorted(slot_ms.items()) if on == day},
            gpu_types={name: spent for (on, name), spent in sorted(by_type.items()) if on == day},
        )
        for day in days
    }


def flavor_of(attempt: list[Step]) -> str:
    """The flavor of its admission, which is made once."""
    return next((step.flavor for step in attempt if step.flavor), "")


def without_counts(days: dict[str, DayUsage]) -> dict[str, DayUsage]:
    bare = {day: msgspec.structs.replace(usage, admitted=0, waited_ms=0) for day, usage in days.items()}
    return {day: usage for day, usage in bare.items() if usage != DayUsage()}


@given(histories(), GAPS_MS)
def test_any_history_adds_up_exactly(steps: list[Step], later_ms: int) -> None:
    """The stored and the read usage equal the sum over all transitions at any time, to the millisecond."""
    found = born()
    for batch in writes(steps):
        found = written(found, batch)
    end_ms = (steps[-1].at_ms if steps else round(BORN_S * 1000)) + later_ms
    assert without_counts(used(found, end_ms / 1000)) == by_hand(steps, end_ms)
    whole = sum_of(used(found, end_ms / 1000).values())
    is_over = found.status.phase is Phase.TERMINATED
    until_ms = steps[-1].at_ms if is_over else end_ms
    assert sum(whole.ms.values()) == until_ms - round(BORN_S * 1000)
    assert whole.admitted == sum(step.event is Event.ASSIGNED for step in steps)


@given(histories())
def test_waits_are_those_before_the_admissions(steps: list[Step]) -> None:
    """A wait lasts from the beginning of the attempt to its admission, on the day of the admission."""
    found, expected, began_ms = born(), 0, round(BORN_S * 1000)
    for batch in writes(steps):
        found = written(found, batch)
    for step in steps:
        if step.event is Event.RESTARTED:
            began_ms = step.at_ms
        elif step.event is Event.ASSIGNED:
            expected += step.at_ms - began_ms
    moment = (steps[-1].at_ms if steps else began_ms) / 1000
    assert sum_of(used(found, moment).values()).waited_ms == expected


@given(histories())
def test_a_repeated_write_counts_nothing_twice(steps: list[Step]) -> None:
    """Adding the same transitions again changes nothing."""
    found = born()
    for batch in writes(steps):
        found = written(found, batch)
        assert carried(found, found).status.usage == found.status.usage or found.status.phase is Phase.PENDING
        again = carried(found, with_status(found, found.status))
        assert used(again, 0.0) == used(found, 0.0)
