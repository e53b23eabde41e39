"""Builds the compact facts that placement needs from custom resources.

Pure; used for LISTs and for the cluster feed.

Resolved specs are cached: thousands of allocations of one sweep are equal in all fields that `resolve` reads. Owns the
rule when two allocations share an entry. Their specs are equal, except for fields on which neither a rank nor the hash
depends; and they have the same namespace, LimitRanges, pool and pool spec. Resolving costs twenty times as much as the
rest of a fact, and a scheduler that starts builds a fact for every allocation.

Invariant: `of` returns what `spec_facts` would return.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.crd import dependencies
from slipway.crd.homes import home_claim
from slipway.crd.members import departed_ranks, growth_of, members, restarts_ranks
from slipway.crd.meta import ANNOTATION_TRACE, ANNOTATION_USER, TEARDOWN_FINALIZER, ObjectMeta, condition_of
from slipway.crd.pools import AutoscalingSpec
from slipway.crd.resolve import Resolved, resolve
from slipway.crd.roleresources import is_extended, object_of, objects_of, pod_resources
from slipway.crd.transitions import (
    blocked_since,
    is_admitted,
    is_released,
    leaving_ranks,
    stop_reason,
    user_of,
    waiting_since,
)
from slipway.crd.v1alpha1 import (
    Allocation,
    AllocationSpec,
    AllocationStatus,
    EvictionRate,
    ExtenderSpec,
    FairShare,
    Job,
    PolicySpec,
    Quantities,
    Queue,
    QueueSpec,
    RankStatus,
    ResourcePool,
    ResourcePoolSpec,
    RoleSpec,
    TolerationSpec,
    TopologySpec,
    WindowSpec,
)
from slipway.model import ids, namespace_limits, windows
from slipway.model.eviction_rate import EvictionLimit
from slipway.model.facts import (
    PREEMPTION_MARGIN_S,
    TIMEOUT_S,
    AllocationFact,
    AutoscalingFact,
    BudgetFact,
    ExtenderFact,
    ExtenderTls,
    FairShareFact,
    FirstStatusFact,
    FlavorFact,
    JobFact,
    PoolFact,
    QueueFact,
    RoleFact,
    Toleration,
    TopologyFact,
    WindowFact,
)
from slipway.model.ids import ALLOCATION_UID, labels_if_named
from slipway.model.lifecycle import RANK_ENDS, Kind, Phase, RankState
from slipway.model.namespace_limits import Ranges
from slipway.model.podresources import UNSTATED, PodResources, scored_requests
from slipway.model.resources import GPU, GPU_MILLI, Resources, gpus_of, parse_quantity, scale_of
from slipway.model.times import parse_duration, parse_time, stored_duration

CONDITION_ADMITTED = "Admitted"
CONDITION_INVALID = "Invalid"
DAY_S = 86_400
WINDOW_DAYS_MAX = 92
"""longest window of a budget in days; it is limited because its usage is read often"""
_NO_STATUS = AllocationStatus()


class SpecFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a fact that comes from the resolved spec: it is costly to compute."""

    roles: tuple[RoleFact, ...]
    invalid: str
    out_of_range: str
    minimum: int
    spec_hash: str


def spec_facts(allocation: Allocation, pool: ResourcePool | None, ranges: Ranges = ()) -> SpecFacts:
    """Return the spec of `allocation` as the planner reads it.

    `pool` (None when it does not exist) has the defaults; `ranges` are the LimitRanges of its namespace.
    """
    meta = allocation.metadata
    resolved = resolve(allocation, pool or ResourcePool(metadata=meta))
    roles, invalid = _roles(resolved, meta, ranges)
    minimum = resolved.spec.min_available or sum(role.count for role in roles) or 1
    return SpecFacts(
        roles=roles,
        invalid=invalid,
        out_of_range=_out_of_range(resolved, ranges) if ranges and not invalid else "",
        minimum=minimum,
        spec_hash=resolved.spec_hash,
    )


