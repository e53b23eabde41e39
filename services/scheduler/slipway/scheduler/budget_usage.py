"""Reads what the queues of a pool have used, for their budgets: at intervals, and only while a queue has a budget.

Owns the reads: the allocations, then the daily totals that the watcher writes. Nothing is stored outside the process,
so a new leader knows as much as the old one. Between two reads the held GPUs are counted as used (`QueueUsage`).

Promises: when a read fails, the figures of the last read stay; a pool without budgets costs no call.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from slipway.crd import totals
from slipway.crd.daily_usage import gpu_ms, gpus_held, usage_by_key
from slipway.crd.figures import DayTotals
from slipway.crd.usage import DAY_MS, day_of, ms_of
from slipway.errors import NotFoundError, PermanentError, TransientError
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.plan.state import budgets
from slipway.scheduler.plan.state.budgets import QueueUsage
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
        lengths = budgets.windows(queues)
        if not lengths:
            self._read_at, self._days = None, []
            return
        days = _days(budgets.begin_of(lengths[-1], now), now)
        is_known = self._read_at is not None and set(days[:-1]) <= set(self._days)
        if is_known and self._read_at is not None and now < self._read_at + READ_S:
            return
        try:
            accounts = await self._read(days)
        except (TransientError, PermanentError) as exc:
            _log.warning("usage for the budgets not read; the last known usage is used", error=str(exc))
            return
        self._read_at, self._days = now, days
        before = budgets.exhausted(queues, self._cluster.accounts.spent(lengths, now), now)
        if budgets.exhausted(queues, accounts.spent(lengths, now), now).keys() != before.keys():
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
            found = await read_totals(kube, totals.name_of(day), namespace)
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
        return totals.decode(found.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"ConfigMap {name} does not hold totals of usage: {error}") from error


def _days(begin: float, now: float) -> list[str]:
    """Return the days (UTC) from `begin` to `now`."""
    first, last = round(begin * 1000) // DAY_MS * DAY_MS, round(now * 1000)
    return [day_of(at_ms) for at_ms in range(first, last + 1, DAY_MS)]
