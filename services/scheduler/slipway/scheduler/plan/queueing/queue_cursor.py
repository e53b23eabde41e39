"""The queue cursors of a tick: each queue's pending work in order, and how far the tick has processed it.

A cursor walks over groups (`pending.py`): a reason that blocks one member blocks its whole group. So a long queue costs
as much as it has groups, not members. Where the users of a queue take turns, each group has one user, and the user's
past use is compared right after the priority.

Invariant: of each group the tick has processed a prefix; the other members wait.
"""

import heapq
from collections.abc import Iterable

from slipway.model.facts import AllocationFact, QueueFact
from slipway.model.position import WorkKey
from slipway.model.reasons import Gate
from slipway.scheduler.plan.queueing.admission_checks import closed_gate
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state.members import Member, Members
from slipway.scheduler.plan.state.past_use import UserTurns, user_queues
from slipway.scheduler.plan.state.pending import PendingGroup
from slipway.scheduler.plan.state.plan_types import Explanation
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

STRICT = "StrictFIFO"

LineKey = tuple[int, int, int, WorkKey]
"""(first two parts of the order, what the user has used, the order); ascending"""

NOT_YET = Explanation(
    gate=Gate.NOT_YET_CONSIDERED, message="not looked at yet: this tick has made all the decisions that it may"
)


def behind_head(queue: str, head: AllocationFact) -> Explanation:
    """Return the explanation BehindQueueHead, for a queue with strict order."""
    return Explanation(
        gate=Gate.BEHIND_QUEUE_HEAD, message=f"queue {queue} keeps strict order and {head.key} is before it and waits"
    )


class Walk:
    """One group in its queue: the members before `at` are processed, the others wait for `why`, once that is known."""

    def __init__(self, group: PendingGroup) -> None:
        self.group = group
        self.at = 0
        self.why: Explanation | None = None
        self.current = group.sample
        """the member at `at`, if there is one"""

    def waiting(self) -> Members:
        """Return the members that wait."""
        return self.group.members.after(self.at)

    def first(self, most: int) -> tuple[Member, ...]:
        """Return the first `most` members that wait."""
        members, at = self.group.members, self.at
        begin = members.blocks[0]
        is_enough = at + most <= len(begin) or len(members.blocks) == 1
        return begin[at : at + most] if is_enough else members[at : at + most]


