"""The lines of a tick: each queue's pending work in order, and how far the tick has got with it."""

import msgspec

from slipway.model.facts import AllocationFact, QueueFact
from slipway.model.position import WorkKey
from slipway.model.resources import Resources
from slipway.scheduler.plan import explain, gang
from slipway.scheduler.plan.gates import closed_gate, is_wanted
from slipway.scheduler.plan.ordering import work_key
from slipway.scheduler.plan.outcome import Explanation
from slipway.scheduler.plan.quota import QueueTree
from slipway.scheduler.plan.snapshot import Snapshot
from slipway.scheduler.plan.whatif import WhatIf

STRICT = "StrictFIFO"
GangKey = tuple[int, tuple[str, ...], tuple[tuple[bytes, int, int], ...]]


class Want(msgspec.Struct, frozen=True):
    """What an allocation asks for; equal `key` means that if one has no place, neither has the other."""

    key: GangKey
    demand: Resources
    """of the smallest gang that may start"""


class Wants:
    """The wants of a tick, each demand computed once per key."""

    def __init__(self, whatif: WhatIf) -> None:
        self._whatif = whatif
        self._demands: dict[GangKey, Resources] = {}

    def of(self, fact: AllocationFact) -> Want:
        """What `fact` asks for."""
        roles = tuple((self._whatif.key_of(role), role.count, role.minimum) for role in fact.roles)
        key = (fact.minimum, fact.avoid_nodes, roles)
        demand = self._demands.get(key)
        if demand is None:
            demand = self._demands[key] = gang.smallest_demand(fact)
        return Want(key, demand)


class Line:
    """One queue's pending work; `at` is the next to be looked at."""

    def __init__(self, queue: QueueFact) -> None:
        self.queue = queue
        self.work: list[tuple[WorkKey, AllocationFact]] = []
        self.at = 0
        self.want: Want | None = None
        """of the next"""
        self.head: AllocationFact | None = None
        """the first that was blocked"""
        self.is_closed = False
        """nothing may pass the head"""

    def next(self) -> AllocationFact | None:
        """The next to be looked at; None at the end or behind a head that nothing may pass."""
        return self.work[self.at][1] if self.at < len(self.work) and not self.is_closed else None

    def block(self, fact: AllocationFact) -> bool:
        """`fact` is blocked; answers whether it is the head now."""
        if self.head is not None:
            return False
        self.head = fact
        self.is_closed = self.queue.ordering == STRICT
        return True

    def left(self) -> dict[str, Explanation]:
        """Why the tick did not get to the rest."""
        why = explain.NOT_YET
        if self.is_closed and self.head is not None:
            why = explain.behind_head(self.queue.name, self.head)
        return {fact.key: why for _, fact in self.work[self.at :]}


def line_up(snapshot: Snapshot, tree: QueueTree, now: float) -> tuple[dict[str, Line], dict[str, Explanation]]:
    """({queue: its line}, {key: why} of what stands at a closed gate and in no line)."""
    lines: dict[str, Line] = {}
    shut: dict[str, Explanation] = {}
    for fact in snapshot.pending:
        if not is_wanted(fact):
            continue
        closed = closed_gate(fact, snapshot, tree, now)
        if closed is not None:
            shut[fact.key] = closed
            continue
        line = lines.get(fact.queue)
        if line is None:
            line = lines[fact.queue] = Line(tree.queue(fact.queue) or QueueFact(name=fact.queue))
        line.work.append((work_key(fact, snapshot.job_of(fact)), fact))
    for line in lines.values():
        line.work.sort(key=lambda item: item[0])
    return {name: lines[name] for name in sorted(lines)}, shut


def numbered(lines: dict[str, Line], explanations: dict[str, Explanation]) -> dict[str, Explanation]:
    """The explanations by key, each with its place among those of its queue that wait."""
    result = dict(explanations)
    for line in lines.values():
        ahead = 0
        for _, fact in line.work:
            why = result.get(fact.key)
            if why is not None:
                result[fact.key] = explain.at_position(why, ahead)
                ahead += 1
    return dict(sorted(result.items()))
