"""The answers of HTTP extenders, as data that a plan reads. This module calls no extender.

Owns how answers become a mask and a bonus over nodes, and which questions are open. Extenders filter one after another;
each is asked about the nodes that passed the extenders before it. Then the scoring extenders are asked about the nodes
that passed all of them. A node that no answer covers is not used: it becomes part of a question, which the cycle sends
before it plans again. An answer only removes nodes or changes scores: our own filters apply whatever extenders answer.

Source: kube-scheduler's schedule_one.go (findNodesThatPassExtenders, prioritizeNodes) and extender.go.
"""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, ExtenderFact, RoleFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.state.extender_results import (
    Answers,
    ExtenderAnswer,
    ExtenderRefusal,
    ExtenderResults,
    ExtenderVerb,
    Key,
    Question,
)
from slipway.scheduler.plan.state.nodes import Bools, Ints, NodeTable
from slipway.scheduler.plan.state.rank_request import RankRequest

UNANSWERED = "ExtenderUnanswered"
UNAVAILABLE = "ExtenderUnavailable"
WAITING = frozenset({UNANSWERED, UNAVAILABLE})
SCORE_SCALE = 10
"""The factor from an extender's 0..10 to 0..100."""
REASONS_MAX = 8
"""The number of reasons of one answer that are shown separately; the others become one reason."""


def large_enough(request: RankRequest, table: NodeTable) -> Bools:
    """Return the nodes whose allocatable amounts are enough for one rank, whatever is used on them."""
    if request.missing:
        return np.zeros(len(table), dtype=np.bool_)
    return np.logical_and.reduce(table.allocatable[request.step_rows] >= request.step_amounts, axis=0)


class PlanExtenders:
    """The extenders of one plan."""

    def __init__(
        self,
        extenders: tuple[ExtenderFact, ...],
        answers: Answers,
        table: NodeTable,
        evicting: frozenset[str] = frozenset(),
    ) -> None:
        """`evicting`: the queues whose work may evict other work."""
        self._extenders = extenders
        self._preempting = tuple(each for each in extenders if each.preempt_verb)
        self._evicting = evicting
        self._answers = answers
        self._table = table
        self._questions: dict[Key, Question] = {}

    @property
    def questions(self) -> tuple[Question, ...]:
        """Return the open questions, in a total order."""
        return tuple(self._questions[key] for key in sorted(self._questions))

    def considers_full_nodes(self, owner: AllocationFact | None) -> bool:
        """Whether full nodes are candidates too, because work on them may be evicted."""
        return owner is not None and owner.queue in self._evicting

    def extenders_of_victims(self, requests: Resources) -> tuple[ExtenderFact, ...]:
        """Return the extenders that are asked about the victims of work with these requests, in order."""
        return tuple(each for each in self._preempting if each.manages(requests))

    def without_ignored(self, role: RoleFact) -> RoleFact:
        """Return the role without the resources that only an extender manages."""
        ignored = {name for each in self._extenders for name in each.ignored_resources}
        if ignored.isdisjoint(role.requests.amounts):
            return role
        kept = {name: amount for name, amount in role.requests.amounts.items() if name not in ignored}
        return msgspec.structs.replace(role, requests=Resources.of(kept))

    def consult(
        self, role: RoleFact, requests: Resources, fits: Bools, *, request_key: bytes, owner: AllocationFact | None
    ) -> ExtenderResults | None:
        """Return the combined answers about ranks of `role`, whose feasible nodes are `fits`.

        None if no extender manages the role.
        """
        managing = [each for each in self._extenders if each.manages(requests)]
        if not managing:
            return None
        consultation = _Consultation(self, role, request_key, owner, fits)
        for extender in managing:
            if extender.filter_verb:
                consultation.filter(extender)
        for extender in managing:
            if extender.prioritize_verb:
                consultation.prioritize(extender)
        return consultation.outcome()

    def answer(self, key: Key) -> ExtenderAnswer | None:
        """Return the answer to a question; None while it is open."""
        return self._answers.get(key)

    def mask(self, names: Iterable[str]) -> Bools:
        """Return the nodes with these names; unknown names are ignored."""
        mask = np.zeros(len(self._table), dtype=np.bool_)
        index = self._table.index
        mask[[index[name] for name in names if name in index]] = True
        return mask

    def column(self, scores: Mapping[str, int]) -> Ints:
        """Return scores as 0..100 over all nodes; 0 for a node without a score."""
        column = np.zeros(len(self._table), dtype=np.int64)
        for name, score in scores.items():
            at = self._table.index.get(name)
            if at is not None:
                column[at] = score * SCORE_SCALE
        return column

    def put_offers(self, question: Question) -> None:
        """Add a question about victims."""
        self._questions[question.key] = question

    def put(self, question: Question, nodes: Bools) -> None:
        """Add a question about `nodes`, together with the nodes that the same question is about already."""
        before = self._questions.get(question.key)
        if before is not None:
            nodes = nodes | self.mask(before.nodes)
        names = tuple(self._table.names[at] for at in np.flatnonzero(nodes).tolist())
        self._questions[question.key] = msgspec.structs.replace(question, nodes=names)


