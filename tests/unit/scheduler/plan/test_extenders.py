"""Extenders in a plan: answers filter and score nodes, missing answers become questions, and faults make work wait."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from slipway.model.facts import ExtenderFact
from slipway.model.reasons import Gate
from slipway.scheduler.plan.placement.extenders import PlanExtenders
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.extender_results import Answers, ExtenderAnswer, ExtenderVerb, Key, Question
from slipway.scheduler.plan.state.nodes import NodeTable
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.scenario import Scenario, decode
from slipway.scheduler.simulate.world import SimulatedWorld
from tests.support.planner import a_node, a_role

URL = "http://gpu-share.tools:8888/scheduler"
NODES = [{"name": "n", "count": 3, "cpu": 4}]


def a_snapshot(**document: Any) -> PoolSnapshot:
    """A snapshot in which all work of the document has been submitted."""
    scenario: Scenario = decode(json.dumps({"nodes": NODES, **document}))
    world = SimulatedWorld(scenario)
    for part in scenario.allocations:
        world.submit(part.name)
    return world.columns.snapshot((), 0.0)


def an_ask(name: str = "a", **rank: Any) -> dict[str, Any]:
    return {"name": name, "ranks": [{"cpu": 1, **rank}]}


def planned(snapshot: PoolSnapshot, answers: Answers | None, *extenders: ExtenderFact) -> Plan:
    policy = msgspec.structs.replace(policy_of(snapshot.pool), extenders=extenders)
    return plan(snapshot, policy, 0.0, answers=answers)


def a_filter(**changes: Any) -> ExtenderFact:
    return msgspec.structs.replace(ExtenderFact(url=URL, filter_verb="filter"), **changes)


def conversation(
    snapshot: PoolSnapshot, say: Callable[[Question], ExtenderAnswer], *extenders: ExtenderFact
) -> tuple[Plan, dict[Key, ExtenderAnswer]]:
    """Plans and answers until nothing is asked any more; `say` answers a question."""
    answers: dict[Key, ExtenderAnswer] = {}
    for _ in range(10):
        decided = planned(snapshot, answers, *extenders)
        if not decided.questions:
            return decided, answers
        answers |= {question.key: say(question) for question in decided.questions}
    raise AssertionError("the questions never end")


def passing(*names: str, **reasons: str) -> Any:
    def say(question: Any) -> ExtenderAnswer:
        asked = frozenset(question.nodes)
        return ExtenderAnswer(asked=asked, passed=asked & frozenset(names), reasons=reasons)

    return say


def places(decided: Plan) -> dict[str, list[str]]:
    return {admit.uid: list(admit.placements.values()) for admit in decided.admits}


def test_what_is_not_answered_is_a_question_and_is_not_placed() -> None:
    """The first plan asks about the nodes that fit, in their order, and admits nothing that the extender manages."""
    decided = planned(a_snapshot(allocations=[an_ask()]), {}, a_filter())

    assert not decided.admits
    [question] = decided.questions
    assert (question.verb, question.nodes) == (ExtenderVerb.FILTER, ("n-0", "n-1", "n-2"))
    assert question.owner is not None
    assert question.owner.name == "a"
    why = decided.explanations["default/a"]
    assert why.gate is Gate.WAITING_FOR_EXTENDER
    assert "gpu-share.tools:8888" in why.message


def test_without_extender_results_no_extender_is_asked() -> None:
    """A plan that is given no answers is made as if there were no extenders."""
    decided = planned(a_snapshot(allocations=[an_ask()]), None, a_filter())

    assert places(decided) == {"a": ["n-0"]}
    assert not decided.questions


def test_only_nodes_that_pass_are_used() -> None:
    """Work is placed only on nodes that pass the filter of the extender."""
    decided, _ = conversation(a_snapshot(allocations=[an_ask()]), passing("n-2"), a_filter())

    assert places(decided) == {"a": ["n-2"]}


def test_refused_nodes_are_counted_by_the_extenders_own_reason() -> None:
    """Each node counts once, under the name and the reason of the extender that refused it."""
    say = passing(**{"n-0": "no licence", "n-1": "no licence"})
    decided, _ = conversation(a_snapshot(allocations=[an_ask()]), say, a_filter())

    why = decided.explanations["default/a"]
    name = "gpu-share.tools:8888/scheduler"
    assert why.gate is Gate.NO_FIT
    assert why.reasons == {f"Extender {name}": 1, f"Extender {name}: no licence": 2}
    assert f"2 are refused by extender {name}: no licence" in why.message


def test_an_extender_is_asked_only_about_nodes_that_pass_our_filters() -> None:
    """A full node and a cordoned one are not asked about, and count under our own reasons."""
    nodes = [{"name": "full", "cpu": 0}, {"name": "off", "cpu": 4, "unschedulable": True}, {"name": "ok", "cpu": 4}]
    snapshot = a_snapshot(nodes=nodes, allocations=[an_ask()])
    [question] = planned(snapshot, {}, a_filter()).questions

    assert question.nodes == ("ok",)
    decided, _ = conversation(snapshot, passing(), a_filter())
    assert sum(decided.explanations["default/a"].reasons.values()) == 3


def test_our_own_filters_hold_whatever_an_extender_says() -> None:
    """The extender passes a full node, and still nothing is placed there."""
    nodes = [{"name": "full", "cpu": 1}, {"name": "ok", "cpu": 4}]
    snapshot = a_snapshot(nodes=nodes, allocations=[an_ask("big", cpu=4)])
    [question] = planned(snapshot, {}, a_filter()).questions
    everything = frozenset({"full", "ok", "nowhere"})

    decided = planned(snapshot, {question.key: ExtenderAnswer(asked=everything, passed=everything)}, a_filter())
    assert places(decided) == {"big": ["ok"]}


def test_managed_resources_leave_other_work_alone() -> None:
    """Work that requests no managed resource is placed at once, while work that requests one waits."""
    nodes = [{"name": "n", "cpu": 4, "resources": {"example.com/fpga": 1}}]
    work = [an_ask("plain"), an_ask("managed", resources={"example.com/fpga": 1})]
    extender = a_filter(managed_resources=("example.com/fpga",))
    decided = planned(a_snapshot(nodes=nodes, allocations=work), {}, extender)

    assert places(decided) == {"plain": ["n"]}
    assert list(decided.explanations) == ["default/managed"]


def test_a_fault_makes_managed_work_wait_and_names_the_extender() -> None:
    """The extender is not ignorable: the explanation names it and its fault, and the plan asks no further question."""
    snapshot = a_snapshot(allocations=[an_ask()])
    decided, _ = conversation(snapshot, lambda question: ExtenderAnswer(fault="no answer within 5 s"), a_filter())

    why = decided.explanations["default/a"]
    assert (why.gate, why.reasons) == (Gate.WAITING_FOR_EXTENDER, {"ExtenderUnavailable": 3})
    assert "gpu-share.tools:8888/scheduler, which fails: no answer within 5 s" in why.message
    assert not why.is_never


def test_an_ignorable_fault_is_as_if_it_were_not_there() -> None:
    """Work is placed as if the failing extender did not exist."""
    snapshot = a_snapshot(allocations=[an_ask()])
    decided, _ = conversation(snapshot, lambda question: ExtenderAnswer(fault="500"), a_filter(ignorable=True))

    assert places(decided) == {"a": ["n-0"]}


def test_extenders_filter_one_after_another() -> None:
    """The second extender is asked after the first, and only about the nodes that the first let pass."""
    second = ExtenderFact(url="http://second", filter_verb="f")
    snapshot = a_snapshot(allocations=[an_ask()])
    [first] = planned(snapshot, {}, a_filter(), second).questions
    answers = {first.key: ExtenderAnswer(asked=frozenset(first.nodes), passed=frozenset({"n-1", "n-2"}))}

    [question] = planned(snapshot, answers, a_filter(), second).questions
    assert (question.extender.url, question.nodes) == ("http://second", ("n-1", "n-2"))


def test_scores_count_ten_times_their_weight() -> None:
    """An extender's score of 1 weighs as 10 of our own: it decides between equal nodes, and shows in the scores."""
    extender = a_filter(prioritize_verb="prioritize", filter_verb="", weight=2)

    def say(question: Any) -> ExtenderAnswer:
        return ExtenderAnswer(asked=frozenset(question.nodes), scores={"n-1": 1})

    snapshot = a_snapshot(allocations=[an_ask()])
    decided, _ = conversation(snapshot, say, extender)
    assert places(decided) == {"a": ["n-1"]}


