"""The daily totals: each ended allocation is added once, also with crashes, other writers and deletions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from slipway.accounting.daily_totals import (
    ANNOTATION_USAGE,
    FORGET_S,
    added,
    bills_of,
    decode,
    encode,
    is_booked,
    name_of,
    token_of,
    tokens_in,
)
from slipway.accounting.usage import carried, sum_of, used
from slipway.crd.figures import DayTotals, DayUsage
from slipway.crd.transitions import record
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError, NotFoundError, StaleError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS
from slipway.model.lifecycle import Event, Phase
from slipway.model.times import format_time
from slipway.watcher.usage_accounting import DENIED_S, UsageAccounts
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core, a_manifest, furnish
from tests.support.virtual_time import VirtualClock, run_virtual
from tests.support.watcher_harness import SETTINGS, WatcherHarness, play

SYSTEM = "slipway-system"
NOON_S = 1_767_355_200.0  # 2026-01-02T12:00:00Z


def ended(uid: str, *, hours: float = 6.0, user: str = "ada", slots: int = 2) -> Allocation:
    """An allocation that ran for `hours` from noon on and has ended."""
    meta = {
        "name": uid,
        "namespace": "default",
        "uid": uid,
        "creationTimestamp": format_time(NOON_S - 60, "seconds"),
        "annotations": {"slipway.dev/user": user},
    }
    found = msgspec.convert({"metadata": meta, "spec": {"kind": "command"}}, Allocation)
    assigned = record(found, Event.ASSIGNED, now=NOON_S - 30)
    running = record(assigned, Event.RUNNING, now=NOON_S, slots=slots)
    end_s = NOON_S + hours * 3600
    over = record(running, Event.TERMINATED, now=end_s, ended_at=format_time(end_s))
    return carried(running, over)


class AccountingHarness:
    """Usage accounting beside a small cluster; `others` is the client of another replica."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        core = a_core(self.clock.now)
        self.kube, self.theirs = a_client(core), a_client(core, seed=2)
        self.unmarked: set[str] | None = None
        self.settled: list[str] = []

    def books(self, kube: CoreKube | None = None) -> UsageAccounts:
        return UsageAccounts(
            kube or self.kube,
            self.clock,
            namespace=SYSTEM,
            unmarked=lambda: self.unmarked,
            settled=self.settled.append,
        )

    async def totals(self, day: str) -> DayTotals:
        return decode((await self.kube.get(CONFIG_MAPS, name_of(day), namespace=SYSTEM)).data)


def beside(story: Callable[[AccountingHarness], Awaitable[None]]) -> None:
    async def main() -> None:
        usage_harness = AccountingHarness()
        await furnish(usage_harness.theirs)
        await story(usage_harness)

    run_virtual(main)


def test_what_ended_is_added_once_to_each_of_its_days() -> None:
    """An ended allocation is added once to each of its days, also when it is offered twice, or by a new process."""

    async def story(usage_harness: AccountingHarness) -> None:
        work = [ended("one"), ended("two", hours=30.0), ended("three", user="bob")]
        for _ in range(2):
            books = usage_harness.books()
            for each in [*work, *work]:
                books.offer(each)
            await books.flush()
            assert all(books.is_added(each) for each in work)
        first, second = await usage_harness.totals("2026-01-02"), await usage_harness.totals("2026-01-03")
        assert [(row.user, row.ended, row.admitted) for row in first.rows] == [("ada", 1, 2), ("bob", 1, 1)]
        assert first.rows[0].slot_ms["Running"] == (6 + 12) * 3_600_000 * 2
        assert [(row.user, row.ended, row.slot_ms["Running"]) for row in second.rows] == [
            ("ada", 1, 18 * 3_600_000 * 2)
        ]
        assert tokens_in(first) == {token_of(uid) for uid in ("one", "two", "three")}
        assert usage_harness.settled[:3] == ["one", "two", "three"]

    beside(story)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_crash_at_any_write_neither_loses_nor_doubles(moment: str, number: int) -> None:
    """A crash at any write, with the write lost or only its answer, neither loses nor doubles usage: the next process
    continues from the totals."""

    async def story(usage_harness: AccountingHarness) -> None:
        work = [ended("one", hours=30.0), ended("two", hours=59.0)]
        seen = 0

        async def strike(verb: Verb, plural: str, *_: Any) -> None:
            nonlocal seen
            if plural == "configmaps" and verb in (Verb.CREATE, Verb.UPDATE):
                seen += 1
                if seen == number:
                    raise UnavailableError("gone in the middle")

        setattr(usage_harness.kube, moment, strike)
        for each in work:
            books = usage_harness.books()
            books.offer(each)
            try:
                await books.flush()
            except UnavailableError:
                assert not books.is_settled(each)
                again = usage_harness.books(usage_harness.theirs)
                again.offer(each)
                await again.flush()
        days = ["2026-01-02", "2026-01-03", "2026-01-04"]
        rows = [row for day in days for row in (await usage_harness.totals(day)).rows]
        assert sum_of(rows) == sum_of([sum_of(used(each, 0.0).values()) for each in work])
        assert sum(row.ended for row in rows) == 2

    beside(story)


