"""Which queue gives next: the queue that is furthest above its share, after what was taken already.

Owns the order between queues; within a queue the order of victims applies (`victims`). Queues are compared from the top
of the tree: first the departments, then the queues in them. The work of the preemptor's own queue comes last. The
reclaim rule, not this module, decides which work may be taken.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from slipway.scheduler.plan.preemption.victims import EvictionUnit
from slipway.scheduler.plan.queueing.branches import Due
from slipway.scheduler.plan.queueing.node_shares import QueueShares
from slipway.scheduler.plan.state.nodes import Ints

Standing = tuple[Due, ...]
"""Minus the shares of a queue and of those above it, from the top; the smallest gives first."""


def share_of(queue_shares: QueueShares, queue: str) -> Standing:
    """Return the current standing of the queue."""
    return tuple(-share for share in queue_shares.shares(queue))


def eviction_ranks(queue_shares: QueueShares, queues: Sequence[str], own: str) -> Ints:
    """Return the turn of each of `queues`: 0 for the queue that gives first, equal for equal standings, `own` last."""
    found = {queue: share_of(queue_shares, queue) for queue in queues if queue != own}
    turn = {standing: number for number, standing in enumerate(sorted(set(found.values())))}
    return np.array([len(turn) if queue == own else turn[found[queue]] for queue in queues], dtype=np.int64)


def in_eviction_order(units: Iterable[EvictionUnit], queue_shares: QueueShares, own: str) -> Iterator[EvictionUnit]:
    """Yield the units in the order of eviction.

    Each unit is from the queue that is furthest above its share when the unit is requested; of equal queues the least
    important unit comes first. O(log queues) a unit, more where departments meet.
    """
    waiting: dict[str, list[EvictionUnit]] = {}
    for unit in sorted(units, key=lambda each: -each.index):
        waiting.setdefault(unit.fact.queue, []).append(unit)
    mine = waiting.pop(own, [])
    top = {queue: queue_shares.top(queue) for queue in waiting}
    heap: list[tuple[Standing, int, str]] = []
    for queue, line in waiting.items():
        heap.append((share_of(queue_shares, queue), line[-1].index, queue))
    heapq.heapify(heap)
    while heap:
        standing, _, queue = heapq.heappop(heap)
        yield waiting[queue].pop()
        now = share_of(queue_shares, queue)
        if waiting[queue]:
            heapq.heappush(heap, (now, waiting[queue][-1].index, queue))
        if now != standing and len(now) > 1:
            heap = [
                (share_of(queue_shares, name) if top[name] == top[queue] else known, index, name)
                for known, index, name in heap
            ]
            heapq.heapify(heap)
    yield from reversed(mine)
