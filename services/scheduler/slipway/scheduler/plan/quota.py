"""Quota along the queue tree: what a queue may use, own and borrowed, and how far it is above its due.

Per resource that some queue names. Quota of a queue = its own nominal + its children's. What it does not lend
(quota above `lendingLimit`) is its alone; the rest, and what the implicit root holds beyond all nominals, may be
borrowed from the parent up to `borrowingLimit` beyond the queue's own quota. `limit` caps the subtree outright.
A resource that a queue's nominal does not name is not bounded by that queue; a demand above the whole pool is
not a matter of quota (it does not fit). Work that can not be preempted does
not borrow: together it fits in the nominal of its queue and of each ancestor that has one.

Invariants: `take` never refuses (it records what is); `shortfall` is the only judge. Amounts in base units.
Source: Kueue's cache/scheduler/resource_node.go for the borrowing arithmetic.
"""

from collections.abc import Iterable, Mapping

import msgspec

from slipway.model.facts import QueueFact
from slipway.model.resources import PODS, Resources

ROOT = ""
_MILLION = 1_000_000
_NO_AMOUNTS: Mapping[str, int] = {}


class Shortfall(msgspec.Struct, frozen=True):
    """What stops a demand: `queue` lacks `short` of `resource` under its `kind` of bound."""

    queue: str
    kind: str
    """limit | nominal | borrowing"""
    resource: str
    short: int
    bound: int
    used: int


class _Node:
    def __init__(self, name: str, fact: QueueFact | None) -> None:
        self.name = name
        self.fact = fact
        self.parent: _Node | None = None
        self.children: list[_Node] = []
        self.nominal: dict[str, int] = {}
        """its own nominal and all below it"""
        self.quota: dict[str, int] = {}
        """the same without what queues below it do not lend"""
        self.used: dict[str, int] = {}
        """what the subtree uses as seen from the parent's arithmetic: own use + what children take beyond their own"""
        self.whole: dict[str, int] = {}
        """everything the subtree uses"""
        self.fixed: dict[str, int] = {}
        """the part of `whole` that can not be preempted"""
        self.kept: dict[str, int] = {}
        """unused nominal that a blocked head keeps from borrowers"""
        self.deserved: dict[str, int] = {}

    def own(self, resource: str) -> int:
        """Quota that is never lent."""
        quota = self.quota.get(resource, 0)
        lending = self.fact.lending_limit if self.fact else None
        return 0 if lending is None or resource not in lending.amounts else max(0, quota - lending.get(resource))

    def path(self) -> "Iterable[_Node]":
        """This node and its ancestors, the root last."""
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.parent


