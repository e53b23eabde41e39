"""What is asked of an autoscaler for the pool as a whole: which requests are made, fail, and are given back.

Owns the limits, the times and the sentences. What a request consists of on the API server is not known here: a request
stands, with a state and the time of its last change. Pure: equal inputs give equal decisions.

Promises: nodes are asked for work that has no room on the nodes, has had none for `after`, and does not start by what
is known to end soon. Never more than `maxGangs` allocations and `maxRanks` ranks are asked for at once. A request whose
work is gone, stopped, admitted, held or changed is given back; one whose work waits for something else is given back
after `after`. One attempt of an allocation has at most `tries` tries, each after a longer backoff.
Not promised: that the nodes which come are used by the work that they were asked for. Queues keep their order.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from slipway.crd.hashing import sha256_hex
from slipway.model.facts import AllocationFact, AutoscalingFact
from slipway.model.reasons import Gate
from slipway.model.times import format_time
from slipway.scheduler.plan.capacity.pod_sets import POD_SETS_MAX, PodSet, pod_sets
from slipway.scheduler.plan.explanation.explanations import Explained
from slipway.scheduler.plan.placement import explain
from slipway.scheduler.plan.planner import windows_of
from slipway.scheduler.plan.queueing.queue_cursor import QueueCursor
from slipway.scheduler.plan.state.flavors import accepted
from slipway.scheduler.plan.state.plan_types import Explanation, Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.plan.state.windows import is_of_all_nodes

SETTLE_S = 600.0
"""So long after the nodes have come, the work may still not have started: their devices have to be reported first. The
Cluster Autoscaler keeps the nodes of a request for the same time."""
SOON_S = 120.0
"""No nodes are asked for work that starts within so long by what ends."""
BACKOFF_MAX_S = 6 * 3600.0
TOLD_BEYOND = 4
"""In each queue so many more allocations get an explanation that the limits are reached."""


class RequestState(StrEnum):
    """How far a request is."""

    ASKED = "Asked"
    PROVISIONED = "Provisioned"
    FAILED = "Failed"


class CapacityRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that stands. Times are epoch seconds."""

    name: str
    uid: str
    """of the allocation"""
    attempt: int
    shape: str
    """of its pod sets and of how they are asked for"""
    number: int
    """of the try, from 1"""
    ranks: int
    state: RequestState = RequestState.ASKED
    since: float
    """when it came into that state"""
    asked_at: float
    words: str = ""
    """what the autoscaler says"""
    is_settled: bool = True
    """the state is stored with the request; else the autoscaler says so, and something of the request may still hold
    room"""


class CapacityAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes to be asked for."""

    allocation: str
    """its key"""
    uid: str
    attempt: int
    shape: str
    number: int
    pod_sets: tuple[PodSet, ...]

    @property
    def ranks(self) -> int:
        """Pods over all sets."""
        return sum(each.count for each in self.pod_sets)


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about requests."""

    asks: tuple[CapacityAsk, ...] = ()
    settled: tuple[CapacityRequest, ...] = ()
    """requests in their new state, which is to be stored before what they hold is given back"""
    given_back: tuple[str, ...] = ()
    """names of requests"""
    notes: Mapping[str, Explanation] = {}
    """{allocation key: why it waits, and what was asked for it}"""
    look_again: float = 0.0
    """when time alone changes this (epoch seconds); 0 for never"""
    seen: Mapping[str, tuple[bool, float]] = {}
    """{allocation uid: (whether it had no room on the nodes, since when)}, for the next plan"""

    @property
    def is_empty(self) -> bool:
        """Nothing to do."""
        return not (self.asks or self.settled or self.given_back)


