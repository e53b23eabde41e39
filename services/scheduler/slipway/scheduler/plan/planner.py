"""plan(): one tick of scheduling as a pure function of (snapshot, policy, now, seed).

The rooms, in the order in which an allocation passes through them: `gates` (is it to be started at all), `lines` and
`ordering` (who goes first), `quota` (may its queue have it), `gang` and below it `fill`, `topology`, `rows`, `filters`,
`scores` (is there a place, and which is best), `explain` and `offers` (why not, and what would help).
Preemption, reclaim and consolidation will stand between `gang` and `explain`, reservations with backfill
after them; until they are there, nothing is evicted but gangs found below their minimum, and what stands on a node
that an operator has disabled.

Promises: equal inputs give equal plans, whatever the order of the snapshot's tuples; a gang is admitted with its
minimum or not at all; no node goes above allocatable, no queue above a bound; planning again on the state that a plan
leads to admits nothing that was not waiting for lack of decisions. Integers, total orders, uid last.
`seed` is unused while every node is looked at; it belongs to sampling.
"""

import heapq
from collections.abc import Callable

import msgspec

from slipway.model.facts import DISABLED, SCHEDULING_LABEL, AllocationFact
from slipway.model.reasons import Gate, Reason
from slipway.model.resources import Resources
from slipway.scheduler.plan import explain, gang
from slipway.scheduler.plan.change import Standing
from slipway.scheduler.plan.gates import is_wanted
from slipway.scheduler.plan.lines import GangKey, Line, Want, Wants, line_up, numbered
from slipway.scheduler.plan.offers import Offers
from slipway.scheduler.plan.ordering import HeadKey, head_key
from slipway.scheduler.plan.outcome import Admit, Evict, Explanation, Plan
from slipway.scheduler.plan.policy import Policy
from slipway.scheduler.plan.quota import QueueTree
from slipway.scheduler.plan.snapshot import Snapshot
from slipway.scheduler.plan.whatif import WhatIf

RETOLD_MAX = 64
"""Blocked shapes that are explained again at the end of a tick."""


Watch = Callable[[AllocationFact, WhatIf], None]
"""Told of each allocation that is about to be placed, and the what-if copy as it stands then."""


def plan(snapshot: Snapshot, policy: Policy, now: float, seed: int = 0, *, watch: Watch | None = None) -> Plan:
    """What to admit, what to take down, and why the rest waits."""
    evictions = _to_take_down(snapshot)[: policy.decisions_max]
    if not snapshot.pending:
        return Plan(evictions=evictions)
    return _Tick(snapshot, policy, now, watch).run(evictions)


def queue_tree(snapshot: Snapshot) -> QueueTree:
    """The snapshot's queues with what its holdings use."""
    tree = QueueTree(snapshot.queues, snapshot.table.total)
    for name, use in sorted(snapshot.use.items()):
        tree.take(name, use.preemptible, preemptible=True)
        tree.take(name, use.fixed, preemptible=False)
    return tree


def _to_take_down(snapshot: Snapshot) -> tuple[Evict, ...]:
    """Gangs that were placed with less than their minimum, and what stands on a disabled node: they go at once."""
    reasons = {holding.allocation.uid: (holding.allocation, Reason.BELOW_MINIMUM) for holding in snapshot.broken}
    disabled = frozenset(node.name for node in snapshot.table.facts if node.labels.get(SCHEDULING_LABEL) == DISABLED)
    if disabled:
        for holding in sorted(snapshot.holdings.values(), key=lambda each: each.allocation.key):
            if not disabled.isdisjoint(holding.placements.values()):
                reasons.setdefault(holding.allocation.uid, (holding.allocation, Reason.NODE_DISABLED))
    return tuple(
        Evict(allocation=fact.key, uid=fact.uid, attempt=fact.attempt, reason=reason)
        for fact, reason in reasons.values()
        if is_wanted(fact)
    )