def allocation_fact(
    allocation: Allocation,
    pool: ResourcePool | None,
    *,
    ranges: Ranges = (),
    known: AllocationFact | SpecFacts | None = None,
) -> AllocationFact:
    """The fact of an allocation; `pool` (None when it does not exist) has the defaults. `known` is the result for the
    same spec, pool spec and LimitRanges (`ranges`): with it the spec is not resolved again."""
    meta, spec, status = allocation.metadata, allocation.spec, allocation.status
    known, standing = known or spec_facts(allocation, pool, ranges), _placed_ranks(allocation)
    (gate, gate_message), growth, home = gate_of(allocation), growth_of(allocation), home_claim(allocation)
    return AllocationFact(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=meta.version,
        pool=spec.pool,
        queue=spec.queue,
        job=spec.job or "",
        kind=spec.kind.value,
        user=user_of(allocation),
        priority=spec.priority,
        position=spec.queue_position,
        preemptible=spec.preemptible,
        created=_epoch(meta.creation_timestamp),
        roles=tuple(_with_claim(role, home) for role in known.roles) if home else known.roles,
        home=home,
        minimum=known.minimum,
        topology=_topology(spec.topology),
        phase=status.phase,
        phase_since=_epoch(status.transitions[-1].time if status.transitions else meta.creation_timestamp),
        attempt=status.attempt,
        epoch=max(status.admission.epoch if status.admission else 0, status.growth.epoch if status.growth else 0),
        decision=status.admission.decision_id if status.admission else "",
        desired=spec.desired,
        deleting=meta.deletion_timestamp is not None,
        hold=spec.hold,
        waits_for=dependencies.waits_for(allocation) if spec.after else (),
        finalized=TEARDOWN_FINALIZER in meta.finalizers,
        released=is_released(allocation),
        stopping=stop_reason(allocation) is not None,
        leaving_ranks=leaving_ranks(allocation),
        left_ranks=departed_ranks(allocation),
        told_ends=standing.told_ends,
        growth_decision=growth.decision_id if growth is not None else "",
        is_elastic=status.admission is None or status.admission.elastic,
        grows_after=_epoch(growth.not_before) if growth is not None else 0.0,
        started=_epoch(status.started_at),
        checkpoint_at=_checkpoint_at(allocation),
        evictions=tuple((_epoch(item.at), item.by) for item in status.preemptions),
        placements=standing.placements,
        devices=standing.devices,
        ended_ranks=standing.ended,
        failed_ranks=standing.failed,
        avoid_nodes=tuple(status.avoid_nodes),
        flavors=tuple(spec.flavors),
        not_before=_epoch(status.not_before),
        deadlines=deadlines_of(allocation),
        max_runtime=_run_limit(allocation) if not known.invalid else None,
        beyond_queue=spec.max_runtime_override is not None,
        waiting_since=_waiting_since(allocation),
        idle_timeout=stored_duration(spec.idle_timeout) if spec.idle_timeout and not known.invalid else 0.0,
        invalid=known.invalid,
        out_of_range=known.out_of_range,
        gate=gate,
        gate_message=gate_message,
        spec_hash=known.spec_hash,
        untouched=_untouched(allocation),
    )


class _PlacedRanks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks that have a node."""

    placements: dict[int, str] = {}
    devices: dict[int, tuple[int, ...]] = {}
    told_ends: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()


def _placed_ranks(allocation: Allocation) -> _PlacedRanks:
    """Return the nodes of the ranks of an admitted attempt, and which ranks have ended."""
    ranks = dict(enumerate(allocation.status.ranks or ()))
    over = {rank: found for rank, found in ranks.items() if found.phase in RANK_ENDS}
    keeps_places = restarts_ranks(allocation)
    if keeps_places:
        over = {rank: found for rank, found in over.items() if found.phase is RankState.SUCCEEDED}
    there = members(allocation) if is_admitted(allocation) else []
    if there:
        # The status of a rank may be that of its earlier pod, before an eviction or restart; so compare the pod.
        first = {member.rank for member in there if not member.grown and member.restart is None}
        same = first | {member.rank for member in there if _pod_of(over, member.rank) == member.pod_uid}
        over = {rank: found for rank, found in over.items() if rank in same}
    return _PlacedRanks(
        placements={member.rank: member.placement.node for member in there if member.placement.node},
        devices={member.rank: tuple(member.placement.device) for member in there if member.placement.device},
        told_ends=tuple(member.rank for member in there if member.grown or keeps_places),
        ended=tuple(over),
        failed=tuple(rank for rank, found in over.items() if found.phase is RankState.FAILED),
    )


def _pod_of(ranks: Mapping[int, RankStatus], rank: int) -> str | None:
    found = ranks.get(rank)
    return None if found is None else found.pod_uid


def run_limit(allocation: Allocation) -> str | None:
    """Return how long an attempt may run: the shorter of its own limit and the limit of its queue; None: no limit.

    The limit of the queue is the one at the time of the admission, unless an administrator has set another one.
    """
    spec = allocation.spec
    admission = allocation.status.admission if is_admitted(allocation) else None
    of_queue = spec.max_runtime_override or (admission.max_runtime if admission else None)
    return min((limit for limit in (spec.max_runtime, of_queue) if limit), key=stored_duration, default=None)


def _run_limit(allocation: Allocation) -> float | None:
    limit = run_limit(allocation)
    return stored_duration(limit) if limit else None


def queue_fact(queue: Queue) -> QueueFact:
    """Return a queue's quota and rules; `invalid` states what is wrong with its spec."""
    name, spec = queue.metadata.name, queue.spec
    try:
        return _queue_fact(name, spec)
    except ValueError as exc:
        return QueueFact(name=name, pool=spec.pool, parent=spec.parent or "", invalid=str(exc))


