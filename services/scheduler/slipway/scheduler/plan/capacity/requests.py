"""The requests to an autoscaler for a whole pool: which are made, which fail, and which are withdrawn.

Owns the limits, the times and the sentences. How a request is represented on the API server is not known here; a
request has a state and the time of its last change. Pure: equal inputs give equal decisions.

Promises: nodes are requested for work that has had no room on the nodes for `after`, and that does not start soon
because other work is known to end. At most `maxGangs` allocations and `maxRanks` ranks have open requests at once. A
request is withdrawn when its work is deleted, stopped, admitted, held or changed. If its work waits for something else,
the request is withdrawn after `after`. One attempt of an allocation has at most `tries` tries, each after a longer
backoff. Not promised: that the new nodes are used by the work for which they were requested. Queues keep their order.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from slipway.crd.hashing import sha256_hex
from slipway.model.facts import AllocationFact, AutoscalingFact
from slipway.model.reasons import Gate
from slipway.model.times import format_time
from slipway.scheduler.plan.capacity.pod_sets import POD_SETS_MAX, PodSet, pod_sets
from slipway.scheduler.plan.explanation.explanations import Explanations
from slipway.scheduler.plan.placement import explain
from slipway.scheduler.plan.planner import windows_of
from slipway.scheduler.plan.queueing.queue_cursor import QueueCursor
from slipway.scheduler.plan.state.flavors import accepted
from slipway.scheduler.plan.state.plan_types import Explanation, Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.plan.state.windows import is_of_all_nodes

SETTLE_S = 600.0
"""After this time, provisioned nodes whose work has still not started count as a failed try (seconds).

The devices of new nodes must be reported first. The Cluster Autoscaler reserves the nodes for the same time.
"""
SOON_S = 120.0
"""No nodes are requested for work that starts within this time because other work ends (seconds)."""
BACKOFF_MAX_S = 6 * 3600.0
TOLD_BEYOND = 4
"""In each queue this many more allocations get an explanation that the limits are reached."""


class RequestState(StrEnum):
    """The progress of a request."""

    ASKED = "Asked"
    PROVISIONED = "Provisioned"
    FAILED = "Failed"


class CapacityRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An existing request. Times are epoch seconds."""

    name: str
    uid: str
    """uid of the allocation"""
    attempt: int
    shape: str
    """hash of its pod sets and of the autoscaling mode, class and parameters"""
    number: int
    """number of the try, from 1"""
    ranks: int
    state: RequestState = RequestState.ASKED
    since: float
    """when it entered that state"""
    asked_at: float
    words: str = ""
    """the autoscaler's message"""
    is_settled: bool = True
    """whether the state is stored with the request; else the autoscaler reported it, and room may still be held"""


class CapacityAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A request for nodes that is to be made."""

    allocation: str
    """key of the allocation"""
    uid: str
    attempt: int
    shape: str
    number: int
    pod_sets: tuple[PodSet, ...]

    @property
    def ranks(self) -> int:
        """The number of pods over all sets."""
        return sum(each.count for each in self.pod_sets)


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to make to requests."""

    asks: tuple[CapacityAsk, ...] = ()
    settled: tuple[CapacityRequest, ...] = ()
    """requests in their new state, which must be stored before their room is released"""
    given_back: tuple[str, ...] = ()
    """names of requests to withdraw"""
    notes: Mapping[str, Explanation] = {}
    """{allocation key: why it waits, and what was requested for it}"""
    look_again: float = 0.0
    """when the plan changes although only time passes (epoch seconds); 0 for never"""
    seen: Mapping[str, tuple[bool, float]] = {}
    """{allocation uid: (whether it had no room on the nodes, since when)}, input of the next plan"""

    @property
    def is_empty(self) -> bool:
        """Whether nothing must be done."""
        return not (self.asks or self.settled or self.given_back)


