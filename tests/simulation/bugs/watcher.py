"""Seeded bugs of the watcher: evidence, ends, attempts, writes, sweeps."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from slipway.crd import transitions
from slipway.crd.v1alpha1 import Allocation, RankStatus
from slipway.errors import (
    ControlPlaneError,
    ExpiredError,
    NotFoundError,
    StaleError,
    TransientError,
    UnavailableError,
)
from slipway.kube.objects import Pod
from slipway.kube.ports import Listed
from slipway.kube.reflector import Reflector
from slipway.kube.resources import ALLOCATIONS, PODS
from slipway.model.lifecycle import RANK_ENDS, Phase, RankState
from slipway.model.reasons import Reason, Result
from slipway.watcher import ends, gang, rank_changes, reconcile, reduce, sweep
from slipway.watcher.consistent_reads import ConsistentReads
from slipway.watcher.exits import RankExit
from slipway.watcher.gang import ObservedGang
from slipway.watcher.hints import HintSender
from slipway.watcher.informers import Informers
from slipway.watcher.reconcile import Reconciler
from slipway.watcher.relay import Relay
from slipway.watcher.sweep import Sweeper
from slipway.watcher.view import ReductionView
from tests.simulation.bugs.bug import Bug

_GOOD = RankExit(state=RankState.SUCCEEDED, reason=Reason.COMPLETED, code=0)


def _next_attempt_on_a_cached_view(patch: pytest.MonkeyPatch) -> None:
    async def cached(self: Any, allocation: Allocation) -> list[Pod]:
        return self._informers.pods_of(allocation.metadata.uid)

    patch.setattr(ConsistentReads, "pods_of", cached)


def _next_attempt_beside_the_last(patch: pytest.MonkeyPatch) -> None:
    """The next attempt does not wait for pods that still run."""
    patch.setattr(ObservedGang, "live", property(lambda _self: []))
    patch.setattr(ReductionView, "live_pods", property(lambda _self: []))


def _absence_is_evidence(patch: pytest.MonkeyPatch) -> None:
    judged = gang._with_end  # pyright: ignore[reportPrivateUsage]

    def seeded(rank: Any, *, nodes_gone: Any, consistent: bool) -> Any:
        return judged(rank, nodes_gone=nodes_gone, consistent=True)

    patch.setattr(gang, "_with_end", seeded)


def _nodes_unseen_are_gone(patch: pytest.MonkeyPatch) -> None:
    """A node that is missing in the cache is treated as deleted."""

    async def cached(self: Any, pods: Iterable[Pod]) -> frozenset[str]:
        names = {pod.spec.node_name for pod in pods if pod.spec.node_name}
        return frozenset(name for name in names if self._informers.nodes.get(name) is None)

    patch.setattr(ConsistentReads, "nodes_gone", cached)


def _an_older_view_takes_back(patch: pytest.MonkeyPatch) -> None:
    """A watcher with an older view overwrites what another one has recorded."""

    def latest(known: RankStatus | None, seen: RankStatus) -> RankStatus:
        return known if known is not None and known.phase in RANK_ENDS else seen

    patch.setattr(gang, "merged", latest)


def _missing_is_success(patch: pytest.MonkeyPatch) -> None:
    judged = gang._with_end  # pyright: ignore[reportPrivateUsage]

    def kind(rank: Any, **how: Any) -> Any:
        found = judged(rank, **how)
        is_unseen = rank.pod is None and found.exit is not None and found.exit.reason is Reason.POD_LOST
        return msgspec.structs.replace(found, exit=_GOOD) if is_unseen else found

    patch.setattr(gang, "_with_end", kind)


def _a_lost_node_is_success(patch: pytest.MonkeyPatch) -> None:
    judged = gang._with_end  # pyright: ignore[reportPrivateUsage]

    def kind(rank: Any, **how: Any) -> Any:
        found = judged(rank, **how)
        is_lost = found.loss is not None and found.loss.reason is Reason.NODE_LOST
        return msgspec.structs.replace(found, loss=None, exit=_GOOD) if is_lost else found

    patch.setattr(gang, "_with_end", kind)


def _a_lost_node_is_the_users_fault(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ends, "INFRASTRUCTURE", frozenset[Reason]())


def _finalizer_before_exit(patch: pytest.MonkeyPatch) -> None:
    write = Reconciler._write  # pyright: ignore[reportPrivateUsage]

    async def seeded(self: Any, before: Allocation, reduction: Any, pods: Any) -> bool:
        for pod in reduction.drop_pod_finalizers:
            await self._drop(pod)
        return await write(self, before, reduction, pods)

    patch.setattr(Reconciler, "_write", seeded)


def _finalizer_with_any_exit(patch: pytest.MonkeyPatch) -> None:
    """The finalizer of an ended pod is removed, whether or not its end is recorded."""
    sound = reduce.reduce

    def seeded(allocation: Allocation, pods: Iterable[Pod], **how: Any) -> Any:
        found = tuple(pods)
        made = sound(allocation, found, **how)
        over = tuple(pod for pod in found if pod.status.phase in ("Succeeded", "Failed"))
        return msgspec.structs.replace(made, changed=False, drop_pod_finalizers=over) if over else made

    patch.setattr(reconcile, "reduce", seeded)


def _everything_is_news(patch: pytest.MonkeyPatch) -> None:
    """Every reconciliation writes a status."""
    details = reduce._with_details  # pyright: ignore[reportPrivateUsage]

    def seeded(view: Any, moved: Any) -> Any:
        said = details(view, moved)
        after = msgspec.structs.replace(said.allocation.status, message=f"seen at {int(view.now)}")
        return msgspec.structs.replace(
            said, allocation=transitions.with_status(said.allocation, after), at=view.now + 1.0
        )

    patch.setattr(reduce, "_with_details", seeded)


def _status_over_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """After a conflict the same status is written under the new version."""

    async def blunt(self: Any, before: Allocation, reduction: Any, pods: Any) -> bool:
        meta = before.metadata
        found = await self._kube.get(ALLOCATIONS, meta.name, namespace=meta.namespace)
        body = {"metadata": found.metadata.fence, "status": reduction.allocation.status}
        try:
            self._answers[meta.uid] = await self._kube.replace_status(ALLOCATIONS, body)
        except StaleError:
            return False
        return True

    patch.setattr(Reconciler, "_write", blunt)


def _a_cancel_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """After the release a running allocation continues although it is stopped."""
    patch.setattr(ReductionView, "stop", property(lambda _self: None))


def _the_end_is_rewritten(patch: pytest.MonkeyPatch) -> None:
    """A watcher judges an ended allocation again."""
    sound = reduce.reduce

    def late(allocation: Allocation, pods: Iterable[Pod], **how: Any) -> Any:
        made = sound(allocation, pods, **how)
        if allocation.status.phase is not Phase.TERMINATED or allocation.status.result is Result.FAILED:
            return made
        after = msgspec.structs.replace(allocation.status, result=Result.FAILED)
        return msgspec.structs.replace(made, allocation=transitions.with_status(allocation, after), changed=True)

    patch.setattr(reconcile, "reduce", late)


def _phases_are_skipped(patch: pytest.MonkeyPatch) -> None:
    progressed = reduce._progressed  # pyright: ignore[reportPrivateUsage]

    def seeded(view: Any, allocation: Allocation) -> Allocation:
        after = progressed(view, allocation)
        if allocation.status.phase is Phase.ASSIGNED and after.status.phase is not Phase.ASSIGNED:
            kept = [item for item in after.status.transitions if item.phase is not Phase.PULLING]
            return transitions.with_status(after, msgspec.structs.replace(after.status, transitions=kept))
        return after

    patch.setattr(reduce, "_progressed", seeded)


def _hints_are_sent_by_nobody(patch: pytest.MonkeyPatch) -> None:
    """The watcher sends no hints, so a lost hint of the scheduler is not repeated."""

    def silent(_self: Any, _allocation: Allocation) -> None:
        return None

    patch.setattr(HintSender, "offer", silent)


def _streams_are_told_once(patch: pytest.MonkeyPatch) -> None:
    """An entry that was appended once is never checked again."""

    offer = Relay.offer

    def once(self: Any, allocation: Allocation) -> None:
        told: dict[str, int] = self.__dict__.setdefault("_told", {})
        if told.get(allocation.metadata.uid, -1) < allocation.status.seq:
            told[allocation.metadata.uid] = allocation.status.seq
            offer(self, allocation)

    patch.setattr(Relay, "offer", once)


def _a_failed_read_is_an_empty_one(patch: pytest.MonkeyPatch) -> None:
    """An object that cannot be read is treated as missing, and its dependents are swept. The sweep's cache shows no
    owners, so that it has to read them."""
    make = Sweeper.__init__

    class ErrorsAsAbsence:
        def __init__(self, kube: Any) -> None:
            self._kube = kube

        def __getattr__(self, name: str) -> Any:
            return getattr(self._kube, name)

        async def get(self, resource: Any, name: str, **how: Any) -> Any:
            try:
                return await self._kube.get(resource, name, **how)
            except TransientError as error:
                raise NotFoundError(str(error)) from error

        async def list(self, resource: Any, **how: Any) -> Any:
            try:
                return await self._kube.list(resource, **how)
            except TransientError:
                return Listed[Any](items=[], resource_version="0")

    def seeded(self: Any, kube: Any, world: Informers, clock: Any) -> None:
        seeded: Any = ErrorsAsAbsence(kube)
        make(self, seeded, Informers(pods=world.pods), clock)

    patch.setattr(Sweeper, "__init__", seeded)


def _a_sweep_on_a_cached_view(patch: pytest.MonkeyPatch) -> None:
    """The sweep trusts the owners in its cache."""

    async def cached(self: Any, suspects: Any) -> dict[str, Allocation]:
        return {item.metadata.uid: item for item in self._informers.allocations.items()}

    patch.setattr(Sweeper, "_owners_of", cached)


def _a_start_marks_pods(patch: pytest.MonkeyPatch) -> None:
    """A watcher that starts writes an annotation on each pod that it reconciles."""
    reconcile_ = Reconciler.reconcile

    async def marking(self: Any, uid: str) -> None:
        marked: set[str] = self.__dict__.setdefault("_marked", set())
        for pod in self._informers.pods_of(uid):
            meta = pod.metadata
            if meta.uid not in marked:
                marked.add(meta.uid)
                mark = {"metadata": {"annotations": {"slipway.dev/seen": f"{self._clock.now():.0f}"}}}
                with contextlib.suppress(ControlPlaneError):
                    await self._kube.patch(PODS, meta.name, mark, namespace=meta.namespace)
        await reconcile_(self, uid)

    patch.setattr(Reconciler, "reconcile", marking)


def _owners_are_listed_first(patch: pytest.MonkeyPatch) -> None:
    """The sweep judges objects by an older list of their owners."""
    sound = sweep.orphans

    def early(found: Any, owners: Any, *, now: float) -> Any:
        known = {uid: owner for uid, owner in owners.items() if owner.status.release is not None}
        return sound(found, known, now=now)

    patch.setattr(sweep, "orphans", early)


def _an_expired_watch_is_opened_again(patch: pytest.MonkeyPatch) -> None:
    """The watch is opened again at its expired version."""
    watch: Any = Reflector._watch  # pyright: ignore

    async def seeded(self: Any) -> int:
        try:
            return await watch(self)
        except ExpiredError as error:
            self._deaf = True
            raise UnavailableError(str(error)) from error

    async def deaf(self: Any) -> int:
        if getattr(self, "_deaf", False):
            raise UnavailableError("too old resource version")
        return await seeded(self)

    patch.setattr(Reflector, "_watch", deaf)


def _a_broken_watch_is_the_end(patch: pytest.MonkeyPatch) -> None:
    """When a watch breaks, its reflector stops without any sign."""
    run: Any = Reflector._run  # pyright: ignore
    restarted: Any = Reflector._restarted  # pyright: ignore

    async def final(self: Any, cause: str) -> None:
        await asyncio.get_running_loop().create_future()

    class WatchEnded(Exception):
        pass

    def ended(self: Any, cause: str) -> None:
        restarted(self, cause)
        raise WatchEnded

    async def once(self: Any) -> None:
        try:
            await run(self)
        except WatchEnded:
            await final(self, "")

    patch.setattr(Reflector, "_restarted", ended)
    patch.setattr(Reflector, "_run", once)


def _restarts_of_ranks_are_free(patch: pytest.MonkeyPatch) -> None:
    sound = rank_changes.with_restarts

    def free(view: ReductionView, allocation: Allocation) -> Allocation:
        after = sound(view, allocation)
        status = msgspec.structs.replace(after.status, restarts=allocation.status.restarts)
        return after if after is allocation else transitions.with_status(after, status)

    patch.setattr(rank_changes, "with_restarts", free)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="restarts of ranks are not counted",
        breaks="each restart of a rank in its place is counted, in the write that begins it",
        install=_restarts_of_ranks_are_free,
        hunts=(("rank-again", ""),),
        told_by=("I5",),
    ),
    Bug(
        name="a failed read is an empty one",
        breaks="nothing is deleted unless every read behind it was answered",
        install=_a_failed_read_is_an_empty_one,
        hunts=(("stay-long", "server-error@watcher.reads:*get allocations:before"),),
        told_by=("I3", "I18", "I20", "I21"),
    ),
    Bug(
        name="a sweep on a cached view",
        breaks="what a cache shows is where to look, and nothing is deleted before its owner was read",
        install=_a_sweep_on_a_cached_view,
        hunts=(("compete", "stall@watcher.allocations:*:before"),),
        told_by=("I3", "I5", "I18", "I20", "I21"),
    ),
    Bug(
        name="a start marks pods",
        breaks="restarting all of us writes nothing to any pod",
        install=_a_start_marks_pods,
        hunts=(("all-killed", ""),),
        told_by=("I25",),
    ),
    Bug(
        name="what is young has no owner",
        breaks="what has an owner is never swept, however new both are",
        install=_owners_are_listed_first,
        hunts=(
            ("stay-long", "freeze@podworker:*update allocations:before"),
            ("stay-long", "crash@podworker:*update allocations:before"),
        ),
        told_by=("I5", "I18", "I20"),
    ),
    Bug(
        name="an expired watch is opened again",
        breaks="an expired version means LIST again",
        install=_an_expired_watch_is_opened_again,
        hunts=(("launch-1", "expired@watcher.pods:*:before"),),
        told_by=("I18",),
    ),
    Bug(
        name="a broken watch is the end",
        breaks="a watch that ends or breaks is opened again, for ever",
        install=_a_broken_watch_is_the_end,
        hunts=(("launch-1", "stall-cut@watcher.pods:*:before"), ("launch-1", "close@watcher.allocations:*:before")),
        told_by=("I18",),
    ),
    Bug(
        name="next attempt on a cached view",
        breaks="another attempt needs a consistent LIST that shows no live pod of the last",
        install=_next_attempt_on_a_cached_view,
        hunts=(("stale-view", ""), ("restart", "stall@watcher.pods:*:before")),
        told_by=("I3", "I4", "I12", "I20"),
    ),
    Bug(
        name="next attempt beside the last",
        breaks="another attempt waits until nothing of the last runs",
        install=_next_attempt_beside_the_last,
        hunts=(
            ("restart", ""),
            ("fail", ""),
            ("pod-evicted", ""),
            ("node-lost", ""),
            ("preempt-acked", ""),
            ("poison", ""),
        ),
        told_by=("I3", "I20"),
    ),
    Bug(
        name="an older view takes a rank back",
        breaks="what is on record of a pod is moved on by a view of it, and never back",
        install=_an_older_view_takes_back,
        hunts=(("restart", "stall@watcher.pods:*:before"),),
        told_by=("I8", "I24"),
        replicas=2,
    ),
    Bug(
        name="absence is evidence",
        breaks="a pod that is not seen is looked for before it counts as gone",
        install=_absence_is_evidence,
        hunts=(("stale-view", ""), ("launch-4", "crash@watcher:*:after")),
        told_by=("I3", "I18", "I20"),
    ),
    Bug(
        name="a node unseen is gone",
        breaks="a node is gone when the API server says so, not when a cache lacks it",
        install=_nodes_unseen_are_gone,
        hunts=(("new-node", ""),),
        told_by=("I18", "I12"),
    ),
    Bug(
        name="a missing pod has succeeded",
        breaks="an exit that nobody saw is no success",
        install=_missing_is_success,
        hunts=(("pod-torn-out", ""),),
        told_by=("I20",),
    ),
    Bug(
        name="a lost node is success",
        breaks="what ran on a node that is gone has failed",
        install=_a_lost_node_is_success,
        hunts=(("node-lost", ""),),
        told_by=("I20",),
    ),
    Bug(
        name="a lost node is the user's fault",
        breaks="the infrastructure's faults do not count against maxRestarts",
        install=_a_lost_node_is_the_users_fault,
        hunts=(("node-lost", ""),),
        told_by=("I18",),
    ),
    Bug(
        name="finalizer before the exit is recorded",
        breaks="a pod is let go after the write that holds its exit",
        install=_finalizer_before_exit,
        hunts=(("launch-1", ""), ("cancel-running", "")),
        told_by=("I20",),
    ),
    Bug(
        name="finalizer whatever is on record",
        breaks="a pod that has ended is kept until its exit is on record",
        install=_finalizer_with_any_exit,
        hunts=(("launch-4", ""),),
        told_by=("I20",),
    ),
    Bug(
        name="everything is news",
        breaks="at rest nobody writes",
        install=_everything_is_news,
        hunts=(("stay", ""),),
        told_by=("I18",),
    ),
    Bug(
        name="status over whatever is there",
        breaks="a status is written under the version it was reduced from; a conflict means look again",
        install=_status_over_whatever_is_there,
        hunts=(("evict-ready", ""),),
        told_by=("I7", "I8", "I18"),
    ),
    Bug(
        name="a cancel is not looked at",
        breaks="a cancel ends what runs",
        install=_a_cancel_is_not_looked_at,
        hunts=(("cancel-released", ""),),
        told_by=("I13", "I18"),
    ),
    Bug(
        name="the end is rewritten",
        breaks="Terminated is never left, and a result is written once (the API server refuses it, for ever)",
        install=_the_end_is_rewritten,
        hunts=(("launch-1", ""),),
        told_by=("I8",),
    ),
    Bug(
        name="phases are skipped",
        breaks="phases move as the table says, each with its entry",
        install=_phases_are_skipped,
        hunts=(("launch-1", ""),),
        told_by=("I8",),
    ),
    Bug(
        name="hints are sent once",
        breaks="hints are derived from objects and sent again",
        install=_hints_are_sent_by_nobody,
        hunts=(("launch-1", "flush@scheduler:*send hints:after"),),
        told_by=("I18",),
    ),
    Bug(
        name="streams are told once",
        breaks="what a stream has lost is found and told again",
        install=_streams_are_told_once,
        hunts=(("stay", "flush@watcher:*append events:after"),),
        told_by=("I15", "I18"),
    ),
)
