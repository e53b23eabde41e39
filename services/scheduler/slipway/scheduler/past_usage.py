"""Reads past usage for the leader of a pool: of queues and users for fair shares, of queues for their budgets.

Both kinds are read at intervals: from the allocations, then from the daily totals that the watcher writes (decision
18). Between two reads the GPUs that are held in the leader's own tables are counted as used, without a call. For fair
shares only days that may have grown are read again after the first read. Nothing is stored outside the process: a new
leader reads what the old one would have read.

Promises: when a read fails, the figures of the last read stay; a pool without `fairShare` and without budgets costs no
call.
"""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from slipway.accounting import daily_totals
from slipway.accounting.daily_totals import (
    UsageInterval,
    add_decayed,
    days_open,
    gpu_ms,
    gpus_held,
    undecayed_days,
    usage_by_key,
    usage_intervals,
)
from slipway.accounting.usage import DAY_MS, day_of, ms_of
from slipway.crd.figures import DayTotals
from slipway.errors import NotFoundError, PermanentError, TransientError
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS
from slipway.model.decay import ByUser, DecayedUsage
from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.position import milliseconds
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.plan.state import past_use
from slipway.scheduler.plan.state.past_use import QueueUsage
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.ports import Kube

LOOK_S = 5.0
"""The pause between two checks: a new budget takes effect after at most this time."""
READ_S = 60.0
READS_AT_ONCE = 8

_log = log.get_logger(__name__)


class BudgetUsage:
    """Keeps `cluster.accounts` current for one leadership of `pool`; the totals are in `namespace`."""

    def __init__(self, kube: Kube, cluster: Cluster, pool: str, *, namespace: str, clock: Clock) -> None:
        self._kube = kube
        self._cluster = cluster
        self._pool = pool
        self._namespace = namespace
        self._clock = clock
        self._read_at: float | None = None
        self._days: list[str] = []

    async def refresh(self) -> None:
        """Read the usage if a queue has a budget and the last read was long ago, or for fewer days."""
        now = self._clock.now()
        queues = {queue.name: queue for queue in self._cluster.queues.values() if queue.pool == self._pool}
        lengths = past_use.budget_windows(queues)
        if not lengths:
            self._read_at, self._days = None, []
            return
        days = _days(past_use.begin_of(lengths[-1], now), now)
        is_known = self._read_at is not None and set(days[:-1]) <= set(self._days)
        if is_known and self._read_at is not None and now < self._read_at + READ_S:
            return
        try:
            accounts = await self._read(days)
        except (TransientError, PermanentError) as exc:
            _log.warning("usage for the budgets not read; the last known usage is used", error=str(exc))
            return
        self._read_at, self._days = now, days
        before = past_use.exhausted(queues, self._cluster.accounts.spent(lengths, now), now)
        if past_use.exhausted(queues, accounts.spent(lengths, now), now).keys() != before.keys():
            _log.info("queues with a used-up budget changed", pool=self._pool, queues=len(before))
        self._cluster.set_accounts(accounts)

    async def _read(self, days: Sequence[str]) -> QueueUsage:
        """Read the allocations first, then the totals: usage that is added in between is marked in the totals."""
        listed = (await self._kube.list(ALLOCATIONS)).items
        stored = await read_days(self._kube, days, self._namespace)
        now = self._clock.now()
        used = gpu_ms(usage_by_key(days, stored, listed, now), self._pool)
        return QueueUsage(
            at=now,
            days={ms_of(f"{day}T00:00:00Z") / 1000: by_queue for day, by_queue in used.items()},
            held=gpus_held(listed, self._pool),
        )


async def read_days(kube: Kube, days: Sequence[str], namespace: str) -> dict[str, DayTotals]:
    """Return the totals of these days. Raises like `read_totals`."""
    slots = asyncio.Semaphore(READS_AT_ONCE)

    async def read(day: str) -> DayTotals:
        async with slots:
            found = await read_totals(kube, daily_totals.name_of(day), namespace)
            liveness.beat()
            return found

    return dict(zip(days, await asyncio.gather(*map(read, days)), strict=True))


async def read_totals(kube: Kube, name: str, namespace: str) -> DayTotals:
    """Return the totals of a day; empty ones when nothing was added to them.

    Raises:
        PermanentError: the ConfigMap does not contain totals, or may not be read.
        TransientError: the API server cannot be reached.
    """
    try:
        found = await kube.get(CONFIG_MAPS, name, namespace=namespace)
    except NotFoundError:
        return DayTotals()
    try:
        return daily_totals.decode(found.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"ConfigMap {name} does not hold totals of usage: {error}") from error


