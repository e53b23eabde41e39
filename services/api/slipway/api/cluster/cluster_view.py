"""Queues, pools and nodes as the REST API shows them, with counts over the live allocations. Pure."""

from collections.abc import Iterable, Iterator

from slipway.api.allocations.view import shown
from slipway.api.cluster.seen_nodes import SeenNode
from slipway.api.launch.capacity import allocatable_of, nodes_of
from slipway.api.queues.queue_view import NONE_FIRST, Jobs, Precedence, UnitsBy, gpu_units_of, is_waiting, waiting_of
from slipway.api.schemas import EvictionLimitView, FlavorUse, Held, NodeView, PoolView, QueueView, WindowView
from slipway.crd.members import departed_ranks, members
from slipway.crd.resolve import role_requests, template_of
from slipway.crd.transitions import id_of, is_admitted, user_of
from slipway.crd.v1alpha1 import Allocation, Queue, ResourcePool, RoleSpec
from slipway.facts.custom_resources import eviction_limit, window_fact
from slipway.model import windows
from slipway.model.eviction_rate import POOL_SCOPE, EvictionLevel
from slipway.model.facts import DISABLED, DRAINING, SCHEDULING_LABEL
from slipway.model.mig import GPU_UNITS, whole_gpus
from slipway.model.resources import GPU, QuantityValue, Resources, counted_gpus, gpus_of, total
from slipway.model.times import format_time

ENABLED = "enabled"
CORDONED = "cordoned"
GPU_TYPE_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
"""Labels by which discovery programs and providers name the GPU type of a node; the first that is set is used."""


def queue_view(
    queue: Queue,
    live: Iterable[Allocation],
    *,
    pending: Iterable[Allocation] = (),
    jobs: Jobs | None = None,
    first: Precedence = NONE_FIRST,
    pool_of: ResourcePool | None = None,
    nodes: Iterable[SeenNode] = (),
    units_by: UnitsBy = gpu_units_of,
) -> QueueView:
    """Return the view of a queue.

    With `pending`, the view has the waiting allocations in order. With `pool_of` (the queue's pool) and `nodes`, it has
    the use of each flavor.
    """
    name, pool = queue.metadata.name, queue.spec.pool
    own = [each for each in live if (each.spec.pool, each.spec.queue) == (pool, name)]
    waiting = [each for each in pending if each.spec.queue == name]
    return QueueView(
        name=name,
        pool=pool,
        pending=sum(map(is_waiting, own)),
        live=sum(map(is_admitted, own)),
        slots_in_use=whole_gpus(sum(units_by(each) for each in own if is_admitted(each))),
        spec=shown(queue.spec),
        flavors=_flavors_of(queue, pool_of, nodes, own) if pool_of is not None else [],
        min_runtime=queue.spec.min_runtime or "",
        eviction_limits=[],
        windows=[],
        waiting=waiting_of(waiting, jobs or {}, first),
    )


def line_of(queue: Queue, queues: Iterable[Queue]) -> list[Queue]:
    """Return the queue and its parents, the nearest first. A cycle of parents is cut before its first repetition."""
    known = {each.metadata.name: each for each in queues if each.spec.pool == queue.spec.pool}
    line = [queue]
    while (parent := known.get(line[-1].spec.parent or "")) is not None and parent not in line:
        line.append(parent)
    return line


def min_runtime_of(line: Iterable[Queue]) -> str:
    """Return how long allocations are protected from preemption: the value of the first queue that has one."""
    return next((each.spec.min_runtime for each in line if each.spec.min_runtime is not None), "")


def eviction_limits(line: Iterable[Queue], pool: ResourcePool | None, now: float) -> list[EvictionLimitView]:
    """Return the eviction limits of the queues in `line` and of the pool, with the remaining count at `now`.

    `now` is in epoch seconds.
    """
    stated = [(each.metadata.name, each.spec.eviction_limit) for each in line]
    stated.append((POOL_SCOPE, pool.spec.eviction_limit if pool is not None else None))
    levels = {
        each.queue: EvictionLevel(scope=each.queue, used=each.used, per_ms=each.per_ms, at_ms=each.at_ms)
        for each in (pool.status.evicted if pool is not None else ())
    }
    found: list[EvictionLimitView] = []
    for name, rate in stated:
        limit = eviction_limit(rate)
        if rate is None or limit is None:
            continue
        at = limit.next_at(levels.get(name), now)
        found.append(
            EvictionLimitView(
                of=name,
                count=limit.count,
                per=rate.per,
                burst=limit.burst,
                left=limit.left(levels.get(name), now),
                next_at=format_time(at) if at else "",
            )
        )
    return found


