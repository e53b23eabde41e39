"""Flavors: the named kinds of nodes of a pool, and the flavors in which work is placed and counted.

Owns which flavor a node has, which flavors work accepts, and how work changes when its flavor is chosen. Its ranks with
GPUs are then confined to the nodes of that flavor, and its GPUs are also counted under the name of the flavor. Knows
nothing of quotas or of which choice is best. In a pool without flavors nothing here is called.

Invariant: a gang has one flavor, which is the flavor of its nodes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from slipway.model.facts import FLAVOR_LABEL, AllocationFact, FlavorFact, NodeFact, PoolFact, QueueFact, RoleFact
from slipway.model.mig import GPU_UNITS, slice_units, slices_in
from slipway.model.resources import GPU, Resources, counted_gpus, gpus_of
from slipway.scheduler.plan.state.nodes import Bools, NodeTable

NO_FLAVOR = ""
"""The flavor name of nodes that match none of the pool's flavors."""


def labelled(node: NodeFact, flavors: Sequence[FlavorFact]) -> NodeFact:
    """Return the node with its flavor as a label; without that label when the pool has no flavors."""
    labels = {key: value for key, value in node.labels.items() if key != FLAVOR_LABEL}
    if flavors:
        found = (flavor.name for flavor in flavors if flavor.node_labels.items() <= labels.items())
        labels[FLAVOR_LABEL] = next(found, NO_FLAVOR)
    return msgspec.structs.replace(node, labels=labels)


def totals(table: NodeTable, flavors: Iterable[FlavorFact], among: Bools) -> Resources:
    """Return the GPUs of each of `flavors` on the nodes `among`, as quota counts them, zeros included."""
    column = table.label(FLAVOR_LABEL)
    rows = _gpu_rows(table)
    found: dict[str, int] = {}
    for flavor in flavors:
        nodes = column.select((flavor.name,)) & among
        found[gpus_of(flavor.name)] = sum(int(np.sum(table.allocatable[row, nodes])) * units for row, units in rows)
    return Resources(found)


def flavored(table: NodeTable, nodes: Iterable[str]) -> Resources:
    """Return the GPUs of `nodes` by flavor, as quota counts them."""
    found: dict[str, int] = {}
    for node in (table.facts[table.index[name]] for name in nodes):
        if flavor := node.labels.get(FLAVOR_LABEL):
            found[gpus_of(flavor)] = found.get(gpus_of(flavor), 0) + counted_gpus(node.allocatable.amounts)
    return Resources(found)


def accepted(fact: AllocationFact, queue: QueueFact | None, pool: PoolFact, table: NodeTable) -> tuple[str, ...]:
    """Return the flavors to try for `fact`, in order; empty when `fact` may use every node."""
    named = [role.node_selector[FLAVOR_LABEL] for role in fact.roles if FLAVOR_LABEL in role.node_selector]
    if fact.flavors or named:
        return fact.flavors or (named[0],)
    if not any(_has_gpus(role) for role in fact.roles):
        return ()
    if queue is not None and queue.flavors:
        return queue.flavors
    known = tuple(flavor.name for flavor in pool.flavors)
    return (*known, NO_FLAVOR) if _has_others(table) else known


def is_chosen(fact: AllocationFact) -> bool:
    """Whether a flavor was chosen for the allocation."""
    return any(role.flavor is not None for role in fact.roles)


def of_flavor(fact: AllocationFact, flavor: str) -> AllocationFact:
    """Return `fact` confined to the nodes of `flavor`: its ranks with GPUs, or all its ranks when none has GPUs."""
    is_any = not any(_has_gpus(role) for role in fact.roles)
    return msgspec.structs.replace(
        fact, roles=tuple(_confined(role, flavor) if is_any or _has_gpus(role) else role for role in fact.roles)
    )


def where_it_stands(fact: AllocationFact, placements: Mapping[int, str], table: NodeTable) -> AllocationFact:
    """Return `fact` in the flavor of the nodes of its ranks; unchanged when these nodes do not determine it."""
    column = table.label(FLAVOR_LABEL)
    is_any = not any(_has_gpus(role) for role in fact.roles)
    if is_any and not fact.flavors:
        return fact
    for rank, node in placements.items():
        role, at = fact.role_of(rank), table.index.get(node)
        if role is not None and at is not None and (is_any or _has_gpus(role)):
            return of_flavor(fact, column.values[int(column.codes[at])])
    return fact


def flavor_of_gpus(
    fact: AllocationFact,
    placements: Mapping[int, str],
    find: Callable[[str], NodeFact | None],
    flavors: Sequence[FlavorFact],
) -> str:
    """Return the flavor of the GPUs of `fact`, by the nodes of its ranks; `NO_FLAVOR` when these do not tell."""
    for rank, name in placements.items() if flavors else ():
        role, node = fact.role_of(rank), find(name)
        if role is not None and node is not None and _has_gpus(role):
            return labelled(node, flavors).labels[FLAVOR_LABEL]
    return NO_FLAVOR


def _has_others(table: NodeTable) -> bool:
    """Whether a node with GPUs has no flavor."""
    nodes = table.label(FLAVOR_LABEL).select((NO_FLAVOR,))
    return any(bool(table.allocatable[row, nodes].any()) for row, _ in _gpu_rows(table))


def _gpu_rows(table: NodeTable) -> list[tuple[int, int]]:
    """Return (row of the table, `GPU_UNITS` of one unit) for whole GPUs and for each kind of slice."""
    rows = [(table.row[name], slice_units(name)) for name in slices_in(table.resources)]
    return [(table.row[GPU], GPU_UNITS), *rows] if GPU in table.row else rows


def _has_gpus(role: RoleFact) -> bool:
    return bool(role.gpu_milli or counted_gpus(role.requests.amounts))


def _confined(role: RoleFact, flavor: str) -> RoleFact:
    return msgspec.structs.replace(role, flavor=flavor, node_selector={**role.node_selector, FLAVOR_LABEL: flavor})