def _days(begin: float, now: float) -> list[str]:
    """Return the days (UTC) from `begin` to `now`."""
    first, last = round(begin * 1000) // DAY_MS * DAY_MS, round(now * 1000)
    return [day_of(at_ms) for at_ms in range(first, last + 1, DAY_MS)]


PAST_READ_S = 600.0
"""The time between two reads. Usage in between is exact to some seconds, and the next read corrects it."""
RETRY_S = 30.0
AT_ONCE = 512
"""The number of stretches that are added before other tasks may run."""
_HOLDS_NOTHING = (Phase.PENDING, Phase.TERMINATED)


class PastUsage:
    """Keeps `cluster.decayed` current for one leadership of `pool`; the totals are in `namespace`."""

    def __init__(self, kube: Kube, cluster: Cluster, pool: str, *, namespace: str, clock: Clock) -> None:
        self._kube = kube
        self._cluster = cluster
        self._pool = pool
        self._namespace = namespace
        self._clock = clock
        self._half_life_ms = 0
        self._next_read = 0.0
        self._closed: dict[str, list[UsageInterval]] = {}
        """{day: its usage} of days whose totals do not grow any more"""
        self._seen = -1
        """the generation of the allocations at the last check"""

    async def refresh(self) -> None:
        """Update `cluster.decayed`: by a read when one is due, else by the GPUs that are held now."""
        pool = self._cluster.pools.get(self._pool)
        rule = pool.fair_share if pool is not None else None
        if rule is None:
            if self._cluster.decayed.half_life_ms:
                self._cluster.set_decayed(DecayedUsage())
            self._half_life_ms, self._closed = 0, {}
            return
        half_life_ms, now = milliseconds(rule.half_life_s), self._clock.now()
        if half_life_ms != self._half_life_ms:
            self._half_life_ms, self._next_read = half_life_ms, 0.0
        if now >= self._next_read:
            await self._read(half_life_ms)
        elif self._cluster.decayed.half_life_ms == half_life_ms and self._cluster.allocations.generation != self._seen:
            self._seen = self._cluster.allocations.generation
            held = held_by_user(self._cluster.allocations.values(), self._pool)
            if held != self._cluster.decayed.held:
                self._cluster.set_decayed(self._cluster.decayed.going_on(now, held))

    async def _read(self, half_life_ms: int) -> None:
        """Read the allocations first, then the totals: usage that is added in between is marked in the totals."""
        try:
            listed = (await self._kube.list(ALLOCATIONS)).items
            now = self._clock.now()
            days = undecayed_days(now, half_life_ms)
            fresh = [day for day in days if day not in self._closed]
            stored = await read_days(self._kube, fresh, self._namespace)
        except (TransientError, PermanentError) as exc:
            self._next_read = self._clock.now() + RETRY_S
            _log.warning("usage for the fair shares not read; the last known usage is used", error=str(exc))
            return
        found = [each for day in days for each in self._closed.get(day, ())]
        new = list(usage_intervals(fresh, stored, listed, self._pool, now))
        used = await self._decayed([*found, *new], now, half_life_ms)
        held = held_by_user(self._cluster.allocations.values(), self._pool)
        self._seen = self._cluster.allocations.generation
        self._cluster.set_decayed(
            DecayedUsage(at_ms=milliseconds(now), half_life_ms=half_life_ms, used=used, held=held)
        )
        open_days = days_open((each for each in listed if each.spec.pool == self._pool), now) | {days[-1]}
        self._closed = {day: self._closed.get(day, []) for day in days if day not in open_days}
        for each in new:
            if each.day in self._closed:
                self._closed[each.day].append(each)
        self._next_read = now + PAST_READ_S

    async def _decayed(self, found: Sequence[UsageInterval], now: float, half_life_ms: int) -> ByUser:
        used: dict[str, dict[str, int]] = {}
        for begin in range(0, len(found), AT_ONCE):
            add_decayed(used, found[begin : begin + AT_ONCE], now, half_life_ms)
            await self._clock.sleep(0)
        return {queue: dict(sorted(users.items())) for queue, users in sorted(used.items())}


def held_by_user(allocations: Iterable[AllocationFact], pool: str) -> ByUser:
    """Return {queue: {user: GPUs that allocations of the pool hold, in `GPU_UNITS`}}."""
    found: dict[str, dict[str, int]] = {}
    for fact in allocations:
        if fact.pool == pool and fact.phase not in _HOLDS_NOTHING and fact.placements:
            roles = [fact.role_of(rank) for rank in fact.placements]
            units = sum(requests_of(role).gpu_units() for role in roles if role is not None)
            if units:
                users = found.setdefault(fact.queue, {})
                users[fact.user] = users.get(fact.user, 0) + units
    return {queue: dict(sorted(users.items())) for queue, users in sorted(found.items())}
