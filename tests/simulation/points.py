"""Which faults to try: every boundary of every effect, every way a call can fail, every version of every watch.

Owns the enumeration. A run without faults shows the boundaries (effects, reads, deliveries of watches and of the feed);
each boundary gives some points. Where several kinds of a class have the same effect, the boundary's place selects one,
so that all of them occur over the scenarios. Pure.
"""

import random
from collections.abc import Iterable, Iterator, Sequence, Set
from enum import StrEnum

from tests.support.fault_answers import answers, draw, reads, turn
from tests.support.fault_streams import FEED_FAULTS
from tests.support.fault_watch import WATCH_FAULTS
from tests.support.fault_world import CLOCK_FAULTS, REDIS_FAULTS
from tests.support.faults import Effect, Fault, Kind

PAUSES = (*[Kind.NAP] * 4, *[Kind.PAUSE] * 5, *[Kind.FREEZE] * 6, *[Kind.LONG_PAUSE] * 2, Kind.COMA)
"""The kinds of pauses to draw from; long ones are rare, because they take that long."""
WHOLE_MAX = 1
"""How many calls of each kind in a scenario fail in every way; further calls fail in two ways that are drawn."""
DRAWN = {"flush": 2, "redis": 2, "stale": 2, "clock": 3, "freeze": 2, "hold": 4}
"""For these kinds one boundary of this many in a scenario is drawn; over all scenarios every kind occurs often."""
ZOMBIE_EFFECTS_MAX = 12
"""The number of effects of a held process's successors at which it is resumed."""
READS = ".reads"
FEED = ".feed"


class Family(StrEnum):
    """Kinds of points."""

    CRASH = "crash"
    """before and after each effect"""
    ERROR = "error"
    """each answer of each call that writes"""
    READ = "read"
    """each answer of each call that reads"""
    WATCH = "watch"
    """each watch, and the feed, stopped at each version; and one more fault that can happen to it there"""
    STALE = "stale"
    """a crash before each effect of a process that watches, which then starts with an old view"""
    FLUSH = "flush"
    """FLUSHALL after each effect"""
    REDIS = "redis"
    """every other fault of Redis, after each effect"""
    CLOCK = "clock"
    """a process's clocks go wrong before its effects"""
    FREEZE = "freeze"
    """pauses of 1 s to 10 min before each effect"""
    HOLD = "hold"
    """a pause that ends at a boundary of another process: see `zombies`"""


_ONE_IN = {Family(name): of for name, of in DRAWN.items()}
_TURNS = {family: 10 + place for place, family in enumerate(Family)}

REPLICATED = frozenset({Family.FREEZE, Family.HOLD, Family.CLOCK})
"""Families that are played with two of each service, so that another replica continues."""


def points(effects: Sequence[Effect], families: Iterable[Family], *, has_redis: bool) -> Iterator[Fault]:
    """Every single fault of these families."""
    return (fault for _, fault in points_told(effects, families, has_redis=has_redis))


def points_told(
    effects: Sequence[Effect], families: Iterable[Family], *, has_redis: bool
) -> Iterator[tuple[Family, Fault]]:
    """The same faults, each with its family."""
    wanted = frozenset(families)
    often: dict[tuple[str, str, str], int] = {}
    for effect in effects:
        call = (effect.role, effect.verb, effect.target)
        often[call] = often.get(call, 0) + 1
        is_new = often[call] <= WHOLE_MAX
        if effect.verb == "watch":
            if Family.WATCH in wanted:
                yield from ((Family.WATCH, fault) for fault in _deliveries(effect))
        elif effect.role.endswith(READS):
            if Family.READ in wanted and is_new:
                for kind, moment in reads(effect):
                    yield Family.READ, Fault(kind, effect.role, effect.number, moment)
        else:
            yield from _effects(effect, wanted, has_redis=has_redis, is_new=is_new)


def handful(every: Sequence[Fault], seed: int) -> tuple[Fault, ...]:
    """Several of these faults in one run."""
    chance = random.Random(seed)
    return tuple(chance.sample(every, min(len(every), chance.randint(2, 5))))


