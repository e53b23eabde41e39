"""What queues hold of one set of nodes, beside their part of what these nodes have.

A queue deserves the same part of each set of nodes as of the whole pool: one that deserves half of the pool's GPUs
deserves half of the H100s. Shares on the set are reckoned as shares of the pool are (`QueueTree.share`): the dominant
excess above that part, as a part of the set, by weight. Knows nothing of nodes and of who holds what: both are given.

Invariant: `take` and its opposite leave the same amounts; all values are exact.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Protocol

from slipway.scheduler.plan.queueing.branches import Due, counted
from slipway.scheduler.plan.queueing.queue_tree import QueueTree

_NO_AMOUNTS: Mapping[str, int] = {}


class Standings(Protocol):
    """How far each queue is above its due: in the pool (`QueueTree`), or on a set of nodes (`NodeShares`)."""

    def shares(self, name: str) -> tuple[Due, ...]:
        """The shares of `name` and of all queues above it, from the top; none of a queue that is not in the tree."""
        ...

    def top(self, name: str) -> str:
        """The queue right below the root that `name` is, or is below; `name` where it is not in the tree."""
        ...


class NodeShares:
    """The queues of `tree` on a set of nodes that can take `total` (counted)."""

    def __init__(self, tree: QueueTree, total: Mapping[str, int]) -> None:
        self._tree = tree
        self.total = total
        self._dues: dict[str, dict[str, Due]] = {}
        self._used: dict[str, dict[str, int]] = {}
        """{queue: what it and all below it use on the set}"""

    def take(self, name: str, demand: Mapping[str, int], times: int = 1) -> None:
        """Record use in `name`; -1 gives it back. A queue that is gone counts for the root alone."""
        for above in self._tree.line(name):
            used = self._used.setdefault(above, {})
            for resource, amount in counted(demand).items():
                used[resource] = used.get(resource, 0) + amount * times

    def used(self, name: str, resource: str) -> int:
        """What `name` and all below it use of `resource` on the set (GPUs in `GPU_UNITS`)."""
        return self._used.get(name, {}).get(resource, 0)

    def due(self, name: str, resource: str) -> Due | None:
        """What `name` deserves of `resource` on the set; None where that is of no queue."""
        return self._due(name).get(resource)

    def above_due(self, name: str, resource: str) -> Due:
        """By how much `name` uses more of `resource` on the set than it deserves there."""
        due = self.due(name, resource)
        return 0 if due is None else self.used(name, resource) - due

    def share(self, name: str, demand: Mapping[str, int] = _NO_AMOUNTS) -> Due:
        """How far `name` would be above its due on the set with `demand` more."""
        demand = counted(demand)
        worst = Fraction(0)
        for resource, due in self._due(name).items():
            total = self.total.get(resource, 0)
            excess = self.used(name, resource) + demand.get(resource, 0) - due
            if total > 0 and excess > 0:
                worst = max(worst, Fraction(excess) / total)
        return worst / self._tree.weight(name)

    def shares(self, name: str) -> tuple[Due, ...]:
        """As `Standings` says."""
        return tuple(self.share(above) for above in self._tree.line(name)[-2::-1])

    def top(self, name: str) -> str:
        """As `Standings` says."""
        return self._tree.top(name)

    def _due(self, name: str) -> dict[str, Due]:
        known = self._dues.get(name)
        if known is None:
            whole = self._tree.open_total()
            known = self._dues[name] = {
                resource: Fraction(due) * self.total.get(resource, 0) / whole[resource]
                for resource, due in self._tree.dues(name).items()
                if whole.get(resource, 0) > 0
            }
        return known


def is_part(total: Mapping[str, int], tree: QueueTree, resource: str) -> bool:
    """Whether a set with `total` has less of `resource` than all nodes that take work."""
    return total.get(resource, 0) < tree.open_total().get(resource, 0)
