"""Remedies for nodes when freeing room cannot help: nodes to uncordon, or a taint to tolerate.

Each remedy is tried by a real placement, with one more toleration in the pool's policy, and is offered only when the
gang then has its places. Each cordoned node in the answer is necessary.
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
"""The number of different taints that are tried."""
OF_NODES = "node.kubernetes.io/"
"""Taints that describe the condition of a node; they are never offered for toleration."""
NODES_MAX = 16
"""A change that uncordons more nodes than this is not offered as a small change."""


def uncordoned(whatif: WhatIf, fact: AllocationFact) -> tuple[Bools, tuple[Remedy, ...]] | None:
    """Return (nodes that may be used then, nodes to uncordon) for `fact`; None when uncordoning does not help."""
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
    """Return the one taint that `fact` would have to tolerate; None when no single toleration helps."""
    every_taint = (taint for taints in whatif.table.taint_sets for taint in taints)
    taints = {each for each in every_taint if each.effect in HARD and not each.key.startswith(OF_NODES)}
    every: Bools = ~whatif.table.unschedulable
    for taint in sorted(taints, key=lambda each: (each.key, each.value, each.effect))[:TAINTS_MAX]:
        if _used(tolerating(whatif, taint), fact, every):
            return (Remedy(kind="tolerate", name=f"{taint.key}={taint.value}:{taint.effect}"),), taint
    return None


def tolerating(whatif: WhatIf, taint: Taint) -> WhatIf:
    """Return a copy in which all work tolerates `taint`."""
    tolerations = (*whatif.policy.tolerations, _toleration(taint))
    return WhatIf(whatif.usage, msgspec.structs.replace(whatif.policy, tolerations=tolerations), whatif.plan_extenders)


def _toleration(taint: Taint) -> Toleration:
    return Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)


def _used(trial: WhatIf, fact: AllocationFact, allowed: Bools) -> list[int]:
    """Return the nodes on which `fact` is placed within `allowed`; empty when it has no place. Takes nothing."""
    placed = gang.place(trial, fact, allowed)
    if isinstance(placed, gang.PlacementFailure):
        return []
    gang.withdraw(trial, placed.parts)
    return sorted({node for part in placed.parts for node in part.nodes})
