"""Whether extenders agree that others go: a node for one rank with those who would have to leave it, before they do.

Owns how answers to `preempt` narrow what was offered, and what is still to be asked. An extender names the nodes where
it agrees; the next is asked about these. Whom it names there decides nothing: what was offered is minimal, fewer would
make no room. An answer counts for a node as long as the same ranks would have to leave it.

Source: kube-scheduler's preemption.go (callExtenders) and extender.go (ProcessPreemption).
"""

from collections.abc import Sequence

import msgspec

from slipway.model.extenders import ExtenderFact
from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.reasons import Gate
from slipway.model.resources import Resources
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.extenders import Panel
from slipway.scheduler.plan.placement.tick_state import Accept, TickState
from slipway.scheduler.plan.preemption.trial import EvictionTrial
from slipway.scheduler.plan.state.extender_results import ExtenderVerb, Leaver, Offer, Question
from slipway.scheduler.plan.state.plan_types import Explanation

OFFERS_MIN = 100
OFFERS_PART = 10
"""One node of that many is offered, and at least OFFERS_MIN. Source: kube-scheduler's DefaultPreemptionArgs."""

_NOT_AGREED = Explanation(gate=Gate.NO_FIT, message="its places are not those that extenders agree to")


class Asking(msgspec.Struct, frozen=True):
    """Who is asked, and for whom."""

    panel: Panel
    guards: tuple[ExtenderFact, ...]
    role: RoleFact
    owner: AllocationFact
    ask: bytes


class Consent(msgspec.Struct, frozen=True):
    """The nodes that may be cleared; else what is waited for, or who refuses."""

    nodes: frozenset[str] = frozenset()
    waits: str = ""
    refused: str = ""


def offers_max(nodes: int) -> int:
    """How many nodes are offered at most."""
    return max(OFFERS_MIN, nodes // OFFERS_PART)


def offer(trial: EvictionTrial, node: str) -> Offer:
    """What is off now, as far as it stood on `node`."""
    leavers = [
        Leaver(step.unit.fact, rank)
        for step in trial.steps
        for rank in sorted(step.ranks)
        if step.unit.holding.charges[rank].node == node
    ]
    return Offer(node, tuple(leavers))


def consent(asking: Asking, offers: Sequence[Offer]) -> Consent:
    """What the extenders say to `offers`, one after another."""
    left = tuple(offers)
    for extender in asking.guards if left else ():
        question = Question(
            extender=extender,
            verb=ExtenderVerb.PREEMPT,
            ask=asking.ask,
            role=asking.role,
            owner=asking.owner,
            nodes=tuple(each.node for each in left),
            offers=left,
        )
        answer = asking.panel.answer(question.key)
        if answer is None or answer.is_stale:
            asking.panel.put_offers(question)
        if answer is not None and answer.fault:
            if extender.ignorable:
                continue
            return Consent(waits=f"for extender {extender.name}, which fails: {answer.fault}")
        known = tuple(each for each in left if answer is not None and answer.offered.get(each.node) == each.ids)
        agreed = tuple(each for each in known if answer is not None and each.node in answer.passed)
        if not agreed and len(known) < len(left):
            asking.panel.put_offers(question)
            return Consent(waits=f"for the answer of extender {extender.name}")
        if not agreed:
            return Consent(refused=f"extender {extender.name} agrees to none of the nodes where room might be made")
        left = agreed
    return Consent(nodes=frozenset(each.node for each in left))


def held_to(state: TickState, trial: EvictionTrial, accept: Accept | None) -> Accept | None:
    """`accept`, which may choose other places, held to the nodes that were agreed to."""
    if accept is None or state.whatif.panel is None:
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
