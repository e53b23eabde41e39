"""Builds the compact facts that placement needs from nodes, pods and other core objects. Pure.

The resources that a pod uses on its node are computed as in kube-scheduler, so that both see the same free capacity.
Owns which fields of a pod are read, also during a resize. Pure; `model/podresources.py` computes the sums.

Source: k8s.io/kubernetes/pkg/scheduler/framework (PodInfo), k8s.io/component-helpers/resource, v1.37.

Facts are built for LISTs and for the cluster feed alike.

`FEED_KINDS` is the one table of the kinds in the feed: the kind of an entry is the plural of its resource, and its data
(JSON) decodes to the struct. The key of an entry is `object_key`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slipway.crd.meta import (
    ANNOTATION_DEVICES,
    ANNOTATION_GPU_MILLI,
    LABEL_ALLOCATION_UID,
    LABEL_ATTEMPT,
    LABEL_RANK,
    LABEL_ROLE,
    LABEL_WORKSPACE,
    ObjectMeta,
    condition_of,
    is_ours,
)
from slipway.crd.v1alpha1 import Allocation, Job, Queue, ResourcePool
from slipway.facts.custom_resources import SpecCache, allocation_fact, job_fact, pool_fact, queue_fact
from slipway.kube.objects import (
    Container,
    ContainerStatus,
    LimitRange,
    LimitRangeItem,
    Namespace,
    Node,
    Pod,
    ResourceLists,
    ResourceQuota,
)
from slipway.model.facts import (
    AllocationFact,
    JobFact,
    LimitRangeFact,
    NodeFact,
    PodFact,
    PoolFact,
    QueueFact,
    QuotaFact,
    QuotaScope,
    RangeBounds,
    Taint,
    WorkspaceFact,
)
from slipway.model.namespace_limits import Ranges, counts_pods
from slipway.model.numbers import number_in
from slipway.model.podresources import (
    NOTHING,
    UNSTATED,
    ContainerResources,
    KubeletAmounts,
    Quantities,
    effective_requests,
    scored_requests,
)
from slipway.model.resources import (
    GPU,
    GPU_MILLI,
    MILLI,
    QuantityValue,
    Resources,
    parse_quantity,
    parse_thousandths,
    scale_of,
)

SIDECAR = "Always"
"""the restartPolicy of an init container that is a sidecar"""


def requests_of(pod: Pod, unstated: Quantities = NOTHING) -> Resources:
    """Return the pod's effective request; `unstated` are the requests assumed for a container without a request."""
    spec = pod.spec
    reports = _reports(pod)
    return effective_requests(
        [_container_resources(item, reports) for item in spec.containers],
        [_container_resources(item, reports) for item in spec.init_containers],
        spec.overhead,
        own=spec.resources.requests if spec.resources is not None else NOTHING,
        held=_held(pod, reports),
        unstated=unstated,
    )


def host_ports_of(pod: Pod) -> tuple[int, ...]:
    """Return the host ports of containers and sidecars. Protocol and address are ignored, which is stricter."""
    lasting = (*(item for item in pod.spec.init_containers if _is_sidecar(item)), *pod.spec.containers)
    return tuple({port.host_port: None for item in lasting for port in item.ports if port.host_port})


def resize_of(pod: Pod) -> object:
    """Return what `requests_of` reads from the pod's status; equal values mean equal requests if the spec is equal."""
    status, reports = pod.status, _reports(pod)
    amounts = [(name, item.resources, item.allocated_resources) for name, item in reports.items()]
    return amounts, status.resources, status.allocated_resources, _is_resize_refused(pod)


def _container_resources(container: Container, reports: Mapping[str, ContainerStatus]) -> ContainerResources:
    report = reports.get(container.name)
    return ContainerResources(
        requests=container.resources.get("requests") or {},
        limits=container.resources.get("limits") or {},
        sidecar=_is_sidecar(container),
        granted=report.allocated_resources if report is not None else {},
        in_force=_in_force(report.resources) if report is not None else {},
    )


def _reports(pod: Pod) -> Mapping[str, ContainerStatus]:
    """Return {container: its status} for the containers whose resources the kubelet reports."""
    status = pod.status
    all_ = (*status.container_statuses, *status.init_container_statuses)
    return {item.name: item for item in all_ if item.resources is not None or item.allocated_resources}


def _held(pod: Pod, reports: Mapping[str, ContainerStatus]) -> KubeletAmounts | None:
    """Return the amounts that the kubelet reports; None if they equal the requests, which is the usual case."""
    status, is_refused = pod.status, _is_resize_refused(pod)
    if not is_refused and status.resources is None and not status.allocated_resources:
        every = (*pod.spec.containers, *pod.spec.init_containers)
        if all(_is_as_asked(item, reports[item.name]) for item in every if item.name in reports):
            return None
    return KubeletAmounts(
        granted=status.allocated_resources,
        in_force=_in_force(status.resources),
        is_reported=status.resources is not None,
        is_resize_refused=is_refused,
    )


