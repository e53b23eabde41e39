"""Running elastic gangs that have fewer ranks than they ask for: who may grow, and which ranks are new.

Owns the shape in which a running gang stands on the what-if copy (its places are taken there already) and the numbers
and devices of the ranks that are added. Does not decide when a gang grows: the planner does.
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
        """The ranks that were added; None when there are none. To be asked once, after all is taken."""
        placements: dict[int, str] = {}
        devices: dict[int, tuple[int, ...]] = {}
        base = 0
        for part in self.placed.parts:
            ranks = range(base, base + part.role.count)
            free = [rank for rank in ranks if rank not in self.had]
            added = part.nodes[part.role.count - len(free) :]
            for rank, node in zip(free, added, strict=False):
                placements[rank] = whatif.table.names[node]
                numbers = whatif.hand_out(part.row, node)
                if numbers:
                    devices[rank] = numbers
            base += part.role.count
        if not placements:
            return None
        fact = self.placed.allocation
        return Grow(allocation=fact.key, uid=fact.uid, attempt=fact.attempt, placements=placements, devices=devices)


def may_grow(holding: Holding, now: float) -> bool:
    """Whether it runs, goes on, has fewer ranks than it asks for, and nothing of it changes already."""
    fact = holding.allocation
    is_below = fact.is_elastic and len(holding.admitted) < fact.rank_count
    is_leaving = bool(holding.leaving) or not set(fact.leaving_ranks) <= set(fact.left_ranks)
    # Where a rank has ended well, the others are about to.
    is_ending = not holding.admitted.keys() - holding.charges.keys() <= set(fact.failed_ranks)
    is_whole = fact.phase is Phase.RUNNING and fact.is_wanted and not (is_leaving or holding.is_growing)
    return is_below and is_whole and not is_ending and fact.grows_after <= now


def below_count(holdings: Iterable[Holding], now: float) -> list[Holding]:
    """Those that may grow: the one that has run longest first."""
    found = [holding for holding in holdings if may_grow(holding, now)]
    return sorted(found, key=lambda each: (each.allocation.started, each.allocation.created, each.allocation.uid))


def next_look(holdings: Iterable[Holding], now: float) -> float:
    """When the first of those may grow that may not yet (epoch seconds); 0 for never."""
    times = (holding.allocation.grows_after for holding in holdings)
    return min((at for at in times if at > now), default=0.0)


def stand(whatif: WhatIf, holding: Holding, fact: AllocationFact) -> GrowingGang | None:
    """The gang as it stands; None where one of its nodes is gone, so that nothing is known of its domain. `fact` is the
    holding's, with the windows that are closed to its new ranks."""
    index = whatif.table.index
    if any(node not in index for node in holding.admitted.values()):
        return None
    whatif.owner = fact
    avoid = tuple(name for name in fact.avoid_nodes if name in index)
    parts: list[gang.Part] = []
    common = _common(whatif, fact, [index[node] for node in holding.admitted.values()])
    base = 0
    for role in fact.roles:
        nodes = [index[holding.admitted[rank]] for rank in range(base, base + role.count) if rank in holding.admitted]
        allowed = common
        if nodes and role.topology is not None and role.topology.mode == REQUIRED:
            codes = whatif.table.label(role.topology.key).codes
            own = np.isin(codes, codes[nodes])
            allowed = own if common is None else own & common
        parts.append(gang.Part(role, whatif.row(role, avoid), nodes, allowed))
        base += role.count
    return GrowingGang(gang.PlacedGang(fact, tuple(parts), is_as_wanted=True), dict(holding.admitted))


def _common(whatif: WhatIf, fact: AllocationFact, nodes: list[int]) -> Bools | None:
    """The domain that all roles have to be in; None where there is none."""
    key = common_key(fact)
    if not key:
        return None
    codes = whatif.table.label(key).codes
    return np.isin(codes, codes[nodes]) & (codes >= 0)


def told(fact: AllocationFact) -> str:
    """What a running gang below its count lacks, in one sentence."""
    missing = [role.requests.gpu_units() for role, lacks in _lacking(fact) for _ in range(lacks)]
    gpus = whole_gpus(sum(missing))
    return growth.below_count(have=fact.rank_count - len(missing), count=fact.rank_count, gpus=gpus)


def _lacking(fact: AllocationFact) -> list[tuple[RoleFact, int]]:
    """(role, how many of its ranks have no place)"""
    found: list[tuple[RoleFact, int]] = []
    base = 0
    for role in fact.roles:
        found.append((role, sum(rank not in fact.placements for rank in range(base, base + role.count))))
        base += role.count
    return found
