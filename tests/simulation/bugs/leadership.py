"""Seeded bugs of leadership: epochs, leases, the zombie, the first look of a new leader."""

import contextlib
from typing import Any

import msgspec
import pytest

from slipway.errors import TransientError
from slipway.kube.lease import Leadership, LeaseElector
from slipway.model.ledger import Ledger
from slipway.scheduler import ledger
from slipway.scheduler.cluster_sync import ClusterSync
from slipway.scheduler.cycle import Cycle
from slipway.scheduler.leader import PoolScheduler
from slipway.scheduler.ledger_store import LedgerStore
from tests.simulation.bugs.bug import Bug


def _the_epoch_stays(patch: pytest.MonkeyPatch) -> None:
    def same(stored: Ledger, epoch_max: int) -> Ledger:
        return msgspec.structs.replace(stored, epoch=max(1, stored.epoch, epoch_max))

    patch.setattr(ledger, "promote", same)


def _the_epoch_is_the_leases(patch: pytest.MonkeyPatch) -> None:
    """The epoch is the number of terms, which restarts when the lease is deleted."""
    lead = PoolScheduler._lead  # pyright: ignore[reportPrivateUsage]
    terms: list[int] = [0]

    async def noting(self: Any, leadership: Leadership, stop: Any) -> None:
        terms[0] = leadership.term
        await lead(self, leadership, stop)

    def of_the_lease(stored: Ledger, _epoch_max: int) -> Ledger:
        return msgspec.structs.replace(stored, epoch=1 + terms[0])

    patch.setattr(PoolScheduler, "_lead", noting)
    patch.setattr(ledger, "promote", of_the_lease)


def _a_zombie_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A scheduler that cannot renew only retries, and another leader's epoch is ignored."""
    keep = LeaseElector._keep  # pyright: ignore[reportPrivateUsage]

    async def always(self: Any, leadership: Leadership) -> None:
        while "scheduler" in self.name:
            await self._clock.sleep(self.timing.retry_s)
            with contextlib.suppress(TransientError):
                await self._acquire()
        await keep(self, leadership)

    def fine(_self: Any) -> None:
        return None

    load = LedgerStore.load

    async def seeded(self: Any) -> Ledger:
        self._epoch = None
        return await load(self)

    patch.setattr(LeaseElector, "_keep", always)
    patch.setattr(Leadership, "check", fine)
    patch.setattr(LedgerStore, "load", seeded)


def _every_lease_is_free(patch: pytest.MonkeyPatch) -> None:
    def free(_self: Any, _lease: Any) -> bool:
        return True

    patch.setattr(LeaseElector, "_is_free", free)


def _promoted_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """A new leader reads only the feed, and does not know the earlier state."""
    looks = ClusterSync._list  # pyright: ignore[reportPrivateUsage]
    known: set[int] = set()

    async def seeded(self: Any, *, restart: bool) -> None:
        if id(self) in known:
            await looks(self, restart=restart)
            return
        known.add(id(self))
        await self._reader.start()
        self._listed_at = self._clock.monotonic()

    patch.setattr(ClusterSync, "_list", seeded)


def _led_without_the_ledger(patch: pytest.MonkeyPatch) -> None:
    """A leader begins with an empty ledger, whatever ledger is stored."""

    async def promote(self: Any, reach: Any) -> None:
        while True:
            stored = await self._store.load()
            await reach(stored.through)
            fresh = Ledger(epoch=stored.epoch + 1, through=stored.through)
            if await self._store.save(fresh):
                self._ledger = fresh
                return

    patch.setattr(Cycle, "promote", promote)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="the epoch is not raised",
        breaks="each leader has an epoch of its own",
        install=_the_epoch_stays,
        hunts=(("launch-1", "crash@scheduler:*update resourcepools:after"),),
        told_by=("I9",),
    ),
    Bug(
        name="the epoch is the lease's",
        breaks="an epoch is above the ledger's and above every allocation's, whatever the lease says",
        install=_the_epoch_is_the_leases,
        hunts=(("lease-deleted", ""),),
        told_by=("I8", "I9"),
    ),
    Bug(
        name="a zombie goes on",
        breaks="who cannot renew stops, and who finds another's epoch decides nothing more",
        install=_a_zombie_goes_on,
        hunts=(("compete", "freeze@scheduler:*update resourcepools:before"),),
        told_by=("I9", "I10"),
        replicas=2,
    ),
    Bug(
        name="every lease is free",
        breaks="a lease is respected until it was seen unchanged for its whole duration",
        install=_every_lease_is_free,
        hunts=(("budget", ""), ("many", ""), ("stay", "")),
        told_by=("I9", "I18"),
        replicas=2,
    ),
    Bug(
        name="promoted without a look",
        breaks="a new leader LISTs before it decides",
        install=_promoted_without_a_look,
        hunts=(("compete", "crash@scheduler:*update allocations:after"),),
        told_by=("I10", "I18"),
    ),
    Bug(
        name="led without the ledger",
        breaks="a tick falls as little as an epoch, and what stands in the ledger is taken over",
        install=_led_without_the_ledger,
        hunts=(("launch-1", "crash@scheduler:*update resourcepools:after"),),
        told_by=("I8", "I9"),
    ),
)
