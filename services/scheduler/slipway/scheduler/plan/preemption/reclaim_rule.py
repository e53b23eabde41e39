"""The reclaim rule: whether one queue may take running work from another.

Work is taken one unit after the other. Each time the unit is from a queue that uses more than it deserves of a
requested resource; this must hold for all queues up to where the branches of the two queues meet. That brings the
claiming queue up to what it deserves. Beyond that, its share afterwards must be at most the victim queue's share
afterwards (FIRST), or, failing that, below the victim queue's share before (SECOND). The shares are those of the two
branches below the queue where they meet: what one team takes from another is compared between the teams, not between
their members.

If the pool counts past use, a queue that would be above what it deserves by its past takes only what the rule also
permits by the shifted shares. So the past can only forbid; it permits nothing that the rule alone would not.

Invariant: on an unchanged input, the queue that lost work by this rule may not take it back by the same rule. Without
the lost work its share is not above the share of the queue that took it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from slipway.scheduler.plan.queueing.branches import Due
from slipway.scheduler.plan.queueing.queue_tree import QueueTree, counted
from slipway.scheduler.plan.state.nodes import Ints
from slipway.scheduler.plan.state.snapshot import Holding

NOT, SECOND, FIRST, CONFINED = 0, 1, 2, 3
"""How a step is permitted; CONFINED: by the shares of a set of nodes (`confined_claim`)."""


class Claim(Protocol):
    """Decides which running work may be taken."""

    def verdict(self, holding: Holding, ranks: Collection[int]) -> int:
        """Return how `ranks` of a holding of another queue may be taken next in the current state, or NOT."""
        ...


class ReclaimClaim:
    """What work of `queue` with `demand` may take; each call uses the current tree."""

    def __init__(self, tree: QueueTree, queue: str, demand: Mapping[str, int]) -> None:
        self._tree = tree
        self.queue = queue
        self._demand = demand
        self._names: tuple[str, ...] | None = None
        self._branches: dict[str, tuple[str, tuple[str, ...]]] = {}

    def judge(self, victim: str, used: Mapping[str, int]) -> int:
        """Return how work that uses `used` may be taken from queue `victim` next, or NOT."""
        ours, theirs = self._branch(victim)
        if not theirs or not _uses(used, self._above_due(theirs)):
            return NOT
        return self._weigh(self._tree.share(ours, self._demand), ours, theirs[-1], used)

    def verdict(self, holding: Holding, ranks: Collection[int]) -> int:
        """Return `judge` of what `ranks` use."""
        return self.judge(holding.allocation.queue, holding.used_by(ranks).amounts)

    def judge_all(self, kinds: Mapping[str, Sequence[tuple[int, Mapping[str, int]]]], count: int) -> Ints:
        """Return `judge` of each of `count` kinds of use, by the current tree.

        `kinds` is {queue: (number of the kind, its use)}; kinds of the claiming queue itself get NOT. Most queues use
        no more than they deserve, so only the other queues cost time.
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
        """Compare our share including the demand with theirs."""
        if self._tree.denies_reclaim(ours, theirs, self._demand, used):
            return NOT
        if share <= self._tree.share(theirs, {name: -amount for name, amount in used.items()}):
            return FIRST
        return SECOND if share < self._tree.share(theirs) else NOT

    def _above_due(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return the requested resources of which all queues of `path` use more than they deserve."""
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
