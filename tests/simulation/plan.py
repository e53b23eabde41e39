"""Which points a sweep plays, in which trunks: the whole table, or an even sample of it.

Owns the choice and the cutting into branches. A sweep has three rounds: the undisturbed runs, all points that follow
from them, and the points that follow from the runs in which a process was held. Pure: equal arguments give equal plans.
"""

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tests.simulation.fork import Point
from tests.simulation.fork_server import Branch
from tests.simulation.points import REPLICATED, Family, handful, pairs, points_told, zombies
from tests.simulation.run import Outcome
from tests.simulation.scenarios import SCENARIOS
from tests.support.faults import Effect, Fault, Kind

SEED = 1
"""The seed of the runs that get single faults."""
REPLICAS = 2
"""The replicas of each service where another one has to take over."""
HANDFULS = 6
"""The handfuls of faults for the run of each further seed."""
PAIRS = 120
"""The pairs of faults for each scenario."""
FLOOR = 300
"""One point of this many in a sample is surely of each family."""
FEWEST = 3_000
"""And one point of this many of each kind of fault."""
PREFERENCE = 12
"""The power of its cost by which a point is drawn less often."""
FIXED_MS, BOUNDARY_MS, SECOND_MS = 30.0, 0.24, 0.5
WAIT_MS = {
    Kind.CRASH: 10.0,
    Kind.CRASH_STALE: 10.0,
    Kind.STALL: 15.0,
    Kind.OUTAGE: 12.0,
    Kind.OOM: 17.0,
    Kind.AWAY: 19.0,
    Kind.LOADING: 24.0,
    Kind.READONLY: 19.0,
    Kind.COALESCE: 14.0,
    Kind.LAG: 5.0,
    Kind.STALL_EXPIRED: 20.0,
    Kind.STALL_CUT: 20.0,
    Kind.SILENT: 60.0,
    Kind.NAP: 20.0,
    Kind.PAUSE: 12.0,
    Kind.FREEZE: 40.0,
    Kind.LONG_PAUSE: 130.0,
    Kind.COMA: 500.0,
    Kind.HOLD: 70.0,
    Kind.CLOCK_AHEAD: 90.0,
    Kind.CLOCK_BEHIND: 25.0,
    Kind.CLOCK_FAST: 100.0,
    Kind.CLOCK_SLOW: 110.0,
}
"""The approximate cost of a point: for the fork, the rest and the audit; for each boundary and each second of the
undisturbed run that still follow; and for the time that some faults make others wait."""
BRANCH_POINTS = 200
"""A trunk with more points is cut, so that all cores have work to the end."""

BASE = "base"
FOUND = "found"
"""The family of points that once failed."""
HANDFUL = "handful"
PAIR = "pair"
ZOMBIE = "zombie"
FAMILIES = (BASE, *(family.value for family in Family), ZOMBIE, PAIR, HANDFUL, FOUND)

Root = tuple[str, int, int]
"""(scenario, seed, replicas) of an undisturbed run."""


class Planned(msgspec.Struct, frozen=True):
    """One point: the run, its faults, and the family that counts it."""

    family: str
    root: Root
    faults: Point


def roots(names: Iterable[str], seeds: int) -> list[Root]:
    """The undisturbed runs: each scenario with one and with two of each service, and further seeds with either."""
    found: list[Root] = []
    for name in names:
        found += [(name, SEED, 1), (name, SEED, REPLICAS)]
        found += [(name, seed, REPLICAS if seed % 2 else 1) for seed in range(SEED + 1, seeds + 1)]
    return found