def _queue_fact(name: str, spec: QueueSpec) -> QueueFact:
    return QueueFact(
        name=name,
        pool=spec.pool,
        parent=spec.parent or "",
        weight=spec.weight,
        priority=spec.priority,
        nominal=_limits(spec, "nominal", "nominal"),
        borrowing_limit=_limits(spec, "borrowing_limit", "borrowingLimit"),
        lending_limit=_limits(spec, "lending_limit", "lendingLimit"),
        limit=_limits(spec, "limit", "limit"),
        flavors=tuple(dict.fromkeys(item.name for item in spec.flavors)),
        when_can_borrow=spec.flavor_fungibility.when_can_borrow,
        when_can_preempt=spec.flavor_fungibility.when_can_preempt,
        ordering=spec.ordering,
        user_order=spec.user_order,
        within_queue=spec.preemption.within_queue,
        reclaim=spec.preemption.reclaim,
        max_runtime=_seconds("maxRuntime", spec.max_runtime) or None,
        min_runtime=None if spec.min_runtime is None else _seconds("minRuntime", spec.min_runtime),
        eviction_limit=eviction_limit(spec.eviction_limit),
        budgets=tuple(BudgetFact(round(item.gpu_hours * 3_600_000), _whole_days(item.window)) for item in spec.budgets),
    )


def _waiting_since(allocation: Allocation) -> float:
    """Return the start of its wait.

    0 when it does not wait, or waits since its creation: most allocations do, and their facts then need no number.
    """
    since = waiting_since(allocation)
    return since if since is not None and since != _epoch(allocation.metadata.creation_timestamp) else 0.0


def _whole_days(window: str) -> float:
    """Return the seconds of a window, rounded up to whole days, because usage is known by the day.

    Raises:
        ValueError: the window is longer than `WINDOW_DAYS_MAX`.
    """
    days = max(1, math.ceil(_seconds("budgets", window) / DAY_S))
    if days > WINDOW_DAYS_MAX:
        raise ValueError(f"spec.budgets: a window of {window} is too long; at most {WINDOW_DAYS_MAX}d")
    return days * DAY_S


def _seconds(field: str, duration: str | None) -> float:
    """Return the seconds of a duration; 0 for none.

    Raises:
        ValueError: longer than ten years; the message starts with its path.
    """
    try:
        return parse_duration(duration) if duration else 0.0
    except ValueError as exc:
        raise ValueError(f"spec.{field}: {exc}") from exc


def eviction_limit(rate: EvictionRate | None) -> EvictionLimit | None:
    """Return the limit on evictions, None for none; `burst` is `count` when it is not set."""
    if rate is None:
        return None
    return EvictionLimit(count=rate.count, per_s=stored_duration(rate.per), burst=rate.burst or rate.count)


def fair_share(spec: FairShare | None) -> FairShareFact | None:
    """Return the weight of past usage in a pool; None when past usage is ignored."""
    if spec is None:
        return None
    return FairShareFact(stored_duration(spec.half_life), round(spec.history_weight * 1000))


