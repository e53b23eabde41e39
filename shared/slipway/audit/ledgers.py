"""Checks of the ledger: epochs rise, admissions come from decisions, decisions are finished, nothing is given twice.

I9, I10. Pure: evidence in, violations out.
"""

from collections.abc import Iterable, Iterator, Mapping

from slipway.audit.evidence import AllocationVersion, Evidence, Version, Violation
from slipway.audit.gangs import is_live
from slipway.crd.facts import allocation_fact
from slipway.crd.v1alpha1 import Allocation, ResourcePool, WireDecision
from slipway.kube.facts import pod_fact
from slipway.kube.objects import Node, Pod
from slipway.model.lifecycle import Phase
from slipway.model.resources import PODS, Resources

_ADMIT = "admit"


def epochs_rise(evidence: Evidence) -> Iterator[Violation]:
    """I9: the epoch of a ledger never falls, and a decision carries the epoch under which it was made."""
    last: dict[str, ResourcePool] = {}
    for version, pool in evidence.pools:
        before = last.get(version.uid)
        last[version.uid] = pool
        if before is None:
            continue
        if pool.status.epoch < before.status.epoch or pool.status.tick < before.status.tick:
            yield _broken("I9", version, f"epoch {before.status.epoch} -> {pool.status.epoch}")
        known = {item.id for item in before.status.decisions}
        for item in pool.status.decisions:
            if item.id not in known and item.epoch != pool.status.epoch:
                yield _broken("I9", version, f"decision {item.id} of epoch {item.epoch} in epoch {pool.status.epoch}")


def admissions_come_from_decisions(evidence: Evidence) -> Iterator[Violation]:
    """I9: every admission equals a decision that stood in a ledger before it."""
    decided: dict[str, list[tuple[int, WireDecision, list[str]]]] = {}
    for version, pool in evidence.pools:
        for item in pool.status.decisions:
            decided.setdefault(item.id, []).append((version.number, item, pool.status.nodes))
    for uid, history in evidence.allocations.items():
        known = ""
        for item in history:
            admission = item.allocation.status.admission
            if admission is None or admission.decision_id == known:
                continue
            known = admission.decision_id
            found = [entry for entry in decided.get(known, []) if entry[0] < item.version.number]
            if not found:
                yield _wrong("I9", item, f"admitted by {known}, which no ledger held before")
                continue
            _, decision, nodes = found[-1]
            wanted = {rank: nodes[index] for rank, index in enumerate(decision.placements) if index >= 0}
            placed = {place.rank: place.node for place in admission.placements}
            if (decision.uid, decision.epoch, decision.attempt) != (uid, admission.epoch, admission.attempt):
                yield _wrong("I9", item, f"admitted by {known}, which is of another object, epoch or attempt")
            elif placed != wanted:
                yield _wrong("I9", item, f"admitted to {placed}, decided {wanted}")


def decisions_are_finished(evidence: Evidence) -> Iterator[Violation]:
    """I9: a decision leaves the ledger only when it is applied, or can never be."""
    last: dict[str, ResourcePool] = {}
    for version, pool in evidence.pools:
        before = last.get(version.uid)
        last[version.uid] = pool
        if before is None:
            continue
        kept = {item.id for item in pool.status.decisions}
        for item in before.status.decisions:
            if item.id not in kept and item.kind == _ADMIT and not _is_settled(evidence, item, version.number):
                yield _broken("I9", version, f"decision {item.id} for {item.allocation} is dropped unfinished")


def nothing_is_given_twice(evidence: Evidence) -> Iterator[Violation]:
    """I10: at every version what is decided, admitted and not yet over fits each node, and so does what is bound."""
    holds = _Holds()
    pods = {change.version.number: change for change in evidence.pods}
    pools = {version.number: pool for version, pool in evidence.pools}
    nodes = {version.number: node for version, node in evidence.nodes}
    allocations = {item.version.number: item for history in evidence.allocations.values() for item in history}
    for version in evidence.versions:
        number = version.number
        if number in nodes:
            holds.take_node(version, nodes[number])
        elif number in pools:
            holds.pools[version.name] = pools[number]
        elif number in allocations:
            holds.take_allocation(version, allocations[number].allocation)
        elif number in pods:
            holds.take_pod(version, pods[number].pod)
        else:
            continue
        for node, message in holds.excess():
            yield Violation(invariant="I10", subject=node, message=message, version=number)


