"""Quota along the tree: own, borrowed, lent, limited; and how far each queue is above its due."""

from fractions import Fraction
from typing import Any

from slipway.model.facts import QueueFact
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import GPU, GPU_MILLI, GPU_SHARES, Resources
from slipway.scheduler.plan.queueing.queue_tree import QueueTree

SLICE = "nvidia.com/mig-1g.10gb"
TOTAL = Resources({"cpu": 12, "gpu": 8})


def cpu(amount: int) -> Resources:
    """A bound; zero is a bound too."""
    return Resources({"cpu": amount})


def a_queue(name: str, parent: str = "", **bounds: Any) -> QueueFact:
    return QueueFact(name=name, parent=parent, **bounds)


def room(tree: QueueTree, name: str, *, preemptible: bool = True, resource: str = "cpu") -> int:
    """Return the largest demand that passes, up to what the pool has; a larger demand is no matter of quota."""
    amount = 0
    while amount < 12 and tree.shortfall(name, {resource: amount + 1}, preemptible=preemptible) is None:
        amount += 1
    return amount


def test_without_bounds_there_is_none() -> None:
    """Quota bounds nothing that no queue names: what does not fit is not a matter of quota."""
    assert room(QueueTree([a_queue("a")], TOTAL), "a") == 12


def test_own_and_borrowed() -> None:
    """A queue may use its own nominal, and up to its borrowing limit of what others do not use."""
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
    """The pool has 12, of which 4 are the nominal of a queue: the other 8 may be borrowed by any queue."""
    tree = QueueTree([a_queue("a", nominal=cpu(4)), a_queue("b")], TOTAL)
    assert room(tree, "b") == 12
    tree.take("a", {"cpu": 4}, preemptible=True)
    assert room(tree, "b") == 8


def test_nothing_that_cannot_be_preempted_borrows() -> None:
    """Work that cannot be preempted fits in the nominal of its queue, else of the first queue above that has one.
    Preemptible work does not count there."""
    tree = QueueTree([a_queue("p", nominal=cpu(1)), a_queue("a", "p", nominal=cpu(4)), a_queue("b", "p")], TOTAL)
    tree.take("a", {"cpu": 3}, preemptible=True)
    assert room(tree, "a", preemptible=False) == 4
    assert room(tree, "b", preemptible=False) == 1, "the 4 are those of a"
    assert room(tree, "b") == 9
    tree.take("b", {"cpu": 1}, preemptible=False)
    assert room(tree, "b", preemptible=False) == 0
    assert room(tree, "a", preemptible=False) == 4


def test_without_a_nominal_what_belongs_to_nobody_is_not_borrowed() -> None:
    """The pool has 12, of which 8 are nominal: queues without a nominal have the other 4 for work that is not
    preemptible."""
    tree = QueueTree([a_queue("a", nominal=cpu(8)), a_queue("b"), a_queue("c")], TOTAL)
    assert room(tree, "b", preemptible=False) == 4
    tree.take("c", {"cpu": 3}, preemptible=False)
    assert room(tree, "b", preemptible=False) == 1
    assert room(tree, "b") == 9
    assert room(tree, "a", preemptible=False) == 8
    short = tree.shortfall("b", {"cpu": 2}, preemptible=False)
    assert short is not None
    assert (short.queue, short.kind, short.bound, short.used) == ("", "nominal", 4, 3)


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
    """A demand that only waits for other work to end is possible."""
    tree = QueueTree([a_queue("a", limit=cpu(5))], TOTAL)
    tree.take("a", {"cpu": 5}, preemptible=True)
    assert tree.permanent_shortfall("a", {"cpu": 5}, preemptible=True) is None
    assert tree.permanent_shortfall("a", {"cpu": 6}, preemptible=True) is not None


def test_more_than_the_pool_has_is_no_matter_of_quota() -> None:
    assert QueueTree([a_queue("a", nominal=cpu(1))], TOTAL).shortfall("a", {"cpu": 13}, preemptible=True) is None


