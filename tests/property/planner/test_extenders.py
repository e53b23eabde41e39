"""Extenders with arbitrary answers: the plan keeps its rules, and ranks with their resources are only placed where they
allow it."""

import json
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway.model.facts import ExtenderFact
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.extender_results import ExtenderAnswer, ExtenderVerb, Key, Question
from slipway.scheduler.plan.state.plan_types import Plan, encoded
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.simulate.scenario import decode
from slipway.scheduler.simulate.world import SimulatedWorld
from tests.property.planner.test_simulation import Json, scenarios

MANAGED = "nvidia.com/gpu"
EXTENDERS = (
    ExtenderFact(url="http://a", filter_verb="f", prioritize_verb="p", weight=3),
    ExtenderFact(url="http://b", filter_verb="f", managed_resources=(MANAGED,), ignorable=True),
    ExtenderFact(url="http://c", prioritize_verb="p", managed_resources=(MANAGED,)),
)
GUARD = ExtenderFact(url="http://d", preempt_verb="v")
ROUNDS = 3 * len(EXTENDERS) + 1
QUESTIONS_END_AFTER = 50
"""The number of plans after which extenders that answer at once have no open question any more."""


def a_snapshot(document: Json) -> PoolSnapshot:
    """A snapshot in which every allocation has arrived."""
    world = SimulatedWorld(decode(json.dumps(document)))
    for item in document["allocations"]:
        world.submit(item["name"])
    return world.columns.snapshot((), 1e7)


def said(draw: Any, question: Question) -> ExtenderAnswer:
    """Any possible answer."""
    asked = frozenset(question.nodes)
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return ExtenderAnswer(fault="no answer within 5 s")
    if question.verb is ExtenderVerb.PREEMPT:
        offered = {offer.node: offer.ids if draw(st.booleans()) else ("nobody",) for offer in question.offers}
        agreed = frozenset(name for name in offered if draw(st.booleans()))
        return ExtenderAnswer(asked=asked, passed=agreed | {"nowhere"}, offered=offered, is_stale=kind == 1)
    some = frozenset(draw(st.lists(st.sampled_from([*question.nodes, "nowhere"]), max_size=6)))
    if question.verb is ExtenderVerb.PRIORITIZE:
        return ExtenderAnswer(
            asked=asked, scores={name: draw(st.integers(0, 10)) for name in sorted(some)}, is_stale=kind == 1
        )
    about = asked if kind != 2 else some  # the request may have been about other nodes
    return ExtenderAnswer(asked=about, passed=some, reasons=dict.fromkeys(asked - some, "because"), is_stale=kind == 1)


def talk(draw: Any, snapshot: PoolSnapshot) -> tuple[Plan, dict[Key, ExtenderAnswer]]:
    policy = msgspec.structs.replace(policy_of(snapshot.pool), extenders=(*EXTENDERS, GUARD))
    answers: dict[Key, ExtenderAnswer] = {}
    for _ in range(ROUNDS):
        decided = plan(snapshot, policy, 1e7, answers=answers)
        assert lint(snapshot, decided) == ()
        assert encoded(decided) == encoded(plan(snapshot, policy, 1e7, answers=answers))
        fresh = [question for question in decided.questions if question.key not in answers]
        if not fresh:
            return decided, answers
        answers |= {question.key: said(draw, question) for question in fresh}
    return plan(snapshot, policy, 1e7, answers=answers), answers


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(), st.data())
def test_plans_keep_their_rules_whatever_extenders_answer(document: Json, data: st.DataObject) -> None:
    """Gangs are whole, nodes are within their resources, quotas are respected, and the first extender allowed each
    rank's node."""
    snapshot = a_snapshot(document)
    decided, answers = talk(data.draw, snapshot)
    facts = {fact.uid: fact for fact in snapshot.pending}
    passed: dict[bytes, frozenset[str]] = {
        ask: answer.passed & answer.asked
        for (url, verb, ask), answer in answers.items()
        if url == "http://a" and verb is ExtenderVerb.FILTER and not answer.fault
    }
    everything = frozenset[str]().union(*passed.values())
    for admit in decided.admits:
        fact = facts.get(admit.uid)
        if fact is not None:
            assert set(admit.placements.values()) <= everything
            for rank in admit.placements:
                role = fact.role_of(rank)
                assert role is not None
                assert EXTENDERS[0].manages(requests_of(role))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_extenders_that_let_everything_pass_change_nothing(document: Json) -> None:
    """The plan is the same as without extenders."""
    snapshot = a_snapshot(document)
    alone = plan(snapshot, policy_of(snapshot.pool), 1e7)
    policy = msgspec.structs.replace(policy_of(snapshot.pool), extenders=EXTENDERS)
    answers: dict[Key, ExtenderAnswer] = {}
    decided = plan(snapshot, policy, 1e7, answers=answers)
    for _ in range(QUESTIONS_END_AFTER):
        for question in decided.questions:
            asked = frozenset(question.nodes)
            answers[question.key] = ExtenderAnswer(asked=asked, passed=asked)
        decided = plan(snapshot, policy, 1e7, answers=answers)
        if not decided.questions:
            break
    assert not decided.questions
    assert decided.admits == alone.admits
    assert decided.evictions == alone.evictions