def job_fact(job: Job) -> JobFact:
    """Return the limits of a job, and its order in the queue."""
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
    """Return the policy of a pool."""
    spec = pool.spec
    fact = PoolFact(
        name=pool.metadata.name,
        node_selector=spec.node_selector,
        tolerations=tuple(_toleration(item) for item in spec.tolerations),
        scores=spec.scores,
        args=spec.args,
        sampling=spec.sampling,
        topology=tuple(spec.topology),
        binding=spec.binding,
        backfill=spec.backfill,
        aging=_aging(spec.aging),
        workspaces=tuple(spec.workspaces),
        flavors=tuple({item.name: FlavorFact(item.name, item.node_labels) for item in spec.flavors}.values()),
        preemption_margin_s=stored_duration(spec.preemption_margin) if spec.preemption_margin else PREEMPTION_MARGIN_S,
        eviction_limit=eviction_limit(spec.eviction_limit),
        fair_share=fair_share(spec.fair_share),
        extenders=tuple(extender_fact(item) for item in spec.extenders),
        autoscaling=autoscaling_fact(spec.autoscaling),
        windows=tuple({item.name: window_fact(item) for item in spec.windows}.values()),
    )
    return fact if spec.shadow is None else msgspec.structs.replace(fact, shadow=policy_changed(fact, spec.shadow))


def window_fact(spec: WindowSpec) -> WindowFact:
    """Return one window of a pool; `invalid` states what is wrong with it."""
    times: dict[str, float] = {}
    for field, text in (("start", spec.start), ("repeat/until", spec.repeat.until if spec.repeat else None)):
        try:
            times |= {field: parse_time(text)} if text else {}
        except ValueError:
            return WindowFact(name=spec.name, invalid=f"{field}: {text!r} is not a valid date; write another date")
    fact = WindowFact(
        name=spec.name,
        start=times["start"],
        duration=stored_duration(spec.duration),
        every=spec.repeat.every if spec.repeat is not None else "",
        until=times.get("repeat/until"),
        time_zone=spec.time_zone or "UTC",
        queues=() if spec.maintenance else tuple(dict.fromkeys(spec.queues)),
        node_names=tuple(dict.fromkeys(spec.node_names)),
        node_selector=spec.node_selector,
        nodes=spec.nodes,
        gpus=spec.gpus,
        lead_s=windows.LEAD_S if spec.lead_time is None else stored_duration(spec.lead_time),
        evicts=spec.on_start == "Evict",
    )
    fault = windows.fault_of(fact)
    return fact if fault is None else WindowFact(name=spec.name, invalid=f"{fault[0]}: {fault[1]}")


def policy_changed(pool: PoolFact, change: PolicySpec) -> PoolFact:
    """Return the pool with another policy."""
    named = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not None}
    made = pool_fact(ResourcePool(metadata=ObjectMeta(name=pool.name), spec=ResourcePoolSpec(**named)))
    return msgspec.structs.replace(pool, shadow=None, **{name: getattr(made, name) for name in named})


def autoscaling_fact(spec: AutoscalingSpec | None) -> AutoscalingFact | None:
    """Return how nodes of a pool are requested from an autoscaler; None when none are."""
    if spec is None:
        return None
    return AutoscalingFact(
        mode=spec.mode,
        class_name=spec.class_name,
        parameters=spec.parameters,
        max_gangs=spec.max_gangs,
        max_ranks=spec.max_ranks,
        after_s=stored_duration(spec.after),
        timeout_s=stored_duration(spec.timeout),
        backoff_s=stored_duration(spec.backoff),
        tries=spec.tries,
    )


def extender_fact(spec: ExtenderSpec) -> ExtenderFact:
    """Return one extender of a pool."""
    tls = spec.tls_config
    return ExtenderFact(
        url=spec.url_prefix,
        filter_verb=spec.filter_verb,
        prioritize_verb=spec.prioritize_verb,
        preempt_verb=spec.preempt_verb,
        bind_verb=spec.bind_verb,
        weight=spec.weight,
        timeout_s=stored_duration(spec.http_timeout) or TIMEOUT_S,
        node_cache_capable=spec.node_cache_capable,
        managed_resources=tuple(item.name for item in spec.managed_resources),
        ignored_resources=tuple(item.name for item in spec.managed_resources if item.ignored_by_scheduler),
        ignorable=spec.ignorable,
        tls=ExtenderTls(
            insecure=tls.insecure,
            server_name=tls.server_name,
            ca_file=tls.ca_file,
            ca_data=_pem(tls.ca_data),
            cert_file=tls.cert_file,
            key_file=tls.key_file,
        ),
    )


