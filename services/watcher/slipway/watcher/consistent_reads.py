"""Consistent reads of the API server, for decisions that need certainty: to give up, to end, or to begin again.

`ConsistentReads` makes sure that pods, nodes and leftovers are gone. Absence in a cache is never evidence. An error
here is raised to the caller, who then does nothing.

`PodWatchLag` decides how long to wait for released pods that were never seen, before they are read directly. It does
not know what a missing pod means. Each resource has its own watch, so under load a release is often known before its
pods. Reading all of them by name would cost the API server more than creating them did, at the time of highest load.

Pods are created before their release, so a pod watch that has reached the version of the release has shown them. The
versions of two resources can be compared if one etcd stores both; otherwise time decides.

Promises: there is no wait for a pod that was seen and is gone. There is no wait either once the ranks run or have to
end, or once the pod watch has reached that version. A missing pod is read `LATE_S` after it was first missed, and again
each time `LATE_S` has passed.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Set
from typing import Any, TypeVar

from slipway.crd.members import pod_uids, rank_count
from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.crd.transitions import id_of, stop_reason
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import NotFoundError
from slipway.kube.objects import Pod
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, NODES, PODS, SERVICES, Resource
from slipway.model import ids
from slipway.model.ids import is_name
from slipway.model.lifecycle import Phase
from slipway.runtime.clock import Clock
from slipway.watcher.informers import Informers, is_out_of_service
from slipway.watcher.ports import ConsistentReader

T = TypeVar("T")

_BUNDLE_KINDS: tuple[Resource[Any], Resource[Any]] = (CONFIG_MAPS, SERVICES)

BY_NAME_MAX = 8
"""Up to so many objects are read by name, which costs the API server less than a LIST of the namespace."""
GONE_MAX = 4096
"""The number of deleted nodes whose names are remembered, because most names never come back; a forgotten node is read
again."""


class ConsistentReads:
    """Reads pods, nodes and leftovers from the API server."""

    def __init__(self, reader: ConsistentReader, informers: Informers) -> None:
        self._reader = reader
        self._informers = informers
        self._gone: OrderedDict[str, None] = OrderedDict()
        """names of nodes that were read and did not exist"""
        self._departed: dict[str, set[str]] = {}
        """{uid of an allocation: uids of its pods whose deletion was seen}"""

    async def pods_of(self, allocation: Allocation) -> list[Pod]:
        """Return all existing pods of the allocation, of every attempt.

        Pod names are a function of the allocation, its attempt and the rank, so for a first attempt a read of each
        name shows the same as a LIST.
        """
        if self._has_known_names(allocation):
            id_, namespace = id_of(allocation), allocation.metadata.namespace
            names = [ids.pod_name(id_, 1, rank) for rank in range(rank_count(allocation))]
            found = await asyncio.gather(*(self._find(PODS, name, namespace) for name in names))
            return [pod for pod in found if pod is not None and _is_of(pod, allocation)]
        listed = await self._reader.list(
            PODS, namespace=allocation.metadata.namespace, label_selector=_selector(allocation)
        )
        return listed.items

    def note_deleted(self, pod: Pod) -> None:
        """Remember that a watch or a consistent LIST has shown this pod, and later its deletion."""
        uid = pod.metadata.labels.get(LABEL_ALLOCATION_UID)
        if uid is not None:
            self._departed.setdefault(uid, set()).add(pod.metadata.uid)

    def deleted_pods_of(self, uid: str) -> frozenset[str]:
        """Return the uids of the allocation's pods whose deletion was seen."""
        return frozenset(self._departed.get(uid, ()))

    def forget(self, uid: str) -> None:
        """Forget the evidence about an allocation that does not need it any more."""
        self._departed.pop(uid, None)

    async def allocations_named(self, names: Iterable[str], namespace: str) -> list[Allocation]:
        """Return those allocations with these names that exist."""
        found = await asyncio.gather(*(self._find(ALLOCATIONS, name, namespace) for name in names if is_name(name)))
        return [each for each in found if each is not None]

    async def has_leftovers(self, allocation: Allocation) -> bool:
        """Whether a pod, ConfigMap or Service of the allocation exists."""
        if not self._saw_all_deleted(allocation) and await self.pods_of(allocation):
            return True
        namespace, attempts = allocation.metadata.namespace, allocation.status.attempt
        kinds = _BUNDLE_KINDS if rank_count(allocation) > 1 else _BUNDLE_KINDS[:1]
        if attempts <= BY_NAME_MAX:
            names = [ids.bundle_name(id_of(allocation), attempt) for attempt in range(1, attempts + 1)]
            found = await asyncio.gather(*(self._find(kind, name, namespace) for kind in kinds for name in names))
            return any(each is not None and _is_of(each, allocation) for each in found)
        for kind in kinds:
            listed = await self._reader.list(kind, namespace=namespace, label_selector=_selector(allocation))
            if listed.items:
                return True
        return False

    async def nodes_gone(self, pods: Iterable[Pod]) -> frozenset[str]:
        """Return those nodes of these pods that are confirmed to be deleted, or declared out of service."""
        gone: set[str] = set()
        for name in {pod.spec.node_name for pod in pods if pod.spec.node_name}:
            known = self._informers.nodes.get(name)
            if known is not None:
                self._gone.pop(name, None)
                if is_out_of_service(known):
                    gone.add(name)
            elif name in self._gone or await self._find(NODES, name, None) is None:
                self._gone[name] = None
                gone.add(name)
        while len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)
        return frozenset(gone)

    def _saw_all_deleted(self, allocation: Allocation) -> bool:
        """Whether the deletion of every released pod was seen; the sweep deletes pods that were never released."""
        released = pod_uids(allocation)
        seen = self._departed.get(allocation.metadata.uid, set())
        return bool(released) and seen.issuperset(released)

    def _has_known_names(self, allocation: Allocation) -> bool:
        return allocation.status.attempt == 1 and rank_count(allocation) <= BY_NAME_MAX

    async def _find(self, resource: Resource[T], name: str, namespace: str | None) -> T | None:
        try:
            return await self._reader.get(resource, name, namespace=namespace)
        except NotFoundError:
            return None