def zombies(effects: Sequence[Effect], hold: Fault) -> Iterator[tuple[Fault, Fault]]:
    """The held process resumes when another one of the same service is about to act: at each of its effects.

    `effects` are those of the run in which `hold` struck.
    """
    service = _service(hold.role)
    begun = next((each.at for each in effects if (each.role, each.number) == (hold.role, hold.number)), None)
    if begun is None:
        return
    others = [
        each
        for each in effects
        if each.at > begun and each.has_before and each.role != hold.role and _is_effect(each) and each.number
    ]
    successors = [each for each in others if _service(each.role) == service]
    for each in successors[:ZOMBIE_EFFECTS_MAX]:
        yield hold, Fault(Kind.THAW, each.role, each.number)


def pairs(
    effects: Sequence[Effect], every: Sequence[Fault], count: int, seed: int, *, has_redis: bool
) -> Iterator[tuple[Fault, Fault]]:
    """A sample of all pairs of `every` single fault: half of them anywhere, half in the recovery from the first."""
    chance, families = random.Random(seed), frozenset(Family)
    by_time = sorted((each for each in effects if _is_effect(each)), key=lambda each: each.at)
    moments = {(each.role, each.number): index for index, each in enumerate(by_time)}
    for turn_ in range(count if len(every) > 1 else 0):
        first = chance.choice(every)
        place = moments.get((first.role, first.number))
        if turn_ % 2 and place is not None and place + 1 < len(by_time):
            near = chance.choice(by_time[place + 1 : place + 12])
            second = chance.choice([fault for _, fault in _effects(near, families, has_redis=has_redis)])
        else:
            second = chance.choice(every)
        if (first.role, first.number, first.moment) != (second.role, second.number, second.moment):
            yield first, second


def _effects(
    effect: Effect, families: Set[Family], *, has_redis: bool, is_new: bool = True
) -> Iterator[tuple[Family, Fault]]:
    role, number = effect.role, effect.number
    moments = ("before", "after") if effect.has_before else ("after",)
    drawn = [family for family in Family if family in families and _is_drawn(effect, family)]
    if Family.CRASH in families:
        yield from ((Family.CRASH, Fault(Kind.CRASH, role, number, moment)) for moment in moments)
    if Family.ERROR in families:
        ways = answers(effect)
        place = draw(effect, 5, len(ways))
        chosen = ways if is_new else [ways[place], ways[(place + 2) % len(ways)]]
        for kind, moment in dict.fromkeys(chosen):
            yield Family.ERROR, Fault(kind, role, number, moment)
    if Family.FLUSH in drawn and has_redis:
        yield Family.FLUSH, Fault(Kind.FLUSH, role, number, "after")
    if Family.REDIS in drawn and has_redis:
        yield Family.REDIS, Fault(turn(effect, 1, REDIS_FAULTS), role, number, "after")
    if effect.has_before:
        if Family.STALE in drawn and _service(role) == "watcher":
            yield Family.STALE, Fault(Kind.CRASH_STALE, role, number)
        if Family.FREEZE in drawn:
            yield Family.FREEZE, Fault(turn(effect, 2, PAUSES), role, number)
        if Family.HOLD in drawn and not effect.is_recurring:
            yield Family.HOLD, Fault(Kind.HOLD, role, number)
        if Family.CLOCK in drawn:
            yield Family.CLOCK, Fault(turn(effect, 3, CLOCK_FAULTS), role, number)


def _is_drawn(effect: Effect, family: Family) -> bool:
    if family is Family.HOLD and _service(effect.role) == "scheduler":
        return True
    of = _ONE_IN.get(family, 1)
    return of == 1 or draw(effect, _TURNS[family], of) == 0


def _deliveries(effect: Effect) -> Iterator[Fault]:
    kinds = FEED_FAULTS if effect.role.endswith(FEED) else WATCH_FAULTS
    yield Fault(Kind.STALL, effect.role, effect.number)
    yield Fault(turn(effect, 4, kinds[1:]), effect.role, effect.number)


def _is_effect(effect: Effect) -> bool:
    return "." not in effect.role


def _service(role: str) -> str:
    return role.partition(".")[0].rstrip("0123456789")
