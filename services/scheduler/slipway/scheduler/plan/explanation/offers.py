"""Offers of the smallest change that would start pending work, for the first few allocations that have one.

An offer must work beside all other pending work: the check includes the `rivals` that would take the freed room first.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from slipway.model.facts import AllocationFact
from slipway.model.position import WorkKey
from slipway.scheduler.plan.explanation.remedies import BY_ITSELF, CHANGEABLE, RemedyState, RivalCheck, smallest_change
from slipway.scheduler.plan.placement import explain
from slipway.scheduler.plan.placement.tick_state import Admitted
from slipway.scheduler.plan.placement.topology import REQUIRED, common_key
from slipway.scheduler.plan.queueing.admission_checks import closed_gate
from slipway.scheduler.plan.queueing.queue_cursor import STRICT, GroupCursor, QueueCursor
from slipway.scheduler.plan.reservation import Reservations
from slipway.scheduler.plan.state.pending import PendingGroup
from slipway.scheduler.plan.state.plan_cache import PlanCache
from slipway.scheduler.plan.state.plan_types import Explanation, Remedy
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

NO_ROOM_MADE = frozenset({"release", "wait", "limit", "nominal", "borrowing", "maxSlots", "maxRuntime"})
"""Kinds of changes that free no room on any node."""
_RivalKey = tuple[bytes, str, str, bool]


class RemedyOffers:
    """The offers of one tick, based on the state after its plan."""

    def __init__(
        self,
        snapshot: PoolSnapshot,
        standing: RemedyState,
        cursors: Mapping[str, QueueCursor],
        closed_groups: Sequence[GroupCursor],
        *,
        now: float,
        cache: PlanCache | None = None,
        admitted: Sequence[Admitted] = (),
        reservations: Reservations | None = None,
    ) -> None:
        self._flavors = standing.flavors
        self._windows = standing.windows
        self._reservations = reservations
        self._kinds_of: dict[str, list[tuple[_RivalKey, AllocationFact]]] = {}
        self._snapshot = snapshot
        self._standing = standing
        self._cursors = cursors
        self._closed_groups = closed_groups
        self._now = now
        self._cache = cache
        self._rival_check = RivalCheck(snapshot, standing.whatif, standing.left_of, admitted, reservations)

    def first(self, most: int) -> dict[str, Explanation]:
        """Return {key: explanation with its offer} of at most `most` allocations, in the order of their queues."""
        chosen = islice(self._candidates(most), most)
        return {fact.key: self._offered(order, fact, why) for order, fact, why in chosen}

    def _candidates(self, most: int) -> Iterator[tuple[WorkKey | None, AllocationFact, Explanation]]:
        for cursor in self._cursors.values():
            parts = [
                [
                    (cursor.current_key(order, fact.user), fact, group_cursor)
                    for order, fact in group_cursor.first(most + 1)
                ]
                for group_cursor in cursor.group_cursors
                if not group_cursor.group.is_leaving
            ]
            for (*_, order), fact, group_cursor in heapq.merge(*parts, key=lambda item: item[0]):
                why = cursor.explanation(group_cursor, fact)
                if why.gate in CHANGEABLE and fact.uid not in cursor.settled:
                    yield order, self._in_explained_flavor(fact, group_cursor.group), why
        held = [
            (self._in_explained_flavor(fact, group_cursor.group), group_cursor.why)
            for group_cursor in self._closed_groups
            if group_cursor.why is not None and group_cursor.why.gate in BY_ITSELF
            for _, fact in group_cursor.first(most)
        ]
        held.sort(key=lambda item: (item[0].key, item[0].uid))
        for fact, why in held:
            yield None, fact, why

    def _offered(self, order: WorkKey | None, fact: AllocationFact, why: Explanation) -> Explanation:
        first = (why.change or ()) if why.gate in BY_ITSELF else ()
        change = None
        if not self._is_behind(order, fact) and (not first or self._is_open_after(fact)):
            change = self._past_reservations(fact, self._change(fact, first, self._rivals(order, fact)))
        return explain.with_change(why, change, self._domain(fact, change or ()))

    def _past_reservations(self, fact: AllocationFact, change: tuple[Remedy, ...] | None) -> tuple[Remedy, ...] | None:
        """Return `change`, extended so that it delays no reserved start; None when that is impossible.

        If `fact` might delay one, the change must free no room, and must include a run limit that ends `fact` before
        that start.
        """
        if change is None or self._reservations is None or not self._reservations.may_delay(fact):
            return change
        limit = self._reservations.passing_limit(fact)
        if limit is None or any(part.kind not in NO_ROOM_MADE for part in change):
            return None
        before = next((part for part in change if part.kind == "maxRuntime"), None)
        if before is not None and before.seconds <= limit:
            return change
        return (*(part for part in change if part is not before), Remedy(kind="maxRuntime", seconds=limit))

    def _domain(self, fact: AllocationFact, change: tuple[Remedy, ...]) -> str:
        """Return the one domain, such as `rack r7`, that contains all nodes to be freed; "" if `fact` needs none."""
        keys = sorted({role.topology.key for role in fact.roles if role.topology and role.topology.mode == REQUIRED})
        keys += [key] if (key := common_key(fact)) else []
        table = self._standing.whatif.table
        nodes = [table.index[part.node] for part in change if part.kind == "free"]
        for key in keys if nodes else ():
            column = table.label(key)
            codes = {int(column.codes[node]) for node in nodes}
            if len(codes) == 1 and (code := codes.pop()) >= 0:
                return f"{key} {column.values[code]}"
        return ""

    def _change(
        self, fact: AllocationFact, first: tuple[Remedy, ...], rivals: list[AllocationFact]
    ) -> tuple[Remedy, ...] | None:
        """Return the smallest change, from the cache if an earlier search found it."""
        if self._cache is None or self._windows is not None:
            return smallest_change(self._standing, fact, first, rivals, self._rival_check)
        heads = tuple(cursor.head.uid if cursor.head is not None else "" for cursor in self._cursors.values())
        waits = self._reservations
        entitled = tuple(rival.uid for rival in rivals if waits is not None and waits.is_entitled(rival))
        key = (fact.uid, tuple(rival.uid for rival in rivals), heads, entitled)
        if key not in self._cache.changes:
            self._cache.changes[key] = smallest_change(self._standing, fact, first, rivals, self._rival_check)
        return self._cache.changes[key]

    def _is_open_after(self, fact: AllocationFact) -> bool:
        """Whether `fact` has no other closed gate than a hold or a backoff."""
        free = msgspec.structs.replace(fact, hold=False, not_before=0.0)
        return closed_gate(free, self._snapshot, self._standing.tree, self._now) is None

    def _is_behind(self, order: WorkKey | None, fact: AllocationFact) -> bool:
        """Whether work waits before `fact` in a queue with strict order; it would use the change, or still block it."""
        cursor = self._cursors.get(fact.queue)
        if cursor is None or cursor.queue.ordering != STRICT:
            return False
        return cursor.ahead(order or self._snapshot.order_of(fact), fact.user) > 0

    def _rivals(self, order: WorkKey | None, fact: AllocationFact) -> list[AllocationFact]:
        """Return the work that would get freed room first: one of each kind.

        It is the work before `fact` in its queue, and the work of other queues.
        """
        mine_by_order = order or self._snapshot.order_of(fact)
        own = self._cursors.get(fact.queue)
        mine = own.current_key(mine_by_order, fact.user) if own is not None else (*mine_by_order[:2], 0, mine_by_order)
        found: dict[_RivalKey, AllocationFact] = {}
        for name, cursor in self._cursors.items():
            if name != fact.queue:
                for kind, other in self._kinds(name, cursor):
                    found.setdefault(kind, other)
                continue
            for group_cursor in cursor.group_cursors:
                for key, other in group_cursor.first(2):
                    if other.uid != fact.uid and cursor.current_key(key, other.user) < mine:
                        for kind, each in self._changeable(cursor, group_cursor, other):
                            found.setdefault(kind, each)
        return list(found.values())

    def _kinds(self, name: str, cursor: QueueCursor) -> list[tuple[_RivalKey, AllocationFact]]:
        """Return the first of each kind of a queue's work that may be a rival; computed once a tick."""
        known = self._kinds_of.get(name)
        if known is None:
            found: dict[_RivalKey, AllocationFact] = {}
            for group_cursor in cursor.group_cursors:
                for _, other in group_cursor.first(2):
                    for kind, each in self._changeable(cursor, group_cursor, other):
                        found.setdefault(kind, each)
            known = self._kinds_of[name] = list(found.items())
        return known

    def _changeable(
        self, cursor: QueueCursor, group_cursor: GroupCursor, other: AllocationFact
    ) -> Iterator[tuple[_RivalKey, AllocationFact]]:
        """Yield (kind, `other`) in each flavor that it accepts, if a change may help it."""
        if cursor.explanation(group_cursor, other).gate in CHANGEABLE:
            for shape, each in self._choices(other, group_cursor.group):
                yield (shape, other.queue, other.job, other.preemptible), each

    def _in_explained_flavor(self, fact: AllocationFact, group: PendingGroup) -> AllocationFact:
        """Return `fact` in the flavor that its explanation is about, with the windows that are closed to it."""
        told = fact if self._flavors is None else self._flavors.explained(fact, group)
        return told if self._windows is None else self._windows.with_closed(told)

    def _choices(self, fact: AllocationFact, group: PendingGroup) -> list[tuple[bytes, AllocationFact]]:
        """Return (shape, `fact`) in each flavor that it accepts; work with equal shapes fits the same nodes."""
        found = [(group.shape, fact)]
        if self._flavors is not None:
            found = [(each.group.shape, each.of(fact)) for each in self._flavors.of(group)]
        if self._windows is None:
            return found
        bound = [(shape, self._windows.with_closed(each)) for shape, each in found]
        return [(shape + self._windows.key_of(each), each) for shape, each in bound]
