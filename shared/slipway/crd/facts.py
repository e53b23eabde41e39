"""Custom resources -> the compact facts that placement needs. Pure; the LIST path and the feed share it."""

from collections.abc import Mapping
from typing import Any

from slipway.crd.meta import ANNOTATION_TRACE, ANNOTATION_USER, TEARDOWN_FINALIZER, condition_of
from slipway.crd.resolve import Resolved, resolve, role_requests
from slipway.crd.roleresources import object_of, objects_of
from slipway.crd.transitions import is_admitted, is_released, stop_reason, waiting_since
from slipway.crd.v1alpha1 import (
    Allocation,
    AllocationStatus,
    Job,
    Quantities,
    Queue,
    ResourcePool,
    RoleSpec,
    TolerationSpec,
)
from slipway.model.duration import parse_duration
from slipway.model.facts import (
    AllocationFact,
    JobFact,
    PoolFact,
    QueueFact,
    RoleFact,
    Toleration,
    TopologyFact,
    Untouched,
)
from slipway.model.lifecycle import Phase, RankState
from slipway.model.quantity import parse_quantity
from slipway.model.resources import GPU_MILLI, Resources, scale_of
from slipway.model.times import parse_time

CONDITION_ADMITTED = "Admitted"
CONDITION_INVALID = "Invalid"
_NO_STATUS = AllocationStatus()
_ENDED = (RankState.SUCCEEDED, RankState.FAILED)


def allocation_fact(
    allocation: Allocation, pool: ResourcePool | None, *, known: AllocationFact | None = None
) -> AllocationFact:
    """What the planner must know of `allocation`; `pool` (None when it does not exist) gives the defaults.

    `known` is a fact of the same spec and the same pool spec: what resolving would give is taken from it.
    """
    meta, spec, status = allocation.metadata, allocation.spec, allocation.status
    if known is None:
        resolved = resolve(allocation, pool or ResourcePool(metadata=meta))
        roles, invalid = _roles(resolved)
        minimum = resolved.spec.min_available or sum(role.count for role in roles) or 1
        spec_hash = resolved.spec_hash
    else:
        roles, invalid, minimum, spec_hash = known.roles, known.invalid, known.minimum, known.spec_hash
    gate, gate_message = gate_of(allocation)
    placements: dict[int, str] = {}
    if is_admitted(allocation) and status.admission is not None:
        placements = {placement.rank: placement.node for placement in status.admission.placements}
    return AllocationFact(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=meta.version,
        pool=spec.pool,
        queue=spec.queue,
        job=spec.job or "",
        kind=spec.kind.value,
        priority=spec.priority,
        position=spec.queue_position,
        preemptible=spec.preemptible,
        created=_epoch(meta.creation_timestamp),
        roles=roles,
        minimum=minimum,
        phase=status.phase,
        phase_since=_epoch(status.transitions[-1].time if status.transitions else meta.creation_timestamp),
        attempt=status.attempt,
        epoch=status.admission.epoch if status.admission else 0,
        decision=status.admission.decision_id if status.admission else "",
        desired=spec.desired,
        deleting=meta.deletion_timestamp is not None,
        hold=spec.hold,
        finalized=TEARDOWN_FINALIZER in meta.finalizers,
        released=is_released(allocation),
        stopping=stop_reason(allocation) is not None,
        placements=placements,
        ended_ranks=tuple(index for index, rank in enumerate(status.ranks or ()) if rank.phase in _ENDED),
        avoid_nodes=tuple(status.avoid_nodes),
        not_before=_epoch(status.not_before),
        deadlines=deadlines_of(allocation),
        max_runtime=parse_duration(spec.max_runtime) if spec.max_runtime and not invalid else None,
        idle_timeout=parse_duration(spec.idle_timeout) if spec.idle_timeout and not invalid else 0.0,
        invalid=invalid,
        gate=gate,
        gate_message=gate_message,
        spec_hash=spec_hash,
        untouched=_untouched(allocation),
    )


def queue_fact(queue: Queue) -> QueueFact:
    """A queue's quota and rules."""
    spec = queue.spec
    return QueueFact(
        name=queue.metadata.name,
        pool=spec.pool,
        parent=spec.parent or "",
        weight=spec.weight,
        priority=spec.priority,
        nominal=_amounts(spec.nominal),
        borrowing_limit=_amounts(spec.borrowing_limit),
        lending_limit=_amounts(spec.lending_limit),
        limit=_amounts(spec.limit),
        ordering=spec.ordering,
        within_queue=spec.preemption.within_queue,
        reclaim=spec.preemption.reclaim,
    )


def job_fact(job: Job) -> JobFact:
    """A job group's caps and rank in its queue."""
    spec = job.spec
    return JobFact(
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        max_slots=spec.max_slots,
        priority=spec.priority,
        weight=spec.weight,
        position=spec.queue_position,
    )


