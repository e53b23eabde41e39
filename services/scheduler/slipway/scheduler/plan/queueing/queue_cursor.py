"""The lines of a tick: each queue's pending work in order, and how far the tick has got with it.

A line is walked over its groups (`pending.py`): what is blocked, blocks its whole group, so that a long queue costs
what it has groups, not what it has members. Where the users of a queue take turns, each group is of one user, and what
its user has used comes right behind the priority.

Invariant: of each group a prefix has been dealt with, the rest waits.
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
"""(the first two of the order, what the user has used, the order): ascending in a line"""

NOT_YET = Explanation(
    gate=Gate.NOT_YET_CONSIDERED, message="not looked at yet: this tick has made all the decisions that it may"
)


def behind_head(queue: str, head: AllocationFact) -> Explanation:
    """BehindQueueHead: queue keeps strict order."""
    return Explanation(
        gate=Gate.BEHIND_QUEUE_HEAD, message=f"queue {queue} keeps strict order and {head.key} is before it and waits"
    )


class Walk:
    """One group in its line: members before `at` are dealt with, the rest waits for `why`, once that is known."""

    def __init__(self, group: PendingGroup) -> None:
        self.group = group
        self.at = 0
        self.why: Explanation | None = None
        self.current = group.sample
        """the member at `at`, while there is one"""

    def waiting(self) -> Members:
        """The members that wait."""
        return self.group.members.after(self.at)

    def first(self, most: int) -> tuple[Member, ...]:
        """The first of those that wait."""
        members, at = self.group.members, self.at
        begin = members.blocks[0]
        is_enough = at + most <= len(begin) or len(members.blocks) == 1
        return begin[at : at + most] if is_enough else members[at : at + most]


class QueueCursor:
    """One queue's pending work. `settled` (uids) was dealt with before the line was walked, and is passed over. With
    `turns` its users take turns."""

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
        """the first that was blocked"""
        self.is_closed = False
        """nothing may pass the head"""
        self._heap: list[tuple[LineKey, int]] = []
        self._alike: dict[bytes, list[Walk]] = {}
        """the groups that differ only in their users, where users take turns"""
        for number, walk in enumerate(self.walks):
            if turns is not None and not walk.group.is_leaving:
                self._alike.setdefault(walk.group.alike, []).append(walk)
            if (entry := self._entry(number)) is not None:
                self._heap.append(entry)
        heapq.heapify(self._heap)

    def next(self) -> tuple[AllocationFact, PendingGroup] | None:
        """The next to be looked at, and its group; None at the end or behind a head that nothing may pass."""
        if self.is_closed:
            return None
        if self._turns is not None:
            self._pass_blocked()
        if not self._heap:
            return None
        walk = self.walks[self._top()]
        return walk.current, walk.group

    def upcoming(self, most: int) -> list[AllocationFact]:
        """The first of each of the next groups, in order, at most `most`."""
        return [self.walks[number].current for _, number in heapq.nsmallest(most, self._current())]

    def upcoming_of_groups(self, most: int) -> list[tuple[AllocationFact, PendingGroup]]:
        """The same, each with its group."""
        walks = [self.walks[number] for _, number in heapq.nsmallest(most, self._current())]
        return [(walk.current, walk.group) for walk in walks]

    def admit(self) -> None:
        """The next has been admitted."""
        number = self._top()
        heapq.heappop(self._heap)
        walk = self.walks[number]
        if self._turns is not None:
            self._turns.charge(walk.current.user, walk.group.demand.gpu_units())
        walk.at += 1
        self._push(number)

    def block(self, why: Explanation, *, is_head: bool) -> bool:
        """The next is blocked, and with it all that is alike; answers whether it is the head of the line now."""
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
        """What was blocked is looked at again, the head first."""
        self.head, self.is_closed = None, False
        if self._turns is not None:
            self._heap = [entry for entry in self._heap if self.walks[entry[1]].why is None]
            heapq.heapify(self._heap)
        for number, walk in enumerate(self.walks):
            if walk.why is not None and not walk.why.is_never:
                walk.why = None
                self._push(number)

    def explanation(self, walk: Walk, fact: AllocationFact) -> Explanation:
        """Why `fact`, a waiting member of `walk`, waits."""
        head = self.head if self.is_closed else None
        if walk.why is not None and (head is None or fact.uid == head.uid or not self._is_of_head(walk)):
            return walk.why
        return NOT_YET if head is None else behind_head(self.queue.name, head)

    def _is_of_head(self, walk: Walk) -> bool:
        return self.head is not None and walk.current.uid == self.head.uid and walk.at < len(walk.group.members)

    def waiting(self) -> Iterable[tuple[WorkKey, AllocationFact, Walk]]:
        """All that wait, in order."""
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
        """Where work of `user` that stands at `order` has its place in the line, as things stand."""
        return (order[0], order[1], self._turns.level(user) if self._turns is not None else 0, order)

    def ahead(self, order: WorkKey, user: str) -> int:
        """How many wait before work of `user` that stands at `order`."""
        mine = self.line_key(order, user)
        before = sum(max(0, self._index(walk.group, mine) - walk.at) for walk in self.walks)
        return before if not self.settled else before - sum(key < mine for key in self._settled_keys())

    def _index(self, group: PendingGroup, mine: LineKey) -> int:
        """How many members of a group stand before `mine`."""
        theirs = self.line_key(mine[3], group.sample.user)
        if theirs == mine:
            return group.index(mine[3])
        return group.members.before(mine[:2], is_behind=theirs < mine)

    def _settled_keys(self) -> list[LineKey]:
        waiting = (member for walk in self.walks for member in walk.waiting())
        return [self.line_key(order, fact.user) for order, fact in waiting if fact.uid in self.settled]

    def _top(self) -> int:
        """The walk that is next. What a user has used only grows in a plan: a key that has grown moves back."""
        while self._turns is not None:
            self._pass_blocked()
            key, number = self._heap[0]
            now = self.line_key(key[3], self.walks[number].current.user)
            if now == key:
                break
            heapq.heapreplace(self._heap, (now, number))
        return self._heap[0][1]

    def _current(self) -> list[tuple[LineKey, int]]:
        """All that may be next, with their keys as things stand."""
        if self._turns is None:
            return self._heap
        walks = self.walks
        waiting = [(key, number) for key, number in self._heap if walks[number].why is None]
        return [(self.line_key(key[3], walks[number].current.user), number) for key, number in waiting]

    def _pass_blocked(self) -> None:
        """Take those from the top that were blocked with another of their kind."""
        while self._heap and self.walks[self._heap[0][1]].why is not None:
            heapq.heappop(self._heap)

    def _push(self, number: int) -> None:
        if (entry := self._entry(number)) is not None:
            heapq.heappush(self._heap, entry)

    def _entry(self, number: int) -> tuple[LineKey, int] | None:
        """Where the next member of a group stands that is to be looked at; None when there is none."""
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
    """({queue: its line}, the groups that stand at a closed gate and in no line). `leaving`: groups that stand in line
    although they do not wait yet."""
    open_groups: dict[str, list[PendingGroup]] = {}
    shut: list[Walk] = []
    gates: dict[bytes, Explanation | None] = {}
    for group in (*snapshot.groups, *leaving):
        # What is alike but for its users stands at the same gate.
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
