"""Reclaim for work that is confined to some nodes, by the shares of these nodes."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from slipway.model.facts import AllocationFact, NodeFact, QueueFact, Taint, Toleration
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import CPU, GPU, Resources
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement import node_sets
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.queueing.node_shares import NodeShares
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, places, planned, running
from tests.unit.scheduler.plan.preemption.test_nominations import nominated

NOW = 1000.0
H, A = {"gpu": "h100"}, {"gpu": "a100"}


def two_types() -> list[NodeFact]:
    """8 H100s, 24 A100s."""
    return [a_node("h", gpus=8, cpu=64, labels=H), *(a_node(f"a{n}", gpus=8, cpu=64, labels=A) for n in range(3))]


def a_queue(name: str, gpus: int | None = 16, *, reclaim: str = "Any", weight: int = 1, parent: str = "") -> QueueFact:
    nominal = None if gpus is None else Resources({GPU: gpus})
    return QueueFact(name=name, nominal=nominal, reclaim=reclaim, weight=weight, parent=parent)


def work(name: str, queue: str, *where: str, minimum: int | None = None, **more: Any) -> AllocationFact:
    """Work with a rank of one GPU on each node of `where`; without `where`, one rank that waits for an H100."""
    selector = more.pop("selector", H)
    count = max(1, len(where))
    role = msgspec.structs.replace(
        a_role(count, minimum, cpu=1, gpus=1, tolerations=more.pop("tolerations", ())),
        node_selector=selector,
        affinity=more.pop("affinity", {}),
    )
    fact = an_allocation(name, role, queue=queue, minimum=minimum or count, **{"preemptible": True, **more})
    return running(fact, dict(enumerate(where))) if where else fact


def pool(*facts: AllocationFact, queues: list[QueueFact] | None = None, **more: Any) -> PoolSnapshot:
    return a_snapshot(two_types(), facts, queues=queues or [a_queue("red"), a_queue("blue")], **more)


def evicted(decided: Plan) -> dict[str, tuple[int, ...]]:
    return {evict.allocation.partition("/")[2]: evict.ranks for evict in decided.evictions}


def test_a_queue_within_its_quota_gives_what_it_holds_beyond_its_part_of_a_type() -> None:
    """`red` uses all 8 H100s, within its quota of 16 GPUs: one surplus rank is evicted, and the plan passes lint."""
    snapshot = pool(work("hog", "red", *["h"] * 8, minimum=1), work("want", "blue"))
    decided = planned(snapshot, NOW)
    assert evicted(decided) == {"hog": (7,)}
    assert places(decided)["want"] == ["h"]
    assert lint(snapshot, decided) == ()


def test_it_keeps_its_part() -> None:
    """A queue that uses its share of the H100s, 4 of 8, loses none of them."""
    held = [work("hog", "red", *["h"] * 4, minimum=1), work("mine", "blue", *["h"] * 4)]
    assert planned(pool(*held, work("want", "blue")), NOW).is_empty


def test_work_of_lower_priority_only() -> None:
    """`reclaim: LowerPriority` holds for the shares of a type as well."""
    queues = [a_queue("red"), a_queue("blue", reclaim="LowerPriority")]
    hog = work("hog", "red", *["h"] * 8, minimum=1, priority=5)
    assert planned(pool(hog, work("want", "blue", priority=5), queues=queues), NOW).is_empty
    assert evicted(planned(pool(hog, work("want", "blue", priority=6), queues=queues), NOW)) == {"hog": (7,)}


def test_what_is_nominated_counts_as_held() -> None:
    """Nominated places count as used: with four of them `blue` has its share of the H100s, and evicts no more."""
    leaving = [
        msgspec.structs.replace(work(f"gone{n}", "red", "h"), stopping=True, deadlines={"preemption": NOW + 60})
        for n in range(4)
    ]
    waiting = [work(f"first{n}", "blue") for n in range(4)]
    open_decisions = [
        nominated(fact, "h", victims=(victim.uid,), number=number)
        for number, (fact, victim) in enumerate(zip(waiting, leaving, strict=True))
    ]
    hog = work("hog", "red", *["h"] * 4, minimum=1)
    late = work("late", "blue", created=9.0)
    assert evicted(planned(pool(hog, *leaving, *waiting, late, decisions=open_decisions), NOW)) == {}
    larger = work("hog", "red", *["h"] * 5, minimum=1)
    some = planned(pool(larger, *leaving[:3], *waiting[:3], late, decisions=open_decisions[:3]), NOW)
    assert evicted(some) == {"hog": (4,)}, "with three nominations the share of blue has room for one more"


def test_heads_of_one_tick_share_what_there_is() -> None:
    """Places of earlier heads count for later heads: together they get the share of their queue, and no more."""
    lone = [work(f"red{n}", "red", "h", created=float(n)) for n in range(8)]
    decided = planned(pool(*lone, *(work(f"want{n}", "blue") for n in range(6))), NOW)
    assert len(decided.evictions) == len(places(decided)) == 4


def test_the_scarcer_type_stays_with_a_queue_that_has_no_more_than_its_part_of_it() -> None:
    """`blue` uses many A100s and few H100s. `red`, whose work may use both types, evicts neither the rank of `blue` on
    an H100 nor its gang on A100s."""
    either = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
            }
        }
    }
    nodes = [a_node("a", gpus=4, labels=A), a_node("h", gpus=4, labels=H), a_node("x", gpus=8)]
    facts = [
        work("rare", "blue", "h", created=5.0),
        work("many", "blue", *["a"] * 4, minimum=4, selector=A),
        work("extra", "red", *["h"] * 3, minimum=3),
        work("want", "red", selector={}, affinity=either),
    ]
    queues = [a_queue("red", 8), a_queue("blue", 8)]
    assert planned(a_snapshot(nodes, facts, queues=queues), NOW).is_empty


def test_a_queue_at_its_quota_does_not_reclaim_a_type() -> None:
    """A queue at its quota would borrow the reclaimed GPU, and the other queue could reclaim it at once."""
    much = work("much", "blue", *["a0"] * 8, *["a1"] * 8, minimum=16, selector=A)
    assert planned(pool(work("hog", "red", *["h"] * 8, minimum=1), much, work("want", "blue")), NOW).is_empty


def test_taints_confine_work_too() -> None:
    """Work that does not tolerate the taint of spot nodes is confined to the other nodes, whatever its selector."""
    spot = Taint(key="spot", value="true")
    nodes = [a_node("d", gpus=4, cpu=64), *(a_node(f"s{n}", gpus=4, cpu=64, taints=(spot,)) for n in range(3))]
    queues = [a_queue("red", 8), a_queue("blue", 8)]
    hog = work("hog", "red", *["d"] * 4, minimum=1, selector={})
    decided = planned(a_snapshot(nodes, [hog, work("want", "blue", selector={})], queues=queues), NOW)
    assert evicted(decided) == {"hog": (3,)}
    anywhere = work("want", "blue", selector={}, tolerations=(Toleration(key="spot", operator="Exists"),))
    assert evicted(planned(a_snapshot(nodes, [hog, anywhere], queues=queues), NOW)) == {}


def test_nothing_is_summed_up_where_no_work_is_confined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner computes no sets of nodes for work that may use every node."""

    def never(*_: object) -> None:
        raise AssertionError("a set of nodes was looked at")

    monkeypatch.setattr(node_sets.NodeSets, "of", never)
    full = [work(f"r{node}", "red", *[node] * 8, minimum=8, selector={}) for node in ("h", "a0")]
    full += [work(f"b{node}", "blue", *[node] * 8, minimum=8, selector={}) for node in ("a1", "a2")]
    assert planned(pool(*full, work("want", "blue", selector={})), NOW).is_empty


