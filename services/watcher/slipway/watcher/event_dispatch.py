"""Forwards each change of an object to the parts that need it: queue, relay, logs, consistent reads, scheduler.

Owns the mapping from a change of any object to the allocations that it affects. Decides nothing about them: a key in
the queue only means "reconcile this allocation".

Whether this replica acts at once, or first leaves the work to the primary replica for a moment, is one decision that
several loops need (`ReplicaRole`). The lease is no fence: two replicas may act at once, and every write is fenced by
itself.
"""

from dataclasses import dataclass
from typing import Any

from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.lease import Leadership
from slipway.kube.objects import Namespace, Node, Pod
from slipway.kube.workqueue import WorkQueue
from slipway.model.lifecycle import Phase
from slipway.runtime.clock import Clock
from slipway.watcher import exits
from slipway.watcher.consistent_reads import ConsistentReads
from slipway.watcher.hints import HintSender, SchedulerWaker
from slipway.watcher.informers import BY_NAMESPACE, BY_NODE, Informers, is_out_of_service
from slipway.watcher.podlogs import PodLogs
from slipway.watcher.reconcile import Reconciler
from slipway.watcher.relay import Relay

STAND_IN_S = 5.0
"""For how many seconds a standby acts at once after it has made a write that the primary should have made."""


class ReplicaRole:
    """The role of one replica: primary or standby. `alone` is True in a single pass without other replicas (`--once`).

    For its first `grace_s` a replica acts at once: it may replace the only replica, whose lease has not expired yet.
    """

    def __init__(self, clock: Clock, *, standby_delay_s: float, grace_s: float) -> None:
        self._clock = clock
        self._standby_delay_s = standby_delay_s
        self._stands_in_until = clock.monotonic() + grace_s
        self.leadership: Leadership | None = None
        self.alone = False

    @property
    def is_primary(self) -> bool:
        """Whether this replica holds the lease."""
        return self.alone or (self.leadership is not None and self.leadership.is_valid())

    @property
    def delay_s(self) -> float:
        """For how many seconds a change is left to the primary: 0 on the primary and on a standby that stands in."""
        acts = self.is_primary or self._clock.monotonic() < self._stands_in_until
        return 0.0 if acts else self._standby_delay_s

    def stand_in(self) -> None:
        """Act at once for a while: this replica has found a write that a working primary would have made."""
        self._stands_in_until = max(self._stands_in_until, self._clock.monotonic() + STAND_IN_S)


GANG_MIN = 16
"""From so many pods on, changes of a gang's pods are reconciled together."""
GANG_LOOK_S_PER_POD = 1 / 2048
GANG_LOOK_S_MAX = 1.0


@dataclass(frozen=True, kw_only=True)
class ChangeReceivers:
    """The parts that get the changes."""

    queue: WorkQueue[str]
    relay: Relay
    hints: HintSender
    waker: SchedulerWaker
    logs: PodLogs
    consistent_reads: ConsistentReads
    reconciler: Reconciler


class EventDispatcher:
    """Subscribes to the stores when it is constructed."""

    def __init__(self, informers: Informers, receivers: ChangeReceivers, role: ReplicaRole) -> None:
        self._informers = informers
        self._receivers = receivers
        self._role = role
        informers.allocations.on_change(self._allocation_changed)
        informers.pods.on_change(self._pod_changed)
        informers.nodes.on_change(self._node_changed)
        informers.namespaces.on_change(self._namespace_changed)
        for store in (informers.pools, informers.queues, informers.jobs):
            store.on_change(self._policy_changed)

    def enqueue(self, uid: str, delay_s: float = 0.0) -> None:
        """Queue an allocation: now, or after a short delay when another replica is the primary."""
        if uid:
            self._receivers.queue.add_after(uid, max(delay_s, self._role.delay_s))

    def enqueue_all(self, *, steady: bool = True) -> None:
        """Queue all allocations that are not at rest; without `steady`, not those that are Pending or Running."""
        for allocation in self._informers.allocations.items():
            is_calm = allocation.status.phase in (Phase.PENDING, Phase.RUNNING)
            if (steady or not is_calm) and not self._informers.is_at_rest(allocation):
                self.enqueue(allocation.metadata.uid)

    def _enqueue_waiting(self, ended: Allocation | None) -> None:
        """Queue the allocations that wait for this one to end."""
        for each in self._informers.waiting_for(ended) if ended is not None else ():
            self.enqueue(each.metadata.uid)

    def _allocation_changed(self, old: Allocation | None, new: Allocation | None) -> None:
        was_over = old is not None and old.status.phase is Phase.TERMINATED
        if new is None or (new.status.phase is Phase.TERMINATED and not was_over):
            self._enqueue_waiting(new or old)
        if new is None:
            if old is not None:
                self._receivers.relay.forget(old)
                self._receivers.hints.forget(old.metadata.uid)
                self._receivers.consistent_reads.forget(old.metadata.uid)
                self.enqueue(old.metadata.uid)
                self._wake_scheduler("allocation gone")
            return
        if self._role.delay_s == 0:
            self._receivers.relay.offer(new)
        if self._informers.is_at_rest(new):
            # The object is retained for days; what the watcher has remembered about it is not needed any more.
            self._receivers.consistent_reads.forget(new.metadata.uid)
            self._receivers.hints.forget(new.metadata.uid)
            self._receivers.reconciler.forget(new.metadata.uid)
        else:
            self.enqueue(new.metadata.uid)
        if new.status.phase in (Phase.PENDING, Phase.TERMINATED) and (
            old is None or old.status != new.status or old.spec != new.spec
        ):
            self._wake_scheduler(new.status.phase.value)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        uid = pod.metadata.labels.get(LABEL_ALLOCATION_UID, "")
        if new is None:
            self._receivers.logs.forget(pod)
            self._informers.warnings.forget(pod.metadata.uid)
            if self._informers.allocations.by_uid(uid) is not None:
                self._receivers.consistent_reads.note_deleted(pod)
        elif uid:
            self._receivers.logs.observe(new)
        self.enqueue(uid, _batch_delay_s(self._informers.count_pods_of(uid)))
        was_live = old is not None and not exits.is_over(old)
        if was_live and (new is None or exits.is_over(new)):
            self._wake_scheduler("pod ended")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None or is_out_of_service(new):
            node = new or old
            for pod in self._informers.pods.indexed(BY_NODE, node.metadata.name) if node is not None else ():
                self.enqueue(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""))
        if old is None or new is None or (old.spec, old.status.allocatable) != (new.spec, new.status.allocatable):
            self._wake_scheduler("node")

    def _namespace_changed(self, _old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and self._informers.is_terminating(new.metadata.name):
            for allocation in self._informers.allocations.indexed(BY_NAMESPACE, new.metadata.name):
                self.enqueue(allocation.metadata.uid)

    def _policy_changed(self, old: Any, new: Any) -> None:
        """Wake the scheduler if a spec has changed. The status of a pool is its ledger, which the scheduler itself
        writes."""
        if (old.spec if old is not None else None) != (new.spec if new is not None else None):
            self._wake_scheduler("policy")

    def _wake_scheduler(self, reason: str) -> None:
        if self._role.is_primary and self._informers.is_synced:
            self._receivers.waker.wake(reason)


def _batch_delay_s(pods: int) -> float:
    """Return how long to wait for more changes of a gang: one reconcile costs as many steps as the gang has pods."""
    return min(GANG_LOOK_S_MAX, pods * GANG_LOOK_S_PER_POD) if pods >= GANG_MIN else 0.0
