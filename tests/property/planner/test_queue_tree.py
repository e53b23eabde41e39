"""Quotas in the tree, compared with a model as simple as the rules: everything is recounted, and nothing is cached."""

from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact, QueueFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.queueing.queue_cursor import FairShareTournament
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state.pending import HeadKey, work_key
from tests.support.planner import an_allocation

SETTINGS = settings(max_examples=200, deadline=None)
RESOURCES: tuple[str, ...] = ("cpu", "memory")
AMOUNTS = st.integers(0, 8)


class Use(msgspec.Struct, frozen=True):
    """The usage of an allocation in a leaf queue."""

    queue: str
    amounts: dict[str, int]
    preemptible: bool


class Case(msgspec.Struct, frozen=True):
    """A tree up to four levels deep, its usage, and changes of it."""

    queues: list[QueueFact]
    total: dict[str, int]
    uses: list[Use]
    kept: int
    """the number of first uses that stay; the others are released"""

    @property
    def leaves(self) -> list[str]:
        inner = {queue.parent for queue in self.queues}
        return [queue.name for queue in self.queues if queue.name not in inner]


def a_bound(draw: st.DrawFn) -> Resources | None:
    if draw(st.booleans()):
        return None
    return Resources({name: draw(AMOUNTS) for name in RESOURCES if draw(st.booleans())})


@st.composite
def cases(draw: st.DrawFn) -> Case:
    queues: list[QueueFact] = []
    for index in range(draw(st.integers(1, 6))):
        parent = draw(st.sampled_from(["", "root", *(queue.name for queue in queues)]))
        nominal, borrowing, lending, limit = (a_bound(draw) for _ in range(4))
        weight = draw(st.integers(1, 3))
        queues.append(
            QueueFact(
                name=f"q{index}",
                parent=parent,
                weight=weight,
                nominal=nominal,
                borrowing_limit=borrowing,
                lending_limit=lending,
                limit=limit,
            )
        )
    total = {name: draw(st.integers(0, 20)) for name in RESOURCES}
    leaves = Case(queues, total, [], 0).leaves
    amounts = st.fixed_dictionaries({name: st.integers(0, 6) for name in RESOURCES})
    uses = draw(st.lists(st.builds(Use, st.sampled_from(leaves), amounts, st.booleans()), max_size=8))
    return Case(queues, total, uses, draw(st.integers(0, len(uses))))


class RulesForOneResource:
    """The rules as written, for one resource."""

    def __init__(self, case: Case, resource: str, uses: list[Use]) -> None:
        self.facts = {queue.name: queue for queue in case.queues}
        self.resource = resource
        self.total = case.total[resource]
        self.uses = uses

    def children(self, name: str) -> list[str]:
        return [fact.name for fact in self.facts.values() if (fact.parent.replace("root", "")) == name]

    def bound(self, name: str, field: str) -> int | None:
        amounts: Resources | None = getattr(self.facts[name], field) if name else None
        return None if amounts is None else amounts.amounts.get(self.resource)

    def path(self, name: str) -> list[str]:
        return [name, *self.path(self.facts[name].parent.replace("root", ""))] if name else [""]

    def quota(self, name: str) -> int:
        """Its own nominal, and what the queues below it have and lend."""
        return (self.bound(name, "nominal") or 0) + sum(
            self.quota(child) - self.withheld(child) for child in self.children(name)
        )

    def withheld(self, name: str) -> int:
        lent = self.bound(name, "lending_limit")
        return 0 if lent is None else max(0, self.quota(name) - lent)

    def asked(self, name: str) -> int:
        """What the subtree uses of the queue above it, or uses itself."""
        if not self.children(name) and name:
            return sum(use.amounts[self.resource] for use in self.uses if use.queue == name)
        return sum(max(0, self.asked(child) - self.withheld(child)) for child in self.children(name))

    def all_withheld(self, name: str) -> int:
        return sum(self.withheld(child) + self.all_withheld(child) for child in self.children(name))

    def used(self, name: str) -> int:
        below = {leaf for leaf in self.facts if name in self.path(leaf)}
        return sum(use.amounts[self.resource] for use in self.uses if use.queue in below)

    def firm(self, name: str) -> int:
        """The non-preemptible use that does not fit in the nominals below `name`."""
        own = sum(use.amounts[self.resource] for use in self.uses if use.queue == name and not use.preemptible)
        return own + sum(
            max(0, self.firm(child) - (self.bound(child, "nominal") or 0)) for child in self.children(name)
        )

    def nominal(self, name: str) -> int:
        return (self.bound(name, "nominal") or 0) + sum(self.nominal(child) for child in self.children(name))

    def refuses(self, use: Use) -> bool:
        """Whether `use` would break the rules on its path."""
        amount = use.amounts[self.resource]
        after = RulesForOneResource.__new__(RulesForOneResource)
        after.facts, after.resource, after.total = self.facts, self.resource, self.total
        after.uses = [*self.uses, use]
        return amount > 0 and (
            after._over_limit(use) or (not use.preemptible and after._over_nominal(use)) or after._over_quota(self, use)
        )

    def _over_limit(self, use: Use) -> bool:
        limits = [(self.used(name), self.bound(name, "limit")) for name in self.path(use.queue)]
        return any(limit is not None and used > limit for used, limit in limits)

    def _over_nominal(self, use: Use) -> bool:
        for name in self.path(use.queue):
            if not name:
                free = max(0, self.total - self.nominal(""))
                return use.amounts[self.resource] <= self.total and self.firm("") > free
            own = self.bound(name, "nominal")
            if own is not None:
                return self.firm(name) > own
        return False

    def _over_quota(self, before: "RulesForOneResource", use: Use) -> bool:
        path = self.path(use.queue)
        for name, above in pairwise(path):
            taken = max(0, self.asked(name) - self.withheld(name))
            if taken == max(0, before.asked(name) - before.withheld(name)):
                return False
            borrowing = self.bound(name, "borrowing_limit")
            if borrowing is not None and taken > self.quota(name) - self.withheld(name) + borrowing:
                return True
            if not above:
                whole = max(self.quota(""), self.total - self.all_withheld(""))
                return self.asked("") > whole and use.amounts[self.resource] <= self.total
        return False


