"""Pending work in ordered groups, updated by deltas: a tick costs the number of groups, not the amount of work.

A group contains pending work of one queue that differs only in its position, so what is true of its first member is
true of all. The groups that are returned are immutable (`Members`). A put or a drop changes one block of its own group.
Where the users of a queue take turns, a group also contains the members of each user, so that a tick finds the next one
without a look at the others.

Invariant: after any deltas the groups equal those of a new backlog with the same work.

The members of a group are stored in blocks, in order: a change costs one block, whatever the size of the group.
`MemberList` is changed in place. `Members`, which it returns, never changes, and shares the unchanged blocks. The
members after the first few are a view: nothing is copied for it.

The order of pending work is total. Within a queue, work that has aged comes first, the longest wait first. Then the
order is by priority, position, the job's weight, the allocation's own priority, age and uid (`model/position.py`). A
job that has a priority gives it to all its allocations. A job that has a position gives it to its allocations that have
none of their own.

Between queues (`queue_cursor.py`) the first head is the one that leaves its queue least above its deserved share. Then
the order is by queue priority, the head's priority, age and name.

The order within a queue changes with time when an allocation ages: `ages_at` returns when. Pure, integers only.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import overload

import msgspec

from slipway.model import position
from slipway.model.facts import AllocationFact, JobFact, QueueFact
from slipway.model.position import WorkKey, milliseconds
from slipway.model.resources import Resources
from slipway.scheduler.plan.state.rank_request import smallest_demand

BLOCK = 256
"""Members of a block that was filled in order; a block that was filled by inserts has at most twice as many."""

Member = tuple[WorkKey, AllocationFact]


def order_of(member: Member) -> WorkKey:
    """Return the member's key in the order."""
    return member[0]


def _last(block: Sequence[Member]) -> WorkKey:
    return block[-1][0]