class _Tick:
    """The state of one call of `plan`."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, watch: Watch | None) -> None:
        self.watch = watch
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        self.tree = queue_tree(snapshot)
        self.slots = dict(snapshot.slots)
        self.whatif = WhatIf(snapshot.usage, policy)
        self.wants = Wants(self.whatif)
        self.explanations: dict[str, Explanation] = {}
        self.placed: list[gang.Placed] = []
        self.no_place: dict[GangKey, Explanation] = {}
        self.no_place_for: dict[GangKey, AllocationFact] = {}

    def run(self, evictions: tuple[Evict, ...]) -> Plan:
        """The steps of a tick, in order."""
        lines, self.explanations = line_up(self.snapshot, self.tree, self.now)
        heads: list[tuple[HeadKey, str]] = []
        for line in lines.values():
            self._push_head(heads, line)
        room = self.policy.decisions_max - len(evictions)
        while heads and len(self.placed) < room:
            _, name = heapq.heappop(heads)
            self._step(lines[name])
            self._push_head(heads, lines[name])
        for line in lines.values():
            self.explanations |= line.left()
        self._add_surplus()
        self._say_why_now()
        standing = Standing(self.whatif, self.tree, self.slots, dict(self.snapshot.jobs))
        offers = Offers(self.snapshot, standing, self.wants, self.now)
        offers.add(lines, self.explanations, self.policy.changes_max)
        return Plan(
            admits=tuple(self._admit(placed) for placed in self.placed),
            evictions=evictions,
            explanations=numbered(lines, self.explanations),
        )

    def _push_head(self, heads: list[tuple[HeadKey, str]], line: Line) -> None:
        head = line.next()
        if head is not None:
            line.want = self.wants.of(head)
            share = self.tree.share(line.queue.name, line.want.demand.amounts)
            heapq.heappush(heads, (head_key(share, line.queue, head, self.snapshot.job_of(head)), line.queue.name))

    def _step(self, line: Line) -> None:
        """Admit the next of a line, or say why not."""
        fact, want = line.next(), line.want
        if fact is None or want is None:
            return
        line.at += 1
        why = self._try(fact, want)
        if why is None:
            return
        self.explanations[fact.key] = why
        if why.is_never or why.gate is Gate.JOB_MAX_SLOTS:
            return
        if line.block(fact) and line.queue.reclaim != "Any":
            self.tree.keep(line.queue.name, want.demand.amounts)

    def _try(self, fact: AllocationFact, want: Want) -> Explanation | None:
        """Quota, job slots, then a place: takes all of it, or nothing and the reason."""
        key, demand = want.key, want.demand
        why = self._quota_gate(fact, demand) or self._slots_gate(fact, demand.gpus())
        if why is not None:
            return why
        known = self.no_place.get(key)
        if known is not None:
            return known
        if self.watch is not None:
            self.watch(fact, self.whatif)
        placed = gang.place(self.whatif, fact)
        if isinstance(placed, gang.Blocked):
            self.no_place[key] = explain.fit_gate(self.whatif, fact, placed)
            self.no_place_for[key] = fact
            return self.no_place[key]
        actual = demand if placed.is_as_wanted else placed.demand()
        if actual is not demand:
            why = self._quota_gate(fact, actual) or self._slots_gate(fact, actual.gpus())
            if why is not None:
                # Another mix of roles would have a place but not the quota: that is for now, not for ever.
                gang.withdraw(self.whatif, placed.parts)
                return msgspec.structs.replace(why, is_never=False)
        self._take(fact, actual)
        self.placed.append(placed)
        return None

    def _take(self, fact: AllocationFact, demand: Resources) -> None:
        self.tree.take(fact.queue, demand.amounts, preemptible=fact.preemptible)
        if fact.job:
            key = (fact.namespace, fact.job)
            self.slots[key] = self.slots.get(key, 0) + demand.gpus()

    def _quota_gate(self, fact: AllocationFact, demand: Resources) -> Explanation | None:
        short = self.tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
        if short is None:
            return None
        never = self.tree.never(fact.queue, demand.amounts, preemptible=fact.preemptible)
        return explain.quota_gate(never or short, is_never=never is not None)

    def _slots_gate(self, fact: AllocationFact, asked: int) -> Explanation | None:
        job = self.snapshot.job_of(fact)
        if job is None or job.max_slots is None or asked == 0:
            return None
        used = self.slots.get((fact.namespace, fact.job), 0)
        return explain.slots_gate(job, used, asked) if used + asked > job.max_slots else None

    def _add_surplus(self) -> None:
        """Ranks beyond the minimum, once all minima were tried: by the share that one more would give the queue, then
        in order of admission."""
        open_gangs: list[tuple[int, int]] = []
        for number in range(len(self.placed)):
            self._push_open(open_gangs, number)
        while open_gangs:
            _, number = heapq.heappop(open_gangs)
            if self._extend(self.placed[number]):
                self._push_open(open_gangs, number)

    def _push_open(self, open_gangs: list[tuple[int, int]], number: int) -> None:
        placed = self.placed[number]
        fact = placed.allocation
        chosen = gang.next_role(fact.roles, [len(part.nodes) for part in placed.parts])
        if chosen is not None:
            share = self.tree.share(fact.queue, gang.requests_of(fact.roles[chosen]).amounts)
            heapq.heappush(open_gangs, (share, number))

    def _extend(self, placed: gang.Placed) -> bool:
        """One more rank for a gang: of the role that is most behind and that may have one."""
        fact = placed.allocation
        full: frozenset[int] = frozenset()
        while True:
            counts = [len(part.nodes) for part in placed.parts]
            chosen = gang.next_role(fact.roles, counts, full)
            if chosen is None:
                return False
            demand = gang.requests_of(fact.roles[chosen])
            closed = self._quota_gate(fact, demand) or self._slots_gate(fact, demand.gpus())
            if closed is None and gang.extend(self.whatif, placed.parts[chosen]):
                self._take(fact, demand)
                return True
            full |= {chosen}

    def _say_why_now(self) -> None:
        """What found no place in the middle of the tick is explained by how things stand at its end."""
        if not self.placed:
            return
        now: dict[GangKey, Explanation] = {}
        for key, fact in list(self.no_place_for.items())[:RETOLD_MAX]:
            placed = gang.place(self.whatif, fact)
            if isinstance(placed, gang.Blocked):
                now[key] = explain.fit_gate(self.whatif, fact, placed)
            else:
                gang.withdraw(self.whatif, placed.parts)
        before = {id(why): key for key, why in self.no_place.items()}
        for name, why in self.explanations.items():
            key = before.get(id(why))
            if key is not None and key in now:
                self.explanations[name] = now[key]

    def _admit(self, placed: gang.Placed) -> Admit:
        fact, names = placed.allocation, self.whatif.table.names
        return Admit(
            allocation=fact.key,
            uid=fact.uid,
            attempt=fact.attempt,
            placements={rank: names[node] for rank, node in placed.placements().items()},
            spec_hash=fact.spec_hash,
        )