def leaves(
    root: Root, effects: Sequence[Effect], families: Sequence[str], *, of_all_seeds: bool = False
) -> list[Planned]:
    """Every point of these families that follows from an undisturbed run; of the first seed, or of any."""
    name, seed, replicas = root
    has_redis = SCENARIOS[name].setup.has_redis
    every = list(points_told(effects, list(Family), has_redis=has_redis))
    faults = [fault for _, fault in every]
    found: list[Planned] = []
    if seed != SEED:
        if HANDFUL in families:
            found += _handfuls(root, faults)
        if not of_all_seeds:
            return _distinct(found)
    for family in Family:
        if family.value in families and (family in REPLICATED) == (replicas == REPLICAS):
            found += [Planned(family.value, root, (fault,)) for of, fault in every if of is family]
    if PAIR in families:
        each = pairs(effects, faults, PAIRS // 2, seed + replicas, has_redis=has_redis)
        found += [Planned(PAIR, root, pair) for pair in each]
    return _distinct(found)


def resumed(holds: Iterable[Outcome]) -> list[Planned]:
    """The points where a process that was held in one of these runs is resumed at each boundary of a successor."""
    return _distinct(
        Planned(ZOMBIE, (outcome.scenario, outcome.seed, outcome.replicas), pair)
        for outcome in holds
        for fault in map(Fault.parse, outcome.faults[:1])
        if fault.kind is Kind.HOLD
        for pair in zombies(outcome.effects, fault)
    )


def sample(
    planned: Sequence[Planned], count: int, seed: int, bases: Mapping[Root, Sequence[Effect]] | None = None
) -> list[Planned]:
    """About `count` points: some of each family and of each kind of fault, of each family one of each scenario, and of
    the rest more cheap ones than expensive ones. Equal arguments give the same sample.
    """
    chance = random.Random(seed)
    costs = _costs(planned, bases or {})
    drawn = sorted(planned, key=lambda each: chance.expovariate(1.0) * costs[id(each)] ** PREFERENCE)
    ranks, seen = dict[int, tuple[int, int]](), Counter[tuple[str, ...]]()
    for each in drawn:
        seen[each.family,] += 1
        seen[each.family, each.root[0]] += 1
        for fault in each.faults:
            seen["", fault.kind] += 1
        is_one_of_few = (
            seen[each.family, each.root[0]] == 1
            or seen[each.family,] <= count // FLOOR
            or any(seen["", fault.kind] <= count // FEWEST for fault in each.faults)
        )
        ranks[id(each)] = (0 if is_one_of_few else 1, len(ranks))
    return sorted(drawn, key=lambda each: ranks[id(each)])[:count]


def branches(planned: Iterable[Planned], bases: Mapping[Root, Sequence[Effect]]) -> list[Branch]:
    """Trunks of about equal work, the longest scenarios first; a trunk contains neighbouring points, so that it may
    end early."""
    by_root: dict[Root, list[Planned]] = {}
    for each in planned:
        by_root.setdefault(each.root, []).append(each)
    found: list[Branch] = []
    for root, of_root in by_root.items():
        ordered = sorted(bases.get(root, ()), key=lambda effect: effect.at)
        places = {(effect.role, effect.number): place for place, effect in enumerate(ordered)}
        of_root.sort(key=lambda each: min(places.get((fault.role, fault.number), 0) for fault in each.faults))
        for start in range(0, len(of_root), BRANCH_POINTS):
            name, seed, replicas = root
            cut = tuple(each.faults for each in of_root[start : start + BRANCH_POINTS])
            found.append(Branch(scenario=name, seed=seed, replicas=replicas, points=cut))
    return sorted(found, key=lambda branch: -len(branch.points))


def _costs(planned: Iterable[Planned], bases: Mapping[Root, Sequence[Effect]]) -> dict[int, float]:
    """The approximate milliseconds of each point: for what follows the fault, and for waiting."""
    times = {root: sorted(effect.at for effect in effects) for root, effects in bases.items()}
    places = {root: {(effect.role, effect.number): effect.at for effect in effects} for root, effects in bases.items()}
    found: dict[int, float] = {}
    for each in planned:
        known = places.get(each.root, {})
        struck_at = min((known.get((fault.role, fault.number), 0.0) for fault in each.faults), default=0.0)
        all_times = times.get(each.root, [])
        tail = len(all_times) - bisect_left(all_times, struck_at)
        seconds = max(0.0, all_times[-1] - struck_at) if all_times else 0.0
        waits = sum(WAIT_MS.get(fault.kind, 0.0) for fault in each.faults)
        found[id(each)] = FIXED_MS + waits + tail * BOUNDARY_MS + seconds * SECOND_MS
    return found


def _handfuls(root: Root, every: Sequence[Fault]) -> Iterator[Planned]:
    for turn in range(HANDFULS):
        faults = handful(every, root[1] * HANDFULS + turn)
        if faults:
            yield Planned(HANDFUL, root, faults)


def _distinct(planned: Iterable[Planned]) -> list[Planned]:
    """Each point once, in the first family that has it."""
    found: dict[tuple[Root, frozenset[Fault]], Planned] = {}
    for each in planned:
        found.setdefault((each.root, frozenset(each.faults)), each)
    return list(found.values())
