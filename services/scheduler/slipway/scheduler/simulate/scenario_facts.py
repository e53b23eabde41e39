"""Converts a scenario to the facts that the planner reads. Pure.

All parts of a scenario are in one namespace and one pool. An allocation's uid is its name, so ties are broken by name.
"""

from collections.abc import Mapping

import msgspec

from slipway.model.decay import DecayedUsage, decayed, spread
from slipway.model.eviction_rate import EvictionLevel, EvictionLimit
from slipway.model.facts import (
    SHARING_LABEL,
    AllocationFact,
    AutoscalingFact,
    BudgetFact,
    FairShareFact,
    FlavorFact,
    JobFact,
    NodeFact,
    PodFact,
    PoolFact,
    QueueFact,
    QuotaFact,
    RoleFact,
    Taint,
    Toleration,
    TopologyFact,
    VolumeFact,
    WindowFact,
)
from slipway.model.ids import labels_if_named
from slipway.model.mig import GPU_UNITS
from slipway.model.position import milliseconds
from slipway.model.reasons import DependencyEnd
from slipway.model.resources import CPU, GPU, MEMORY, PODS, Resources, gpus_of
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.simulate.scenario_format import (
    AllocationPart,
    EvictionLimitPart,
    FairSharePart,
    NodePart,
    Quantities,
    QueuePart,
    RankPart,
    Scenario,
    TopologyPart,
    WindowPart,
    amount,
    moment,
    node_names,
    seconds,
)

NAMESPACE = "default"
POOL = "default"
DEFAULT_QUEUE = "default"


class ScenarioFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The initial facts of a simulated world; those of allocations are from before any event."""

    pool: PoolFact
    nodes: list[NodeFact]
    queues: list[QueueFact]
    jobs: list[JobFact]
    workspaces: frozenset[str]
    allocations: dict[str, AllocationFact]
    """{name of the scenario's part: its fact, in phase Pending}; the uid is that name"""
    pods: list[PodFact] = []
    """pods that belong to no allocation here, and use resources"""
    namespaces: dict[str, dict[str, str]] = {}
    """{namespace: its labels}"""
    volumes: list[VolumeFact] = []
    quotas: list[QuotaFact] = []
    """ResourceQuotas, without the usage of the allocations above in their `used`"""
    evicted: tuple[EvictionLevel, ...] = ()
    """the usage of the eviction limits"""
    past: DecayedUsage = DecayedUsage()
    """the past usage of queues and users, if the pool has `fairShare`"""


def facts_of(scenario: Scenario) -> ScenarioFacts:
    """Return all facts of a scenario."""
    return ScenarioFacts(
        pool=pool(scenario),
        nodes=nodes(scenario),
        queues=queues(scenario),
        jobs=jobs(scenario),
        workspaces=frozenset({NAMESPACE}),
        allocations={part.name: allocation(part) for part in scenario.allocations},
        volumes=volumes(scenario),
        past=past_use(scenario),
    )


def nodes(scenario: Scenario) -> list[NodeFact]:
    """Return all nodes."""
    return [_node(node, name) for node in scenario.nodes for name in node_names(node)]


def pool(scenario: Scenario) -> PoolFact:
    """Return the only pool."""
    part = scenario.pool
    return PoolFact(
        name=POOL,
        scores=part.scores,
        args=part.args,
        sampling=part.sampling,
        autoscaling=AutoscalingFact() if part.autoscaling else None,
        topology=tuple(part.topology),
        backfill=part.backfill,
        aging=seconds(part.aging),
        flavors=tuple(FlavorFact(flavor.name, flavor.node_labels) for flavor in part.flavors),
        eviction_limit=_eviction_limit(part.eviction_limit),
        windows=tuple(window(each) for each in part.windows),
        fair_share=_fair_share(part.fair_share),
    )


def window(part: WindowPart) -> WindowFact:
    """Return one window of the pool."""
    repeat = part.repeat
    return WindowFact(
        name=part.name,
        start=moment(part.start),
        duration=seconds(part.duration),
        every=repeat.every if repeat is not None else "",
        until=moment(repeat.until) if repeat is not None and repeat.until is not None else None,
        time_zone=part.time_zone,
        queues=tuple(part.queues),
        node_names=tuple(part.node_names),
        node_selector=part.node_selector,
        nodes=part.nodes,
        gpus=part.gpus,
        lead_s=seconds(part.lead_time),
        evicts=part.on_start == "Evict",
    )


def queues(scenario: Scenario) -> list[QueueFact]:
    """Return the queues; one default queue when the scenario has none."""
    return [_queue(queue) for queue in scenario.queues] or [QueueFact(name=DEFAULT_QUEUE, pool=POOL)]


def volumes(scenario: Scenario) -> list[VolumeFact]:
    """Return the volume claims."""
    return [
        VolumeFact(namespace=NAMESPACE, name=volume.name, zones=volume.reached_from(), terms=volume.terms())
        for volume in scenario.volumes
    ]


def jobs(scenario: Scenario) -> list[JobFact]:
    """Return the jobs."""
    return [
        JobFact(
            namespace=NAMESPACE,
            name=job.name,
            max_slots=job.max_slots,
            priority=job.priority,
            weight=job.weight,
            position=_place(job.position),
        )
        for job in scenario.jobs
    ]


def allocation(part: AllocationPart) -> AllocationFact:
    """Return a pending allocation. A role's default minimum is 0 if the allocation states one, else all its ranks."""
    roles = tuple(role(rank, part.min_available is not None, part.name) for rank in part.ranks)
    minimum = max(1, sum(role.minimum for role in roles), part.min_available or 0)
    return AllocationFact(
        namespace=NAMESPACE,
        name=part.name,
        uid=part.name,
        version=1,
        pool=POOL,
        queue=part.queue,
        job=part.job,
        kind="training",
        user=part.user,
        priority=part.priority,
        position=_place(part.position),
        preemptible=part.preemptible,
        created=part.submit,
        roles=roles,
        minimum=minimum,
        topology=_topology(part.topology),
        hold=part.hold,
        waits_for=tuple((name, DependencyEnd.ENDED.value) for name in dict.fromkeys(part.after)),
        finalized=True,
        avoid_nodes=tuple(part.avoid_nodes),
        flavors=(part.gpu_type,) if part.gpu_type else tuple(part.flavors),
        max_runtime=part.max_runtime,
    )


def _node(part: NodePart, name: str) -> NodeFact:
    amounts = _requests(part) | {PODS: amount(PODS, part.pods)[1]}
    sharing = {SHARING_LABEL: "true"} if amounts.get(GPU) else {}
    return NodeFact(
        name=name,
        uid=name,
        labels={"kubernetes.io/hostname": name, **sharing, **part.labels},
        images={image: amount(image, size)[1] for image, size in part.images.items()},
        taints=tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in part.taints),
        allocatable=Resources.of(amounts),
        unschedulable=part.unschedulable,
        ready=part.ready,
    )


def _requests(part: NodePart | RankPart) -> dict[str, int]:
    """Return the resources from their own fields and from `resources`; no resource is in both."""
    own = dict(amount(key, value) for key, value in ((CPU, part.cpu), (MEMORY, part.memory), (GPU, part.gpus)))
    others = dict(amount(key, value) for key, value in part.resources.items())
    return others | {key: value for key, value in own.items() if value}


def _queue(part: QueuePart) -> QueueFact:
    return QueueFact(
        name=part.name,
        pool=POOL,
        parent="" if part.parent == "root" else part.parent,
        weight=part.weight,
        priority=part.priority,
        nominal=_amounts(part.nominal, {each.name: each.nominal for each in part.flavors}),
        borrowing_limit=_amounts(part.borrowing_limit, {each.name: each.borrowing_limit for each in part.flavors}),
        lending_limit=_amounts(part.lending_limit, {each.name: each.lending_limit for each in part.flavors}),
        limit=_amounts(part.limit, {each.name: each.limit for each in part.flavors}),
        flavors=tuple(each.name for each in part.flavors),
        when_can_borrow=part.flavor_fungibility.when_can_borrow,
        when_can_preempt=part.flavor_fungibility.when_can_preempt,
        ordering=part.ordering,
        user_order=part.user_order,
        within_queue=part.preemption.within_queue,
        reclaim=part.preemption.reclaim,
        max_runtime=None if part.max_runtime is None else seconds(part.max_runtime),
        min_runtime=None if part.min_runtime is None else seconds(part.min_runtime),
        eviction_limit=_eviction_limit(part.eviction_limit),
        budgets=tuple(
            BudgetFact(round(budget.gpu_hours * 3_600_000), seconds(budget.window)) for budget in part.budgets
        ),
    )