def _pem(data: str) -> str:
    """Return the decoded base64; text that is no base64 is returned unchanged, and the connection then reports the
    error."""
    try:
        return base64.b64decode(data, validate=True).decode("ascii")
    except ValueError:
        return data


def _aging(duration: str) -> float:
    """Return the aging time in seconds; 0 (never) when the duration is too long to be valid."""
    try:
        return parse_duration(duration)
    except ValueError:
        return 0.0


def is_settled(fact: AllocationFact) -> bool:
    """Whether the allocation has ended, so that the scheduler may forget it."""
    return fact.phase is Phase.TERMINATED


def gate_of(allocation: Allocation) -> tuple[str, str]:
    """Return (code, message): why this attempt waits, from the conditions of the object; both empty when it has
    none."""
    status = allocation.status
    if status.phase is not Phase.PENDING:
        return "", ""
    invalid = condition_of(status.conditions, CONDITION_INVALID)
    if invalid and invalid.status == "True" and invalid.observed_generation == status.attempt:
        return invalid.reason, invalid.message
    # An admission ends the wait and its condition, so an existing condition is always about the current wait.
    waiting = condition_of(status.conditions, CONDITION_ADMITTED)
    if waiting and waiting.status == "False":
        return waiting.reason, waiting.message
    return "", ""


def _untouched(allocation: Allocation) -> FirstStatusFact | None:
    meta, status = allocation.metadata, allocation.status
    told_at = ""
    if status != _NO_STATUS:
        # The fact contains the whole condition about the wait, except its time and its observed generation.
        told = status.conditions[0] if len(status.conditions) == 1 else None
        if told is None or (told.type, told.status, told.observed_generation) != (
            CONDITION_ADMITTED,
            "False",
            meta.generation,
        ):
            return None
        told_at = told.last_transition_time
        if not told_at or status != AllocationStatus(conditions=status.conditions):
            return None
    if TEARDOWN_FINALIZER not in meta.finalizers:
        return None
    return FirstStatusFact(
        created_at=meta.creation_timestamp or "",
        generation=meta.generation,
        user=meta.annotations.get(ANNOTATION_USER),
        trace=meta.annotations.get(ANNOTATION_TRACE, ""),
        told_at=told_at,
    )


def _checkpoint_at(allocation: Allocation) -> float:
    """Return when this attempt last saved its work, as its ranks reported it; 0 for never."""
    signals = allocation.spec.signals
    is_current = signals is not None and signals.attempt == allocation.status.attempt
    if signals is None or not is_current:
        return 0.0
    try:
        return _epoch(signals.checkpoint_at)
    except ValueError:
        return 0.0  # a user wrote it; the schema accepts any text


def deadlines_of(allocation: Allocation) -> dict[str, float]:
    """Return the stored deadlines and, while it waits, that of the pending timeout, which is computed from the object.

    A held allocation does not wait: its time starts again when it is resumed. An admitted allocation whose start is
    blocked also waits, from its admission on; a slow start that makes progress does not.
    """
    status = allocation.status
    known = {name: _epoch(at) for name, at in status.deadlines.items()}
    timeout = allocation.spec.pending_timeout
    since = waiting_since(allocation)
    since = blocked_since(allocation) if since is None else since
    if timeout and since is not None:
        known["pending"] = since + stored_duration(timeout)
    return known


def _roles(resolved: Resolved, meta: ObjectMeta, ranges: Ranges) -> tuple[tuple[RoleFact, ...], str]:
    if resolved.errors:
        first = resolved.errors[0]
        return (), f"{first.pointer}: {first.detail}"
    return tuple(_role(role, resolved, meta, ranges) for role in resolved.spec.ranks), ""


def role_resources(role: RoleSpec, spec: AllocationSpec, ranges: Ranges = ()) -> PodResources:
    """Return the resources of a rank's pod as the API server stores it.

    `role` is a role of the complete `spec`; `ranges` are the LimitRanges of the namespace.
    """
    template = role.template or spec.template
    asked = pod_resources(role, template, fetches=bool(spec.context), waits=bool(role.depends_on))
    return namespace_limits.completed(asked, ranges)


def _out_of_range(resolved: Resolved, ranges: Ranges) -> str:
    """Return why a LimitRange refuses the pods of a role, for the first such role; empty when there is none."""
    roles = resolved.spec.ranks
    for role in roles:
        refusal = namespace_limits.refusal(role_resources(role, resolved.spec, ranges), ranges)
        if refusal:
            return f"role {role.name}: {refusal}" if len(roles) > 1 else refusal
    return ""