def tree_of(case: Case) -> QueueTree:
    """The tree with all uses taken, and the others released in another order."""
    tree = QueueTree(case.queues, Resources(case.total))
    for use in case.uses:
        tree.take(use.queue, use.amounts, preemptible=use.preemptible)
    for use in reversed(case.uses[case.kept :]):
        given = {name: -amount for name, amount in use.amounts.items()}
        tree.take(use.queue, given, preemptible=use.preemptible)
    return tree


@given(cases(), st.data())
@SETTINGS
def test_what_may_be_used_is_what_the_rules_say(case: Case, data: st.DataObject) -> None:
    """Rules for nominal, borrowed, lent and limited use; only the own nominal for non-preemptible use; with any
    present usage."""
    tree, uses = tree_of(case), case.uses[: case.kept]
    named = set(tree.named)
    # An amount beyond the whole pool is not decided by quotas.
    amounts = st.fixed_dictionaries({name: st.integers(0, min(8, case.total[name])) for name in RESOURCES})
    for queue in case.leaves:
        use = Use(queue, data.draw(amounts), data.draw(st.booleans()))
        plain = [name for name in RESOURCES if name in named and RulesForOneResource(case, name, uses).refuses(use)]
        short = tree.shortfall(queue, use.amounts, preemptible=use.preemptible)
        assert (short is not None) == bool(plain), (use, short, plain)
        assert short is None or short.resource == min(plain)


@given(cases())
@SETTINGS
def test_admitting_what_passes_never_breaks_a_bound(case: Case) -> None:
    """Hard limits hold, and the root never exceeds the pool, unless nominals promise more than the pool has."""
    tree = QueueTree(case.queues, Resources(case.total))
    taken: list[Use] = []
    for use in case.uses:
        if tree.shortfall(use.queue, use.amounts, preemptible=use.preemptible) is None:
            tree.take(use.queue, use.amounts, preemptible=use.preemptible)
            taken.append(use)
    assert tree.violations() == []
    for name in tree.named:
        plain = RulesForOneResource(case, name, taken)
        if plain.nominal("") <= plain.total and max((use.amounts[name] for use in taken), default=0) <= plain.total:
            assert plain.used("") <= plain.total


@given(cases())
@SETTINGS
def test_taking_and_releasing_restores_the_state(case: Case) -> None:
    """In any order, bounds and shares equal those of an unused tree."""
    used = tree_of(msgspec.structs.replace(case, kept=0))
    fresh = QueueTree(case.queues, Resources(case.total))
    for queue in case.leaves:
        for preemptible in (True, False):
            for amount in (1, 3, 8):
                demand = dict.fromkeys(RESOURCES, amount)
                expected = fresh.shortfall(queue, demand, preemptible=preemptible)
                assert used.shortfall(queue, demand, preemptible=preemptible) == expected
        assert used.share(queue, {"cpu": 5}) == fresh.share(queue, {"cpu": 5})


