"""Flavors: which nodes belong to them, which of them work is tried in, and what its queue may use of each."""

from typing import Any

import msgspec
import pytest

from slipway.model.facts import FLAVOR_LABEL, AllocationFact, FlavorFact, NodeFact, PoolFact, QueueFact
from slipway.model.ledger import Decision
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import CPU, GPU, Resources, flavor_in, gpus_of, scale_of
from slipway.scheduler.plan.lint import PlanRule, lint
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.queueing.flavor_choice import FlavorChoices
from slipway.scheduler.plan.state.flavors import labelled, of_flavor
from slipway.scheduler.plan.state.plan_types import Admit, Plan
from slipway.scheduler.plan.state.pool_state import PoolState, build
from slipway.scheduler.plan.state.rank_request import smallest_demand
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import (
    WORKSPACES,
    a_node,
    a_role,
    a_snapshot,
    an_allocation,
    gates,
    places,
    planned,
    running,
)

H = FlavorFact("h100", {"gpu": "h100"})
A = FlavorFact("a100", {"gpu": "a100"})
POOL = PoolFact(name="default", flavors=(H, A))


def two_types(h: int = 4, a: int = 4) -> list[NodeFact]:
    """A node of each type."""
    return [a_node("h", gpus=h, labels={"gpu": "h100"}), a_node("a", gpus=a, labels={"gpu": "a100"})]


def own(h: int, a: int) -> Resources:
    """Return so many GPUs of each type, as quota counts them."""
    return Resources({gpus_of("h100"): h * GPU_UNITS, gpus_of("a100"): a * GPU_UNITS})


def a_queue(
    name: str = "default",
    nominal: Resources | None = None,
    *,
    flavors: tuple[str, ...] = ("h100", "a100"),
    **more: Any,
) -> QueueFact:
    """A queue that lists both flavors."""
    return QueueFact(name=name, nominal=nominal, flavors=flavors, **more)


def work(name: str, gpus: int = 1, count: int = 1, **more: Any) -> AllocationFact:
    """A gang of ranks with GPUs."""
    return an_allocation(name, a_role(count=count, gpus=gpus), **{"preemptible": True, **more})


def of(allocations: list[AllocationFact], queues: list[QueueFact], nodes: list[NodeFact] | None = None) -> PoolSnapshot:
    """A snapshot of the pool with both flavors."""
    return a_snapshot(two_types() if nodes is None else nodes, allocations, queues=queues, pool=POOL)


def test_names_of_gpus_by_flavor() -> None:
    """The resource name of a flavor names its flavor, and is counted in `GPU_UNITS`; other resources have no flavor."""
    assert flavor_in(gpus_of("h100")) == "h100"
    assert scale_of(gpus_of("h100")) == GPU_UNITS
    assert [flavor_in(name) for name in (GPU, CPU)] == ["", ""]
    assert scale_of(GPU) == 1


def test_a_node_is_of_the_first_flavor_whose_labels_it_has() -> None:
    """A node has all labels of its flavor. A node without a flavor gets an empty label; a flavor that it claimed before
    is replaced."""
    both = FlavorFact("both", {"gpu": "h100", "zone": "x"})
    node = a_node("n", labels={"gpu": "h100", FLAVOR_LABEL: "claimed"})
    assert labelled(node, (both, H)).labels == {"gpu": "h100", FLAVOR_LABEL: "h100"}
    assert labelled(node, (A,)).labels[FLAVOR_LABEL] == ""
    assert labelled(node, ()).labels == {"gpu": "h100"}


def test_work_goes_to_the_first_flavor_that_it_accepts_and_that_has_room() -> None:
    """Flavors are tried in the order of the work, whatever the order of the pool."""
    queues = [a_queue(flavors=())]
    first = planned(of([work("w", flavors=("a100", "h100"))], queues))
    second = planned(of([work("w", gpus=2, count=3, flavors=("a100", "h100"))], queues, two_types(h=8)))
    assert places(first) == {"w": ["a"]}
    assert places(second) == {"w": ["h", "h", "h"]}


