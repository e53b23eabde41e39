"""Pods and nodes -> the compact facts that placement needs. Pure; the LIST path and the feed share it."""

from typing import Any

from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK, condition_of
from slipway.kube.objects import Container, Node, Pod
from slipway.model.facts import NodeFact, PodFact, Taint
from slipway.model.podresources import ContainerAsk, effective_requests
from slipway.model.resources import Resources

_ENDED_PHASES = ("Succeeded", "Failed")


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
        requests=effective_requests(
            [_ask(item) for item in pod.spec.containers],
            [_ask(item) for item in pod.spec.init_containers],
            pod.spec.overhead,
        ),
        live=pod.status.phase not in _ENDED_PHASES,
        allocation_uid=labels.get(LABEL_ALLOCATION_UID, ""),
        attempt=_number(labels.get(LABEL_ATTEMPT), 0),
        rank=_number(labels.get(LABEL_RANK), -1),
        priority=pod.spec.priority,
        host_ports=tuple(port.host_port for item in pod.spec.containers for port in item.ports if port.host_port),
    )


def _ask(container: Container) -> ContainerAsk:
    resources: dict[str, Any] = container.resources
    return ContainerAsk(
        requests=resources.get("requests") or {},
        limits=resources.get("limits") or {},
        sidecar=container.restart_policy == "Always",
    )


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdigit() else default
