"""What a pod takes from its node, read from the pod: as kube-scheduler counts it, so that both see the same room.

Owns which fields of a pod say so, also while it is being resized. Pure; `model/podresources.py` does the sums.

Source: k8s.io/kubernetes/pkg/scheduler/framework (PodInfo), k8s.io/component-helpers/resource, v1.36.
"""

from typing import Any

from slipway.crd.meta import condition_of
from slipway.kube.objects import Container, ContainerStatus, Pod, ResourceLists
from slipway.model.podresources import NOTHING, ContainerAsk, Quantities, effective_requests
from slipway.model.resources import Resources

SIDECAR = "Always"
"""the restartPolicy of an init container that runs beside the others"""

_Amounts = dict[str, Any]


def requests_of(pod: Pod, unstated: Quantities = NOTHING) -> Resources:
    """The pod's effective request; `unstated` is what a container counts as that states no request."""
    spec = pod.spec
    held, is_refused = _reported(pod), _is_resize_refused(pod)
    own = None
    if spec.resources is not None:
        asked = spec.resources.requests
        its = _held(asked, pod.status.resources, pod.status.allocated_resources)
        own = ContainerAsk(requests=asked, held=its, is_resize_refused=is_refused)
    return effective_requests(
        [_ask(item, held, is_refused=is_refused) for item in spec.containers],
        [_ask(item, held if _is_sidecar(item) else {}, is_refused=is_refused) for item in spec.init_containers],
        spec.overhead,
        own=own,
        unstated=unstated,
    )


def host_ports_of(pod: Pod) -> tuple[int, ...]:
    """The ports that containers and sidecars hold on the node; protocol and address are left out, which is stricter."""
    lasting = (*(item for item in pod.spec.init_containers if _is_sidecar(item)), *pod.spec.containers)
    return tuple({port.host_port: None for item in lasting for port in item.ports if port.host_port})


def _ask(container: Container, held: dict[str, ContainerStatus], *, is_refused: bool) -> ContainerAsk:
    requests: _Amounts = container.resources.get("requests") or {}
    status = held.get(container.name)
    return ContainerAsk(
        requests=requests,
        limits=container.resources.get("limits") or {},
        sidecar=_is_sidecar(container),
        held=_held(requests, status.resources, status.allocated_resources) if status is not None else (),
        is_resize_refused=is_refused,
    )


def _reported(pod: Pod) -> dict[str, ContainerStatus]:
    """{container: its status}, of those whose kubelet reports resources."""
    status = pod.status
    all_ = (*status.container_statuses, *status.init_container_statuses)
    return {item.name: item for item in all_ if item.resources is not None}


def _held(requests: _Amounts, in_force: ResourceLists | None, granted: _Amounts) -> tuple[_Amounts, ...]:
    """What the kubelet holds, where it is not just what is asked for."""
    if in_force is None or all(amounts in (requests, {}) for amounts in (in_force.requests, granted)):
        return ()
    return in_force.requests, granted


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == SIDECAR


def _is_resize_refused(pod: Pod) -> bool:
    pending = condition_of(pod.status.conditions, "PodResizePending")
    return pending is not None and pending.reason == "Infeasible"