class _Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Work that has no room on the nodes."""

    fact: AllocationFact
    why: Explanation
    sets: tuple[PodSet, ...]
    shape: str
    start: float | None
    """when it starts at the latest by what is known to end, if it does"""

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
    """What is to be asked for beside `requests`, after `plan`.

    `seen` is that of the plan before. `trouble` says why nothing can be asked for at the moment; empty when it can.
    """
    spec = snapshot.pool.autoscaling
    explained = plan.explanations
    if spec is None or not isinstance(explained, Explained):
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
        explained: Explained,
        *,
        requests: Sequence[CapacityRequest],
        seen: Mapping[str, tuple[bool, float]],
    ) -> None:
        self.snapshot, self.spec, self.explained = snapshot, spec, explained
        self.now = snapshot.now
        self.windows = windows_of(snapshot, self.now)
        self.starts: Mapping[str, float | None] = {}
        """{allocation uid: when a reserved head starts at the latest}"""
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
        """of the requests that are open, the new ones included"""

    def made(self, starts: Mapping[str, float | None], trouble: str) -> CapacityPlan:
        """The steps, in order."""
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

    # --- what stands ------------------------------------------------------------------------------------------------

    def _standing(self) -> dict[str, CapacityRequest]:
        """{allocation uid: its request}, each in its present state; the others are given back."""
        found: dict[str, CapacityRequest] = {}
        for request in self.requests:
            fact = self.snapshot.backlog.get(request.uid)
            why = self.explained.of(fact) if fact is not None else None
            if fact is None or why is None or not self._is_asked_for(fact, request):
                self.given_back.append(request.name)
                continue
            is_blocked = why.gate is Gate.NO_FIT
            since = self._noted(request.uid, is_blocked=is_blocked)
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
        """Whether a request is what would be asked for `fact` today."""
        return fact.attempt == request.attempt and self._sets(fact)[1] == request.shape

    def _present(self, request: CapacityRequest) -> CapacityRequest:
        """The request in its present state, by the autoscaler or by time; a new state is to be stored."""
        state, words = request.state, request.words
        until = request.since + (self.spec.timeout_s if state is RequestState.ASKED else SETTLE_S)
        if state is not RequestState.FAILED and self.now >= until:
            late = "no nodes came" if state is RequestState.ASKED else "nodes came, and it still had no room"
            text = f"{late} within {until - request.since:g} s" + (f": {words}" if words else "")
            request = msgspec.structs.replace(
                request, state=RequestState.FAILED, since=self.now, words=text, is_settled=False
            )
        elif state is not RequestState.FAILED:
            self.times.append(until)
        if not request.is_settled:
            self.settled.append(request)
        return request

    # --- what is blocked --------------------------------------------------------------------------------------------

    def _blocked(self, standing: Mapping[str, CapacityRequest]) -> list[_Waiting]:
        """What has no room, in the order in which it is asked for: what is asked for already, then the first of each
        queue, the second of each, and so on."""
        facts = {uid: self.snapshot.backlog.get(uid) for uid in standing}
        ordered = [fact for fact in facts.values() if fact is not None]
        turns = [
            (turn, -line.queue.priority, name, fact)
            for name, line in self.explained.lines.items()
            for turn, fact in enumerate(self._first(line))
        ]
        ordered += [fact for *_, fact in sorted(turns, key=lambda each: each[:3]) if fact.uid not in standing]
        return [each for fact in ordered if (each := self._waiting(fact)) is not None]

    def _first(self, line: QueueCursor) -> Iterator[AllocationFact]:
        """The first of a queue that may be asked for, and of those that are told that the limits are reached."""
        most = self.spec.max_gangs + TOLD_BEYOND
        found = [
            member
            for walk in line.walks
            if walk.why is not None and walk.why.gate in explain.PLACE and not walk.group.is_leaving
            for member in walk.first(most)
        ]
        return (fact for _, fact in sorted(found, key=lambda member: member[0])[:most])

    def _waiting(self, fact: AllocationFact) -> _Waiting | None:
        why = self.explained.of(fact)
        if why is None or why.gate not in explain.PLACE:
            return None
        sets, shape = self._sets(fact)
        return _Waiting(fact=fact, why=why, sets=sets, shape=shape, start=self.starts.get(fact.uid))

    def _sets(self, fact: AllocationFact) -> tuple[tuple[PodSet, ...], str]:
        """What would be asked for `fact`, and its hash."""
        pool, flavors = self.snapshot.pool, tuple[str, ...]()
        if pool.flavors:
            flavors = accepted(fact, self.queues.get(fact.queue), pool, self.snapshot.table)
        sets = pod_sets(fact, pool, self.snapshot.usage.volumes, flavors)
        asked = (self.spec.mode, self.spec.class_name, self.spec.parameters, sets)
        return sets, sha256_hex(msgspec.json.encode(asked, order="deterministic"))[:8]

    def _noted(self, uid: str, *, is_blocked: bool) -> float:
        """Since when it has had no room, or has had it."""
        known = self.before.get(uid)
        since = known[1] if known is not None and known[0] == is_blocked else self.now
        self.seen[uid] = (is_blocked, since)
        return since

    # --- what is asked for ------------------------------------------------------------------------------------------

    def _consider(self, waiting: _Waiting, known: CapacityRequest | None, trouble: str) -> str:
        """Ask for it if it is to be asked for; answers what is told of that."""
        spec, fact = self.spec, waiting.fact
        if known is not None and known.state is not RequestState.FAILED:
            return _told(known, spec)
        obstacle = self._obstacle(waiting) or (known is None and trouble)
        if obstacle:
            return f"no nodes are asked for: {obstacle}"
        number = 1 if known is None else known.number + 1
        if known is not None:
            if number > spec.tries:
                when = format_time(known.since, "seconds")
                return f"no more nodes are asked for: all {spec.tries} tries failed, the last at {when}: {known.words}"
            again = known.since + backoff_s(spec, known.number)
            if self.now < again:
                self.times.append(again)
                return _refused(known, again, spec)
        since = self._noted(fact.uid, is_blocked=True)
        if self.now < since + spec.after_s:
            self.times.append(since + spec.after_s)
            return "" if known is None else _refused(known, since + spec.after_s, spec)
        limit = self._limit(waiting)
        if limit or trouble:
            return f"no nodes are asked for yet: {limit or trouble}"
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
        """Why nodes would not help it; empty when they may."""
        fact, most = waiting.fact, self.spec.max_ranks
        named = next((role.node_name for role in fact.roles if role.node_name), "")
        if waiting.why.gate is not Gate.NO_FIT:
            return "the nodes that an autoscaler adds need not be in one domain of the topology"
        if named:
            return f"it may only run on node {named}"
        if waiting.ranks > most:
            return f"it has {waiting.ranks} ranks, and spec.autoscaling.maxRanks of the pool is {most}"
        if len(waiting.sets) > POD_SETS_MAX:
            return f"it has {len(waiting.sets)} roles, and {POD_SETS_MAX} can be asked for together"
        if window := self._window(fact):
            return f"{window} keeps it off every node of the pool, also of those that come"
        if waiting.start is not None and waiting.start <= self.now + SOON_S:
            return f"running work leaves it room at {format_time(waiting.start, 'seconds')} at the latest"
        return ""

    def _window(self, fact: AllocationFact) -> str:
        """The window of all nodes that it may not use now; empty when there is none."""
        if self.windows is None:
            return ""
        closed = self.windows.closed_to(fact)
        return next((f"window {each.window.name}" for each in closed if is_of_all_nodes(each.window)), "")

    def _limit(self, waiting: _Waiting) -> str:
        """Which limit of the pool is reached; empty when none is."""
        spec = self.spec
        if self.gangs >= spec.max_gangs:
            return f"nodes for {self.gangs} allocations are asked for (spec.autoscaling.maxGangs of the pool)"
        if self.ranks + waiting.ranks > spec.max_ranks:
            return (
                f"nodes for {self.ranks} ranks are asked for, and {waiting.ranks} more would be above "
                f"{spec.max_ranks} (spec.autoscaling.maxRanks of the pool)"
            )
        return ""


def backoff_s(spec: AutoscalingFact, number: int) -> float:
    """The pause after try `number` has failed."""
    return min(BACKOFF_MAX_S, spec.backoff_s * 2.0 ** min(number - 1, 30))


def _told(request: CapacityRequest, spec: AutoscalingFact) -> str:
    ranks = f"{request.ranks} rank{'s' if request.ranks > 1 else ''}"
    when = format_time(request.asked_at, "seconds")
    tries = f"try {request.number} of {spec.tries}"
    if request.state is RequestState.PROVISIONED:
        came = format_time(request.since, "seconds")
        return f"nodes for {ranks} were asked for at {when} and came at {came} ({request.name}, {tries})"
    words = f"; the autoscaler says: {request.words}" if request.words else ""
    return f"nodes for {ranks} were asked for at {when} ({request.name}, {tries}){words}"


def _refused(request: CapacityRequest, again: float, spec: AutoscalingFact) -> str:
    failed, later = format_time(request.since, "seconds"), format_time(again, "seconds")
    return (
        f"the autoscaler gave no nodes at {failed} (try {request.number} of {spec.tries}): {request.words}; "
        f"they are asked for again at {later}"
    )