class _Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Work that has no room on the nodes."""

    fact: AllocationFact
    why: Explanation
    sets: tuple[PodSet, ...]
    shape: str
    start: float | None
    """the latest start of a reserved head, by work that is known to end; None when unknown"""

    @property
    def ranks(self) -> int:
        return sum(each.count for each in self.sets)


def plan_capacity(
    snapshot: PoolSnapshot,
    plan: Plan,
    requests: Sequence[CapacityRequest],
    seen: Mapping[str, tuple[bool, float]],
    *,
    trouble: str = "",
) -> CapacityPlan:
    """Return the changes to `requests` after `plan`.

    `seen` is that of the previous capacity plan. `trouble` states why nothing can be requested at the moment; "" when
    requests are possible.
    """
    spec = snapshot.pool.autoscaling
    explained = plan.explanations
    if spec is None or not isinstance(explained, Explanations):
        return CapacityPlan(given_back=tuple(sorted(each.name for each in requests)))
    return _Decision(snapshot, spec, explained, requests=requests, seen=seen).made(
        {kept.uid: kept.start for kept in plan.kept}, trouble
    )


class _Decision:
    """One call of `plan_capacity`."""

    def __init__(
        self,
        snapshot: PoolSnapshot,
        spec: AutoscalingFact,
        explained: Explanations,
        *,
        requests: Sequence[CapacityRequest],
        seen: Mapping[str, tuple[bool, float]],
    ) -> None:
        self.snapshot, self.spec, self.explained = snapshot, spec, explained
        self.now = snapshot.now
        self.windows = windows_of(snapshot, self.now)
        self.starts: Mapping[str, float | None] = {}
        """{allocation uid: the latest start of a reserved head}"""
        self.requests = sorted(requests, key=lambda each: (each.uid, each.number, each.name))
        self.before = seen
        self.seen: dict[str, tuple[bool, float]] = {}
        self.queues = {queue.name: queue for queue in snapshot.queues}
        self.asks: list[CapacityAsk] = []
        self.settled: list[CapacityRequest] = []
        self.given_back: list[str] = []
        self.notes: dict[str, Explanation] = {}
        self.times: list[float] = []
        self.gangs = 0
        self.ranks = 0
        """ranks of the open requests, including the new ones"""

    def made(self, starts: Mapping[str, float | None], trouble: str) -> CapacityPlan:
        """Run the steps, in order."""
        self.starts = starts
        standing = self._standing()
        for request in standing.values():
            if request.state is not RequestState.FAILED:
                self.gangs += 1
                self.ranks += request.ranks
        for waiting in self._blocked(standing):
            known = standing.get(waiting.fact.uid)
            text = self._consider(waiting, known, trouble)
            if text:
                self.notes[waiting.fact.key] = explain.with_note(waiting.why, text)
        return CapacityPlan(
            asks=tuple(self.asks),
            settled=tuple(self.settled),
            given_back=tuple(sorted(self.given_back)),
            notes=self.notes,
            look_again=min(self.times, default=0.0),
            seen=self.seen,
        )

    # --- existing requests ------------------------------------------------------------------------------------------

    def _standing(self) -> dict[str, CapacityRequest]:
        """Return {allocation uid: its request}, each in its current state; the other requests are withdrawn."""
        found: dict[str, CapacityRequest] = {}
        for request in self.requests:
            fact = self.snapshot.backlog.get(request.uid)
            why = self.explained.of(fact) if fact is not None else None
            if fact is None or why is None or not self._is_asked_for(fact, request):
                self.given_back.append(request.name)
                continue
            is_blocked = why.gate is Gate.NO_FIT
            since = self._blocked_since(request.uid, is_blocked=is_blocked)
            if not is_blocked:
                until = since + self.spec.after_s
                if self.now >= until:
                    self.given_back.append(request.name)
                    continue
                self.times.append(until)
            former = found.get(request.uid)
            if former is not None:
                self.given_back.append(former.name)
            found[request.uid] = request
        return {uid: self._present(request) for uid, request in found.items()}

    def _is_asked_for(self, fact: AllocationFact, request: CapacityRequest) -> bool:
        """Whether a request equals the one that would be made for `fact` now."""
        return fact.attempt == request.attempt and self._sets(fact)[1] == request.shape

    def _present(self, request: CapacityRequest) -> CapacityRequest:
        """Return the request in its current state; the state may change by time, and a new state must be stored."""
        state, words = request.state, request.words
        until = request.since + (self.spec.timeout_s if state is RequestState.ASKED else SETTLE_S)
        if state is not RequestState.FAILED and self.now >= until:
            late = (
                "no nodes were added" if state is RequestState.ASKED else "nodes were added, but it still had no room"
            )
            text = f"{late} within {until - request.since:g} s" + (f": {words}" if words else "")
            request = msgspec.structs.replace(
                request, state=RequestState.FAILED, since=self.now, words=text, is_settled=False
            )
        elif state is not RequestState.FAILED:
            self.times.append(until)
        if not request.is_settled:
            self.settled.append(request)
        return request

    # --- blocked work -----------------------------------------------------------------------------------------------

    def _blocked(self, standing: Mapping[str, CapacityRequest]) -> list[_Waiting]:
        """Return the blocked work, in the order in which nodes are requested for it.

        Work with a request comes first, then the first allocation of each queue, the second of each, and so on.
        """
        facts = {uid: self.snapshot.backlog.get(uid) for uid in standing}
        ordered = [fact for fact in facts.values() if fact is not None]
        turns = [
            (turn, -cursor.queue.priority, name, fact)
            for name, cursor in self.explained.cursors.items()
            for turn, fact in enumerate(self._first(cursor))
        ]
        ordered += [fact for *_, fact in sorted(turns, key=lambda each: each[:3]) if fact.uid not in standing]
        return [each for fact in ordered if (each := self._waiting(fact)) is not None]

    def _first(self, cursor: QueueCursor) -> Iterator[AllocationFact]:
        """Return the first allocations of a queue: those that may get a request or a note about the limits."""
        most = self.spec.max_gangs + TOLD_BEYOND
        found = [
            member
            for group_cursor in cursor.group_cursors
            if group_cursor.why is not None
            and group_cursor.why.gate in explain.PLACE
            and not group_cursor.group.is_leaving
            for member in group_cursor.first(most)
        ]
        return (fact for _, fact in sorted(found, key=lambda member: member[0])[:most])

    def _waiting(self, fact: AllocationFact) -> _Waiting | None:
        why = self.explained.of(fact)
        if why is None or why.gate not in explain.PLACE:
            return None
        sets, shape = self._sets(fact)
        return _Waiting(fact=fact, why=why, sets=sets, shape=shape, start=self.starts.get(fact.uid))

    def _sets(self, fact: AllocationFact) -> tuple[tuple[PodSet, ...], str]:
        """Return the pod sets that would be requested for `fact`, and their hash."""
        pool, flavors = self.snapshot.pool, tuple[str, ...]()
        if pool.flavors:
            flavors = accepted(fact, self.queues.get(fact.queue), pool, self.snapshot.table)
        sets = pod_sets(fact, pool, self.snapshot.usage.volumes, flavors)
        asked = (self.spec.mode, self.spec.class_name, self.spec.parameters, sets)
        return sets, sha256_hex(msgspec.json.encode(asked, order="deterministic"))[:8]

    def _blocked_since(self, uid: str, *, is_blocked: bool) -> float:
        """Record whether the work has no room; return since when that is so."""
        known = self.before.get(uid)
        since = known[1] if known is not None and known[0] == is_blocked else self.now
        self.seen[uid] = (is_blocked, since)
        return since

    # --- new requests -----------------------------------------------------------------------------------------------

    def _consider(self, waiting: _Waiting, known: CapacityRequest | None, trouble: str) -> str:
        """Request nodes for the work if its time has come; return the text for its explanation, "" for none."""
        spec, fact = self.spec, waiting.fact
        if known is not None and known.state is not RequestState.FAILED:
            return _requested_text(known, spec)
        obstacle = self._obstacle(waiting) or (known is None and trouble)
        if obstacle:
            return f"no nodes are requested: {obstacle}"
        number = 1 if known is None else known.number + 1
        if known is not None:
            if number > spec.tries:
                when = format_time(known.since, "seconds")
                return f"no more nodes are requested: all {spec.tries} tries failed, the last at {when}: {known.words}"
            again = known.since + backoff_s(spec, known.number)
            if self.now < again:
                self.times.append(again)
                return _refused_text(known, again, spec)
        since = self._blocked_since(fact.uid, is_blocked=True)
        if self.now < since + spec.after_s:
            self.times.append(since + spec.after_s)
            return "" if known is None else _refused_text(known, since + spec.after_s, spec)
        limit = self._limit(waiting)
        if limit or trouble:
            return f"no nodes are requested yet: {limit or trouble}"
        self.gangs, self.ranks = self.gangs + 1, self.ranks + waiting.ranks
        self.asks.append(
            CapacityAsk(
                allocation=fact.key,
                uid=fact.uid,
                attempt=fact.attempt,
                shape=waiting.shape,
                number=number,
                pod_sets=waiting.sets,
            )
        )
        return ""

    def _obstacle(self, waiting: _Waiting) -> str:
        """Return why new nodes would not help the work; "" when they may help."""
        fact, most = waiting.fact, self.spec.max_ranks
        named = next((role.node_name for role in fact.roles if role.node_name), "")
        if waiting.why.gate is not Gate.NO_FIT:
            return "an autoscaler may add the nodes in different domains of the topology"
        if named:
            return f"it may only run on node {named}"
        if waiting.ranks > most:
            return f"it has {waiting.ranks} ranks, and spec.autoscaling.maxRanks of the pool is {most}"
        if len(waiting.sets) > POD_SETS_MAX:
            return f"it has {len(waiting.sets)} roles, and one request has at most {POD_SETS_MAX}"
        if window := self._window(fact):
            return f"{window} closes all nodes of the pool to it, new nodes included"
        if waiting.start is not None and waiting.start <= self.now + SOON_S:
            if waiting.start <= self.now:
                return "running work is about to leave room for it"
            return f"running work leaves room for it at {format_time(waiting.start, 'seconds')} at the latest"
        return ""

    def _window(self, fact: AllocationFact) -> str:
        """Return the window that closes all nodes of the pool to `fact` now; "" when there is none."""
        if self.windows is None:
            return ""
        closed = self.windows.closed_to(fact)
        return next((f"window {each.window.name}" for each in closed if is_of_all_nodes(each.window)), "")

    def _limit(self, waiting: _Waiting) -> str:
        """Return which limit of the pool is reached; "" when none is."""
        spec = self.spec
        if self.gangs >= spec.max_gangs:
            return f"nodes for {self.gangs} allocations are already requested (spec.autoscaling.maxGangs of the pool)"
        if self.ranks + waiting.ranks > spec.max_ranks:
            return (
                f"nodes for {self.ranks} ranks are already requested, and {waiting.ranks} more would exceed "
                f"{spec.max_ranks} (spec.autoscaling.maxRanks of the pool)"
            )
        return ""


def backoff_s(spec: AutoscalingFact, number: int) -> float:
    """Return the pause after try `number` has failed (seconds)."""
    return min(BACKOFF_MAX_S, spec.backoff_s * 2.0 ** min(number - 1, 30))


def _requested_text(request: CapacityRequest, spec: AutoscalingFact) -> str:
    ranks = f"{request.ranks} rank{'s' if request.ranks > 1 else ''}"
    when = format_time(request.asked_at, "seconds")
    tries = f"try {request.number} of {spec.tries}"
    if request.state is RequestState.PROVISIONED:
        came = format_time(request.since, "seconds")
        return f"nodes for {ranks} were requested at {when} and added at {came} ({request.name}, {tries})"
    words = f"; the autoscaler says: {request.words}" if request.words else ""
    return f"nodes for {ranks} were requested at {when} ({request.name}, {tries}){words}"


def _refused_text(request: CapacityRequest, again: float, spec: AutoscalingFact) -> str:
    failed, later = format_time(request.since, "seconds"), format_time(again, "seconds")
    return (
        f"the autoscaler provided no nodes at {failed} (try {request.number} of {spec.tries}): {request.words}; "
        f"they are requested again at {later}"
    )
