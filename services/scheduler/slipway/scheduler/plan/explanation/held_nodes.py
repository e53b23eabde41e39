"""The clause about the nodes that pending work is confined to: how much of them is used, and by which queues.

Owns which set of nodes and which resource the clause is about. The set is that of the first role that restricts its
nodes (by selector or affinity) and has no feasible node. The resource is GPUs if the role requests GPUs, else cpu, and
only if these nodes have less of it than the pool. There is a clause only when all of it is used, or when some queue
uses more than its share. Changes nothing.
"""

import numpy as np

from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.mig import slices_in
from slipway.model.resources import CPU, GPU, gpus_of
from slipway.scheduler.plan.placement import explain
from slipway.scheduler.plan.placement.node_sets import NodeSet, NodeSets
from slipway.scheduler.plan.placement.tick_state import TickState
from slipway.scheduler.plan.queueing.node_shares import is_part
from slipway.scheduler.plan.queueing.queue_tree import counted
from slipway.scheduler.plan.state.rank_request import requests_of


def held_nodes(state: TickState, fact: AllocationFact) -> str:
    """Return how much of its nodes is used, and by which queues above their share; "" when there is no clause."""
    sets = state.node_sets()
    for role in fact.roles:
        if not role.node_selector and not role.affinity:
            continue
        found = _of_role(state, sets, role)
        if found:
            return found
    return ""


def _of_role(state: TickState, sets: NodeSets, role: RoleFact) -> str:
    node_set = sets.of(role)
    row = state.whatif.row(role)
    row.refresh()
    if node_set is None or bool(row.fits.any()):
        return ""
    asked = counted(requests_of(role).amounts)
    resource = next((name for name in (GPU, CPU) if asked.get(name, 0) > 0), "")
    if role.flavor and gpus_of(role.flavor) in state.tree.named:
        return ""
    if not resource or not is_part(node_set.shares.total, state.tree, resource):
        return ""
    total = node_set.shares.total.get(resource, 0)
    holders: list[tuple[str, int, int]] = []
    for name in sorted(queue.name for queue in state.snapshot.queues):
        if state.tree.queue(name) is None or not state.tree.is_leaf(name):
            continue
        due, used = node_set.shares.due(name, resource), node_set.shares.used(name, resource)
        if due is not None and used > due:
            holders.append((name, used, round(due)))
    holders.sort(key=lambda each: (each[2] - each[1], each[0]))
    used = total - _free(state, node_set, resource)
    return explain.held_text(role, resource, total, used, holders) if holders or used >= total else ""


def _free(state: TickState, node_set: NodeSet, resource: str) -> int:
    """Return what is free on the set, as `counted` returns it."""
    usage, table = state.whatif.usage, state.whatif.table
    at = np.flatnonzero(node_set.nodes)
    names = [name for name in (resource, *slices_in(table.resources if resource == GPU else ())) if name in table.row]
    free = {name: int(np.maximum(usage.free(table.row[name], at), 0).sum()) for name in names}
    return counted(free).get(resource, 0)
