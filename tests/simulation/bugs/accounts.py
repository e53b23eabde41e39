"""Seeded bugs of accounting and retention."""

from typing import Any

import msgspec
import pytest

from slipway.accounting import daily_totals
from slipway.crd.figures import DayTotals
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import StaleError
from slipway.kube.resources import CONFIG_MAPS
from slipway.watcher import sweep
from slipway.watcher.usage_accounting import UsageAccounts
from tests.simulation.bugs.bug import Bug


def _totals_are_added_again(patch: pytest.MonkeyPatch) -> None:
    """The totals add an allocation that they contain already."""
    add = daily_totals.added

    def blind(known: DayTotals, bills: Any, now: float, unmarked: Any) -> DayTotals | None:
        return add(msgspec.structs.replace(known, booked={}), bills, now, unmarked)

    patch.setattr(daily_totals, "added", blind)


def _let_go_unaccounted(patch: pytest.MonkeyPatch) -> None:
    """The last finalizer is removed without waiting for the totals."""

    def seeded(_self: UsageAccounts, _allocation: Allocation) -> bool:
        return True

    patch.setattr(UsageAccounts, "is_settled", seeded)


def _totals_without_fence(patch: pytest.MonkeyPatch) -> None:
    """Of two concurrent writers of the totals the later one overwrites the other."""
    write = UsageAccounts._write  # pyright: ignore[reportPrivateUsage]

    class OverwritingKube:
        def __init__(self, kube: Any) -> None:
            self._kube = kube

        def __getattr__(self, name: str) -> Any:
            return getattr(self._kube, name)

        async def replace(self, resource: Any, body: Any) -> Any:
            try:
                return await self._kube.replace(resource, body)
            except StaleError:
                meta = body["metadata"]
                found = await self._kube.get(CONFIG_MAPS, meta["name"], namespace=meta["namespace"])
                newer = {**meta, "resourceVersion": found.metadata.resource_version}
                return await self._kube.replace(resource, {**body, "metadata": newer})

    async def seeded(self: Any, day: str, bills: Any) -> None:
        kube, self._kube = self._kube, OverwritingKube(self._kube)
        try:
            await write(self, day, bills)
        finally:
            self._kube = kube

    patch.setattr(UsageAccounts, "_write", seeded)


def _what_runs_expires(patch: pytest.MonkeyPatch) -> None:
    """Retention counts from the creation, also for allocations that have not ended."""

    def everything(allocations: Any, **_how: Any) -> list[Allocation]:
        return [item for item in allocations if item.metadata.deletion_timestamp is None]

    patch.setattr(sweep, "expired", everything)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="totals are added again",
        breaks="an allocation stands in the totals once",
        install=_totals_are_added_again,
        hunts=(("launch-1", "crash@watcher:*configmaps:after"),),
        told_by=("I26",),
    ),
    Bug(
        name="let go unaccounted",
        breaks="what it used is added to the totals before an allocation may go",
        install=_let_go_unaccounted,
        hunts=(("launch-1", ""),),
        told_by=("I26",),
    ),
    Bug(
        name="totals without fence",
        breaks="the totals are written under the version they were read at",
        install=_totals_without_fence,
        hunts=(("compete", ""), ("compete", "freeze@watcher:*update configmaps:before")),
        told_by=("I26",),
        replicas=2,
    ),
    Bug(
        name="what lives expires",
        breaks="retention forgets what has ended, and nothing else",
        install=_what_runs_expires,
        hunts=(("stay", ""),),
        told_by=("I1", "I18"),
    ),
)
