"""Binds pods through a pool's extender: finds the extender, calls it, and checks that it did what was decided.

Owns what the extender's response means. Must not know releases. The response is never trusted: the pod is read
afterwards, and shows its node. An extender that answers "bound" and has not bound the pod has failed like any other:
the bind is retried, or the pod worker binds the pod if the extender is ignorable. An extender that has bound the pod to
another node has broken the attempt.
"""

from typing import Protocol

import msgspec

from slipway.crd.facts import allocation_fact, extender_fact
from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.errors import NotFoundError, StaleError, UnavailableError
from slipway.kube import extender_wire as wire
from slipway.kube.extender_wire import ExtenderFault
from slipway.kube.resources import PODS
from slipway.model.extenders import ExtenderFact
from slipway.podworker import gates
from slipway.podworker.pools import Pools
from slipway.podworker.ports import Kube
from slipway.runtime import log, telemetry

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
        """Whether the pod is bound to `node` now. If False, the extender may be ignored, and the caller binds the pod.

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
            gates.check_place(found, node)
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
