"""Consolidation: running work moves to other nodes so that other work has a place; nothing becomes pending.

Work may move if it is in the same queue, is preemptible and has no higher priority than the work that needs the place.
It moves whole, as its next attempt. All moves must find a place in the same tick, none on a node that the moved work
avoids; otherwise nothing is moved.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.tick_state import Accept, Admitted, Ranks, TickState
from slipway.scheduler.plan.preemption.trial import EvictionTrial, PreemptionResult, put_back
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.plan_types import Explanation
from slipway.scheduler.plan.state.snapshot import Holding

MOVES_MAX = 64
"""The largest number of allocations that move for one allocation."""


def move(
    state: TickState, trial: EvictionTrial, fact: AllocationFact, accept: Accept | None, proposals: Iterator[bool]
) -> PreemptionResult | None:
    """Admit `fact` after other work has moved to other nodes; the moved work is then in `state.admitted`.

    None when no proposal works; then nothing has changed.
    """
    for is_fit in proposals:
        settled = _settle(state, trial, fact, accept, is_fit)
        if settled is not None:
            return settled
    trial.undo()
    return None


def _settle(
    state: TickState, trial: EvictionTrial, fact: AllocationFact, accept: Accept | None, is_fit: bool
) -> PreemptionResult | None:
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
    landed = _place_moved(state, wholes) if len(wholes) <= MOVES_MAX else None
    if landed is not None and accept is not None:
        # `accept` withdraws a placement that it refuses. The landed gangs are withdrawn after that.
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
    return PreemptionResult(Admitted(placed=placed, demand=demand, victims=tuple(sorted(victims))), victims)


def hold_places(state: TickState) -> list[Admitted]:
    """Reserve places for work that this plan evicts and that fits elsewhere, and return them.

    Their minima thus come before surplus ranks of other gangs. `release_places` releases the places; the next tick
    admits the work.
    """
    held: list[Admitted] = []
    if not any(_is_elastic(admitted.placed) for admitted in state.admitted):
        return held
    coming = {admitted.placed.allocation.uid for admitted in state.admitted}
    for uid, evict in sorted(state.evicted.items()):
        if not evict.by or evict.ranks or uid in coming:
            continue
        fact = state.with_windows(next_attempt(state.snapshot.holdings[uid].allocation))
        if not _has_node(state, fact) or state.may_use(fact, rank_request.smallest_demand(fact)) is not None:
            continue
        placed = gang.place(state.whatif, fact)
        if not isinstance(placed, gang.PlacementFailure):
            demand = placed.demand()
            state.count(fact, demand)
            held.append(Admitted(placed=placed, demand=demand))
    return held


def _is_elastic(placed: gang.PlacedGang) -> bool:
    """Whether the gang could have more ranks than it has."""
    return any(len(part.nodes) < part.role.count for part in placed.parts)


def _has_node(state: TickState, fact: AllocationFact) -> bool:
    """Whether each role of the smallest gang has a feasible node."""
    rows = [state.whatif.row(role) for role, want in zip(fact.roles, rank_request.targets(fact), strict=True) if want]
    for row in rows:
        row.refresh()
    return all(bool(row.fits.any()) for row in rows)


def release_places(state: TickState, held: list[Admitted]) -> None:
    """Undo `hold_places`."""
    _take_back(state, held)


def _whole(state: TickState, trial: EvictionTrial) -> dict[str, tuple[Holding, Ranks]]:
    """Remove the remaining ranks of each victim that was removed in part.

    Return {uid: (holding, ranks that this call removed)}.
    """
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


def _place_moved(state: TickState, wholes: dict[str, tuple[Holding, Ranks]]) -> list[Admitted] | None:
    """Place each moved allocation, the largest first, and return them; None when one has no place."""
    landed: list[Admitted] = []
    for holding, _ in sorted(wholes.values(), key=lambda each: _size(each[0])):
        moved = state.with_windows(next_attempt(holding.allocation))
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
    """Return the nodes that `fact` does not avoid; None when it avoids none.

    Pending work may be placed on a node that it avoids if there is no other place; running work is not moved to one.
    """
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
    """Return the fact of its next attempt, pending."""
    return msgspec.structs.replace(
        fact, attempt=fact.attempt + 1, phase=Phase.PENDING, placements={}, ended_ranks=(), leaving_ranks=()
    )


def _size(holding: Holding) -> tuple[int, int, int, str, str]:
    used, fact = holding.used, holding.allocation
    return (-holding.slots, -used.get("cpu", 0), -used.get("memory", 0), fact.key, fact.uid)
