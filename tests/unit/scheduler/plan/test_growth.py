"""Running elastic gangs get the ranks that they lack, when nothing else waits for the room."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slipway.model.facts import AllocationFact, PodFact, QueueFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.resources import GPU, Resources
from slipway.scheduler.plan.lint import PlanRule, lint
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.plan_types import Grow, Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.simulate.command import main
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, running

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def grown(snapshot: PoolSnapshot) -> Plan:
    """The plan of a caller that can add ranks; it keeps every rule."""
    decided = plan(snapshot, policy_of(snapshot.pool), 0.0, grows=True)
    assert lint(snapshot, decided) == ()
    return decided


def elastic(placed: int, count: int = 8, name: str = "elastic", **more: Any) -> AllocationFact:
    """A gang that runs with `placed` of `count` ranks, one GPU each, on node n; its minimum is two."""
    fact = an_allocation(name, a_role(count, 2, gpus=1), **more)
    return running(fact, dict.fromkeys(range(placed), "n"))


def test_a_gang_gets_the_ranks_that_it_lacks() -> None:
    """New ranks have the lowest free numbers; those that run keep their places."""
    fact = elastic(3, 5)
    (grow,) = grown(a_snapshot([a_node("n", gpus=8)], [fact])).grows
    assert (grow.uid, grow.attempt, grow.placements) == (fact.uid, 1, {3: "n", 4: "n"})


def test_a_gap_in_the_ranks_is_filled() -> None:
    """A rank that made room comes back under its own number."""
    fact = msgspec.structs.replace(elastic(0, 4), placements={0: "n", 2: "n"})
    (grow,) = grown(a_snapshot([a_node("n", gpus=8)], [running(fact, fact.placements)])).grows
    assert grow.placements == {1: "n", 3: "n"}


def test_it_grows_by_what_there_is_room_for() -> None:
    """Growth takes what is free, evicts nothing, and then decides nothing more."""
    decided = grown(a_snapshot([a_node("n", gpus=5)], [elastic(3)]))
    assert [list(grow.placements) for grow in decided.grows] == [[3, 4]]
    assert not decided.evictions
    assert grown(a_snapshot([a_node("n", gpus=5)], [elastic(5)])).is_empty


def test_what_can_start_goes_first() -> None:
    """A minimum that fits is admitted; growth gets the rest."""
    single = an_allocation("single", a_role(1, gpus=4))
    decided = grown(a_snapshot([a_node("n", gpus=8)], [elastic(2), single]))
    assert [admit.uid for admit in decided.admits] == [single.uid]
    assert [len(grow.placements) for grow in decided.grows] == [2]


def test_no_gang_grows_while_other_work_waits_for_room() -> None:
    """Free GPUs may be what the waiting work needs next."""
    rest = an_allocation("rest", a_role(1, gpus=7))
    assert not grown(a_snapshot([a_node("n", gpus=8)], [elastic(2), rest])).grows


def test_what_can_never_start_holds_no_growth_back() -> None:
    """Work that is larger than every node waits for no room that growth could take."""
    never = an_allocation("never", a_role(1, gpus=9))
    assert grown(a_snapshot([a_node("n", gpus=8)], [elastic(2), never])).grows


def test_quota_bounds_growth() -> None:
    """A gang does not grow above the limit of its queue."""
    queue = QueueFact(name="default", limit=Resources.of({GPU: 4}))
    (grow,) = grown(a_snapshot([a_node("n", gpus=8)], [elastic(3)], queues=[queue])).grows
    assert list(grow.placements) == [3]


@pytest.mark.parametrize("change", [{"leaving_ranks": (2,)}, {"desired": "Stopped"}, {"stopping": True}])
def test_what_leaves_does_not_grow(change: dict[str, Any]) -> None:
    """Shrink and growth never meet, and what ends gets nothing more."""
    fact = msgspec.structs.replace(elastic(3), **change)
    assert not grown(a_snapshot([a_node("n", gpus=8)], [fact])).grows


def test_a_caller_that_cannot_add_ranks_gets_no_growth() -> None:
    """Growth is asked for: without that the plan is as it was."""
    snapshot = a_snapshot([a_node("n", gpus=8)], [elastic(3)])
    assert plan(snapshot, policy_of(snapshot.pool), 0.0).is_empty


def test_lint_refuses_a_rank_that_stands_already() -> None:
    """A growth that gives a rank a second place is found before it is committed."""
    fact = elastic(3)
    grow = Grow(allocation=fact.key, uid=fact.uid, attempt=1, placements={2: "n"})
    broken = lint(a_snapshot([a_node("n", gpus=8)], [fact]), Plan(grows=(grow,)))
    assert [each.rule for each in broken] == [PlanRule.DOUBLE]


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("elastic_gang_grows", [1.0] * 4 + [100.0] * 4),
        ("elastic_growth_waits_for_minima", [1.0] * 4 + [300.0] * 4),
        ("elastic_shrunk_gang_grows_again", [0.0] * 8 + [60.0] * 4),
        ("elastic_growth_stays_in_its_rack", [1.0] * 2 + [100.0] * 2),
    ],
)
def test_scenarios_of_growth(name: str, starts: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Each scenario file shows one rule; these are the times at which the ranks of `elastic` start."""
    assert main([str(SCENARIOS / f"{name}.yaml"), "-o", "json"]) == 0
    places = json.loads(capsys.readouterr().out)["allocations"]["elastic"]["placements"]
    assert sorted(place["start"] for place in places) == starts


