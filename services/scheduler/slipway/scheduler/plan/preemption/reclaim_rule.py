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

A second rule is for the nodes that pending work is confined to. If its selector, affinity or tolerations leave work
only some nodes, a queue may use no more than it deserves of the pool and still use more than its part of these nodes.
Then work is taken from that queue, one unit after the other:

- Each time the unit is from a queue that uses more than its part of the set, of a requested resource. Without the unit
  the queue still uses at least its part. Both hold for all queues up to where the branches of the two queues meet.
- The claiming queue's share on the set afterwards is at most the victim queue's afterwards.
- The same is true of their shares of the pool, so that the first rule does not take the work back.
- Work that is itself confined to other nodes is left to a queue that uses no more than its part of those nodes.

Work that the first rule allows to take (FIRST) may be taken as well, because a gang may need both.

Invariant: on an unchanged input, the queue that lost work by this rule may not take it back, neither by this rule on
the same nodes nor by the first one.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.resources import Resources, gpus_of, total
from slipway.scheduler.plan.placement.node_sets import NodeSet, NodeSets, confined_roles
from slipway.scheduler.plan.placement.tick_state import TickState
from slipway.scheduler.plan.preemption.victims import EvictionUnit, VictimTable
from slipway.scheduler.plan.queueing.node_shares import NodeShares
from slipway.scheduler.plan.queueing.queue_tree import Due, QueueTree, counted
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.nodes import Bools, Ints
from slipway.scheduler.plan.state.rank_request import requests_of
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


NEVER, ANY, NEWER = "Never", "Any", "LowerOrNewerEqual"


class SetDemand:
    """What pending work requests on one set of nodes, in base units."""

    def __init__(self, node_set: NodeSet, amounts: Mapping[str, int]) -> None:
        self.node_set = node_set
        self.amounts = amounts
        self.resources = tuple(name for name, amount in sorted(counted(amounts).items()) if amount > 0)


def confined_claim(state: TickState, fact: AllocationFact) -> "ConfinedClaim | None":
    """Return the claim of `fact` in the current state; None when no role of it is confined."""
    wanted = [role for role, want in zip(fact.roles, rank_request.targets(fact), strict=True) if want]
    if not confined_roles(wanted, state.whatif.table) or any(_is_by_quota(state, role) for role in wanted):
        return None
    sets = state.node_sets()
    counts = dict(zip([role.name for role in fact.roles], rank_request.targets(fact), strict=True))
    demands: dict[int, tuple[NodeSet, list[Resources]]] = {}
    for role in wanted:
        node_set = sets.of(role)
        if node_set is not None:
            demands.setdefault(id(node_set), (node_set, []))[1].append(requests_of(role) * counts[role.name])
    if not demands:
        return None
    parts = [SetDemand(node_set, total(asked).amounts) for node_set, asked in demands.values()]
    return ConfinedClaim(state, fact.queue, rank_request.smallest_demand(fact), sets, parts)