class QueueTree:
    """The queues of one pool with their use; `total` is the whole pool's allocatable."""

    def __init__(self, queues: Iterable[QueueFact], total: Resources) -> None:
        self._nodes = {queue.name: _Node(queue.name, queue) for queue in sorted(queues, key=lambda item: item.name)}
        self._root = _Node(ROOT, None)
        self._total = total
        self._empty: QueueTree | None = None
        self._taken: dict[tuple[str, bool], dict[str, int]] = {}
        self._link()
        self.named: tuple[str, ...] = tuple(sorted(self._names()))
        self._set_quota(self._root)
        for resource in self.named:
            unlent = sum(node.own(resource) for node in self._nodes.values())
            self._root.quota[resource] = max(self._root.quota.get(resource, 0), total.get(resource) - unlent)
        self._set_deserved()

    def queue(self, name: str) -> QueueFact | None:
        """The queue called `name`."""
        node = self._nodes.get(name)
        return node.fact if node else None

    def is_leaf(self, name: str) -> bool:
        """Whether work may sit in `name`."""
        return not self._nodes[name].children

    def take(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> None:
        """Record use in `name` (negative amounts give it back); a queue that is gone counts for the root."""
        node = self._nodes.get(name, self._root)
        taken = self._taken.setdefault((name, preemptible), {})
        sums = [taken, *(above.whole for above in node.path())]
        if not preemptible:
            sums += [above.fixed for above in node.path()]
        for resource, amount in demand.items():
            if resource in self.named:
                self._add(node, resource, amount)
            for amounts in sums:
                amounts[resource] = amounts.get(resource, 0) + amount

    def keep(self, name: str, demand: Mapping[str, int]) -> None:
        """Keep the unused nominal of `name`, up to `demand`, from borrowers (not from its own work)."""
        node = self._nodes[name]
        nominal = node.fact.nominal if node.fact else None
        if nominal is None or node.kept:
            return
        for resource, amount in demand.items():
            unused = min(amount, nominal.get(resource) - node.whole.get(resource, 0))
            if resource in nominal.amounts and unused > 0:
                node.kept[resource] = unused
                self._add(node, resource, unused)

    def shortfall(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> Shortfall | None:
        """The first bound that `demand` more would break now; None when it fits."""
        node = self._nodes[name]
        kept, node.kept = node.kept, {}
        for resource, amount in kept.items():
            self._add(node, resource, -amount)
        try:
            return self._shortfall(node, demand, preemptible=preemptible)
        finally:
            node.kept = kept
            for resource, amount in kept.items():
                self._add(node, resource, amount)

    def never(self, name: str, demand: Mapping[str, int], *, preemptible: bool) -> Shortfall | None:
        """The first bound that `demand` would break even if nothing else ran."""
        if self._empty is None:
            self._empty = QueueTree([node.fact for node in self._nodes.values() if node.fact], self._total)
        return self._empty.shortfall(name, demand, preemptible=preemptible)

    def with_more(self, short: Shortfall) -> "QueueTree":
        """The tree as it would be if the bound of `short` were raised by what is short."""
        facts = [node.fact for node in self._nodes.values() if node.fact]
        other = QueueTree([_raised(fact, short) if fact.name == short.queue else fact for fact in facts], self._total)
        for (name, preemptible), amounts in self._taken.items():
            other.take(name, amounts, preemptible=preemptible)
        for node in self._nodes.values():
            if node.kept:
                other.keep(node.name, node.kept)
        return other

    def share(self, name: str, demand: Mapping[str, int] = _NO_AMOUNTS) -> int:
        """How far `name` would be above its due with `demand` more: the dominant excess, in millionths, by weight."""
        node = self._nodes[name]
        weight = node.fact.weight if node.fact else 1
        worst = 0
        for resource, due in node.deserved.items():
            capacity = self._total.get(resource)
            excess = node.whole.get(resource, 0) + demand.get(resource, 0) - due
            if excess > 0 and capacity > 0:
                worst = max(worst, excess * _MILLION // capacity)
        return worst // max(weight, 1)

    def deserved(self, name: str) -> Resources:
        """What `name` deserves: its quota, or its weight's part of what its parent has beyond its siblings' quotas."""
        return Resources.of(self._nodes[name].deserved)

    def whole(self, name: str) -> Resources:
        """Everything used in the subtree of `name`."""
        return Resources.of(self._nodes[name].whole)

    def violations(self) -> list[Shortfall]:
        """Limits that are broken by what is used now."""
        broken: list[Shortfall] = []
        for node in self._nodes.values():
            limit = node.fact.limit if node.fact else None
            for resource, bound in limit.amounts.items() if limit else ():
                used = node.whole.get(resource, 0)
                if used > bound:
                    broken.append(Shortfall(node.name, "limit", resource, used - bound, bound, used))
        return broken

    def _link(self) -> None:
        for node in self._nodes.values():
            parent = self._nodes.get(node.fact.parent) if node.fact else None
            if parent is None or any(above is node for above in parent.path()):
                parent = self._root
            node.parent = parent
            parent.children.append(node)

    def _names(self) -> set[str]:
        names: set[str] = set()
        for node in self._nodes.values():
            fact = node.fact
            for amounts in (fact.nominal, fact.borrowing_limit, fact.lending_limit, fact.limit) if fact else ():
                names |= set(amounts.amounts if amounts else ())
        return names

    def _set_quota(self, node: _Node) -> None:
        nominal = node.fact.nominal if node.fact else None
        node.nominal = dict(nominal.amounts) if nominal else {}
        node.quota = dict(node.nominal)
        for child in node.children:
            self._set_quota(child)
            for resource, amount in child.nominal.items():
                node.nominal[resource] = node.nominal.get(resource, 0) + amount
                lent = child.quota.get(resource, 0) - child.own(resource)
                node.quota[resource] = node.quota.get(resource, 0) + lent

    def _set_deserved(self) -> None:
        self._root.deserved = {name: amount for name, amount in self._total.amounts.items() if name != PODS}
        level = [self._root]
        while level:
            for node in level:
                _divide(node)
            level = [child for node in level for child in node.children]

    def _add(self, node: _Node, resource: str, amount: int) -> None:
        """Add to `used`, and to the ancestors' what passes beyond the queue's own, unlent quota."""
        current: _Node | None = node
        while current is not None and amount:
            own = current.own(resource)
            before = current.used.get(resource, 0)
            current.used[resource] = before + amount
            amount = max(0, before + amount - own) - max(0, before - own)
            current = current.parent

    def _shortfall(self, node: _Node, demand: Mapping[str, int], *, preemptible: bool) -> Shortfall | None:
        for resource in self.named:
            amount = demand.get(resource, 0)
            if amount <= 0:
                continue
            found = self._over_limit(node, resource, amount) or self._over_nominal(node, resource, amount, preemptible)
            if found is None:
                found = self._over_available(node, resource, amount)
            if found is not None:
                return found
        return None

    def _over_limit(self, node: _Node, resource: str, amount: int) -> Shortfall | None:
        for above in node.path():
            limit = above.fact.limit if above.fact else None
            if limit is not None and resource in limit.amounts:
                used, bound = above.whole.get(resource, 0), limit.get(resource)
                if used + amount > bound:
                    return Shortfall(above.name, "limit", resource, used + amount - bound, bound, used)
        return None

    def _over_nominal(self, node: _Node, resource: str, amount: int, preemptible: bool) -> Shortfall | None:
        for above in node.path() if not preemptible else ():
            nominal = above.fact.nominal if above.fact else None
            if nominal is not None and resource in nominal.amounts:
                used, bound = above.fixed.get(resource, 0), above.nominal[resource]
                if used + amount > bound:
                    return Shortfall(above.name, "nominal", resource, used + amount - bound, bound, used)
        return None

    def _over_available(self, node: _Node, resource: str, amount: int) -> Shortfall | None:
        available, tightest = self._available(node, resource)
        if amount <= available or (tightest is self._root and amount > self._total.get(resource)):
            return None
        used = tightest.used.get(resource, 0)
        return Shortfall(tightest.name, "borrowing", resource, amount - available, used + available, used)

    def _available(self, node: _Node, resource: str) -> tuple[int, _Node]:
        """What `node` may still use, and the node whose bound that is."""
        used, quota = node.used.get(resource, 0), node.quota.get(resource, 0)
        if node.parent is None:
            return quota - used, node
        own = node.own(resource)
        from_parent, tightest = self._available(node.parent, resource)
        borrowing = node.fact.borrowing_limit if node.fact else None
        if borrowing is not None and resource in borrowing.amounts:
            mine = quota - own - max(0, used - own) + borrowing.get(resource)
            if mine < from_parent:
                from_parent, tightest = mine, node
        return max(0, own - used) + from_parent, tightest


def _divide(node: _Node) -> None:
    """Give each child its due of what `node` deserves."""
    rest = dict(node.deserved)
    weighted = [child for child in node.children if not child.fact or child.fact.nominal is None]
    for child in node.children:
        if child not in weighted:
            child.deserved = dict(child.nominal)
            for resource, amount in child.nominal.items():
                rest[resource] = rest.get(resource, 0) - amount
    weights = sum(child.fact.weight for child in weighted if child.fact)
    for child in weighted:
        weight = child.fact.weight if child.fact else 1
        child.deserved = {name: max(0, amount) * weight // max(weights, 1) for name, amount in rest.items()}


def _raised(fact: QueueFact, short: Shortfall) -> QueueFact:
    match short.kind:
        case "limit":
            return msgspec.structs.replace(fact, limit=_more(fact.limit, short))
        case "nominal":
            return msgspec.structs.replace(fact, nominal=_more(fact.nominal, short))
        case _:
            return msgspec.structs.replace(fact, borrowing_limit=_more(fact.borrowing_limit, short))


def _more(amounts: Resources | None, short: Shortfall) -> Resources:
    known = dict(amounts.amounts) if amounts else {}
    known[short.resource] = known.get(short.resource, 0) + short.short
    return Resources(known)
