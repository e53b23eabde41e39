"""The usage of nodes while an audit replays the versions: by decided and admitted allocations, and by bound pods.

Pure.
"""

from collections.abc import Iterable, Iterator, Mapping

from slipway.crd.members import members
from slipway.crd.v1alpha1 import Allocation, ResourcePool, WireDecision
from slipway.facts.core_objects import pod_fact
from slipway.facts.custom_resources import spec_facts
from slipway.kube.objects import Node, Pod
from slipway.model.lifecycle import Phase
from slipway.model.resources import PODS, Resources
from slipway.ops.audit.evidence import Version
from slipway.ops.audit.gangs import is_live

ADMIT = "admit"
_ONE_POD = Resources({PODS: 1})


class NodeHoldings:
    """The usage of nodes after the versions that were taken so far."""

    def __init__(self) -> None:
        self.pools: dict[str, ResourcePool] = {}
        self._nodes: dict[str, Resources] = {}
        self._allocations: dict[str, Allocation] = {}
        self._roles: dict[str, list[Resources]] = {}
        self._pods: dict[str, tuple[str, Resources]] = {}
        self._over: set[str] = set()
        """Uids of pods that will never run again. Their share is free before their allocation records it."""
        self._said: set[tuple[str, str]] = set()
        self._is_other = True

    def take_is_other(self) -> bool:
        """Return whether any input of `excess` has changed since the last call. Most versions only report states."""
        is_other, self._is_other = self._is_other, False
        return is_other

    def take_pool(self, version: Version, pool: ResourcePool) -> None:
        before = self.pools.get(version.name)
        if before is None or before.status.decisions != pool.status.decisions:
            self._is_other = True
        self.pools[version.name] = pool

    def take_node(self, version: Version, node: Node) -> None:
        self._is_other = True
        if version.is_deletion:
            self._nodes.pop(version.name, None)
            return
        self._nodes[version.name] = Resources.parse(node.status.allocatable)
        if version.before is not None:
            # A node that shrinks below its usage was not given twice, so the present excess is marked as reported.
            for _ in self.excess():
                pass

    def take_allocation(self, version: Version, allocation: Allocation) -> None:
        if version.is_deletion:
            self._allocations.pop(version.uid, None)
            return
        before = self._allocations.get(version.uid)
        self._is_other |= before is None or _counted(before) != _counted(allocation)
        self._allocations[version.uid] = allocation
        if version.uid not in self._roles:
            roles = spec_facts(allocation, self.pools.get(allocation.spec.pool)).roles
            self._roles[version.uid] = [role.requests for role in roles for _ in range(role.count)]

    def take_pod(self, version: Version, pod: Pod) -> None:
        if version.is_deletion or not is_live(pod):
            # A finished pod frees its share, which alone never causes an excess.
            self._pods.pop(pod.metadata.uid, None)
            if version.is_deletion or pod.spec.node_name:
                self._over.add(pod.metadata.uid)
        elif pod.metadata.uid not in self._pods:
            self._is_other = True
            self._pods[pod.metadata.uid] = (pod.spec.node_name, pod_fact(pod).requests + _ONE_POD)

    def excess(self) -> Iterator[tuple[str, str]]:
        """Yield (node, message) of each node whose usage exceeds its capacity. A node is reported at most once for
        what is given, and at most once for what is bound.
        """
        yield from self._excess("given", ((node, amount) for _, node, amount in self.given()))
        yield from self._excess("bound", self._pods.values())

    def _excess(self, what: str, held: Iterable[tuple[str, Resources]]) -> Iterator[tuple[str, str]]:
        used: dict[str, Resources] = {}
        for node, amount in held:
            used[node] = used[node] + amount if node in used else amount
        for node, amount in used.items():
            free = self._nodes.get(node)
            if free is not None and not amount.fits(free) and (what, node) not in self._said:
                self._said.add((what, node))
                yield node, f"{what} {amount.quantities()}; it has {free.quantities()}"

    def allocation(self, uid: str) -> Allocation | None:
        """Return the current state of an allocation; None when it does not exist."""
        return self._allocations.get(uid)

    def given(self) -> Iterator[tuple[str, str, Resources]]:
        """Yield (uid of the allocation, node, amount) of each rank that has a place."""
        placements: dict[tuple[str, int], Mapping[int, str]] = {}
        for pool in self.pools.values():
            for item in pool.status.decisions:
                known = self._allocations.get(item.uid)
                if item.kind == ADMIT and not item.grows and known is not None and not is_dead(item, known):
                    nodes = pool.status.nodes
                    placements[item.uid, item.attempt] = {
                        rank: nodes[index] for rank, index in enumerate(item.placements) if index >= 0
                    }
        for uid, allocation in self._allocations.items():
            status = allocation.status
            admission = status.admission
            is_held = admission is not None and admission.attempt == status.attempt
            if is_held and admission is not None and status.phase not in (Phase.PENDING, Phase.TERMINATED):
                placements[uid, status.attempt] = {
                    member.rank: member.placement.node
                    for member in members(allocation)
                    if member.pod_uid not in self._over
                }
        for (uid, _), places in placements.items():
            requests = self._roles.get(uid, [])
            for rank, node in places.items():
                yield uid, node, (requests[rank] if rank < len(requests) else Resources()) + _ONE_POD


def _counted(allocation: Allocation) -> tuple[object, ...]:
    """Return the fields of an allocation that, with its decisions, determine its usage."""
    status = allocation.status
    is_leaving = allocation.spec.desired == "Stopped" or allocation.metadata.deletion_timestamp is not None
    return (
        status.phase,
        status.attempt,
        status.admission,
        status.release,
        status.growth,
        status.restarted_ranks,
        is_leaving,
    )


def is_dead(decision: WireDecision, allocation: Allocation) -> bool:
    """Whether the decision holds no resources any more.

    This is so when its attempt is over, its allocation has ended, its allocation was cancelled before the decision was
    applied, or the decision is applied.
    """
    status = allocation.status
    if status.attempt > decision.attempt or status.phase is Phase.TERMINATED:
        return True
    if status.phase is Phase.PENDING:
        return allocation.spec.desired == "Stopped" or allocation.metadata.deletion_timestamp is not None
    return True
