"""The reclaim rule: whether one queue may take running work from another.

Work is taken one after the other, each time from a queue that uses more than it deserves of something that is asked
for, up to where the branches of the two queues meet. That brings the taker up to what it deserves. Beyond that, its
share afterwards must be at most the other's afterwards (FIRST), or, failing that, below the other's before (SECOND).
Shares are those of the two branches below the queue where they meet: what one team takes from another is weighed
between the teams, not between their members.

Where the pool counts past use, a queue that would be above what it deserves by its past takes only what the same rule
gives it by the shifted shares, too. So the past withholds; it lets nothing be taken that this rule would not give.

Invariant: on an unchanged input whoever lost by this rule may not take it back by it: its share without what it lost
is not above the taker's.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from slipway.scheduler.plan.queueing.branches import Due
from slipway.scheduler.plan.queueing.queue_tree import QueueTree, counted
from slipway.scheduler.plan.state.nodes import Ints
from slipway.scheduler.plan.state.snapshot import Holding

NOT, SECOND, FIRST, CONFINED = 0, 1, 2, 3
"""How a step is allowed; CONFINED: by the shares of a set of nodes (`confined_claim`)."""


class Claim(Protocol):
    """Who says which running work may be taken."""

    def verdict(self, holding: Holding, ranks: Collection[int]) -> int:
        """Whether `ranks` of a holding of another queue may be taken next, as things stand."""
        ...


class ReclaimClaim:
    """What work of `queue` with `demand` may take, as the tree stands when it is asked."""

    def __init__(self, tree: QueueTree, queue: str, demand: Mapping[str, int]) -> None:
        self._tree = tree
        self.queue = queue
        self._demand = demand
        self._names: tuple[str, ...] | None = None
        self._branches: dict[str, tuple[str, tuple[str, ...]]] = {}

    def judge(self, victim: str, used: Mapping[str, int]) -> int:
        """Whether work that uses `used` may be taken from queue `victim` next."""
        ours, theirs = self._branch(victim)
        if not theirs or not _uses(used, self._above_due(theirs)):
            return NOT
        return self._weigh(self._tree.share(ours, self._demand), ours, theirs[-1], used)

    def verdict(self, holding: Holding, ranks: Collection[int]) -> int:
        """`judge` of what `ranks` use."""
        return self.judge(holding.allocation.queue, holding.used_by(ranks).amounts)

    def judge_all(self, kinds: Mapping[str, Sequence[tuple[int, Mapping[str, int]]]], count: int) -> Ints:
        """`judge` of each of `count` kinds of use as the tree stands now; `kinds` is {queue: (number of the kind, its
        use)}. Work of the queue itself is not its business.

        Most queues use no more than they deserve: the time goes by those that do.
        """
        tree = self._tree
        found: Ints = np.zeros(count, dtype=np.int64)
        shares: dict[str, Due] = {}
        for victim in set[str]().union(*(tree.above_in(resource) for resource in self._asked())):
            if victim == self.queue or victim not in kinds:
                continue
            ours, theirs = self._branch(victim)
            resources = self._above_due(theirs)
            if not resources:
                continue
            if ours not in shares:
                shares[ours] = tree.share(ours, self._demand)
            for kind, used in kinds[victim]:
                if _uses(used, resources):
                    found[kind] = self._weigh(shares[ours], ours, theirs[-1], used)
        return found

    def _weigh(self, share: Due, ours: str, theirs: str, used: Mapping[str, int]) -> int:
        """Our share with what we ask for, beside theirs."""
        if self._tree.withholds(ours, theirs, self._demand, used):
            return NOT
        if share <= self._tree.share(theirs, {name: -amount for name, amount in used.items()}):
            return FIRST
        return SECOND if share < self._tree.share(theirs) else NOT

    def _above_due(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """What is asked for of which all of `path` use more than they deserve."""
        tree = self._tree
        return tuple(name for name in self._asked() if path and all(queue in tree.above_in(name) for queue in path))

    def _asked(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple(name for name, amount in sorted(counted(self._demand).items()) if amount > 0)
        return self._names

    def _branch(self, victim: str) -> tuple[str, tuple[str, ...]]:
        known = self._branches.get(victim)
        if known is None:
            ours, theirs = self._tree.branches(self.queue, victim)
            known = self._branches[victim] = (ours[-1] if ours else self.queue, theirs)
        return known


def _uses(used: Mapping[str, int], resources: tuple[str, ...]) -> bool:
    if not resources:
        return False
    amounts = counted(used)
    return any(amounts.get(resource, 0) > 0 for resource in resources)
