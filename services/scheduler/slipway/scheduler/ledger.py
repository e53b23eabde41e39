"""Pure functions on the ledger: promote a leader, commit a plan, settle applied decisions.

Owns the encoding of placements (indexes into a node table, so that a name is written once) and the rule when a decision
may leave the ledger. Must not know how the ledger is stored; `ledger_store.py` does the compare-and-swap.

Invariants: the epoch and the tick never fall; a decision is in the ledger before its admission is written, and keeps
the epoch in which it was made. It leaves only when the leader has seen its effect, or knows an irreversible fact that
makes it impossible.

A plan becomes entries of the ledger: admissions, nominations, and which of them are committed together. The planner has
decided them. Invariant: an allocation that needs the room of an eviction is nominated, and is admitted only after that
room is free. An eviction and its nomination are committed together or not at all.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slipway.model.facts import AllocationFact
from slipway.model.ledger import LEDGER_BYTES_MAX, Decision, DecisionKind, Ledger
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.preemption.nominations import bundles
from slipway.scheduler.plan.state.plan_types import Admit, Plan

NOT_PLACED = -1


class PlacedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with its node names, as the planner makes it and as it is applied."""

    kind: DecisionKind
    allocation: str
    """`<namespace>/<name>`"""
    uid: str
    attempt: int
    placements: Mapping[int, str] = {}
    devices: Mapping[int, tuple[int, ...]] = {}
    spec_hash: str = ""
    ranks: tuple[int, ...] = ()
    victims: tuple[str, ...] = ()
    reason: str = ""
    by: str = ""


def promote(ledger: Ledger, epoch_listed: int) -> Ledger:
    """Return the ledger of a new leader: its epoch is above the stored one and above the epoch of every allocation."""
    return msgspec.structs.replace(ledger, epoch=1 + max(ledger.epoch, epoch_listed))


def seen_through(ledger: Ledger, version: int) -> Ledger:
    """Return the ledger of a leader that knows every allocation at least up to `version`."""
    return msgspec.structs.replace(ledger, through=max(ledger.through, version))


def commit(
    ledger: Ledger, placed: Sequence[PlacedDecision], *, at: str, together: Sequence[Sequence[int]] = ()
) -> tuple[Ledger, tuple[Decision, ...]]:
    """Return the ledger with new decisions, and those decisions; the tick rises by one.

    Decisions that would make the ledger larger than its limit are left out: the next tick makes them again. `together`
    are indexes into `placed` of decisions that are committed all or none, such as evictions and the work that needs
    them.
    """
    nodes: dict[str, int] = {}
    kept = [_reindexed(decision, ledger.nodes, nodes) for decision in ledger.decisions]
    tick = ledger.tick + 1
    made: list[Decision] = []
    size = len(msgspec.json.encode(kept)) + sum(map(len, nodes))
    for bundle in _atomic_groups(len(placed), together):
        tried = dict(nodes)
        some = [
            Decision(
                id=f"{ledger.epoch}-{tick}-{number}",
                epoch=ledger.epoch,
                allocation=placed[number].allocation,
                uid=placed[number].uid,
                attempt=placed[number].attempt,
                kind=placed[number].kind,
                placements=_indexes(placed[number], tried),
                devices={str(rank): devices for rank, devices in sorted(placed[number].devices.items())},
                ranks=placed[number].ranks,
                victims=placed[number].victims,
                spec_hash=placed[number].spec_hash,
                reason=placed[number].reason,
                by=placed[number].by,
                at=at,
            )
            for number in bundle
        ]
        size += sum(len(msgspec.json.encode(decision)) for decision in some)
        if size + sum(len(name) + 3 for name in tried) > LEDGER_BYTES_MAX and made:
            break
        made += some
        nodes = tried
    result = msgspec.structs.replace(ledger, tick=tick, nodes=tuple(nodes), decisions=(*kept, *made))
    return result, tuple(made)


def settle(ledger: Ledger, settled: Iterable[str], through: int = 0) -> Ledger:
    """Return the ledger without the decisions of those ids (in memory only, until the next commit writes it).

    `through` is the highest version at which one of their allocations showed that its decision is settled.
    """
    gone = frozenset(settled)
    if not gone:
        return ledger
    left = tuple(decision for decision in ledger.decisions if decision.id not in gone)
    return msgspec.structs.replace(ledger, decisions=left, through=max(ledger.through, through))


def is_applied(decision: Decision, fact: AllocationFact | None) -> bool:
    """Whether the snapshot already shows the decision's effect.

    The fact must be of the same object, at the version of the admission or a later one. The decision id in it shows
    that, and a later attempt or phase can only follow the admission.
    """
    if fact is None or fact.uid != decision.uid:
        return False
    if decision.kind is DecisionKind.EVICT:
        is_told = fact.stopping or (bool(decision.ranks) and set(decision.ranks) <= set(fact.leaving_ranks))
        return fact.attempt > decision.attempt or is_told or fact.phase is Phase.TERMINATED
    if decision.kind is DecisionKind.NOMINATE:
        # A nomination has no effect on its object: it stays until it becomes an admission, or is dropped.
        return False
    if decision.kind is DecisionKind.GROW:
        return fact.growth_decision == decision.id or fact.attempt > decision.attempt
    if fact.decision == decision.id:
        return True
    return fact.attempt > decision.attempt