def _is_as_asked(container: Container, report: ContainerStatus) -> bool:
    asked: dict[str, Any] = container.resources.get("requests") or {}
    return all(amounts in (asked, {}) for amounts in (report.allocated_resources, _in_force(report.resources)))


def _in_force(lists: ResourceLists | None) -> dict[str, Any]:
    return lists.requests if lists is not None else {}


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == SIDECAR


def _is_resize_refused(pod: Pod) -> bool:
    pending = condition_of(pod.status.conditions, "PodResizePending")
    return pending is not None and pending.reason == "Infeasible"


_ENDED_PHASES = ("Succeeded", "Failed")
_BESIDE = ("podAffinity", "podAntiAffinity")


Fact = AllocationFact | JobFact | LimitRangeFact | NodeFact | PodFact | PoolFact | QueueFact | QuotaFact | WorkspaceFact
RangesByNamespace = Mapping[str, Ranges]
NO_RANGES: RangesByNamespace = {}

FEED_KINDS: dict[str, type[Fact]] = {
    "nodes": NodeFact,
    "pods": PodFact,
    "allocations": AllocationFact,
    "queues": QueueFact,
    "jobs": JobFact,
    "resourcepools": PoolFact,
    "namespaces": WorkspaceFact,
    "resourcequotas": QuotaFact,
    "limitranges": LimitRangeFact,
}

_ENCODER = msgspec.json.Encoder()


def object_key(meta: ObjectMeta) -> str:
    """Return `<namespace>/<name>`, or only the name of an object without a namespace."""
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def fact_of(
    obj: object,
    pools: dict[str, ResourcePool],
    specs: SpecCache | None = None,
    *,
    ranges: RangesByNamespace = NO_RANGES,
) -> Fact:
    """Return the fact of any object that the feed contains.

    `pools`, by name, have the defaults of allocations; `ranges` are the LimitRanges that complete their pods.

    `specs` is a cache of resolved specs, for callers that read many similar allocations.
    """
    match obj:
        case Allocation():
            pool, own = pools.get(obj.spec.pool), ranges.get(obj.metadata.namespace, ())
            known = specs.of(obj, pool, own) if specs is not None else None
            return allocation_fact(obj, pool, ranges=own, known=known)
        case Pod():
            return pod_fact(obj)
        case Node():
            return node_fact(obj)
        case Queue():
            return queue_fact(obj)
        case Job():
            return job_fact(obj)
        case ResourcePool():
            return pool_fact(obj)
        case Namespace():
            return workspace_fact(obj)
        case ResourceQuota():
            return quota_fact(obj)
        case LimitRange():
            return limit_range_fact(obj)
        case _:
            raise TypeError(f"the feed carries no {type(obj).__name__}")


def encode_fact(fact: Fact) -> bytes:
    """Return the data of a feed entry."""
    return _ENCODER.encode(fact)


def decode_fact(kind: str, data: bytes) -> Fact:
    """Return the fact in a feed entry's data.

    Raises:
        msgspec.ValidationError: the data are no such fact, because the publisher has another version: LIST instead.
    """
    try:
        return msgspec.json.decode(data, type=FEED_KINDS[kind])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise msgspec.ValidationError(f"not a fact of {kind}: {exc}") from exc


def workspace_fact(namespace: Namespace) -> WorkspaceFact:
    """Return the fact of a namespace: whether allocations may run in it."""
    return WorkspaceFact(
        name=namespace.metadata.name,
        is_workspace=namespace.metadata.labels.get(LABEL_WORKSPACE) == "true",
        terminating=namespace.metadata.deletion_timestamp is not None or namespace.status.phase == "Terminating",
        labels=namespace.metadata.labels,
    )


def quota_fact(quota: ResourceQuota) -> QuotaFact:
    """Return the fact of a ResourceQuota: its limits for the pods of the namespace, and their usage."""
    spec = quota.spec
    hard = _thousandths(spec.hard)
    used = _thousandths(quota.status.used)
    selected = (
        QuotaScope(each.scope_name, each.operator, tuple(each.values)) for each in spec.scope_selector.match_expressions
    )
    return QuotaFact(
        namespace=quota.metadata.namespace,
        name=quota.metadata.name,
        hard=hard,
        used={name: amount for name, amount in used.items() if name in hard and amount},
        scopes=(*(QuotaScope(name) for name in spec.scopes), *selected),
    )


def limit_range_fact(limit_range: LimitRange) -> LimitRangeFact:
    """Return the fact of a LimitRange: its defaults and bounds for the pods of the namespace."""
    items = {item.type: item for item in limit_range.spec.limits}
    return LimitRangeFact(
        namespace=limit_range.metadata.namespace,
        name=limit_range.metadata.name,
        container=_bounds(items.get("Container", LimitRangeItem())),
        pod=_bounds(items.get("Pod", LimitRangeItem())),
    )


