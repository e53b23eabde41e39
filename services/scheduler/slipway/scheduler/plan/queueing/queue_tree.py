"""Quota along the queue tree: what a queue may use, own and borrowed, and how far it is above its due.

The arithmetic is per resource that some queue names. The quota of a queue is its own nominal plus its children's quota.
Only the queue itself may use the part that it does not lend (quota above `lendingLimit`). The rest, and what the
implicit root has beyond all nominals, may be borrowed from the parent, up to `borrowingLimit` beyond the queue's own
quota. `limit` caps the whole subtree. A resource that a queue's nominal does not name is not bounded by that queue. A
demand above the whole pool is no matter of quota: it does not fit.

Work that cannot be preempted does not borrow: it stays within its queue's own nominal. For queues without a nominal,
such work of all of them together stays within the nominal of the first queue above that has one, or else within what no
queue's nominal includes.

The pool has what its nodes can take. A node that is cordoned, not Ready, disabled or draining adds nothing to the
root's quota nor to what queues deserve. Work on such a node is still counted as used (`take_stranded`). The root's
quota is larger by that amount while the work is there, since it uses no room on the other nodes.

Invariants: `take` never refuses (it records what is); only `shortfall` judges. Callers pass amounts in base units.
Inside, and in returned values, GPUs are counted in `GPU_UNITS`, since a rank may use a part of one (`counted`). Source:
Kueue's cache/scheduler/resource_node.go for the borrowing arithmetic.

What does not depend on use is the shape of the tree: which queue is below which, what each owns and lends, and what
each deserves. Some queues are set aside: queues whose parents form a circle or do not exist, and invalid queues.
Nothing starts in a queue that is set aside, nor below it; for all other queues it does not exist.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from fractions import Fraction
from math import lcm

import msgspec

from slipway.model.decay import constant, level
from slipway.model.facts import QueueFact
from slipway.model.mig import GPU_UNITS, slices_in, units_in
from slipway.model.resources import GPU, GPU_MILLI, GPU_SHARES, PODS, Resources, counted_gpus, flavor_in
from slipway.scheduler.plan.state.past_use import STEP_MAX, STEPS, Exhausted, PastUse, Spent, exhausted, step_of

ROOT = ""
ROOT_NAMES = ("", "root")
"""The names by which a queue names the implicit root as its parent."""


def counted(amounts: Mapping[str, int]) -> Mapping[str, int]:
    """Return base units as quota counts them: whole GPUs, parts of GPUs and slices are added up as `GPU_UNITS` of GPUs.

    A slice is also counted under its own name, because a queue may have a quota of it.
    """
    if GPU not in amounts and GPU_MILLI not in amounts and not units_in(amounts):
        return amounts
    result = {name: amount for name, amount in amounts.items() if name not in (GPU_MILLI, GPU_SHARES)}
    result[GPU] = counted_gpus(amounts)
    return result


Due = int | Fraction
"""An amount that a queue deserves, or a share. It is exact: a third of a pool is not rounded to less than a third."""


class Branch:
    """One queue with its use; `fact` is None for the implicit root."""

    def __init__(self, name: str, fact: QueueFact | None) -> None:
        self.name = name
        self.weight = max(fact.weight, 1) if fact else 1
        self.own: dict[str, int] | None = _amounts(fact.nominal) if fact else None
        """its own nominal; None when it has none"""
        self.borrowing = (_amounts(fact.borrowing_limit) if fact else None) or {}
        self.lending = (_amounts(fact.lending_limit) if fact else None) or {}
        self.limit = (_amounts(fact.limit) if fact else None) or {}
        self.parent: Branch | None = None
        self.children: list[Branch] = []
        self.line: tuple[Branch, ...] = (self,)
        """this branch and all above it, the root last"""
        self.nominal: dict[str, int] = {}
        """its own nominal plus the nominal of all queues below it"""
        self.quota: dict[str, int] = {}
        """`nominal` without what the queues below it do not lend"""
        self.unlent: dict[str, int] = {}
        """the part of `quota` that it does not lend"""
        self.firm_own: dict[str, int] = {}
        """its own nominal; for the root, what no queue's nominal includes"""
        self.deserved: dict[str, Due] = {}
        self.shifted: dict[str, int] = {}
        """`deserved`, shifted by the past use of the queue and its siblings; empty when the past has no effect"""
        self.step = STEPS
        """the factor of its weight in `shifted`, in eighths"""
        self.used: dict[str, int] = {}
        """what the subtree uses of this branch's quota: its own use, and its children's use beyond what they own"""
        self.whole: dict[str, int] = {}
        """everything that the subtree uses"""
        self.firm: dict[str, int] = {}
        """use that cannot be preempted: its own, and what exceeds the nominal of the queues below it"""
        self.stranded: dict[str, int] = {}
        """the part of `used` on nodes that accept no work; the root's quota is extended by it"""
        self.stranded_firm: dict[str, int] = {}
        """the part of `firm` on nodes that accept no work"""
        self.kept: dict[str, int] = {}
        """unused nominal that a blocked head reserves against borrowers"""

    def names(self) -> set[str]:
        """Return the resources that its bounds name."""
        return {*(self.own or ()), *self.borrowing, *self.lending, *self.limit}


