"""Whether extenders agree to evictions: each is asked about a node for one rank and the ranks that must leave it.

Owns how answers to `preempt` narrow what was offered, and which questions are still open. An extender names the nodes
to which it agrees, and the next extender is asked about these. The victims that an extender names are ignored: the
offered victims are minimal, so fewer would not make room. An answer is valid for a node while the same ranks must leave
it.

Source: kube-scheduler's preemption.go (callExtenders) and extender.go (ProcessPreemption).
"""

from collections.abc import Sequence

import msgspec

from slipway.model.facts import AllocationFact, ExtenderFact, RoleFact
from slipway.model.reasons import Gate
from slipway.model.resources import Resources
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.extenders import PlanExtenders
from slipway.scheduler.plan.placement.tick_state import Accept, TickState
from slipway.scheduler.plan.preemption.trial import EvictionTrial
from slipway.scheduler.plan.state.extender_results import ExtenderVerb, Question, VictimOffer, VictimRank
from slipway.scheduler.plan.state.plan_types import Explanation

OFFERS_MIN = 100
OFFERS_PART = 10
"""One of this number of nodes is offered, but at least OFFERS_MIN. Source: kube-scheduler's DefaultPreemptionArgs."""

_NOT_AGREED = Explanation(gate=Gate.NO_FIT, message="the extenders did not agree to its nodes")


class ConsentRequest(msgspec.Struct, frozen=True):
    """The extenders that are asked, and the work for which they are asked."""

    plan_extenders: PlanExtenders
    guards: tuple[ExtenderFact, ...]
    role: RoleFact
    owner: AllocationFact
    request_key: bytes


class Consent(msgspec.Struct, frozen=True):
    """The nodes that may be cleared; if there are none, the answer that is awaited or the extender that refuses."""

    nodes: frozenset[str] = frozenset()
    waits: str = ""
    refused: str = ""


def offers_max(nodes: int) -> int:
    """Return the largest number of nodes that are offered."""
    return max(OFFERS_MIN, nodes // OFFERS_PART)


def offer(trial: EvictionTrial, node: str) -> VictimOffer:
    """Return the trial's removed ranks that were on `node`."""
    victims = [
        VictimRank(step.unit.fact, rank)
        for step in trial.steps
        for rank in sorted(step.ranks)
        if step.unit.holding.charges[rank].node == node
    ]
    return VictimOffer(node, tuple(victims))


def ask_consent(consent_request: ConsentRequest, offers: Sequence[VictimOffer]) -> Consent:
    """Return the extenders' answers to `offers`, each extender asked after the other."""
    left = tuple(offers)
    for extender in consent_request.guards if left else ():
        question = Question(
            extender=extender,
            verb=ExtenderVerb.PREEMPT,
            request_key=consent_request.request_key,
            role=consent_request.role,
            owner=consent_request.owner,
            nodes=tuple(each.node for each in left),
            offers=left,
        )
        answer = consent_request.plan_extenders.answer(question.key)
        if answer is None or answer.is_stale:
            consent_request.plan_extenders.put_offers(question)
        if answer is not None and answer.fault:
            if extender.ignorable:
                continue
            return Consent(waits=f"for extender {extender.name}, which fails: {answer.fault}")
        known = tuple(each for each in left if answer is not None and answer.offered.get(each.node) == each.ids)
        agreed = tuple(each for each in known if answer is not None and each.node in answer.passed)
        if not agreed and len(known) < len(left):
            consent_request.plan_extenders.put_offers(question)
            return Consent(waits=f"for the answer of extender {extender.name}")
        if not agreed:
            return Consent(refused=f"extender {extender.name} refuses the evictions on all nodes")
        left = agreed
    return Consent(nodes=frozenset(each.node for each in left))


def held_to(state: TickState, trial: EvictionTrial, accept: Accept | None) -> Accept | None:
    """Return `accept` with the additional check that it chooses only nodes to which the extenders agreed.

    `accept` may choose other places than those proposed.
    """
    if accept is None or state.whatif.plan_extenders is None:
        return accept

    def accepts(
        placed: gang.PlacedGang, demand: Resources, moved: Sequence[gang.PlacedGang] = ()
    ) -> gang.PlacedGang | Explanation:
        found = accept(placed, demand, moved)
        if isinstance(found, Explanation) or trial.within is None:
            return found
        if all(trial.within[node] for node in found.placements().values()):
            return found
        state.withdraw(found)
        return _NOT_AGREED

    return accepts