def _flavors_of(
    queue: Queue, pool: ResourcePool, nodes: Iterable[SeenNode], own: Iterable[Allocation]
) -> list[FlavorUse]:
    if not pool.spec.flavors:
        return []
    flavor_of = {node.metadata.name: node_flavor(pool, node) for node in nodes}
    used: dict[str, float] = {}
    for allocation in own:
        for node, asked in asks_by_node(allocation):
            flavor = flavor_of.get(node, "")
            used[flavor] = used.get(flavor, 0.0) + _gpus(asked)
    owned = {each.name: (each.nominal or {}).get(GPU) for each in queue.spec.flavors}
    return [
        FlavorUse(name=name, nominal=_count(name, owned.get(name)), gpus_in_use=used.get(name, 0.0))
        for name in (flavor.name for flavor in pool.spec.flavors)
    ]


def node_flavor(pool: ResourcePool, node: SeenNode) -> str:
    """Return the flavor of `pool` that a node belongs to; empty when there is none."""
    labels = node.metadata.labels.items()
    return next((flavor.name for flavor in pool.spec.flavors if flavor.node_labels.items() <= labels), "")


def _gpus(asked: Resources) -> float:
    """Return the number of GPUs: whole devices, fractions and slices."""
    return counted_gpus(asked.amounts) / GPU_UNITS


def _count(flavor: str, amount: QuantityValue | None) -> float | None:
    """Return the number of GPUs of a flavor as quota counts them; None without a value, or with an unreadable one."""
    name = gpus_of(flavor)
    try:
        return None if amount is None else Resources.parse({name: amount}).get(name) / GPU_UNITS
    except ValueError:
        return None


def windows_of(pool: ResourcePool, nodes: Iterable[SeenNode], queues: Iterable[Queue], now: float) -> list[WindowView]:
    """Return the windows of a pool that are invalid or still occur after `now` (epoch seconds).

    The invalid ones are first, then the others by their start.
    """
    if not pool.spec.windows:
        return []
    name = pool.metadata.name
    facts = [window_fact(spec) for spec in pool.spec.windows]
    own = {node.metadata.name: (node.metadata.labels, allocatable_of(node).gpus()) for node in nodes_of(pool, nodes)}
    notes = windows.notes_on(facts, {each.metadata.name for each in queues if each.spec.pool == name}, own, now)
    found = [(windows.occurrence(fact, now), fact, spec) for fact, spec in zip(facts, pool.spec.windows, strict=True)]
    standing = [each for each in found if each[0] is not None or each[1].invalid]
    standing.sort(key=lambda each: (each[0].start if each[0] is not None else 0.0, each[1].name))
    return [
        WindowView(
            name=fact.name,
            queues=list(fact.queues),
            start=format_time(time.start, "seconds") if time is not None else "",
            end=format_time(time.end, "seconds") if time is not None else "",
            is_begun=time is not None and time.start <= now,
            every=fact.every,
            time_zone=fact.time_zone,
            nodes=fact.nodes,
            gpus=fact.gpus,
            matching=len(windows.matching(fact, own)) if not fact.invalid else 0,
            lead_time_s=fact.lead_s,
            on_start=spec.on_start,
            notes=[fact.invalid] if fact.invalid else notes.get(fact.name, []),
        )
        for time, fact, spec in standing
    ]


def pool_view(
    pool: ResourcePool,
    nodes: Iterable[SeenNode],
    live: Iterable[Allocation],
    *,
    queues: Iterable[Queue] = (),
    now: float = 0.0,
) -> PoolView:
    """Return the view of a pool at `now` (epoch seconds); `queues` are all queues of the cluster."""
    own_nodes = nodes_of(pool, nodes)
    own = [each for each in live if each.spec.pool == pool.metadata.name]
    offered = total(map(allocatable_of, own_nodes))
    return PoolView(
        name=pool.metadata.name,
        nodes=len(own_nodes),
        allocatable=offered.quantities(),
        gpus=offered.gpu_count(),
        pending=sum(map(is_waiting, own)),
        live=sum(map(is_admitted, own)),
        epoch=pool.status.epoch,
        tick=pool.status.tick,
        open_decisions=len(pool.status.decisions),
        windows=windows_of(pool, own_nodes, queues, now),
        spec=shown(pool.spec),
    )


