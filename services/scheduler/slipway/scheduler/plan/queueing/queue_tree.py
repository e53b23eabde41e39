"""Quota along the queue tree: what a queue may use, own and borrowed, and how far it is above its due.

Per resource that some queue names. Quota of a queue = its own nominal + its children's. What it does not lend
(quota above `lendingLimit`) is its alone; the rest, and what the implicit root holds beyond all nominals, may be
borrowed from the parent up to `borrowingLimit` beyond the queue's own quota. `limit` caps the subtree outright.
A resource that a queue's nominal does not name is not bounded by that queue; a demand above the whole pool is
not a matter of quota (it does not fit). Work that cannot be preempted does not borrow: it stays within its queue's own
nominal; that of queues without one stays together within the nominal of the first queue above that has one, or within
what belongs to nobody.

What the pool has is what its nodes can take: a node that is cordoned, not Ready, disabled or draining adds nothing to
the root's quota nor to what queues deserve. What stands on such a node is used all the same (`strand`); the root holds
that much more as long as it stands there, since it takes no room on the other nodes.

Invariants: `take` never refuses (it records what is); `shortfall` is the only judge. Amounts come in base units;
inside, and in what is answered, GPUs are counted in `GPU_UNITS`, since a rank may use a part of one (`counted`).
Source: Kueue's cache/scheduler/resource_node.go for the borrowing arithmetic.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from math import lcm

import msgspec

from slipway.model.decay import level
from slipway.model.facts import QueueFact
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import GPU, Resources, flavor_in
from slipway.scheduler.plan.queueing.branches import (
    ROOT,
    Branch,
    Due,
    counted,
    grow,
    raised,
    set_aside,
    shift,
    with_run_limits,
)
from slipway.scheduler.plan.state.budgets import Exhausted, Spent, exhausted
from slipway.scheduler.plan.state.past_use import STEP_MAX, STEPS, PastUse

__all__ = ["ROOT", "QueueTree", "Shortfall", "counted"]

DEMANDS_MAX = 4096
_STEPS_LCM = lcm(*range(1, STEP_MAX + 1))
"""divides by every step: shifted shares are whole numbers as shares are"""
_NO_AMOUNTS: Mapping[str, int] = {}
_CLOSED_NONE = Resources()


class Shortfall(msgspec.Struct, frozen=True):
    """What stops a demand: `queue` lacks `short` of `resource` under its `kind` of bound (GPUs in `GPU_UNITS`)."""

    queue: str
    kind: str
    """limit | nominal | borrowing"""
    resource: str
    short: int
    bound: int
    used: int

    @property
    def raise_by(self) -> int:
        """By how many base units the bound has to be raised: quotas are in whole GPUs."""
        gpus = -(-self.short // GPU_UNITS)
        if self.resource == GPU:
            return gpus
        return gpus * GPU_UNITS if flavor_in(self.resource) else self.short


class QueueTree:
    """The queues of one pool with their use; `total` is the whole pool's allocatable, `closed` what of it is on nodes
    that take no work."""

    def __init__(self, queues: Iterable[QueueFact], total: Resources, closed: Resources = _CLOSED_NONE) -> None:
        given = sorted(queues, key=lambda item: item.name)
        self._aside = set_aside(given)
        self._inner = {queue.parent for queue in given}
        self._facts = with_run_limits({queue.name: queue for queue in given if queue.name not in self._aside})
        self._pool = total
        self._closed = closed
        self._whole = Resources(dict(counted(total.amounts)))
        shut = counted(closed.amounts)
        self._open = Resources({name: amount - shut.get(name, 0) for name, amount in self._whole.amounts.items()})
        """what the nodes can take, with the zeros"""
        self._branches, self.named = grow(self._facts, self._open)
        there = {name: self._open.get(name) or most for name, most in self._whole.amounts.items() if most > 0}
        self.unit = lcm(*there.values(), 1) * lcm(*(branch.weight for branch in self._branches.values()))
        """what a share of all that the nodes can take is: then every share of whole amounts is a whole number"""
        self._parts = {name: self.unit // amount for name, amount in there.items()}
        """{resource: one of it as a share of what the nodes can take, or of all there is where that is nothing}"""
        self._is_named = frozenset(self.named)
        self._root = self._branches[ROOT]
        self._empty: QueueTree | None = None
        self._taken: dict[tuple[str, bool], dict[str, int]] = {}
        self._stranded: dict[tuple[str, bool], dict[str, int]] = {}
        self._demands: dict[int, tuple[Mapping[str, int], Mapping[str, int]]] = {}
        self._above: dict[str, set[str]] = {}
        """{resource that was asked about: the queues that are above their due in it}"""
        self._meetings: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self.exhausted: Mapping[str, Exhausted] = {}
        """{queue: the budget that closes it to work with GPUs}"""
        self._past: PastUse | None = None
        self._used_before: dict[str, int] = {}
        self.is_shifted = False
        """whether what some queue used before shifts what it deserves"""

    def spend(self, spent: Spent, now: float) -> None:
        """Hold the budgets against what was used in their current windows."""
        self.exhausted = exhausted(self._facts, spent, now)

    def remember(self, past: PastUse | None) -> None:
        """Hold what the queues used before against what they deserve. None: the past does not count."""
        self._past = past
        if past is None:
            return
        self.is_shifted = bool(past.history) and shift(self._branches, self.named, past)
        for name in past.used:
            branch = self._branches.get(name)
            for above in branch.line if branch is not None else ():
                self._used_before[above.name] = self._used_before.get(above.name, 0) + past.of_queue(name)

    def used_before(self, name: str) -> int:
        """What `name` and all below it used before, in GPU-minutes by weight; 0 where the past does not count."""
        if not self._used_before:
            return 0
        return level(self._used_before.get(name, 0)) // self._branches[name].weight

    def queue(self, name: str) -> QueueFact | None:
        """The queue called `name`, as it was given, but with the `maxRuntime` and the `minRuntime` that hold for its
        work; None also when it is set aside."""
        return self._facts.get(name)

    def aside(self, name: str) -> str:
        """Why nothing starts in queue `name`, which is there; "" when it is as it should be."""
        return self._aside.get(name, "")

    def is_leaf(self, name: str) -> bool:
        """Whether work may sit in `name`."""
        return name not in self._inner

    def above(self, name: str) -> str:
        """The queue above `name`; ROOT at the top."""
        parent = self._branches[name].parent
        return parent.name if parent else ROOT

    def take(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> None:
        """Record use in `name` (negative amounts give it back); a queue that is gone counts for the root."""
        self._take(name, self._counted(demand), preemptible=preemptible)

    def _take(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> None:
        branch = self._branches.get(name, self._root)
        sums = [self._taken.setdefault((name, preemptible), {}), *(above.whole for above in branch.line)]
        for resource, amount in demand.items():
            if resource in self._is_named:
                _add(branch, resource, amount)
                if not preemptible:
                    _add_firm(branch, resource, amount)
            for amounts in sums:
                amounts[resource] = amounts.get(resource, 0) + amount
            if (known := self._above.get(resource)) is not None:
                for above in branch.line:
                    (known.add if self.above_due(above.name, resource) > 0 else known.discard)(above.name)

    def strand(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> None:
        """Record what of the use of `name` is on nodes that take no work (negative amounts: no longer)."""
        self._strand(name, self._counted(demand), preemptible=preemptible)

    def _strand(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> None:
        branch = self._branches.get(name, self._root)
        sums = self._stranded.setdefault((name, preemptible), {})
        for resource, amount in demand.items():
            sums[resource] = sums.get(resource, 0) + amount
            if resource in self._is_named:
                _pass_up(branch.line, resource, amount, lambda at: (at.stranded, at.unlent))
                if not preemptible:
                    _pass_up(branch.line, resource, amount, lambda at: (at.stranded_firm, at.firm_own))

    def with_open(self, opened: Resources) -> "QueueTree":
        """The tree as it would be if `opened` of what is on nodes that take no work were on nodes that do."""
        return self._again(self._facts.values(), self._closed - opened)

    def keep(self, name: str, demand: Mapping[str, int]) -> None:
        """Keep the unused nominal of `name`, up to `demand`, from borrowers (not from its own work)."""
        self._keep(name, counted(demand))

    def _keep(self, name: str, demand: Mapping[str, int]) -> None:
        branch = self._branches[name]
        if branch.own is None or branch.kept:
            return
        for resource, amount in demand.items():
            unused = min(amount, branch.own.get(resource, 0) - branch.whole.get(resource, 0))
            if unused > 0:
                branch.kept[resource] = unused
                _add(branch, resource, unused)

    def is_above_limit(self, name: str) -> bool:
        """Whether the queue, or one above it, uses more than its hard limit: it was made smaller meanwhile."""
        return any(
            above.whole.get(resource, 0) > bound
            for above in self._branches[name].line
            for resource, bound in (above.limit or {}).items()
        )

    def shortfall(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> Shortfall | None:
        """The first bound that `demand` more would break now; None when it fits."""
        branch = self._branches[name]
        if not branch.kept:
            return self._shortfall(branch, self._counted(demand), preemptible=preemptible)
        kept, branch.kept = branch.kept, {}
        for resource, amount in kept.items():
            _add(branch, resource, -amount)
        try:
            return self._shortfall(branch, self._counted(demand), preemptible=preemptible)
        finally:
            branch.kept = kept
            for resource, amount in kept.items():
                _add(branch, resource, amount)

    def never(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> Shortfall | None:
        """The first bound that `demand` would break even if nothing else ran and all nodes took work."""
        if self._empty is None:
            self._empty = QueueTree(self._facts.values(), self._pool)
        return self._empty.shortfall(name, demand, preemptible=preemptible)

    def is_full(self, demand: Mapping[str, int]) -> bool:
        """Whether the pool has less left in all than `demand`: what waits then waits for room, whatever quota says."""
        stranded = self._stranded.values()
        for resource, amount in self._counted(demand).items():
            there = self._open.get(resource) + sum(amounts.get(resource, 0) for amounts in stranded)
            if amount > 0 and resource in self._whole.amounts and self._root.whole.get(resource, 0) + amount > there:
                return True
        return False

    def with_more(self, short: Shortfall) -> "QueueTree":
        """The tree as it would be if the bound of `short` were raised by what is short."""
        facts = dict(self._facts)
        if short.queue in facts:
            facts[short.queue] = raised(facts[short.queue], short.kind, short.resource, short.raise_by)
        return self._again(facts.values(), self._closed)

    def _again(self, facts: Iterable[QueueFact], closed: Resources) -> "QueueTree":
        other = QueueTree(facts, self._pool, closed)
        other.exhausted = self.exhausted
        other.remember(self._past)
        for (name, preemptible), amounts in self._taken.items():
            other._take(name, amounts, preemptible=preemptible)
        for (name, preemptible), amounts in self._stranded.items():
            other._strand(name, amounts, preemptible=preemptible)
        for branch in self._branches.values():
            if branch.kept:
                other._keep(branch.name, branch.kept)
        return other

    def share(self, name: str, demand: Mapping[str, int] = _NO_AMOUNTS) -> Due:
        """How far `name`, with all below it, would be above its due with `demand` more: the dominant excess, as a part
        of the pool, by weight. Exact, counted in `unit`: to compare with others of the same tree.
        O(resources of the pool)."""
        branch = self._branches[name]
        demand, parts, whole = self._counted(demand), self._parts, branch.whole
        worst: Due = 0
        for resource, due in branch.deserved.items():
            excess = whole.get(resource, 0) + demand.get(resource, 0) - due
            if excess > 0 and (share := excess * parts.get(resource, 0)) > worst:
                worst = share
        return worst // branch.weight if isinstance(worst, int) else worst / branch.weight

    def shifted_share(self, name: str, demand: Mapping[str, int] = _NO_AMOUNTS) -> Due:
        """`share` above what `name` deserves by its past use as well; `share` itself where the past does not count.
        To compare with others of its kind alone."""
        if not self.is_shifted:
            return self.share(name, demand)
        branch = self._branches[name]
        demand, parts, whole = self._counted(demand), self._parts, branch.whole
        worst = 0
        for resource, due in branch.shifted.items():
            excess = whole.get(resource, 0) + demand.get(resource, 0) - due
            if excess > 0 and (share := excess * parts.get(resource, 0)) > worst:
                worst = share
        return worst * (STEPS * _STEPS_LCM) // (branch.weight * branch.step)

    def withholds(self, ours: str, theirs: str, demand: Mapping[str, int], used: Mapping[str, int]) -> bool:
        """Whether the past keeps `ours` from taking work that uses `used` from `theirs` for `demand`: it would be above
        what it deserves by its past, and no less so than the other one."""
        if not self.is_shifted:
            return False
        mine = self.shifted_share(ours, demand)
        if not mine:
            return False
        after = self.shifted_share(theirs, {name: -amount for name, amount in used.items()})
        return mine > after and mine >= self.shifted_share(theirs)

    def would_borrow(self, name: str, demand: Mapping[str, int]) -> bool:
        """Whether `name` would use more GPUs, of all or of a flavor, than it deserves with `demand` more; of what no
        queue states a limit it borrows nothing."""
        return any(
            amount > 0 and self.above_due(name, resource) + amount > 0
            for resource, amount in self._counted(demand).items()
            if resource in self._is_named and (resource == GPU or flavor_in(resource))
        )

    def shares(self, name: str) -> tuple[Due, ...]:
        """The shares of `name` and of all queues above it, from the top, by their past use as well; none of a queue
        that is not in the tree."""
        branch = self._branches.get(name)
        return () if branch is None else tuple(self.shifted_share(above.name) for above in branch.line[-2::-1])

    def line(self, name: str) -> tuple[str, ...]:
        """`name` and all queues above it, the root last; of a queue that is not in the tree, the root alone."""
        return tuple(branch.name for branch in self._branches.get(name, self._root).line)

    def shifted(self, name: str) -> Mapping[str, Due]:
        """What `name` deserves by its past use as well: its quota, or a part of what the quotas leave."""
        branch = self._branches[name]
        return branch.shifted if self.is_shifted else branch.deserved

    def weight_factor(self, name: str) -> float:
        """By how much its weight counts by its past: 1 where that does not, or is as its siblings' is."""
        return self._branches[name].step / STEPS

    def dues(self, name: str) -> Mapping[str, Due]:
        """What `name` deserves of each resource in which it deserves anything or nothing: exact, counted."""
        return self._branches[name].deserved

    def weight(self, name: str) -> int:
        """By what the excess of `name` is divided."""
        return self._branches[name].weight

    def open_total(self) -> Mapping[str, int]:
        """What the nodes that take work can hold, counted, with the zeros."""
        return self._open.amounts

    def top(self, name: str) -> str:
        """The queue right below the root that `name` is, or is below; `name` where it is not in the tree."""
        branch = self._branches.get(name)
        return name if branch is None or len(branch.line) < 2 else branch.line[-2].name

    def deserved(self, name: str) -> Resources:
        """What `name` deserves: its quota, or its weight's part of what its parent has beyond its siblings' quotas.
        GPUs in `GPU_UNITS`, rounded down."""
        return Resources.of({name: int(due) for name, due in self._branches[name].deserved.items()})

    def whole(self, name: str) -> Resources:
        """Everything used in the subtree of `name`, GPUs in `GPU_UNITS`."""
        return Resources.of(self._branches[name].whole)

    def branches(self, name: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The queues from `name` and from `other` upwards, each up to where their branches meet and without that."""
        known = self._meetings.get((name, other))
        if known is None:
            ours = [node.name for node in self._branches[name].line]
            theirs = [node.name for node in self._branches[other].line]
            while ours and theirs and ours[-1] == theirs[-1]:
                del ours[-1], theirs[-1]
            known = self._meetings[name, other] = (tuple(ours), tuple(theirs))
        return known

    def above_in(self, resource: str) -> Set[str]:
        """The queues that use more of `resource` than they deserve; follows what is taken and given back."""
        known = self._above.get(resource)
        if known is None:
            known = self._above[resource] = {name for name in self._branches if self.above_due(name, resource) > 0}
        return known

    def above_due(self, name: str, resource: str) -> Due:
        """By how much `name` uses more of `resource` than it deserves (an inner queue no less than what is nominal
        below it). What it has no due in, it is above with all that it uses, if any queue has a quota of it."""
        node = self._branches[name]
        due = node.deserved.get(resource, 0 if resource in self.named else None)
        if due is None:
            return 0
        if node.children:
            due = max(due, node.nominal.get(resource, 0))
        return node.whole.get(resource, 0) - due

    def is_below(self, name: str, above: str) -> bool:
        """Whether `name` is `above` or in its subtree."""
        node = self._branches.get(name)
        return above == ROOT or (node is not None and any(each.name == above for each in node.line))

    def violations(self) -> list[Shortfall]:
        """Limits that are broken by what is used now."""
        return [
            Shortfall(branch.name, "limit", resource, used - bound, bound, used)
            for branch in self._branches.values()
            for resource, bound in branch.limit.items()
            if (used := branch.whole.get(resource, 0)) > bound
        ]

    def _counted(self, demand: Mapping[str, int]) -> Mapping[str, int]:
        """`counted`, once per demand: what is alike asks with the very same mapping."""
        known = self._demands.get(id(demand))
        if known is not None and known[0] is demand:
            return known[1]
        if len(self._demands) > DEMANDS_MAX:
            self._demands.clear()
        result = counted(demand)
        self._demands[id(demand)] = (demand, result)
        return result

    def _shortfall(self, branch: Branch, demand: Mapping[str, int], *, preemptible: bool) -> Shortfall | None:
        for resource in self.named:
            amount = demand.get(resource, 0)
            if amount <= 0:
                continue
            found = _over_limit(branch, resource, amount)
            if found is None and not preemptible:
                found = self._over_nominal(branch, resource, amount)
            found = found or self._over_available(branch, resource, amount)
            if found is not None:
                return found
        return None

    def _over_nominal(self, branch: Branch, resource: str, amount: int) -> Shortfall | None:
        for above in branch.line:
            if above is self._root and amount > self._open.get(resource):
                return None
            if resource in above.firm_own:
                used, bound = above.firm.get(resource, 0), above.firm_own[resource]
                if above is self._root:
                    bound += above.stranded_firm.get(resource, 0)
                short = used + amount - bound
                return Shortfall(above.name, "nominal", resource, short, bound, used) if short > 0 else None
        return None

    def _over_available(self, branch: Branch, resource: str, amount: int) -> Shortfall | None:
        available, tightest = _available(branch, resource)
        if amount <= available or (tightest is self._root and amount > self._open.get(resource)):
            return None
        used = tightest.used.get(resource, 0)
        return Shortfall(tightest.name, "borrowing", resource, amount - available, used + available, used)


def _pass_up(
    line: tuple[Branch, ...], resource: str, amount: int, of: Callable[[Branch], tuple[dict[str, int], dict[str, int]]]
) -> None:
    """Add to one sum of each branch what passes beyond its own; `of`: (the sums, what is its own)."""
    for current in line:
        if not amount:
            return
        sums, owned = of(current)
        own, before = owned.get(resource, 0), sums.get(resource, 0)
        sums[resource] = before + amount
        amount = max(0, before + amount - own) - max(0, before - own)


def _add(branch: Branch, resource: str, amount: int) -> None:
    """Add to `used`, and to the ancestors' what passes beyond the queue's own, unlent quota."""
    for current in branch.line:
        if not amount:
            return
        own = current.unlent.get(resource, 0)
        before = current.used.get(resource, 0)
        current.used[resource] = before + amount
        amount = max(0, before + amount - own) - max(0, before - own)


def _add_firm(branch: Branch, resource: str, amount: int) -> None:
    """The same for what cannot be preempted: what is beyond the queue's own nominal is its ancestors'."""
    for current in branch.line:
        if not amount:
            return
        own = current.firm_own.get(resource, 0)
        before = current.firm.get(resource, 0)
        current.firm[resource] = before + amount
        amount = max(0, before + amount - own) - max(0, before - own)


def _over_limit(branch: Branch, resource: str, amount: int) -> Shortfall | None:
    for above in branch.line:
        if above.limit and resource in above.limit:
            used, bound = above.whole.get(resource, 0), above.limit[resource]
            if used + amount > bound:
                return Shortfall(above.name, "limit", resource, used + amount - bound, bound, used)
    return None


def _available(branch: Branch, resource: str) -> tuple[int, Branch]:
    """What `branch` may still use, and the one whose bound that is."""
    line = branch.line
    tightest = line[-1]
    held = tightest.quota.get(resource, 0) + tightest.stranded.get(resource, 0)
    available = held - tightest.used.get(resource, 0)
    for current in line[-2::-1]:
        if not (current.unlent or current.borrowing):
            continue
        used, own = current.used.get(resource, 0), current.unlent.get(resource, 0)
        if resource in current.borrowing:
            mine = current.quota.get(resource, 0) - own - max(0, used - own) + current.borrowing[resource]
            if mine <= available:
                available, tightest = mine, current
        if own > used:
            # What it does not lend is its own, however far others are above their bounds.
            available = max(0, available) + own - used
    return available, tightest