@given(cases(), st.integers(0, 5))
@SETTINGS
def test_quota_reserved_for_a_head_is_withheld_from_others_only(case: Case, wanted: int) -> None:
    """The queue itself may use as much as before; no other may use more than before. A demand beyond the whole pool
    is decided by the nodes, not by quotas."""
    assume(all(wanted <= amount for amount in case.total.values()))
    tree = tree_of(case)
    demand: Mapping[str, int] = {"cpu": wanted, "memory": wanted}
    before = {queue: tree.shortfall(queue, demand, preemptible=True) for queue in case.leaves}
    keeper = case.leaves[0]
    tree.reserve(keeper, demand)
    for queue in case.leaves:
        after = tree.shortfall(queue, demand, preemptible=True)
        if queue == keeper or before[queue] is not None:
            assert (after is None) == (before[queue] is None)


@given(cases())
@SETTINGS
def test_deserved_shares_never_exceed_the_capacity(case: Case) -> None:
    """The children of a queue deserve together at most what the queue deserves, unless their nominals alone are
    more."""
    tree = QueueTree(case.queues, Resources(case.total))
    inner = {queue.parent for queue in case.queues}
    for name in sorted(inner - {"", "root"}):
        children = [queue for queue in case.queues if queue.parent == name]
        if any(queue.name in inner for queue in children):
            continue
        for resource in RESOURCES:
            parts = [tree.deserved(queue.name).get(resource) for queue in children]
            nominal = [queue.nominal.get(resource) for queue in children if queue.nominal is not None]
            assert sum(parts) <= max(tree.deserved(name).get(resource), sum(nominal))


@given(cases())
@SETTINGS
def test_the_fair_share_order_equals_a_simple_tournament(case: Case) -> None:
    """At each queue the winner is, of the best heads below its children, the one whose branch would have the
    smallest share."""
    tree = QueueTree(case.queues, Resources(case.total))
    wants = {queue: [use.amounts for use in case.uses if use.queue == queue] for queue in case.leaves}

    def key(queue: str) -> HeadKey:
        return (0, 0, len(wants[queue]), queue, queue)

    def best(name: str) -> str | None:
        children = [fact.name for fact in case.queues if fact.parent.replace("root", "") == name]
        if not children:
            return name if wants.get(name) else None
        rivals = [(child, winner) for child in children if (winner := best(child)) is not None]
        if not rivals:
            return None
        return min(rivals, key=lambda item: (tree.share(item[0], wants[item[1]][0]), key(item[1])))[1]

    contest = FairShareTournament(tree)
    for queue in case.leaves:
        if wants[queue]:
            contest.enter(queue, wants[queue][0], key(queue))
    while True:
        expected, chosen = best(""), contest.pop()
        assert chosen == expected
        if chosen is None:
            return
        tree.take(chosen, wants[chosen].pop(0), preemptible=True)
        if wants[chosen]:
            contest.enter(chosen, wants[chosen][0], key(chosen))


def shares(tree: QueueTree, names: list[str]) -> Mapping[str, int | Fraction]:
    return {name: tree.share(name) for name in names}


@given(cases())
@SETTINGS
def test_the_order_of_queues_in_the_input_does_not_matter(case: Case) -> None:
    """This is true for bounds and for shares."""
    turned = msgspec.structs.replace(case, queues=case.queues[::-1])
    names = [queue.name for queue in case.queues]
    assert shares(tree_of(case), names) == shares(tree_of(turned), names)
    for queue in case.leaves:
        demand: Mapping[str, int] = {"cpu": 3, "memory": 2}
        assert tree_of(case).shortfall(queue, demand, preemptible=True) == tree_of(turned).shortfall(
            queue, demand, preemptible=True
        )


@st.composite
def work(draw: st.DrawFn) -> AllocationFact:
    number, created = draw(st.integers(0, 10**6)), float(draw(st.integers(-5, 5)))
    priority, since = draw(st.integers(0, 3)), float(draw(st.integers(0, 4)))
    return an_allocation(f"a{number}", created=created, priority=priority, waiting_since=since, uid=f"u{number}")


@given(st.lists(work(), max_size=8), st.integers(0, 6), st.integers(-5, 12))
@SETTINGS
def test_the_order_within_a_queue_is_total(facts: list[AllocationFact], aging: int, now: int) -> None:
    """No two allocations are equal, in any order of the input; the aged ones are a prefix, ordered by their waiting."""
    facts = list({fact.uid: fact for fact in facts}.values())
    keys = [work_key(fact, None, float(aging), float(now)) for fact in facts]
    assert len(set(keys)) == len(keys)
    ordered = sorted(facts, key=lambda fact: work_key(fact, None, float(aging), float(now)))
    since = [fact.waiting_since or fact.created for fact in ordered]
    aged = [bool(aging) and at + aging <= now for at in since]
    assert aged == sorted(aged, reverse=True)
    waits = [at for at, is_aged in zip(since, aged, strict=True) if is_aged]
    assert waits == sorted(waits)