def _role(role: RoleSpec, resolved: Resolved, meta: ObjectMeta, ranges: Ranges) -> RoleFact:
    template = role.template or resolved.spec.template
    ask = role_resources(role, resolved.spec, ranges)
    requests = ask.requests()
    pod_spec = object_of(template.get("spec"))
    labels = object_of(object_of(template.get("metadata")).get("labels"))
    affinity = role.affinity or dict(object_of(pod_spec.get("affinity")))
    spread = role.topology_spread_constraints or objects_of(pod_spec.get("topologySpreadConstraints"))
    ours = labels_if_named(meta.name, meta.uid, role.name, affinity, spread)
    containers = [*objects_of(pod_spec.get("initContainers")), *objects_of(pod_spec.get("containers"))]
    return RoleFact(
        name=role.name,
        count=role.count,
        minimum=role.min_available or 0,
        requests=requests,
        node_selector={**object_of(pod_spec.get("nodeSelector")), **role.node_selector},
        affinity=affinity,
        tolerations=tuple(_toleration(item) for item in role.tolerations),
        topology=_topology(role.topology),
        host_ports=_host_ports(pod_spec, [port.port for port in resolved.spec.ports]),
        images=tuple(str(item.get("image") or "") for item in containers),
        gpu_milli=requests.get(GPU_MILLI),
        namespace=meta.namespace,
        labels={key: str(value) for key, value in labels.items()} | dict(ours),
        spread=tuple(dict(item) for item in spread),
        claims=_claims(pod_spec),
        scored=scored_requests(requests, ask.requests(UNSTATED)),
        limits=_own_limits(ask.limits()),
        priority_class=str(pod_spec.get("priorityClassName") or ""),
        is_terminating=pod_spec.get("activeDeadlineSeconds") is not None,
    )


def _topology(spec: TopologySpec | None) -> TopologyFact | None:
    return TopologyFact(key=spec.key, mode=spec.mode) if spec is not None else None


def _own_limits(limits: Resources) -> Resources:
    """Return `limits` without extended resources, whose limit is the request: a quota bounds them only by requests."""
    return Resources.of({name: amount for name, amount in limits.amounts.items() if not is_extended(name)})


