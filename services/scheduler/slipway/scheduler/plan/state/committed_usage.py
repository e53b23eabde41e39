"""The whole usage of an allocation on its nodes, booked for places that are promised and not yet used.

Decides whether promised and existing usage exceed a node together. Knows no ledger decisions.
"""

from collections.abc import Iterable, Mapping

from slipway.model.facts import AllocationFact
from slipway.model.resources import GPU, GPU_MILLI, Resources, total
from slipway.scheduler.plan.state.pool_state import charge_of_rank
from slipway.scheduler.plan.state.rank_request import quota_of
from slipway.scheduler.plan.state.usage import Charge, NodeUsage


def charges_of(
    fact: AllocationFact, placements: Mapping[int, str], devices: Mapping[int, tuple[int, ...]]
) -> list[Charge]:
    """Return what its ranks use on the nodes of `placements`."""
    roles = [(rank, role, node) for rank, node in placements.items() if (role := fact.role_of(rank)) is not None]
    return [charge_of_rank(role, node, devices.get(rank, ()), fact) for rank, role, node in roles]


def demand_of(fact: AllocationFact, placements: Mapping[int, str]) -> Resources:
    """Return what its placed ranks use, as quota counts it."""
    return total(quota_of(role) for rank in placements if (role := fact.role_of(rank)) is not None)


def book(usage: NodeUsage, charges: Iterable[Charge], times: int = 1) -> None:
    """Add `charges` `times` times (-1 removes them). Charges on nodes that the table lacks are skipped."""
    for charge in charges:
        node = usage.table.index.get(charge.node)
        if node is not None:
            usage.charge(charge, node, times)


def is_over(usage: NodeUsage, charges: Iterable[Charge]) -> bool:
    """Whether a node of `charges`, which must be booked in `usage`, is over its amounts, devices or ports."""
    table = usage.table
    for charge in charges:
        node = table.index[charge.node]
        names = {GPU, GPU_MILLI, *charge.requests.amounts} if charge.requests.gpus() else charge.requests.amounts
        rows = [row for name in names if (row := table.row.get(name)) is not None]
        if any(usage.used[row, node] > table.allocatable[row, node] for row in rows):
            return True
        if any(usage.port(port)[node] > 1 for port in charge.ports):
            return True
        if usage.devices is not None and any(at == node for _, at in usage.devices.over):
            return True
    return False