def node_views(
    nodes: Iterable[SeenNode], live: Iterable[Allocation], pools: Iterable[ResourcePool] = ()
) -> list[NodeView]:
    """Return the views of the nodes, in their order. A rank uses its node from admission to the end of its attempt.

    Each allocation is visited once, however many nodes there are.
    """
    holdings = _holdings(live)
    ordered = sorted(pools, key=lambda pool: pool.metadata.name)
    return [_node_view(node, holdings.get(node.metadata.name, []), ordered) for node in nodes]


def _node_view(node: SeenNode, holdings: "list[tuple[Held, Resources]]", pools: Iterable[ResourcePool]) -> NodeView:
    of = next((pool for pool in pools if nodes_of(pool, [node])), None)
    offered, used = allocatable_of(node), total(asked for _, asked in holdings)
    return NodeView(
        name=node.metadata.name,
        pool=of.metadata.name if of is not None else "",
        ready=is_node_ready(node),
        schedulable=scheduling_of(node) == ENABLED,
        scheduling=scheduling_of(node),
        labels=node.metadata.labels,
        taints=[shown(taint) for taint in node.spec.taints],
        allocatable=offered.quantities(),
        used=used.quantities(),
        gpu_type=(node_flavor(of, node) if of is not None else "")
        or next(filter(None, (node.metadata.labels.get(label) for label in GPU_TYPE_LABELS)), ""),
        gpus=offered.gpus(),
        gpus_used=used.gpus(),
        ranks=[held for held, _ in holdings],
    )


def _holdings(live: Iterable[Allocation]) -> dict[str, list[tuple[Held, Resources]]]:
    """Return {node: (the rank, its requests) for each rank on it}."""
    found: dict[str, list[tuple[Held, Resources]]] = {}
    for allocation in live:
        for node, rank, asked in _placed(allocation):
            held = Held(
                id=id_of(allocation),
                rank=rank,
                phase=allocation.status.phase,
                user=user_of(allocation),
                queue=allocation.spec.queue,
                gpus=asked.gpus(),
            )
            found.setdefault(node, []).append((held, asked))
    return found


def is_node_ready(node: SeenNode) -> bool:
    """Whether the node is ready: its kubelet reports, and reports no problem."""
    return _ready_of(node) == "True"


def is_node_silent(node: SeenNode) -> bool:
    """Whether the kubelet has not reported for so long that the state of the node's pods is unknown."""
    return _ready_of(node) == "Unknown"


def _ready_of(node: SeenNode) -> str:
    return next((each.status for each in node.status.conditions if each.type == "Ready"), "")


def scheduling_of(node: SeenNode) -> str:
    """Return the scheduling state of a node: by our label, or else by its cordon, which only blocks new ranks."""
    wanted = node.metadata.labels.get(SCHEDULING_LABEL, "")
    if wanted in (DRAINING, DISABLED):
        return wanted
    return CORDONED if node.spec.unschedulable else ENABLED


def asks_by_node(allocation: Allocation) -> Iterator[tuple[str, Resources]]:
    """Return (node, requests) of each placed rank of an allocation."""
    return ((node, asked) for node, _, asked in _placed(allocation))


def _placed(allocation: Allocation) -> Iterator[tuple[str, int, Resources]]:
    """Yield (node, rank, requests) of each placed rank of an allocation."""

    if not is_admitted(allocation):
        return
    asks, gone = {role.name: _asks(allocation, role) for role in allocation.spec.ranks}, departed_ranks(allocation)
    for placement in (member.placement for member in members(allocation) if member.rank not in gone):
        asked = asks.get(placement.role)
        yield placement.node, placement.rank, _asks(allocation, RoleSpec()) if asked is None else asked


def _asks(allocation: Allocation, role: RoleSpec) -> Resources:
    try:
        return role_requests(role, template_of(allocation.spec, role))
    except ValueError:
        return Resources()