def test_the_reason_names_the_type_the_queues_and_their_parts() -> None:
    """The explanation names them also when the queue may not reclaim; it describes an affinity like a selector."""
    queues = [a_queue("red"), a_queue("blue", reclaim="Never")]
    hog = work("hog", "red", *["h"] * 8, minimum=1)
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    told = "all 8 GPUs on nodes with gpu=h100 are in use; red uses 8 of them, its share is 4"
    for want in (work("want", "blue"), work("want", "blue", selector={}, affinity=affinity)):
        assert told in planned(pool(hog, want, queues=queues), NOW).explanations["default/want"].message


def test_parts_of_a_set_are_those_of_the_pool() -> None:
    """Shares of a set of nodes are exact and follow the tree, by weight for queues without a nominal. Usage that is
    taken and given back leaves nothing."""
    queues = [a_queue("team", None, weight=2), a_queue("rest", None), a_queue("leaf", 4, parent="team")]
    tree = queue_tree(a_snapshot([a_node(f"n{n}", gpus=4, cpu=6) for n in range(3)], queues=queues))
    shares = NodeShares(tree, {GPU: 4 * GPU_UNITS, CPU: 6_000})
    assert shares.due("team", GPU) == Fraction(8 * GPU_UNITS, 3)
    assert shares.due("rest", GPU) == Fraction(4 * GPU_UNITS, 3)
    shares.take("leaf", {GPU: 3})
    assert shares.used("team", GPU) == 3 * GPU_UNITS
    assert shares.share("team") == Fraction(1, 3) / 4 / 2
    assert shares.shares("leaf") == (shares.share("team"), shares.share("leaf"))
    shares.take("leaf", {GPU: 3}, -1)
    assert shares.share("team") == 0
