"""Running work as columns, one row per rank: its node, what it releases there, and its latest end.

`pool_state` updates the rows once a plan has requested them, so that a pool without reservations pays nothing. Some
usage cannot be released as numbers alone: shares of a GPU, devices with unknown numbers, host ports. Such rows are
`odd`. While any row is odd, a plan goes through the holdings one by one.

Invariant: `free` leaves a usage as `NodeUsage.charge(..., -1)` of each of its rows would.

`known_end` returns the latest end of running work, as far as it is known. A run limit (`maxRuntime`) begins when the
attempt runs. Work without a limit may run for ever, so no plan relies on its places. Work that is being stopped leaves
as soon as it can, and is treated as almost gone. What is overdue ends now.
"""

from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from slipway.model.facts import AllocationFact, QueueFact
from slipway.model.lifecycle import Phase
from slipway.model.resources import GPU, GPU_MILLI, MILLI
from slipway.scheduler.plan.state.nodes import Bools, Ints, NodeTable
from slipway.scheduler.plan.state.rank_request import SCORED_DEFAULTS, quota_of
from slipway.scheduler.plan.state.usage import Charge, NodeUsage

Floats = npt.NDArray[np.float64]
LIMIT = "maxRuntime"
"""Key of the stored deadline that ends an attempt."""
GRACE = "preemption"
"""Key of the stored deadline of an attempt that is being stopped."""
_FIRST = 256
_NOWHERE = -1


class RankUse(msgspec.Struct, frozen=True):
    """What a rank uses of its queue and its job; equal ranks share one value."""

    queue: str
    preemptible: bool
    job: tuple[str, str] | None
    """(namespace, name)"""
    amounts: dict[str, int]
    """base units, as quota counts them"""
    gpus: int


class _Ordered(msgspec.Struct, frozen=True):
    """The rows in the order of their ends, valid for every time from `since` to `until`."""

    key: tuple[int, bytes]
    """(number of changes, the run limits of the queues)"""
    since: float
    until: float
    rows: Ints
    ends: Floats
    unknown: Ints
    """rows without a known end"""