def test_two_replicas_write_at_once() -> None:
    """When two replicas write at once, the compare-and-swap makes one of them read again; everything is added once."""

    async def story(usage_harness: AccountingHarness) -> None:
        work = [ended(f"a{number}") for number in range(8)]
        mine, theirs = usage_harness.books(), usage_harness.books(usage_harness.theirs)
        for each in work[:6]:
            mine.offer(each)
        for each in work[2:]:
            theirs.offer(each)
        await asyncio.gather(mine.flush(), theirs.flush())
        (row,) = (await usage_harness.totals("2026-01-02")).rows
        assert (row.ended, row.admitted) == (8, 8)

    beside(story)


def test_who_is_marked_or_gone_is_forgotten_after_a_while() -> None:
    """The list of added allocations in the totals does not grow for ever, and keeps those that could be offered
    again."""

    async def story(usage_harness: AccountingHarness) -> None:
        for uid, after_s in (("one", 0.0), ("two", 0.0), ("three", FORGET_S + 60.0), ("four", FORGET_S + 60.0)):
            await usage_harness.clock.sleep(after_s)
            usage_harness.unmarked = None if uid == "three" else {token_of("two")}
            books = usage_harness.books()
            books.offer(ended(uid))
            await books.flush()
            if uid == "three":
                # While the view does not know which allocations are marked, no entry is removed.
                assert len(tokens_in(await usage_harness.totals("2026-01-02"))) == 3
        assert tokens_in(await usage_harness.totals("2026-01-02")) == {token_of("two"), token_of("four")}
        assert (await usage_harness.totals("2026-01-02")).rows[0].ended == 4

    beside(story)


def test_what_can_not_be_added_holds_nobody_up() -> None:
    """Usage that cannot be added, because of a missing permission or a ConfigMap with other content, is logged, and the
    allocation is released."""

    async def story(usage_harness: AccountingHarness) -> None:
        async def refuse(verb: Verb, plural: str, *_: Any) -> None:
            if verb is Verb.CREATE and plural == "configmaps":
                raise DeniedError("cannot create configmaps")

        usage_harness.kube.before = refuse
        books, work = usage_harness.books(), ended("one")
        books.offer(work)
        await books.flush()
        assert (books.is_settled(work), books.is_added(work)) == (True, False)
        broken = {"metadata": {"name": name_of("2026-01-02")}, "data": {"totals": "not json"}}
        await usage_harness.theirs.create(CONFIG_MAPS, broken, namespace=SYSTEM)
        books = usage_harness.books()
        books.offer(work)
        await books.flush()
        assert (books.is_settled(work), books.is_added(work)) == (True, False)
        found = await usage_harness.kube.get(CONFIG_MAPS, name_of("2026-01-02"), namespace=SYSTEM)
        assert found.data == {"totals": "not json"}

    beside(story)


def test_a_day_that_can_not_be_written_takes_no_other_with_it() -> None:
    """When one day cannot be written, other allocations are added to their days, and those of that day to their other
    days."""

    async def story(usage_harness: AccountingHarness) -> None:
        broken = {"metadata": {"name": name_of("2026-01-02")}, "data": {"totals": "not json"}}
        await usage_harness.theirs.create(CONFIG_MAPS, broken, namespace=SYSTEM)
        books, long = usage_harness.books(), ended("long", hours=30.0)
        later = ended("later")
        over = msgspec.structs.replace(later.status, ended_at="2026-01-04T01:00:00Z", transitions=[], usage=None)
        later = msgspec.structs.replace(later, status=over)
        for each in (long, later):
            books.offer(each)
        await books.flush()
        assert [(books.is_settled(each), books.is_added(each)) for each in (long, later)] == [
            (True, False),
            (True, True),
        ]
        assert [row.ended for row in (await usage_harness.totals("2026-01-03")).rows] == [1]
        assert [row.ended for row in (await usage_harness.totals("2026-01-04")).rows] == [1]

    beside(story)