def test_kept_nominal_is_kept_from_borrowers_only() -> None:
    """The queue of a blocked head reserves the unused part of its nominal; its own work may use it."""
    tree = QueueTree([a_queue("a", nominal=cpu(6)), a_queue("b", nominal=cpu(6))], TOTAL)
    tree.reserve("a", {"cpu": 4})
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


def test_the_deserved_share_is_by_nominal_or_by_weight() -> None:
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
    assert tree.share("a") == tree.unit * Fraction(1, 8)
    assert tree.share("b", {"cpu": 6}) == 0
    assert tree.share("b", {"cpu": 9}) == tree.unit * Fraction(1, 8)


def test_a_queue_with_a_nominal_deserves_nothing_of_resources_that_only_others_name() -> None:
    """`b` owns only cpu, so it borrows GPUs, which `a` owns. A resource that no queue names does not count for a queue
    with a nominal."""
    tree = QueueTree([a_queue("a", nominal=Resources({"gpu": 4})), a_queue("b", nominal=cpu(6))], TOTAL)
    tree.take("b", {"gpu": 2, "nic": 7}, preemptible=True)
    assert tree.share("b") == tree.unit * Fraction(1, 4)
    tree.take("a", {"gpu": 4, "nic": 7}, preemptible=True)
    assert tree.share("a") == 0
    assert tree.share("a", {"cpu": 3}) == tree.unit * Fraction(1, 4)


def test_an_inner_queue_deserves_no_less_than_the_nominals_below_it() -> None:
    """`p` has no nominal of its own: its weight's part, 6 of 12, is less than what its child owns."""
    tree = QueueTree([a_queue("p"), a_queue("a", "p", nominal=cpu(8)), a_queue("q")], Resources({"cpu": 12}))
    assert {name: tree.deserved(name).get("cpu") for name in ("p", "a", "q")} == {"p": 8, "a": 8, "q": 6}


def test_the_nominal_of_an_inner_queue_is_its_own() -> None:
    """The nominal of an inner queue adds to those of its children, 2 + 4; a child without a nominal deserves the 2."""
    queues = [a_queue("p", nominal=cpu(2)), a_queue("a", "p", nominal=cpu(4)), a_queue("b", "p"), a_queue("q")]
    tree = QueueTree(queues, Resources({"cpu": 12}))
    due = {name: tree.deserved(name).get("cpu") for name in ("p", "a", "b", "q")}
    assert due == {"p": 6, "a": 4, "b": 2, "q": 6}


def test_what_is_set_aside() -> None:
    """Queues in a circle, below a circle, with a missing parent or with invalid fields are set aside; all other queues
    work."""
    queues = [
        a_queue("a", "b"),
        a_queue("b", "a"),
        a_queue("below", "a"),
        a_queue("self", "self"),
        a_queue("lost", "gone"),
        a_queue("bad", invalid="spec.limit.cpu: '-1' is negative"),
        a_queue("child", "bad"),
        a_queue("root"),
        a_queue("sound", "root"),
        a_queue("inner"),
        a_queue("broken", "inner", invalid="spec.nominal.cpu: 'x' is not a quantity"),
    ]
    tree = QueueTree(queues, TOTAL)
    circle = "its parents form a cycle: a -> b -> a"
    words = {queue.name: tree.closed_reason(queue.name) for queue in queues}
    assert words == {
        "a": circle,
        "b": circle,
        "below": f"queue a above it is set aside: {circle}",
        "self": "its parents form a cycle: self -> self",
        "lost": "its parent, queue gone, does not exist in the pool",
        "bad": "spec.limit.cpu: '-1' is negative",
        "child": "queue bad above it is set aside: spec.limit.cpu: '-1' is negative",
        "root": "root is the name of the root of all queues; give this queue another name",
        "sound": "",
        "inner": "",
        "broken": "spec.nominal.cpu: 'x' is not a quantity",
    }
    assert tree.queue("a") is None
    assert tree.is_leaf("sound")
    assert not tree.is_leaf("inner"), "also while nothing starts in what is below it"


