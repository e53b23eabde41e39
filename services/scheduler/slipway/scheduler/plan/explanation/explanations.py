"""Why each allocation waits, as a mapping that is computed only when it is read.

Work that is alike waits for the same reason: there is one explanation per group. Each member's position in its queue is
computed when it is read. The content does not change: the queue cursors that it reads are not moved any more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.placement import explain
from slipway.scheduler.plan.queueing.queue_cursor import NOT_YET, QueueCursor, Walk
from slipway.scheduler.plan.state.members import Member, Members
from slipway.scheduler.plan.state.pending import PendingWork
from slipway.scheduler.plan.state.plan_types import Explanation

_HEAD = b"head"


class Alike(NamedTuple):
    """Members that wait for the same reason, without their positions; `key` is the same in every plan."""

    key: bytes
    why: Explanation
    members: Sequence[Member]


class Explained(Mapping[str, Explanation]):
    """{allocation key: why it waits}, ascending keys. `own` are texts for single allocations."""

    def __init__(
        self,
        backlog: PendingWork,
        lines: Mapping[str, QueueCursor],
        shut: Sequence[Walk],
        own: Mapping[str, Explanation],
    ) -> None:
        self._backlog = backlog
        self._lines = lines
        self._shut = [walk for walk in shut if not walk.group.is_leaving]
        self._own = own
        self._walks: dict[bytes, tuple[QueueCursor | None, Walk]] | None = None
        self._all: dict[str, Explanation] | None = None

    def alike(self) -> Iterator[Alike]:
        """Yield all pending work, in groups; an allocation with a text in `own` is in its group too."""
        for walk in self._shut:
            yield Alike(walk.group.key, _bare(walk), walk.group.members)
        for line in self._lines.values():
            for walk in _of_waiting(line):
                members: Members = walk.waiting()
                if line.is_closed and line.is_of_head(walk):
                    yield Alike(walk.group.key + _HEAD, line.explanation(walk, walk.current), (walk.member,))
                    members = walk.others()
                if members:
                    yield Alike(walk.group.key, line.explanation(walk, members[0][1]), members)

    def with_own(self, texts: Mapping[str, Explanation]) -> "Explained":
        """Return this mapping with other texts for the allocations in `texts`."""
        return Explained(self._backlog, self._lines, self._shut, {**self._own, **texts}) if texts else self

    @property
    def lines(self) -> Mapping[str, QueueCursor]:
        """{queue: its cursor, as the tick left it}"""
        return self._lines

    @property
    def own(self) -> Mapping[str, Explanation]:
        """{allocation key: its own text}"""
        return self._own

    def of(self, fact: AllocationFact) -> Explanation | None:
        """Return why `fact` waits, without its position; None when it does not wait.

        Valid until the pool state changes.
        """
        key = self._backlog.group_of(fact.uid)
        if key is None:
            return None
        own = self._own.get(fact.key)
        if own is not None:
            return own
        if self._walks is None:
            self._walks = {walk.group.key: (None, walk) for walk in self._shut}
            for line in self._lines.values():
                self._walks |= {walk.group.key: (line, walk) for walk in _of_waiting(line)}
        line, walk = self._walks.get(key, (None, None))
        if walk is None:
            return None
        if line is None:
            return _bare(walk)
        order = self._backlog.order_of(fact.uid)
        is_waiting = order is not None and walk.is_waiting(fact, order) and fact.uid not in line.settled
        return line.explanation(walk, fact) if is_waiting else None

    def __getitem__(self, key: str) -> Explanation:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._read() == dict(cast("Mapping[str, Explanation]", other))

    def __repr__(self) -> str:
        return repr(self._read())

    def _read(self) -> dict[str, Explanation]:
        if self._all is None:
            found: dict[str, Explanation] = {}
            for walk in self._shut:
                for _, fact in walk.group.members:
                    found[fact.key] = self._own.get(fact.key) or _bare(walk)
            for line in self._lines.values():
                slots = 0
                for ahead, (_, fact, walk) in enumerate(line.waiting()):
                    if not walk.group.is_leaving:
                        why = self._own.get(fact.key) or line.explanation(walk, fact)
                        found[fact.key] = explain.at_position(why, ahead, slots)
                    if walk.why is None or not walk.why.is_never:
                        slots += walk.group.demand.gpus()
            for key, why in self._own.items():
                found.setdefault(key, why)
            self._all = dict(sorted(found.items()))
        return self._all


def _of_waiting(line: QueueCursor) -> list[Walk]:
    return [walk for walk in line.walks if not walk.group.is_leaving]


def _bare(walk: Walk) -> Explanation:
    """Return why a group at a closed gate waits, without a change: only the first members are offered one."""
    return explain.with_change(walk.why or NOT_YET, None)
