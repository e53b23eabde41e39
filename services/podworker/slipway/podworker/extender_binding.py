"""Pods that a pool's extender binds: who that is, asking it, and making sure that it did what was decided.

Owns what its answer means. Must not know releases. The extender is believed nothing: after its answer the pod itself
says where it is. One that says "bound" and has not is a failure like any other, to be tried again; one that bound
elsewhere has broken the attempt.
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
    """One call of an extender."""

    async def post(self, extender: ExtenderFact, verb: str, body: bytes) -> bytes: ...


class Binder(msgspec.Struct, frozen=True, kw_only=True):
    """The extender that binds, and the ranks that are its business."""

    extender: ExtenderFact
    ranks: frozenset[int]


class Extended:
    """Binds through extenders."""

    def __init__(self, kube: Kube, pools: Pools, client: BindCalls) -> None:
        self._kube = kube
        self._pools = pools
        self._client = client

    async def binder_of(self, allocation: Allocation) -> Binder | None:
        """Who binds ranks of `allocation`; None when nobody but us does."""
        try:
            pool = await self._pools.pool(allocation.spec.pool)
        except NotFoundError:
            return None
        return _binder(allocation, pool)

    async def bind(self, extender: ExtenderFact, namespace: str, pod: str, *, uid: str, node: str) -> bool:
        """Whether the pod is bound to `node` now; when not, the extender may be passed over.

        Raises:
            UnavailableError: it has not bound the pod, and nobody else may.
            StaleError: the pod is gone, another one, or bound elsewhere.
        """
        fault = await self._ask(extender, wire.bind_args(namespace=namespace, pod=pod, uid=uid, node=node))
        try:
            found = await self._kube.get(PODS, pod, namespace=namespace)
        except NotFoundError as error:
            raise StaleError(f"pod {pod} of the release is gone") from error
        if found.metadata.uid != uid:
            raise StaleError(f"pod {pod} is not the released one")
        if found.spec.node_name:
            gates.check_place(found, node)
            return True
        if extender.ignorable:
            return False
        raise UnavailableError(f"extender {extender.name} has not bound pod {pod}: {fault or 'it says that it has'}")

    async def _ask(self, extender: ExtenderFact, body: bytes) -> str:
        """What went wrong; "" when it says that it has bound the pod."""
        fault = ""
        try:
            wire.read_bound(await self._client.post(extender, extender.bind_verb, body))
        except ExtenderFault as error:
            fault = str(error)
            _log.warning("extender fails", extender=extender.name, verb=VERB, error=fault)
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