class RunEnds:
    """The rows. `is_on` is set when a plan first requests them."""

    def __init__(self) -> None:
        self.is_on = False
        self.odd = 0
        """number of rows that cannot be released as numbers"""
        self.uses: list[RankUse] = []
        self.queues: list[str] = []
        self._rows_of: dict[str, dict[int, int]] = {}
        """{uid: {rank: its row}}"""
        self._unused: list[int] = []
        self._top = 0
        """all rows that were ever used are below this one"""
        self._changes = 0
        """how often `put` and `drop` changed rows"""
        self._ordered: _Ordered | None = None
        """the last answer of `in_order`"""
        self._use_codes: dict[tuple[object, ...], int] = {}
        self._queue_codes: dict[str, int] = {}
        self._kind_codes: dict[tuple[object, ...], int] = {}
        self._kinds: list[tuple[dict[int, int], dict[int, int]]] = []
        """({row of the table: amount} that the kind releases of `used`, the same of `scored`), per kind"""
        self._freed: tuple[Ints, Ints] | None = None
        self._node: Ints = np.zeros(_FIRST, dtype=np.int64)
        self._queue: Ints = np.zeros(_FIRST, dtype=np.int64)
        self._kind: Ints = np.zeros(_FIRST, dtype=np.int64)
        self._use: Ints = np.zeros(_FIRST, dtype=np.int64)
        self._fixed: Floats = np.zeros(_FIRST, dtype=np.float64)
        self._base: Floats = np.zeros(_FIRST, dtype=np.float64)
        self._limit: Floats = np.zeros(_FIRST, dtype=np.float64)
        self._beyond: Bools = np.zeros(_FIRST, dtype=np.bool_)
        self._alive: Bools = np.zeros(_FIRST, dtype=np.bool_)
        self._odd: Bools = np.zeros(_FIRST, dtype=np.bool_)
        self._devices: Ints = np.full((_FIRST, 0), _NOWHERE, dtype=np.int64)
        """the device numbers of each row, in as many columns as a node has devices at most"""

    def start(self, holdings: "Iterable[tuple[AllocationFact, dict[int, Charge]]]", table: NodeTable) -> "RunEnds":
        """Fill the rows from all holdings at the first call; later calls cost nothing."""
        if not self.is_on:
            self.is_on = True
            most = int(table.allocatable[table.row[GPU]].max(initial=0)) if table.shares.any() else 0
            self._devices = np.full((self._node.size, most), _NOWHERE, dtype=np.int64)
            for fact, charges in holdings:
                self.put(fact, charges, table)
        return self

    def put(self, fact: AllocationFact, charges: dict[int, Charge], table: NodeTable) -> None:
        """Add the rows of an allocation that has none."""
        if not self.is_on or not charges:
            return
        self._changes += 1
        fixed, base, limit = _end_of(fact)
        queue = self._queue_codes.setdefault(fact.queue, len(self._queue_codes))
        if queue == len(self.queues):
            self.queues.append(fact.queue)
        own = self._rows_of[fact.uid] = {}
        for rank, charge in charges.items():
            row = own[rank] = self._unused.pop() if self._unused else self._next()
            node = table.index.get(charge.node, _NOWHERE)
            self._node[row], self._queue[row] = node, queue
            self._fixed[row], self._base[row], self._limit[row] = fixed, base, limit
            self._beyond[row], self._alive[row] = fact.beyond_queue, True
            self._kind[row] = self._kind_of(charge, node, table)
            self._use[row] = self._use_of(fact, rank)
            is_odd = node != _NOWHERE and _is_odd(charge, node, table)
            self._odd[row] = is_odd
            self.odd += int(is_odd)
            # Numbers that the node does not have make a row odd, so the numbers of all other rows fit the columns.
            if not is_odd and node != _NOWHERE and table.shares[node] and charge.requests.get(GPU):
                self._devices[row, : len(charge.devices)] = charge.devices

    def drop(self, uid: str) -> None:
        """Remove the rows of an allocation that has no places any more."""
        self._changes += 1
        for row in self._rows_of.pop(uid, {}).values():
            self.odd -= int(self._odd[row])
            self._alive[row], self._odd[row] = False, False
            self._devices[row] = _NOWHERE
            self._unused.append(row)

    def rows_of(self, uid: str, ranks: Iterable[int]) -> list[int]:
        """Return the rows of `ranks`."""
        own = self._rows_of.get(uid, {})
        return [own[rank] for rank in ranks if rank in own]

    def in_order(self, run_limit: Callable[[str], float | None], now: float) -> tuple[Ints, Floats, Ints]:
        """Return (rows with a known end, in the order of that end; these ends; the rows without a known end).

        No end is before `now`, as in `known_end`. `run_limit` returns the longest time that work of a queue may run;
        None when there is no limit.
        """
        limits = np.array([np.inf if (limit := run_limit(name)) is None else limit for name in self.queues] or [np.inf])
        key = (self._changes, limits.tobytes())
        known = self._ordered
        if known is None or known.key != key or not known.since <= now <= known.until:
            known = self._ordered = self._in_order(key, limits, now)
        return known.rows, known.ends, known.unknown

    def _in_order(self, key: tuple[int, bytes], limits: Floats, now: float) -> "_Ordered":
        """Compute the answer of `in_order`: it depends on `now` where an end is past, or where a run has not begun."""
        rows = np.flatnonzero(self._alive[: self._top])
        of_queue = np.where(self._beyond[rows], np.inf, limits[self._queue[rows]])
        base = self._base[rows]
        ends = np.where(np.isinf(base), now, base) + np.minimum(self._limit[rows], of_queue)
        fixed = self._fixed[rows]
        ends = np.maximum(np.where(np.isnan(fixed), ends, fixed), now)
        is_known = np.isfinite(ends)
        known, ends = rows[is_known], ends[is_known]
        order = np.argsort(ends, kind="stable")
        first = float(ends[order[0]]) if order.size else np.inf
        until = now if bool(np.isinf(base).any()) else first
        return _Ordered(key, now, until, known[order], ends[order], rows[~is_known])

    def left_after(
        self,
        at: float,
        count: int,
        run_limit: Callable[[str], float | None],
        now: float,
        *,
        owners: frozenset[str],
        evicts: bool,
    ) -> tuple[Floats, Bools]:
        """Return two columns over `count` nodes about the time `at`.

        The first is how long after `at` (seconds; infinite when unknown) work stays that is not of the queues `owners`.
        The second is whether work of `owners` is on the node. With `evicts`, preemptible work is treated as gone.
        """
        known, ends, unknown = self.in_order(run_limit, now)
        is_owner = np.array([name in owners for name in self.queues] or [False])
        is_soft = np.array([use.preemptible and evicts for use in self.uses] or [False])
        late, is_own = np.zeros(count, dtype=np.float64), np.zeros(count, dtype=np.bool_)
        for rows, beyond in ((known, np.maximum(0.0, ends - at)), (unknown, np.full(unknown.size, np.inf))):
            node, own = self._node[rows], is_owner[self._queue[rows]]
            is_there = node != _NOWHERE
            is_own[node[is_there & own]] = True
            others = is_there & ~own & ~is_soft[self._use[rows]]
            np.maximum.at(late, node[others], beyond[others])
        return late, is_own

    def free(self, usage: NodeUsage, rows: Ints) -> None:
        """Change `usage` as if the ranks of `rows` had left."""
        rows = rows[self._node[rows] != _NOWHERE]
        if not rows.size:
            return
        nodes, kinds = self._node[rows], self._kind[rows]
        for whole, freed in zip((usage.used, usage.scored), self._amounts(len(usage.table.resources)), strict=True):
            for resource, amounts in enumerate(freed):
                if amounts.any():
                    np.subtract.at(whole[resource], nodes, amounts[kinds])
        if usage.devices is not None:
            numbers = self._devices[rows]
            at, which = np.nonzero(numbers != _NOWHERE)
            np.add.at(usage.devices.left, (numbers[at, which], nodes[at]), MILLI)
        usage.forget(nodes)

    def add_freed(self, free: Ints, resource: int, rows: Ints, resources: int) -> None:
        """Add to `free`, per node, what `rows` release of one of `resources` resources."""
        rows = rows[self._node[rows] != _NOWHERE]
        amounts = self._amounts(resources)[0][resource]
        np.add.at(free, self._node[rows], amounts[self._kind[rows]])

    def add_freed_at(self, free: Ints, at: Ints, resource: int, rows: Ints, resources: int) -> None:
        """Like `add_freed`, but each of `rows` is added at its own index `at` of the first axis of `free`."""
        nodes = self._node[rows]
        is_there = nodes != _NOWHERE
        amounts = self._amounts(resources)[0][resource]
        np.add.at(free, (at[is_there], nodes[is_there]), amounts[self._kind[rows[is_there]]])

    def used_by(self, rows: Ints) -> list[tuple[RankUse, int]]:
        """Return what `rows` use of queues and jobs, as (kind of use, number of ranks)."""
        counts = np.bincount(self._use[rows], minlength=len(self.uses))
        return [(self.uses[code], int(counts[code])) for code in np.flatnonzero(counts).tolist()]

    def is_plain(self, usage: NodeUsage) -> bool:
        """Whether all rows can be released as numbers in `usage`."""
        devices = usage.devices
        is_known = devices is None or not (devices.over or devices.unknowns)
        return is_known and not self.odd and not usage.pod_index.is_watched

    def _amounts(self, resources: int) -> tuple[Ints, Ints]:
        """Return per resource and kind what a rank of the kind releases of `used` and of `scored`."""
        if self._freed is None or self._freed[0].shape[1] != len(self._kinds):
            found = np.zeros((2, resources, len(self._kinds)), dtype=np.int64)
            for code, pair in enumerate(self._kinds):
                for which, amounts in enumerate(pair):
                    for resource, amount in amounts.items():
                        found[which, resource, code] = amount
            self._freed = (found[0], found[1])
        return self._freed

    def _kind_of(self, charge: Charge, node: int, table: NodeTable) -> int:
        is_shared = node != _NOWHERE and bool(table.shares[node])
        key = (tuple(charge.requests.amounts.items()), tuple(charge.scored.amounts.items()), is_shared)
        code = self._kind_codes.setdefault(key, len(self._kind_codes))
        if code == len(self._kinds):
            self._kinds.append(_amounts_of(charge, table, is_shared=is_shared))
        return code

    def _use_of(self, fact: AllocationFact, rank: int) -> int:
        role = fact.role_of(rank)
        used = {} if role is None else quota_of(role).amounts
        job = (fact.namespace, fact.job) if fact.job else None
        key = (fact.queue, fact.preemptible, job, tuple(used.items()))
        code = self._use_codes.setdefault(key, len(self._use_codes))
        if code == len(self.uses):
            gpus = 0 if role is None else quota_of(role).gpus()
            self.uses.append(RankUse(fact.queue, fact.preemptible, job, dict(used), gpus))
        return code

    def _next(self) -> int:
        if self._top == self._node.size:
            self._grow()
        self._top += 1
        return self._top - 1

    def _grow(self) -> None:
        """Double the number of rows."""
        size = self._node.size

        def more(column: Ints) -> Ints:
            return np.concatenate([column, np.zeros(size, dtype=np.int64)])

        self._node, self._queue, self._kind, self._use = map(more, (self._node, self._queue, self._kind, self._use))
        self._beyond, self._alive, self._odd = map(_more_bools, (self._beyond, self._alive, self._odd))
        self._fixed, self._base, self._limit = map(_more_floats, (self._fixed, self._base, self._limit))
        unset: Ints = np.full((size, self._devices.shape[1]), _NOWHERE, dtype=np.int64)
        self._devices = np.concatenate([self._devices, unset])


