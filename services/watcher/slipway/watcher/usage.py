"""Computes the exact usage of one attempt from the times of its transitions.

Owns the sum of the ring's entries into seconds per phase. Pure. The usage of a whole allocation is the sum over its
`restarted` and `terminated` transitions, which contain these figures.
"""

from itertools import pairwise
from typing import Any

from slipway.crd.transitions import ring_of
from slipway.crd.v1alpha1 import Allocation, RingEntry
from slipway.model.lifecycle import Phase
from slipway.model.numbers import plain
from slipway.model.times import format_time, parse_time


def of_attempt(allocation: Allocation, until: float) -> dict[str, Any]:
    """Return {slots, seconds: {phase: seconds}} of the current attempt up to `until` (epoch seconds)."""
    until = parse_time(format_time(until))
    steps = [(entry.phase, parse_time(entry.time)) for entry in _of_attempt(allocation) if entry.time]
    seconds: dict[str, float] = {}
    for (phase, begun), (_, ended) in pairwise([*steps, (Phase.TERMINATED, until)]):
        seconds[phase.value] = seconds.get(phase.value, 0.0) + max(0.0, ended - begun)
    rounded = {phase: plain(round(spent, 3)) for phase, spent in seconds.items() if spent > 0}
    return {"slots": allocation.status.slots, "seconds": rounded}


def _of_attempt(allocation: Allocation) -> list[RingEntry]:
    return [entry for entry in ring_of(allocation) if entry.attempt == allocation.status.attempt]