def build_branches(queues: Mapping[str, QueueFact], total: Resources) -> tuple[dict[str, Branch], tuple[str, ...]]:
    """Return ({queue: its branch}, the resources that some queue names); the root is `ROOT`.

    `total` is what the open nodes of the pool can take, as `counted` returns it, with 0 for resources of closed nodes.

    `queues` must not contain queues that are set aside.
    """
    branches = {name: Branch(name, fact) for name, fact in queues.items()}
    root = branches[ROOT] = Branch(ROOT, None)
    for name, fact in queues.items():
        branch = branches[name]
        branch.parent = root if fact.parent in ROOT_NAMES else branches[fact.parent]
        branch.parent.children.append(branch)
    named = tuple(sorted(set[str]().union(*(branch.names() for branch in branches.values()))))
    levels = _levels(root)
    for row in reversed(levels):
        for branch in row:
            _set_quota(branch)
    for resource in named:
        whole = total.get(resource)
        unlent = sum(branch.unlent.get(resource, 0) for branch in branches.values())
        root.quota[resource] = max(root.quota.get(resource, 0), whole - unlent)
        root.firm_own[resource] = max(0, whole - root.nominal.get(resource, 0))
    root.deserved = {name: amount for name, amount in total.amounts.items() if name != PODS}
    for row in levels:
        for branch in row:
            branch.line = (branch, *branch.parent.line) if branch.parent is not None else (branch,)
            for child, dues in _divided(branch, branch.deserved, named, lambda each: each.weight):
                child.deserved = dues
    return branches, named


def apply_past_use(branches: Mapping[str, Branch], named: tuple[str, ...], past: PastUse) -> bool:
    """Set `shifted` and `step` of every queue by its past use of GPUs; return False when no queue's weight changes.

    Siblings are compared with one another. Each queue's past use is measured against what it deserved in the same time,
    or against its weight's part of its parent's amount, whichever is more. The past does not change quota: `nominal`
    stays.
    """
    root = branches[ROOT]
    levels = _levels(root)
    used: dict[str, int] = {}
    for row in reversed(levels):
        for branch in row:
            own = past.of_queue(branch.name) if branch is not root else 0
            used[branch.name] = own + sum(used[child.name] for child in branch.children)
    for row in levels:
        for branch in row:
            steps = [_step(child, used[child.name], past) for child in branch.children]
            for child, step in zip(branch.children, steps, strict=True):
                child.step = step if len(set(steps)) > 1 else STEPS
    if all(branch.step == STEPS for branch in branches.values()):
        return False
    root.shifted = {resource: int(amount) for resource, amount in root.deserved.items()}
    for row in levels:
        for branch in row:
            for child, dues in _divided(branch, branch.shifted, named, lambda each: each.weight * each.step):
                child.shifted = {resource: int(amount) for resource, amount in dues.items()}
    return True


def _step(child: Branch, used: int, past: PastUse) -> int:
    parent = child.parent
    if parent is None or not past.history:
        return STEPS
    weights = sum(sibling.weight for sibling in parent.children)
    by_weight = Fraction(parent.deserved.get(GPU, 0)) * child.weight / weights
    expected = int(max(child.deserved.get(GPU, 0), by_weight))
    return step_of(used * GPU_UNITS, constant(expected, past.half_life_ms), past.history)