def test_the_answer_says_what_a_gang_waits_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A running gang below its count has its ranks and what it needs in the answer."""
    file = tmp_path / "s.yaml"
    file.write_text(
        "nodes: [{name: n, cpu: 9, gpus: 3}]\n"
        "allocations: [{name: elastic, minAvailable: 2, ranks: [{count: 8, minAvailable: 2, cpu: 1, gpus: 1}]}]\n"
    )
    assert main([str(file), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["allocations"]["elastic"]
    assert found["growth"] == "3 of 8 ranks; grows when 5 more GPUs are free"


def a_pod_of(fact: AllocationFact, rank: int) -> PodFact:
    """The live pod of `rank` on node n."""
    name = f"{fact.name}-{rank}"
    return PodFact(
        namespace="default",
        name=name,
        uid=name,
        node="n",
        live=True,
        allocation_uid=fact.uid,
        attempt=1,
        rank=rank,
        requests=Resources.of({GPU: 1}),
    )


def test_a_rank_that_has_left_keeps_its_place_until_its_pod_is_seen_to_be_gone() -> None:
    """Otherwise the rest of the gang would be evicted for the work that already waits for that room."""
    fact = msgspec.structs.replace(elastic(4, 4), leaving_ranks=(2, 3), left_ranks=(2, 3), ended_ranks=(2, 3))
    pods = [a_pod_of(fact, rank) for rank in range(4)]
    late = a_snapshot([a_node("n", gpus=4)], [fact], pods=pods)
    assert set(late.holdings[fact.uid].admitted) == {0, 1, 2, 3}
    assert late.holdings[fact.uid].leaving == (2, 3)
    assert grown(late).is_empty
    urgent = an_allocation("urgent", a_role(2, gpus=1), priority=90)
    queue = QueueFact(name="default", within_queue="LowerPriority")
    both = a_snapshot([a_node("n", gpus=4)], [fact, urgent], pods=pods, queues=[queue])
    assert not grown(both).evictions
    seen = a_snapshot([a_node("n", gpus=4)], [fact], pods=pods[:2])
    assert set(seen.holdings[fact.uid].admitted) == {0, 1}
    assert [set(grow.placements) for grow in grown(seen).grows] == [{2, 3}]


def test_the_pod_that_a_rank_had_before_says_nothing_of_the_rank_that_comes_back() -> None:
    """The end of the old pod is ignored: the rank uses the place of the open decision."""
    fact = msgspec.structs.replace(elastic(4, 4), leaving_ranks=(2, 3), left_ranks=(2, 3), ended_ranks=(2, 3))
    decision = Decision(
        id="1-1-0",
        epoch=1,
        allocation=fact.key,
        uid=fact.uid,
        attempt=1,
        kind=DecisionKind.GROW,
        placements=(-1, -1, 0, 0),
    )
    pods = [a_pod_of(fact, rank) for rank in (0, 1)]
    pods += [msgspec.structs.replace(a_pod_of(fact, rank), live=False) for rank in (2, 3)]
    snapshot = a_snapshot([a_node("n", gpus=4)], [fact], pods=pods, decisions=[(decision, ("n",))])
    holding = snapshot.holdings[fact.uid]
    assert (set(holding.admitted), set(holding.charges)) == ({0, 1, 2, 3}, {0, 1, 2, 3})


def test_an_attempt_that_was_not_started_for_it_does_not_grow() -> None:
    """An older release told its ranks that no other ranks join them."""
    fact = msgspec.structs.replace(elastic(3, 5), is_elastic=False)
    assert grown(a_snapshot([a_node("n", gpus=8)], [fact])).is_empty
