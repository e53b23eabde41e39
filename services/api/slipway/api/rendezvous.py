"""Where the ranks of a gang are, for workloads that bring no rendezvous of their own.

Derived from the pods alone, so that every replica answers the same and nothing is kept. Reads are shared: a thousand
ranks that wait cost one LIST a second.
"""

from slipway.api.ports import Kube, Stop
from slipway.api.recent import Recent
from slipway.api.schemas import Address, RendezvousView
from slipway.api.view import number_label
from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK, LABEL_ROLE
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.kube.resources import PODS
from slipway.runtime.clock import Clock

POLL_S = 1.0
TTL_S = 0.9


class Rendezvous:
    """Reads and waits for the addresses of gangs."""

    def __init__(self, kube: Kube, clock: Clock, stop: Stop) -> None:
        self._kube = kube
        self._clock = clock
        self._stop = stop
        self._pods = Recent[str, list[Pod]](clock, ttl_s=TTL_S)

    async def meet(self, allocation: Allocation, *, wait_s: float) -> RendezvousView:
        """The addresses, as soon as all ranks have one, or as they stand after `wait_s` seconds."""
        until = self._clock.monotonic() + wait_s
        while True:
            view = await self._look(allocation)
            left_s = until - self._clock.monotonic()
            if view.ready or left_s <= 0 or self._stop.is_set():
                return view
            await self._clock.sleep(min(POLL_S, left_s))

    async def _look(self, allocation: Allocation) -> RendezvousView:
        meta, attempt = allocation.metadata, allocation.status.attempt
        selector = f"{LABEL_ALLOCATION_UID}={meta.uid},{LABEL_ATTEMPT}={attempt}"

        async def load() -> list[Pod]:
            return (await self._kube.list(PODS, namespace=meta.namespace, label_selector=selector)).items

        pods = await self._pods.get(f"{meta.uid}/{attempt}", load)
        size = len(allocation.status.admission.placements) if allocation.status.admission else 0
        size = size or sum(role.count for role in allocation.spec.ranks) or 1
        found = sorted(map(_address, filter(_is_there, pods)), key=lambda address: address.rank)
        return RendezvousView(attempt=attempt, size=size, ready=len(found) >= size, addresses=found)


def _is_there(pod: Pod) -> bool:
    return pod.status.phase == "Running" and bool(pod.status.pod_ip) and pod.metadata.deletion_timestamp is None


def _address(pod: Pod) -> Address:
    labels = pod.metadata.labels
    return Address(rank=number_label(labels, LABEL_RANK), role=labels.get(LABEL_ROLE, ""), host=pod.status.pod_ip)