class _Holds:
    """Who holds what, as the versions pass by."""

    def __init__(self) -> None:
        self.pools: dict[str, ResourcePool] = {}
        self._nodes: dict[str, Resources] = {}
        self._allocations: dict[str, Allocation] = {}
        self._keys: dict[str, Allocation] = {}
        self._roles: dict[str, list[Resources]] = {}
        self._pods: dict[str, tuple[str, Resources]] = {}
        self._over: set[str] = set()
        """uids of pods that will never run again: their share is free before their allocation says so"""
        self._said: set[tuple[str, str]] = set()

    def take_node(self, version: Version, node: Node) -> None:
        if version.is_deletion:
            self._nodes.pop(version.name, None)
        else:
            self._nodes[version.name] = Resources.parse(node.status.allocatable)

    def take_allocation(self, version: Version, allocation: Allocation) -> None:
        if version.is_deletion:
            self._allocations.pop(version.uid, None)
            return
        self._allocations[version.uid] = allocation
        if version.uid not in self._roles:
            fact = allocation_fact(allocation, self.pools.get(allocation.spec.pool))
            self._roles[version.uid] = [role.requests for role in fact.roles for _ in range(role.count)]

    def take_pod(self, version: Version, pod: Pod) -> None:
        if version.is_deletion or not is_live(pod):
            self._pods.pop(pod.metadata.uid, None)
            if version.is_deletion or pod.spec.node_name:
                self._over.add(pod.metadata.uid)
        elif pod.metadata.uid not in self._pods:
            self._pods[pod.metadata.uid] = (pod.spec.node_name, pod_fact(pod).requests + _ONE_POD)

    def excess(self) -> Iterator[tuple[str, str]]:
        """(node, message) of each node that holds more than it has; said once per set of holders."""
        yield from self._excess("given", self._given())
        yield from self._excess("bound", self._pods.values())

    def _excess(self, what: str, held: Iterable[tuple[str, Resources]]) -> Iterator[tuple[str, str]]:
        used: dict[str, Resources] = {}
        for node, amount in held:
            used[node] = used[node] + amount if node in used else amount
        for node, amount in used.items():
            free = self._nodes.get(node)
            if free is not None and not amount.fits(free) and (what, node) not in self._said:
                self._said.add((what, node))
                yield node, f"{what} {amount.quantities()}, it has {free.quantities()}"

    def _given(self) -> Iterator[tuple[str, Resources]]:
        placements: dict[tuple[str, int], Mapping[int, str]] = {}
        for pool in self.pools.values():
            for item in pool.status.decisions:
                known = self._allocations.get(item.uid)
                if item.kind == _ADMIT and known is not None and not _is_dead(item, known):
                    nodes = pool.status.nodes
                    placements[item.uid, item.attempt] = {
                        rank: nodes[index] for rank, index in enumerate(item.placements) if index >= 0
                    }
        for uid, allocation in self._allocations.items():
            status = allocation.status
            admission = status.admission
            is_held = admission is not None and admission.attempt == status.attempt
            if is_held and admission is not None and status.phase not in (Phase.PENDING, Phase.TERMINATED):
                uids = status.release.pod_uids if status.release is not None else []
                placements[uid, status.attempt] = {
                    place.rank: place.node
                    for index, place in enumerate(admission.placements)
                    if index >= len(uids) or uids[index] not in self._over
                }
        for (uid, _), places in placements.items():
            requests = self._roles.get(uid, [])
            for rank, node in places.items():
                yield node, (requests[rank] if rank < len(requests) else Resources()) + _ONE_POD


_ONE_POD = Resources({PODS: 1})


def _is_dead(decision: WireDecision, allocation: Allocation) -> bool:
    """Whether it holds nothing any more: of a past attempt, ended, cancelled before it was applied, or applied."""
    status = allocation.status
    if status.attempt > decision.attempt or status.phase is Phase.TERMINATED:
        return True
    if status.phase is Phase.PENDING:
        return allocation.spec.desired == "Stopped" or allocation.metadata.deletion_timestamp is not None
    return True


def _is_settled(evidence: Evidence, decision: WireDecision, version: int) -> bool:
    history = [item for item in evidence.allocations.get(decision.uid, []) if item.version.number < version]
    if not history or history[-1].version.is_deletion:
        return True
    if any(
        item.allocation.status.admission is not None and item.allocation.status.admission.decision_id == decision.id
        for item in history
    ):
        return True
    allocation = history[-1].allocation
    stop = allocation.status.stop
    return (
        allocation.status.attempt > decision.attempt
        or allocation.status.phase is Phase.TERMINATED
        or allocation.spec.desired == "Stopped"
        or allocation.metadata.deletion_timestamp is not None
        or (stop is not None and stop.attempt == decision.attempt)
    )


def _wrong(invariant: str, item: AllocationVersion, message: str) -> Violation:
    return Violation(
        invariant=invariant, subject=item.allocation.metadata.name, message=message, version=item.version.number
    )


def _broken(invariant: str, version: Version, message: str) -> Violation:
    return Violation(invariant=invariant, subject=version.name, message=message, version=version.number)
