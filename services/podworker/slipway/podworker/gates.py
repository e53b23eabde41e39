"""Opens the scheduling gate of a pod that kube-scheduler binds, and pins the pod to its planned node.

Owns the one write that lets kube-scheduler bind a released pod: it pins the pod to the planned node and removes our
gate. Must not know releases: the caller has found the uid of the pod in one.

Promises: a gate is only opened together with the pin, on the pod with the uid of the release; gates of other programs
stay. `open_gate` may be called again at any time. Not promised: that kube-scheduler finds room on that node (the
watcher ends an attempt whose pods wait too long for it).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.crd.meta import ANNOTATION_OPENED, RawObject
from slipway.crd.roleresources import object_of
from slipway.errors import InvalidError, StaleError, UnavailableError
from slipway.kube.objects import Pod
from slipway.kube.ports import PatchType
from slipway.kube.resources import PODS
from slipway.model.times import format_time
from slipway.pods.pin import LAUNCH_GATE, is_pinned, pinned
from slipway.podworker.ports import Kube

TRIES_MAX = 3
_OPENED = f"/metadata/annotations/{ANNOTATION_OPENED.replace('/', '~1')}"


class PodGate(msgspec.Struct, frozen=True, kw_only=True):
    """Our gate on one pod: its index in the list of gates, and the affinity that the pod has without the pin."""

    index: int
    affinity: RawObject


def gate_of(pod: Pod) -> PodGate | None:
    """Return our gate on the pod; None when the pod does not have it any more, or never had it."""
    names = [gate.name for gate in pod.spec.scheduling_gates]
    return PodGate(index=names.index(LAUNCH_GATE), affinity=pod.spec.affinity) if LAUNCH_GATE in names else None


def gate_of_spec(spec: Mapping[str, Any]) -> PodGate:
    """Return our gate on a pod that has just been created from this spec."""
    return PodGate(index=0, affinity=dict(object_of(spec.get("affinity"))))


async def open_gate(kube: Kube, namespace: str, pod: str, *, uid: str, node: str, gate: PodGate, now: float) -> None:
    """Pin the pod to `node` and remove our gate, unless that is done already.

    Raises:
        StaleError: the name belongs to another pod, the pod is being deleted, its gate was opened for another node, or
            the server refuses the pin.
        NotFoundError: the pod does not exist any more.
    """
    for _ in range(TRIES_MAX):
        try:
            change = _opening(gate, uid, node, now)
            await kube.patch(PODS, pod, change, namespace=namespace, type_=PatchType.JSON)
        except (StaleError, InvalidError) as error:
            found = await kube.get(PODS, pod, namespace=namespace)
            if found.metadata.uid != uid or found.metadata.deletion_timestamp is not None:
                raise StaleError(f"pod {pod} is being deleted or was replaced: {error}") from error
            seen = gate_of(found)
            if seen is None:
                check_place(found, node)
                return
            if seen == gate and isinstance(error, InvalidError):
                raise StaleError(f"the gate of pod {pod} cannot be opened: {error}") from error
            gate = seen
        else:
            return
    raise UnavailableError(f"pod {pod} keeps changing while its gate is opened")


def check_place(pod: Pod, node: str) -> None:
    """Check that a pod without our gate is bound to `node`, or can be bound to no other node.

    Raises:
        StaleError: another program opened its gate, or bound it.
    """
    if pod.spec.node_name and pod.spec.node_name != node:
        raise StaleError(f"pod {pod.metadata.name} is bound to {pod.spec.node_name}, not to {node}")
    if not pod.spec.node_name and not is_pinned(pod.spec.affinity, node):
        raise StaleError(f"the gate of pod {pod.metadata.name} was opened by another program")


def _opening(gate: PodGate, uid: str, node: str, now: float) -> list[RawObject]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": f"/spec/schedulingGates/{gate.index}/name", "value": LAUNCH_GATE},
        {"op": "add", "path": "/spec/affinity", "value": pinned(gate.affinity, node)},
        {"op": "remove", "path": f"/spec/schedulingGates/{gate.index}"},
        {"op": "add", "path": _OPENED, "value": format_time(now)},
    ]
