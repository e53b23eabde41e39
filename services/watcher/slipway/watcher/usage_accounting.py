"""Adds the usage of ended allocations to the daily totals, before the allocations may be deleted.

Owns the writes of the totals: one compare-and-swap per day for many allocations.
`accounting/daily_totals.py` makes the sums.

Promises: the usage of an allocation that `is_settled` is in the totals of each of its days exactly once, even after
several tries by several writers; or it can never be added, and the reason is logged. No state is kept outside the
totals and the mark on the object.
"""

import asyncio
from collections.abc import Callable, Sequence, Set

import msgspec

from slipway.accounting import daily_totals
from slipway.accounting.daily_totals import Bill
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import (
    AlreadyExistsError,
    DeniedError,
    NotFoundError,
    PermanentError,
    StaleError,
    TransientError,
    UnavailableError,
)
from slipway.kube.objects import ConfigMap
from slipway.kube.resources import CONFIG_MAPS
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.watcher.ports import DailyTotals

BATCH_MAX = 500
GATHER_S = 1.0
"""The least time between two additions: allocations that end at about the same time are added in one write."""
HELD_MAX = 4
"""The number of days whose last written totals are kept in memory."""
TRIES_MAX = 8
KNOWN_MAX = 20_000
DENIED_S = 120.0
"""How long writes are retried while our account is refused: its role may be changing, or its token be renewed."""

_log = log.get_logger(__name__)


class UsageAccounts:
    """Adds usage to the daily totals of this installation.

    `unmarked` returns the tokens of ended allocations that do not carry the mark yet, or None when these are not known;
    `settled` is called with each uid that is settled.
    """

    def __init__(
        self,
        kube: DailyTotals,
        clock: Clock,
        *,
        namespace: str,
        unmarked: Callable[[], Set[str] | None],
        settled: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._namespace = namespace
        self._unmarked = unmarked
        self._settled = settled
        self._waiting: dict[str, Allocation] = {}
        self._done: dict[str, bool] = {}
        """{uid: whether it was added}"""
        self._held: dict[str, ConfigMap] = {}
        """{day: its totals as last written here}, which saves a read;
        the API server refuses a write of an old version"""
        self._something = asyncio.Event()
        self._denied_at: float | None = None
        """when the API server began to refuse our account (monotonic seconds); None while it does not"""

    def offer(self, allocation: Allocation) -> None:
        """Queue this ended allocation for the totals, unless it is settled."""
        if not self.is_settled(allocation):
            self._waiting.setdefault(allocation.metadata.uid, allocation)
            self._something.set()

    def is_settled(self, allocation: Allocation) -> bool:
        """Whether it is in the totals, or can never be added."""
        return allocation.metadata.uid in self._done or daily_totals.is_booked(allocation)

    def is_added(self, allocation: Allocation) -> bool:
        """Whether it is known to be in the totals."""
        return self._done.get(allocation.metadata.uid, False) or daily_totals.is_booked(allocation)

    async def step(self) -> None:
        """Wait for something to add, then add it.

        Raises:
            TransientError: the API server did not write the totals; the next step tries again.
        """
        with liveness.rest(lambda: self._waiting):
            await self._something.wait()
        await self.flush(raises_if_denied=True)
        await self._clock.sleep(GATHER_S)

    async def flush(self, *, raises_if_denied: bool = False) -> None:
        """Add all queued allocations; with `raises_if_denied`, raise UnavailableError while our account is refused."""
        while self._waiting:
            batch = list(self._waiting.values())[:BATCH_MAX]
            lost = await self._add(batch, raises_if_denied=raises_if_denied)
            for allocation in batch:
                uid = allocation.metadata.uid
                self._waiting.pop(uid, None)
                self._done[uid] = not lost or lost.isdisjoint(daily_totals.bills_of(allocation))
                self._settled(uid)
        self._something.clear()
        while len(self._done) > KNOWN_MAX:
            del self._done[next(iter(self._done))]

    def _wait_if_denied(self, error: PermanentError) -> None:
        """Raise UnavailableError for the first `DENIED_S` of a refusal, which may pass."""
        if not isinstance(error, DeniedError):
            return
        now = self._clock.monotonic()
        self._denied_at = now if self._denied_at is None else self._denied_at
        if now < self._denied_at + DENIED_S:
            raise UnavailableError(
                f"the API server does not permit Slipway's account to write the daily totals: {error}"
            ) from error

    async def _add(self, batch: Sequence[Allocation], *, raises_if_denied: bool) -> set[str]:
        """Add a batch to its days; return the days whose totals cannot be written."""
        days: dict[str, list[Bill]] = {}
        for allocation in batch:
            for day, bill in daily_totals.bills_of(allocation).items():
                days.setdefault(day, []).append(bill)
        lost = set[str]()
        for day, bills in sorted(days.items()):
            try:
                await self._add_to(day, bills)
            except PermanentError as error:
                if raises_if_denied:
                    self._wait_if_denied(error)
                # An allocation must be able to end even if its usage cannot be added.
                _log.error("usage cannot be added to the totals", day=day, count=len(bills), error=str(error))
                lost.add(day)
            liveness.beat()
        if not lost:
            self._denied_at = None
        return lost

    async def _add_to(self, day: str, bills: Sequence[Bill]) -> None:
        for _ in range(TRIES_MAX):
            try:
                await self._write(day, bills)
                return
            except (StaleError, AlreadyExistsError):
                continue
        raise TransientError(f"the totals of {day} were changed at the same time, several times")

    async def _write(self, day: str, bills: Sequence[Bill]) -> None:
        held = self._held.pop(day, None)
        if held is not None and (written := await self._replaced(held, bills)) is not None:
            self._cache(day, written)
            return
        # The totals are read again, because memory never decides whether all bills are in them.
        try:
            found = await self._kube.get(CONFIG_MAPS, daily_totals.name_of(day), namespace=self._namespace)
        except NotFoundError:
            first = daily_totals.added(daily_totals.DayTotals(), bills, self._clock.now(), self._unmarked())
            if first is not None:
                body = daily_totals.manifest(day, first)
                self._cache(day, await self._kube.create(CONFIG_MAPS, body, namespace=self._namespace))
            return
        self._cache(day, await self._replaced(found, bills) or found)

    async def _replaced(self, found: ConfigMap, bills: Sequence[Bill]) -> ConfigMap | None:
        """Write the totals with these bills, and return them; None when there is nothing to add.

        Raises:
            StaleError: the totals have changed since `found` was read.
        """
        after = daily_totals.added(_decoded(found), bills, self._clock.now(), self._unmarked())
        if after is None:
            return None
        meta = found.metadata
        body = {"metadata": {**meta.fence, "labels": meta.labels}, "data": {**found.data, **daily_totals.encode(after)}}
        try:
            return await self._kube.replace(CONFIG_MAPS, body)
        except NotFoundError as error:
            raise StaleError(f"{meta.name} no longer exists") from error

    def _cache(self, day: str, written: ConfigMap) -> None:
        self._held[day] = written
        while len(self._held) > HELD_MAX:
            del self._held[next(iter(self._held))]


def _decoded(found: ConfigMap) -> daily_totals.DayTotals:
    try:
        return daily_totals.decode(found.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"{found.metadata.name} does not contain totals: {error}") from error
