"""The sets of nodes that work is confined to, and what the queues use there.

A role is confined when it may use only some of the nodes that accept work. The reason may be its node selector,
affinity, tolerations, volumes or shares of GPUs. Owns which nodes these are, and the sum per queue of what is used on
them. Knows nothing of which work may be evicted.

Invariant: while a `NodeSets` belongs to the tick state, each removal or return of ranks is applied to all of its sets.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from slipway.model.facts import RoleFact
from slipway.model.resources import GPU_MILLI, PODS, Resources
from slipway.scheduler.plan.placement.feasibility import admitting
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.queueing.node_shares import NodeShares
from slipway.scheduler.plan.queueing.queue_tree import QueueTree, counted
from slipway.scheduler.plan.state.nodes import Bools, NodeTable
from slipway.scheduler.plan.state.rank_request import compile_request
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot

Use = tuple[str, int, Resources]
"""(queue, node, what a rank uses there)"""


class NodeSet:
    """Some of the nodes that accept work, with what the queues use of them."""

    def __init__(self, nodes: Bools, shares: NodeShares, table: NodeTable) -> None:
        self.nodes = nodes
        self.shares = shares
        self._index = table.index

    def use_of(self, holding: Holding, ranks: Iterable[int]) -> Mapping[str, int]:
        """Return what `ranks` of a holding use on the set, in base units."""
        charges, index = holding.charges, self._index
        here = [rank for rank in ranks if (at := index.get(charges[rank].node)) is not None and self.nodes[at]]
        return holding.used_by(here).amounts if here else {}

    def covers(self, other: "NodeSet") -> bool:
        """Whether the set contains all nodes of `other`."""
        return not bool((other.nodes & ~self.nodes).any())


class NodeSets:
    """The sets at one moment: `removed` ranks ({uid: ranks}) are subtracted, and `taken` is added."""

    def __init__(
        self,
        snapshot: PoolSnapshot,
        tree: QueueTree,
        whatif: WhatIf,
        removed: Mapping[str, frozenset[int]],
        taken: Iterable[Use],
    ) -> None:
        self._snapshot = snapshot
        self._tree = tree
        self._whatif = whatif
        self._off: dict[str, set[int]] = {uid: set(ranks) for uid, ranks in removed.items()}
        self._taken = tuple(taken)
        self._sets: dict[bytes, NodeSet] = {}

    def of(self, role: RoleFact) -> NodeSet | None:
        """Return the nodes that `role` is confined to; None when it may use every node that accepts work."""
        nodes = self._nodes_of(role)
        if nodes is None:
            return None
        key = nodes.tobytes()
        known = self._sets.get(key)
        if known is None:
            known = self._sets[key] = NodeSet(nodes, self._shares(nodes, key), self._whatif.table)
        return known

    def move(self, holding: Holding, ranks: Iterable[int], times: int) -> None:
        """Apply the removal (-1) or the return (1) of ranks."""
        ranks = tuple(ranks)
        off = self._off.setdefault(holding.allocation.uid, set())
        off.difference_update(ranks) if times > 0 else off.update(ranks)
        for each in self._sets.values():
            each.shares.take(holding.allocation.queue, each.use_of(holding, ranks), times)

    def _nodes_of(self, role: RoleFact) -> Bools | None:
        whatif = self._whatif
        known = whatif.confined
        key = whatif.key_of(role)
        if key not in known:
            table = whatif.table
            request = compile_request(role, table, tolerations=whatif.policy.tolerations)
            nodes = admitting(request, table, whatif.usage) & ~table.closed
            known[key] = None if bool((nodes == ~table.closed).all()) else nodes
        return known[key]

    def _shares(self, nodes: Bools, key: bytes) -> NodeShares:
        table = self._whatif.table
        amounts = {name: int(table.allocatable[row, nodes].sum()) for name, row in table.row.items() if name != PODS}
        shares = NodeShares(self._tree, counted(_without_parts(amounts)))
        cache = self._snapshot.cache.on_nodes
        if key not in cache:
            cache[key] = _summed(_standing(self._snapshot, table), nodes)
        for queue, used in cache[key].items():
            shares.take(queue, used)
        found = NodeSet(nodes, shares, table)
        for uid, ranks in self._off.items():
            holding = self._snapshot.holdings.get(uid)
            if holding is not None and ranks:
                shares.take(holding.allocation.queue, found.use_of(holding, sorted(ranks)), -1)
        for queue, used in _summed(self._taken, nodes).items():
            shares.take(queue, used)
        return shares


def confined_roles(roles: Iterable[RoleFact], table: NodeTable) -> list[RoleFact]:
    """Return the roles that may be confined; a cheap check, after which mostly none is left."""
    is_marked = len(table.taint_sets) > 1 or bool(table.shares.any())
    return [role for role in roles if is_marked or role.node_selector or role.affinity or role.node_name or role.claims]


def _without_parts(amounts: dict[str, int]) -> dict[str, int]:
    """Return amounts without shares: nodes that share their GPUs state them twice, as whole GPUs and as shares."""
    return {name: amount for name, amount in amounts.items() if name != GPU_MILLI}


def _standing(snapshot: PoolSnapshot, table: NodeTable) -> Iterator[Use]:
    for holding in snapshot.holdings.values():
        for charge in holding.charges.values():
            node = table.index.get(charge.node)
            if node is not None:
                yield holding.allocation.queue, node, charge.requests


def _summed(uses: Iterable[Use], nodes: Bools) -> dict[str, dict[str, int]]:
    """Return {queue: what it uses on `nodes`}."""
    found: dict[str, dict[str, int]] = {}
    members = set(np.flatnonzero(nodes).tolist())
    for queue, node, requests in uses:
        if node in members:
            used = found.setdefault(queue, {})
            for name, amount in requests.amounts.items():
                used[name] = used.get(name, 0) + amount
    return found
