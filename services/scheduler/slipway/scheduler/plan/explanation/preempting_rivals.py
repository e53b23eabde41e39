"""Rivals that might take what a change gives: by evicting or moving other work too, or by a reservation.

Owns the nodes as they would be for a rival if all work that it may evict or move had left. That is more than preemption
would evict, and it ignores shares. A rival that has its places on these nodes might take the room, and then the change
is not offered. Nothing here evicts or reserves.
"""

from collections.abc import Callable, Sequence

from slipway.model.facts import AllocationFact, QueueFact
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.tick_state import Admitted, Ranks
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.preemption.rules import NEVER
from slipway.scheduler.plan.preemption.victims import lowest_of
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.reservation import Reservations
from slipway.scheduler.plan.state import gang_size
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.ordering import priority_of
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot

KEPT_MAX = 16


class RivalCheck:
    """Decides which pending work of a snapshot might take something; `whatif` is the state after the plan.

    `left_of` returns the ranks of a holding that `whatif` includes: the victims of the plan are removed already.
    """

    def __init__(
        self,
        snapshot: PoolSnapshot,
        whatif: WhatIf,
        left_of: Callable[[Holding], Ranks],
        admitted: Sequence[Admitted] = (),
        reservations: Reservations | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._whatif = whatif
        self._left_of = left_of
        self._admitted = [each for each in admitted if each.placed.allocation.preemptible]
        """preemptible gangs that this plan admits: the next plan may evict them"""
        self._reservations = reservations
        self._cleared: dict[tuple[str, int], WhatIf] = {}

    def would_take(
        self, rival: AllocationFact, made: Callable[[WhatIf], WhatIf], tree: QueueTree, within: Bools | None
    ) -> bool:
        """Whether `rival` has its places on the nodes that `made` returns, if all work that it may evict had left."""
        queue = tree.queue(rival.queue)
        if queue is None or not self._may_evict(rival, queue):
            return False
        demand = gang_size.smallest_demand(rival).amounts
        short = tree.shortfall(rival.queue, demand, preemptible=rival.preemptible)
        if short is not None and short.kind == "nominal":
            return False  # Preemptible work does not use this bound, so evicting it would not help.
        after = made(self._without_evictable(rival, queue))
        placed = gang.place(after, rival, within)
        return not isinstance(placed, gang.PlacementFailure)

    def would_keep(self, rival: AllocationFact, made: Callable[[WhatIf], WhatIf], tree: QueueTree) -> bool:
        """Whether `rival`, which has no reservation yet, would get one with the change."""
        return self._reservations is not None and self._reservations.would_keep(rival, made, tree)

    def _may_evict(self, rival: AllocationFact, queue: QueueFact) -> bool:
        priority = self._priority(rival)
        lowest = dict(lowest_of(self._snapshot))
        for each in self._admitted:
            fact = each.placed.allocation
            lowest[fact.queue] = min(lowest.get(fact.queue, self._priority(fact)), self._priority(fact))
        if lowest.get(queue.name, priority + 1) <= priority:
            return True
        return queue.reclaim != NEVER and any(name != queue.name for name in lowest)

    def _without_evictable(self, rival: AllocationFact, queue: QueueFact) -> WhatIf:
        """Return the nodes without work of its own queue up to its priority, and without work that it might reclaim."""
        priority = self._priority(rival)
        key = (queue.name, priority)
        known = self._cleared.get(key)
        if known is None:
            if len(self._cleared) >= KEPT_MAX:
                self._cleared.clear()
            usage = self._whatif.usage.copy()
            for holding in self._snapshot.holdings.values():
                if self._is_evictable(holding.allocation, queue, priority):
                    for charge in (holding.charges[rank] for rank in self._left_of(holding)):
                        node = usage.table.index.get(charge.node)
                        if node is not None:
                            usage.charge(charge, node, -1)
            for each in self._admitted:
                if self._is_evictable(each.placed.allocation, queue, priority):
                    for part in each.placed.parts:
                        usage.take(part.row.request, part.nodes, -1)
            known = self._cleared[key] = WhatIf(usage, self._whatif.policy, self._whatif.plan_extenders)
        return known

    def _is_evictable(self, other: AllocationFact, queue: QueueFact, priority: int) -> bool:
        """Whether `other` might be evicted or moved for work of `priority` in `queue`."""
        is_own = other.queue == queue.name
        return other.preemptible and (self._priority(other) <= priority if is_own else queue.reclaim != NEVER)

    def _priority(self, fact: AllocationFact) -> int:
        return priority_of(fact, self._snapshot.job_of(fact))
