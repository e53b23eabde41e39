"""The answers of HTTP extenders, as data that a plan reads. This module calls no extender.

Owns how answers become a mask and a bonus over nodes, and which questions are open. Extenders filter one after another,
each the nodes that the ones before it passed; then the extenders that score are asked about the nodes that all passed.
A node that no answer covers is not used: it becomes part of a question, which the shell asks before it plans again.
An answer only removes nodes or shifts scores: our own filters apply whatever an extender answers.

Source: kube-scheduler's schedule_one.go (findNodesThatPassExtenders, prioritizeNodes) and extender.go.
"""

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from slipway.model.extenders import ExtenderFact
from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.state.extender_results import (
    Answers,
    ExtenderAnswer,
    ExtenderVerb,
    Key,
    Outside,
    Question,
    Saying,
)
from slipway.scheduler.plan.state.nodes import Bools, Ints, NodeTable
from slipway.scheduler.plan.state.rank_request import RankRequest

UNANSWERED = "ExtenderUnanswered"
UNAVAILABLE = "ExtenderUnavailable"
WAITING = frozenset({UNANSWERED, UNAVAILABLE})
SCORE_SCALE = 10
"""Turns the 0..10 of an extender into 0..100."""
REASONS_MAX = 8
"""How many reasons of one answer are kept apart; the others become one."""


def large_enough(ask: RankRequest, table: NodeTable) -> Bools:
    """The nodes whose allocatable amounts hold one rank, whatever is used on them."""
    if ask.missing:
        return np.zeros(len(table), dtype=np.bool_)
    return np.logical_and.reduce(table.allocatable[ask.step_rows] >= ask.step_amounts, axis=0)


class Panel:
    """The extenders of one plan."""

    def __init__(
        self,
        extenders: tuple[ExtenderFact, ...],
        answers: Answers,
        table: NodeTable,
        evicting: frozenset[str] = frozenset(),
    ) -> None:
        """`evicting` are the queues whose work may evict other work."""
        self._extenders = extenders
        self._preempting = tuple(each for each in extenders if each.preempt_verb)
        self._evicting = evicting
        self._answers = answers
        self._table = table
        self._questions: dict[Key, Question] = {}

    @property
    def questions(self) -> tuple[Question, ...]:
        """The open questions, in a total order."""
        return tuple(self._questions[key] for key in sorted(self._questions))

    def looks_beyond(self, owner: AllocationFact | None) -> bool:
        """Whether full nodes are candidates too, because work on them may be evicted."""
        return owner is not None and owner.queue in self._evicting

    def guards(self, requests: Resources) -> tuple[ExtenderFact, ...]:
        """The extenders that have a say in the victims of work with these requests, in order."""
        return tuple(each for each in self._preempting if each.manages(requests))

    def without_ignored(self, role: RoleFact) -> RoleFact:
        """The role without resources that only an extender counts."""
        ignored = {name for each in self._extenders for name in each.ignored_resources}
        if ignored.isdisjoint(role.requests.amounts):
            return role
        kept = {name: amount for name, amount in role.requests.amounts.items() if name not in ignored}
        return msgspec.structs.replace(role, requests=Resources.of(kept))

    def consult(
        self, role: RoleFact, requests: Resources, fits: Bools, *, ask: bytes, owner: AllocationFact | None
    ) -> Outside | None:
        """The answers about ranks of `role`, whose feasible nodes are `fits`; None if no extender manages them."""
        panel = [each for each in self._extenders if each.manages(requests)]
        if not panel:
            return None
        sitting = _Sitting(self, role, ask, owner, fits)
        for extender in panel:
            if extender.filter_verb:
                sitting.filter(extender)
        for extender in panel:
            if extender.prioritize_verb:
                sitting.prioritize(extender)
        return sitting.outcome()

    def answer(self, key: Key) -> ExtenderAnswer | None:
        """The answer to a question; None while it is open."""
        return self._answers.get(key)

    def mask(self, names: Iterable[str]) -> Bools:
        """The nodes with these names; unknown names are ignored."""
        mask = np.zeros(len(self._table), dtype=np.bool_)
        index = self._table.index
        mask[[index[name] for name in names if name in index]] = True
        return mask

    def column(self, scores: Mapping[str, int]) -> Ints:
        """Scores as 0..100 over all nodes; 0 where none is given."""
        column = np.zeros(len(self._table), dtype=np.int64)
        for name, score in scores.items():
            at = self._table.index.get(name)
            if at is not None:
                column[at] = score * SCORE_SCALE
        return column

    def put_offers(self, question: Question) -> None:
        """Ask about victims."""
        self._questions[question.key] = question

    def put(self, question: Question, nodes: Bools) -> None:
        """Ask about `nodes`, besides those that the same question is about already."""
        before = self._questions.get(question.key)
        if before is not None:
            nodes = nodes | self.mask(before.nodes)
        names = tuple(self._table.names[at] for at in np.flatnonzero(nodes).tolist())
        self._questions[question.key] = msgspec.structs.replace(question, nodes=names)


