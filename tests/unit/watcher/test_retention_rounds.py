"""A round of retention deletes a limited number of allocations whose usage was added, and reports whether more are
due."""

import msgspec

from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Phase
from slipway.watcher.informers import Informers
from slipway.watcher.sweep import AT_ONCE, Retention
from tests.support.builders import T0
from tests.support.clock import FakeClock
from tests.support.small_cluster import a_client, a_core, furnish, launch, refuse_one_delete

ENDED = "2023-11-14T22:13:20Z"


class SettledAccounting:
    """Usage accounting in which everything is settled."""

    def offer(self, allocation: Allocation) -> None: ...

    def is_settled(self, allocation: Allocation) -> bool:
        return True

    def is_added(self, allocation: Allocation) -> bool:
        return True


class SlowAccounting(SettledAccounting):
    """Usage accounting that adds the offered allocations when a test says so."""

    def __init__(self) -> None:
        self.offered: set[str] = set()
        self.added: set[str] = set()

    def offer(self, allocation: Allocation) -> None:
        self.offered.add(allocation.metadata.uid)

    def is_settled(self, allocation: Allocation) -> bool:
        return allocation.metadata.uid in self.added


async def test_a_retention_round_that_waits_for_accounting_is_behind() -> None:
    """A round that waits for the accounting is behind: four allocations are due and none is added, so all are offered
    at once, and the next round follows soon."""
    clock = FakeClock(T0 + 100)
    kube, world, books = a_client(a_core(clock.now)), Informers(), SlowAccounting()
    await furnish(kube)
    for number in range(5):
        await launch(kube, f"run-{number}")
    listed = await kube.list(ALLOCATIONS)
    world.allocations.replace([_ended(each) for each in listed.items], int(listed.resource_version))
    retention = Retention(kube, world, books, clock, age_s=1e9, count_max=1, deletes_max=2)
    assert (await retention.step(), retention.is_behind, len(books.offered)) == (0, True, 4)
    books.added = books.offered
    assert (await retention.step(), retention.is_behind) == (2, True)


async def test_a_round_that_leaves_some_is_behind() -> None:
    """A round that leaves some is behind: of five ended allocations one may stay, so there are two rounds of two, each
    reported."""
    clock = FakeClock(T0 + 100)
    kube, world = a_client(a_core(clock.now)), Informers()
    await furnish(kube)
    for number in range(5):
        await launch(kube, f"run-{number}")

    async def observe() -> int:
        listed = await kube.list(ALLOCATIONS)
        world.allocations.replace([_ended(each) for each in listed.items], int(listed.resource_version))
        return len(listed.items)

    retention = Retention(kube, world, SettledAccounting(), clock, age_s=1e9, count_max=1, deletes_max=2)
    seen: list[tuple[int, int, bool]] = []
    for _ in range(3):
        there = await observe()
        seen.append((there, await retention.step(), retention.is_behind))
    assert seen == [(5, 2, True), (3, 2, False), (1, 0, False)]


async def test_an_allocation_whose_delete_is_refused_does_not_keep_the_others() -> None:
    """A webhook of the cluster may protect an ended allocation: it stays, and the others are deleted."""
    clock = FakeClock(T0 + 100)
    kube, world = a_client(a_core(clock.now)), Informers()
    await furnish(kube)
    for number in range(AT_ONCE + 2):
        await launch(kube, f"run-{number}")
    listed = await kube.list(ALLOCATIONS)
    world.allocations.replace([_ended(each) for each in listed.items], int(listed.resource_version))
    refuse_one_delete(kube, DeniedError("admission webhook keep.example denied the request"))
    retention = Retention(kube, world, SettledAccounting(), clock, age_s=1e9, count_max=0)
    assert (await retention.step(), retention.is_behind) == (AT_ONCE + 1, False)
    assert len((await kube.list(ALLOCATIONS)).items) == 1


async def test_a_round_that_finds_its_allocations_gone_is_not_behind() -> None:
    """A round whose allocations are already deleted is not behind: they are due only until the watch shows it, so an
    immediate round would have nothing to do."""
    clock = FakeClock(T0 + 100)
    kube, world = a_client(a_core(clock.now)), Informers()
    await furnish(kube)
    for number in range(2):
        await launch(kube, f"run-{number}")
    listed = await kube.list(ALLOCATIONS)
    world.allocations.replace([_ended(each) for each in listed.items], int(listed.resource_version))
    retention = Retention(kube, world, SettledAccounting(), clock, age_s=1e9, count_max=1)
    assert (await retention.step(), retention.is_behind) == (1, False)
    assert (await retention.step(), retention.is_behind) == (0, False)


def _ended(launched: Allocation) -> Allocation:
    status = msgspec.structs.replace(launched.status, phase=Phase.TERMINATED, ended_at=ENDED)
    return msgspec.structs.replace(launched, status=status)
