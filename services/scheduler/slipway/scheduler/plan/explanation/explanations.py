"""Why each allocation waits, as a mapping that is computed only when it is read.

Work that is alike waits for the same reason: there is one explanation per group. Each member's position in its queue is
computed when it is read. The content does not change: the queue cursors that it reads are not moved any more.

Work that is confined to some nodes gets a clause about them: how much of them is used, and by which queues. Owns which
set of nodes and which resource the clause is about. The set is that of the first role that restricts its nodes (by
selector or affinity) and has no feasible node. The resource is GPUs if the role requests GPUs, else cpu, and only if
these nodes have less of it than the pool. There is a clause only when all of it is used, or when some queue uses more
than its share. Changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.mig import slices_in
from slipway.model.resources import CPU, GPU, gpus_of
from slipway.scheduler.plan.placement import explain
from slipway.scheduler.plan.placement.node_sets import NodeSet, NodeSets
from slipway.scheduler.plan.placement.tick_state import TickState
from slipway.scheduler.plan.queueing.node_shares import is_part
from slipway.scheduler.plan.queueing.queue_cursor import NOT_YET, GroupCursor, QueueCursor
from slipway.scheduler.plan.queueing.queue_tree import counted
from slipway.scheduler.plan.state.pending import Member, Members, PendingWork
from slipway.scheduler.plan.state.plan_types import Explanation
from slipway.scheduler.plan.state.rank_request import requests_of

_HEAD = b"head"


class WaitingGroup(NamedTuple):
    """Members that wait for the same reason, without their positions; `key` is the same in every plan."""

    key: bytes
    why: Explanation
    members: Sequence[Member]


class Explanations(Mapping[str, Explanation]):
    """{allocation key: why it waits}, ascending keys. `own` are texts for single allocations."""

    def __init__(
        self,
        backlog: PendingWork,
        cursors: Mapping[str, QueueCursor],
        closed_groups: Sequence[GroupCursor],
        own: Mapping[str, Explanation],
    ) -> None:
        self._backlog = backlog
        self._cursors = cursors
        self._closed_groups = [group_cursor for group_cursor in closed_groups if not group_cursor.group.is_leaving]
        self._own = own
        self._group_cursors: dict[bytes, tuple[QueueCursor | None, GroupCursor]] | None = None
        self._all: dict[str, Explanation] | None = None

    def groups(self) -> Iterator[WaitingGroup]:
        """Yield all pending work, in groups; an allocation with a text in `own` is in its group too."""
        for group_cursor in self._closed_groups:
            yield WaitingGroup(group_cursor.group.key, _without_remedy(group_cursor), group_cursor.group.members)
        for cursor in self._cursors.values():
            for group_cursor in _of_waiting(cursor):
                members: Members = group_cursor.waiting()
                if cursor.is_closed and cursor.is_of_head(group_cursor):
                    yield WaitingGroup(
                        group_cursor.group.key + _HEAD,
                        cursor.explanation(group_cursor, group_cursor.current),
                        (group_cursor.member,),
                    )
                    members = group_cursor.others()
                if members:
                    yield WaitingGroup(group_cursor.group.key, cursor.explanation(group_cursor, members[0][1]), members)

    def with_own(self, texts: Mapping[str, Explanation]) -> "Explanations":
        """Return this mapping with other texts for the allocations in `texts`."""
        return (
            Explanations(self._backlog, self._cursors, self._closed_groups, {**self._own, **texts}) if texts else self
        )

    @property
    def cursors(self) -> Mapping[str, QueueCursor]:
        """{queue: its cursor, as the tick left it}"""
        return self._cursors

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
        if self._group_cursors is None:
            self._group_cursors = {group_cursor.group.key: (None, group_cursor) for group_cursor in self._closed_groups}
            for cursor in self._cursors.values():
                self._group_cursors |= {
                    group_cursor.group.key: (cursor, group_cursor) for group_cursor in _of_waiting(cursor)
                }
        cursor, group_cursor = self._group_cursors.get(key, (None, None))
        if group_cursor is None:
            return None
        if cursor is None:
            return _without_remedy(group_cursor)
        order = self._backlog.order_of(fact.uid)
        is_waiting = order is not None and group_cursor.is_waiting(fact, order) and fact.uid not in cursor.settled
        return cursor.explanation(group_cursor, fact) if is_waiting else None

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
            for group_cursor in self._closed_groups:
                for _, fact in group_cursor.group.members:
                    found[fact.key] = self._own.get(fact.key) or _without_remedy(group_cursor)
            for cursor in self._cursors.values():
                slots = 0
                for ahead, (_, fact, group_cursor) in enumerate(cursor.waiting()):
                    if not group_cursor.group.is_leaving:
                        why = self._own.get(fact.key) or cursor.explanation(group_cursor, fact)
                        found[fact.key] = explain.at_position(why, ahead, slots)
                    if group_cursor.why is None or not group_cursor.why.is_never:
                        slots += group_cursor.group.demand.gpus()
            for key, why in self._own.items():
                found.setdefault(key, why)
            self._all = dict(sorted(found.items()))
        return self._all


def _of_waiting(cursor: QueueCursor) -> list[GroupCursor]:
    return [group_cursor for group_cursor in cursor.group_cursors if not group_cursor.group.is_leaving]


def _without_remedy(group_cursor: GroupCursor) -> Explanation:
    """Return why a group at a closed gate waits, without a change: only the first members are offered one."""
    return explain.with_change(group_cursor.why or NOT_YET, None)


def held_nodes(state: TickState, fact: AllocationFact) -> str:
    """Return how much of its nodes is used, and by which queues above their share; "" when there is no clause."""
    sets = state.node_sets()
    for role in fact.roles:
        if not role.node_selector and not role.affinity:
            continue
        found = _of_role(state, sets, role)
        if found:
            return found
    return ""


def _of_role(state: TickState, sets: NodeSets, role: RoleFact) -> str:
    node_set = sets.of(role)
    row = state.whatif.row(role)
    row.refresh()
    if node_set is None or bool(row.fits.any()):
        return ""
    asked = counted(requests_of(role).amounts)
    resource = next((name for name in (GPU, CPU) if asked.get(name, 0) > 0), "")
    if role.flavor and gpus_of(role.flavor) in state.tree.named:
        return ""
    if not resource or not is_part(node_set.shares.total, state.tree, resource):
        return ""
    total = node_set.shares.total.get(resource, 0)
    holders: list[tuple[str, int, int]] = []
    for name in sorted(queue.name for queue in state.snapshot.queues):
        if state.tree.queue(name) is None or not state.tree.is_leaf(name):
            continue
        due, used = node_set.shares.due(name, resource), node_set.shares.used(name, resource)
        if due is not None and used > due:
            holders.append((name, used, round(due)))
    holders.sort(key=lambda each: (each[2] - each[1], each[0]))
    used = total - _free(state, node_set, resource)
    return explain.held_text(role, resource, total, used, holders) if holders or used >= total else ""


def _free(state: TickState, node_set: NodeSet, resource: str) -> int:
    """Return what is free on the set, as `counted` returns it."""
    usage, table = state.whatif.usage, state.whatif.table
    at = np.flatnonzero(node_set.nodes)
    names = [name for name in (resource, *slices_in(table.resources if resource == GPU else ())) if name in table.row]
    free = {name: int(np.maximum(usage.free(table.row[name], at), 0).sum()) for name in names}
    return counted(free).get(resource, 0)
