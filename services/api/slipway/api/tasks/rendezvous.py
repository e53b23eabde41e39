"""The addresses of the ranks of a gang, for workloads that have no rendezvous of their own.

The addresses are derived only from the pods, so that every replica gives the same answer and nothing is stored. Reads
are shared: a thousand waiting ranks cost one LIST a second.

Invariants: once all ranks have run at the same time, the answer does not change, whatever happens to a rank later (its
pod keeps its address). A wait ends with an error when the attempt ends.
"""

from collections.abc import Awaitable, Callable, Sequence

from slipway.api.allocations.view import number_label
from slipway.api.http.ttl_cache import LoadingCache
from slipway.api.ports import Kube, ShutdownSignal
from slipway.api.schemas import Address, RendezvousView, StartOrderView
from slipway.api.tasks import startorder
from slipway.api.tasks.startorder import ranks_of
from slipway.crd.members import pod_uids
from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK, LABEL_ROLE
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.kube.resources import PODS
from slipway.model.lifecycle import Phase, has_reached
from slipway.runtime.clock import Clock

POLL_S = 1.0
TTL_S = 0.9
SHOWN_MAX = 16

Reload = Callable[[], Awaitable[Allocation]]
"""Reads the allocation again. Raises ConflictError when the attempt has ended."""


class Rendezvous:
    """Reads and waits for the addresses of gangs."""

    def __init__(self, kube: Kube, clock: Clock, stop: ShutdownSignal) -> None:
        self._kube = kube
        self._clock = clock
        self._stop = stop
        self._pods = LoadingCache[str, list[Pod]](clock, ttl_s=TTL_S)

    async def wait_for_addresses(self, allocation: Allocation, *, wait_s: float, reload: Reload) -> RendezvousView:
        """Return the addresses as soon as all ranks have one; after `wait_s` seconds those that are known."""
        until = self._clock.monotonic() + wait_s
        while True:
            view = await self._look(allocation)
            left_s = until - self._clock.monotonic()
            if view.ready or left_s <= 0 or self._stop.is_set():
                return view
            await self._clock.sleep(min(POLL_S, left_s))
            allocation = await reload()

    async def may_start(self, allocation: Allocation, rank: int, *, wait_s: float, reload: Reload) -> StartOrderView:
        """Return as soon as the rank may start: when the roles that its role depends on have started or are ready.

        After `wait_s` seconds return the state as it is then.
        """
        until = self._clock.monotonic() + wait_s
        while True:
            pods = await self._pods_of(allocation) if startorder.role_of(allocation, rank).depends_on else {}
            view = startorder.view_of(allocation, rank, pods)
            left_s = until - self._clock.monotonic()
            if view.start or left_s <= 0 or self._stop.is_set():
                return view
            await self._clock.sleep(min(POLL_S, left_s))
            allocation = await reload()

    async def _look(self, allocation: Allocation) -> RendezvousView:
        by_rank = await self._pods_of(allocation)
        have_met = has_reached(allocation.status.phase, Phase.RUNNING)
        found = {rank: pod for rank, pod in by_rank.items() if _is_there(pod, have_met=have_met)}
        ranks = ranks_of(allocation)
        missing = [rank for rank in ranks if rank not in found]
        return RendezvousView(
            attempt=allocation.status.attempt,
            size=len(ranks),
            ready=not missing,
            addresses=[_address(rank, found[rank]) for rank in ranks if rank in found],
            missing=missing,
            message=_message(ranks, missing, by_rank) if missing else "",
        )

    async def _pods_of(self, allocation: Allocation) -> dict[int, Pod]:
        """Return {rank: its pod} of the attempt."""
        meta, attempt = allocation.metadata, allocation.status.attempt
        selector = f"{LABEL_ALLOCATION_UID}={meta.uid},{LABEL_ATTEMPT}={attempt}"

        async def load() -> list[Pod]:
            return (await self._kube.list(PODS, namespace=meta.namespace, label_selector=selector)).items

        # After the release, a pod with these labels that is not listed in the allocation is none of its ranks.
        pods, released = await self._pods.get(f"{meta.uid}/{attempt}", load), pod_uids(allocation)
        pods = [pod for pod in pods if not released or pod.metadata.uid in released]
        return {number_label(pod.metadata.labels, LABEL_RANK): pod for pod in pods}


def _is_there(pod: Pod, *, have_met: bool) -> bool:
    if not pod.status.pod_ip:
        return False
    return have_met or (pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None)


def _address(rank: int, pod: Pod) -> Address:
    return Address(rank=rank, role=pod.metadata.labels.get(LABEL_ROLE, ""), host=pod.status.pod_ip)


def _message(ranks: Sequence[int], missing: Sequence[int], pods: dict[int, Pod]) -> str:
    """Return a text for people: which ranks have no address, and the state of their pods."""
    named = ", ".join(f"rank {rank} ({_state(pods.get(rank))})" for rank in missing[:SHOWN_MAX])
    more = f" and {len(missing) - SHOWN_MAX} more" if len(missing) > SHOWN_MAX else ""
    return f"{len(ranks) - len(missing)} of {len(ranks)} ranks have an address; missing: {named}{more}"


def _state(pod: Pod | None) -> str:
    if pod is None:
        return "no pod yet"
    if pod.metadata.deletion_timestamp is not None:
        return "being deleted"
    where = f" on {pod.spec.node_name}" if pod.spec.node_name else ", not on a node yet"
    return f"{pod.status.phase or 'Pending'}{where}"
