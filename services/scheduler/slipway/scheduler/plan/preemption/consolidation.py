"""Consolidation: running work moves elsewhere so that other work has a place, and nobody waits for it.

What may move is of the same queue, can be preempted and is not above whom it moves for. It moves whole, as its next
attempt, and only if all that move land in the same tick, none of it on a node that it is to avoid; else nothing
happens.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.tick_state import Accept, Admitted, Ranks, TickState
from slipway.scheduler.plan.preemption.minimise import Settled, put_back
from slipway.scheduler.plan.preemption.trial import EvictionTrial
from slipway.scheduler.plan.state import gang_size
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.plan_types import Explanation
from slipway.scheduler.plan.state.snapshot import Holding

MOVES_MAX = 64
"""Allocations that move for one."""


def move(
    state: TickState, trial: EvictionTrial, fact: AllocationFact, accept: Accept | None, proposals: Iterator[bool]
) -> Settled | None:
    """Admit `fact` where others have moved out of its way; they stand in `state.admitted` after it answers."""
    for is_fit in proposals:
        settled = _settle(state, trial, fact, accept, is_fit)
        if settled is not None:
            return settled
    trial.undo()
    return None


def _settle(
    state: TickState, trial: EvictionTrial, fact: AllocationFact, accept: Accept | None, is_fit: bool
) -> Settled | None:
    placed = gang.place(state.whatif, fact, trial.within)
    if isinstance(placed, gang.PlacementFailure):
        return None
    if not is_fit:
        kept = put_back(state, trial, placed)
        if kept is None:
            return None
        placed = kept
    demand = placed.demand()
    if not trial.steps or state.may_use(fact, demand) is not None:
        state.withdraw(placed)
        return None
    state.count(fact, demand)
    wholes = _whole(state, trial)
    landed = _land(state, wholes) if len(wholes) <= MOVES_MAX else None
    if landed is not None and accept is not None:
        # What is refused is withdrawn already; what has landed gives way after it.
        state.count(fact, demand, -1)
        accepted = accept(placed, demand, [admitted.placed for admitted in landed])
        if isinstance(accepted, Explanation):
            _take_back(state, landed)
            _partly(state, wholes)
            return None
        placed = accepted
        state.count(fact, demand)
    if landed is None:
        state.withdraw(placed, demand)
        _partly(state, wholes)
        return None
    victims: dict[str, tuple[Holding, Ranks]] = {uid: (holding, ()) for uid, (holding, _) in wholes.items()}
    state.admitted += landed
    return Settled(Admitted(placed=placed, demand=demand, victims=tuple(sorted(victims))), victims)


def hold_places(state: TickState) -> list[Admitted]:
    """Places for what this plan evicts, where it has some elsewhere: their minima come before anybody's surplus.
    `let_go` gives them back; the next tick admits them."""
    held: list[Admitted] = []
    if not any(_is_elastic(admitted.placed) for admitted in state.admitted):
        return held
    coming = {admitted.placed.allocation.uid for admitted in state.admitted}
    for uid, evict in sorted(state.evicted.items()):
        if not evict.by or evict.ranks or uid in coming:
            continue
        fact = state.bound(next_attempt(state.snapshot.holdings[uid].allocation))
        if not _has_node(state, fact) or state.may_use(fact, gang_size.smallest_demand(fact)) is not None:
            continue
        placed = gang.place(state.whatif, fact)
        if not isinstance(placed, gang.PlacementFailure):
            demand = placed.demand()
            state.count(fact, demand)
            held.append(Admitted(placed=placed, demand=demand))
    return held


def _is_elastic(placed: gang.PlacedGang) -> bool:
    """Whether it would take more ranks than it has."""
    return any(len(part.nodes) < part.role.count for part in placed.parts)


def _has_node(state: TickState, fact: AllocationFact) -> bool:
    """Whether each role that is needed has a node for one rank."""
    rows = [state.whatif.row(role) for role, want in zip(fact.roles, gang_size.targets(fact), strict=True) if want]
    for row in rows:
        row.refresh()
    return all(bool(row.fits.any()) for row in rows)


def let_go(state: TickState, held: list[Admitted]) -> None:
    """Undo `hold_places`."""
    _take_back(state, held)


def _whole(state: TickState, trial: EvictionTrial) -> dict[str, tuple[Holding, Ranks]]:
    """Take off the rest of what was taken in part: {uid: (what, ranks that went just now)}."""
    result: dict[str, tuple[Holding, Ranks]] = {}
    for uid, (holding, _) in trial.victims().items():
        rest = tuple(rank for rank in state.left_of(holding) if rank not in holding.leaving)
        if rest:
            state.remove(holding, rest)
        result[uid] = (holding, rest)
    return result


def _partly(state: TickState, wholes: dict[str, tuple[Holding, Ranks]]) -> None:
    """Undo `_whole`."""
    for holding, rest in wholes.values():
        if rest:
            state.put_back(holding, rest)


def _land(state: TickState, wholes: dict[str, tuple[Holding, Ranks]]) -> list[Admitted] | None:
    """Find a place for each, the largest first; None when one has none."""
    landed: list[Admitted] = []
    for holding, _ in sorted(wholes.values(), key=lambda each: _size(each[0])):
        moved = state.bound(next_attempt(holding.allocation))
        placed = gang.place(state.whatif, moved, _not_avoided(state, moved))
        if isinstance(placed, gang.PlacementFailure):
            _take_back(state, landed)
            return None
        demand = placed.demand()
        if state.may_use(moved, demand) is not None:
            state.withdraw(placed)
            _take_back(state, landed)
            return None
        state.count(moved, demand)
        landed.append(Admitted(placed=placed, demand=demand))
    return landed


def _not_avoided(state: TickState, fact: AllocationFact) -> Bools | None:
    """The nodes that have not failed it: what waits takes one that has rather than none, what runs does not."""
    index = state.whatif.table.index
    avoid = [index[name] for name in fact.avoid_nodes if name in index]
    if not avoid:
        return None
    nodes = np.ones(len(index), dtype=bool)
    nodes[avoid] = False
    return nodes


def _take_back(state: TickState, landed: list[Admitted]) -> None:
    for admitted in reversed(landed):
        state.withdraw(admitted.placed, admitted.demand)


def next_attempt(fact: AllocationFact) -> AllocationFact:
    """It as it would wait again."""
    return msgspec.structs.replace(
        fact, attempt=fact.attempt + 1, phase=Phase.PENDING, placements={}, ended_ranks=(), leaving_ranks=()
    )


def _size(holding: Holding) -> tuple[int, int, int, str, str]:
    used, fact = holding.used, holding.allocation
    return (-holding.slots, -used.get("cpu", 0), -used.get("memory", 0), fact.key, fact.uid)
