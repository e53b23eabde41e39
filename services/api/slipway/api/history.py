"""Which allocations stood where at a moment of the past. Pure.

From what the objects remember (the ring), what their streams remember beyond it, and what the firehose remembers of
objects that are gone. What none of them remembers is not made up: it is said to be unknown.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from slipway.api.queue_view import gpus_by_role
from slipway.crd.transitions import event_of, id_of, ring_of, user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event, Phase
from slipway.model.times import parse_time

UNKNOWN = "Unknown"


class PastAllocation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One allocation as it stood."""

    id: str
    name: str
    workspace: str
    user: str
    kind: str
    pool: str
    queue: str
    phase: str
    """Unknown when the transitions of that time are no longer kept"""
    attempt: int
    since: str
    """since when it stood so"""
    reason: str
    nodes: list[str]
    ranks: dict[str, int]
    """{node: how many of its ranks stood there}"""
    gpus: dict[str, int] | None
    """{node: whole devices that these ranks had}; null where that is not known any more"""
    source: str
    """object, stream or firehose: who remembers it"""


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` is by phase. `lossy` says what this answer cannot know."""

    at: str
    items: list[PastAllocation]
    counts: dict[str, int]
    lossy: list[str]


def needs_stream(allocation: Allocation, at: float) -> bool:
    """Whether the object itself no longer remembers the moment."""
    first = ring_of(allocation)[0]
    return first.seq > 1 and parse_time(first.time) > at


def existed(allocation: Allocation, at: float) -> bool:
    """Whether it was there."""
    stamp = allocation.metadata.creation_timestamp
    return bool(stamp) and parse_time(stamp or "") <= at


def of_object(allocation: Allocation, at: float, stream: Sequence[AllocationEvent] = ()) -> PastAllocation | None:
    """How it stood; None when it had ended. `stream` is read where the object is not enough."""
    events = list(stream) or [event_of(allocation, entry) for entry in ring_of(allocation)]
    spec = allocation.spec
    found = _at(events, at)
    if found is not None and found.phase is Phase.TERMINATED:
        return None
    ranks = _ranks(events, found)
    return PastAllocation(
        id=id_of(allocation),
        name=allocation.metadata.name,
        workspace=allocation.metadata.namespace,
        user=user_of(allocation),
        kind=spec.kind.value,
        pool=spec.pool,
        queue=spec.queue,
        phase=found.phase.value if found else UNKNOWN,
        attempt=found.attempt if found else 0,
        since=found.time if found else "",
        reason=found.reason if found else "",
        nodes=sorted(ranks),
        ranks=ranks,
        gpus=_gpus(allocation, found, ranks),
        source="stream" if stream else "object",
    )


def of_the_gone(events: Iterable[AllocationEvent], known: frozenset[str], at: float) -> list[PastAllocation]:
    """Those without an object: from the firehose alone, at least once and in no order over allocations."""
    by_id: dict[str, dict[int, AllocationEvent]] = {}
    for event in events:
        if event.allocation_id not in known:
            by_id.setdefault(event.allocation_id, {})[event.seq] = event
    found = [_of_events([each[seq] for seq in sorted(each)], at) for each in by_id.values()]
    return [standing for standing in found if standing is not None]


def counts(items: Iterable[PastAllocation]) -> dict[str, int]:
    """How many stood in each phase."""
    found: dict[str, int] = {}
    for each in items:
        found[each.phase] = found.get(each.phase, 0) + 1
    return dict(sorted(found.items()))


def _of_events(events: list[AllocationEvent], at: float) -> PastAllocation | None:
    found = _at(events, at)
    if found is None or found.phase is Phase.TERMINATED:
        return None
    ranks = _ranks(events, found)
    requested = next((event for event in events if event.type is Event.REQUESTED), None)
    born: dict[str, Any] = requested.data if requested is not None else {}
    return PastAllocation(
        id=found.allocation_id,
        name=found.name,
        workspace=found.namespace,
        user=str(born.get("user", "")),
        kind=str(born.get("kind", "")),
        pool=str(born.get("pool", "")),
        queue="",
        phase=found.phase.value,
        attempt=found.attempt,
        since=found.time,
        reason=found.reason,
        nodes=sorted(ranks),
        ranks=ranks,
        gpus=None if ranks else {},
        source="firehose",
    )


def _at(events: Sequence[AllocationEvent], at: float) -> AllocationEvent | None:
    """The last that had happened."""
    before = [event for event in events if event.time and parse_time(event.time) <= at]
    return before[-1] if before else None


def _ranks(events: Sequence[AllocationEvent], found: AllocationEvent | None) -> dict[str, int]:
    """Where it stood: the admission of that attempt names the nodes, each with how many ranks it has there."""
    if found is None or found.phase is Phase.PENDING:
        return {}
    for event in reversed(events):
        nodes = event.data.get("nodes")
        if event.attempt == found.attempt and event.type is Event.ASSIGNED and isinstance(nodes, dict):
            counts: dict[object, object] = nodes  # pyright: ignore[reportUnknownVariableType] - JSON
            return {str(node): count for node, count in sorted(counts.items(), key=str) if isinstance(count, int)}
    return {}


def _gpus(allocation: Allocation, found: AllocationEvent | None, ranks: dict[str, int]) -> dict[str, int] | None:
    """The devices of these ranks: by their places where the object still has those of that attempt, else by what each
    rank asks for, where all ask for the same."""
    if not ranks or found is None:
        return {}
    asks = gpus_by_role(allocation)
    admission = allocation.status.admission
    if admission is not None and admission.attempt == found.attempt and allocation.status.attempt == found.attempt:
        by_node = dict.fromkeys(ranks, 0)
        for placement in admission.placements:
            by_node[placement.node] = by_node.get(placement.node, 0) + asks.get(placement.role, 0)
        return by_node
    each = set(asks.values())
    if len(each) != 1:
        return None
    (size,) = each
    return {node: count * size for node, count in ranks.items()}
