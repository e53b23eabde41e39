"""What waits, grouped and in order: kept by deltas, so that a tick costs what there are groups and not work.

A group is pending work of one queue that differs in nothing that the planner looks at but its place in the order: what
holds for its first member holds for all. What groups hand out is immutable (`members.py`); a put or a drop touches one
block of its own group. Invariant: after any deltas the groups are those of a backlog filled afresh with the same work.
"""

import heapq
from collections.abc import Iterable, Mapping

import msgspec

from slipway.model.facts import AllocationFact, JobFact
from slipway.model.position import WorkKey
from slipway.model.resources import Resources
from slipway.scheduler.plan.state.gang_size import smallest_demand
from slipway.scheduler.plan.state.members import Members, Roll
from slipway.scheduler.plan.state.ordering import ages_at, priority_of, work_key

JobKey = tuple[str, str]

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class PendingGroup(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Pending work that is alike; never empty."""

    key: bytes
    alike: bytes
    """equal for groups of one queue that differ in nothing but the user: what blocks one of them blocks all"""
    shape: bytes
    """equal for those that have a place where the other has one: roles, minimum, nodes to avoid, flavors,
    topology"""
    demand: Resources
    """of the smallest gang that may start"""
    members: Members
    """in order"""
    is_leaving: bool = False
    """it does not wait yet: the attempt before is being taken down"""

    @property
    def sample(self) -> AllocationFact:
        """The first of them."""
        return self.members.blocks[0][0][1]

    def index(self, key: WorkKey) -> int:
        """How many members stand before `key`."""
        return self.members.index_of(key)


class _Entry(msgspec.Struct):
    group: bytes
    order: WorkKey
    fact: AllocationFact


class _Open(msgspec.Struct):
    """A group as it is kept: `frozen` is what is handed out, made when first asked for after a change."""

    alike: bytes
    shape: bytes
    demand: Resources
    members: Roll
    frozen: PendingGroup | None = None


class PendingWork:
    """All pending work of one pool that somebody wants."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[bytes, _Open] = {}
        self._shapes: dict[bytes, tuple[AllocationFact, Resources]] = {}
        self._of_job: dict[JobKey, set[str]] = {}
        self._jobs: Mapping[JobKey, JobFact] = {}
        self._aging = 0.0
        self._user_queues: frozenset[str] = frozenset()
        """queues whose users take turns: a group of them holds the work of one user"""
        self._timers: list[tuple[float, str]] = []
        """(when its group or its order changes by itself, uid)"""
        self._frozen: tuple[PendingGroup, ...] | None = None
        self._evicted: dict[str, AllocationFact] = {}
        """{uid: fact} of what has made room for others before"""

    def put(self, fact: AllocationFact, now: float) -> None:
        """Pending work, new or changed."""
        self.drop(fact.uid)
        if not fact.is_wanted:
            return
        job = self._jobs.get((fact.namespace, fact.job)) if fact.job else None
        shape = _encode((fact.roles, fact.minimum, fact.avoid_nodes, fact.flavors, fact.topology))
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = (fact, smallest_demand(fact))
        elif fact.roles is not known[0].roles:
            # One set of role objects per shape: what is computed of a role is computed once.
            fact = msgspec.structs.replace(fact, roles=known[0].roles)
        key = alike = _group_key(fact, job, shape, now)
        if fact.queue in self._user_queues:
            key = _encode((fact.user, alike))
        order = work_key(fact, job, self._aging, now)
        self._entries[fact.uid] = _Entry(key, order, fact)
        if fact.evictions:
            self._evicted[fact.uid] = fact
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Open(alike, shape, known[1], Roll())
        group.members.add((order, fact))
        self._changed(group)
        if fact.job:
            self._of_job.setdefault((fact.namespace, fact.job), set()).add(fact.uid)
        for at in self._changes_of(fact, now):
            heapq.heappush(self._timers, (at, fact.uid))

    def drop(self, uid: str) -> None:
        """It waits no longer, or is not wanted."""
        entry = self._entries.pop(uid, None)
        self._evicted.pop(uid, None)
        if entry is None:
            return
        group = self._groups[entry.group]
        group.members.remove(entry.order)
        self._changed(group)
        if not group.members:
            del self._groups[entry.group]
        fact = entry.fact
        if fact.job:
            own = self._of_job[fact.namespace, fact.job]
            own.discard(uid)
            if not own:
                del self._of_job[fact.namespace, fact.job]

    def set_jobs(self, jobs: Mapping[JobKey, JobFact], now: float) -> None:
        """All jobs: the work of those that have changed is put in again."""
        before, self._jobs = self._jobs, jobs
        for key in before.keys() | jobs.keys():
            if before.get(key) != jobs.get(key):
                for uid in sorted(self._of_job.get(key, ())):
                    self.put(self._entries[uid].fact, now)

    def set_aging(self, aging: float, now: float) -> None:
        """After how many seconds of waiting something goes before all that is younger; 0 for never."""
        if aging != self._aging:
            self._aging = aging
            for entry in list(self._entries.values()):
                self.put(entry.fact, now)

    def set_user_queues(self, queues: frozenset[str], now: float) -> None:
        """The queues whose users take turns."""
        if queues != self._user_queues:
            changed, self._user_queues = queues ^ self._user_queues, queues
            for entry in list(self._entries.values()):
                if entry.fact.queue in changed:
                    self.put(entry.fact, now)

    def next_change(self) -> float | None:
        """When, after the time of the last `groups`, the order or a gate of what waits changes by itself; perhaps
        earlier, never later."""
        while self._timers and self._timers[0][1] not in self._entries:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def groups(self, now: float) -> tuple[PendingGroup, ...]:
        """The groups, in the order of their keys."""
        while self._timers and self._timers[0][0] <= now:
            _, uid = heapq.heappop(self._timers)
            entry = self._entries.get(uid)
            if entry is not None:
                self.put(entry.fact, now)
        if self._frozen is None:
            self._frozen = tuple(_freeze(key, self._groups[key]) for key in sorted(self._groups))
            self._forget_shapes()
            self._forget_timers(now)
        return self._frozen

    def evicted(self) -> Iterable[AllocationFact]:
        """What waits and has made room for others before."""
        return self._evicted.values()

    def get(self, uid: str) -> AllocationFact | None:
        """The fact, if it waits."""
        entry = self._entries.get(uid)
        return entry.fact if entry else None

    def group_of(self, uid: str) -> bytes | None:
        """The key of its group, if it waits."""
        entry = self._entries.get(uid)
        return entry.group if entry else None

    def order_of(self, uid: str) -> WorkKey | None:
        """Its place in the order, if it waits."""
        entry = self._entries.get(uid)
        return entry.order if entry else None

    def __len__(self) -> int:
        return len(self._entries)

    def _changes_of(self, fact: AllocationFact, now: float) -> list[float]:
        """When its group or its order changes by itself, after `now`."""
        return [at for at in (fact.not_before, ages_at(fact, self._aging)) if at is not None and at > now]

    def _forget_timers(self, now: float) -> None:
        """Those of what waits no longer, or was put in more than once, now and then."""
        if len(self._timers) > 3 * len(self._entries) + 64:
            facts = [entry.fact for entry in self._entries.values()]
            self._timers = [(at, fact.uid) for fact in facts for at in self._changes_of(fact, now)]
            heapq.heapify(self._timers)

    def _changed(self, group: _Open) -> None:
        group.frozen = None
        self._frozen = None

    def _forget_shapes(self) -> None:
        """Shapes that nobody asks for any more, now and then."""
        if len(self._shapes) > 2 * len(self._groups) + 64:
            used = {group.shape for group in self._groups.values()}
            self._shapes = {shape: known for shape, known in self._shapes.items() if shape in used}


def _freeze(key: bytes, group: _Open) -> PendingGroup:
    if group.frozen is None:
        group.frozen = PendingGroup(
            key=key, alike=group.alike, shape=group.shape, demand=group.demand, members=group.members.freeze()
        )
    return group.frozen


def _group_key(fact: AllocationFact, job: JobFact | None, shape: bytes, now: float) -> bytes:
    """Equal for work that is alike, whoever's it is. A job counts where it caps its work, or is missing; a backoff
    while it lasts."""
    return _encode(
        (
            fact.queue,
            fact.namespace,
            fact.job if job is None or job.max_slots is not None else "",
            priority_of(fact, job),
            fact.preemptible,
            fact.max_runtime,
            fact.beyond_queue,
            fact.invalid,
            fact.out_of_range,
            fact.hold,
            fact.waits_for,
            fact.not_before if fact.not_before > now else 0.0,
            shape,
        )
    )
