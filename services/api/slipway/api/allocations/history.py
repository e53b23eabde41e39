"""The allocations and their phases at a past moment. Pure.

The sources are the transitions in the objects (the ring), older transitions in their streams, and the firehose for
deleted objects. A phase that no source has is reported as unknown.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from slipway.api.queues.queue_view import gpus_by_role
from slipway.crd.transitions import event_of, id_of, ring_of, user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event, Phase
from slipway.model.times import parse_time

UNKNOWN = "Unknown"


class PastAllocation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One allocation as it was at the moment."""

    id: str
    name: str
    workspace: str
    user: str
    kind: str
    pool: str
    queue: str
    phase: str
    """the phase; Unknown when the transitions of that time are no longer stored"""
    attempt: int
    since: str
    """when this phase began"""
    reason: str
    nodes: list[str]
    ranks: dict[str, int]
    """{node: number of its ranks on the node}"""
    gpus: dict[str, int] | None
    """{node: number of whole devices of these ranks}; null when that is not known any more"""
    source: str
    """the source of this item: object, stream or firehose"""


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The allocations at a moment. `counts` is by phase; `lossy` lists what this answer may lack."""

    at: str
    items: list[PastAllocation]
    counts: dict[str, int]
    lossy: list[str]


def needs_stream(allocation: Allocation, at: float) -> bool:
    """Whether the object's ring no longer has the transitions of the moment."""
    first = ring_of(allocation)[0]
    return first.seq > 1 and parse_time(first.time) > at


def existed(allocation: Allocation, at: float) -> bool:
    """Whether the allocation existed at the moment."""
    stamp = allocation.metadata.creation_timestamp
    return bool(stamp) and parse_time(stamp or "") <= at


def of_object(allocation: Allocation, at: float, stream: Sequence[AllocationEvent] = ()) -> PastAllocation | None:
    """Return the allocation at the moment; None when it had ended. `stream` replaces the ring when it is not empty."""
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


def of_deleted(events: Iterable[AllocationEvent], known: frozenset[str], at: float) -> list[PastAllocation]:
    """Return the allocations without an object, from events of the firehose.

    Events may repeat, and have no order between allocations.
    """
    by_id: dict[str, dict[int, AllocationEvent]] = {}
    for event in events:
        if event.allocation_id not in known:
            by_id.setdefault(event.allocation_id, {})[event.seq] = event
    found = [_of_events([each[seq] for seq in sorted(each)], at) for each in by_id.values()]
    return [standing for standing in found if standing is not None]


def counts(items: Iterable[PastAllocation]) -> dict[str, int]:
    """Return {phase: number of allocations}."""
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
    """Return the last event before the moment; None when there is none."""
    before = [event for event in events if event.time and parse_time(event.time) <= at]
    return before[-1] if before else None


def _ranks(events: Sequence[AllocationEvent], found: AllocationEvent | None) -> dict[str, int]:
    """Return {node: number of ranks} by the admission of the attempt; empty while pending, or when it is unknown."""
    if found is None or found.phase is Phase.PENDING:
        return {}
    for event in reversed(events):
        nodes = event.data.get("nodes")
        if event.attempt == found.attempt and event.type is Event.ASSIGNED and isinstance(nodes, dict):
            counts: dict[object, object] = nodes  # pyright: ignore[reportUnknownVariableType] - JSON
            return {str(node): count for node, count in sorted(counts.items(), key=str) if isinstance(count, int)}
    return {}


def _gpus(allocation: Allocation, found: AllocationEvent | None, ranks: dict[str, int]) -> dict[str, int] | None:
    """Return {node: number of devices} of these ranks; None when it is not known.

    The placements of the attempt are used while the object has them; or else the requests, if all roles request the
    same number.
    """
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