def ranges_by_namespace(limit_ranges: Iterable[LimitRange]) -> dict[str, Ranges]:
    """Return {namespace: the facts of its LimitRanges, sorted by name}."""
    found: dict[str, list[LimitRangeFact]] = {}
    for each in limit_ranges:
        found.setdefault(each.metadata.namespace, []).append(limit_range_fact(each))
    return {space: tuple(sorted(own, key=lambda fact: fact.name)) for space, own in found.items()}


def _bounds(item: LimitRangeItem) -> RangeBounds:
    return RangeBounds(
        min=_readable(item.min),
        max=_readable(item.max),
        default=_readable(item.default),
        default_request=_readable(item.default_request),
        max_ratio=_readable(item.max_limit_request_ratio, MILLI),
    )


def _readable(quantities: Mapping[str, QuantityValue], scale: int = 0) -> dict[str, str]:
    """Return the quantities that we can parse, each in the unit of its resource or in units of 1/`scale`.

    The API server also accepts negative ones and ones above 64 bits, and applies them itself at the launch.
    """
    kept: dict[str, str] = {}
    for name, value in quantities.items():
        try:
            parse_quantity(value, scale=scale or scale_of(name))
        except ValueError:
            continue
        kept[name] = str(value)
    return kept


def _thousandths(quantities: Mapping[str, QuantityValue]) -> dict[str, int]:
    """Return the amounts that limit pods, in thousandths; other names and invalid quantities are left out."""
    amounts: dict[str, int] = {}
    for name, value in quantities.items():
        if counts_pods(name):
            try:
                amounts[name] = parse_thousandths(value)
            except ValueError:
                continue
    return amounts


def node_fact(node: Node) -> NodeFact:
    """Return the fact of a node: labels, taints, allocatable amounts, images."""
    ready = condition_of(node.status.conditions, "Ready")
    return NodeFact(
        name=node.metadata.name,
        uid=node.metadata.uid,
        labels=node.metadata.labels,
        taints=tuple(Taint(key=item.key, value=item.value, effect=item.effect) for item in node.spec.taints),
        allocatable=_understood(node.status.allocatable),
        unschedulable=node.spec.unschedulable,
        ready=ready is None or ready.status == "True",
        images={name: image.size_bytes for image in node.status.images for name in image.names},
    )


def pod_fact(pod: Pod) -> PodFact:
    """Return the fact of a pod: its usage and its allocation. Pods that are not ours are included."""
    labels = pod.metadata.labels
    requests, uid = _asked(pod, NOTHING), labels.get(LABEL_ALLOCATION_UID, "")
    is_live = pod.status.phase not in _ENDED_PHASES
    devices = _devices(pod) if uid else ()
    return PodFact(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name,
        requests=requests + _of_devices(pod, devices),
        live=is_live,
        allocation_uid=uid,
        attempt=_number(labels.get(LABEL_ATTEMPT), 0),
        rank=_number(labels.get(LABEL_RANK), -1),
        priority=pod.spec.priority,
        host_ports=host_ports_of(pod),
        devices=devices,
        labels={key: value for key, value in labels.items() if not is_ours(key)} if uid else labels,
        role=labels.get(LABEL_ROLE, ""),
        affinity={kind: pod.spec.affinity[kind] for kind in _BESIDE if pod.spec.affinity.get(kind)},
        scored=scored_requests(requests, _asked(pod, UNSTATED)),
        leaving=is_live and pod.metadata.deletion_timestamp is not None,
    )


def _understood(quantities: Mapping[str, str]) -> Resources:
    """Return the amounts; one that cannot be parsed is left out. The API server accepts negative ones and ones above 64
    bits."""
    amounts: dict[str, int] = {}
    for name, value in quantities.items():
        try:
            amounts[name] = parse_quantity(value, scale=scale_of(name))
        except ValueError:
            continue
    return Resources.of(amounts)


def _asked(pod: Pod, unstated: Quantities) -> Resources:
    """Return the requests of a pod; empty when a request is above 64 bits: such a pod runs nowhere and uses nothing."""
    try:
        return requests_of(pod, unstated)
    except ValueError:
        return Resources()


def _devices(pod: Pod) -> tuple[int, ...]:
    """Return the GPUs that the scheduler chose for a pod of ours."""
    words = pod.metadata.annotations.get(ANNOTATION_DEVICES, "").split(",")
    return tuple(number for word in words if (number := number_in(word)) is not None)


def _of_devices(pod: Pod, devices: tuple[int, ...]) -> Resources:
    """Return the usage of chosen devices, which the requests do not include: the pod requests none from the device
    plugin."""
    milli = _number(pod.metadata.annotations.get(ANNOTATION_GPU_MILLI), 0)
    if not devices:
        return Resources()
    return Resources({GPU_MILLI: milli} if milli else {GPU: len(devices)})


def _number(text: str | None, default: int) -> int:
    number = number_in(text or "")
    return default if number is None else number