def pool_fact(pool: ResourcePool) -> PoolFact:
    """A pool's policy."""
    spec = pool.spec
    return PoolFact(
        name=pool.metadata.name,
        node_selector=spec.node_selector,
        tolerations=tuple(_toleration(item) for item in spec.tolerations),
        scores=spec.scores,
        topology=tuple(spec.topology),
        binding=spec.binding,
        backfill=spec.backfill,
        workspaces=tuple(spec.workspaces),
    )


def is_settled(fact: AllocationFact) -> bool:
    """Whether the scheduler may forget it: it has ended."""
    return fact.phase is Phase.TERMINATED


def gate_of(allocation: Allocation) -> tuple[str, str]:
    """(code, message): what keeps this attempt waiting, as the object itself says; empty when it says nothing."""
    status = allocation.status
    if status.phase is not Phase.PENDING:
        return "", ""
    invalid = condition_of(status.conditions, CONDITION_INVALID)
    if invalid and invalid.status == "True" and invalid.observed_generation == status.attempt:
        return invalid.reason, invalid.message
    # A wait ends with an admission, so one that is said is always the present one.
    waiting = condition_of(status.conditions, CONDITION_ADMITTED)
    if waiting and waiting.status == "False":
        return waiting.reason, waiting.message
    return "", ""


def _untouched(allocation: Allocation) -> Untouched | None:
    meta = allocation.metadata
    if allocation.status != _NO_STATUS or TEARDOWN_FINALIZER not in meta.finalizers:
        return None
    return Untouched(
        created_at=meta.creation_timestamp or "",
        generation=meta.generation,
        user=meta.annotations.get(ANNOTATION_USER),
        trace=meta.annotations.get(ANNOTATION_TRACE, ""),
    )


def deadlines_of(allocation: Allocation) -> dict[str, float]:
    """The stored deadlines, and while it waits the pending timeout, which follows from the object itself.

    What is held does not wait: its time begins again when it is resumed.
    """
    status = allocation.status
    known = {name: _epoch(at) for name, at in status.deadlines.items()}
    timeout, since = allocation.spec.pending_timeout, waiting_since(allocation)
    if timeout and since is not None:
        known["pending"] = since + parse_duration(timeout)
    return known


def _roles(resolved: Resolved) -> tuple[tuple[RoleFact, ...], str]:
    if resolved.errors:
        first = resolved.errors[0]
        return (), f"{first.pointer}: {first.detail}"
    return tuple(_role(role, resolved) for role in resolved.spec.ranks), ""


def _role(role: RoleSpec, resolved: Resolved) -> RoleFact:
    template = role.template or resolved.spec.template
    requests = role_requests(role, template)
    pod_spec = object_of(template.get("spec"))
    return RoleFact(
        name=role.name,
        count=role.count,
        minimum=role.min_available or 0,
        requests=requests,
        node_selector={**object_of(pod_spec.get("nodeSelector")), **role.node_selector},
        affinity=role.affinity or dict(object_of(pod_spec.get("affinity"))),
        tolerations=tuple(_toleration(item) for item in role.tolerations),
        topology=TopologyFact(key=role.topology.key, mode=role.topology.mode) if role.topology else None,
        host_ports=_host_ports(pod_spec, [port.port for port in resolved.spec.ports]),
        images=tuple(str(item["image"]) for item in objects_of(pod_spec.get("containers")) if item.get("image")),
        gpu_milli=requests.get(GPU_MILLI),
    )


def _toleration(item: TolerationSpec) -> Toleration:
    return Toleration(
        key=item.key,
        operator=item.operator,
        value=item.value,
        effect=item.effect,
        toleration_seconds=item.toleration_seconds,
    )


def _host_ports(pod_spec: Mapping[str, Any], ports: list[int]) -> tuple[int, ...]:
    """The node's ports that a rank holds; on the host's network each port of a container is one of the node's."""
    sidecars = [item for item in objects_of(pod_spec.get("initContainers")) if item.get("restartPolicy") == "Always"]
    named = [
        port for item in (*objects_of(pod_spec.get("containers")), *sidecars) for port in objects_of(item.get("ports"))
    ]
    is_on_host = pod_spec.get("hostNetwork") is True
    taken = [port.get("hostPort") or (is_on_host and port.get("containerPort")) for port in named]
    taken += ports if is_on_host else []
    return tuple(sorted({port for port in taken if isinstance(port, int) and port > 0}))


def _amounts(quantities: Quantities | None) -> Resources | None:
    """A bound of zero is a bound: zeros are kept."""
    if quantities is None:
        return None
    return Resources({name: parse_quantity(value, scale=scale_of(name)) for name, value in quantities.items()})


def _epoch(stamp: str | None) -> float:
    return parse_time(stamp) if stamp else 0.0