def _more_bools(column: Bools) -> Bools:
    return np.concatenate([column, np.zeros(column.size, dtype=np.bool_)])


def _more_floats(column: Floats) -> Floats:
    return np.concatenate([column, np.zeros(column.size, dtype=np.float64)])


def _end_of(fact: AllocationFact) -> tuple[float, float, float]:
    """Return (stored end, start of the run, run limit).

    The stored end is NaN where none is stored. The start is infinite when the attempt does not run, and the limit is
    infinite when it has none.
    """
    limit = np.inf if fact.max_runtime is None else fact.max_runtime
    if fact.stopping or fact.deleting or fact.desired == "Stopped":
        return fact.deadlines.get(GRACE) or fact.phase_since, np.inf, limit
    if fact.phase is not Phase.RUNNING:
        return np.nan, np.inf, limit
    return fact.deadlines.get(LIMIT) or np.nan, fact.started, limit


def _is_odd(charge: Charge, node: int, table: NodeTable) -> bool:
    """Whether the charge includes more than amounts and whole devices with known numbers."""
    if charge.ports:
        return True
    amounts = charge.requests.amounts
    if not table.shares[node] or not (GPU in amounts or GPU_MILLI in amounts):
        return False
    gpus, count = amounts.get(GPU, 0), int(table.allocatable[table.row[GPU], node])
    known = {number for number in charge.devices if 0 <= number < count}
    return bool(amounts.get(GPU_MILLI)) or len(known) != gpus or len(charge.devices) != gpus


