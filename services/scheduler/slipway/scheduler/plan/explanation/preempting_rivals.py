"""Those that wait and might have what a change gives: by evicting, or moving, others as well, or kept for later.

Owns the nodes as they would be for one of them with everybody gone whom it may ask to go. That is more than preemption
takes, and it does not look at shares: whoever has its places even so might have them, and an offer that he might take
is not made. Nothing here evicts, and nothing is reserved.
"""

from collections.abc import Callable, Sequence

from slipway.model.facts import AllocationFact, QueueFact
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.tick_state import Admitted
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.preemption.rules import NEVER
from slipway.scheduler.plan.preemption.victims import lowest_of
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.reservation import Reservations
from slipway.scheduler.plan.state import gang_size
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.ordering import priority_of
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

KEPT_MAX = 16


class Takers:
    """Who of a snapshot might take something; `whatif` is the state after the plan."""

    def __init__(
        self,
        snapshot: PoolSnapshot,
        whatif: WhatIf,
        admitted: Sequence[Admitted] = (),
        reservations: Reservations | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._whatif = whatif
        self._admitted = [each for each in admitted if each.placed.allocation.preemptible]
        """of this very plan: the next one may evict them"""
        self._reservations = reservations
        self._cleared: dict[tuple[str, int], WhatIf] = {}

    def would_take(
        self, rival: AllocationFact, made: Callable[[WhatIf], WhatIf], tree: QueueTree, within: Bools | None
    ) -> bool:
        """Whether `rival` has its places on the nodes that `made` gives, with everybody gone that it may evict."""
        queue = tree.queue(rival.queue)
        if queue is None or not self._may_evict(rival, queue):
            return False
        demand = gang_size.smallest_demand(rival).amounts
        short = tree.shortfall(rival.queue, demand, preemptible=rival.preemptible)
        if short is not None and short.kind == "nominal":
            return False  # What may be evicted is not in the way of that.
        after = made(self._without_lesser(rival, queue))
        placed = gang.place(after, rival, within)
        return not isinstance(placed, gang.PlacementFailure)

    def would_keep(self, rival: AllocationFact, made: Callable[[WhatIf], WhatIf], tree: QueueTree) -> bool:
        """Whether a place for `rival`, which has none yet, would be kept with the change."""
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

    def _without_lesser(self, rival: AllocationFact, queue: QueueFact) -> WhatIf:
        """The nodes without what is of its own queue and not above it, and without what it might reclaim."""
        priority = self._priority(rival)
        key = (queue.name, priority)
        known = self._cleared.get(key)
        if known is None:
            if len(self._cleared) >= KEPT_MAX:
                self._cleared.clear()
            usage = self._whatif.usage.copy()
            for holding in self._snapshot.holdings.values():
                if self._may_be_asked(holding.allocation, queue, priority):
                    for charge in holding.charges.values():
                        node = usage.table.index.get(charge.node)
                        if node is not None:
                            usage.charge(charge, node, -1)
            for each in self._admitted:
                if self._may_be_asked(each.placed.allocation, queue, priority):
                    for part in each.placed.parts:
                        usage.take(part.row.ask, part.nodes, -1)
            known = self._cleared[key] = WhatIf(usage, self._whatif.policy, self._whatif.panel)
        return known

    def _may_be_asked(self, other: AllocationFact, queue: QueueFact, priority: int) -> bool:
        """Whether work of `priority` in `queue` may ask `other` to go."""
        is_own = other.queue == queue.name
        return other.preemptible and (self._priority(other) <= priority if is_own else queue.reclaim != NEVER)

    def _priority(self, fact: AllocationFact) -> int:
        return priority_of(fact, self._snapshot.job_of(fact))
