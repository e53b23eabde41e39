"""A plan as a whole: order, limits, surplus ranks, and the lint that checks it."""

import msgspec
import pytest

from slipway.model.facts import JobFact, PodFact, QueueFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.lint import PlanRule, lint
from slipway.scheduler.plan.state.plan_types import Admit, Plan, encoded
from tests.support.planner import a_node, a_role, a_snapshot, amounts, an_allocation, gates, nodes, places, planned


def test_the_admission_says_what_apply_needs() -> None:
    fact = an_allocation("g", a_role(2), attempt=3, spec_hash="h")
    assert planned(a_snapshot(nodes(2), [fact])).admits == (
        Admit(allocation="default/g", uid="uid-g", attempt=3, placements={0: "n0", 1: "n1"}, spec_hash="h"),
    )


def test_nothing_pending_is_an_empty_plan() -> None:
    assert planned(a_snapshot(nodes(2))) == Plan()


def test_strict_order_closes_the_queue_behind_a_head_that_waits() -> None:
    strict = [QueueFact(name="default", ordering="StrictFIFO")]
    work = [
        an_allocation("never", a_role(cpu=99), created=1.0),
        an_allocation("head", a_role(cpu=5), created=2.0),
        an_allocation("small", created=3.0),
    ]
    pods = [PodFact(namespace="d", name="p", uid="p", node="n0", requests=amounts(5))]
    made = planned(a_snapshot(nodes(1), work, queues=strict, pods=pods))
    assert gates(made) == {"never": "NoFit", "head": "NoFit", "small": "BehindQueueHead"}
    assert places(planned(a_snapshot(nodes(1), work, pods=pods))) == {"small": ["n0"]}


def test_a_blocked_head_keeps_its_nominal_from_borrowers() -> None:
    """Two cpu are free; the head needs three of its own queue's nominal, so the borrower does not get them."""
    queues = [QueueFact(name="owner", nominal=Resources({"cpu": 4000})), QueueFact(name="guest")]
    pinned = {"kubernetes.io/hostname": "n0"}
    labelled = [msgspec.structs.replace(node, labels={"kubernetes.io/hostname": node.name}) for node in nodes(2, cpu=4)]
    busy = an_allocation("busy", a_role(cpu=2, node_selector=pinned), queue="guest", preemptible=True)
    head = an_allocation("head", a_role(cpu=4, node_selector=pinned), queue="owner", created=1.0)
    guest = an_allocation("guest", a_role(4), queue="guest", created=2.0, preemptible=True)
    running_busy = msgspec.structs.replace(busy, phase="Running", placements={0: "n0"})
    made = planned(a_snapshot(labelled, [running_busy, head, guest], queues=queues))
    assert gates(made) == {"head": "NoFit", "guest": "WaitingForQuota"}
    reclaims = [msgspec.structs.replace(queues[0], reclaim="Any"), queues[1]]
    assert "guest" in places(planned(a_snapshot(labelled, [running_busy, head, guest], queues=reclaims)))


def test_surplus_goes_to_the_queue_that_is_least_above_its_due() -> None:
    """Both elastic gangs start with one rank each; the rest is shared."""
    queues = [QueueFact(name="a"), QueueFact(name="b")]
    work = [
        an_allocation("first", a_role(6, 1), queue="a", preemptible=True, created=1.0),
        an_allocation("second", a_role(6, 1), queue="b", preemptible=True, created=2.0),
    ]
    made = places(planned(a_snapshot(nodes(1, cpu=6), work, queues=queues)))
    assert {name: len(ranks) for name, ranks in made.items()} == {"first": 3, "second": 3}


def test_the_same_plan_twice() -> None:
    """Two plans of one snapshot are equal bit for bit."""
    snapshot = a_snapshot(nodes(4), [an_allocation(f"a{index}", a_role(index % 3 + 1)) for index in range(9)])
    assert encoded(planned(snapshot)) == encoded(planned(snapshot))