def run_limit_of(find: Callable[[str], QueueFact | None], name: str) -> float | None:
    """Return the longest time that work of queue `name` may run (seconds); None without a limit.

    It is the least `maxRuntime` of the queue and the queues above it.
    """
    limit: float | None = None
    seen: set[str] = set()
    while (fact := find(name)) is not None and name not in seen:
        seen.add(name)
        if fact.max_runtime is not None:
            limit = fact.max_runtime if limit is None else min(limit, fact.max_runtime)
        name = fact.parent
    return limit


def min_runtime_of(find: Callable[[str], QueueFact | None], name: str) -> float | None:
    """Return how long work of queue `name` runs before it may be evicted for other work (seconds).

    It is the queue's own `minRuntime`, else that of the nearest queue above it that has one; None when none has one.
    """
    seen: set[str] = set()
    while (fact := find(name)) is not None and name not in seen:
        seen.add(name)
        if fact.min_runtime is not None:
            return fact.min_runtime
        name = fact.parent
    return None


def with_run_limits(queues: Mapping[str, QueueFact]) -> dict[str, QueueFact]:
    """Return the queues, each with the `maxRuntime` and the `minRuntime` that apply to its work."""
    if all(queue.max_runtime is None and queue.min_runtime is None for queue in queues.values()):
        return dict(queues)
    return {
        name: msgspec.structs.replace(
            queue, max_runtime=run_limit_of(queues.get, name), min_runtime=min_runtime_of(queues.get, name)
        )
        for name, queue in queues.items()
    }


def closed_queues(queues: Iterable[QueueFact]) -> dict[str, str]:
    """Return {queue: why nothing starts in it}."""
    facts = {queue.name: queue for queue in queues}
    known: dict[str, str] = dict.fromkeys(ROOT_NAMES, "")
    """{queue: why it is set aside, or ""}"""
    for name in sorted(facts):
        path: dict[str, None] = {}
        at = name
        while at not in known and at in facts and at not in path and not facts[at].invalid:
            path[at] = None
            at = facts[at].parent
        below = list(path)
        if at in path:
            circle = below[below.index(at) :]
            below = below[: below.index(at)]
            why = _circle(circle)
            known.update(dict.fromkeys(circle, why))
        elif at in known:
            why = known[at]
        elif at in facts:
            why = known[at] = facts[at].invalid
        else:
            at = below.pop()
            why = known[at] = f"its parent, queue {facts[at].parent}, does not exist in the pool"
        known.update(dict.fromkeys(below, f"queue {at} above it is set aside: {why}" if why else ""))
    found = {name: known[name] for name in facts if known[name]}
    if "root" in facts:
        found["root"] = "root is the name of the root of all queues; give this queue another name"
    return found


def _circle(names: list[str]) -> str:
    begin = names.index(min(names))
    ordered = [*names[begin:], *names[:begin]]
    return f"its parents form a cycle: {' -> '.join([*ordered, ordered[0]])}"


def _amounts(amounts: Resources | None) -> dict[str, int] | None:
    """Return a bound as `counted` does, except that a bound on slices is not added to that on GPUs."""
    if amounts is None:
        return None
    slices = {name: amounts.amounts[name] for name in slices_in(amounts)}
    return {**counted({name: amount for name, amount in amounts.amounts.items() if name not in slices}), **slices}


def _levels(root: Branch) -> list[list[Branch]]:
    """Return the branches by depth, the root first."""
    levels = [[root]]
    while level := [child for branch in levels[-1] for child in branch.children]:
        levels.append(level)
    return levels


def _set_quota(branch: Branch) -> None:
    """Set the branch's quota from its own nominal and from its children, which must be set before."""
    branch.nominal = dict(branch.own or {})
    branch.firm_own = dict(branch.own or {})
    branch.quota = dict(branch.nominal)
    for child in branch.children:
        for resource, amount in child.nominal.items():
            branch.nominal[resource] = branch.nominal.get(resource, 0) + amount
            lent = child.quota.get(resource, 0) - child.unlent.get(resource, 0)
            branch.quota[resource] = branch.quota.get(resource, 0) + lent
    branch.unlent = {
        resource: max(0, branch.quota.get(resource, 0) - lent) for resource, lent in branch.lending.items()
    }