def test_work_of_a_queue_that_is_set_aside_still_uses_the_pool() -> None:
    tree = QueueTree([a_queue("a", "a"), a_queue("b", nominal=cpu(12))], TOTAL)
    tree.take("a", {"cpu": 5}, preemptible=True)
    assert room(tree, "b") == 7


def test_a_very_deep_tree() -> None:
    """No recursion: a chain of thousands of queues is only slow."""
    queues = [a_queue("q0", nominal=cpu(3)), *(a_queue(f"q{at}", f"q{at - 1}") for at in range(1, 3000))]
    tree = QueueTree(queues, TOTAL)
    tree.take("q2999", {"cpu": 2}, preemptible=False)
    assert room(tree, "q2999", preemptible=False) == 1
    assert tree.subtree_use("q0").get("cpu") == 2


def test_parts_of_gpus_count_as_the_parts_that_they_are() -> None:
    """Whole GPUs and parts of one share a bound; what is short is raised in whole GPUs."""
    tree = QueueTree([a_queue("a", limit=Resources({GPU: 2}))], Resources({GPU: 8}))
    tree.take("a", {GPU: 1, GPU_MILLI: 300}, preemptible=True)
    assert tree.shortfall("a", {GPU_MILLI: 700}, preemptible=True) is None
    short = tree.shortfall("a", {GPU: 1}, preemptible=True)
    assert short is not None
    assert (short.short, short.bound, short.used, short.raise_by) == (300 * 7, 2 * GPU_UNITS, 1300 * 7, 1)
    raised = tree.with_more(short)
    assert raised.shortfall("a", {GPU: 1}, preemptible=True) is None
    assert raised.subtree_use("a").get(GPU) == 1300 * 7
    assert tree.share("a") == 0


def test_a_part_of_a_gpu_is_a_slot() -> None:
    """Per rank: three ranks of 300 thousandths use three slots."""
    assert Resources({GPU_MILLI: 300}).gpus() == 1
    assert Resources({GPU: 2, GPU_MILLI: 900, GPU_SHARES: 3}).gpus() == 5


def test_slices_count_against_gpus_and_against_themselves() -> None:
    """Seven slices are one GPU; a bound of slices bounds no GPUs."""
    total = Resources({GPU: 1, SLICE: 14})
    tree = QueueTree([a_queue("a", limit=Resources({GPU: 1})), a_queue("b", limit=Resources({SLICE: 3}))], total)
    assert tree.open_total()[GPU] == 3 * GPU_UNITS
    tree.take("a", {SLICE: 5}, preemptible=True)
    assert tree.shortfall("a", {SLICE: 2}, preemptible=True) is None
    short = tree.shortfall("a", {GPU: 1}, preemptible=True)
    assert short is not None
    assert (short.resource, short.short, short.used, short.raise_by) == (GPU, 5000, 5000, 1)
    assert tree.shortfall("b", {GPU: 1, SLICE: 3}, preemptible=True) is None
    over = tree.shortfall("b", {SLICE: 4}, preemptible=True)
    assert over is not None
    assert (over.resource, over.short) == (SLICE, 1)


def test_a_tree_made_again_counts_slices_once() -> None:
    """The new tree takes over the use as the old one counted it."""
    queue = a_queue("a", limit=Resources({GPU: 1}))
    tree = QueueTree([queue], Resources({GPU: 1, SLICE: 7}), closed=Resources({SLICE: 7}))
    tree.take("a", {SLICE: 7}, preemptible=True)
    tree.take_stranded("a", {SLICE: 7}, preemptible=True)
    again = tree.with_open(Resources({SLICE: 7}))
    assert again.subtree_use("a") == tree.subtree_use("a") == Resources({GPU: GPU_UNITS, SLICE: 7})