def _selector(allocation: Allocation) -> str:
    return f"{LABEL_ALLOCATION_UID}={allocation.metadata.uid}"


def _is_of(found: Any, allocation: Allocation) -> bool:
    return found.metadata.labels.get(LABEL_ALLOCATION_UID) == allocation.metadata.uid


LATE_S = 10.0
AGAIN_S = 1.0
_STARTING = (Phase.ASSIGNED, Phase.PULLING, Phase.STARTING)


class PodWatchLag:
    """Remembers since when released pods are missing. `reached`: the version that the watch of pods has reached."""

    def __init__(self, clock: Clock, reached: Callable[[], int]) -> None:
        self._clock = clock
        self._reached = reached
        self._missed: dict[str, tuple[float, int]] = {}
        """{uid of the allocation: (since when, monotonic; the version in which it first had the release)}"""

    def wait_s(self, allocation: Allocation, seen: Iterable[Pod], departed: Set[str]) -> float:
        """Return how many seconds to wait before the next check; 0: read the pods now.

        `departed`: the uids of its pods whose deletion was seen.
        """
        uid, release = allocation.metadata.uid, allocation.status.release
        if release is None or allocation.status.phase not in _STARTING or stop_reason(allocation) is not None:
            return 0.0
        missing = set(release.pod_uids) - {pod.metadata.uid for pod in seen}
        if not missing or missing & departed:
            return 0.0
        now = self._clock.monotonic()
        since, version = self._missed.setdefault(uid, (now, allocation.metadata.version))
        if self._reached() >= version:
            return 0.0
        wait_s = since + LATE_S - now
        if wait_s <= 0:
            self._missed[uid] = now, version
        return min(max(0.0, wait_s), AGAIN_S)

    def forget(self, uid: str) -> None:
        """Forget the allocation: all its pods were seen, or it is gone."""
        self._missed.pop(uid, None)