def is_held(decision: Decision) -> bool:
    """Whether the decision only reserves places, and has no effect on its object."""
    return decision.kind is DecisionKind.NOMINATE


def obsolete_evictions(ledger: Ledger) -> frozenset[str]:
    """Return the ids of evictions for allocations that have no reserved places any more: they need not be applied."""
    held = [decision for decision in ledger.decisions if is_held(decision)]
    awaited = {decision.allocation for decision in held}.union(*(decision.victims for decision in held))
    evictions = [decision for decision in ledger.decisions if decision.kind is DecisionKind.EVICT and decision.by]
    return frozenset(item.id for item in evictions if item.by not in awaited and item.uid not in awaited)


def is_impossible(decision: Decision, fact: AllocationFact) -> bool:
    """Whether the decision can never be applied, for a reason that cannot be undone.

    Only irreversible reasons are used, so that a former leader that comes back comes to the same result: it cannot
    apply a decision that was voided here, without any mark on the object.
    """
    if fact.uid != decision.uid or fact.attempt > decision.attempt or fact.phase is Phase.TERMINATED:
        return True
    if decision.kind is DecisionKind.EVICT:
        return bool(decision.ranks) and fact.phase is Phase.TERMINATING
    if decision.kind is DecisionKind.GROW:
        return fact.stopping or fact.desired == "Stopped" or fact.deleting or fact.phase is Phase.TERMINATING
    if fact.attempt < decision.attempt:
        # A nomination of an allocation that is moved: its previous attempt has not ended yet.
        return fact.desired == "Stopped" or fact.deleting
    return (
        fact.desired == "Stopped" or fact.deleting or (fact.phase is not Phase.PENDING and fact.decision != decision.id)
    )


def _atomic_groups(count: int, together: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the numbers below `count` in bundles that are committed together, ordered by the first number of each."""
    bundle_of = {number: tuple(sorted(numbers)) for numbers in together for number in numbers}
    every = [bundle_of.get(number, (number,)) for number in range(count)]
    return [bundle for number, bundle in enumerate(every) if bundle[0] == number]


def node_names(decision: Decision, nodes: Sequence[str]) -> dict[int, str]:
    """Return {rank: node name} of the placed ranks."""
    return {rank: nodes[index] for rank, index in enumerate(decision.placements) if index != NOT_PLACED}


def _indexes(item: PlacedDecision, nodes: dict[str, int]) -> tuple[int, ...]:
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


def decisions_of(plan: Plan) -> list[PlacedDecision]:
    """Return the decisions of a plan. Evictions come first, so that their room is free when the rest is applied."""
    evictions = [
        PlacedDecision(
            kind=DecisionKind.EVICT,
            allocation=evict.allocation,
            uid=evict.uid,
            attempt=evict.attempt,
            ranks=evict.ranks,
            reason=evict.reason.value,
            by=evict.by,
        )
        for evict in plan.evictions
    ]
    admits = [_placed(admit, is_deferred=admit.uid in plan.deferred) for admit in plan.admits]
    grows = [
        PlacedDecision(
            kind=DecisionKind.GROW,
            allocation=grow.allocation,
            uid=grow.uid,
            attempt=grow.attempt,
            placements=grow.placements,
            devices=grow.devices,
        )
        for grow in plan.grows
    ]
    return [*evictions, *admits, *grows]


def atomic_groups(plan: Plan, placed: Sequence[PlacedDecision]) -> list[list[int]]:
    """Return the indexes into `placed` of the decisions that are committed together or not at all."""
    return [[at for at, item in enumerate(placed) if item.uid in bundle] for bundle in bundles(plan)]


def without_replaced(before: Ledger, plan: Plan) -> Ledger:
    """Return the ledger without the nominations that the plan drops or replaces."""
    decided = {admit.uid for admit in plan.admits}
    over = [
        decision.id
        for decision in before.decisions
        if decision.kind is DecisionKind.NOMINATE and (decision.uid in decided or decision.id in plan.dropped)
    ]
    return settle(before, over)


def _placed(admit: Admit, *, is_deferred: bool) -> PlacedDecision:
    return PlacedDecision(
        kind=DecisionKind.NOMINATE if is_deferred else DecisionKind.ADMIT,
        allocation=admit.allocation,
        uid=admit.uid,
        attempt=admit.attempt,
        placements=admit.placements,
        devices=admit.devices,
        spec_hash=admit.spec_hash,
        victims=admit.victims if is_deferred else (),
    )