@pytest.mark.parametrize(
    ("placements", "rule"),
    [
        ({0: "n0"}, PlanRule.ATOMIC),
        ({0: "n0", 1: "n0"}, PlanRule.NODE),
        ({0: "n0", 1: "gone"}, PlanRule.STRANGE),
        ({0: "n0", 1: "n1", 7: "n1"}, PlanRule.DOUBLE),
    ],
)
def test_lint_finds_what_a_plan_breaks(placements: dict[int, str], rule: PlanRule) -> None:
    fact = an_allocation("g", a_role(2, cpu=5))
    admit = Admit(allocation=fact.key, uid=fact.uid, attempt=1, placements=placements)
    assert rule in {violation.rule for violation in lint(a_snapshot(nodes(2), [fact]), Plan(admits=(admit,)))}


def test_lint_finds_double_and_strange_admissions_and_broken_quota() -> None:
    held, fact = an_allocation("h", hold=True), an_allocation("g", a_role(cpu=2))
    queues = [QueueFact(name="default", limit=Resources({"cpu": 1000}))]
    snapshot = a_snapshot(nodes(2), [held, fact], queues=queues)

    def rules(*admits: Admit) -> set[PlanRule]:
        return {violation.rule for violation in lint(snapshot, Plan(admits=admits))}

    of_held = Admit(allocation=held.key, uid=held.uid, attempt=1, placements={0: "n0"})
    of_fact = Admit(allocation=fact.key, uid=fact.uid, attempt=1, placements={0: "n0"})
    assert rules(of_held) == {PlanRule.STRANGE}
    assert rules(msgspec.structs.replace(of_fact, attempt=2)) == {PlanRule.STRANGE}
    assert rules(of_fact) == {PlanRule.QUOTA}
    assert rules(of_fact, of_fact) == {PlanRule.DOUBLE, PlanRule.QUOTA}


def test_a_row_with_few_nodes_is_looked_at_where_it_matters() -> None:
    """A selector that leaves one of ten nodes: it is filled like any other, and then full."""
    facts = [msgspec.structs.replace(node, labels={"name": node.name}) for node in nodes(10, cpu=2)]
    work = [an_allocation(f"a{index}", a_role(node_selector={"name": "n7"}), created=index) for index in range(3)]
    made = planned(a_snapshot(facts, work))
    assert places(made) == {"a0": ["n7"], "a1": ["n7"]}
    assert made.explanations["default/a2"].reasons == {"Insufficient cpu": 1, "NodeSelectorMismatch": 9}


@pytest.mark.parametrize("ordering", ["StrictFIFO", "BestEffortFIFO"])
def test_what_exceeds_its_jobs_max_slots_is_skipped_and_blocks_nobody(ordering: str) -> None:
    """Other work of the queue and smaller work of the job starts, also in a queue of strict order."""
    job = JobFact(namespace="default", name="j", max_slots=2)
    work = [
        an_allocation("big", a_role(2, gpus=1), job="j", created=1.0),
        an_allocation("more", a_role(1, gpus=1), job="j", created=2.0),
        an_allocation("other", a_role(1, gpus=1), created=3.0),
        an_allocation("cpu", a_role(1), job="j", created=4.0),
    ]
    queues = [QueueFact(name="default", ordering=ordering)]
    made = planned(a_snapshot([a_node("n0", gpus=8)], work, queues=queues, jobs=[job]))
    assert set(places(made)) == {"big", "other", "cpu"}
    assert gates(made) == {"more": "JobMaxSlots"}


def test_the_queue_goes_by_priority_place_weight() -> None:
    """Work gets the room one after another; of equal priority and place the work of the heavier job goes first."""
    jobs = [
        JobFact(namespace="default", name="urgent", priority=90),
        JobFact(namespace="default", name="heavy", position="7", weight=5),
        JobFact(namespace="default", name="light", position="7.0", weight=2),
    ]
    work = [
        an_allocation("plain", priority=50, created=1.0),
        an_allocation("of-light", job="light", priority=50, created=2.0),
        an_allocation("of-heavy", job="heavy", priority=50, created=3.0),
        an_allocation("moved", priority=50, position="3", created=4.0),
        an_allocation("of-urgent", job="urgent", priority=1, created=5.0),
    ]
    made = planned(a_snapshot(nodes(1, cpu=0), work, jobs=jobs))
    order = sorted(made.explanations, key=lambda key: made.explanations[key].position)
    assert [key.partition("/")[2] for key in order] == ["of-urgent", "moved", "of-heavy", "of-light", "plain"]