def test_work_that_names_none_follows_its_queue_then_its_pool() -> None:
    """The order is that of the queue, if it lists flavors, else of the pool; work without GPUs has no flavor."""
    assert places(planned(of([work("w")], [a_queue(flavors=("a100",))]))) == {"w": ["a"]}
    assert places(planned(of([work("w")], [a_queue(flavors=())]))) == {"w": ["h"]}
    plain = [an_allocation("w", a_role(cpu=6)), an_allocation("x", a_role(cpu=6))]
    assert places(planned(of(plain, [a_queue(nominal=own(0, 0))]))).keys() == {"w", "x"}


def test_work_waits_for_a_flavor_that_the_pool_has_not() -> None:
    """The message lists the flavors of the pool, or states that it has none."""
    snapshot = of([work("w", flavors=("h200",))], [a_queue()])
    (why,) = planned(snapshot).explanations.values()
    assert (why.gate.value, why.message) == (
        "UnknownFlavor",
        "pool default has no flavor h200; it has h100, a100",
    )
    bare = a_snapshot(two_types(), [work("w", flavors=("h100",))])
    (why,) = planned(bare).explanations.values()
    assert why.message == "pool default has no flavor h100; it has no flavors"


def test_running_work_counts_in_the_flavor_of_its_nodes() -> None:
    """Work counts by its use of the nodes, parts of GPUs too, and not by the flavors that it accepts."""
    whole = running(work("w", gpus=2, flavors=("h100", "a100")), {0: "a"})
    part = running(an_allocation("p", a_role(gpu_milli=300)), {0: "h"})
    tree = queue_tree(of([whole, part], [a_queue(nominal=own(1, 1))]))
    assert tree.subtree_use("default").get(gpus_of("a100")) == 2 * GPU_UNITS
    assert tree.subtree_use("default").get(gpus_of("h100")) == 300 * 7


def test_what_nodes_that_take_no_work_hold_of_a_flavor_is_no_share() -> None:
    """A cordoned node adds nothing to what queues by weight deserve of its flavor."""
    nodes = [*two_types(), a_node("h2", gpus=4, labels={"gpu": "h100"}, unschedulable=True)]
    queues = [QueueFact(name="default"), QueueFact(name="other"), a_queue("owner", own(0, 0))]
    tree = queue_tree(of([], queues, nodes))
    assert tree.deserved("default").get(gpus_of("h100")) == 2 * GPU_UNITS


@pytest.mark.parametrize(("policy", "node"), [("Borrow", "h"), ("TryNextFlavor", "a")])
def test_borrow_here_or_try_the_next(policy: str, node: str) -> None:
    """A queue that owns nothing of the first flavor borrows there, or uses a flavor of which it owns something."""
    queues = [a_queue(nominal=own(0, 2), when_can_borrow=policy), a_queue("other", own(4, 2))]
    assert places(planned(of([work("w")], queues))) == {"w": [node]}


def test_a_patient_queue_borrows_once_nothing_of_its_own_is_left() -> None:
    """With `TryNextFlavor`, flavors in which the queue would borrow are tried last, in their order."""
    queues = [a_queue(nominal=own(0, 1), when_can_borrow="TryNextFlavor"), a_queue("other", own(4, 3))]
    snapshot = of([running(work("first", 1), {0: "a"}), work("w")], queues)
    assert places(planned(snapshot)) == {"w": ["h"]}


@pytest.mark.parametrize(("policy", "node", "evicted"), [("TryNextFlavor", "a", 0), ("Preempt", "h", 1)])
def test_preempt_here_or_try_the_next(policy: str, node: str, evicted: int) -> None:
    """With room in the next flavor nothing is evicted, unless the queue states `Preempt`."""
    queues = [a_queue(within_queue="LowerPriority", when_can_preempt=policy)]
    snapshot = of([running(work("low", 4), {0: "h"}), work("w", priority=9)], queues)
    decided = planned(snapshot)
    assert places(decided)["w"] == [node]
    assert len(decided.evictions) == evicted


