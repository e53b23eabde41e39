"""The least that must be freed, and where, so that a gang has its places.

The search is greedy. Ranks that have a place use it. Each other rank is put on the node that it over-commits least
(amounts as parts of the pool's total, summed). For a single rank the result is the minimum. For a gang it is an upper
bound, which is checked by placing the gang. Only nodes that pass every filter except used amounts are considered, and
never beyond allocatable.
"""

import numpy as np

from slipway.model.facts import AllocationFact
from slipway.model.resources import GPU, GPU_MILLI, MILLI
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow
from slipway.scheduler.plan.placement.fill import fill
from slipway.scheduler.plan.placement.topology import REQUIRED, common_key
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state.gang_size import targets
from slipway.scheduler.plan.state.nodes import EVERY, At, Bools, Ints
from slipway.scheduler.plan.state.plan_types import Remedy
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

RANKS_MAX = 64
DOMAINS_MAX = 32
_MILLION = 1_000_000
IMPOSSIBLE = 2**62


def amounts_to_free(whatif: WhatIf, allocation: AllocationFact) -> tuple[Remedy, ...] | None:
    """Return what to free for the smallest gang that may start; None when the gang is too large or freeing cannot help.

    Works on a copy of the usage.
    """
    if sum(targets(allocation)) > RANKS_MAX or len(whatif.table) == 0:
        return None
    key = common_key(allocation)
    if not key:
        return _to_free(whatif, allocation, None)[1]
    codes = whatif.table.label(key).codes
    found = [
        _to_free(whatif, allocation, codes == domain) for domain in np.unique(codes[codes >= 0]).tolist()[:DOMAINS_MAX]
    ]
    return min((each for each in found if each[1] is not None), key=lambda each: each[0], default=(0, None))[1]


def _to_free(whatif: WhatIf, allocation: AllocationFact, within: Bools | None) -> tuple[int, tuple[Remedy, ...] | None]:
    """Return (the over-committed amount, what to free) with all ranks on the nodes `within`."""
    trial = WhatIf(whatif.usage, whatif.policy)
    ours = np.zeros_like(trial.usage.used)
    costs = 0
    for role, want in zip(allocation.roles, targets(allocation), strict=True):
        row = trial.row(role)
        cost = _overcommit_role(row, ours, want, row.passed if within is None else row.passed & within)
        if cost is None:
            return 0, None
        costs += cost
    owed = {}
    if trial.usage.devices is not None and whatif.usage.devices is not None:
        owed = trial.usage.devices.beyond(whatif.usage.devices)
    return costs, _deficits(trial.usage, ours, owed)


def _overcommit_role(row: FeasibilityRow, ours: Ints, want: int, allowed: Bools) -> int | None:
    """Put `want` ranks on nodes, over-committing where necessary; a required topology uses the cheapest domain.

    Return the cost; None when the ranks cannot use these nodes at all.
    """
    topology = row.request.topology
    if topology is None or topology.mode != REQUIRED:
        return _overcommit(row, ours, want, allowed)
    column = row.usage.table.label(topology.key)
    best: tuple[int, int] | None = None
    for domain in range(min(len(column.values), DOMAINS_MAX)):
        placed = _overcommit(row, ours, want, allowed & (column.codes == domain), keep=False)
        if placed is not None and (best is None or placed < best[0]):
            best = (placed, domain)
    return None if best is None else _overcommit(row, ours, want, allowed & (column.codes == best[1]))


def _overcommit(row: FeasibilityRow, ours: Ints, want: int, allowed: Bools, *, keep: bool = True) -> int | None:
    """Return the cost of `want` ranks among `allowed`, None if they cannot use these nodes; taken when `keep`."""
    nodes: list[int] = []
    cost = 0
    for node in fill(row, want, allowed):
        _book(row, ours, node, 1)
        nodes.append(node)
    costs = _costs(row.request, row.usage, ours, allowed, EVERY) if len(nodes) < want else None
    while costs is not None and len(nodes) < want:
        node = int(costs.argmin())
        if costs[node] == IMPOSSIBLE:
            break
        cost += int(costs[node])
        _book(row, ours, node, 1)
        nodes.append(node)
        at = np.array([node], dtype=np.int64)
        costs[at] = _costs(row.request, row.usage, ours, allowed, at)
    is_enough = len(nodes) == want
    if not is_enough or not keep:
        for node in nodes:
            _book(row, ours, node, -1)
    return cost if is_enough else None


def _book(row: FeasibilityRow, ours: Ints, node: int, times: int) -> None:
    row.usage.take(row.request, [node], times)
    ours[row.request.step_rows, node] += row.request.step_amounts[:, 0] * times


def _costs(request: RankRequest, usage: NodeUsage, ours: Ints, allowed: Bools, at: At) -> Ints:
    """Return what one more rank would over-commit on each node of `at`, in millionths of the pool.

    IMPOSSIBLE where the rank cannot be placed.
    """
    table = usage.table
    possible = allowed[at].copy()
    costs = np.zeros(possible.shape, dtype=np.int64)
    if request.missing:
        possible[:] = False
    for row, amount in request.steps:
        allocatable = table.allocatable[row, at]
        possible &= ours[row, at] + amount <= allocatable
        over = usage.used[row, at] - allocatable
        more = np.maximum(over + amount, 0) - np.maximum(over, 0)
        whole = table.total.get(table.resources[row])
        if request.gpu_milli and usage.devices is not None and table.resources[row] == GPU_MILLI:
            # The node may have enough free in total, but one device must have it.
            more = np.maximum(amount - usage.devices.most_left(at), 0)
            whole = table.total.get(GPU) * MILLI
        costs += more * _MILLION // max(whole, 1)
    for port in request.host_ports:
        possible &= ~usage.is_port_taken(port, at)
    return np.where(possible, costs, IMPOSSIBLE)


def _deficits(usage: NodeUsage, ours: Ints, owed: dict[int, int]) -> tuple[Remedy, ...]:
    """Return how far each node of our ranks is over-committed in what we request; `owed`: the same for its devices."""
    table = usage.table
    over = np.where(ours > 0, np.maximum(usage.used - table.allocatable, 0), 0)
    if GPU_MILLI in table.row:
        over[table.row[GPU_MILLI]] = 0
        over[table.row[GPU_MILLI], list(owed)] = list(owed.values())
    changes: list[Remedy] = []
    for node in np.flatnonzero(over.any(axis=0)).tolist():
        rows = np.flatnonzero(over[:, node]).tolist()
        amounts = {table.resources[row]: int(over[row, node]) for row in rows}
        changes.append(Remedy(kind="free", node=table.names[node], amounts=amounts))
    return tuple(changes)
