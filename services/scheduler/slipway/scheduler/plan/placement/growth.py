"""Running elastic gangs that have fewer ranks than their count: which may grow, and which ranks are new.

Owns how a running gang is represented on the what-if copy (its places are taken there already), and the numbers and
devices of the added ranks. The planner decides when a gang grows.
Invariant: a rank that has a place keeps it; a new rank has the lowest free number of its role.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from slipway.model import growth
from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.lifecycle import Phase
from slipway.model.mig import whole_gpus
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.topology import REQUIRED, common_key
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.plan_types import Grow
from slipway.scheduler.plan.state.snapshot import Holding


class GrowingGang(msgspec.Struct, frozen=True):
    """A running gang on the what-if copy, with the ranks that it had before."""

    placed: gang.PlacedGang
    had: dict[int, str]
    """{rank: node}"""

    def decision(self, whatif: WhatIf) -> Grow | None:
        """Return the added ranks; None when there are none. Call it once, after all ranks were taken."""
        placements: dict[int, str] = {}
        devices: dict[int, tuple[int, ...]] = {}
        base = 0
        for part in self.placed.parts:
            ranks = range(base, base + part.role.count)
            free = [rank for rank in ranks if rank not in self.had]
            added = part.nodes[part.role.count - len(free) :]
            for rank, node in zip(free, added, strict=False):
                placements[rank] = whatif.table.names[node]
                numbers = whatif.assign_devices(part.row, node)
                if numbers:
                    devices[rank] = numbers
            base += part.role.count
        if not placements:
            return None
        fact = self.placed.allocation
        return Grow(allocation=fact.key, uid=fact.uid, attempt=fact.attempt, placements=placements, devices=devices)


def may_grow(holding: Holding, now: float) -> bool:
    """Whether the gang runs, continues, has fewer ranks than its count, and is not changing already."""
    fact = holding.allocation
    is_below = fact.is_elastic and len(holding.admitted) < fact.rank_count
    is_leaving = bool(holding.leaving) or not set(fact.leaving_ranks) <= set(fact.left_ranks)
    # When a rank has ended well, the other ranks are about to end too.
    is_ending = not holding.admitted.keys() - holding.charges.keys() <= set(fact.failed_ranks)
    is_whole = fact.phase is Phase.RUNNING and fact.is_wanted and not (is_leaving or holding.is_growing)
    return is_below and is_whole and not is_ending and fact.grows_after <= now


def below_count(holdings: Iterable[Holding], now: float) -> list[Holding]:
    """Return the gangs that may grow, the one that has run longest first."""
    found = [holding for holding in holdings if may_grow(holding, now)]
    return sorted(found, key=lambda each: (each.allocation.started, each.allocation.created, each.allocation.uid))


def next_growth_at(holdings: Iterable[Holding], now: float) -> float:
    """Return when the next gang becomes able to grow (epoch seconds); 0 for never."""
    times = (holding.allocation.grows_after for holding in holdings)
    return min((at for at in times if at > now), default=0.0)


def running_gang(whatif: WhatIf, holding: Holding, fact: AllocationFact) -> GrowingGang | None:
    """Return the running gang on the what-if copy; None when one of its nodes was deleted, so its domain is unknown.

    `fact` is the holding's, with the windows that are closed to its new ranks.
    """
    index = whatif.table.index
    if any(node not in index for node in holding.admitted.values()):
        return None
    whatif.owner = fact
    avoid = tuple(name for name in fact.avoid_nodes if name in index)
    parts: list[gang.PlacedRole] = []
    common = _common(whatif, fact, [index[node] for node in holding.admitted.values()])
    base = 0
    for role in fact.roles:
        nodes = [index[holding.admitted[rank]] for rank in range(base, base + role.count) if rank in holding.admitted]
        allowed = common
        if nodes and role.topology is not None and role.topology.mode == REQUIRED:
            codes = whatif.table.label(role.topology.key).codes
            own = np.isin(codes, codes[nodes])
            allowed = own if common is None else own & common
        parts.append(gang.PlacedRole(role, whatif.row(role, avoid), nodes, allowed))
        base += role.count
    return GrowingGang(gang.PlacedGang(fact, tuple(parts), is_as_wanted=True), dict(holding.admitted))


def _common(whatif: WhatIf, fact: AllocationFact, nodes: list[int]) -> Bools | None:
    """Return the nodes of the domain in which all roles must be; None when they need not share a domain."""
    key = common_key(fact)
    if not key:
        return None
    codes = whatif.table.label(key).codes
    return np.isin(codes, codes[nodes]) & (codes >= 0)


def lacking_text(fact: AllocationFact) -> str:
    """Return one sentence about the ranks that a running gang below its count lacks."""
    missing = [role.requests.gpu_units() for role, lacks in _lacking(fact) for _ in range(lacks)]
    gpus = whole_gpus(sum(missing))
    return growth.below_count(have=fact.rank_count - len(missing), count=fact.rank_count, gpus=gpus)


def _lacking(fact: AllocationFact) -> list[tuple[RoleFact, int]]:
    """Return (role, number of its ranks without a place) for each role."""
    found: list[tuple[RoleFact, int]] = []
    base = 0
    for role in fact.roles:
        found.append((role, sum(rank not in fact.placements for rank in range(base, base + role.count))))
        base += role.count
    return found
