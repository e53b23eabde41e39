"""From a proposal to an admission: check quota, place the preemptor, and put back victims that are not needed.

Invariant: either the preemptor is placed, with no victim that could have stayed, or only the trial has changed, which
its owner then undoes.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from slipway.model.facts import AllocationFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.tick_state import Accept, Admitted, Ranks, TickState
from slipway.scheduler.plan.preemption.trial import EvictionTrial, TrialStep
from slipway.scheduler.plan.preemption.victim_order import Standing, share_of
from slipway.scheduler.plan.preemption.victims import EvictionUnit
from slipway.scheduler.plan.queueing.queue_tree import counted
from slipway.scheduler.plan.state import gang_size
from slipway.scheduler.plan.state.plan_types import Explanation
from slipway.scheduler.plan.state.snapshot import Holding

EXACT_MAX = 64
"""Up to this number of victims, each is put back by placing the preemptor again; else by the room on its nodes."""
EXACT_RANKS = 2048
"""The largest number of ranks that are placed again for this, in total."""
EXACT_MIN = 4


class PreemptionResult(msgspec.Struct, frozen=True):
    """The admitted preemptor, and {uid: (holding of the victim, its evicted ranks; empty for all)}."""

    admitted: Admitted
    victims: dict[str, tuple[Holding, Ranks]]


def settle(
    state: TickState,
    trial: EvictionTrial,
    fact: AllocationFact,
    accept: Accept | None,
    *,
    demand: Resources,
    is_fit: bool,
    units: Callable[[], Iterable[EvictionUnit]],
) -> PreemptionResult | None:
    """Admit `fact` with the units that the trial has removed, and with as many more of `units` as the quota needs.

    `units` returns these units in order. `demand` is the smallest demand of `fact`. `is_fit`: the removed units are
    minimal as far as nodes are concerned. None when `fact` cannot be admitted.
    """
    off = len(trial.steps)
    if not _relieve(state, trial, fact, demand, units):
        return None
    placed = gang.place(state.whatif, fact, trial.within)
    if isinstance(placed, gang.PlacementFailure):
        return None
    if not placed.is_as_wanted:
        demand = placed.demand()
        if state.may_use(fact, demand) is not None:
            state.withdraw(placed)
            return None
    if not is_fit or len(trial.steps) > off:
        kept = put_back(state, trial, placed)
        if kept is None:
            return None
        placed, demand = kept, kept.demand()
        if not trial.is_permitted():
            state.withdraw(placed)
            return None
    if not trial.steps:
        state.withdraw(placed)
        return None
    if accept is not None:
        accepted = accept(placed, demand)
        if isinstance(accepted, Explanation):
            return None
        placed = accepted
    state.count(fact, demand)
    victims = trial.victims()
    return PreemptionResult(Admitted(placed=placed, demand=demand, victims=tuple(sorted(victims))), victims)


def put_back(state: TickState, trial: EvictionTrial, placed: gang.PlacedGang) -> gang.PlacedGang | None:
    """Put back the units that are not needed, the most important first.

    Return the places of the preemptor, which may have changed. None when the preemptor has no place any more; then
    nothing is placed.
    """
    fact = placed.allocation
    steps = _by_importance(state, trial)
    exact = max(EXACT_MIN, min(EXACT_MAX, EXACT_RANKS // max(1, len(placed.placements()))))
    if len(steps) > exact:
        for step in steps:
            _put_beside(state, trial, step, fact)
        steps = _by_importance(state, trial)[:exact]
    while steps := _by_importance(state, trial, steps):
        step, steps = steps[0], steps[1:]
        at = trial.steps.index(step)
        state.withdraw(placed)
        if trial.put_back(step):
            again = gang.place(state.whatif, fact, trial.within)
            if not isinstance(again, gang.PlacementFailure):
                if state.may_use(fact, again.demand()) is None:
                    placed = again
                    continue
                state.withdraw(again)
            trial.redo_step(step, at)
        again = gang.place(state.whatif, fact, trial.within)
        if isinstance(again, gang.PlacementFailure):
            return None  # The rank now has a pod beside it that its affinity rules out, although there is room.
        placed = again
    return placed


def _by_importance(state: TickState, trial: EvictionTrial, among: Sequence[TrialStep] | None = None) -> list[TrialStep]:
    """Return the steps of the trial (only those of `among`) in the order in which they are put back.

    The preemptor's own queue comes first, then the queue that is least above its share, then the most important unit.
    """
    steps = [step for step in trial.steps if among is None or step in among]
    queues = {step.unit.fact.queue for step in steps}
    if len(queues - {trial.queue}) <= 1:
        return sorted(steps, key=lambda step: (step.unit.fact.queue == trial.queue, step.unit.index), reverse=True)
    standing = {queue: share_of(trial.queue_shares, queue) for queue in queues}

    def importance(step: TrialStep) -> tuple[bool, Standing, int]:
        queue = step.unit.fact.queue
        return (queue == trial.queue, standing[queue], step.unit.index)

    return sorted(steps, key=importance, reverse=True)


def _put_beside(state: TickState, trial: EvictionTrial, step: TrialStep, fact: AllocationFact) -> None:
    """Put a unit back if its nodes have room for it beside the preemptor, and the quota still permits the preemptor."""
    at = trial.steps.index(step)
    if not trial.put_back(step):
        return
    usage, table = state.whatif.usage, state.whatif.table
    nodes = {table.index[step.unit.holding.charges[rank].node] for rank in step.ranks}
    is_over = any((usage.used[:, node] > table.allocatable[:, node]).any() for node in sorted(nodes))
    if is_over or state.may_use(fact, gang_size.smallest_demand(fact)) is not None:
        trial.redo_step(step, at)


def _relieve(
    state: TickState,
    trial: EvictionTrial,
    fact: AllocationFact,
    demand: Resources,
    in_order: Callable[[], Iterable[EvictionUnit]],
) -> bool:
    """Remove more units, in order, until quota and job slots permit `fact`. Return False when nothing helps."""
    if state.may_use(fact, demand) is None:
        return True
    for unit in in_order():
        if _relieves(state, unit, fact, demand) and _remove(trial, unit) and state.may_use(fact, demand) is None:
            return True
    return False


def _remove(trial: EvictionTrial, unit: EvictionUnit) -> bool:
    return not trial.is_removed(unit) and trial.remove(unit)


def _relieves(state: TickState, unit: EvictionUnit, fact: AllocationFact, demand: Resources) -> bool:
    """Whether the unit uses some of the resource, or of the job's slots, that is short."""
    short = state.tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
    victim = unit.fact
    used = unit.holding.used_by(state.left_of(unit.holding) if unit.is_whole else (unit.rank,))
    if short is not None:
        return state.tree.is_below(victim.queue, short.queue) and counted(used.amounts).get(short.resource, 0) > 0
    return victim.job == fact.job and victim.namespace == fact.namespace and used.gpus() > 0
