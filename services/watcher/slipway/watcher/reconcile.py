"""Brings one allocation up to date: read the stores, reduce, write, relay events, clean up, send a hint.

Owns the writes of the watcher for one allocation and their order. `reduce.py` makes all decisions. Level-triggered: a
key only means "reconcile this allocation", and acting on the present state is right, however late.

Invariants: a status is written under the resourceVersion that it was computed from. A view that is older than our own
last write is never used. A finalizer is removed only after the write that stores what it protected. A conflict is not
logged; it leads to a fresh read.

A status that only reports progress is written at once or, under load, together with the next status (`WritePace`). A
status write costs the API server about as much as the rest of a launch, and a pod that has a node usually runs a moment
later. While many allocations start, the transitions Pulling and Starting are therefore delayed and written together
with Running. Promises: only progress to Pulling and Starting is delayed. A delayed status is written at most
`HELD_S_MAX` after it was first seen. Under low load, the active replica delays only the progress of large gangs.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from slipway.accounting.daily_totals import ANNOTATION_USAGE, BOOKED
from slipway.crd.members import rank_count
from slipway.crd.meta import TEARDOWN_FINALIZER, TRACKING_FINALIZER
from slipway.crd.transitions import id_of, seq_of, stop_reason
from slipway.crd.v1alpha1 import Allocation, AllocationStatus
from slipway.errors import ControlPlaneError, NotFoundError, StaleError
from slipway.kube.objects import Pod
from slipway.kube.resources import ALLOCATIONS, PODS, SECRETS, brief
from slipway.kube.statuses import put_status
from slipway.kube.workqueue import WorkQueue
from slipway.model import ids
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason
from slipway.model.times import parse_time
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.runtime.instruments import OTHER
from slipway.streams import keys
from slipway.watcher import dependencies, exits, finalizers, spans
from slipway.watcher.consistent_reads import ConsistentReads, PodWatchLag
from slipway.watcher.dependencies import NOTHING_SEEN, AwaitedAllocation, Seen, SeenDependency
from slipway.watcher.ends import LifecyclePolicy
from slipway.watcher.informers import Informers
from slipway.watcher.ports import ActivitySink, HintQueue, Kube, LogProgress, Outbox, UsageLedger
from slipway.watcher.reduce import Reduction, reduce
from slipway.watcher.view import last_transition_at

AT_ONCE_MAX = 10.0
AT_ONCE_PER_S = 2.0
"""After a pause, `AT_ONCE_MAX` writes are made without delay; under steady load, `AT_ONCE_PER_S` a second."""
HELD_S_MAX = 5.0
LARGE_RANKS = 64
"""A status with so many ranks is large: its progress is always delayed."""
_BEFORE = (Phase.ASSIGNED, Phase.PULLING)
_AFTER = (Phase.PULLING, Phase.STARTING)


class WritePace:
    """Limits the writes without delay by a token bucket.

    `acts_first` is whether this replica may write without delay. A standby may not: it leaves progress to the primary.
    """

    def __init__(self, clock: Clock, acts_first: Callable[[], bool] = lambda: True) -> None:
        self._clock = clock
        self._acts_first = acts_first
        self._places = AT_ONCE_MAX
        self._filled_at = clock.monotonic()
        self._held: dict[str, tuple[int, float]] = {}
        """{uid: (seq of the status before the delayed write, since when)}"""

    def wait_s(self, before: Allocation, reduction: Reduction) -> float:
        """Return how many seconds to wait before `reduction` is written; 0: now."""
        uid = before.metadata.uid
        if not _is_mere_progress(before, reduction):
            self._held.pop(uid, None)
            return 0.0
        now = self._clock.monotonic()
        seq, since = self._held.get(uid, (-1, now))
        if seq == before.status.seq:
            wait_s = since + HELD_S_MAX - now
        else:
            is_large = rank_count(before) >= LARGE_RANKS
            wait_s = HELD_S_MAX if is_large or not self._take_token(now) else 0.0
            self._held[uid] = before.status.seq, now
        if wait_s <= 0:
            self._held.pop(uid, None)
        return wait_s

    def forget(self, uid: str) -> None:
        """Forget an allocation that is gone."""
        self._held.pop(uid, None)

    def _take_token(self, now: float) -> bool:
        self._places = min(AT_ONCE_MAX, self._places + (now - self._filled_at) * AT_ONCE_PER_S)
        self._filled_at = now
        if self._places < 1 or not self._acts_first():
            return False
        self._places -= 1
        return True


def _is_mere_progress(before: Allocation, reduction: Reduction) -> bool:
    phases = before.status.phase in _BEFORE and reduction.allocation.status.phase in _AFTER
    clears = reduction.drop_pod_finalizers or reduction.force_deletes or reduction.drop_cr_finalizer
    return reduction.changed and phases and not clears


ROUNDS_MAX = 4
"""The number of writes for one key before other keys get their turn."""
PATCHES_AT_ONCE = 16
ASSIGNED_HINT_DELAY_S = 10.0
"""The scheduler sends a hint for each allocation that it assigns; the watcher's hint replaces a lost one. An earlier
hint would only add to a burst that the pod worker has not handled yet."""
OPEN_WAIT_S = 2.0
"""The end of an attempt waits at most so long until the logs of its running ranks are open."""
OPEN_LOOK_S = 0.1
LEFTOVER_RECHECK_S = 0.5
STALE_RECHECK_S = 0.05

_OVER = (Phase.TERMINATING, Phase.TERMINATED)
_REASONS = frozenset(Reason)
_log = log.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReconcilerDeps:
    """The dependencies of a reconciler."""

    kube: Kube
    informers: Informers
    consistent_reads: ConsistentReads
    queue: WorkQueue[str]
    outbox: Outbox
    accounts: UsageLedger
    hints: HintQueue
    log_progress: LogProgress
    activity: ActivitySink
    clock: Clock


class Reconciler:
    """Works on the keys (allocation uids) of one queue.

    `orphaned` is called when pods have no allocation, `wrote` after each status that this replica has written;
    `acts_first` is whether this replica acts without delay.
    """

    def __init__(
        self,
        deps: ReconcilerDeps,
        *,
        policy: LifecyclePolicy,
        relay_wait_s: float,
        orphaned: Callable[[], None] = lambda: None,
        wrote: Callable[[], None] = lambda: None,
        acts_first: Callable[[], bool] = lambda: True,
    ) -> None:
        self._kube = deps.kube
        self._informers = deps.informers
        self._consistent_reads = deps.consistent_reads
        self._queue = deps.queue
        self._outbox = deps.outbox
        self._accounts = deps.accounts
        self._hints = deps.hints
        self._log_progress = deps.log_progress
        self._marks = deps.activity
        self._clock = deps.clock
        self._policy = policy
        self._relay_wait_s = relay_wait_s
        self._orphaned = orphaned
        self._wrote = wrote
        self._answers: dict[str, Allocation] = {}
        """{uid: the response to our last write}, until the store has reached that version."""
        self._written: dict[str, tuple[AllocationStatus, float]] = {}
        """{uid: (the stored status, when it was written as far as known)}, whichever replica wrote it."""
        self._ends_since: dict[str, float] = {}
        """{uid: since when the write that ends its attempt is delayed (monotonic seconds)}"""
        self._patches = asyncio.Semaphore(PATCHES_AT_ONCE)
        self._pace = WritePace(deps.clock, acts_first)
        self._late = PodWatchLag(deps.clock, lambda: self._informers.pods.version)

    async def reconcile(self, uid: str) -> None:
        """Bring one allocation up to date.

        Raises:
            StaleError: the object keeps changing.
            TransientError, PermanentError: the API server did not accept a write; try again later.
        """
        await self._reconcile(uid)
        # The watch event that shows the allocation at rest may have arrived before the response to our last write.
        held = self._informers.allocations.by_uid(uid)
        if held is not None and self._informers.is_at_rest(held):
            self.forget(uid)

    async def _reconcile(self, uid: str) -> None:
        for _ in range(ROUNDS_MAX):
            allocation = self._latest(uid)
            if allocation is None:
                self._forget(uid)
                return
            self._outbox.offer(allocation)
            reduction, pods = await self._reduced(allocation)
            liveness.beat()
            wait_s = self._pace.wait_s(allocation, reduction) or self._logs_wait_s(allocation, reduction, pods)
            if wait_s > 0:
                self._queue.add_after(uid, wait_s)
                return
            if reduction.changed and not await self._write(allocation, reduction, pods):
                continue
            liveness.beat()
            if not await self._clean_up(reduction):
                self._hint(reduction)
            if reduction.changed and reduction.needs.recheck_at is not None and self._is_due(reduction):
                continue
            self._schedule(uid, reduction)
            return
        self._queue.add(uid)

    def forget(self, uid: str) -> None:
        """Forget an allocation that is gone, or at rest."""
        self._answers.pop(uid, None)
        self._written.pop(uid, None)
        self._pace.forget(uid)
        self._late.forget(uid)
        self._ends_since.pop(uid, None)

    # --- observing --------------------------------------------------------------------------------------------------

    def _latest(self, uid: str) -> Allocation | None:
        """Return the newest version that we know: the store's, or the response to our own last write."""
        held, answer = self._informers.allocations.by_uid(uid), self._answers.get(uid)
        if answer is None:
            return held
        if held is not None and held.metadata.version >= answer.metadata.version:
            del self._answers[uid]
            return held
        if held is None and self._informers.allocations.version >= answer.metadata.version:
            # The store is newer than our write and does not have the object, so the object was deleted.
            del self._answers[uid]
            return None
        return answer

    def _forget(self, uid: str) -> None:
        self.forget(uid)
        if self._informers.pods_of(uid):
            self._orphaned()

    async def _reduced(self, allocation: Allocation) -> tuple[Reduction, Sequence[Pod]]:
        """Return the reduction of the allocation, and the pods that it was made from."""
        uid = allocation.metadata.uid
        seen = self._informers.pods_of(uid)
        gone = await self._consistent_reads.nodes_gone(seen) if self._may_lose_nodes(allocation) else frozenset[str]()
        if allocation.status.phase is Phase.PENDING and (waits_for := dependencies.awaited_by(allocation)):
            awaited = {each.allocation: await self._seen(allocation, each) for each in waits_for}
            return self._reduce(allocation, seen, gone, consistent=False, awaited=awaited), seen
        reduction = self._reduce(allocation, seen, gone, consistent=False)
        if not reduction.needs.consistent_list:
            self._late.forget(uid)
            return reduction, seen
        late_s = (
            0.0
            if reduction.changed
            else self._late.wait_s(allocation, seen, self._consistent_reads.deleted_pods_of(uid))
        )
        if late_s > 0:
            self._queue.add_after(uid, late_s)
            return reduction, seen
        listed = await self._consistent_reads.pods_of(allocation)
        return self._reduce(allocation, listed, gone, consistent=True), listed

    async def _seen(self, allocation: Allocation, awaited: AwaitedAllocation) -> SeenDependency:
        """Return the state of one dependency; if the stores do not have it, it is read from the API server."""
        shown = dependencies.state_of(allocation, awaited, self._named)
        if shown is not None:
            return shown
        names, space = awaited.names, allocation.metadata.namespace
        read = {each.metadata.name: each for each in await self._consistent_reads.allocations_named(names, space)}

        def find(namespace: str, name: str) -> Allocation | None:
            return read.get(name) or self._named(namespace, name)

        shown = dependencies.state_of(allocation, awaited, find)
        return dependencies.state_of_absent(allocation, awaited) if shown is None else shown

    def _named(self, namespace: str, name: str) -> Allocation | None:
        """Return the newest version that we know of the allocation with this name."""
        found = self._informers.allocations.get(name, namespace)
        return self._latest(found.metadata.uid) if found is not None else None

    def _may_lose_nodes(self, allocation: Allocation) -> bool:
        return self._informers.nodes.synced and allocation.status.admission is not None

    def _reduce(
        self,
        allocation: Allocation,
        pods: Sequence[Pod],
        gone: frozenset[str],
        *,
        consistent: bool,
        awaited: Seen = NOTHING_SEEN,
    ) -> Reduction:
        return reduce(
            allocation,
            pods,
            now=self._clock.now(),
            policy=self._policy,
            namespace_terminating=self._informers.is_terminating(allocation.metadata.namespace),
            nodes_gone=gone,
            consistent=consistent,
            written_at=self._written_at(allocation),
            warnings=self._informers.warnings.of(pod.metadata.uid for pod in pods),
            awaited=awaited,
        )

    def _written_at(self, allocation: Allocation) -> float:
        """Return when the status was last written, by any replica (epoch seconds);
        at the first look, its last transition."""
        uid, status = allocation.metadata.uid, allocation.status
        known = self._written.get(uid)
        if known is None:
            known = self._written[uid] = status, last_transition_at(allocation)
        elif known[0] is not status:
            known = self._written[uid] = status, known[1] if known[0] == status else self._clock.now()
        return known[1]

    # --- writing ----------------------------------------------------------------------------------------------------

    def _logs_wait_s(self, before: Allocation, reduction: Reduction, pods: Sequence[Pod]) -> float:
        """Return how many seconds to delay the write that ends an attempt; 0: write it now.

        One rank has failed, so the pod worker will delete the pods of the other ranks, and their nodes remove their
        logs. The logs of ranks that began a moment ago may not be open yet. An attempt that has to stop does not wait.
        """
        uid, after = before.metadata.uid, reduction.allocation
        ends = after.status.phase in _OVER or after.status.attempt != before.status.attempt
        if not reduction.changed or not ends or before.status.phase in _OVER or stop_reason(before) is not None:
            self._ends_since.pop(uid, None)
            return 0.0
        running = (pod for pod in pods if exits.is_running(pod) and pod.metadata.deletion_timestamp is None)
        now = self._clock.monotonic()
        if all(map(self._log_progress.is_open, running)) or now >= self._ends_since.setdefault(uid, now) + OPEN_WAIT_S:
            return 0.0
        return OPEN_LOOK_S

    async def _write(self, before: Allocation, reduction: Reduction, pods: Sequence[Pod]) -> bool:
        """PUT the status; return False when the object has changed: its newest version was read then."""
        after, uid = reduction.allocation, before.metadata.uid
        try:
            with spans.write_span(before, after, _new_events(before, after)):
                written = await put_status(self._kube, before, after.status)
        except StaleError:
            telemetry.STATUS_WRITES.labels(outcome="stale").inc()
            await self._observe_again(before)
            return False
        except NotFoundError:
            self._answers.pop(uid, None)
            raise StaleError(f"{before.metadata.name} no longer exists") from None
        except ControlPlaneError:
            telemetry.STATUS_WRITES.labels(outcome="failed").inc()
            raise
        telemetry.STATUS_WRITES.labels(outcome="ok").inc()
        self._answers[uid] = written
        self._written[uid] = written.status, self._clock.now()
        self._informers.allocations.expect(uid, written.metadata.version)
        self._outbox.offer(written)
        self._wrote()
        if written.status.phase is Phase.TERMINATED:
            for each in self._informers.waiting_for(written):
                self._queue.add(each.metadata.uid)
        if Event.RUNNING in _new_events(before, written) and written.spec.idle_timeout:
            self._marks.offer_activity(id_of(written), keys.ACTIVITY_SINCE, parse_time(written.status.started_at))
        _count(before, written)
        spans.emit_ended(before, written, pods, self._clock.now())
        return True

    async def _observe_again(self, before: Allocation) -> None:
        """Read the object from the API server, because the watch may be late."""
        meta = before.metadata
        try:
            found = await self._kube.get(ALLOCATIONS, meta.name, namespace=meta.namespace)
        except NotFoundError:
            self._answers.pop(meta.uid, None)
            raise StaleError(f"{before.metadata.name} no longer exists") from None
        if found.metadata.uid != meta.uid:
            self._answers.pop(meta.uid, None)
            raise StaleError(f"{meta.name} was replaced by another object")
        self._answers[meta.uid] = found

    async def _clean_up(self, reduction: Reduction) -> bool:
        """Clean up: pods with their finalizers, pods of dead nodes, and at last the object's own finalizer.

        Return whether the object's finalizer was removed: then nothing is left to do.
        """
        for pod in reduction.force_deletes:
            await self._force_delete(pod)
            liveness.beat()
        for pod, grace_s in reduction.hurried:
            await self._shorten_grace(pod, grace_s)
            liveness.beat()
        drops = {pod.metadata.uid for pod in reduction.drop_pod_finalizers}
        deletes = {pod.metadata.uid for pod in reduction.deletes}
        spent = {pod.metadata.uid: pod for pod in (*reduction.drop_pod_finalizers, *reduction.deletes)}
        read = [(uid, pod) for uid, pod in spent.items() if self._is_read(pod)]
        if read:
            await asyncio.gather(
                *(self._release_pod(pod, drops=uid in drops, deletes=uid in deletes) for uid, pod in read)
            )
        return reduction.drop_cr_finalizer and await self._remove_object_finalizer(reduction.allocation)

    def _is_read(self, pod: Pod) -> bool:
        return self._informers.pods.is_current(pod.metadata.uid) and self._log_progress.is_drained(pod)

    async def _release_pod(self, pod: Pod, *, drops: bool, deletes: bool) -> None:
        """Delete a pod whose log is read, and remove its finalizer.

        The delete comes first: a delete after the finalizer would cost the API server another write of the pod.
        """
        meta = pod.metadata
        if deletes:
            async with self._patches:
                with suppress(NotFoundError, StaleError):
                    await self._kube.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid)
            liveness.beat()
        if drops:
            await self._drop(pod)

    async def _drop(self, pod: Pod) -> None:
        # A pod whose end was not seen (its namespace is being deleted) may have ended since:
        # then its exit is recorded first.
        is_open = exits.exit_of(pod) is None
        async with self._patches:
            try:
                left = await finalizers.drop(
                    self._kube, brief(PODS), pod.metadata, TRACKING_FINALIZER, only_as_seen=is_open
                )
            except StaleError:
                return
        liveness.beat()
        if left is not None:
            self._informers.pods.expect(pod.metadata.uid, left.metadata.version)

    async def _force_delete(self, pod: Pod) -> None:
        meta = pod.metadata
        if meta.deletion_timestamp is not None and meta.deletion_grace_period_seconds == 0:
            return
        try:
            await self._kube.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_s=0)
        except (NotFoundError, StaleError):
            return
        _log.info("pod of a lost node deleted", pod=meta.name, node=pod.spec.node_name)

    async def _shorten_grace(self, pod: Pod, grace_s: int) -> None:
        meta = pod.metadata
        with suppress(NotFoundError, StaleError):
            await self._kube.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_s=grace_s)
            _log.info("grace period of a pod shortened", pod=meta.name, grace_s=grace_s)

    async def _remove_object_finalizer(self, allocation: Allocation) -> bool:
        """Make the last step: remove the object's finalizer, once nothing else of it exists and its end is relayed."""
        uid, status = allocation.metadata.uid, allocation.status
        ended_at = parse_time(status.ended_at) if status.ended_at else last_transition_at(allocation)
        is_told = self._outbox.is_published(allocation)
        self._accounts.offer(allocation)
        is_awaited = self._is_awaited(allocation) or not self._accounts.is_settled(allocation)
        if is_awaited or (not is_told and self._clock.now() < ended_at + self._relay_wait_s):
            self._queue.add_after(uid, LEFTOVER_RECHECK_S)
            return False
        if await self._consistent_reads.has_leftovers(allocation):
            self._queue.add_after(uid, LEFTOVER_RECHECK_S)
            return False
        if not is_told:
            _log.warning("finalizer removed before the last event was relayed", allocation=id_of(allocation))
        if allocation.spec.secret_variables:
            # The name of the Secret contains the allocation's uid, so no read is needed,
            # and no permission to read Secrets.
            with suppress(NotFoundError):
                name = ids.values_name(uid)
                await self._kube.delete(SECRETS, name, namespace=allocation.metadata.namespace)
        try:
            mark = (ANNOTATION_USAGE, BOOKED) if self._accounts.is_added(allocation) else None
            left = await finalizers.drop(self._kube, ALLOCATIONS, allocation.metadata, TEARDOWN_FINALIZER, mark=mark)
        except StaleError:
            self._queue.add_after(uid, STALE_RECHECK_S)
            return False
        if left is not None and left.metadata.deletion_timestamp is None:
            self._answers[uid] = left
            self._informers.allocations.expect(uid, left.metadata.version)
        else:
            self._answers.pop(uid, None)
        return True

    def _is_awaited(self, ended: Allocation) -> bool:
        """Whether an allocation that waits for this one has not recorded its end yet."""
        waiting = [self._latest(each.metadata.uid) for each in self._informers.waiting_for(ended)]
        return dependencies.is_awaited(ended, [each for each in waiting if each is not None])

    # --- hints and the next check -----------------------------------------------------------------------------------

    def _hint(self, reduction: Reduction) -> None:
        allocation = reduction.allocation
        if not reduction.needs.hint:
            return
        if allocation.status.phase is Phase.ASSIGNED:
            wait_s = last_transition_at(allocation) + ASSIGNED_HINT_DELAY_S - self._clock.now()
            if wait_s > 0:
                self._queue.add_after(allocation.metadata.uid, wait_s)
                return
        self._hints.offer(self._latest(allocation.metadata.uid) or allocation)

    def _is_due(self, reduction: Reduction) -> bool:
        at = reduction.needs.recheck_at
        return at is not None and at <= self._clock.now()

    def _schedule(self, uid: str, reduction: Reduction) -> None:
        at = reduction.needs.recheck_at
        if at is not None:
            self._queue.add_after(uid, max(STALE_RECHECK_S, at - self._clock.now()))


def _new_events(before: Allocation, after: Allocation) -> list[str]:
    """Return the events that a write records."""
    entries = after.status.transitions
    return [entry.type.value for entry in entries if entry.seq > seq_of(before) and entry.type is not Event.REQUESTED]


def _count(before: Allocation, after: Allocation) -> None:
    for event in _new_events(before, after):
        telemetry.TRANSITIONS.labels(event=event).inc()
    status = after.status
    if before.status.phase is not Phase.TERMINATED and status.phase is Phase.TERMINATED and status.result is not None:
        reason = status.reason if status.reason in _REASONS else OTHER
        telemetry.ENDS.labels(result=status.result.value, reason=reason).inc()
