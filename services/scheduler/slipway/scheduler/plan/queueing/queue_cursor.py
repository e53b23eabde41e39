"""The queue cursors of a tick: each queue's pending work in order, and how far the tick has processed it.

A cursor walks over groups (`pending.py`): a reason that blocks one member blocks its whole group. So a long queue costs
as much as it has groups, not members. Where the users of a queue take turns, the user's past use is compared right
after the priority.

Invariant: of each group, or of each user's members of it, the tick has processed a prefix; the other members wait.

Which queue's head is next is decided by a tournament through the queue tree, level by level. At each inner queue the
heads of its children compete. The winner is the head whose branch would be left least above its due after that head's
admission; it continues to the next level. So what one team of a department leaves unused is given to its other teams
before it is given to another department.

Equal shares are decided by `pending.head_key`, which depends on the head and its own queue. Where the pool counts past
use, the past use comes right after the priority of the head's queue: the branch with less past use by weight wins. In a
tree without inner queues the result is the plain order by share. The tournament does not know why a head is blocked.

Costs O(depth x log queues) per step: an admission changes only the branches above its queue. A queue whose use
decreases is entered again (`update`). Source: Kueue's fair-sharing tournament, Volcano's hdrf.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence

from slipway.model.facts import AllocationFact, QueueFact
from slipway.model.position import WorkKey
from slipway.model.reasons import Gate
from slipway.scheduler.plan.queueing.admission_checks import closed_gate
from slipway.scheduler.plan.queueing.queue_tree import ROOT, Due, QueueTree
from slipway.scheduler.plan.state.past_use import UserTurns, user_queues
from slipway.scheduler.plan.state.pending import HeadKey, Member, Members, PendingGroup
from slipway.scheduler.plan.state.plan_types import Explanation
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

STRICT = "StrictFIFO"

LineKey = tuple[int, int, int, WorkKey]
"""(first two parts of the work key, the user's level of past use or 0, the whole work key); ascending"""

NOT_YET = Explanation(
    gate=Gate.NOT_YET_CONSIDERED, message="not considered yet: this tick has reached its limit of decisions"
)


def behind_head(queue: str, head: AllocationFact) -> Explanation:
    """Return the explanation BehindQueueHead, for a queue with strict order."""
    return Explanation(
        gate=Gate.BEHIND_QUEUE_HEAD, message=f"queue {queue} has strict order, and {head.key} waits before it"
    )


class GroupCursor:
    """One group in its queue. A prefix of its members is processed; the others wait, for `why` once that is known."""

    def __init__(self, group: PendingGroup) -> None:
        self.group = group
        self.why: Explanation | None = None
        self.processed: int = 0
        """number of members that are processed"""
        self.member: Member = group.members.blocks[0][0]
        """the next member, if one waits"""

    @property
    def current(self) -> AllocationFact:
        """The next member, if one waits."""
        return self.member[1]

    @property
    def is_done(self) -> bool:
        """Whether no member waits."""
        return self.processed >= len(self.group.members)

    def next_key(self, settled: frozenset[str]) -> LineKey | None:
        """Move to the next member that is not settled; return its key, or None when there is none."""
        while found := self.first(1):
            self.member = found[0]
            order, fact = self.member
            if fact.uid not in settled:
                return (order[0], order[1], 0, order)
            self.processed += 1
        return None

    def process(self) -> None:
        """Record that the next member is processed."""
        self.processed += 1

    def waiting(self) -> Members:
        """Return the members that wait, in the order of their work keys."""
        return self.group.members.after(self.processed)

    def others(self) -> Members:
        """Return the members that wait, without the next one."""
        return self.group.members.after(self.processed + 1)

    def first(self, most: int) -> Sequence[Member]:
        """Return the first `most` members that wait, in the order of the queue."""
        members, at = self.group.members, self.processed
        begin = members.blocks[0]
        is_enough = at + most <= len(begin) or len(members.blocks) == 1
        return begin[at : at + most] if is_enough else members[at : at + most]

    def is_waiting(self, fact: AllocationFact, order: WorkKey) -> bool:
        """Whether `fact`, the member of the group with the key `order`, waits."""
        del fact
        return self.group.members.index_of(order) >= self.processed

    def before(self, mine: LineKey) -> int:
        """Return how many waiting members are before the key `mine`."""
        return max(0, self.group.members.index_of(mine[3]) - self.processed)

    def keyed(self) -> Iterable[tuple[LineKey, AllocationFact]]:
        """Return the members that wait, in the order of the queue, with their keys."""
        return [((order[0], order[1], 0, order), fact) for order, fact in self.waiting()]


class UserTurnsCursor(GroupCursor):
    """A cursor over a group whose users take turns: of each user's members a prefix is processed."""

    def __init__(self, group: PendingGroup, turns: UserTurns) -> None:
        super().__init__(group)
        self._turns = turns
        self._at: dict[str, int] = {}
        """{user: number of its members that are processed}; users without such members are absent"""
        self._users = group.users
        """{user: its members}, without the users whose members are all processed"""
        blocks = group.members.blocks
        self._is_by_level = blocks[0][0][0][:2] == blocks[-1][-1][0][:2]
        """whether the level of a user decides between members of two users; false when some members have aged"""
        self._waiting: tuple[int, Members] | None = None
        self._first: tuple[tuple[int, int, int], Sequence[Member]] | None = None
        """(the last call of `first`, what it returned)"""

    def next_key(self, settled: frozenset[str]) -> LineKey | None:
        """Move to the next member that is not settled; return its current key, or None when there is none."""
        first: LineKey | None = None
        for level, user in self._by_level():
            if first is not None and level > first[2] and self._is_by_level:
                break
            member = self._next_of(user)
            while member is not None and member[1].uid in settled:
                self._step(user)
                member = self._next_of(user)
            if member is None:
                continue
            order = member[0]
            key = (order[0], order[1], level, order)
            if first is None or key < first:
                first, self.member = key, member
        return first

    def process(self) -> None:
        """Record that the next member is processed."""
        self._step(self.current.user)

    def waiting(self) -> Members:
        """Return the members that wait, in the order of their work keys."""
        if not self.processed:
            return self.group.members
        if self._waiting is None or self._waiting[0] != self.processed:
            gone = {fact.uid for user, at in self._at.items() for _, fact in self.group.users[user][:at]}
            left = tuple(member for member in self.group.members if member[1].uid not in gone)
            self._waiting = (self.processed, Members((left,) if left else ()))
        return self._waiting[1]

    def others(self) -> Members:
        """Return the members that wait, without the next one."""
        left = tuple(member for member in self.waiting() if member[1].uid != self.current.uid)
        return Members((left,) if left else ())

    def first(self, most: int) -> Sequence[Member]:
        """Return the first `most` members that wait, in the order of the queue; a repeated call searches only once."""
        call = (most, self.processed, self._turns.charges)
        if self._first is None or self._first[0] != call:
            self._first = (call, self._find_first(most))
        return self._first[1]

    def _find_first(self, most: int) -> Sequence[Member]:
        found: list[tuple[LineKey, Member]] = []
        last: int | None = None
        for level, user in self._by_level():
            if last is not None and level > last and self._is_by_level:
                break
            members, at = self._users[user], self._at.get(user, 0)
            begin = members.blocks[0]
            some = members[at : at + most] if at or len(members.blocks) > 1 else begin[:most]
            found += [((order[0], order[1], level, order), (order, fact)) for order, fact in some]
            if last is None and len(found) >= most:
                last = level
        return [member for _, member in heapq.nsmallest(most, found)]

    def is_waiting(self, fact: AllocationFact, order: WorkKey) -> bool:
        """Whether `fact`, the member of the group with the key `order`, waits."""
        return self.group.users[fact.user].index_of(order) >= self._at.get(fact.user, 0)

    def before(self, mine: LineKey) -> int:
        """Return how many waiting members are before the key `mine`."""
        count = 0
        for user, members in self._users.items():
            level = self._turns[user]
            if level == mine[2]:
                index = members.index_of(mine[3])
            else:
                index = members.before(mine[:2], is_behind=level < mine[2])
            count += max(0, index - self._at.get(user, 0))
        return count

    def keyed(self) -> Iterable[tuple[LineKey, AllocationFact]]:
        """Return the members that wait, in the order of the queue, with their keys."""
        return sorted(((self._key(member), member[1]) for member in self.waiting()), key=lambda each: each[0])

    def _key(self, member: Member) -> LineKey:
        order, fact = member
        return (order[0], order[1], self._turns[fact.user], order)

    def _next_of(self, user: str) -> Member | None:
        """Return the next member of a user; None when all are processed."""
        members, at = self._users.get(user), self._at.get(user, 0)
        if members is None:
            return None
        return members[at] if at else members.blocks[0][0]

    def _by_level(self) -> Iterable[tuple[int, str]]:
        """Return (level, user) of the users of the group, ascending."""
        users, order = self._users, self._turns.order
        if len(users) ** 2 < len(order):
            return sorted((self._turns[user], user) for user in users)
        return (each for each in order if each[1] in users)

    def _step(self, user: str) -> None:
        self.processed += 1
        at = self._at[user] = self._at.get(user, 0) + 1
        if at >= len(self._users[user]):
            self._users = {name: members for name, members in self._users.items() if name != user}


class QueueCursor:
    """One queue's pending work, in order.

    `settled` are uids that were decided before the tick; the cursor skips them. With `turns`, the queue's users take
    turns.
    """

    def __init__(
        self,
        queue: QueueFact,
        groups: Iterable[PendingGroup],
        settled: frozenset[str] = frozenset(),
        turns: UserTurns | None = None,
    ) -> None:
        self.queue = queue
        self._turns = turns
        self.group_cursors: list[GroupCursor] = [
            GroupCursor(group) if turns is None else UserTurnsCursor(group, turns) for group in groups
        ]
        self.settled = settled
        self.head: AllocationFact | None = None
        """the first blocked allocation that may be the head"""
        self.is_closed = False
        """whether no other work may pass the head"""
        keys = [(group_cursor.next_key(settled), number) for number, group_cursor in enumerate(self.group_cursors)]
        self._heap: list[tuple[LineKey, int]] = [(key, number) for key, number in keys if key is not None]
        heapq.heapify(self._heap)

    def next(self) -> tuple[AllocationFact, PendingGroup] | None:
        """Return the next allocation to try and its group; None at the end, or behind a head that no work may pass."""
        if self.is_closed or not self._heap:
            return None
        group_cursor = self.group_cursors[self._top()]
        return group_cursor.current, group_cursor.group

    def upcoming(self, most: int) -> list[AllocationFact]:
        """Return the first allocation of each of the next `most` groups, in order."""
        return [self.group_cursors[number].current for _, number in heapq.nsmallest(most, self._current())]

    def upcoming_of_groups(self, most: int) -> list[tuple[AllocationFact, PendingGroup]]:
        """Return the same allocations, each with its group."""
        group_cursors = [self.group_cursors[number] for _, number in heapq.nsmallest(most, self._current())]
        return [(group_cursor.current, group_cursor.group) for group_cursor in group_cursors]

    def admit(self) -> None:
        """Record that the next allocation was admitted."""
        number = self._top()
        heapq.heappop(self._heap)
        group_cursor = self.group_cursors[number]
        if self._turns is not None:
            self._turns.charge(group_cursor.current.user, group_cursor.group.demand.gpu_units())
        group_cursor.process()
        self._push(number)

    def block(self, why: Explanation, *, is_head: bool) -> bool:
        """Record that the next allocation, and all that is alike, is blocked; return whether it is the head now."""
        number = self._top()
        heapq.heappop(self._heap)
        group_cursor = self.group_cursors[number]
        group_cursor.why = why
        if self.head is not None or not is_head:
            return False
        self.head = group_cursor.current
        self.is_closed = self.queue.ordering == STRICT
        return True

    def reopen(self) -> None:
        """Let the tick try blocked allocations again, the head first; those that can never start stay blocked."""
        self.head, self.is_closed = None, False
        for number, group_cursor in enumerate(self.group_cursors):
            if group_cursor.why is not None and not group_cursor.why.is_never:
                group_cursor.why = None
                self._push(number)

    def explanation(self, group_cursor: GroupCursor, fact: AllocationFact) -> Explanation:
        """Return why `fact`, a waiting member of `group_cursor`, waits."""
        head = self.head if self.is_closed else None
        if group_cursor.why is not None and (head is None or fact.uid == head.uid or not self.is_of_head(group_cursor)):
            return group_cursor.why
        return NOT_YET if head is None else behind_head(self.queue.name, head)

    def is_of_head(self, group_cursor: GroupCursor) -> bool:
        """Whether the next member of `group_cursor` is the head of the queue."""
        return self.head is not None and not group_cursor.is_done and group_cursor.current.uid == self.head.uid

    def waiting(self) -> Iterable[tuple[WorkKey, AllocationFact, GroupCursor]]:
        """Yield all waiting allocations, in order."""
        parts = [
            [(key, number, fact) for key, fact in group_cursor.keyed()]
            for number, group_cursor in enumerate(self.group_cursors)
        ]
        for key, number, fact in heapq.merge(*parts):
            if fact.uid not in self.settled:
                yield key[3], fact, self.group_cursors[number]

    def current_key(self, order: WorkKey, user: str) -> LineKey:
        """Return the current key of `user`'s work with the order `order`."""
        return (order[0], order[1], self._turns[user] if self._turns is not None else 0, order)

    def ahead(self, order: WorkKey, user: str) -> int:
        """Return how many allocations wait before `user`'s work with the order `order`."""
        mine = self.current_key(order, user)
        before = sum(group_cursor.before(mine) for group_cursor in self.group_cursors)
        return before if not self.settled else before - sum(key < mine for key in self._settled_keys())

    def _settled_keys(self) -> list[LineKey]:
        waiting = (member for group_cursor in self.group_cursors for member in group_cursor.waiting())
        return [self.current_key(order, fact.user) for order, fact in waiting if fact.uid in self.settled]

    def _top(self) -> int:
        """Return the number of the next group cursor. Keys only grow in a plan; an entry whose key grew moves back."""
        while self._turns is not None:
            key, number = self._heap[0]
            if self._turns[self.group_cursors[number].current.user] == key[2]:
                break
            heapq.heappop(self._heap)
            self._push(number)
        return self._heap[0][1]

    def _current(self) -> list[tuple[LineKey, int]]:
        """Return all entries that may be next, with their current keys."""
        if self._turns is None:
            return self._heap
        keys = [(self.group_cursors[number].next_key(self.settled), number) for _, number in self._heap]
        return [(key, number) for key, number in keys if key is not None]

    def _push(self, number: int) -> None:
        key = self.group_cursors[number].next_key(self.settled)
        if key is not None:
            heapq.heappush(self._heap, (key, number))


def build_cursors(
    snapshot: PoolSnapshot,
    tree: QueueTree,
    now: float,
    settled: frozenset[str] = frozenset(),
    leaving: Iterable[PendingGroup] = (),
) -> tuple[dict[str, QueueCursor], list[GroupCursor]]:
    """Return ({queue: its cursor}, the groups that a closed gate blocks, which are in no cursor).

    `leaving`: groups that queue although they are not pending yet.
    """
    open_groups: dict[str, list[PendingGroup]] = {}
    closed_groups: list[GroupCursor] = []
    for group in (*snapshot.groups, *leaving):
        closed = closed_gate(group.sample, snapshot, tree, now)
        if closed is None:
            open_groups.setdefault(group.sample.queue, []).append(group)
        else:
            group_cursor = GroupCursor(group)
            group_cursor.why = closed
            closed_groups.append(group_cursor)
    past = snapshot.past
    turns: dict[str, UserTurns] = {}
    if past is not None:
        for name in user_queues(snapshot.pool, snapshot.queues) & open_groups.keys():
            turns[name] = UserTurns(past, name, set[str]().union(*(group.users for group in open_groups[name])))
    cursors = {
        name: QueueCursor(tree.queue(name) or QueueFact(name=name), open_groups[name], settled, turns.get(name))
        for name in sorted(open_groups)
    }
    return cursors, closed_groups


_Entry = tuple[Due, int, int, HeadKey, str, int]
"""(share, first part of the head's key, past use of the child, key of the head, child, version)

Only the newest entry of a child is valid.
"""


class FairShareTournament:
    """The heads of all queues of one tick, and which of them is next."""

    def __init__(self, tree: QueueTree) -> None:
        self._tree = tree
        self._heads: dict[str, tuple[Mapping[str, int], HeadKey]] = {}
        """{leaf queue: (what its head requests, the head's key)}"""
        self._entries: dict[str, list[_Entry]] = {ROOT: []}
        """{inner queue: the entries of its children}"""
        self._versions: dict[str, int] = {}
        self._stale: str | None = None
        """the queue whose head was taken last; its use since then is not yet in the shares above it"""

    def enter(self, name: str, demand: Mapping[str, int], key: HeadKey) -> None:
        """Set the head of queue `name`."""
        self._heads[name] = (demand, key)
        if self._stale == name:
            self._stale = None  # the shares are updated below, with what the queue has used since `pop`
        self._settle()
        self._promote(name)

    def update(self, names: Iterable[str]) -> None:
        """Update the shares of queues whose use has decreased."""
        for name in sorted(set(names)):
            self._promote(name)

    def pop(self) -> str | None:
        """Return the queue whose head is next, which leaves until it enters again; None when none is left."""
        self._settle()
        name = ROOT
        while (top := self._top(name)) is not None:
            name = top[4]
            if name in self._heads:
                del self._heads[name]
                self._stale = name
                return name
        return None

    def _settle(self) -> None:
        stale, self._stale = self._stale, None
        if stale is not None:
            self._promote(stale)

    def _promote(self, name: str) -> None:
        """Enter the best head of `name` into the queue above it, and so on to the root."""
        while name != ROOT:
            above = self._tree.parent(name)
            version = self._versions[name] = self._versions.get(name, 0) + 1
            best = self._best(name)
            if best is not None:
                demand, key = self._heads[best]
                share, before = self._tree.shifted_share(name, demand), self._tree.used_before(name)
                entry = (share, key[0], before, key, name, version)
                heapq.heappush(self._entries.setdefault(above, []), entry)
            name = above

    def _best(self, name: str) -> str | None:
        """Return the leaf queue whose head wins within `name`; None when there is no head."""
        while name not in self._heads:
            top = self._top(name)
            if top is None:
                return None
            name = top[4]
        return name

    def _top(self, name: str) -> _Entry | None:
        entries = self._entries.get(name, [])
        while entries and entries[0][5] != self._versions[entries[0][4]]:
            heapq.heappop(entries)
        return entries[0] if entries else None