def _claims(pod_spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the volume claims that a pod names, without duplicates."""
    named = [
        object_of(item.get("persistentVolumeClaim")).get("claimName") for item in objects_of(pod_spec.get("volumes"))
    ]
    return tuple(dict.fromkeys(str(name) for name in named if name))


def _with_claim(role: RoleFact, claim: str) -> RoleFact:
    """Return the role with this claim added to the volume claims of its pods."""
    return role if claim in role.claims else msgspec.structs.replace(role, claims=(*role.claims, claim))


def _toleration(item: TolerationSpec) -> Toleration:
    return Toleration(
        key=item.key,
        operator=item.operator,
        value=item.value,
        effect=item.effect,
        toleration_seconds=item.toleration_seconds,
    )


def _host_ports(pod_spec: Mapping[str, Any], ports: list[int]) -> tuple[int, ...]:
    """Return the host ports that a rank uses. With `hostNetwork` each port of a container is a port of the node."""
    sidecars = [item for item in objects_of(pod_spec.get("initContainers")) if item.get("restartPolicy") == "Always"]
    named = [
        port for item in (*objects_of(pod_spec.get("containers")), *sidecars) for port in objects_of(item.get("ports"))
    ]
    is_on_host = pod_spec.get("hostNetwork") is True
    taken = [port.get("hostPort") or (is_on_host and port.get("containerPort")) for port in named]
    taken += ports if is_on_host else []
    return tuple(sorted({port for port in taken if isinstance(port, int) and port > 0}))


def _limits(spec: QueueSpec, field: str, wire: str) -> Resources | None:
    """Return the amounts in `field` of a queue, including those of its flavors.

    Raises:
        ValueError: a bad quantity, or an amount for a flavor that is not GPUs; the message starts with its path.
    """
    amounts = _amounts(wire, getattr(spec, field))
    for index, flavor in enumerate(spec.flavors):
        path = f"flavors[{index}].{wire}"
        quantities: Quantities | None = getattr(flavor, field)
        other = next((name for name in quantities or () if name != GPU), None)
        if other is not None:
            raise ValueError(f"spec.{path}.{other}: only {GPU} is counted by flavor; write {other} in spec.{wire}")
        for value in (quantities or {}).values():
            found = _amounts(path, {gpus_of(flavor.name): value})
            amounts = Resources({**(amounts or Resources()).amounts, **(found or Resources()).amounts})
    return amounts


def _amounts(field: str, quantities: Quantities | None) -> Resources | None:
    """Return the amounts in base units; None when absent. Zeros are kept, because a bound of zero is a bound.

    Raises:
        ValueError: a bad quantity; the message starts with its path.
    """
    if quantities is None:
        return None
    amounts: dict[str, int] = {}
    for name, value in quantities.items():
        try:
            amounts[name] = parse_quantity(value, scale=scale_of(name))
        except ValueError as exc:
            raise ValueError(f"spec.{field}.{name}: {exc}") from exc
    return Resources(amounts)


def _epoch(stamp: str | None) -> float:
    return parse_time(stamp) if stamp else 0.0


KNOWN_MAX = 4_096
"""Maximum number of specs in the cache."""
BYTES_MAX = 16 * 1024
"""Larger specs are not cached, so that the cache stays small. The limit is far below the size at which a spec is
refused."""
_SAME = AllocationSpec(kind=Kind.COMMAND)
_encode = msgspec.json.Encoder().encode


class SpecCache:
    """The cache of the specs that were resolved last."""

    def __init__(self) -> None:
        self._pools: dict[str, ResourcePool | None] = {}
        self._ranges: dict[str, Ranges] = {}
        self._known: dict[tuple[str, bytes], SpecFacts] = {}

    def of(self, allocation: Allocation, pool: ResourcePool | None, ranges: Ranges = ()) -> SpecFacts:
        """Return the spec of `allocation` as the planner reads it.

        `pool` (None when it does not exist) has the defaults; `ranges` are the LimitRanges of its namespace.
        """
        self._follow(allocation.spec.pool, pool)
        self._follow_ranges(allocation.metadata.namespace, ranges)
        key = _key(allocation)
        if key is None:
            return spec_facts(allocation, pool, ranges)
        found = self._known.get(key)
        if found is None:
            found = spec_facts(allocation, pool, ranges)
            if not any(ALLOCATION_UID in role.labels for role in found.roles):
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[key] = found
        return found

    def take_pools(self, pools: Mapping[str, ResourcePool]) -> bool:
        """Replace all known pools. Return whether a pool was added, removed or got another spec."""
        before = {name: pool.spec for name, pool in self._pools.items() if pool is not None}
        is_other = before != {name: pool.spec for name, pool in pools.items()}
        if is_other:
            self._known.clear()
        self._pools = dict(pools)
        return is_other

    def take_ranges(self, ranges: Mapping[str, Ranges]) -> bool:
        """Replace all known LimitRanges, by namespace. Return whether one was added, removed or changed."""
        is_other = self._ranges != ranges
        if is_other:
            self._known.clear()
        self._ranges = dict(ranges)
        return is_other

    def _follow_ranges(self, namespace: str, ranges: Ranges) -> None:
        if self._ranges.get(namespace, ()) != ranges:
            self._known.clear()
            self._ranges[namespace] = ranges

    def _follow(self, name: str, pool: ResourcePool | None) -> None:
        before = self._pools.get(name)
        if before is pool and name in self._pools:
            return
        if name in self._pools and (before.spec if before else None) != (pool.spec if pool else None):
            self._known.clear()
        self._pools[name] = pool


def _key(allocation: Allocation) -> tuple[str, bytes] | None:
    """Return the cache key, which is equal for allocations that share an entry; None: not cached."""
    meta, spec = allocation.metadata, allocation.spec
    if not ids.is_name(meta.name):
        return None
    if spec.signals is not None and len(_encode(spec.signals)) > BYTES_MAX:
        return None
    alike = msgspec.structs.replace(
        spec,
        queue=_SAME.queue,
        priority=_SAME.priority,
        queue_position=_SAME.queue_position,
        hold=_SAME.hold,
        desired=_SAME.desired,
        signals=None,
        request_hash=_SAME.request_hash,
    )
    try:
        text = _encode(alike)
    except RecursionError:
        return None
    return (meta.namespace, text) if len(text) <= BYTES_MAX else None