class ConfinedClaim:
    """What work of `queue` may take on the sets that it is confined to; each call uses the current state."""

    def __init__(self, state: TickState, queue: str, demand: Resources, sets: NodeSets, parts: list[SetDemand]) -> None:
        self._state = state
        self.queue = queue
        self._demand = demand.amounts
        self._sets = sets
        self._parts = parts
        self._pool = ReclaimClaim(state.tree, queue, demand.amounts)

    @property
    def queue_shares(self) -> NodeShares:
        """The shares on the first set, by which the queue that is furthest above its part gives first."""
        return self._parts[0].node_set.shares

    def verdict(self, holding: Holding, ranks: Collection[int]) -> int:
        """Return CONFINED when `ranks` may be taken, else NOT."""
        used = holding.used_by(ranks).amounts
        if self._pool.judge(holding.allocation.queue, used) == FIRST:
            return CONFINED
        return CONFINED if self._allows(holding, ranks, used) else NOT

    def eligible(self, victims: VictimTable) -> Bools:
        """Return the units of other queues on the sets that may be evicted next, in the current state."""
        found: Bools = np.zeros(len(victims.units), dtype=np.bool_)
        seen: set[int] = set()
        for part in self._parts:
            above = [number for number, name in enumerate(victims.queues) if self._is_above(part, name)]
            here = victims.piece_unit[part.node_set.nodes[victims.piece_node]]
            indices: list[int] = np.unique(here[np.isin(victims.queue[here], above)]).tolist()
            for index in indices:
                if index not in seen:
                    seen.add(index)
                    unit = victims.units[index]
                    ranks = self._ranks(unit)
                    found[index] = self._allows(unit.holding, ranks, unit.holding.used_by(ranks).amounts)
        return found

    def _ranks(self, unit: EvictionUnit) -> tuple[int, ...]:
        """Return the ranks that are evicted with a unit."""
        if not unit.is_whole:
            return (unit.rank,)
        holding = unit.holding
        return tuple(rank for rank in self._state.left_of(holding) if rank not in holding.leaving)

    def _is_above(self, part: SetDemand, name: str) -> bool:
        """Whether `name` uses more than its part of a requested resource."""
        if name == self.queue or self._state.tree.queue(name) is None:
            return False
        return any(part.node_set.shares.above_due(name, resource) > 0 for resource in part.resources)

    def _allows(self, holding: Holding, ranks: Collection[int], used: Mapping[str, int]) -> bool:
        """Whether `ranks`, which use `used` in total, may be evicted by the shares of a set."""
        victim, tree = holding.allocation.queue, self._state.tree
        if victim == self.queue or tree.queue(victim) is None:
            return False
        ours, theirs = tree.branches(self.queue, victim)
        if not ours or not theirs:
            return False
        less = {name: -amount for name, amount in used.items()}
        if tree.share(ours[-1], self._demand) > tree.share(theirs[-1], less):
            return False
        if tree.denies_reclaim(ours[-1], theirs[-1], self._demand, used):
            return False
        return any(self._allows_on(part, holding, ranks, (ours[-1], theirs)) for part in self._parts)

    def _allows_on(
        self, part: SetDemand, holding: Holding, ranks: Collection[int], meeting: tuple[str, tuple[str, ...]]
    ) -> bool:
        ours, theirs = meeting
        node_set, shares = part.node_set, part.node_set.shares
        used = node_set.use_of(holding, ranks)
        if not _can_spare(shares, theirs, used, part.resources):
            return False
        less = {name: -amount for name, amount in used.items()}
        if shares.share(ours, part.amounts) > shares.share(theirs[-1], less):
            return False
        return all(self._is_free(role, part, holding, ranks, theirs) for role in _roles(holding, ranks))

    def _is_free(
        self, role: RoleFact, part: SetDemand, holding: Holding, ranks: Collection[int], theirs: tuple[str, ...]
    ) -> bool:
        """Whether the nodes that a role of the victim is itself confined to do not protect it from eviction."""
        own = self._sets.of(role)
        if own is None or own.covers(part.node_set):
            return True
        return _can_spare(own.shares, theirs, own.use_of(holding, ranks), part.resources)


def _is_by_quota(state: TickState, role: RoleFact) -> bool:
    """Whether some queue has a quota of the flavor of `role`; then the ordinary reclaim rule decides."""
    return bool(role.flavor) and gpus_of(role.flavor or "") in state.tree.named


def _can_spare(shares: NodeShares, queues: tuple[str, ...], used: Mapping[str, int], asked: tuple[str, ...]) -> bool:
    """Whether `used` includes a requested resource of which all `queues` use at least their part without it."""
    return any(
        amount > 0 and resource in asked and all(shares.above_due(name, resource) >= amount for name in queues)
        for resource, amount in counted(used).items()
    )


def _roles(holding: Holding, ranks: Collection[int]) -> list[RoleFact]:
    """Return the roles of `ranks`, each once."""
    roles = {id(role): role for rank in ranks if (role := holding.allocation.role_of(rank)) is not None}
    return list(roles.values())
