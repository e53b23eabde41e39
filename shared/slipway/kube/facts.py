"""Objects -> the compact facts that placement needs. Pure; the LIST path and the cluster feed share it.

`FEED_KINDS` is the one table of what the feed carries: the plural of a resource names the kind of an entry, and
the struct is what its data decodes to (JSON). The key of an entry is `object_key`.
"""

import msgspec

from slipway.crd.facts import allocation_fact, job_fact, pool_fact, queue_fact
from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK, LABEL_WORKSPACE, ObjectMeta, condition_of
from slipway.crd.v1alpha1 import Allocation, Job, Queue, ResourcePool
from slipway.kube.objects import Namespace, Node, Pod
from slipway.kube.podrequests import host_ports_of, requests_of
from slipway.model.facts import (
    AllocationFact,
    JobFact,
    NodeFact,
    PodFact,
    PoolFact,
    QueueFact,
    Taint,
    WorkspaceFact,
)
from slipway.model.resources import Resources

_ENDED_PHASES = ("Succeeded", "Failed")


Fact = AllocationFact | JobFact | NodeFact | PodFact | PoolFact | QueueFact | WorkspaceFact

FEED_KINDS: dict[str, type[Fact]] = {
    "nodes": NodeFact,
    "pods": PodFact,
    "allocations": AllocationFact,
    "queues": QueueFact,
    "jobs": JobFact,
    "resourcepools": PoolFact,
    "namespaces": WorkspaceFact,
}

_ENCODER = msgspec.json.Encoder()


def object_key(meta: ObjectMeta) -> str:
    """`<namespace>/<name>`, or the name alone for what has no namespace."""
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


def fact_of(obj: object, pools: dict[str, ResourcePool]) -> Fact:
    """The fact of any object that the feed carries; `pools` by name give an allocation's defaults."""
    match obj:
        case Allocation():
            return allocation_fact(obj, pools.get(obj.spec.pool))
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
        case _:
            raise TypeError(f"the feed carries no {type(obj).__name__}")


def encode_fact(fact: Fact) -> bytes:
    """The data of a feed entry."""
    return _ENCODER.encode(fact)


def decode_fact(kind: str, data: bytes) -> Fact:
    """The fact in a feed entry's data.

    Raises:
        msgspec.ValidationError: not such a fact (another version of the publisher): LIST instead.
    """
    return msgspec.json.decode(data, type=FEED_KINDS[kind])


def workspace_fact(namespace: Namespace) -> WorkspaceFact:
    """Whether allocations may run in a namespace."""
    return WorkspaceFact(
        name=namespace.metadata.name,
        is_workspace=namespace.metadata.labels.get(LABEL_WORKSPACE) == "true",
        terminating=namespace.metadata.deletion_timestamp is not None or namespace.status.phase == "Terminating",
    )


def node_fact(node: Node) -> NodeFact:
    """A node's labels, taints and allocatable amounts."""
    ready = condition_of(node.status.conditions, "Ready")
    return NodeFact(
        name=node.metadata.name,
        uid=node.metadata.uid,
        labels=node.metadata.labels,
        taints=tuple(Taint(key=item.key, value=item.value, effect=item.effect) for item in node.spec.taints),
        allocatable=Resources.parse(node.status.allocatable),
        unschedulable=node.spec.unschedulable,
        ready=ready is None or ready.status == "True",
        images={name: image.size_bytes for image in node.status.images for name in image.names},
    )


def pod_fact(pod: Pod) -> PodFact:
    """What a pod uses, and whose it is; foreign pods count too."""
    labels = pod.metadata.labels
    return PodFact(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name,
        requests=requests_of(pod),
        live=pod.status.phase not in _ENDED_PHASES,
        allocation_uid=labels.get(LABEL_ALLOCATION_UID, ""),
        attempt=_number(labels.get(LABEL_ATTEMPT), 0),
        rank=_number(labels.get(LABEL_RANK), -1),
        priority=pod.spec.priority,
        host_ports=host_ports_of(pod),
    )


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() else default
