"""Seeded bugs of the scheduler: what it reads, plans, explains and times out."""

from typing import Any

import msgspec
import pytest

from slipway.model import namespace_limits
from slipway.scheduler import ledger
from slipway.scheduler.apply import Applier
from slipway.scheduler.cluster_sync import ClusterSync
from slipway.scheduler.cycle import Cycle
from slipway.scheduler.plan.queueing.admission_checks import NamespaceQuotas
from slipway.streams.feed import FeedBatch, FeedReader
from tests.simulation.bugs.bug import Bug


def _capacity_is_ignored(patch: pytest.MonkeyPatch) -> None:
    commit = ledger.commit

    def seeded(stored: Any, placed: Any, **how: Any) -> Any:
        crowd = [msgspec.structs.replace(item, placements=dict.fromkeys(item.placements, "n0")) for item in placed]
        return commit(stored, crowd, **how)

    patch.setattr(ledger, "commit", seeded)


def _first_epoch_is_joined(patch: pytest.MonkeyPatch) -> None:
    """A reader of an empty feed treats its first entry as the one after its LIST."""
    take = FeedReader._take  # pyright: ignore[reportPrivateUsage]

    def seeded(self: Any, page: Any) -> Any:
        if self._epoch == 0 and page and page[0][1].number == 1:
            self._epoch = page[0][1].epoch
        return take(self, page)

    patch.setattr(FeedReader, "_take", seeded)


def _a_broken_feed_is_joined_again(patch: pytest.MonkeyPatch) -> None:
    """After a gap the reader continues at the present end of the feed, without a LIST."""

    async def follow(self: Any) -> None:
        while True:
            batch = await self._reader.read(timeout_s=1.0)
            if isinstance(batch, FeedBatch):
                if self._apply(batch.deltas):
                    self._changed.set()
                continue
            await self._clock.sleep(0.2)
            await self._reader.start()

    patch.setattr(ClusterSync, "follow", follow)


def _nothing_was_told_since_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A scheduler that starts loads the snapshot, and continues at the end of the feed."""
    resume = FeedReader.resume

    async def at_the_end(self: Any) -> Any:
        found = await resume(self)
        if found is not None:
            await self.start()
        return found

    patch.setattr(FeedReader, "resume", at_the_end)


def _explained_again_and_again(patch: pytest.MonkeyPatch) -> None:
    """The explanation contains the time at which it was found."""
    explain: Any = Applier.explain

    async def dated(self: Any, *given: Any) -> Any:
        *what, message = given
        return await explain(self, *what, f"{message} (at {self._clock.now():.0f})")

    patch.setattr(Applier, "explain", dated)


def _fired_once(patch: pytest.MonkeyPatch) -> None:
    """A deadline whose write failed is not retried."""
    fire = Cycle._fire  # pyright: ignore[reportPrivateUsage]

    async def once(self: Any, item: Any) -> bool:
        fired = await fire(self, item)
        self._deadlines.retry(item.allocation, float("inf"))
        return fired

    patch.setattr(Cycle, "_fire", once)


def _admitted_without_finalizer(patch: pytest.MonkeyPatch) -> None:
    async def same(_self: Any, found: Any) -> Any:
        return found

    patch.setattr(Applier, "_finalize", same)


def _resource_quotas_are_not_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NamespaceQuotas, "refusal", lambda _self, _fact, _demand: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def _own_admissions_take_no_resource_quota(patch: pytest.MonkeyPatch) -> None:
    def nothing(_self: Any, _fact: Any, _demand: Any, _times: int = 1) -> None:
        """Count nothing."""

    patch.setattr(NamespaceQuotas, "take", nothing)


def _limit_ranges_are_not_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(namespace_limits, "completed", lambda pod, _ranges: pod)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def _out_of_range_is_admitted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(namespace_limits, "refusal", lambda _pod, _ranges: "")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


BUGS: tuple[Bug, ...] = (
    Bug(
        name="limit ranges are not applied",
        breaks="a rank counts as its pod will be, with what LimitRanges give to it",
        install=_limit_ranges_are_not_applied,
        hunts=(("limit-range", ""),),
        told_by=("I10",),
    ),
    Bug(
        name="what a limit range refuses is admitted",
        breaks="no gang is admitted whose pods a LimitRange refuses",
        install=_out_of_range_is_admitted,
        hunts=(("out-of-range", ""),),
        told_by=("I18",),
    ),
    Bug(
        name="resource quotas are not read",
        breaks="no gang is admitted whose pods a ResourceQuota cannot hold",
        install=_resource_quotas_are_not_read,
        hunts=(("quota-rivals", ""),),
        told_by=("I18",),
    ),
    Bug(
        name="a plan's own admissions take no resource quota",
        breaks="what a plan admits takes from the ResourceQuota for the rest of that plan",
        install=_own_admissions_take_no_resource_quota,
        hunts=(("quota-rivals", ""),),
        told_by=("I18",),
    ),
    Bug(
        name="capacity is ignored",
        breaks="no node is given more than it has",
        install=_capacity_is_ignored,
        hunts=(("node-lost", ""),),
        told_by=("I10",),
    ),
    Bug(
        name="the first epoch is joined",
        breaks="a reader LISTs after every epoch that it has not seen begin",
        install=_first_epoch_is_joined,
        hunts=(("compete", ""),),
        told_by=("I18",),
    ),
    Bug(
        name="a broken feed is joined again",
        breaks="a gap in the feed, another epoch or silence means LIST",
        install=_a_broken_feed_is_joined_again,
        hunts=(("compete", "flush@watcher:*:after"),),
        told_by=("I10", "I18"),
    ),
    Bug(
        name="nothing was told since the snapshot",
        breaks="who starts from a snapshot of the feed reads all that was told since",
        install=_nothing_was_told_since_the_snapshot,
        hunts=(("from-snapshots", ""),),
        told_by=("I18",),
    ),
    Bug(
        name="explained again and again",
        breaks="at rest nobody writes: a condition is written when its text changes",
        install=_explained_again_and_again,
        hunts=(("wait", ""),),
        told_by=("I18", "I24"),
    ),
    Bug(
        name="a deadline is fired once",
        breaks="a deadline stands in the object until its stop is written",
        install=_fired_once,
        hunts=(("time-is-up", "server-error@scheduler:*update allocations:before"),),
        told_by=("I18",),
    ),
    Bug(
        name="admitted without finalizer",
        breaks="nothing is admitted that does not carry the finalizer",
        install=_admitted_without_finalizer,
        hunts=(("launch-1", ""),),
        told_by=("I18", "I11"),
    ),
)
