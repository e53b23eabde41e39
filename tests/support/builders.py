"""Builders of allocations, pods and nodes in a given state, as the watcher meets them.

`an_allocation().assigned().released()` and `a_pod(rank=0).running()` read like the story they tell; `.it` is the
struct. All objects of one story share the uid, the attempt and the times by default, so that they fit together.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.crd.meta import (
    ANNOTATION_MAIN_CONTAINER,
    LABEL_ALLOCATION,
    LABEL_ALLOCATION_UID,
    LABEL_ATTEMPT,
    LABEL_MANAGED_BY,
    LABEL_RANK,
    MANAGED_BY,
    TEARDOWN_FINALIZER,
    TRACKING_FINALIZER,
    Condition,
    ObjectMeta,
)
from slipway.crd.transitions import id_of, record, with_status
from slipway.crd.v1alpha1 import Admission, Allocation, Placement, PreemptSignal, Release, Signals, Stop
from slipway.kube.objects import (
    Container,
    ContainerState,
    ContainerStatus,
    Node,
    Pod,
    PodSpec,
    PodStatus,
    StateRunning,
    StateTerminated,
    StateWaiting,
)
from slipway.model import ids
from slipway.model.lifecycle import Event
from slipway.model.times import format_time

T0 = 1_700_000_000.0
"""When every story begins."""
UID = "0123abcd-0000-4000-8000-000000000000"
NAME = "run"
NAMESPACE = "team"


def at(seconds: float) -> str:
    """A time of the story, as Kubernetes writes it: whole seconds."""
    return format_time(int(T0 + seconds)).replace(".000Z", "Z")


def as_json(allocation: Allocation) -> dict[str, Any]:
    """The object as the API server stores it: defaults of the status filled in."""
    stored: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(allocation))
    stored["spec"] = {"priority": 50, "desired": "Running", "queue": "default", **stored["spec"]}
    status: dict[str, Any] = {"phase": "Pending", "seq": 0, "attempt": 1, **stored.get("status", {})}
    ranks: list[dict[str, Any]] = status.get("ranks") or []
    for rank in ranks:
        rank.setdefault("podUID", "")
    stored["status"] = status
    for name, value in (("pool", "default"), ("preemptible", False), ("maxRestarts", 0)):
        stored["spec"].setdefault(name, value)
    return stored


def pod_uid(rank: int, attempt: int = 1, uid: str = UID) -> str:
    """The uid of the pod of one rank of one attempt."""
    return f"{uid[:8]}-pod-{attempt}-{rank}"


class AllocationStory:
    """An allocation and what happened to it so far."""

    def __init__(self, it: Allocation) -> None:
        self.it = it

    def assigned(self, *nodes: str, at_s: float = 1.0, epoch: int = 1) -> "AllocationStory":
        """Admitted: rank r on the r-th node (`n<r>` when no nodes are given)."""
        count = sum(role.count for role in self.it.spec.ranks) or 1
        roles = [role.name for role in self.it.spec.ranks for _ in range(role.count)] or ["worker"]
        names = nodes or tuple(f"n{rank}" for rank in range(count))
        admission = Admission(
            decision_id=f"d{self.it.status.attempt}",
            epoch=epoch,
            attempt=self.it.status.attempt,
            at=format_time(T0 + at_s),
            placements=[Placement(rank=rank, role=roles[rank], node=node) for rank, node in enumerate(names)],
        )
        return AllocationStory(record(self.it, Event.ASSIGNED, now=T0 + at_s, admission=admission))

    def released(self) -> "AllocationStory":
        """The release of the current attempt is committed."""
        status = self.it.status
        placements = status.admission.placements if status.admission else []
        uids = [pod_uid(placement.rank, status.attempt, self.it.metadata.uid) for placement in placements]
        return self.with_status(release=Release(attempt=status.attempt, pod_uids=uids))

    def recorded(self, event: Event, *, at_s: float, reason: str = "", **changes: Any) -> "AllocationStory":
        """After one more transition."""
        return AllocationStory(record(self.it, event, now=T0 + at_s, reason=reason, **changes))

    def started(self, *, at_s: float = 2.0) -> "AllocationStory":
        """Pulling and Starting are recorded."""
        return self.recorded(Event.PULLING, at_s=at_s).recorded(Event.STARTING, at_s=at_s)

    def running(self, *, at_s: float = 3.0) -> "AllocationStory":
        """Released, and Running is recorded."""
        return self.started().recorded(Event.RUNNING, at_s=at_s, started_at=format_time(T0 + at_s))

    def ready(self, *, at_s: float = 4.0) -> "AllocationStory":
        """Ready is recorded."""
        return self.recorded(Event.READY, at_s=at_s, ready=True)

    def stopped(self, reason: str, *, at_s: float = 5.0, requeue: bool = False, by: str = "") -> "AllocationStory":
        """The scheduler has stopped it."""
        stop = Stop(reason=reason, at=format_time(T0 + at_s), attempt=self.it.status.attempt, requeue=requeue, by=by)
        return self.with_status(stop=stop)

    def killed(self) -> "AllocationStory":
        """Its user has cancelled it."""
        return self.with_spec(desired="Stopped")

    def deleted(self, *, at_s: float = 5.0) -> "AllocationStory":
        """A user has deleted the object; its finalizer still keeps it."""
        return self.with_metadata(deletion_timestamp=at(at_s), deletion_grace_period_seconds=0)

    def asked_to_preempt(self, n: int = 1) -> "AllocationStory":
        """Its user asks its ranks to prepare for preemption."""
        attempt = self.it.status.attempt
        signal = PreemptSignal(n=n, reason="asked", attempt=attempt)
        before = self.it.spec.signals or Signals(attempt=attempt)
        return self.with_spec(signals=msgspec.structs.replace(before, preempt=signal, attempt=attempt))

    def acknowledged(self, *ranks: int, n: int = 1) -> "AllocationStory":
        """Those ranks have acknowledged the preemption."""
        before = self.it.spec.signals or Signals(attempt=self.it.status.attempt)
        acks = {str(rank): n for rank in ranks}
        return self.with_spec(signals=msgspec.structs.replace(before, acks=acks))

    def condition(self, type_: str, reason: str, message: str = "", *, at_s: float = 2.0) -> "AllocationStory":
        """A condition of the current attempt is True."""
        found = Condition(
            type=type_,
            status="True",
            reason=reason,
            message=message,
            observed_generation=self.it.status.attempt,
            last_transition_time=format_time(T0 + at_s),
        )
        return self.with_status(conditions=[*self.it.status.conditions, found])

    def with_status(self, **changes: Any) -> "AllocationStory":
        """With other status fields."""
        return AllocationStory(with_status(self.it, msgspec.structs.replace(self.it.status, **changes)))

    def with_spec(self, **changes: Any) -> "AllocationStory":
        """With other spec fields."""
        spec = msgspec.structs.replace(self.it.spec, **changes)
        return AllocationStory(msgspec.structs.replace(self.it, spec=spec))

    def with_metadata(self, **changes: Any) -> "AllocationStory":
        """With other metadata."""
        metadata = msgspec.structs.replace(self.it.metadata, **changes)
        return AllocationStory(msgspec.structs.replace(self.it, metadata=metadata))


def an_allocation(
    ranks: int | None = None, *, name: str = NAME, namespace: str = NAMESPACE, uid: str = UID, **spec: Any
) -> AllocationStory:
    """A fresh allocation with `ranks` ranks of one role (one rank without roles when None)."""
    body: dict[str, Any] = {"kind": "command", **spec}
    if ranks is not None:
        body.setdefault("ranks", [{"name": "worker", "count": ranks}])
    metadata = ObjectMeta(
        name=name,
        namespace=namespace,
        uid=uid,
        resource_version="1",
        generation=1,
        creation_timestamp=at(0),
        finalizers=[TEARDOWN_FINALIZER],
    )
    return AllocationStory(msgspec.convert({"metadata": msgspec.to_builtins(metadata), "spec": body}, Allocation))


class PodStory:
    """A pod and how far it is."""

    def __init__(self, it: Pod) -> None:
        self.it = it

    def bound(self, node: str = "", *, at_s: float = 1.5) -> "PodStory":
        """Bound to a node (`n<rank>` when none is given)."""
        name = node or f"n{self.it.metadata.labels[LABEL_RANK]}"
        spec = msgspec.structs.replace(self.it.spec, node_name=name)
        scheduled = Condition(type="PodScheduled", status="True", last_transition_time=at(at_s))
        return PodStory(msgspec.structs.replace(self.it, spec=spec)).with_status(conditions=[scheduled])

    def running(self, *, at_s: float = 2.5, ready: bool = False) -> "PodStory":
        """Bound, and every container runs."""
        return self._bound_once()._in_state(
            "Running", ContainerState(running=StateRunning(started_at=at(at_s))), ready=ready
        )

    def waiting(self, reason: str, message: str = "", *, since_s: float = 2.0) -> "PodStory":
        """Bound, and the main container waits for `reason`."""
        state = ContainerState(waiting=StateWaiting(reason=reason, message=message))
        return self._bound_once()._in_state("Pending", state).with_status(start_time=at(since_s))

    def stranded(self, *, at_s: float = 3.0) -> "PodStory":
        """As a real kubelet leaves a pod whose node restarted between the creation of its container and its start."""
        story = self.waiting("")
        made = [
            msgspec.structs.replace(each, container_id="containerd://1") for each in story.it.status.container_statuses
        ]
        gone = Condition(type="PodReadyToStartContainers", status="False", last_transition_time=at(at_s))
        return story.with_status(container_statuses=made, conditions=[*story.it.status.conditions, gone])

    def exited(
        self, code: int = 0, *, at_s: float = 10.0, reason: str = "", started_s: float = 2.5, said: str = ""
    ) -> "PodStory":
        """Every container has ended; with exit code `code` and the kubelet's message `said`."""
        ended = StateTerminated(
            exit_code=code,
            reason=reason or ("Completed" if code == 0 else "Error"),
            message=said,
            started_at=at(started_s),
            finished_at=at(at_s),
        )
        return self._bound_once()._in_state("Failed" if code else "Succeeded", ContainerState(terminated=ended))

    def without_times(self) -> "PodStory":
        """Its containers ended, and their states have no start and end times."""
        statuses = [
            msgspec.structs.replace(
                each,
                state=ContainerState(
                    terminated=msgspec.structs.replace(each.state.terminated, started_at=None, finished_at=None)
                ),
            )
            for each in self.it.status.container_statuses
            if each.state.terminated is not None
        ]
        return self.with_status(container_statuses=statuses)

    def failed(self, reason: str, message: str = "") -> "PodStory":
        """Failed by the kubelet, without a container's exit."""
        return self._bound_once().with_status(phase="Failed", reason=reason, message=message, container_statuses=[])

    def disrupted(self, reason: str) -> "PodStory":
        """A condition `DisruptionTarget` announces that the pod will be removed."""
        target = Condition(type="DisruptionTarget", status="True", reason=reason)
        return self.with_status(conditions=[*self.it.status.conditions, target])

    def deleted(self, *, at_s: float = 5.0, grace_s: int = 30) -> "PodStory":
        """Its deletion was requested at `at_s`."""
        grace_s = grace_s if self.it.spec.node_name else 0
        return self.with_metadata(deletion_timestamp=at(at_s + grace_s), deletion_grace_period_seconds=grace_s)

    def with_container(self, name: str, state: ContainerState, *, init: bool = False) -> "PodStory":
        """With one more container in that state."""
        spec, status = self.it.spec, self.it.status
        field, statuses = (
            ("init_containers", "init_container_statuses")
            if init
            else (
                "containers",
                "container_statuses",
            )
        )
        spec = msgspec.structs.replace(spec, **{field: [*getattr(spec, field), Container(name=name)]})
        changed = PodStory(msgspec.structs.replace(self.it, spec=spec))
        return changed.with_status(**{statuses: [*getattr(status, statuses), ContainerStatus(name=name, state=state)]})

    def with_status(self, **changes: Any) -> "PodStory":
        """With other status fields."""
        return PodStory(msgspec.structs.replace(self.it, status=msgspec.structs.replace(self.it.status, **changes)))

    def with_metadata(self, **changes: Any) -> "PodStory":
        """With other metadata."""
        metadata = msgspec.structs.replace(self.it.metadata, **changes)
        return PodStory(msgspec.structs.replace(self.it, metadata=metadata))

    def _bound_once(self) -> "PodStory":
        return self if self.it.spec.node_name else self.bound()

    def _in_state(self, phase: str, state: ContainerState, *, ready: bool = False) -> "PodStory":
        statuses = [
            ContainerStatus(name=item.name, state=state, ready=ready, image=item.image)
            for item in self.it.spec.containers
        ]
        conditions = [item for item in self.it.status.conditions if item.type != "Ready"]
        conditions.append(Condition(type="Ready", status="True" if ready else "False"))
        return self.with_status(phase=phase, container_statuses=statuses, conditions=conditions)