class QueueCursor:
    """One queue's pending work, in order.

    `settled` are uids that were decided before the walk; the cursor skips them. With `turns`, the queue's users take
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
        self.walks = [Walk(group) for group in groups]
        self.settled = settled
        self.head: AllocationFact | None = None
        """the first blocked allocation that may be the head"""
        self.is_closed = False
        """whether no other work may pass the head"""
        self._heap: list[tuple[LineKey, int]] = []
        self._alike: dict[bytes, list[Walk]] = {}
        """{`alike` key: the groups that differ only in their users}; filled where users take turns"""
        for number, walk in enumerate(self.walks):
            if turns is not None and not walk.group.is_leaving:
                self._alike.setdefault(walk.group.alike, []).append(walk)
            if (entry := self._entry(number)) is not None:
                self._heap.append(entry)
        heapq.heapify(self._heap)

    def next(self) -> tuple[AllocationFact, PendingGroup] | None:
        """Return the next allocation to try and its group; None at the end, or behind a head that no work may pass."""
        if self.is_closed:
            return None
        if self._turns is not None:
            self._pass_blocked()
        if not self._heap:
            return None
        walk = self.walks[self._top()]
        return walk.current, walk.group

    def upcoming(self, most: int) -> list[AllocationFact]:
        """Return the first allocation of each of the next `most` groups, in order."""
        return [self.walks[number].current for _, number in heapq.nsmallest(most, self._current())]

    def upcoming_of_groups(self, most: int) -> list[tuple[AllocationFact, PendingGroup]]:
        """Return the same allocations, each with its group."""
        walks = [self.walks[number] for _, number in heapq.nsmallest(most, self._current())]
        return [(walk.current, walk.group) for walk in walks]

    def admit(self) -> None:
        """Record that the next allocation was admitted."""
        number = self._top()
        heapq.heappop(self._heap)
        walk = self.walks[number]
        if self._turns is not None:
            self._turns.charge(walk.current.user, walk.group.demand.gpu_units())
        walk.at += 1
        self._push(number)

    def block(self, why: Explanation, *, is_head: bool) -> bool:
        """Record that the next allocation, and all that is alike, is blocked; return whether it is the head now."""
        number = self._top()
        heapq.heappop(self._heap)
        walk = self.walks[number]
        walk.why = why
        for each in () if walk.group.is_leaving else self._alike.get(walk.group.alike, ()):
            each.why = why
        if self.head is not None or not is_head:
            return False
        self.head = walk.current
        self.is_closed = self.queue.ordering == STRICT
        return True

    def reopen(self) -> None:
        """Let the tick try blocked allocations again, the head first; those that can never start stay blocked."""
        self.head, self.is_closed = None, False
        if self._turns is not None:
            self._heap = [entry for entry in self._heap if self.walks[entry[1]].why is None]
            heapq.heapify(self._heap)
        for number, walk in enumerate(self.walks):
            if walk.why is not None and not walk.why.is_never:
                walk.why = None
                self._push(number)

    def explanation(self, walk: Walk, fact: AllocationFact) -> Explanation:
        """Return why `fact`, a waiting member of `walk`, waits."""
        head = self.head if self.is_closed else None
        if walk.why is not None and (head is None or fact.uid == head.uid or not self._is_of_head(walk)):
            return walk.why
        return NOT_YET if head is None else behind_head(self.queue.name, head)

    def _is_of_head(self, walk: Walk) -> bool:
        return self.head is not None and walk.current.uid == self.head.uid and walk.at < len(walk.group.members)

    def waiting(self) -> Iterable[tuple[WorkKey, AllocationFact, Walk]]:
        """Yield all waiting allocations, in order."""
        parts = [
            [(self.line_key(order, fact.user), number) for order, fact in walk.waiting()]
            for number, walk in enumerate(self.walks)
        ]
        at = [walk.at for walk in self.walks]
        for key, number in heapq.merge(*parts):
            walk = self.walks[number]
            fact = walk.group.members[at[number]][1]
            at[number] += 1
            if fact.uid not in self.settled:
                yield key[3], fact, walk

    def line_key(self, order: WorkKey, user: str) -> LineKey:
        """Return the current key of `user`'s work with the order `order`."""
        return (order[0], order[1], self._turns.level(user) if self._turns is not None else 0, order)

    def ahead(self, order: WorkKey, user: str) -> int:
        """Return how many allocations wait before `user`'s work with the order `order`."""
        mine = self.line_key(order, user)
        before = sum(max(0, self._index(walk.group, mine) - walk.at) for walk in self.walks)
        return before if not self.settled else before - sum(key < mine for key in self._settled_keys())

    def _index(self, group: PendingGroup, mine: LineKey) -> int:
        """Return how many members of a group are before `mine`."""
        theirs = self.line_key(mine[3], group.sample.user)
        if theirs == mine:
            return group.index(mine[3])
        return group.members.before(mine[:2], is_behind=theirs < mine)

    def _settled_keys(self) -> list[LineKey]:
        waiting = (member for walk in self.walks for member in walk.waiting())
        return [self.line_key(order, fact.user) for order, fact in waiting if fact.uid in self.settled]

    def _top(self) -> int:
        """Return the next walk. A user's use only grows in a plan, so an entry whose key has grown moves back."""
        while self._turns is not None:
            self._pass_blocked()
            key, number = self._heap[0]
            now = self.line_key(key[3], self.walks[number].current.user)
            if now == key:
                break
            heapq.heapreplace(self._heap, (now, number))
        return self._heap[0][1]

    def _current(self) -> list[tuple[LineKey, int]]:
        """Return all entries that may be next, with their current keys."""
        if self._turns is None:
            return self._heap
        walks = self.walks
        waiting = [(key, number) for key, number in self._heap if walks[number].why is None]
        return [(self.line_key(key[3], walks[number].current.user), number) for key, number in waiting]

    def _pass_blocked(self) -> None:
        """Remove entries from the top that were blocked together with a group that is alike."""
        while self._heap and self.walks[self._heap[0][1]].why is not None:
            heapq.heappop(self._heap)

    def _push(self, number: int) -> None:
        if (entry := self._entry(number)) is not None:
            heapq.heappush(self._heap, entry)

    def _entry(self, number: int) -> tuple[LineKey, int] | None:
        """Return the entry of the group's next member that is not settled; None when there is none."""
        walk = self.walks[number]
        while found := walk.first(1):
            order, walk.current = found[0]
            if walk.current.uid not in self.settled:
                return self.line_key(order, walk.current.user), number
            walk.at += 1
        return None


def line_up(
    snapshot: PoolSnapshot,
    tree: QueueTree,
    now: float,
    settled: frozenset[str] = frozenset(),
    leaving: Iterable[PendingGroup] = (),
) -> tuple[dict[str, QueueCursor], list[Walk]]:
    """Return ({queue: its cursor}, the groups that a closed gate blocks, which are in no cursor).

    `leaving`: groups that queue although they are not pending yet.
    """
    open_groups: dict[str, list[PendingGroup]] = {}
    shut: list[Walk] = []
    gates: dict[bytes, Explanation | None] = {}
    for group in (*snapshot.groups, *leaving):
        # Groups that differ only in their users have the same gate.
        if group.is_leaving or group.alike not in gates:
            gates[group.alike] = closed_gate(group.sample, snapshot, tree, now)
        closed = gates[group.alike]
        if closed is None:
            open_groups.setdefault(group.sample.queue, []).append(group)
        else:
            walk = Walk(group)
            walk.why = closed
            shut.append(walk)
    past = snapshot.past
    turns = {name: UserTurns(past, name) for name in user_queues(snapshot.pool, snapshot.queues)} if past else {}
    lines = {
        name: QueueCursor(tree.queue(name) or QueueFact(name=name), open_groups[name], settled, turns.get(name))
        for name in sorted(open_groups)
    }
    return lines, shut
