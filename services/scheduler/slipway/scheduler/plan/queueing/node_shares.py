"""What queues use of one set of nodes, compared with their part of that set.

A queue deserves the same part of each set of nodes as of the whole pool: a queue that deserves half of the pool's GPUs
deserves half of the H100s. Shares on the set are computed as shares of the pool are (`QueueTree.share`): the dominant
excess above that part, relative to the set, by weight. Knows nothing of nodes or of which work uses them: the caller
supplies both.

Invariant: `take` and its opposite leave the same amounts; all values are exact.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Protocol

from slipway.scheduler.plan.queueing.queue_tree import Due, QueueTree, counted

_NO_AMOUNTS: Mapping[str, int] = {}


class QueueShares(Protocol):
    """How far each queue is above its due: in the pool (`QueueTree`), or on a set of nodes (`NodeShares`)."""

    def shares(self, name: str) -> tuple[Due, ...]:
        """Return the shares of `name` and of all queues above it, from the top; empty for a queue outside the tree."""
        ...

    def top(self, name: str) -> str:
        """Return the queue right below the root that `name` is or is below; `name` when it is not in the tree."""
        ...


class NodeShares:
    """The queues of `tree` on a set of nodes that can take `total`, as `counted` returns it."""

    def __init__(self, tree: QueueTree, total: Mapping[str, int]) -> None:
        self._tree = tree
        self.total = total
        self._dues: dict[str, dict[str, Due]] = {}
        self._used: dict[str, dict[str, int]] = {}
        """{queue: what it and all queues below it use on the set}"""

    def take(self, name: str, demand: Mapping[str, int], times: int = 1) -> None:
        """Record use in `name`; `times` = -1 removes it. Use of a deleted queue is added to the root alone."""
        for above in self._tree.path_of(name):
            used = self._used.setdefault(above, {})
            for resource, amount in counted(demand).items():
                used[resource] = used.get(resource, 0) + amount * times

    def used(self, name: str, resource: str) -> int:
        """Return what `name` and all queues below it use of `resource` on the set (GPUs in `GPU_UNITS`)."""
        return self._used.get(name, {}).get(resource, 0)

    def due(self, name: str, resource: str) -> Due | None:
        """Return what `name` deserves of `resource` on the set; None when no queue deserves any of it."""
        return self._due(name).get(resource)

    def above_due(self, name: str, resource: str) -> Due:
        """Return by how much the use of `name` on the set exceeds what it deserves there (may be negative)."""
        due = self.due(name, resource)
        return 0 if due is None else self.used(name, resource) - due

    def share(self, name: str, demand: Mapping[str, int] = _NO_AMOUNTS) -> Due:
        """Return how far `name` would be above its due on the set with `demand` more."""
        demand = counted(demand)
        worst = Fraction(0)
        for resource, due in self._due(name).items():
            total = self.total.get(resource, 0)
            excess = self.used(name, resource) + demand.get(resource, 0) - due
            if total > 0 and excess > 0:
                worst = max(worst, Fraction(excess) / total)
        return worst / self._tree.weight(name)

    def shares(self, name: str) -> tuple[Due, ...]:
        """Implements `QueueShares.shares`."""
        return tuple(self.share(above) for above in self._tree.path_of(name)[-2::-1])

    def top(self, name: str) -> str:
        """Implements `QueueShares.top`."""
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
    """Whether a set with `total` has less of `resource` than all nodes that accept work."""
    return total.get(resource, 0) < tree.open_total().get(resource, 0)