def _divided(
    branch: Branch, deserved: Mapping[str, Due], named: tuple[str, ...], weight_of: Callable[[Branch], int]
) -> Iterator[tuple[Branch, dict[str, Due]]]:
    """Yield each child with its due of `deserved`: its nominal, or by weight a part of what the nominals leave.

    A child with a nominal deserves nothing of a resource that only other queues name. A resource that no queue names is
    deserved by none of these children. A child without a nominal deserves at least the nominals below it.
    """
    rest = dict(deserved)
    for child in branch.children:
        if child.own is not None:
            yield child, {**dict.fromkeys(named, 0), **child.nominal}
            for resource, amount in child.nominal.items():
                rest[resource] = rest.get(resource, 0) - amount
    weighted = [child for child in branch.children if child.own is None]
    weights = sum(weight_of(child) for child in weighted)
    for child in weighted:
        part = {name: _part(max(0, amount), weight_of(child), weights) for name, amount in rest.items()}
        yield (
            child,
            {name: max(part.get(name, 0), child.nominal.get(name, 0)) for name in sorted({*part, *child.nominal})},
        )


def _part(amount: Due, weight: int, weights: int) -> Due:
    part, rest = divmod(amount * weight, weights)
    return int(part) if not rest else Fraction(amount * weight) / weights


def raised(fact: QueueFact, kind: str, resource: str, more: int) -> QueueFact:
    """Return `fact` with one bound raised by `more` base units."""
    field = {"limit": "limit", "nominal": "nominal"}.get(kind, "borrowing_limit")
    before: Resources | None = getattr(fact, field)
    known = dict(before.amounts) if before else {}
    known[resource] = known.get(resource, 0) + more
    return msgspec.structs.replace(fact, **{field: Resources(known)})


DEMANDS_MAX = 4096
_STEPS_LCM = lcm(*range(1, STEP_MAX + 1))
"""Divisible by every step, so that shifted shares are whole numbers as shares are."""
_NO_AMOUNTS: Mapping[str, int] = {}
_CLOSED_NONE = Resources()


