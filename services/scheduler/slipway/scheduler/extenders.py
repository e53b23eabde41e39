"""Calls HTTP extenders in the background for a plan's questions, and caches their answers.

Owns the rates and limits: how old an answer may be, how long a tick waits, which extender is not called for a while.
Does not know the protocol (`kube/extender_wire.py`), nor what an answer means for a plan (`placement/extenders.py`).

Promises: a tick waits at most `PATIENCE_S` in all for extenders, and not at all for one that was slow or failed the
last time. There is at most one call per question at a time. An extender that fails is not called for a pause, which
doubles with each failure; during the pause each of its questions is answered with that fault at once. An admission may
change the answers of an extender, so the cached answers are dropped then, and the answer of a call that began before is
stale: it is used, so that work does not wait for ever while other work starts, but the question is asked again. A late
answer is used by the next tick.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from slipway.kube import extender_wire as wire
from slipway.kube.extender_wire import ExtenderFault
from slipway.model.facts import ExtenderFact, PodFact
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler.plan.state.extender_results import Answers, ExtenderAnswer, ExtenderVerb, Key, Question
from slipway.scheduler.plan.state.nodes import NodeTable

PATIENCE_S = 0.25
"""How long one tick waits for extenders that answer quickly."""
ANSWER_S = 10.0
"""How long an answer is valid before it is requested again."""
KEPT_S = 60.0
"""How long an expired answer is kept, to be used as stale."""
PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
UNDER_WAY_MAX = 256
PER_EXTENDER_MAX = 8

_log = log.get_logger(__name__)


class ExtenderCalls(Protocol):
    """Sends one call to an extender."""

    async def post(self, extender: ExtenderFact, verb: str, body: bytes) -> bytes: ...


class _CachedAnswer(msgspec.Struct):
    answer: ExtenderAnswer
    table: NodeTable | None
    """the node table that the answer is about; None: any"""
    until_s: float


class _CallState(msgspec.Struct):
    """The state of one verb of an extender: its failures and its pause."""

    slots: asyncio.Semaphore
    failures: int = 0
    closed_until_s: float = 0.0
    fault: str = ""
    is_slow: bool = False


class Extenders:
    """The extenders of one leadership of one pool. Calls are made in the background, after `run_in`."""

    def __init__(
        self,
        client: ExtenderCalls,
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        pods: Callable[[], Iterable[PodFact]] = tuple,
    ) -> None:
        """`pods` returns the existing pods: extenders identify the pods that would be evicted by their uids."""
        self._pods = pods
        self._client = client
        self._clock = clock
        self._known: dict[Key, _CachedAnswer] = {}
        self._contacts: dict[tuple[str, ExtenderVerb], _CallState] = {}
        self._under_way: dict[Key, asyncio.Task[None]] = {}
        self._tasks: TaskGroup | None = None
        self.on_change = on_change
        self._forgotten = 0
        """How often `forget` was called."""
        self.news = 0
        """The number of answers and faults that were stored so far."""

    def run_in(self, tasks: TaskGroup) -> None:
        """Make calls in the background from now on, in `tasks`."""
        self._tasks = tasks

    def stop(self) -> None:
        """Cancel the calls that are in progress."""
        self._tasks = None
        for task in self._under_way.values():
            task.cancel()

    def answers(self, table: NodeTable) -> Answers:
        """Return the cached answers about these nodes; expired answers are marked as stale."""
        now_s = self._clock.monotonic()
        found: dict[Key, ExtenderAnswer] = {}
        for key, known in list(self._known.items()):
            if now_s > known.until_s + KEPT_S or (known.table is not None and known.table is not table):
                del self._known[key]
            elif now_s < known.until_s:
                found[key] = known.answer
            else:
                found[key] = msgspec.structs.replace(known.answer, is_stale=True)
        return found

    @property
    def due_s(self) -> float | None:
        """In how many seconds the next answer expires; None without one."""
        now_s = self._clock.monotonic()
        return min((known.until_s - now_s for known in self._known.values() if known.until_s > now_s), default=None)

    async def ask(self, questions: Sequence[Question], table: NodeTable, patience_s: float) -> bool:
        """Start the calls for `questions` and wait at most `patience_s`; return whether there are new answers."""
        before, awaited = self.news, list[asyncio.Task[None]]()
        if self._tasks is None:
            await self._ask_now(questions, table)
            return self.news != before
        for question in questions:
            task = self._begin(question, table)
            is_answered = question.key in self._known
            if task is not None and not is_answered and not self._call_state(question).is_slow:
                awaited.append(task)
        if awaited and patience_s > 0:
            await asyncio.wait(awaited, timeout=patience_s)
        return self.news != before

    async def _ask_now(self, questions: Sequence[Question], table: NodeTable) -> None:
        """Without background tasks, wait for the end of each call, which has a timeout."""
        fresh = [question for question in questions if question.key not in self._known]
        await asyncio.gather(*(self._ask(question, table) for question in fresh[:UNDER_WAY_MAX]))

    def forget(self) -> None:
        """Drop the cached answers, because a new decision may change them. Faults are kept."""
        self._forgotten += 1
        self._known = {key: known for key, known in self._known.items() if known.answer.fault}

    def _begin(self, question: Question, table: NodeTable) -> "asyncio.Task[None] | None":
        contact, key = self._call_state(question), question.key
        if self._clock.monotonic() < contact.closed_until_s:
            if key not in self._known:
                self._put(key, ExtenderAnswer(fault=contact.fault), None, contact.closed_until_s)
            return None
        task = self._under_way.get(key)
        if task is None and self._tasks is not None and len(self._under_way) < UNDER_WAY_MAX:
            task = self._under_way[key] = self._tasks.create_task(self._ask(question, table))
        return task

    async def _ask(self, question: Question, table: NodeTable) -> None:
        liveness.leave()  # a call has a timeout; the tick does not wait for it
        contact = self._call_state(question)
        try:
            async with contact.slots:
                await self._call(question, table, contact)
        finally:
            self._under_way.pop(question.key, None)
        self.on_change()

    async def _call(self, question: Question, table: NodeTable, contact: _CallState) -> None:
        extender, verb = question.extender, question.verb
        started_s = self._clock.monotonic()
        if started_s < contact.closed_until_s:
            self._put(question.key, ExtenderAnswer(fault=contact.fault), None, contact.closed_until_s)
            return
        forgotten = self._forgotten
        try:
            answer = await self._post(question, table)
        except ExtenderFault as fault:
            self._fail(question, contact, str(fault))
        else:
            self._recover(question, contact)
            # An answer about victims names them, so work that has started elsewhere since does not change it.
            is_fresh = forgotten == self._forgotten or verb is ExtenderVerb.PREEMPT
            self._put(question.key, answer, table, self._clock.monotonic() + (ANSWER_S if is_fresh else 0.0))
            telemetry.EXTENDER_CALLS.labels(extender=extender.name, verb=verb.value, outcome="ok").inc()
        took_s = self._clock.monotonic() - started_s
        contact.is_slow = took_s > PATIENCE_S / 2 or contact.failures > 0
        telemetry.EXTENDER_DURATION.labels(extender=extender.name, verb=verb.value).observe(took_s)

    async def _post(self, question: Question, table: NodeTable) -> ExtenderAnswer:
        extender, asked = question.extender, frozenset(question.nodes)
        pod = wire.pod_object(question.role, question.owner)
        if question.verb is ExtenderVerb.PREEMPT:
            return await self._post_offers(question, pod)
        nodes = [table.facts[table.index[name]] for name in question.nodes]
        body = wire.filter_args(pod, nodes, names_only=extender.node_cache_capable)
        if question.verb is ExtenderVerb.PRIORITIZE:
            scores = wire.read_scores(await self._client.post(extender, extender.prioritize_verb, body), asked)
            return ExtenderAnswer(asked=asked, scores=scores)
        said = await self._client.post(extender, extender.filter_verb, body)
        found = wire.read_filter(said, asked, names_only=extender.node_cache_capable)
        return ExtenderAnswer(asked=asked, passed=found.passed, reasons=found.reasons, final=found.final)

    async def _post_offers(self, question: Question, pod: wire.Json) -> ExtenderAnswer:
        extender = question.extender
        uids = {(pod.allocation_uid, pod.attempt, pod.rank): pod.uid for pod in self._pods() if pod.allocation_uid}
        victims: dict[str, list[wire.Json]] = {}
        for offer in question.offers:
            for each in offer.victims:
                who = each.allocation
                uid = uids.get((who.uid, who.attempt, each.rank), each.id)
                found = wire.victim_object(who, each.rank, uid, offer.node)
                victims.setdefault(offer.node, []).append(found)
        body = wire.preempt_args(pod, victims, uids_only=extender.node_cache_capable)
        offered = {node: frozenset(each["metadata"]["uid"] for each in pods) for node, pods in victims.items()}
        passed = wire.read_preempt(await self._client.post(extender, extender.preempt_verb, body), offered)
        offers = {offer.node: offer.ids for offer in question.offers}
        return ExtenderAnswer(asked=frozenset(question.nodes), passed=passed, offered=offers)

    def _fail(self, question: Question, contact: _CallState, fault: str) -> None:
        extender = question.extender
        contact.failures += 1
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(contact.failures - 1, 10))
        contact.closed_until_s = self._clock.monotonic() + pause_s
        contact.fault = fault
        self._put(question.key, ExtenderAnswer(fault=fault), None, contact.closed_until_s)
        telemetry.EXTENDER_CALLS.labels(extender=extender.name, verb=question.verb.value, outcome="fault").inc()
        _log.warning(
            "extender call failed", extender=extender.name, verb=question.verb.value, error=fault, pause_s=pause_s
        )

    def _recover(self, question: Question, contact: _CallState) -> None:
        if not contact.failures:
            return
        contact.failures, contact.closed_until_s, contact.fault = 0, 0.0, ""
        gone = question.key[:2]
        faults = [key for key, known in self._known.items() if key[:2] == gone and known.answer.fault]
        for key in faults:
            del self._known[key]
        _log.info("extender answers again", extender=question.extender.name)

    def _put(self, key: Key, answer: ExtenderAnswer, table: NodeTable | None, until_s: float) -> None:
        self._known[key] = _CachedAnswer(answer, table, until_s)
        self.news += 1

    def _call_state(self, question: Question) -> _CallState:
        key = (question.extender.url, question.verb)
        contact = self._contacts.get(key)
        if contact is None:
            contact = self._contacts[key] = _CallState(asyncio.Semaphore(PER_EXTENDER_MAX))
        return contact


class NoExtenders:
    """The extenders of a system that may not call any."""

    async def post(self, extender: ExtenderFact, verb: str, body: bytes) -> bytes:
        """Raise ExtenderFault."""
        raise ExtenderFault("extenders are not called in a simulation")