def _amounts_of(charge: Charge, table: NodeTable, *, is_shared: bool) -> tuple[dict[int, int], dict[int, int]]:
    """Return what `NodeUsage.charge` adds to `used` and to `scored` for a charge that is not odd."""
    amounts = dict(charge.requests.amounts)
    by_name: dict[str, int] = {}
    if GPU in amounts or GPU_MILLI in amounts:
        milli, gpus = amounts.pop(GPU_MILLI, 0), amounts.pop(GPU, 0)
        if is_shared:
            by_name = {GPU: gpus, GPU_MILLI: gpus * MILLI}
        else:
            amounts[GPU] = gpus + (1 if milli else 0)
    used = {table.row[name]: amount for name, amount in {**amounts, **by_name}.items() if name in table.row}
    scored = dict(used)
    counted = charge.scored.amounts or SCORED_DEFAULTS
    for name, amount in counted.items():
        row = table.row[name]
        if counted is not SCORED_DEFAULTS:
            scored[row] = scored.get(row, 0) + amount - amounts.get(name, 0)
        elif name not in amounts:
            scored[row] = scored.get(row, 0) + amount
    return used, scored


_GRACE = "preemption"


def run_limit(fact: AllocationFact, queue: QueueFact | None) -> float | None:
    """Return how long (seconds) `fact` may run: its own limit or its queue's, whichever is less; None without limit."""
    limits = [fact.max_runtime, queue.max_runtime if queue is not None and not fact.beyond_queue else None]
    return min((limit for limit in limits if limit is not None), default=None)


def ends_if_started(fact: AllocationFact, queue: QueueFact | None, now: float) -> float | None:
    """Return the latest end if it started now (epoch seconds); None when unknown."""
    limit = run_limit(fact, queue)
    return None if limit is None else now + limit


def known_end(fact: AllocationFact, queue: QueueFact | None, now: float) -> float | None:
    """Return the latest end of work that has places (epoch seconds); None when unknown.

    It is never before `now`: work whose end is overdue still has its places.
    """
    if fact.stopping or fact.deleting or fact.desired == "Stopped":
        return max(fact.deadlines.get(_GRACE) or fact.phase_since, now)
    if fact.phase is not Phase.RUNNING:
        return ends_if_started(fact, queue, now)
    stored = fact.deadlines.get(LIMIT)
    if stored:
        return max(stored, now)
    limit = run_limit(fact, queue)
    return None if limit is None else max(fact.started + limit, now)