class _Consultation:
    """The questions to all extenders about one request. `left` are the nodes that no extender has refused so far."""

    def __init__(
        self,
        plan_extenders: PlanExtenders,
        role: RoleFact,
        request_key: bytes,
        owner: AllocationFact | None,
        fits: Bools,
    ) -> None:
        self._plan_extenders = plan_extenders
        self._role = role
        self._request_key = request_key
        self._owner = owner
        self._left = fits.copy()
        self._allowed = np.ones(len(fits), dtype=np.bool_)
        self._refusals: list[ExtenderRefusal] = []
        self._bonus = np.zeros(len(fits), dtype=np.int64)
        self._scores: list[tuple[str, Ints]] = []
        self._is_open = True
        """false once no node can pass, because an extender fails or has not answered: no further extender is asked"""

    def filter(self, extender: ExtenderFact) -> None:
        """Let the next extender filter the remaining nodes."""
        if not self._is_open:
            return
        answer = self._plan_extenders.answer((extender.url, ExtenderVerb.FILTER, self._request_key))
        if answer is not None and answer.is_stale:
            self._put(extender, ExtenderVerb.FILTER, self._left)
        if answer is not None and answer.fault:
            if not extender.ignorable:
                self._wait(UNAVAILABLE, f"for extender {extender.name}, which fails: {answer.fault}")
            return
        asked = self._plan_extenders.mask(answer.asked if answer else ())
        missing = self._left & ~asked
        if missing.any():
            self._put(extender, ExtenderVerb.FILTER, self._left | asked)
        if answer is None:
            self._wait(UNANSWERED, _late(extender))
            return
        passed = self._plan_extenders.mask(answer.passed) & asked
        self._refuse(extender, answer, asked & ~passed)
        self._refusals.append(_waiting(UNANSWERED, _late(extender), ~asked))
        self._allowed &= passed
        self._left &= passed

    def prioritize(self, extender: ExtenderFact) -> None:
        """Let the next extender score the nodes that passed all filters; a node without a score gets no bonus."""
        if not self._is_open or not self._left.any():
            return
        answer = self._plan_extenders.answer((extender.url, ExtenderVerb.PRIORITIZE, self._request_key))
        if answer is not None and answer.is_stale:
            self._put(extender, ExtenderVerb.PRIORITIZE, self._left)
        if answer is not None and answer.fault:
            return
        asked = self._plan_extenders.mask(answer.asked if answer else ())
        missing = self._left & ~asked
        if missing.any():
            self._put(extender, ExtenderVerb.PRIORITIZE, self._left | asked)
            self._refusals.append(_waiting(UNANSWERED, _late(extender), missing))
            self._allowed &= ~missing
        if answer is not None:
            column = self._plan_extenders.column(answer.scores)
            self._scores.append((extender.name, column))
            self._bonus += extender.weight * column

    def outcome(self) -> ExtenderResults:
        """Return the result of all answers."""
        return ExtenderResults(self._allowed, tuple(self._refusals), self._bonus, tuple(self._scores))

    def _put(self, extender: ExtenderFact, verb: ExtenderVerb, nodes: Bools) -> None:
        """Add a question about `nodes`, which include those that a valid answer covers already.

        The new answer replaces the old one, so it must cover the nodes of both. A plan considers one request on several
        sets of nodes: if each answer covered one set only, the answers would replace each other without end.
        """
        question = Question(
            extender=extender, verb=verb, request_key=self._request_key, role=self._role, owner=self._owner, nodes=()
        )
        self._plan_extenders.put(question, nodes)

    def _wait(self, reason: str, what: str) -> None:
        self._refusals.append(_waiting(reason, what, np.ones(len(self._left), dtype=np.bool_)))
        self._allowed[:] = False
        self._is_open = False

    def _refuse(self, extender: ExtenderFact, answer: ExtenderAnswer, nodes: Bools) -> None:
        """Record the refused nodes by the extender's reasons; all but the most frequent reasons become one."""
        names: dict[tuple[str, bool], list[str]] = {}
        for name in sorted(answer.asked - answer.passed):
            names.setdefault((answer.reasons.get(name, ""), name in answer.final), []).append(name)
        ordered = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
        for (text, is_final), refused in ordered[:REASONS_MAX]:
            self._refusals.append(_refused(extender, text, self._plan_extenders.mask(refused), is_final=is_final))
        if len(ordered) > REASONS_MAX:
            self._refusals.append(_refused(extender, "other reasons", nodes, is_final=False))


def _late(extender: ExtenderFact) -> str:
    return f"for the answer of extender {extender.name}"


def _waiting(reason: str, what: str, nodes: Bools) -> ExtenderRefusal:
    return ExtenderRefusal(reason, f"waits {what}", f"wait {what}", False, nodes)


def _refused(extender: ExtenderFact, text: str, nodes: Bools, *, is_final: bool) -> ExtenderRefusal:
    said = f": {text}" if text else ""
    end = f"refused by extender {extender.name}{said}"
    return ExtenderRefusal(f"Extender {extender.name}{said}", f"is {end}", f"are {end}", is_final, nodes)
