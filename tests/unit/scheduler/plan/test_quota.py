"""Quota along the tree: own, borrowed, lent, limited; and who is how far above its due."""

from typing import Any

from slipway.model.facts import QueueFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.quota import QueueTree

TOTAL = Resources({"cpu": 12, "gpu": 8})


def cpu(amount: int) -> Resources:
    """A bound; zero is a bound too."""
    return Resources({"cpu": amount})


def a_queue(name: str, parent: str = "", **bounds: Any) -> QueueFact:
    return QueueFact(name=name, parent=parent, **bounds)


def room(tree: QueueTree, name: str, *, preemptible: bool = True, resource: str = "cpu") -> int:
    """The largest demand that passes, up to what the pool has (beyond that it is no matter of quota)."""
    amount = 0
    while amount < 12 and tree.shortfall(name, {resource: amount + 1}, preemptible=preemptible) is None:
        amount += 1
    return amount


def test_without_bounds_there_is_none() -> None:
    """Quota bounds nothing that no queue names: what does not fit is not a matter of quota."""
    assert room(QueueTree([a_queue("a")], TOTAL), "a") == 12


def test_own_and_borrowed() -> None:
    """Own nominal plus the borrowing limit, of what others do not use."""
    tree = QueueTree([a_queue("a", nominal=cpu(4), borrowing_limit=cpu(3)), a_queue("b", nominal=cpu(8))], TOTAL)
    assert room(tree, "a") == 7
    tree.take("b", {"cpu": 8}, preemptible=False)
    assert room(tree, "a") == 4
    tree.take("b", {"cpu": -2}, preemptible=False)
    assert room(tree, "a") == 6


def test_what_is_not_lent_stays_with_its_owner() -> None:
    """`b` lends 2 of 8: `a` reaches its 4 and those 2; `b` reaches all of its own at any time."""
    tree = QueueTree([a_queue("a", nominal=cpu(4)), a_queue("b", nominal=cpu(8), lending_limit=cpu(2))], TOTAL)
    assert room(tree, "a") == 6
    tree.take("a", {"cpu": 6}, preemptible=True)
    assert room(tree, "b") == 6
    tree.take("b", {"cpu": 6}, preemptible=True)
    assert room(tree, "b") == 0


def test_the_root_holds_what_no_nominal_names() -> None:
    """12 in the pool, 4 nominal: the other 8 may be borrowed by anybody."""
    tree = QueueTree([a_queue("a", nominal=cpu(4)), a_queue("b")], TOTAL)
    assert room(tree, "b") == 12
    tree.take("a", {"cpu": 4}, preemptible=True)
    assert room(tree, "b") == 8


def test_nothing_that_cannot_be_preempted_borrows() -> None:
    """It fits in the nominal of its queue and of each ancestor that has one; preemptible work does not count there."""
    tree = QueueTree([a_queue("p", nominal=cpu(1)), a_queue("a", "p", nominal=cpu(4)), a_queue("b", "p")], TOTAL)
    tree.take("a", {"cpu": 3}, preemptible=True)
    assert room(tree, "a", preemptible=False) == 4
    assert room(tree, "b", preemptible=False) == 5
    assert room(tree, "b") == 9


def test_the_borrowing_limit_of_an_inner_queue_bounds_its_subtree() -> None:
    tree = QueueTree(
        [a_queue("p", borrowing_limit=cpu(2)), a_queue("a", "p", nominal=cpu(3)), a_queue("b", "p")], TOTAL
    )
    assert room(tree, "b") == 5
    tree.take("b", {"cpu": 4}, preemptible=True)
    assert room(tree, "a") == 1


def test_a_limit_caps_the_whole_subtree() -> None:
    tree = QueueTree([a_queue("p", limit=cpu(5)), a_queue("a", "p"), a_queue("b", "p", limit=cpu(4))], TOTAL)
    tree.take("a", {"cpu": 3}, preemptible=True)
    found = tree.shortfall("b", {"cpu": 4}, preemptible=True)
    assert found is not None
    assert (found.queue, found.kind, found.short, found.bound, found.used) == ("p", "limit", 2, 5, 3)
    assert [item.queue for item in tree.violations()] == []
    tree.take("b", {"cpu": 4}, preemptible=True)
    assert [(item.queue, item.short) for item in tree.violations()] == [("p", 2)]


def test_a_bound_of_zero_is_a_bound() -> None:
    assert room(QueueTree([a_queue("a", limit=cpu(0))], TOTAL), "a") == 0


def test_never_is_about_an_empty_pool() -> None:
    """What only waits for others to end is not never."""
    tree = QueueTree([a_queue("a", limit=cpu(5))], TOTAL)
    tree.take("a", {"cpu": 5}, preemptible=True)
    assert tree.never("a", {"cpu": 5}, preemptible=True) is None
    assert tree.never("a", {"cpu": 6}, preemptible=True) is not None


def test_more_than_the_pool_has_is_no_matter_of_quota() -> None:
    assert QueueTree([a_queue("a", nominal=cpu(1))], TOTAL).shortfall("a", {"cpu": 13}, preemptible=True) is None


def test_kept_nominal_is_kept_from_borrowers_only() -> None:
    """A blocked head's queue keeps what it has not used of its nominal; its own work may use it."""
    tree = QueueTree([a_queue("a", nominal=cpu(6)), a_queue("b", nominal=cpu(6))], TOTAL)
    tree.keep("a", {"cpu": 4})
    assert room(tree, "b") == 8
    assert room(tree, "a") == 12
    tree.take("a", {"cpu": 4}, preemptible=True)
    assert room(tree, "a") == 8


def test_raising_the_bound_that_is_short_makes_it_pass() -> None:
    cases: list[dict[str, Any]] = [{"limit": cpu(2)}, {"nominal": cpu(2), "borrowing_limit": cpu(1)}]
    for bounds in cases:
        tree = QueueTree([a_queue("a", **bounds)], TOTAL)
        tree.take("a", {"cpu": 2}, preemptible=True)
        short = tree.shortfall("a", {"cpu": 4}, preemptible=True)
        assert short is not None
        assert tree.with_more(short).shortfall("a", {"cpu": 4}, preemptible=True) is None


def test_due_by_nominal_or_by_weight() -> None:
    """A queue with a nominal deserves it; the others share the rest by weight, down the tree."""
    queues = [
        a_queue("a", nominal=cpu(3)),
        a_queue("b", weight=2),
        a_queue("c"),
        a_queue("b1", "b"),
        a_queue("b2", "b"),
    ]
    tree = QueueTree(queues, Resources({"cpu": 12}))
    due = {name: tree.deserved(name).get("cpu") for name in ("a", "b", "c", "b1", "b2")}
    assert due == {"a": 3, "b": 6, "c": 3, "b1": 3, "b2": 3}


def test_share_is_the_dominant_excess_by_weight() -> None:
    tree = QueueTree([a_queue("a", weight=2), a_queue("b", weight=2)], TOTAL)
    tree.take("a", {"cpu": 6, "gpu": 6}, preemptible=True)
    assert tree.share("a") == 2 * 1_000_000 // 8 // 2
    assert tree.share("b", {"cpu": 6}) == 0
    assert tree.share("b", {"cpu": 9}) == 3 * 1_000_000 // 12 // 2


def test_unknown_parents_and_loops_hang_from_the_root() -> None:
    tree = QueueTree([a_queue("a", "b"), a_queue("b", "a"), a_queue("c", "gone")], TOTAL)
    assert tree.is_leaf("c")
    assert [tree.is_leaf(name) for name in ("a", "b")].count(True) == 1
