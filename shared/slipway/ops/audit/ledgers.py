"""Checks of the ledger: epochs rise, admissions come from decisions and wait for dependencies, decisions are finished.

I9. Pure: evidence in, violations out.
"""

from collections.abc import Iterator

from slipway.crd.dependencies import open_dependencies, unmet
from slipway.crd.v1alpha1 import Allocation, ResourcePool, WireDecision
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import AllocationVersion, AuditEvidence, InvariantViolation, Version
from slipway.ops.audit.holds import ADMIT


def epochs_rise(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I9: the epoch of a ledger never falls, belongs to one leader, and is recorded in the decisions made under it."""
    last: dict[str, ResourcePool] = {}
    writers: dict[tuple[str, int], str] = {}
    for version, pool in evidence.pools:
        before = last.get(version.uid)
        last[version.uid] = pool
        if before is None:
            continue
        if pool.status.epoch < before.status.epoch or pool.status.tick < before.status.tick:
            yield _broken("I9", version, f"epoch {before.status.epoch} -> {pool.status.epoch}")
        # The writer of a write is unknown when its answer was lost with its server. Such a write cannot show two
        # writers.
        who = writers.setdefault((version.uid, pool.status.epoch), version.writer) if version.writer else ""
        if evidence.has_writers and pool.status != before.status and who != version.writer:
            yield _broken("I9", version, f"{who} and {version.writer} both write in epoch {pool.status.epoch}")
        known = {item.id for item in before.status.decisions}
        for item in pool.status.decisions:
            is_fresh = item.id not in known and (item.epoch > pool.status.epoch or not evidence.is_sampled)
            if is_fresh and item.epoch != pool.status.epoch:
                yield _broken("I9", version, f"decision {item.id} of epoch {item.epoch} in epoch {pool.status.epoch}")


def admissions_come_from_decisions(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I9: every admission equals a decision that was in a ledger before it."""
    decided: dict[str, list[tuple[int, WireDecision, list[str]]]] = {}
    for version, pool in evidence.pools:
        for item in pool.status.decisions:
            decided.setdefault(item.id, []).append((version.number, item, pool.status.nodes))
    for uid, history in evidence.allocations.items():
        first = history[0].allocation.status.admission if evidence.starts_late else None
        known = first.decision_id if first is not None else ""
        for item in history:
            admission = item.allocation.status.admission
            if admission is None or admission.decision_id == known:
                continue
            known = admission.decision_id
            found = [entry for entry in decided.get(known, []) if entry[0] < item.version.number]
            if not found and (evidence.is_sampled or evidence.starts_late):
                continue
            if not found:
                yield _wrong("I9", item, f"admitted by {known}, which was in no ledger before")
                continue
            _, decision, nodes = found[-1]
            wanted = {rank: nodes[index] for rank, index in enumerate(decision.placements) if index >= 0}
            placed = {place.rank: place.node for place in admission.placements}
            if (decision.uid, decision.epoch, decision.attempt) != (uid, admission.epoch, admission.attempt):
                yield _wrong("I9", item, f"admitted by {known}, which is of another object, epoch or attempt")
            elif placed != wanted:
                yield _wrong("I9", item, f"admitted to {placed}, but the decision names {wanted}")


def admissions_wait_for_dependencies(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I9: an allocation is admitted only after every allocation of `spec.after` has ended with the required result."""
    for history in evidence.allocations.values():
        known = history[0].allocation.status.admission if evidence.starts_late else None
        for item in history:
            admission = item.allocation.status.admission
            if admission is None or (known is not None and admission.decision_id == known.decision_id):
                continue
            known = admission
            open_ = [each.allocation for each in open_dependencies(item.allocation)]
            if open_:
                yield _wrong("I9", item, f"admitted while {', '.join(open_)} had not ended")
            elif why := unmet(item.allocation):
                yield _wrong("I9", item, f"admitted although {why}")


def decisions_are_finished(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I9: a decision is removed from the ledger only when it is applied, or can never be applied."""
    last: dict[str, ResourcePool] = {}
    for version, pool in evidence.pools:
        before = last.get(version.uid)
        last[version.uid] = pool
        if before is None:
            continue
        kept = {item.id for item in pool.status.decisions}
        for item in before.status.decisions:
            if item.id not in kept and item.kind == ADMIT and not _is_settled(evidence, item, version.number):
                yield _broken(
                    "I9",
                    version,
                    f"decision {item.id} for {item.allocation} is removed from the ledger before it was carried out",
                )


def _is_settled(evidence: AuditEvidence, decision: WireDecision, version: int) -> bool:
    history = [item for item in evidence.allocations.get(decision.uid, []) if item.version.number < version]
    if not history or history[-1].version.is_deletion:
        return True
    if any(decision.id in _applied(item.allocation) for item in history):
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


def _applied(allocation: Allocation) -> tuple[str, ...]:
    """Return the ids of the decisions that an object has applied."""
    admission, growth = allocation.status.admission, allocation.status.growth
    return tuple(each.decision_id for each in (admission, growth) if each is not None)


def growths_come_from_decisions(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I9: every rank that is added to a running gang is on the node of an earlier decision in a ledger."""
    decided: dict[str, list[tuple[int, dict[int, str]]]] = {}
    for version, pool in evidence.pools:
        for item in pool.status.decisions:
            if item.grows:
                wanted = {rank: pool.status.nodes[index] for rank, index in enumerate(item.placements) if index >= 0}
                decided.setdefault(item.id, []).append((version.number, wanted))
    for history in evidence.allocations.values():
        before: dict[int, str] = {}
        for position, item in enumerate(history):
            growth = item.allocation.status.growth
            placed = {place.rank: place.node for place in growth.placements} if growth is not None else {}
            fresh = {rank: node for rank, node in placed.items() if before.get(rank) != node}
            before = placed
            if not fresh or growth is None or (position == 0 and evidence.starts_late):
                continue
            found = [entry for number, entry in decided.get(growth.decision_id, []) if number < item.version.number]
            if not found and (evidence.is_sampled or evidence.starts_late):
                continue
            if not found or any(found[-1].get(rank) != node for rank, node in fresh.items()):
                yield _wrong("I9", item, f"grows by {fresh}, which decision {growth.decision_id} does not contain")


def _wrong(invariant: str, item: AllocationVersion, message: str) -> InvariantViolation:
    return InvariantViolation(
        invariant=invariant, subject=item.allocation.metadata.name, message=message, version=item.version.number
    )


def _broken(invariant: str, version: Version, message: str) -> InvariantViolation:
    return InvariantViolation(invariant=invariant, subject=version.name, message=message, version=version.number)