def test_a_fault_in_scoring_is_ignored() -> None:
    """The fault is ignored whatever `ignorable` states; the other scores decide."""
    extender = a_filter(prioritize_verb="prioritize", filter_verb="")
    decided, _ = conversation(
        a_snapshot(allocations=[an_ask()]), lambda question: ExtenderAnswer(fault="500"), extender
    )

    assert places(decided) == {"a": ["n-0"]}


def test_a_node_that_became_feasible_is_asked_about_before_it_is_used() -> None:
    """An answer is valid only for the nodes that it was about, so a new node is asked about first."""
    snapshot = a_snapshot(allocations=[an_ask(count=3, cpu=4)])
    [question] = planned(snapshot, {}, a_filter()).questions
    two = frozenset({"n-0", "n-1"})
    decided = planned(snapshot, {question.key: ExtenderAnswer(asked=two, passed=two)}, a_filter())

    assert not decided.admits
    assert decided.questions[0].nodes == ("n-0", "n-1", "n-2")
    assert decided.explanations["default/a"].gate is Gate.WAITING_FOR_EXTENDER


def test_answers_about_two_sets_of_nodes_do_not_replace_each_other() -> None:
    """A plan considers n-0, and to find what would help n-1 too. The question about n-1 includes n-0, since its answer
    replaces the one about n-0. Otherwise each plan would ask about one of the two again."""
    role = a_role()
    table = NodeTable([a_node("n-0"), a_node("n-1")])
    first, second = np.array([True, False]), np.array([False, True])
    answers: dict[Key, ExtenderAnswer] = {}
    asked: list[int] = []
    for considered in ([first], [first], *([[first, second]] * 6)):
        extenders = PlanExtenders((a_filter(prioritize_verb="prioritize"),), answers, table)
        for fits in considered:
            extenders.consult(role, role.requests, fits, request_key=b"key", owner=None)
        for question in extenders.questions:
            nodes = frozenset(question.nodes)
            answers[question.key] = ExtenderAnswer(asked=nodes, passed=nodes)
        asked.append(len(extenders.questions))
    assert asked == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_stale_answer_still_counts_and_is_asked_for_again() -> None:
    """A stale answer is still used, so that an explanation does not flicker while a slow extender is asked again."""
    snapshot = a_snapshot(allocations=[an_ask()])
    [question] = planned(snapshot, {}, a_filter()).questions
    stale = ExtenderAnswer(asked=frozenset(question.nodes), passed=frozenset({"n-2"}), is_stale=True)
    decided = planned(snapshot, {question.key: stale}, a_filter())

    assert places(decided) == {"a": ["n-2"]}
    assert [each.key for each in decided.questions] == [question.key]


