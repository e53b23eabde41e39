"""Place several ranks of one request in one pass, with the same result as placing them one by one.

The pass does not compute every node again for each rank.

The choice is greedy by score, and by name among equals. Each placed rank changes only the score of its own node. So at
most `want` nodes can get a rank, and these are the best `want` nodes at the beginning: no other node is read.
Scores that depend on all feasible nodes (NodeAffinity, TaintToleration) are normalised once per pass.
"""

import heapq

import numpy as np

from slipway.scheduler.plan.placement.feasibility import FeasibilityRow, fill_in_turn
from slipway.scheduler.plan.state.nodes import Bools, Ints

FEW = 16
"""Up to this number of ranks, placing one by one is cheaper."""


def fill(row: FeasibilityRow, want: int, allowed: Bools | None = None) -> list[int]:
    """Return the nodes for up to `want` ranks, in the order of placing; a node is repeated for each of its ranks.

    Takes nothing from the usage: the caller does. Shorter than `want` when the `allowed` nodes have no more room.
    """
    row.refresh()
    if want <= 0:
        return []
    if row.is_coupled or row.usage.sample is not None:
        return fill_in_turn(row, want, allowed)
    total = row.total if allowed is None else np.where(allowed, row.total, -1)
    if want <= FEW:
        return _one_by_one(row, total, want)
    candidates = _best(total, want)
    if candidates.size == 0:
        return []
    room = row.usage.room(row.request, candidates, want)
    if int(room.max()) <= 1:
        return [int(node) for node in candidates[room > 0][:want]]
    return _merge(row, candidates, room, want)


def _one_by_one(row: FeasibilityRow, total: Ints, want: int) -> list[int]:
    """Return the best node, then the best with that node's new total, and so on; cheapest for a few ranks."""
    if total.size == 0:
        return []
    placed: list[int] = []
    held: dict[int, int] = {}
    for left in range(want - 1, -1, -1):
        node = int(total.argmax())
        if total[node] < 0:
            break
        placed.append(node)
        if left:
            if not held:
                total = total.copy()
            held[node] = held.get(node, 0) + 1
            total[node] = row.peek(node, held[node])
    return placed


def _best(total: Ints, want: int) -> Ints:
    """Return the `want` best nodes, best first."""
    nodes = np.flatnonzero(total >= 0)
    size = total.size
    keys = total[nodes] * size + (size - 1 - nodes)
    if nodes.size > want:
        keep = np.argpartition(-keys, want - 1)[:want]
        nodes, keys = nodes[keep], keys[keep]
    return nodes[np.argsort(-keys)]


def _merge(row: FeasibilityRow, candidates: Ints, room: Ints, want: int) -> list[int]:
    """Merge the candidates' sequences of falling or rising scores; level j is computed for all when first needed."""
    levels: list[list[int]] = [row.levels(candidates, 0).tolist()]
    nodes: list[int] = candidates.tolist()
    rooms: list[int] = room.tolist()
    heap = [(-levels[0][slot], node, slot) for slot, node in enumerate(nodes) if rooms[slot] > 0]
    heapq.heapify(heap)
    held = [0] * len(nodes)
    placed: list[int] = []
    while heap and len(placed) < want:
        _, node, slot = heap[0]
        placed.append(node)
        held[slot] += 1
        level = held[slot]
        if level >= rooms[slot]:
            heapq.heappop(heap)
            continue
        if level == len(levels):
            levels.append(row.levels(candidates, level).tolist())
        heapq.heapreplace(heap, (-levels[level][slot], node, slot))
    return placed