class Members(Sequence[Member]):
    """An immutable sequence of members in order. A slice is a new tuple; `after` returns a view."""

    __slots__ = ("_ends", "_start", "blocks")

    def __init__(
        self, blocks: tuple[tuple[Member, ...], ...] = (), *, ends: tuple[int, ...] = (), start: int = 0
    ) -> None:
        self.blocks = blocks
        self._ends = ends or tuple(accumulate(map(len, blocks)))
        """number of members up to and including each block"""
        self._start = start

    def after(self, count: int) -> "Members":
        """Return all members but the first `count`."""
        return self if not count else Members(self.blocks, ends=self._ends, start=self._start + count)

    def index_of(self, key: WorkKey) -> int:
        """Return how many members are before `key`."""
        block = bisect_left(self.blocks, key, key=_last)
        before = self._ends[block - 1] if block else 0
        if block < len(self.blocks):
            before += bisect_left(self.blocks[block], key, key=order_of)
        return max(0, before - self._start)

    def before(self, prefix: tuple[int, int], *, is_behind: bool) -> int:
        """Return how many members have an order that begins below `prefix`; with `is_behind`, at or below `prefix`."""
        if not is_behind:
            return self.index_of((*prefix, (-1, 0), 0, 0, 0, ""))
        return self.index_of((prefix[0], prefix[1] + 1, (-1, 0), 0, 0, 0, ""))

    def __len__(self) -> int:
        return max(0, self._ends[-1] - self._start) if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Member: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Member, ...]: ...
    def __getitem__(self, index: int | slice) -> Member | tuple[Member, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return tuple(islice(self.after(start), max(0, stop - start)))[::step] if step > 0 else tuple(self)[index]
        at = index + (self._start if index >= 0 else self._ends[-1] if self._ends else 0)
        if at < self._start or not self._ends or at >= self._ends[-1]:
            raise IndexError(index)
        block = bisect_left(self._ends, at + 1) if at >= self._ends[0] else 0
        return self.blocks[block][at - (self._ends[block - 1] if block else 0)]

    def __iter__(self) -> Iterator[Member]:
        if not self._start:
            return chain.from_iterable(self.blocks)
        block = bisect_left(self._ends, self._start + 1)
        if block >= len(self.blocks):
            return iter(())
        first = self.blocks[block]
        inside = self._start - (self._ends[block - 1] if block else 0)
        return chain(islice(first, inside, None), chain.from_iterable(islice(self.blocks, block + 1, None)))


class MemberList:
    """The members of one group, which are added and removed."""

    __slots__ = ("_block", "_blocks", "_frozen")

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._blocks: list[list[Member]] = []
        self._frozen: list[tuple[Member, ...] | None] = []
        """each block as `freeze` returned it last; None once it has changed"""

    def add(self, member: Member) -> None:
        """Add a member."""
        blocks, frozen, key = self._blocks, self._frozen, member[0]
        if not blocks or key > _last(blocks[-1]):
            if not blocks or len(blocks[-1]) >= self._block:
                blocks.append([member])
                frozen.append(None)
            else:
                blocks[-1].append(member)
                frozen[-1] = None
            return
        at = min(bisect_left(blocks, key, key=_last), len(blocks) - 1)
        block = blocks[at]
        insort(block, member, key=order_of)
        frozen[at] = None
        if len(block) > 2 * self._block:
            blocks[at : at + 1] = [block[: self._block], block[self._block :]]
            frozen.insert(at, None)

    def remove(self, key: WorkKey) -> None:
        """Remove the member with the order `key`."""
        blocks, frozen = self._blocks, self._frozen
        at = bisect_left(blocks, key, key=_last)
        block = blocks[at]
        del block[bisect_left(block, key, key=order_of)]
        frozen[at] = None
        if at and len(block) + len(blocks[at - 1]) <= self._block:
            blocks[at - 1] += block
            frozen[at - 1] = None
            block = []
        if not block:
            del blocks[at], frozen[at]

    def freeze(self) -> Members:
        """Return all members as they are now."""
        frozen = self._frozen
        for at, known in enumerate(frozen):
            if known is None:
                frozen[at] = tuple(self._blocks[at])
        return Members(tuple(block for block in frozen if block is not None))

    def __bool__(self) -> bool:
        return bool(self._blocks)


HeadKey = tuple[int, int, int, str, str]


def priority_of(allocation: AllocationFact, job: JobFact | None) -> int:
    """Return the job's priority when it has one, else the allocation's own."""
    return allocation.priority if job is None or job.priority is None else job.priority


def waits_since(allocation: AllocationFact) -> float:
    """Return since when this attempt waits (epoch seconds)."""
    return allocation.waiting_since or allocation.created


def ages_at(allocation: AllocationFact, aging: float) -> float | None:
    """Return when it comes before all younger work of its queue (epoch seconds); None when `aging` (s) is off."""
    return position.ages_at(waits_since(allocation), aging)


def is_aged(allocation: AllocationFact, aging: float, now: float) -> bool:
    """Whether it has waited so long that it comes before all younger work of its queue."""
    at = ages_at(allocation, aging)
    return at is not None and at <= now


def work_key(allocation: AllocationFact, job: JobFact | None, aging: float = 0.0, now: float = 0.0) -> WorkKey:
    """Return the sort key of an allocation within its queue at `now`; ascending."""
    return position.work_key(
        priority_of(allocation, job),
        allocation.position or (job.position if job else ""),
        weight=job.weight if job else 1,
        own=allocation.priority,
        created=allocation.created,
        uid=allocation.uid,
        aged_since=waits_since(allocation) if aging and is_aged(allocation, aging, now) else None,
    )


def head_key(queue: QueueFact, head: AllocationFact, job: JobFact | None) -> HeadKey:
    """Return the sort key, ascending, between heads that leave their queues equally far above what they deserve."""
    return (-queue.priority, -priority_of(head, job), milliseconds(head.created), head.name, queue.name)


JobKey = tuple[str, str]

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class PendingGroup(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Pending work that is alike; never empty."""

    key: bytes
    shape: bytes
    """equal for work that fits the same nodes: roles, minimum, nodes to avoid, flavors, topology"""
    demand: Resources
    """the demand of the smallest gang that may start"""
    members: Members
    """the allocations, in order"""
    users: Mapping[str, Members] = {}
    """{user: the user's members, in order}; empty unless the users of the queue take turns"""
    is_leaving: bool = False
    """whether the group is not pending yet, because the previous attempt is being evicted"""

    @property
    def sample(self) -> AllocationFact:
        """The first allocation of the group."""
        return self.members.blocks[0][0][1]


class _Entry(msgspec.Struct):
    group: bytes
    order: WorkKey
    fact: AllocationFact


class _StoredGroup(msgspec.Struct):
    """A group as it is stored. `frozen` is the value that `groups` returns; a change sets it to None."""

    shape: bytes
    demand: Resources
    members: MemberList
    users: dict[str, MemberList] = {}
    frozen_users: dict[str, Members] = {}
    """{user: its members as last frozen}, without the users whose members have changed since"""
    frozen: PendingGroup | None = None


class PendingWork:
    """All pending and wanted allocations of one pool."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[bytes, _StoredGroup] = {}
        self._shapes: dict[bytes, tuple[AllocationFact, Resources]] = {}
        self._of_job: dict[JobKey, set[str]] = {}
        self._jobs: Mapping[JobKey, JobFact] = {}
        self._aging = 0.0
        self._user_queues: frozenset[str] = frozenset()
        """queues whose users take turns"""
        self._timers: list[tuple[float, str]] = []
        """(time at which the group or the order of `uid` changes by itself, uid)"""
        self._frozen: tuple[PendingGroup, ...] | None = None
        self._evicted: dict[str, AllocationFact] = {}
        """{uid: fact} of pending work that was evicted for other work before"""

    def put(self, fact: AllocationFact, now: float) -> None:
        """Add pending work, or replace it with its changed fact."""
        self.drop(fact.uid)
        if not fact.is_wanted:
            return
        job = self._jobs.get((fact.namespace, fact.job)) if fact.job else None
        shape = _encode((fact.roles, fact.minimum, fact.avoid_nodes, fact.flavors, fact.topology))
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = (fact, smallest_demand(fact))
        elif fact.roles is not known[0].roles:
            # Equal shapes share one tuple of role objects, so that what is computed for a role is computed once.
            fact = msgspec.structs.replace(fact, roles=known[0].roles)
        key = _group_key(fact, job, shape, now)
        order = work_key(fact, job, self._aging, now)
        self._entries[fact.uid] = _Entry(key, order, fact)
        if fact.evictions:
            self._evicted[fact.uid] = fact
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _StoredGroup(shape, known[1], MemberList())
        group.members.add((order, fact))
        if fact.queue in self._user_queues:
            group.users.setdefault(fact.user, MemberList()).add((order, fact))
        self._changed(group, fact.user)
        if fact.job:
            self._of_job.setdefault((fact.namespace, fact.job), set()).add(fact.uid)
        for at in self._changes_of(fact, now):
            heapq.heappush(self._timers, (at, fact.uid))

    def drop(self, uid: str) -> None:
        """Remove an allocation that is not pending or not wanted any more."""
        entry = self._entries.pop(uid, None)
        self._evicted.pop(uid, None)
        if entry is None:
            return
        group = self._groups[entry.group]
        fact = entry.fact
        group.members.remove(entry.order)
        if (own := group.users.get(fact.user)) is not None:
            own.remove(entry.order)
            if not own:
                del group.users[fact.user]
        self._changed(group, fact.user)
        if not group.members:
            del self._groups[entry.group]
        if fact.job:
            of_job = self._of_job[fact.namespace, fact.job]
            of_job.discard(uid)
            if not of_job:
                del self._of_job[fact.namespace, fact.job]

    def set_jobs(self, jobs: Mapping[JobKey, JobFact], now: float) -> None:
        """Set all jobs; allocations of changed jobs are put again."""
        before, self._jobs = self._jobs, jobs
        for key in before.keys() | jobs.keys():
            if before.get(key) != jobs.get(key):
                for uid in sorted(self._of_job.get(key, ())):
                    self.put(self._entries[uid].fact, now)

    def set_aging(self, aging: float, now: float) -> None:
        """Set the seconds of waiting after which an allocation comes before all younger ones; 0 for never."""
        if aging != self._aging:
            self._aging = aging
            for entry in list(self._entries.values()):
                self.put(entry.fact, now)

    def set_user_queues(self, queues: frozenset[str], now: float) -> None:
        """Set the queues whose users take turns."""
        if queues != self._user_queues:
            changed = [entry.fact for entry in self._entries.values() if entry.fact.queue in queues ^ self._user_queues]
            for fact in changed:
                self.drop(fact.uid)
            self._user_queues = queues
            for fact in changed:
                self.put(fact, now)

    def next_change(self) -> float | None:
        """Return when the order or a gate of pending work changes by itself, after the time of the last `groups`.

        The real change may be later than that, never earlier. None when no change is expected.
        """
        while self._timers and self._timers[0][1] not in self._entries:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def groups(self, now: float) -> tuple[PendingGroup, ...]:
        """Return the groups, in the order of their keys."""
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
        """Return pending work that was evicted for other work before."""
        return self._evicted.values()

    def get(self, uid: str) -> AllocationFact | None:
        """Return the fact of an allocation; None when it is not pending."""
        entry = self._entries.get(uid)
        return entry.fact if entry else None

    def group_of(self, uid: str) -> bytes | None:
        """Return the key of the allocation's group; None when it is not pending."""
        entry = self._entries.get(uid)
        return entry.group if entry else None

    def order_of(self, uid: str) -> WorkKey | None:
        """Return the allocation's key in the order; None when it is not pending."""
        entry = self._entries.get(uid)
        return entry.order if entry else None

    def __len__(self) -> int:
        return len(self._entries)

    def _changes_of(self, fact: AllocationFact, now: float) -> list[float]:
        """Return the times after `now` at which its group or its order changes by itself."""
        return [at for at in (fact.not_before, ages_at(fact, self._aging)) if at is not None and at > now]

    def _forget_timers(self, now: float) -> None:
        """Remove the timers of work that is not pending any more or was put twice; only when there are too many."""
        if len(self._timers) > 3 * len(self._entries) + 64:
            facts = [entry.fact for entry in self._entries.values()]
            self._timers = [(at, fact.uid) for fact in facts for at in self._changes_of(fact, now)]
            heapq.heapify(self._timers)

    def _changed(self, group: _StoredGroup, user: str) -> None:
        group.frozen = None
        group.frozen_users.pop(user, None)
        self._frozen = None

    def _forget_shapes(self) -> None:
        """Remove shapes that no group uses any more; only when there are too many."""
        if len(self._shapes) > 2 * len(self._groups) + 64:
            used = {group.shape for group in self._groups.values()}
            self._shapes = {shape: known for shape, known in self._shapes.items() if shape in used}


def _freeze(key: bytes, group: _StoredGroup) -> PendingGroup:
    if group.frozen is None:
        for user in group.users.keys() - group.frozen_users.keys():
            group.frozen_users[user] = group.users[user].freeze()
        group.frozen = PendingGroup(
            key=key,
            shape=group.shape,
            demand=group.demand,
            members=group.members.freeze(),
            users=dict(group.frozen_users),
        )
    return group.frozen


def _group_key(fact: AllocationFact, job: JobFact | None, shape: bytes, now: float) -> bytes:
    """Return a key that is equal for work that is alike, whatever its user.

    The job is part of the key when it limits its work or does not exist; a backoff is part of it until it ends.
    """
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
