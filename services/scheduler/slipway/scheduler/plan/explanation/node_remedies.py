"""What would help where freeing room cannot: nodes to uncordon, or a taint to tolerate.

Each is tried as the placement sees it, with one more toleration in the pool's policy, and is offered only when the gang
really has its places then. Of cordoned nodes no one in the answer can be left out.
"""

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, Taint, Toleration
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.filters.node_unschedulable import CORDON
from slipway.scheduler.plan.placement.filters.taint_toleration import HARD
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.plan_types import Remedy

TAINTS_MAX = 8
"""Different taints that are tried."""
OF_NODES = "node.kubernetes.io/"
"""Taints that say how a node is, and that nobody should tolerate to get on."""
NODES_MAX = 16
"""More nodes than this to uncordon are no small change."""


def uncordoned(whatif: WhatIf, fact: AllocationFact) -> tuple[Bools, tuple[Remedy, ...]] | None:
    """(the nodes that may be used then, the nodes to uncordon) for `fact` to have its places; None: that is not it."""
    table = whatif.table
    if table.is_clear:
        return None
    trial = tolerating(whatif, CORDON)
    allowed: Bools = np.ones(len(table), dtype=np.bool_)
    chosen = [node for node in _used(trial, fact, allowed) if table.unschedulable[node]]
    if not chosen or len(chosen) > NODES_MAX:
        return None
    allowed = ~table.unschedulable
    allowed[chosen] = True
    for node in sorted(chosen, reverse=True):
        allowed[node] = False
        if not _used(trial, fact, allowed):
            allowed[node] = True
    left = [node for node in sorted(chosen) if allowed[node]]
    return allowed, tuple(Remedy(kind="uncordon", node=table.names[node]) for node in left)


def tolerated(whatif: WhatIf, fact: AllocationFact) -> tuple[tuple[Remedy, ...], Taint] | None:
    """The one taint that `fact` would have to tolerate; None: that is not it."""
    every_taint = (taint for taints in whatif.table.taint_sets for taint in taints)
    taints = {each for each in every_taint if each.effect in HARD and not each.key.startswith(OF_NODES)}
    every: Bools = ~whatif.table.unschedulable
    for taint in sorted(taints, key=lambda each: (each.key, each.value, each.effect))[:TAINTS_MAX]:
        if _used(tolerating(whatif, taint), fact, every):
            return (Remedy(kind="tolerate", name=f"{taint.key}={taint.value}:{taint.effect}"),), taint
    return None


def tolerating(whatif: WhatIf, taint: Taint) -> WhatIf:
    """A copy in which everybody tolerates `taint`."""
    tolerations = (*whatif.policy.tolerations, _toleration(taint))
    return WhatIf(whatif.usage, msgspec.structs.replace(whatif.policy, tolerations=tolerations), whatif.panel)


def _toleration(taint: Taint) -> Toleration:
    return Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)


def _used(trial: WhatIf, fact: AllocationFact, allowed: Bools) -> list[int]:
    """The nodes on which `fact` stands within `allowed`; empty when it does not. Takes nothing."""
    placed = gang.place(trial, fact, allowed)
    if isinstance(placed, gang.PlacementFailure):
        return []
    gang.withdraw(trial, placed.parts)
    return sorted({node for part in placed.parts for node in part.nodes})
