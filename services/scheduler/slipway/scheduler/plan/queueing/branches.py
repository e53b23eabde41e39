"""The queue tree as a shape: who hangs below whom, what each owns and lends, and what each deserves.

Owns the arithmetic that does not depend on use, and which queues are set aside: those whose parents go round in a
circle or do not exist, and those that nobody understands. Nothing starts in what is set aside, nor below it; every
other queue goes on as if it were not there. GPUs are counted in `GPU_UNITS`, since a rank may use a part of one.
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
"""How a queue names the implicit root as its parent."""


def counted(amounts: Mapping[str, int]) -> Mapping[str, int]:
    """Base units as quota counts them: whole GPUs, parts of one and slices are `GPU_UNITS` of GPUs together. A slice
    is counted under its own name as well: a queue may have a quota of it."""
    if GPU not in amounts and GPU_MILLI not in amounts and not units_in(amounts):
        return amounts
    result = {name: amount for name, amount in amounts.items() if name not in (GPU_MILLI, GPU_SHARES)}
    result[GPU] = counted_gpus(amounts)
    return result


Due = int | Fraction
"""An amount that a queue deserves, or a share: exact, so that a third of a pool is not a little less than a third."""


class Branch:
    """One queue with its use; `fact` is None for the implicit root."""

    def __init__(self, name: str, fact: QueueFact | None) -> None:
        self.name = name
        self.weight = max(fact.weight, 1) if fact else 1
        self.own: dict[str, int] | None = _amounts(fact.nominal) if fact else None
        """its own nominal, if it has one"""
        self.borrowing = (_amounts(fact.borrowing_limit) if fact else None) or {}
        self.lending = (_amounts(fact.lending_limit) if fact else None) or {}
        self.limit = (_amounts(fact.limit) if fact else None) or {}
        self.parent: Branch | None = None
        self.children: list[Branch] = []
        self.line: tuple[Branch, ...] = (self,)
        """this branch and those above it, the root last"""
        self.nominal: dict[str, int] = {}
        """its own nominal and all below it"""
        self.quota: dict[str, int] = {}
        """the same without what queues below it do not lend"""
        self.unlent: dict[str, int] = {}
        """the part of `quota` that it does not lend"""
        self.firm_own: dict[str, int] = {}
        """its own nominal; of the root, what belongs to nobody"""
        self.deserved: dict[str, Due] = {}
        self.shifted: dict[str, int] = {}
        """the same, shifted by what the queue and its siblings used before; empty where the past does not count"""
        self.step = STEPS
        """eighths: by how much its weight counts then"""
        self.used: dict[str, int] = {}
        """what the subtree uses as seen from the parent's arithmetic: own use + what children take beyond their own"""
        self.whole: dict[str, int] = {}
        """everything the subtree uses"""
        self.firm: dict[str, int] = {}
        """what cannot be preempted: its own, and what passes beyond the nominal of the queues below it"""
        self.stranded: dict[str, int] = {}
        """the part of `used` that is on nodes that take no work; of the root, what it holds besides its quota"""
        self.stranded_firm: dict[str, int] = {}
        """the same part of `firm`"""
        self.kept: dict[str, int] = {}
        """unused nominal that a blocked head keeps from borrowers"""

    def names(self) -> set[str]:
        """The resources that its bounds name."""
        return {*(self.own or ()), *self.borrowing, *self.lending, *self.limit}


def grow(queues: Mapping[str, QueueFact], total: Resources) -> tuple[dict[str, Branch], tuple[str, ...]]:
    """({queue: its branch}, the resources that some queue names); the root is `ROOT`. `total`: what the nodes of the
    pool can take, counted; 0 of a resource that is only on nodes that take no work.

    `queues` are those that are not set aside.
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


def shift(branches: Mapping[str, Branch], named: tuple[str, ...], past: PastUse) -> bool:
    """Set `shifted` and `step` of every queue by its past use of GPUs; False where no queue stands otherwise by it.

    Siblings are held against one another: what a queue used, beside what it deserved in the same time, or the part of
    its parent's that its weight gives it where that is more. Quota is nobody's past: `nominal` stays as it is.
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
    """The longest that work of queue `name` may run (seconds), by its own `maxRuntime` or that of a queue above it."""
    limit: float | None = None
    seen: set[str] = set()
    while (fact := find(name)) is not None and name not in seen:
        seen.add(name)
        if fact.max_runtime is not None:
            limit = fact.max_runtime if limit is None else min(limit, fact.max_runtime)
        name = fact.parent
    return limit


def min_runtime_of(find: Callable[[str], QueueFact | None], name: str) -> float | None:
    """How long work of queue `name` runs before it makes room (seconds): its own `minRuntime`, else that of the nearest
    queue above it that has one."""
    seen: set[str] = set()
    while (fact := find(name)) is not None and name not in seen:
        seen.add(name)
        if fact.min_runtime is not None:
            return fact.min_runtime
        name = fact.parent
    return None


def with_run_limits(queues: Mapping[str, QueueFact]) -> dict[str, QueueFact]:
    """The queues, each with the `maxRuntime` and the `minRuntime` that hold for its work."""
    if all(queue.max_runtime is None and queue.min_runtime is None for queue in queues.values()):
        return dict(queues)
    return {
        name: msgspec.structs.replace(
            queue, max_runtime=run_limit_of(queues.get, name), min_runtime=min_runtime_of(queues.get, name)
        )
        for name, queue in queues.items()
    }


def set_aside(queues: Iterable[QueueFact]) -> dict[str, str]:
    """{queue: why nothing starts in it}."""
    facts = {queue.name: queue for queue in queues}
    known: dict[str, str] = dict.fromkeys(ROOT_NAMES, "")
    """{queue: why it is set aside, or "" }"""
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
            why = known[at] = f"the pool has no queue {facts[at].parent}, which is its parent"
        known.update(dict.fromkeys(below, f"queue {at} above it is set aside: {why}" if why else ""))
    found = {name: known[name] for name in facts if known[name]}
    if "root" in facts:
        found["root"] = "root is the name of what is above all queues; give this queue another"
    return found


def _circle(names: list[str]) -> str:
    begin = names.index(min(names))
    ordered = [*names[begin:], *names[:begin]]
    return f"its parents go round in a circle: {' -> '.join([*ordered, ordered[0]])}"


def _amounts(amounts: Resources | None) -> dict[str, int] | None:
    """A bound, counted. One of slices is about these alone: it bounds no GPUs."""
    if amounts is None:
        return None
    slices = {name: amounts.amounts[name] for name in slices_in(amounts)}
    return {**counted({name: amount for name, amount in amounts.amounts.items() if name not in slices}), **slices}


def _levels(root: Branch) -> list[list[Branch]]:
    """The branches by their depth, the root first."""
    levels = [[root]]
    while level := [child for branch in levels[-1] for child in branch.children]:
        levels.append(level)
    return levels


def _set_quota(branch: Branch) -> None:
    """Once those below it have theirs."""
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
    """Each child with its due of `deserved`: its nominal, or by weight of what the nominals leave.

    A child with a nominal deserves nothing of what others name and it does not; what nobody names is nobody's due. One
    without a nominal of its own deserves no less than the nominals below it.
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
    """`fact` with one bound raised by `more` base units."""
    field = {"limit": "limit", "nominal": "nominal"}.get(kind, "borrowing_limit")
    before: Resources | None = getattr(fact, field)
    known = dict(before.amounts) if before else {}
    known[resource] = known.get(resource, 0) + more
    return msgspec.structs.replace(fact, **{field: Resources(known)})
