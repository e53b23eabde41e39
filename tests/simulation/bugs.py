"""Bugs that the checker has to find: each breaks one promise of the design in the real services.

Owns the breaking. A checker that does not find them proves nothing by its silence. Every bug says where it is looked
for and which invariants may tell; it is installed with pytest's monkeypatch and gone after the test.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from slipway.crd import totals, transitions
from slipway.crd.figures import DayTotals
from slipway.crd.v1alpha1 import Allocation, Release
from slipway.errors import NotFoundError, StaleError
from slipway.kube.objects import Pod
from slipway.kube.resources import ALLOCATIONS
from slipway.model.ledger import Ledger
from slipway.pods import manifest
from slipway.podworker import launch as launching
from slipway.podworker import status
from slipway.podworker.launch import Launcher, Target
from slipway.podworker.teardown import Remover
from slipway.scheduler import ledger
from slipway.scheduler.cycle import Cycle
from slipway.scheduler.ledger_store import LedgerStore
from slipway.streams.consumer import WorkConsumer
from slipway.streams.feed import FeedReader
from slipway.watcher import gang, reduce
from slipway.watcher.books import Books
from slipway.watcher.evidence import Evidence
from slipway.watcher.reconcile import Reconciler
from slipway.watcher.sweep import Sweeper

SLOW_S = 0.05
"""What happens meanwhile is what the fence is for."""

Install = Callable[[pytest.MonkeyPatch], None]


class Bug(msgspec.Struct, frozen=True, kw_only=True):
    """`hunts` are the arguments of runs, of which one has to report one of `told_by`.

    A hunt whose fault ends in `:*:after` (or before) tries that moment at every effect of the role.
    """

    name: str
    install: Install
    hunts: tuple[tuple[str, str], ...]
    told_by: tuple[str, ...]
    replicas: int = 1


def _bind_before_release(patch: pytest.MonkeyPatch) -> None:
    release = status.release

    async def hasty(kube: Any, allocation: Allocation, pod_uids: Sequence[str]) -> Allocation:
        for placement, uid in zip(manifest.placed(allocation), pod_uids, strict=True):
            name = manifest.pod_name(allocation, placement.rank)
            await kube.bind(allocation.metadata.namespace, name, uid, placement.node)
        return await release(kube, allocation, pod_uids)

    patch.setattr(status, "release", hasty)


def _bind_without_uid(patch: pytest.MonkeyPatch) -> None:
    async def bind(self: Any, namespace: str, target: Target) -> None:
        await self._kube.bind(namespace, target.pod, "", target.node)

    patch.setattr(Launcher, "_bind", bind)


def _release_without_fence(patch: pytest.MonkeyPatch) -> None:
    """Whatever has happened since the allocation was read is overwritten."""

    async def release(kube: Any, allocation: Allocation, pod_uids: Sequence[str]) -> Allocation:
        await asyncio.sleep(SLOW_S)
        meta = allocation.metadata
        found = await kube.get(ALLOCATIONS, meta.name, namespace=meta.namespace)
        made = Release(attempt=allocation.status.attempt, pod_uids=list(pod_uids))
        after = msgspec.structs.replace(found.status, release=made)
        return await kube.replace_status(ALLOCATIONS, msgspec.structs.replace(found, status=after))

    patch.setattr(launching.status, "release", release)


def _ack_before_effect(patch: pytest.MonkeyPatch) -> None:
    admit = WorkConsumer._admit  # pyright: ignore[reportPrivateUsage]

    async def eager(self: Any, claimed: Any, group: Any) -> None:
        await self._queue.ack(claimed)
        await admit(self, claimed, group)

    patch.setattr(WorkConsumer, "_admit", eager)


def _next_attempt_on_a_cached_view(patch: pytest.MonkeyPatch) -> None:
    async def cached(self: Any, allocation: Allocation) -> list[Pod]:
        return self._world.pods_of(allocation.metadata.uid)

    patch.setattr(Evidence, "pods_of", cached)


def _absence_is_evidence(patch: pytest.MonkeyPatch) -> None:
    judged = gang._judged  # pyright: ignore[reportPrivateUsage]

    def sure(rank: Any, *, nodes_gone: Any, consistent: bool) -> Any:
        return judged(rank, nodes_gone=nodes_gone, consistent=True)

    patch.setattr(gang, "_judged", sure)


def _open_decisions_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    promote = ledger.promote

    def forgetful(stored: Ledger, epoch_max: int) -> Ledger:
        return msgspec.structs.replace(promote(stored, epoch_max), decisions=())

    patch.setattr(ledger, "promote", forgetful)


def _finalizer_before_exit(patch: pytest.MonkeyPatch) -> None:
    write = Reconciler._write  # pyright: ignore[reportPrivateUsage]

    async def careless(self: Any, before: Allocation, reduction: Any) -> bool:
        for pod in reduction.drop_pod_finalizers:
            await self._drop(pod)
        return await write(self, before, reduction)

    patch.setattr(Reconciler, "_write", careless)


def _delete_without_uid(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: Any, allocation: Allocation, resource: Any, meta: Any) -> None:
        try:
            await self._kube.delete(resource, meta.name, namespace=allocation.metadata.namespace)
        except (NotFoundError, StaleError):
            return

    patch.setattr(Remover, "_delete", delete)


def _admission_without_ledger(patch: pytest.MonkeyPatch) -> None:
    save = LedgerStore.save

    async def lazy(self: Any, made: Ledger) -> bool:
        return True if made.decisions else await save(self, made)

    patch.setattr(LedgerStore, "save", lazy)


def _capacity_is_ignored(patch: pytest.MonkeyPatch) -> None:
    commit = ledger.commit

    def crowded(stored: Ledger, placed: Any, *, at: str) -> Any:
        crowd = [msgspec.structs.replace(item, placements=dict.fromkeys(item.placements, "n0")) for item in placed]
        return commit(stored, crowd, at=at)

    patch.setattr(ledger, "commit", crowded)


def _stream_entries_depend_on_the_teller(patch: pytest.MonkeyPatch) -> None:
    event_of = transitions.event_of

    def embroidered(allocation: Allocation, entry: Any, *, truncated: str | None = None) -> Any:
        told = event_of(allocation, entry, truncated=truncated)
        return msgspec.structs.replace(told, data={**told.data, "version": allocation.metadata.resource_version})

    patch.setattr(transitions, "event_of", embroidered)


def _nothing_is_torn_down(patch: pytest.MonkeyPatch) -> None:
    async def idle(self: Any, allocation: Allocation, through: int) -> int:
        return 0

    async def blind(self: Any) -> int:
        return 0

    patch.setattr(Remover, "remove", idle)
    patch.setattr(Sweeper, "sweep", blind)


def _everything_is_news(patch: pytest.MonkeyPatch) -> None:
    """A status is written whenever it is looked at."""
    details = reduce._with_details  # pyright: ignore[reportPrivateUsage]

    def chatty(view: Any, moved: Any) -> Any:
        said = details(view, moved)
        after = msgspec.structs.replace(said.allocation.status, message=f"seen at {int(view.now)}")
        return msgspec.structs.replace(
            said, allocation=transitions.with_status(said.allocation, after), at=view.now + 1.0
        )

    patch.setattr(reduce, "_with_details", chatty)


def _first_epoch_is_joined(patch: pytest.MonkeyPatch) -> None:
    """A reader of an empty feed takes its first entry for the one after its LIST."""
    take = FeedReader._take  # pyright: ignore[reportPrivateUsage]

    def trusting(self: Any, page: Any) -> Any:
        if self._epoch == 0 and page and page[0][1].number == 1:
            self._epoch = page[0][1].epoch
        return take(self, page)

    patch.setattr(FeedReader, "_take", trusting)


def _refused_plan_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    """What has been planned once is not planned again until the cluster changes."""
    tick = Cycle.tick

    async def satisfied(self: Any) -> Any:
        generation, due = self._cluster.generation, self._is_due(self._clock.now())
        try:
            return await tick(self)
        finally:
            if due and self._planned_at == () and self._ledger.tick and not self._ledger.decisions:
                self._planned_at = generation

    patch.setattr(Cycle, "tick", satisfied)


def _late_create_is_left(patch: pytest.MonkeyPatch) -> None:
    """The name of a released pod that another object bears now is taken for done."""

    async def delete(self: Any, allocation: Allocation, resource: Any, meta: Any) -> None:
        try:
            await self._kube.delete(resource, meta.name, namespace=allocation.metadata.namespace, uid=meta.uid)
        except (NotFoundError, StaleError):
            return

    patch.setattr(Remover, "_delete", delete)


def _totals_are_added_again(patch: pytest.MonkeyPatch) -> None:
    """Who stands in the totals already is not looked for."""
    add = totals.added

    def blind(known: DayTotals, bills: Any, now: float, unmarked: Any) -> DayTotals | None:
        return add(msgspec.structs.replace(known, booked={}), bills, now, unmarked)

    patch.setattr(totals, "added", blind)


def _let_go_unaccounted(patch: pytest.MonkeyPatch) -> None:
    """The last finalizer goes without waiting for the totals."""

    def hasty(_self: Books, _allocation: Allocation) -> bool:
        return True

    patch.setattr(Books, "is_settled", hasty)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="totals are added again",
        install=_totals_are_added_again,
        hunts=(("launch-1", "crash@watcher:*:after"),),
        told_by=("I26",),
    ),
    Bug(name="let go unaccounted", install=_let_go_unaccounted, hunts=(("launch-1", ""),), told_by=("I26",)),
    Bug(name="bind before release", install=_bind_before_release, hunts=(("launch-1", ""),), told_by=("I5",)),
    Bug(name="bind without uid", install=_bind_without_uid, hunts=(("launch-1", ""),), told_by=("FENCE",)),
    Bug(
        name="release without fence",
        install=_release_without_fence,
        hunts=(("delete-launching", ""),),
        told_by=("I13",),
    ),
    Bug(name="ack before effect", install=_ack_before_effect, hunts=(("launch-1", ""),), told_by=("ACK",)),
    Bug(
        name="next attempt on a cached view",
        install=_next_attempt_on_a_cached_view,
        hunts=(("stale-view", ""),),
        told_by=("I3", "I4", "I12"),
    ),
    Bug(
        name="absence is evidence",
        install=_absence_is_evidence,
        hunts=(("stale-view", ""), ("launch-4", "crash@watcher:*:after")),
        told_by=("I3", "I18", "I20"),
    ),
    Bug(
        name="open decisions are forgotten",
        install=_open_decisions_are_forgotten,
        hunts=(("launch-1", "crash@scheduler:*:after"),),
        told_by=("I9",),
    ),
    Bug(
        name="finalizer before the exit is recorded",
        install=_finalizer_before_exit,
        hunts=(("launch-1", ""), ("cancel-running", "")),
        told_by=("I20",),
    ),
    Bug(name="delete without uid", install=_delete_without_uid, hunts=(("launch-1", ""),), told_by=("FENCE",)),
    Bug(name="admission without ledger", install=_admission_without_ledger, hunts=(("launch-1", ""),), told_by=("I9",)),
    Bug(name="capacity is ignored", install=_capacity_is_ignored, hunts=(("node-lost", ""),), told_by=("I10",)),
    Bug(
        name="stream entries depend on the teller",
        install=_stream_entries_depend_on_the_teller,
        hunts=(("launch-1", ""), ("restart", "flush@watcher:*:after")),
        told_by=("I14",),
    ),
    Bug(
        name="nothing is torn down",
        install=_nothing_is_torn_down,
        hunts=(("launch-1", ""),),
        told_by=("I11", "I12", "I18"),
    ),
    Bug(name="everything is news", install=_everything_is_news, hunts=(("stay", ""),), told_by=("I18",)),
    Bug(name="the first epoch is joined", install=_first_epoch_is_joined, hunts=(("compete", ""),), told_by=("I18",)),
    Bug(
        name="a refused plan is not repeated",
        install=_refused_plan_is_not_repeated,
        hunts=(("restart", "conflict@scheduler:*:before"),),
        told_by=("I18",),
    ),
    Bug(
        name="a late create is left",
        install=_late_create_is_left,
        hunts=(("launch-1", "freeze@podworker:*:before"),),
        told_by=("ACK", "I11"),
        replicas=2,
    ),
)