def _eviction_limit(part: EvictionLimitPart | None) -> EvictionLimit | None:
    if part is None:
        return None
    return EvictionLimit(count=part.count, per_s=seconds(part.per), burst=part.burst or part.count)


def _fair_share(part: FairSharePart | None) -> FairShareFact | None:
    return None if part is None else FairShareFact(seconds(part.half_life), round(part.history_weight * 1000))


def past_use(scenario: Scenario) -> DecayedUsage:
    """Return the usage before time 0, as weighted at time 0; also that of allocations which already run then."""
    rule = scenario.pool.fair_share
    if rule is None:
        return DecayedUsage()
    half_life_ms = milliseconds(seconds(rule.half_life))
    used: dict[str, dict[str, int]] = {}
    for part in scenario.history:
        left = decayed(round(part.gpu_hours * 3_600_000), milliseconds(seconds(part.ago)), half_life_ms)
        users = used.setdefault(part.queue, {})
        users[part.user] = users.get(part.user, 0) + left
    for each in scenario.allocations:
        fact = allocation(each)
        for place in each.placed:
            placed_role, since_ms = fact.role_of(place.rank), milliseconds(place.since)
            units = requests_of(placed_role).gpu_units() if placed_role is not None else 0
            if units and since_ms < 0:
                users = used.setdefault(each.queue, {})
                left = spread(-since_ms * units // GPU_UNITS, since_ms, 0, 0, half_life_ms)
                users[each.user] = users.get(each.user, 0) + left
    return DecayedUsage(half_life_ms=half_life_ms, used=used)


def _place(place: str | float) -> str:
    return place if isinstance(place, str) else f"{place:f}".rstrip("0").rstrip(".")


def _amounts(quantities: Quantities | None, of_flavors: Mapping[str, Quantities | None]) -> Resources | None:
    """Return the quota, or None without one. Zeros are kept, because a quota of zero is a quota."""
    stated = {flavor: of for flavor, of in of_flavors.items() if of is not None}
    if quantities is None and not stated:
        return None
    amounts = dict(amount(key, value) for key, value in (quantities or {}).items())
    for flavor, of in stated.items():
        amounts |= dict(amount(gpus_of(flavor), value) for value in of.values())
    return Resources(amounts)


def _topology(part: TopologyPart | None) -> TopologyFact | None:
    return TopologyFact(part.key, part.mode) if part is not None else None


def role(part: RankPart, has_gang_minimum: bool, owner: str = "") -> RoleFact:
    """Return one role of the allocation `owner`."""
    spread = tuple(each.as_kubernetes() for each in part.topology_spread_constraints)
    amounts = _requests(part)
    minimum = part.min_available
    if minimum is None:
        minimum = 0 if has_gang_minimum else part.count
    return RoleFact(
        name=part.name,
        count=part.count,
        minimum=minimum,
        requests=Resources.of(amounts),
        node_selector=part.node_selector,
        affinity=part.affinity,
        tolerations=tuple(
            Toleration(key=item.key, operator=item.operator, value=item.value, effect=item.effect)
            for item in part.tolerations
        ),
        topology=_topology(part.topology),
        host_ports=tuple(part.host_ports),
        namespace=NAMESPACE,
        labels=part.labels | dict(labels_if_named(owner, owner, part.name, part.affinity, spread)),
        spread=spread,
        images=tuple(part.images),
        node_name=part.node_name,
        claims=tuple(part.volumes),
        gpu_milli=part.gpu_milli,
    )
