"""The queue tree as a shape: which queue is below which, what each owns and lends, and what each deserves.

Owns the arithmetic that does not depend on use. Also decides which queues are set aside: queues whose parents form a
circle or do not exist, and invalid queues. Nothing starts in a queue that is set aside, nor below it; for all other
queues it does not exist. GPUs are counted in `GPU_UNITS`, since a rank may use a part of one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction

import msgspec

from slipway.model.decay import constant
from slipway.model.facts import QueueFact
from slipway.model.mig import GPU_UNITS, slices_in, units_in
from slipway.model.resources import GPU, GPU_MILLI, GPU_SHARES, PODS, Resources, counted_gpus
from slipway.scheduler.plan.state.past_use import STEPS, PastUse, step_of

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
    for level in reversed(levels):
        for branch in level:
            _set_quota(branch)
    for resource in named:
        whole = total.get(resource)
        unlent = sum(branch.unlent.get(resource, 0) for branch in branches.values())
        root.quota[resource] = max(root.quota.get(resource, 0), whole - unlent)
        root.firm_own[resource] = max(0, whole - root.nominal.get(resource, 0))
    root.deserved = {name: amount for name, amount in total.amounts.items() if name != PODS}
    for level in levels:
        for branch in level:
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
    for level in reversed(levels):
        for branch in level:
            own = past.of_queue(branch.name) if branch is not root else 0
            used[branch.name] = own + sum(used[child.name] for child in branch.children)
    for level in levels:
        for branch in level:
            steps = [_step(child, used[child.name], past) for child in branch.children]
            for child, step in zip(branch.children, steps, strict=True):
                child.step = step if len(set(steps)) > 1 else STEPS
    if all(branch.step == STEPS for branch in branches.values()):
        return False
    root.shifted = {resource: int(amount) for resource, amount in root.deserved.items()}
    for level in levels:
        for branch in level:
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