class Shortfall(msgspec.Struct, frozen=True):
    """The bound that stops a demand: `queue` lacks `short` of `resource` under bound `kind` (GPUs in `GPU_UNITS`)."""

    queue: str
    kind: str
    """limit | nominal | borrowing"""
    resource: str
    short: int
    bound: int
    used: int

    @property
    def raise_by(self) -> int:
        """By how many base units the bound must be raised; GPU quotas are in whole GPUs."""
        gpus = -(-self.short // GPU_UNITS)
        if self.resource == GPU:
            return gpus
        return gpus * GPU_UNITS if flavor_in(self.resource) else self.short


class QueueTree:
    """The queues of one pool with their use.

    `total` is the whole pool's allocatable, and `closed` is the part of it on nodes that accept no work.
    """

    def __init__(self, queues: Iterable[QueueFact], total: Resources, closed: Resources = _CLOSED_NONE) -> None:
        given = sorted(queues, key=lambda item: item.name)
        self._aside = closed_queues(given)
        self._inner = {queue.parent for queue in given}
        self._facts = with_run_limits({queue.name: queue for queue in given if queue.name not in self._aside})
        self._pool = total
        self._closed = closed
        self._whole = Resources(dict(counted(total.amounts)))
        shut = counted(closed.amounts)
        self._open = Resources({name: amount - shut.get(name, 0) for name, amount in self._whole.amounts.items()})
        """what the nodes that accept work can take, zeros included"""
        self._branches, self.named = build_branches(self._facts, self._open)
        there = {name: self._open.get(name) or most for name, most in self._whole.amounts.items() if most > 0}
        self.unit = lcm(*there.values(), 1) * lcm(*(branch.weight for branch in self._branches.values()))
        """the share that means all of a resource; it is so large that shares of whole amounts are whole numbers"""
        self._parts = {name: self.unit // amount for name, amount in there.items()}
        """{resource: the share of one unit of it in what the open nodes can take; in the whole pool when that is 0}"""
        self._is_named = frozenset(self.named)
        self._root = self._branches[ROOT]
        self._empty: QueueTree | None = None
        self._taken: dict[tuple[str, bool], dict[str, int]] = {}
        self._stranded: dict[tuple[str, bool], dict[str, int]] = {}
        self._demands: dict[int, tuple[Mapping[str, int], Mapping[str, int]]] = {}
        self._above: dict[str, set[str]] = {}
        """{resource that a caller asked about: the queues above their due in it}"""
        self.given_back = 0
        """how often use was removed; until it changes, a demand that did not fit does not fit"""
        self._meetings: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self.exhausted: Mapping[str, Exhausted] = {}
        """{queue: the budget that closes it to work with GPUs}"""
        self._past: PastUse | None = None
        self._used_before: dict[str, int] = {}
        self.is_shifted = False
        """whether past use changes what some queue deserves"""

    def set_budget_use(self, spent: Spent, now: float) -> None:
        """Compare the budgets with what was used in their current windows."""
        self.exhausted = exhausted(self._facts, spent, now)

    def set_past_use(self, past: PastUse | None) -> None:
        """Apply the queues' past use to what they deserve. None: the past has no effect."""
        self._past = past
        if past is None:
            return
        self.is_shifted = bool(past.history) and apply_past_use(self._branches, self.named, past)
        for name in past.used:
            branch = self._branches.get(name)
            for above in branch.line if branch is not None else ():
                self._used_before[above.name] = self._used_before.get(above.name, 0) + past.of_queue(name)

    def used_before(self, name: str) -> int:
        """Return the past use of `name` and all queues below it, in GPU-minutes by weight; 0 without a past."""
        if not self._used_before:
            return 0
        return level(self._used_before.get(name, 0)) // self._branches[name].weight

    def queue(self, name: str) -> QueueFact | None:
        """Return the queue called `name`, with the `maxRuntime` and the `minRuntime` that apply to its work.

        None when it does not exist or is set aside.
        """
        return self._facts.get(name)

    def closed_reason(self, name: str) -> str:
        """Return why nothing starts in the existing queue `name`; "" when it is not set aside."""
        return self._aside.get(name, "")

    def is_leaf(self, name: str) -> bool:
        """Whether `name` has no queues below it, so that allocations may use it."""
        return name not in self._inner

    def parent(self, name: str) -> str:
        """Return the queue above `name`; ROOT at the top."""
        parent = self._branches[name].parent
        return parent.name if parent else ROOT

    def take(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> None:
        """Record use in `name` (negative amounts remove it); use of a deleted queue is added to the root."""
        self._take(name, self._counted(demand), preemptible=preemptible)

    def _take(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> None:
        branch = self._branches.get(name, self._root)
        sums = [self._taken.setdefault((name, preemptible), {}), *(above.whole for above in branch.line)]
        for resource, amount in demand.items():
            if amount < 0:
                self.given_back += 1
            if resource in self._is_named:
                _add(branch, resource, amount)
                if not preemptible:
                    _add_firm(branch, resource, amount)
            for amounts in sums:
                amounts[resource] = amounts.get(resource, 0) + amount
            if (known := self._above.get(resource)) is not None:
                for above in branch.line:
                    (known.add if self.above_due(above.name, resource) > 0 else known.discard)(above.name)

    def take_stranded(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> None:
        """Record the part of the use of `name` on nodes that accept no work (negative amounts remove it)."""
        self.given_back += 1
        self._take_stranded(name, self._counted(demand), preemptible=preemptible)

    def _take_stranded(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> None:
        branch = self._branches.get(name, self._root)
        sums = self._stranded.setdefault((name, preemptible), {})
        for resource, amount in demand.items():
            sums[resource] = sums.get(resource, 0) + amount
            if resource in self._is_named:
                _pass_up(branch.line, resource, amount, lambda at: (at.stranded, at.unlent))
                if not preemptible:
                    _pass_up(branch.line, resource, amount, lambda at: (at.stranded_firm, at.firm_own))

    def with_open(self, opened: Resources) -> "QueueTree":
        """Return the tree as it would be if `opened` of the closed nodes' amounts were on nodes that accept work."""
        return self._again(self._facts.values(), self._closed - opened)

    def reserve(self, name: str, demand: Mapping[str, int]) -> None:
        """Reserve the unused nominal of `name`, up to `demand`, against borrowers (not against its own work)."""
        self._reserve(name, counted(demand))

    def _reserve(self, name: str, demand: Mapping[str, int]) -> None:
        branch = self._branches[name]
        if branch.own is None or branch.kept:
            return
        for resource, amount in demand.items():
            unused = min(amount, branch.own.get(resource, 0) - branch.whole.get(resource, 0))
            if unused > 0:
                branch.kept[resource] = unused
                _add(branch, resource, unused)

    def is_above_limit(self, name: str) -> bool:
        """Whether the queue, or one above it, uses more than its `limit`, because the limit was lowered."""
        return any(
            above.whole.get(resource, 0) > bound
            for above in self._branches[name].line
            for resource, bound in (above.limit or {}).items()
        )

    def shortfall(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> Shortfall | None:
        """Return the first bound that `demand` more would break now; None when it fits."""
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

    def permanent_shortfall(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> Shortfall | None:
        """Return the first bound that `demand` breaks even if nothing else runs and all nodes accept work, or None."""
        if self._empty is None:
            self._empty = QueueTree(self._facts.values(), self._pool)
        return self._empty.shortfall(name, demand, preemptible=preemptible)

    def is_full(self, demand: Mapping[str, int]) -> bool:
        """Whether the whole pool has less free than `demand`: the work then waits for room, whatever the quota."""
        stranded = self._stranded.values()
        for resource, amount in self._counted(demand).items():
            there = self._open.get(resource) + sum(amounts.get(resource, 0) for amounts in stranded)
            if amount > 0 and resource in self._whole.amounts and self._root.whole.get(resource, 0) + amount > there:
                return True
        return False

    def with_more(self, short: Shortfall) -> "QueueTree":
        """Return the tree as it would be if the bound of `short` were raised by the missing amount."""
        facts = dict(self._facts)
        if short.queue in facts:
            facts[short.queue] = raised(facts[short.queue], short.kind, short.resource, short.raise_by)
        return self._again(facts.values(), self._closed)

    def _again(self, facts: Iterable[QueueFact], closed: Resources) -> "QueueTree":
        other = QueueTree(facts, self._pool, closed)
        other.exhausted = self.exhausted
        other.set_past_use(self._past)
        for (name, preemptible), amounts in self._taken.items():
            other._take(name, amounts, preemptible=preemptible)
        for (name, preemptible), amounts in self._stranded.items():
            other._take_stranded(name, amounts, preemptible=preemptible)
        for branch in self._branches.values():
            if branch.kept:
                other._reserve(branch.name, branch.kept)
        return other

    def share(self, name: str, demand: Mapping[str, int] = _NO_AMOUNTS) -> Due:
        """Return how far `name`, with all queues below it, would be above its due with `demand` more.

        The share is the dominant excess, as a part of the pool, divided by weight. It is exact and counted in `unit`,
        so it can only be compared with shares of the same tree. O(resources of the pool).
        """
        branch = self._branches[name]
        demand, parts, whole = self._counted(demand), self._parts, branch.whole
        worst: Due = 0
        for resource, due in branch.deserved.items():
            excess = whole.get(resource, 0) + demand.get(resource, 0) - due
            if excess > 0 and (share := excess * parts.get(resource, 0)) > worst:
                worst = share
        return worst // branch.weight if isinstance(worst, int) else worst / branch.weight

    def shifted_share(self, name: str, demand: Mapping[str, int] = _NO_AMOUNTS) -> Due:
        """Like `share`, but above what `name` deserves by its past use; equal to `share` when the past has no effect.

        It can only be compared with other results of this method.
        """
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

    def denies_reclaim(self, ours: str, theirs: str, demand: Mapping[str, int], used: Mapping[str, int]) -> bool:
        """Whether past use forbids `ours` to reclaim work that uses `used` from `theirs` for `demand`.

        It does when `ours` would be above what it deserves by its past, and its share would be larger than that of
        `theirs` afterwards, and not smaller than that of `theirs` before.
        """
        if not self.is_shifted:
            return False
        mine = self.shifted_share(ours, demand)
        if not mine:
            return False
        after = self.shifted_share(theirs, {name: -amount for name, amount in used.items()})
        return mine > after and mine >= self.shifted_share(theirs)

    def would_borrow(self, name: str, demand: Mapping[str, int]) -> bool:
        """Whether `name` would use more GPUs, of all or of a flavor, than it deserves with `demand` more.

        A resource that no queue names is never borrowed.
        """
        return any(
            amount > 0 and self.above_due(name, resource) + amount > 0
            for resource, amount in self._counted(demand).items()
            if resource in self._is_named and (resource == GPU or flavor_in(resource))
        )

    def shares(self, name: str) -> tuple[Due, ...]:
        """Return the shares of `name` and of all queues above it, from the top, with past use applied.

        Empty for a queue outside the tree.
        """
        branch = self._branches.get(name)
        return () if branch is None else tuple(self.shifted_share(above.name) for above in branch.line[-2::-1])

    def path_of(self, name: str) -> tuple[str, ...]:
        """Return `name` and all queues above it, the root last; only the root for a queue outside the tree."""
        return tuple(branch.name for branch in self._branches.get(name, self._root).line)

    def shifted(self, name: str) -> Mapping[str, Due]:
        """Return what `name` deserves with past use applied: its quota, or a part of what the quotas leave."""
        branch = self._branches[name]
        return branch.shifted if self.is_shifted else branch.deserved

    def weight_factor(self, name: str) -> float:
        """Return the factor of its weight by past use; 1 when the past has no effect or is like its siblings'."""
        return self._branches[name].step / STEPS

    def dues(self, name: str) -> Mapping[str, Due]:
        """Return what `name` deserves of each resource that is divided among queues, exact, as `counted` returns it."""
        return self._branches[name].deserved

    def weight(self, name: str) -> int:
        """Return the weight that divides the excess of `name`."""
        return self._branches[name].weight

    def open_total(self) -> Mapping[str, int]:
        """Return what the nodes that accept work can take, as `counted` returns it, zeros included."""
        return self._open.amounts

    def top(self, name: str) -> str:
        """Return the queue right below the root that `name` is or is below; `name` when it is not in the tree."""
        branch = self._branches.get(name)
        return name if branch is None or len(branch.line) < 2 else branch.line[-2].name

    def deserved(self, name: str) -> Resources:
        """Return what `name` deserves: its quota, or by weight a part of what its siblings' quotas leave.

        GPUs in `GPU_UNITS`, rounded down.
        """
        return Resources.of({name: int(due) for name, due in self._branches[name].deserved.items()})

    def subtree_use(self, name: str) -> Resources:
        """Return everything used in the subtree of `name`, GPUs in `GPU_UNITS`."""
        return Resources.of(self._branches[name].whole)

    def branches(self, name: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the queues from `name` and from `other` upwards, each up to but without their common queue."""
        known = self._meetings.get((name, other))
        if known is None:
            ours = [node.name for node in self._branches[name].line]
            theirs = [node.name for node in self._branches[other].line]
            while ours and theirs and ours[-1] == theirs[-1]:
                del ours[-1], theirs[-1]
            known = self._meetings[name, other] = (tuple(ours), tuple(theirs))
        return known

    def above_in(self, resource: str) -> Set[str]:
        """Return the queues that use more of `resource` than they deserve; the set is updated as use changes."""
        known = self._above.get(resource)
        if known is None:
            known = self._above[resource] = {name for name in self._branches if self.above_due(name, resource) > 0}
        return known

    def above_due(self, name: str, resource: str) -> Due:
        """Return by how much `name` uses more of `resource` than it deserves (may be negative).

        An inner queue deserves at least the nominals below it. If some queue names the resource and this queue deserves
        none of it, the result is all its use. If no queue deserves or names the resource, the result is 0.
        """
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
        """Return the limits that are exceeded now."""
        return [
            Shortfall(branch.name, "limit", resource, used - bound, bound, used)
            for branch in self._branches.values()
            for resource, bound in branch.limit.items()
            if (used := branch.whole.get(resource, 0)) > bound
        ]

    def _counted(self, demand: Mapping[str, int]) -> Mapping[str, int]:
        """Return `counted(demand)`, computed once per mapping object: work that is alike passes the same object."""
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
    """Add to one sum of each branch what exceeds its own part below; `of` returns (the sums, what the branch owns)."""
    for current in line:
        if not amount:
            return
        sums, owned = of(current)
        own, before = owned.get(resource, 0), sums.get(resource, 0)
        sums[resource] = before + amount
        amount = max(0, before + amount - own) - max(0, before - own)


def _add(branch: Branch, resource: str, amount: int) -> None:
    """Add to `used`, and to that of the ancestors what exceeds the queue's own, unlent quota."""
    for current in branch.line:
        if not amount:
            return
        own = current.unlent.get(resource, 0)
        before = current.used.get(resource, 0)
        current.used[resource] = before + amount
        amount = max(0, before + amount - own) - max(0, before - own)


def _add_firm(branch: Branch, resource: str, amount: int) -> None:
    """Add to `firm`, and to that of the ancestors what exceeds the queue's own nominal."""
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
    """Return what `branch` may still use, and the branch whose bound determines it."""
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
            # The part that the queue does not lend stays its own, however far other queues are above their bounds.
            available = max(0, available) + own - used
    return available, tightest