def test_a_resource_that_only_the_extender_counts_is_not_looked_for_on_nodes() -> None:
    """No node has a resource that is `ignoredByScheduler`, and the work is placed all the same."""
    extender = a_filter(managed_resources=("example.com/seat",), ignored_resources=("example.com/seat",))
    snapshot = a_snapshot(allocations=[an_ask(resources={"example.com/seat": 1})])
    decided, _ = conversation(snapshot, passing("n-1"), extender)

    assert places(decided) == {"a": ["n-1"]}


def test_room_is_made_only_where_the_extender_lets_the_newcomer_go() -> None:
    """Where work may be evicted, an extender is asked about full nodes too; nothing is evicted from a node that it
    refuses."""
    runs = [
        {
            **an_ask(f"low-{index}", cpu=4),
            "preemptible": True,
            "queue": "q",
            "placed": [{"rank": 0, "node": f"n-{index}"}],
        }
        for index in range(3)
    ]
    urgent = {**an_ask("urgent", cpu=4), "priority": 5, "queue": "q"}
    queues = [{"name": "q", "preemption": {"withinQueue": "LowerPriority"}}]
    snapshot = a_snapshot(queues=queues, allocations=[*runs, urgent])
    [question] = planned(snapshot, {}, a_filter()).questions
    assert question.nodes == ("n-0", "n-1", "n-2")

    decided, _ = conversation(snapshot, passing("n-1"), a_filter())
    assert places(decided) == {"urgent": ["n-1"]}
    assert [evict.uid for evict in decided.evictions] == ["low-1"]
    refused, _ = conversation(snapshot, passing(), a_filter())
    assert not refused.evictions


def test_many_different_reasons_are_bounded() -> None:
    """An extender that gives each node a reason of its own makes no endless explanation."""
    nodes = [{"name": "n", "count": 40, "cpu": 4}]
    reasons = {f"n-{index}": f"n-{index} is bad" for index in range(40)}
    decided, _ = conversation(a_snapshot(nodes=nodes, allocations=[an_ask()]), passing(**reasons), a_filter())

    why = decided.explanations["default/a"]
    assert sum(why.reasons.values()) == 40
    assert len(why.reasons) <= 9


def test_the_pool_of_a_scenario_has_no_extenders() -> None:
    """A simulation calls no extender."""
    assert scenario_facts.pool(decode(json.dumps({"nodes": NODES}))).extenders == ()
