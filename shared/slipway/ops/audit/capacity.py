"""Checks of capacity: no node and no queue is given more than it has.

I10. Pure: evidence in, violations out.
"""

from collections.abc import Iterator

from slipway.ops.audit.evidence import AuditEvidence, InvariantViolation
from slipway.ops.audit.holds import ADMIT, NodeHoldings
from slipway.ops.audit.quotas import Quotas


def nothing_is_given_twice(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I10: at every version, the decided and admitted work fits each node, and so do the bound pods."""
    for holds, number, _ in _passing(evidence):
        if number <= evidence.listed_to or not holds.take_is_other():
            continue
        for node, message in holds.excess():
            yield InvariantViolation(invariant="I10", subject=node, message=message, version=number)


def quotas_hold(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I10: a ledger's new decisions fit the limits, quotas and borrowing limits of their queue and of its ancestors."""
    quotas = Quotas(evidence.queues)
    if not quotas.is_bounded:
        return
    known = set[str]()
    for holds, number, is_ledger in _passing(evidence):
        if not is_ledger:
            continue
        fresh = [item for pool in holds.pools.values() for item in pool.status.decisions if item.id not in known]
        known |= {item.id for item in fresh}
        admitted = [item.uid for item in fresh if item.kind == ADMIT]
        if admitted and number > evidence.listed_to:
            for queue, message in quotas.broken_by(admitted, holds, number):
                yield InvariantViolation(invariant="I10", subject=queue, message=message, version=number)


def _passing(evidence: AuditEvidence) -> Iterator[tuple[NodeHoldings, int, bool]]:
    """Yield (usage, version number, whether it is a version of a ledger) after each relevant version."""
    holds = NodeHoldings()
    pods = {change.version.number: change for change in evidence.pods}
    pools = {version.number: pool for version, pool in evidence.pools}
    nodes = {version.number: node for version, node in evidence.nodes}
    for version in evidence.versions:
        number = version.number
        if number in nodes:
            holds.take_node(version, nodes[number])
        elif number in pools:
            holds.take_pool(version, pools[number])
        elif number in evidence.decoded:
            holds.take_allocation(version, evidence.decoded[number].allocation)
        elif number in pods:
            holds.take_pod(version, pods[number].pod)
        else:
            continue
        yield holds, number, number in pools