class _Sitting:
    """One request of ranks before the panel. `left` are the nodes that no extender has refused so far."""

    def __init__(self, panel: Panel, role: RoleFact, ask: bytes, owner: AllocationFact | None, fits: Bools) -> None:
        self._panel = panel
        self._role = role
        self._ask = ask
        self._owner = owner
        self._left = fits.copy()
        self._allowed = np.ones(len(fits), dtype=np.bool_)
        self._sayings: list[Saying] = []
        self._bonus = np.zeros(len(fits), dtype=np.int64)
        self._scores: list[tuple[str, Ints]] = []
        self._is_open = True
        """no answer is missing yet"""

    def filter(self, extender: ExtenderFact) -> None:
        """The next extender filters the nodes that are left."""
        if not self._is_open:
            return
        answer = self._panel.answer((extender.url, ExtenderVerb.FILTER, self._ask))
        if answer is not None and answer.is_stale:
            self._put(extender, ExtenderVerb.FILTER)
        if answer is not None and answer.fault:
            if not extender.ignorable:
                self._wait(UNAVAILABLE, f"for extender {extender.name}, which fails: {answer.fault}")
            return
        asked = self._panel.mask(answer.asked if answer else ())
        missing = self._left & ~asked
        if missing.any():
            self._put(extender, ExtenderVerb.FILTER)
        if answer is None:
            self._wait(UNANSWERED, _late(extender))
            return
        passed = self._panel.mask(answer.passed) & asked
        self._refuse(extender, answer, asked & ~passed)
        self._sayings.append(_waiting(UNANSWERED, _late(extender), ~asked))
        self._allowed &= passed
        self._left &= passed

    def prioritize(self, extender: ExtenderFact) -> None:
        """The next extender scores the nodes that passed all filters; a node without a score gets no bonus."""
        if not self._is_open or not self._left.any():
            return
        answer = self._panel.answer((extender.url, ExtenderVerb.PRIORITIZE, self._ask))
        if answer is not None and answer.is_stale:
            self._put(extender, ExtenderVerb.PRIORITIZE)
        if answer is not None and answer.fault:
            return
        asked = self._panel.mask(answer.asked if answer else ())
        missing = self._left & ~asked
        if missing.any():
            self._put(extender, ExtenderVerb.PRIORITIZE)
            self._sayings.append(_waiting(UNANSWERED, _late(extender), missing))
            self._allowed &= ~missing
        if answer is not None:
            column = self._panel.column(answer.scores)
            self._scores.append((extender.name, column))
            self._bonus += extender.weight * column

    def outcome(self) -> Outside:
        """The result of all answers."""
        return Outside(self._allowed, tuple(self._sayings), self._bonus, tuple(self._scores))

    def _put(self, extender: ExtenderFact, verb: ExtenderVerb) -> None:
        question = Question(extender=extender, verb=verb, ask=self._ask, role=self._role, owner=self._owner, nodes=())
        self._panel.put(question, self._left)

    def _wait(self, reason: str, what: str) -> None:
        self._sayings.append(_waiting(reason, what, np.ones(len(self._left), dtype=np.bool_)))
        self._allowed[:] = False
        self._is_open = False

    def _refuse(self, extender: ExtenderFact, answer: ExtenderAnswer, nodes: Bools) -> None:
        """Note the refused nodes by the reasons of the extender; all but the most frequent reasons become one."""
        names: dict[tuple[str, bool], list[str]] = {}
        for name in sorted(answer.asked - answer.passed):
            names.setdefault((answer.reasons.get(name, ""), name in answer.final), []).append(name)
        ordered = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
        for (text, is_final), refused in ordered[:REASONS_MAX]:
            self._sayings.append(_refused(extender, text, self._panel.mask(refused), is_final=is_final))
        if len(ordered) > REASONS_MAX:
            self._sayings.append(_refused(extender, "other reasons", nodes, is_final=False))


def _late(extender: ExtenderFact) -> str:
    return f"for the answer of extender {extender.name}"


def _waiting(reason: str, what: str, nodes: Bools) -> Saying:
    return Saying(reason, f"waits {what}", f"wait {what}", False, nodes)


def _refused(extender: ExtenderFact, text: str, nodes: Bools, *, is_final: bool) -> Saying:
    said = f": {text}" if text else ""
    end = f"refused by extender {extender.name}{said}"
    return Saying(f"Extender {extender.name}{said}", f"is {end}", f"are {end}", is_final, nodes)