def test_what_cannot_preempt_tries_the_next_flavor() -> None:
    """`Preempt` stops at a flavor only where room can be made."""
    queues = [a_queue(within_queue="LowerPriority", when_can_preempt="Preempt")]
    snapshot = of([running(work("high", 4, priority=9), {0: "h"}), work("w")], queues)
    assert places(planned(snapshot)) == {"w": ["a"]}


def test_a_closed_flavor_stays_closed_until_use_of_it_is_given_back() -> None:
    """Quota is not asked again for a flavor that it closed, until something that counts is taken away."""
    snapshot = of([work("w")], [a_queue(nominal=own(1, 4), limit=own(1, 4))])
    tree = queue_tree(snapshot)
    choices = FlavorChoices(snapshot, tree)
    group = snapshot.groups[0]
    h100, a100 = choices.of(group)
    one = h100.group.demand.amounts
    tree.take("default", one, preemptible=True)
    assert choices.likely(group.sample, group).flavor == "a100"
    assert choices.is_known_closed(group.sample, h100)
    assert not choices.is_known_closed(group.sample, a100)
    tree.take("default", {name: -amount for name, amount in one.items()}, preemptible=True)
    assert not choices.is_known_closed(group.sample, h100)
    assert choices.likely(group.sample, group).flavor == "h100"


def test_a_flavor_is_reclaimed_and_no_other_flavor_pays_for_it() -> None:
    """Of two queues that borrow, only the one above its share of the requested flavor loses work."""
    queues = [
        a_queue(nominal=own(2, 0), reclaim="Any"),
        a_queue("above", own(2, 0)),
        a_queue("elsewhere", own(0, 0)),
    ]
    held = [
        running(work("x", 1, 1, queue="above"), {0: "h"}),
        running(work("y", 3, 1, queue="above"), {0: "h"}),
        running(work("z", 4, 1, queue="elsewhere"), {0: "a"}),
    ]
    decided = planned(of([*held, work("w", 1, flavors=("h100",))], queues))
    assert [evict.allocation for evict in decided.evictions] == ["default/x"]
    assert places(decided) == {"w": ["h"]}


def test_no_limit_of_a_flavor_is_judged_by_the_parts_of_the_pool() -> None:
    """When queues own parts of a flavor, a queue gets no more of it because it owns many other GPUs."""
    queues = [
        a_queue(nominal=Resources({GPU: 4, **own(0, 4).amounts}), reclaim="Any"),
        a_queue("owner", Resources({GPU: 4, **own(4, 0).amounts})),
    ]
    held = running(
        an_allocation("held", a_role(4, 1, gpus=1), queue="owner", preemptible=True), dict.fromkeys(range(4), "h")
    )
    decided = planned(of([held, work("w", flavors=("h100",))], queues))
    assert decided.evictions == ()
    assert gates(decided) == {"w": "NoFit"}


def test_the_reason_says_what_stops_it_in_each_flavor() -> None:
    """The reason is final only if it is final in each flavor."""
    queues = [a_queue(limit=own(0, 4))]
    snapshot = of([running(work("w0", 4), {0: "a"}), work("w", flavors=("h100", "a100"))], queues)
    (why,) = planned(snapshot).explanations.values()
    assert why.message == (
        "flavor h100: asks for 1 nvidia.com/gpu of flavor h100 more than it can ever get: the limit of queue default "
        "is 0 nvidia.com/gpu of flavor h100 and 0 nvidia.com/gpu of flavor h100 is in use; flavor a100: needs 1 "
        "nvidia.com/gpu of flavor a100 more quota: the limit of queue default is 4 nvidia.com/gpu of flavor a100 and "
        "4 nvidia.com/gpu of flavor a100 is in use"
    )
    assert not why.is_never


