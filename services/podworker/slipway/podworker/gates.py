"""The scheduling gate of a launch whose pods kube-scheduler binds: how it is opened, and for which node.

Owns the one write that lets a released pod go: it pins the pod to the planned node and removes our gate. Must not know
releases; whoever calls has seen the uid in one.

Promises: a gate is only ever opened together with the pin, on the pod with the uid of the release; gates of others
stay. It may be called again at any time. Not promised: that kube-scheduler finds room there (the watcher sees to it).
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
    """Our gate on one pod: its place among the gates, and the affinity that the pod has without the pin."""

    index: int
    affinity: RawObject


def gate_of(pod: Pod) -> PodGate | None:
    """Our gate, while it is closed."""
    names = [gate.name for gate in pod.spec.scheduling_gates]
    return PodGate(index=names.index(LAUNCH_GATE), affinity=pod.spec.affinity) if LAUNCH_GATE in names else None


def gate_made(spec: Mapping[str, Any]) -> PodGate:
    """Our gate on a pod that has just been made from this spec."""
    return PodGate(index=0, affinity=dict(object_of(spec.get("affinity"))))


async def open_gate(kube: Kube, namespace: str, pod: str, *, uid: str, node: str, gate: PodGate, now: float) -> None:
    """Pins the pod to `node` and removes our gate, unless that is done already.

    Raises:
        StaleError: it is another pod, going, opened for another place, or the server refuses the pin.
        NotFoundError: it is gone.
    """
    for _ in range(TRIES_MAX):
        try:
            change = _opening(gate, uid, node, now)
            await kube.patch(PODS, pod, change, namespace=namespace, type_=PatchType.JSON)
        except (StaleError, InvalidError) as error:
            found = await kube.get(PODS, pod, namespace=namespace)
            if found.metadata.uid != uid or found.metadata.deletion_timestamp is not None:
                raise StaleError(f"pod {pod} is going or another one: {error}") from error
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
    """Accepts a pod without our gate that is on `node` or can go nowhere else.

    Raises:
        StaleError: somebody else opened its gate, or bound it.
    """
    if pod.spec.node_name and pod.spec.node_name != node:
        raise StaleError(f"pod {pod.metadata.name} is bound to {pod.spec.node_name}, not to {node}")
    if not pod.spec.node_name and not is_pinned(pod.spec.affinity, node):
        raise StaleError(f"the gate of pod {pod.metadata.name} was opened by somebody else")


def _opening(gate: PodGate, uid: str, node: str, now: float) -> list[RawObject]:
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": f"/spec/schedulingGates/{gate.index}/name", "value": LAUNCH_GATE},
        {"op": "add", "path": "/spec/affinity", "value": pinned(gate.affinity, node)},
        {"op": "remove", "path": f"/spec/schedulingGates/{gate.index}"},
        {"op": "add", "path": _OPENED, "value": format_time(now)},
    ]