def test_nodes_that_take_no_work_add_nothing() -> None:
    """12 in the pool, 4 of them on nodes that take no work: two queues share the other 8."""
    tree = QueueTree([a_queue("a", nominal=cpu(2)), a_queue("b")], TOTAL, closed=cpu(4))
    assert tree.deserved("b") == Resources({"cpu": 6, "gpu": 8})
    assert room(tree, "b", preemptible=False) == 6
    assert tree.share("b", {"cpu": 8}) == tree.unit * Fraction(1, 4)


def test_a_resource_that_no_node_offers_now_is_still_shared() -> None:
    """All GPUs are on nodes that take no work: no queue deserves one, and a queue that uses some is above its due."""
    tree = QueueTree([a_queue("a"), a_queue("b", limit=cpu(9))], TOTAL, closed=Resources({"gpu": 8}))
    tree.take("a", {"gpu": 4}, preemptible=True)
    assert tree.deserved("a").get("gpu") == 0
    assert tree.share("a") == tree.unit * Fraction(1, 2)
    assert tree.above_in("gpu") == {"", "a"}


def test_what_stands_on_nodes_that_take_no_work_takes_no_room_on_others() -> None:
    """Of 12, 4 are on nodes that take no work, and in use. The other 8 are free, of which 6 are reserved for `a`."""
    queues = [a_queue("a", nominal=cpu(6), lending_limit=cpu(0)), a_queue("b")]
    tree = QueueTree(queues, TOTAL, closed=cpu(4))
    tree.take("b", {"cpu": 4}, preemptible=True)
    assert room(tree, "b") == 0
    tree.take_stranded("b", {"cpu": 4}, preemptible=True)
    assert room(tree, "b") == 2
    assert room(tree, "b", preemptible=False) == 2
    tree.take_stranded("b", {"cpu": -4}, preemptible=True)
    tree.take("b", {"cpu": -4}, preemptible=True)
    assert room(tree, "b") == 2


def test_a_reserve_that_is_used_on_nodes_that_take_no_work_stays_reserved() -> None:
    """`a` uses its own 6 of 12 on nodes that take no work: other queues do not get 6 on the other nodes."""
    queues = [a_queue("a", nominal=cpu(6), lending_limit=cpu(0)), a_queue("b")]
    tree = QueueTree(queues, TOTAL, closed=cpu(6))
    tree.take("a", {"cpu": 6}, preemptible=False)
    tree.take_stranded("a", {"cpu": 6}, preemptible=False)
    assert room(tree, "b") == 0
    assert room(tree, "b", preemptible=False) == 0


def test_opening_nodes_gives_the_queues_more() -> None:
    """The tree with more nodes open is that of a pool in which they were open all along, with the same use."""
    queues = [a_queue("a", nominal=cpu(6), lending_limit=cpu(0)), a_queue("b")]
    tree = QueueTree(queues, TOTAL, closed=cpu(4))
    tree.take("b", {"cpu": 1}, preemptible=True)
    opened = tree.with_open(cpu(4))
    assert (room(tree, "b"), room(opened, "b")) == (1, 5)
    assert opened.subtree_use("b") == tree.subtree_use("b")


def test_shares_are_exact() -> None:
    """1:2 of 32: with 11 and 22 both queues would be a third of one above their due, neither less than the other."""
    tree = QueueTree([a_queue("a", weight=1), a_queue("b", weight=2)], Resources({GPU: 32}))
    tree.take("a", {GPU: 10}, preemptible=True)
    tree.take("b", {GPU: 21}, preemptible=True)
    assert tree.share("a", {GPU: 1}) == tree.share("b", {GPU: 1}) == tree.unit * Fraction(1, 96)
    assert tree.share("a") == tree.share("b") == 0
