"""A recorded history, built step by step: the input of an audit in its own tests.

Owns one correct life of a gang of two on two nodes, as the services write it. A test changes one thing in it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.accounting import daily_totals
from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK, TEARDOWN_FINALIZER, TRACKING_FINALIZER
from slipway.crd.transitions import record, ring_of, with_status
from slipway.crd.v1alpha1 import Admission, Allocation, Placement, RankStatus, Release
from slipway.model.lifecycle import Event, RankState
from slipway.model.times import format_time
from slipway.ops.audit.evidence import ALLOCATIONS, CONFIG_MAPS, NODES, PODS, POOLS, QUEUES, AuditEvidence, Version

Json = dict[str, Any]

BEGUN = 1_700_000_000.0
SPACE = "default"


class History:
    """Versions of objects, in order; each is one second after the previous one."""

    def __init__(self, *, cpus: int = 4) -> None:
        self.versions: list[Version] = []
        self.now = BEGUN
        self._stored: dict[tuple[str, str, str], Json] = {}
        for name in ("n1", "n2"):
            self.put(
                NODES, name, {"status": {"allocatable": {"cpu": str(cpus), "memory": "8Gi", "pods": "10"}}}, space=""
            )
        self.ledger()

    def put(
        self,
        resource: str,
        name: str,
        body: Json,
        *,
        writer: str = "",
        space: str = SPACE,
        uid: str = "",
        meta: Json | None = None,
        is_deletion: bool = False,
    ) -> Json:
        """One commit of an object."""
        number, key = len(self.versions) + 1, (resource, space, name)
        before = self._stored.get(key)
        known: Json = {} if before is None else before["metadata"]
        metadata = {
            "name": name,
            "namespace": space,
            "uid": uid or known.get("uid", f"{resource}-{name}-{number}"),
            "creationTimestamp": known.get("creationTimestamp", format_time(self.now)),
            **(meta or {}),
            "resourceVersion": str(number),
        }
        stored = {**body, "metadata": metadata}
        self.versions.append(
            Version(
                number=number,
                at=self.now,
                writer=writer,
                resource=resource,
                namespace=space,
                name=name,
                is_deletion=is_deletion,
                obj=stored,
                before=before,
            )
        )
        if is_deletion:
            self._stored.pop(key, None)
        else:
            self._stored[key] = stored
        self.now += 1.0
        return stored

    def remove(self, resource: str, name: str, *, writer: str = "", space: str = SPACE) -> None:
        """Delete the object as it is."""
        last = self._stored[resource, space, name]
        self.put(resource, name, last, writer=writer, space=space, meta=last["metadata"], is_deletion=True)

    # --- allocations and their ledger ---------------------------------------------------------------------------------

    def launch(self, name: str = "job", *, space: str = SPACE, meta: Json | None = None, **spec: Any) -> Allocation:
        """Create an allocation as a user; return it."""
        body = {
            "spec": {
                "kind": "training",
                "pool": "default",
                "queue": "default",
                "desired": "Running",
                "ranks": [{"name": "worker", "count": 2, "resources": {"cpu": "1"}}],
                "template": {"spec": {"containers": [{"name": "main", "image": "python:3.11", "command": ["true"]}]}},
                **spec,
            }
        }
        self.put(ALLOCATIONS, name, body, space=space, meta={"finalizers": [TEARDOWN_FINALIZER], **(meta or {})})
        return self.allocation(name, space)

    def allocation(self, name: str = "job", space: str = SPACE) -> Allocation:
        """Return the allocation as it is stored."""
        return msgspec.convert(self._stored[ALLOCATIONS, space, name], Allocation)

    def step(
        self, event: Event, name: str = "job", *, writer: str = "watcher-1", reason: str = "", **changes: Any
    ) -> None:
        """Write one transition of an allocation."""
        moved = record(self.allocation(name), event, now=self.now, reason=reason, **changes)
        self.save(moved, writer=writer)

    def status(self, name: str = "job", *, writer: str = "watcher-1", **changes: Any) -> None:
        """Write a status with these changes and no transition."""
        found = self.allocation(name)
        self.save(with_status(found, msgspec.structs.replace(found.status, **changes)), writer=writer)

    def spec(self, name: str = "job", *, writer: str = "", **changes: Any) -> None:
        """Change the spec as the user."""
        stored = self._stored[ALLOCATIONS, SPACE, name]
        body = {**stored, "spec": {**stored["spec"], **changes}}
        self.put(ALLOCATIONS, name, body, writer=writer, meta=stored["metadata"])

    def save(self, allocation: Allocation, *, writer: str) -> None:
        """Write exactly this object."""
        meta = allocation.metadata
        body: Json = msgspec.to_builtins(allocation)
        self.put(ALLOCATIONS, meta.name, body, writer=writer, space=meta.namespace, meta=body["metadata"])

    def ledger(self, *decisions: Json, epoch: int = 1, **status: Any) -> None:
        """Write the pool's ledger with these decisions."""
        body: Json = {"epoch": epoch, "tick": len(self.versions), "nodes": ["n1", "n2"], "decisions": list(decisions)}
        self.put(POOLS, "default", {"spec": {}, "status": {**body, **status}}, writer="scheduler-1", space="")

    def decision(self, name: str = "job", *, id_: str = "d1", nodes: tuple[int, ...] = (0, 1), **changes: Any) -> Json:
        """Return an entry of the ledger that places the allocation on these nodes."""
        found = self.allocation(name)
        key = f"{found.metadata.namespace}/{name}"
        entry: Json = {"id": id_, "epoch": 1, "allocation": key, "uid": found.metadata.uid, "placements": list(nodes)}
        return {**entry, "attempt": found.status.attempt, **changes}

    def queue(self, name: str = "default", **spec: Any) -> None:
        """Write a queue."""
        self.put(QUEUES, name, {"spec": {"pool": "default", **spec}}, space="")

    def admit(self, name: str = "job", *, id_: str = "d1", nodes: tuple[int, ...] = (0, 1), epoch: int = 1) -> None:
        """Write the decision to the allocation."""
        places = [Placement(rank=rank, role="worker", node=f"n{node + 1}") for rank, node in enumerate(nodes)]
        attempt = self.allocation(name).status.attempt
        admission = Admission(decision_id=id_, epoch=epoch, attempt=attempt, placements=places)
        self.step(Event.ASSIGNED, name, writer="scheduler-1", admission=admission)

    # --- pods ---------------------------------------------------------------------------------------------------

    def pod(
        self, rank: int, name: str = "job", *, node: str = "", uid: str = "", attempt: int = 0, **status: Any
    ) -> str:
        """Write the pod of a rank with this status; return its uid."""
        found = self.allocation(name)
        attempt = attempt or found.status.attempt
        pod = f"{uid or name}-{attempt}-{rank}"
        labels = {
            LABEL_ALLOCATION_UID: found.metadata.uid,
            LABEL_ATTEMPT: str(attempt),
            LABEL_RANK: str(rank),
        }
        container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
        spec = {"schedulerName": "slipway", "containers": [container], **({"nodeName": node} if node else {})}
        known = self._stored.get((PODS, SPACE, pod), {"metadata": {}})["metadata"]
        meta = {"finalizers": [TRACKING_FINALIZER], **known, "labels": labels}
        stored = self.put(
            PODS,
            pod,
            {"spec": spec, "status": {"phase": "Pending", **status}},
            writer="podworker-1",
            uid=uid,
            meta=meta,
        )
        return str(stored["metadata"]["uid"])

    def let_go(self, rank: int, name: str = "job", *, attempt: int = 1) -> None:
        """Delete the pod."""
        self.remove(PODS, f"{name}-{attempt}-{rank}", writer="watcher-1")

    def leave(self, rank: int, name: str = "job", *, beside: int = 0) -> None:
        """Remove a pod's last finalizer, which also deletes the pod; `beside` other objects are committed between the
        two."""
        pod = f"{name}-{self.allocation(name).status.attempt}-{rank}"
        last, begun = self._stored[PODS, SPACE, pod], self.now
        gone: Json = {**last["metadata"], "deletionTimestamp": format_time(self.now), "finalizers": []}
        self.put(PODS, pod, last, writer="watcher-1", meta=gone)
        for number in range(beside):
            self.put(CONFIG_MAPS, f"of-somebody-{number}", {})
        self.now = begun
        self.remove(PODS, pod, writer="watcher-1")

    # --- whole lives --------------------------------------------------------------------------------------------

    def release(self, name: str = "job") -> list[str]:
        """Create both pods, release and bind them; return their uids."""
        uids = [self.pod(rank, name) for rank in (0, 1)]
        attempt = self.allocation(name).status.attempt
        self.status(name, writer="podworker-1", release=Release(attempt=attempt, pod_uids=uids))
        for rank in (0, 1):
            self.pod(rank, name, node=f"n{rank + 1}")
        return uids

    def run(self, name: str = "job") -> list[str]:
        """Launch, admit, release and run an allocation; return the uids of its pods."""
        self.launch(name)
        self.ledger(self.decision(name))
        self.admit(name)
        uids = self.release(name)
        for rank in (0, 1):
            self.pod(rank, name, node=f"n{rank + 1}", **running(self.now))
        ranks = [RankStatus(pod_uid=uid, node=f"n{rank + 1}", phase=RankState.RUNNING) for rank, uid in enumerate(uids)]
        self.step(Event.RUNNING, name, ranks=ranks)
        return uids

    def finish(self, name: str = "job", *, code: int = 0, **changes: Any) -> None:
        """Let both ranks exit, record the end, and tear everything down."""
        for rank in (0, 1):
            self.pod(rank, name, node=f"n{rank + 1}", **exited(self.now, code))
        state = RankState.FAILED if code else RankState.SUCCEEDED
        known = self.allocation(name).status.ranks or []
        ranks = [msgspec.structs.replace(rank, phase=state, exit_code=code) for rank in known]
        end: Json = {"result": "Failed" if code else "Succeeded", "reason": "RankFailed" if code else "Completed"}
        self.step(Event.TERMINATED, name, ranks=ranks, ended_at=format_time(self.now), **{**end, **changes})
        for rank in (0, 1):
            self.let_go(rank, name)
        self.book(name)
        ended = self._stored[ALLOCATIONS, SPACE, name]
        self.put(ALLOCATIONS, name, ended, writer="watcher-1", meta={**ended["metadata"], "finalizers": []})

    def book(self, name: str = "job") -> None:
        """Add the usage of the allocation to the totals of the day."""
        for day, bill in daily_totals.bills_of(self.allocation(name)).items():
            known = self._stored.get((CONFIG_MAPS, SPACE, daily_totals.name_of(day)), {"data": {}})
            after = daily_totals.added(daily_totals.decode(known["data"]), [bill], self.now, None)
            if after is not None:
                meta = {"labels": {daily_totals.LABEL_USAGE: "true"}}
                body = {"data": daily_totals.encode(after)}
                self.put(CONFIG_MAPS, daily_totals.name_of(day), body, writer="watcher-1", meta=meta)

    def config_map(self, name: str, data: Mapping[str, str], *, space: str = SPACE, of: str = "") -> None:
        """Write a ConfigMap, which belongs to the allocation `of` when one is given."""
        labels: Json = {}
        if of:
            found = self.allocation(of)
            labels = {LABEL_ALLOCATION_UID: found.metadata.uid, LABEL_ATTEMPT: str(found.status.attempt)}
        self.put(CONFIG_MAPS, name, {"data": dict(data)}, writer="podworker-1", space=space, meta={"labels": labels})

    def evidence(self, **known: Any) -> AuditEvidence:
        """Return the evidence of the whole history, at rest, without streams."""
        fields: Json = {"has_streams": False, "end_at": self.now, **known}
        return AuditEvidence(versions=self.versions, **fields)

    def last_seq(self, name: str = "job") -> int:
        """Return the last sequence number in the allocation's ring of transitions."""
        return ring_of(self.allocation(name))[-1].seq


def running(at: float) -> Json:
    """The status of a pod whose main container runs."""
    state = {"running": {"startedAt": format_time(at)}}
    return {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]}


def exited(at: float, code: int) -> Json:
    """The status of a pod whose main container has ended."""
    state = {"terminated": {"exitCode": code, "startedAt": format_time(at - 5), "finishedAt": format_time(at)}}
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": "main", "state": state}]}