def test_a_permission_that_comes_back_in_time_loses_nothing() -> None:
    """While a role is changed or a token renewed, an addition is retried for a while before it is given up."""

    async def story(usage_harness: AccountingHarness) -> None:
        is_refused = True

        async def refuse(verb: Verb, plural: str, *_: Any) -> None:
            if is_refused and plural == "configmaps":
                raise DeniedError(f"cannot {verb} configmaps")

        usage_harness.kube.before = refuse
        books, work = usage_harness.books(), ended("one")
        books.offer(work)
        with pytest.raises(UnavailableError):
            await books.step()
        assert not books.is_settled(work)
        is_refused = False
        await books.step()
        assert books.is_added(work)
        is_refused, other = True, ended("two")
        books.offer(other)
        with pytest.raises(UnavailableError):
            await books.step()
        await usage_harness.clock.sleep(DENIED_S)
        await books.step()
        assert (books.is_settled(other), books.is_added(other)) == (True, False)

    beside(story)


def test_ten_thousand_ends_in_ten_minutes_fit_an_object() -> None:
    """Ten thousand ends in ten minutes stay far below the MiB of a ConfigMap, and old entries are removed."""
    template = bills_of(ended("one"))["2026-01-02"]
    totals, now = DayTotals(), NOON_S
    for batch in range(20):
        bills = [msgspec.structs.replace(template, uid=f"{batch}-{number}") for number in range(500)]
        stored = added(totals, bills, now, frozenset())
        assert stored is not None
        totals, now = stored, now + 30.0
    assert len(tokens_in(totals)) == 10_000
    assert sum(map(len, encode(totals).values())) < 150_000
    assert totals.rows[0].ended == 10_000
    later = added(totals, [msgspec.structs.replace(template, uid="later")], now + FORGET_S + 60, frozenset())
    assert later is not None
    assert len(tokens_in(later)) == 1


def test_nothing_new_is_nothing_to_write() -> None:
    """An addition that changes nothing is not written, so a repeated addition costs only a read."""
    bills = list(bills_of(ended("one")).values())
    once = added(DayTotals(), bills, NOON_S, None)
    assert once is not None
    assert added(once, bills, NOON_S, None) is None


def test_an_allocation_ends_in_the_totals_and_carries_the_mark() -> None:
    """An allocation is added to the totals and marked before its last finalizer is removed, also when it is deleted
    while it runs."""

    async def story(harness: WatcherHarness) -> None:
        harness.kubelet.runs_s = {0: 3.0}
        await harness.launch()
        over = await harness.until(
            lambda found: found.status.phase is Phase.TERMINATED and not found.metadata.finalizers, "let go"
        )
        assert is_booked(over)
        assert over.metadata.annotations[ANNOTATION_USAGE] == "booked"
        days = await totals_of(harness)
        assert sum_of(days) == sum_of(used(over, 0.0).values())
        harness.kubelet.runs_s = {}
        await harness.launch(name="gone")
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running", name="gone")
        await harness.kube.delete(ALLOCATIONS, "gone", namespace="default")
        with pytest.raises((NotFoundError, StaleError)):
            await harness.until(lambda _found: False, "gone", name="gone")
        assert sum(row.ended for row in await totals_of(harness)) == 2
        assert sum_of(await totals_of(harness)).ms["Running"] > sum_of(days).ms["Running"]

    play(story)


def test_retention_deletes_nothing_that_is_not_added() -> None:
    """Retention deletes only added allocations. One that was never admitted, and so never had our finalizer, has its
    wait in the totals before it is deleted."""

    async def story(harness: WatcherHarness) -> None:
        waits = a_manifest("waits", desired="Stopped")
        await harness.kube.create(ALLOCATIONS, waits, namespace="default")
        over = await harness.until(lambda found: found.status.phase is Phase.TERMINATED, "ended", name="waits")
        assert not over.metadata.finalizers
        assert not await totals_of(harness)
        with pytest.raises((NotFoundError, StaleError)):
            await harness.until(lambda _found: False, "gone", name="waits", timeout_s=400.0)
        (row,) = await totals_of(harness)
        assert (row.ended, row.slot_ms) == (1, {})

    play(story, settings=msgspec.structs.replace(SETTINGS, retention_s=5.0))


async def totals_of(harness: WatcherHarness) -> list[Any]:
    found = await harness.kube.list(CONFIG_MAPS, label_selector="slipway.dev/usage=true")
    return [row for each in found.items for row in decode(each.data).rows]


def test_days_of_use_are_days_of_utc() -> None:
    """Days of use are days of UTC. The day of the end is included without usage too, so that the end is counted."""
    days = bills_of(ended("one", hours=12.0))
    assert {day: (bill.ended, bill.usage == DayUsage()) for day, bill in days.items()} == {
        "2026-01-02": (False, False),
        "2026-01-03": (True, True),
    }
