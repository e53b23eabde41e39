"""The resources that a pod uses on its node, computed as in kube-scheduler, so that both see the same free capacity.

Owns which fields of a pod are read, also during a resize. Pure; `model/podresources.py` computes the sums.

Source: k8s.io/kubernetes/pkg/scheduler/framework (PodInfo), k8s.io/component-helpers/resource, v1.37.
"""

from collections.abc import Mapping
from typing import Any

from slipway.crd.meta import condition_of
from slipway.kube.objects import Container, ContainerStatus, Pod, ResourceLists
from slipway.model.podresources import NOTHING, ContainerResources, KubeletAmounts, Quantities, effective_requests
from slipway.model.resources import Resources

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
