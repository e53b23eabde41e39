"""Binding of released pods by others: by kube-scheduler behind a gate, or by an extender of the pool.

This module does not read releases: its caller passes the uid of a pod that a release lists.

kube-scheduler: one write (`open_gate`) lets it bind a released pod. The write pins the pod to the planned node and
removes our gate. Promises: a gate is only opened together with the pin, on the pod with the uid of the release; gates
of other programs stay. `open_gate` may be called again at any time. Not promised: that kube-scheduler finds room on
that node (the watcher ends an attempt whose pods wait too long for it).

Extenders: `ExtenderBinding` calls the extender of a pool, and checks that the pod is bound to the planned node. The
response of the extender is never trusted: the pod is read afterwards, and shows its node. If an extender answers
"bound" and has not bound the pod, the call has failed: the bind is retried, or the pod worker binds the pod if the
extender is ignorable. If an extender has bound the pod to another node, the attempt is broken.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from slipway.crd.meta import ANNOTATION_OPENED, RawObject
from slipway.crd.roleresources import object_of
from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.errors import InvalidError, NotFoundError, StaleError, UnavailableError
from slipway.facts.custom_resources import allocation_fact, extender_fact
from slipway.kube import extender_wire as wire
from slipway.kube.extender_wire import ExtenderFault
from slipway.kube.objects import Pod
from slipway.kube.ports import PatchType
from slipway.kube.resources import PODS
from slipway.model.facts import ExtenderFact
from slipway.model.times import format_time
from slipway.pods.podspec import LAUNCH_GATE, is_pinned, pinned
from slipway.podworker.pools import Pools
from slipway.podworker.ports import Kube
from slipway.runtime import log, telemetry

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


VERB = "bind"

_log = log.get_logger(__name__)


class BindCalls(Protocol):
    """Sends one call to an extender."""

    async def post(self, extender: ExtenderFact, verb: str, body: bytes) -> bytes: ...


class Binder(msgspec.Struct, frozen=True, kw_only=True):
    """The extender that binds pods, and the ranks that it manages."""

    extender: ExtenderFact
    ranks: frozenset[int]


class ExtenderBinding:
    """Binds through extenders."""

    def __init__(self, kube: Kube, pools: Pools, client: BindCalls) -> None:
        self._kube = kube
        self._pools = pools
        self._client = client

    async def binder_of(self, allocation: Allocation) -> Binder | None:
        """Return the extender that binds ranks of `allocation`; None when the pod worker binds all of them."""
        try:
            pool = await self._pools.pool(allocation.spec.pool)
        except NotFoundError:
            return None
        return _binder(allocation, pool)

    async def bind(self, extender: ExtenderFact, namespace: str, pod: str, *, uid: str, node: str) -> bool:
        """Let the extender bind the pod; return whether the pod is bound to `node` now.

        If False, the extender may be ignored, and the caller binds the pod.

        Raises:
            UnavailableError: the extender has not bound the pod, and only the extender may bind it.
            StaleError: the pod does not exist any more, the name belongs to another pod, or the pod is bound elsewhere.
        """
        fault = await self._call(extender, wire.bind_args(namespace=namespace, pod=pod, uid=uid, node=node))
        try:
            found = await self._kube.get(PODS, pod, namespace=namespace)
        except NotFoundError as error:
            raise StaleError(f"pod {pod} of the release no longer exists") from error
        if found.metadata.uid != uid:
            raise StaleError(f"pod {pod} is not the released pod")
        if found.spec.node_name:
            check_place(found, node)
            return True
        if extender.ignorable:
            return False
        raise UnavailableError(
            f"extender {extender.name} has not bound pod {pod}: {fault or 'it reported that it had bound it'}"
        )

    async def _call(self, extender: ExtenderFact, body: bytes) -> str:
        """Call the extender; return its error, or "" when it answers that it has bound the pod."""
        fault = ""
        try:
            wire.read_bound(await self._client.post(extender, extender.bind_verb, body))
        except ExtenderFault as error:
            fault = str(error)
            _log.warning("extender call failed", extender=extender.name, verb=VERB, error=fault)
        outcome = "fault" if fault else "ok"
        telemetry.EXTENDER_CALLS.labels(extender=extender.name, verb=VERB, outcome=outcome).inc()
        return fault


def _binder(allocation: Allocation, pool: ResourcePool) -> Binder | None:
    spec = next((item for item in pool.spec.extenders if item.bind_verb), None)
    if spec is None or pool.spec.binding != "direct":
        return None
    extender, fact = extender_fact(spec), allocation_fact(allocation, pool)
    managed = {
        rank
        for rank in range(fact.rank_count)
        if (role := fact.role_of(rank)) is not None and extender.manages(role.requests)
    }
    return Binder(extender=extender, ranks=frozenset(managed)) if managed else None
