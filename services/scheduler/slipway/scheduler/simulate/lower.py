"""Scenario -> the facts that the planner reads. Pure.

Everything of a scenario is in one namespace and one pool; an allocation's uid is its name, so that ties fall by name.
"""

from slipway.model.facts import (
    AllocationFact,
    JobFact,
    NodeFact,
    PoolFact,
    QueueFact,
    RoleFact,
    Taint,
    Toleration,
    TopologyFact,
)
from slipway.model.resources import CPU, GPU, MEMORY, PODS, Resources
from slipway.scheduler.simulate.scenario import (
    AllocationPart,
    NodePart,
    Quantities,
    QueuePart,
    RankPart,
    Scenario,
    amount,
    node_names,
)

NAMESPACE = "default"
POOL = "default"
DEFAULT_QUEUE = "default"


def nodes(scenario: Scenario) -> list[NodeFact]:
    """All nodes."""
    return [_node(node, name) for node in scenario.nodes for name in node_names(node)]


def pool(scenario: Scenario) -> PoolFact:
    """The one pool."""
    part = scenario.pool
    return PoolFact(name=POOL, scores=part.scores, topology=tuple(part.topology), backfill=part.backfill)


def queues(scenario: Scenario) -> list[QueueFact]:
    """The queues; one default queue when the scenario has none."""
    return [_queue(queue) for queue in scenario.queues] or [QueueFact(name=DEFAULT_QUEUE, pool=POOL)]


def jobs(scenario: Scenario) -> list[JobFact]:
    """The jobs."""
    return [
        JobFact(
            namespace=NAMESPACE,
            name=job.name,
            max_slots=job.max_slots,
            priority=job.priority,
            weight=job.weight,
            position=job.position,
        )
        for job in scenario.jobs
    ]


def allocation(part: AllocationPart) -> AllocationFact:
    """A pending allocation; a role without a minimum needs none of its ranks if the allocation gives one, else all."""
    roles = tuple(_role(rank, part.min_available is not None) for rank in part.ranks)
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
        priority=part.priority,
        position=part.position,
        preemptible=part.preemptible,
        created=part.submit,
        roles=roles,
        minimum=minimum,
        hold=part.hold,
        finalized=True,
        avoid_nodes=tuple(part.avoid_nodes),
        max_runtime=part.max_runtime,
    )


def _node(part: NodePart, name: str) -> NodeFact:
    amounts = dict(amount(key, value) for key, value in part.resources.items())
    amounts |= {CPU: amount(CPU, part.cpu)[1], MEMORY: amount(MEMORY, part.memory)[1], GPU: part.gpus, PODS: part.pods}
    return NodeFact(
        name=name,
        uid=name,
        labels={"kubernetes.io/hostname": name, **part.labels},
        taints=tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in part.taints),
        allocatable=Resources.of(amounts),
        unschedulable=part.unschedulable,
        ready=part.ready,
    )


def _queue(part: QueuePart) -> QueueFact:
    return QueueFact(
        name=part.name,
        pool=POOL,
        parent="" if part.parent == "root" else part.parent,
        weight=part.weight,
        priority=part.priority,
        nominal=_amounts(part.nominal),
        borrowing_limit=_amounts(part.borrowing_limit),
        lending_limit=_amounts(part.lending_limit),
        limit=_amounts(part.limit),
        ordering=part.ordering,
        within_queue=part.preemption.within_queue,
        reclaim=part.preemption.reclaim,
    )


def _amounts(quantities: Quantities | None) -> Resources | None:
    """A quota of zero is a quota: zeros are kept."""
    return None if quantities is None else Resources(dict(amount(key, value) for key, value in quantities.items()))


def _role(part: RankPart, has_gang_minimum: bool) -> RoleFact:
    amounts = dict(amount(key, value) for key, value in part.resources.items())
    amounts |= {CPU: amount(CPU, part.cpu)[1], MEMORY: amount(MEMORY, part.memory)[1], GPU: part.gpus}
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
        topology=TopologyFact(part.topology.key, part.topology.mode) if part.topology else None,
        host_ports=tuple(part.host_ports),
        gpu_milli=part.gpu_milli,
    )
