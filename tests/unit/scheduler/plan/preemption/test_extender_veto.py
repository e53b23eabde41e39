"""Extenders with a preempt verb: they are asked before an eviction, and pods are evicted only where they agree."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from slipway.model.facts import ExtenderFact
from slipway.model.reasons import Gate
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.extender_results import Answers, ExtenderAnswer, ExtenderVerb, Question
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.simulate.scenario import decode
from slipway.scheduler.simulate.world import SimulatedWorld

GUARD = ExtenderFact(url="http://guard:1/s", preempt_verb="preempt")
QUEUES = [{"name": "q", "preemption": {"withinQueue": "LowerPriority"}}]


def running(name: str, node: str, **changes: Any) -> dict[str, Any]:
    rank = {"cpu": changes.pop("cpu", 4)}
    placed = [{"rank": 0, "node": node}]
    return {"name": name, "ranks": [rank], "queue": "q", "preemptible": True, "placed": placed, **changes}


def urgent(name: str = "urgent", priority: int = 9, **rank: Any) -> dict[str, Any]:
    return {"name": name, "ranks": [{"cpu": 4, **rank}], "queue": "q", "priority": priority}


def a_snapshot(*work: dict[str, Any], nodes: int | list[dict[str, Any]] = 3, queues: Any = QUEUES) -> PoolSnapshot:
    """A snapshot in which all of `work` has been submitted."""
    listed = [{"name": "n", "count": nodes, "cpu": 4}] if isinstance(nodes, int) else nodes
    world = SimulatedWorld(decode(json.dumps({"nodes": listed, "queues": queues, "allocations": list(work)})))
    for item in work:
        world.submit(item["name"])
    return world.columns.snapshot((), 0.0)


def full(nodes: int = 3) -> list[dict[str, Any]]:
    """One running allocation on each node, each with a higher priority than the one before."""
    return [running(f"low-{index}", f"n-{index}", priority=index) for index in range(nodes)]


def planned(snapshot: PoolSnapshot, answers: Answers | None, *extenders: ExtenderFact) -> Plan:
    policy = msgspec.structs.replace(policy_of(snapshot.pool), extenders=extenders)
    made = plan(snapshot, policy, 0.0, answers=answers)
    assert lint(snapshot, made) == ()
    return made


def agreeing(*nodes: str, **changes: Any) -> Callable[[Question], ExtenderAnswer]:
    def say(question: Question) -> ExtenderAnswer:
        offered = {offer.node: offer.ids for offer in question.offers}
        asked = frozenset(question.nodes)
        return ExtenderAnswer(asked=asked, passed=asked & frozenset(nodes), offered=offered, **changes)

    return say


def failing(_: Question) -> ExtenderAnswer:
    return ExtenderAnswer(fault="no answer within 5 s")


def talk(snapshot: PoolSnapshot, say: Callable[[Question], ExtenderAnswer], *extenders: ExtenderFact) -> Plan:
    """Plan and answer until a plan asks nothing new."""
    answers: dict[Any, ExtenderAnswer] = {}
    for _ in range(10):
        made = planned(snapshot, answers, *extenders)
        fresh = {question.key: say(question) for question in made.questions}
        if all(answers.get(key) == answer for key, answer in fresh.items()):
            return made
        answers |= fresh
    raise AssertionError("the questions never end")


def gone(made: Plan) -> list[str]:
    return sorted(evict.uid for evict in made.evictions)


def places(made: Plan) -> dict[str, list[str]]:
    return {admit.uid: list(admit.placements.values()) for admit in made.admits}


def test_no_victim_is_evicted_before_the_extender_has_answered() -> None:
    """The question contains the nodes, the best first, with the pods that would be evicted from each. The allocation
    waits, and its explanation names the extender."""
    made = planned(a_snapshot(*full(), urgent()), {}, GUARD)

    assert (made.admits, made.evictions) == ((), ())
    [question] = made.questions
    assert (question.verb, question.nodes) == (ExtenderVerb.PREEMPT, ("n-0", "n-1", "n-2"))
    assert [offer.ids for offer in question.offers] == [("low-0-1-0",), ("low-1-1-0",), ("low-2-1-0",)]
    assert question.owner is not None
    assert question.owner.name == "urgent"
    why = made.explanations["default/urgent"]
    assert why.gate is Gate.WAITING_FOR_EXTENDER
    assert "before it evicts other allocations, it waits for the answer of extender guard:1/s" in why.message


def test_the_best_of_the_nodes_that_it_names_is_cleared() -> None:
    """The planner clears the best of the nodes that the extender names, not the best of all nodes."""
    made = talk(a_snapshot(*full(), urgent()), agreeing("n-2", "n-1"), GUARD)

    assert (gone(made), places(made)) == (["low-1"], {"urgent": ["n-1"]})


def test_no_victim_is_evicted_when_the_extender_names_no_node() -> None:
    """The explanation names the extender that refuses; the gate is NO_FIT."""
    made = talk(a_snapshot(*full(), urgent()), agreeing(), GUARD)

    assert (made.admits, made.evictions) == ((), ())
    why = made.explanations["default/urgent"]
    assert why.gate is Gate.NO_FIT
    assert "extender guard:1/s refuses the evictions on all nodes" in why.message


def test_a_fault_of_the_extender_evicts_nothing() -> None:
    """A fault of an extender that is not ignorable prevents the eviction; the explanation names the fault."""
    made = talk(a_snapshot(*full(), urgent()), failing, GUARD)

    assert (made.admits, made.evictions) == ((), ())
    why = made.explanations["default/urgent"]
    assert why.gate is Gate.WAITING_FOR_EXTENDER
    assert "guard:1/s, which fails: no answer within 5 s" in why.message


def test_an_ignorable_fault_is_as_if_it_were_not_asked() -> None:
    """With an ignorable fault the planner evicts from the best of all nodes."""
    ignorable = msgspec.structs.replace(GUARD, ignorable=True)
    made = talk(a_snapshot(*full(), urgent()), failing, ignorable)

    assert (gone(made), places(made)) == (["low-0"], {"urgent": ["n-0"]})


def test_extenders_are_asked_one_after_another() -> None:
    """The second extender is asked only about the nodes that the first one agreed to."""
    second = ExtenderFact(url="http://second", preempt_verb="p")
    snapshot = a_snapshot(*full(), urgent())
    [first] = planned(snapshot, {}, GUARD, second).questions
    answers = {first.key: agreeing("n-1", "n-2")(first)}

    [question] = planned(snapshot, answers, GUARD, second).questions
    assert (question.extender.url, question.nodes) == ("http://second", ("n-1", "n-2"))
    made = planned(snapshot, answers | {question.key: agreeing("n-2")(question)}, GUARD, second)
    assert (gone(made), places(made)) == (["low-2"], {"urgent": ["n-2"]})


def test_an_answer_counts_for_those_that_it_was_asked_about() -> None:
    """Other pods would be evicted from the node now, so the planner asks again."""
    snapshot = a_snapshot(*full(1), urgent(), nodes=[{"name": "n-0", "cpu": 4}])
    [question] = planned(snapshot, {}, GUARD).questions
    old = ExtenderAnswer(asked=frozenset({"n-0"}), passed=frozenset({"n-0"}), offered={"n-0": ("another-1-0",)})
    made = planned(snapshot, {question.key: old}, GUARD)

    assert not made.evictions
    assert [each.key for each in made.questions] == [question.key]


def test_a_node_that_nobody_offered_is_nowhere() -> None:
    """Pods are evicted only from a node for which they were offered, whatever an answer contains."""
    snapshot = a_snapshot(*full(), urgent())
    [question] = planned(snapshot, {}, GUARD).questions
    lie = ExtenderAnswer(
        asked=frozenset({"moon"}), passed=frozenset({"moon", "n-1"}), offered={"moon": ("x",), "n-1": ("low-2-1-0",)}
    )
    assert not planned(snapshot, {question.key: lie}, GUARD).evictions


def test_a_stale_answer_counts_and_is_asked_for_again() -> None:
    """A stale answer is used, and the question is asked again, as with the other verbs."""
    snapshot = a_snapshot(*full(), urgent())
    [question] = planned(snapshot, {}, GUARD).questions
    made = planned(snapshot, {question.key: agreeing("n-1", is_stale=True)(question)}, GUARD)

    assert gone(made) == ["low-1"]
    assert [each.key for each in made.questions] == [question.key]


@pytest.mark.parametrize("nodes", [30, 1200])
def test_the_question_is_bounded(nodes: int) -> None:
    """A question contains a tenth of the nodes, but at least a hundred of them (or all, if there are fewer)."""
    [question] = planned(a_snapshot(*full(nodes), urgent(priority=5000), nodes=nodes), {}, GUARD).questions

    assert len(question.offers) == min(nodes, max(100, nodes // 10))
    assert question.nodes[0] == "n-0"


def test_the_extender_is_asked_only_about_resources_that_it_manages() -> None:
    """Work without the managed resources preempts at once, without a question."""
    extender = msgspec.structs.replace(GUARD, managed_resources=("example.com/fpga",))
    made = planned(a_snapshot(*full(), urgent()), {}, extender)

    assert (gone(made), made.questions) == (["low-0"], ())


def test_the_extender_is_not_asked_about_gangs() -> None:
    """The protocol describes one pod and nodes for it, so a gang preempts without a question."""
    made = planned(a_snapshot(*full(), urgent(count=2)), {}, GUARD)

    assert (gone(made), made.questions) == (["low-0", "low-1"], ())


def test_without_extender_results_no_extender_is_asked() -> None:
    """A plan without answers, as in a simulation, asks no extender."""
    made = planned(a_snapshot(*full(), urgent()), None, GUARD)
    assert (gone(made), made.questions) == (["low-0"], ())


def test_the_place_is_the_node_that_was_agreed_to() -> None:
    """The eviction of a gang frees other nodes too; the preemptor still goes to the agreed node."""
    ranks = [{"cpu": 4, "count": 3}]
    placed = [{"rank": rank, "node": f"n-{rank}"} for rank in range(3)]
    gang = {"name": "gang", "ranks": ranks, "queue": "q", "preemptible": True, "placed": placed}
    snapshot = a_snapshot(gang, urgent())
    for node in ("n-0", "n-1", "n-2"):
        made = talk(snapshot, agreeing(node), GUARD)
        assert (gone(made), places(made)) == (["gang"], {"urgent": [node]})


def test_no_victim_is_moved_without_the_extenders_answer() -> None:
    """The extender is also asked about pods that would move to another node."""
    nodes = [{"name": "n-0", "cpu": 4}, {"name": "n-1", "cpu": 2}, {"name": "n-2", "cpu": 2}]
    queues = [{"name": "q", "preemption": {"withinQueue": "Never"}}]
    small = running("small", "n-0", cpu=2)
    snapshot = a_snapshot(small, urgent(), nodes=nodes, queues=queues)
    unasked = planned(snapshot, None, GUARD)
    assert (gone(unasked), places(unasked)["urgent"]) == (["small"], ["n-0"])

    made = planned(snapshot, {}, GUARD)
    assert (made.admits, made.evictions) == ((), ())
    assert [question.nodes for question in made.questions] == [("n-0",)]
    assert not talk(snapshot, agreeing(), GUARD).evictions
    moved = talk(snapshot, agreeing("n-0"), GUARD)
    assert (gone(moved), places(moved)["urgent"]) == (["small"], ["n-0"])
