"""The reclaim rule: whether one queue may take running work from another.

Work is taken one after the other, each time from a queue that uses more than it deserves of something that is asked
for, up to where the branches of the two queues meet. That brings the taker up to what it deserves. Beyond that, its
share afterwards must be at most the other's afterwards (FIRST), or, failing that, below the other's before (SECOND).
Shares are those of the two branches below the queue where they meet: what one team takes from another is weighed
between the teams, not between their members.

Invariant: on an unchanged input whoever lost by this rule may not take it back by it: its share without what it lost
is not above the taker's.
"""

from collections.abc import Mapping

from slipway.scheduler.plan.quota import QueueTree, counted

NOT, SECOND, FIRST = 0, 1, 2
"""How a step is allowed."""


class Claim:
    """What work of `queue` with `demand` may take, as the tree stands when it is asked."""

    def __init__(self, tree: QueueTree, queue: str, demand: Mapping[str, int]) -> None:
        self._tree = tree
        self._queue = queue
        self._demand = demand
        self._asked: tuple[str, ...] | None = None
        self._branches: dict[str, tuple[str, tuple[str, ...]]] = {}

    def judge(self, victim: str, used: Mapping[str, int]) -> int:
        """Whether work that uses `used` may be taken from queue `victim` next."""
        tree = self._tree
        ours, theirs = self._branch(victim)
        if not theirs or not self._is_above(theirs, counted(used)):
            return NOT
        share = tree.share(ours, self._demand)
        if share <= tree.share(theirs[-1], {name: -amount for name, amount in used.items()}):
            return FIRST
        return SECOND if share < tree.share(theirs[-1]) else NOT

    def _is_above(self, path: tuple[str, ...], used: Mapping[str, int]) -> bool:
        tree = self._tree
        if self._asked is None:
            self._asked = tuple(name for name, amount in sorted(counted(self._demand).items()) if amount > 0)
        return any(
            used.get(resource, 0) > 0 and all(tree.above_due(name, resource) > 0 for name in path)
            for resource in self._asked
        )

    def _branch(self, victim: str) -> tuple[str, tuple[str, ...]]:
        known = self._branches.get(victim)
        if known is None:
            ours, theirs = self._tree.branches(self._queue, victim)
            known = self._branches[victim] = (ours[-1] if ours else self._queue, theirs)
        return known