def test_the_remedy_raises_the_limit_of_the_flavor_by_whole_gpus() -> None:
    """The remedy is for the flavor that the reason names."""
    queues = [a_queue(limit=own(2, 0))]
    part = running(an_allocation("p", a_role(gpu_milli=500)), {0: "h"})
    snapshot = of([part, work("w", 2, flavors=("h100",))], queues)
    (why,) = planned(snapshot).explanations.values()
    assert why.change is not None
    assert [(each.kind, each.name, each.amounts) for each in why.change] == [
        ("limit", "default", {gpus_of("h100"): GPU_UNITS})
    ]


def test_a_plan_that_breaks_the_limit_of_a_flavor_is_found() -> None:
    """Lint counts an admission in the flavor of its nodes."""
    snapshot = of([work("w", 2)], [a_queue(limit=own(1, 2))])
    (fact,) = snapshot.pending
    for node, broken in (("a", []), ("h", [PlanRule.QUOTA])):
        admit = Admit(allocation=fact.key, uid=fact.uid, attempt=1, placements={0: node})
        assert [each.rule for each in lint(snapshot, Plan(admits=(admit,)))] == broken


def test_a_decision_that_is_not_seen_yet_counts_in_its_flavor() -> None:
    """An open decision counts in the flavor of its nodes, as an admission does."""
    fact = work("w", 2)
    decision = Decision(id="d", uid=fact.uid, allocation=fact.key, epoch=1, attempt=1, placements=(0,))
    snapshot = build(
        two_types(),
        (),
        [fact],
        queues=[a_queue()],
        pool=POOL,
        open_decisions=[(decision, ("a",))],
        workspaces=WORKSPACES,
    )
    assert snapshot.use["default"].preemptible[gpus_of("a100")] == 2 * GPU_UNITS


def test_new_flavors_of_a_pool_count_what_runs() -> None:
    """When the flavors of a pool change, its nodes are labelled and its use is counted anew; without flavors all is as
    before."""
    columns = PoolState(PoolFact(name="default"))
    columns.set_nodes(two_types())
    columns.set_allocation(running(work("w", 2), {0: "a"}))
    columns.set_queues([a_queue()])
    plain = columns.snapshot()
    columns.set_pool(POOL)
    assert columns.snapshot().use["default"].preemptible[gpus_of("a100")] == 2 * GPU_UNITS
    columns.set_pool(PoolFact(name="default"))
    assert columns.snapshot().use["default"].preemptible.get(gpus_of("a100"), 0) == 0
    assert columns.snapshot().table.facts == plain.table.facts


def test_ranks_without_gpus_are_confined_only_where_no_rank_has_some() -> None:
    """A driver rank beside GPU ranks may be on any node; a gang without GPUs that accepts a flavor goes to the nodes of
    it."""
    mixed = of_flavor(an_allocation("m", a_role(name="driver"), a_role(gpus=1, name="gpu")), "h100")
    assert [role.flavor for role in mixed.roles] == [None, "h100"]
    plain = of_flavor(an_allocation("p", a_role()), "h100")
    assert [role.flavor for role in plain.roles] == ["h100"]
    assert gpus_of("h100") not in smallest_demand(plain).amounts


def test_a_pool_without_flavors_counts_none() -> None:
    """Without flavors no node is labelled, and the facts of work are the same objects."""
    fact = running(work("w"), {0: "h"})
    snapshot = a_snapshot(two_types(), [fact])
    (holding,) = snapshot.holdings.values()
    assert holding.allocation is fact
    assert all(FLAVOR_LABEL not in node.labels for node in snapshot.table.facts)
    assert msgspec.structs.asdict(snapshot.use["default"])["preemptible"].keys() == {CPU, GPU, "pods"}
