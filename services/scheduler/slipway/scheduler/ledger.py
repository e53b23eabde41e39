"""The ledger's moves as pure functions: promotion, committing a plan, settling what is applied.

Owns the encoding of placements (indexes into a node table, so that a name is written once) and the rule for
when a decision may leave the ledger. Must not know how the ledger is stored; `ledger_store.py` does the
compare-and-swap.

Invariants: the epoch and the tick never fall; a decision stands in the ledger before its admission is
written, keeps the epoch it was made under, and leaves only when the leader has seen its effect or knows a
fact, which can not be undone, that makes it impossible.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slipway.model.facts import AllocationFact
from slipway.model.ledger import LEDGER_BYTES_MAX, Decision, DecisionKind, Ledger
from slipway.model.lifecycle import Phase

NOT_PLACED = -1


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with its node names: what the planner says and what is applied."""

    kind: DecisionKind
    allocation: str
    """`<namespace>/<name>`"""
    uid: str
    attempt: int
    placements: Mapping[int, str] = {}
    devices: Mapping[int, tuple[int, ...]] = {}
    spec_hash: str = ""
    reason: str = ""
    by: str = ""


def promote(ledger: Ledger, epoch_listed: int) -> Ledger:
    """The ledger of a new leader: one epoch above its own and above every epoch found on an allocation."""
    return msgspec.structs.replace(ledger, epoch=1 + max(ledger.epoch, epoch_listed))


def commit(ledger: Ledger, placed: Sequence[Placed], *, at: str) -> tuple[Ledger, tuple[Decision, ...]]:
    """The ledger with new decisions, and those decisions; the tick rises by one.

    Decisions that would make the ledger larger than its limit are left out: the next tick makes them again.
    """
    nodes: dict[str, int] = {}
    kept = [_reindexed(decision, ledger.nodes, nodes) for decision in ledger.decisions]
    tick = ledger.tick + 1
    made: list[Decision] = []
    size = len(msgspec.json.encode(kept)) + sum(map(len, nodes))
    for number, item in enumerate(placed):
        decision = Decision(
            id=f"{ledger.epoch}-{tick}-{number}",
            epoch=ledger.epoch,
            allocation=item.allocation,
            uid=item.uid,
            attempt=item.attempt,
            kind=item.kind,
            placements=_indexes(item, nodes),
            devices={str(rank): devices for rank, devices in sorted(item.devices.items())},
            spec_hash=item.spec_hash,
            reason=item.reason,
            by=item.by,
            at=at,
        )
        size += len(msgspec.json.encode(decision))
        if size + sum(len(name) + 3 for name in nodes) > LEDGER_BYTES_MAX and made:
            break
        made.append(decision)
    result = Ledger(epoch=ledger.epoch, tick=tick, nodes=tuple(nodes), decisions=(*kept, *made))
    return result, tuple(made)


def settle(ledger: Ledger, settled: Iterable[str]) -> Ledger:
    """The ledger without the decisions of those ids (kept in memory until the next commit writes it)."""
    gone = frozenset(settled)
    if not gone:
        return ledger
    return msgspec.structs.replace(
        ledger, decisions=tuple(decision for decision in ledger.decisions if decision.id not in gone)
    )


def is_applied(decision: Decision, fact: AllocationFact | None) -> bool:
    """Whether the snapshot already shows the decision's effect.

    The fact must be of the same object and at or above the version of the admission: its decision id says so,
    and a later attempt or phase can only come after it.
    """
    if fact is None or fact.uid != decision.uid:
        return False
    if decision.kind is DecisionKind.EVICT:
        return fact.attempt > decision.attempt or fact.stopping or fact.phase is Phase.TERMINATED
    if fact.decision == decision.id:
        return True
    return fact.attempt > decision.attempt


def is_impossible(decision: Decision, fact: AllocationFact) -> bool:
    """Whether the decision can never be applied, for a reason that can not be undone.

    Only such reasons count, so that a predecessor that comes back finds the same answer: no stamp is needed to
    keep it from applying what was voided here.
    """
    if fact.uid != decision.uid or fact.attempt > decision.attempt or fact.phase is Phase.TERMINATED:
        return True
    if decision.kind is DecisionKind.EVICT:
        return False
    return (
        fact.desired == "Stopped" or fact.deleting or (fact.phase is not Phase.PENDING and fact.decision != decision.id)
    )


def node_names(decision: Decision, nodes: Sequence[str]) -> dict[int, str]:
    """{rank: node name} of the placed ranks."""
    return {rank: nodes[index] for rank, index in enumerate(decision.placements) if index != NOT_PLACED}


def _indexes(item: Placed, nodes: dict[str, int]) -> tuple[int, ...]:
    def index(rank: int) -> int:
        name = item.placements.get(rank)
        return NOT_PLACED if name is None else nodes.setdefault(name, len(nodes))

    return tuple(index(rank) for rank in range(max(item.placements, default=-1) + 1))


def _reindexed(decision: Decision, before: Sequence[str], nodes: dict[str, int]) -> Decision:
    placements = tuple(
        NOT_PLACED if index == NOT_PLACED else nodes.setdefault(before[index], len(nodes))
        for index in decision.placements
    )
    return msgspec.structs.replace(decision, placements=placements)