def a_pod(
    rank: int = 0,
    *,
    attempt: int = 1,
    of: Allocation | None = None,
    containers: tuple[str, ...] = ("main",),
    requests: Mapping[str, str] | None = None,
    main: str = "",
) -> PodStory:
    """The unbound pod of one rank, as the pod worker creates it."""
    owner = of or an_allocation().it
    allocation_id = id_of(owner)
    labels = {
        LABEL_ALLOCATION: allocation_id,
        LABEL_ALLOCATION_UID: owner.metadata.uid,
        LABEL_ATTEMPT: str(attempt),
        LABEL_RANK: str(rank),
        LABEL_MANAGED_BY: MANAGED_BY,
    }
    metadata = ObjectMeta(
        name=ids.pod_name(allocation_id, attempt, rank),
        namespace=owner.metadata.namespace,
        uid=pod_uid(rank, attempt, owner.metadata.uid),
        resource_version="1",
        creation_timestamp=at(1),
        labels=labels,
        annotations={ANNOTATION_MAIN_CONTAINER: main} if main else {},
        finalizers=[TRACKING_FINALIZER],
    )
    resources = {"requests": dict(requests or {})}
    spec = PodSpec(
        scheduler_name="slipway",
        containers=[Container(name=name, image="python:3.11", resources=resources) for name in containers],
    )
    return PodStory(Pod(metadata=metadata, spec=spec, status=PodStatus()))


def a_node(name: str = "n0") -> Node:
    """A node of that name."""
    return Node(metadata=ObjectMeta(name=name, uid=f"node-{name}", resource_version="1", creation_timestamp=at(0)))
