"""Estimates when waiting allocations are likely to start, by runs of the planner through possible futures. Pure.

If all allocations ahead have a run limit, the bounds are those of two runs: one in which every run time is at the 10th
percentile of similar allocations, and one in which it is at the 90th. More real starts were within these bounds than
within those of futures.

Owns what a future is. In each future an allocation runs as long as similar ones did (`run_times.py`), and new
allocations arrive as they did during the last day: at the same times of day, each one a copy of an earlier arrival. So
new allocations overtake waiting ones as the policy of the pool allows. A future draws its run times and its arrivals
from a resampling of the past (the bootstrap): a short past gives wider bounds than a long one.

Promises
- Without run limits the bounds are the first and the last start over `FUTURES` futures, with the first one moved
  earlier by `FIRST_PART`. If the real future is like them, at least `NOMINAL` of the starts are within;
  docs/scheduling-quality.md shows how many were.
- Equal questions have equal answers: each random number is a hash of the future's number and of the drawn value's name.

Not promised: bounds for allocations unlike all earlier ones, or while nodes are added and removed.

Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979; Vovk, Gammerman and Shafer, "Algorithmic
Learning in a Random World", 2005 (bounds from ranks among exchangeable draws).
"""

import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from slipway.model.facts import AllocationFact
from slipway.model.mig import GPU_UNITS
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.run_times import SAMPLES_MIN, PastRun, RunTimes
from slipway.scheduler.simulate.scenario_format import AllocationPart, Scenario

FUTURES = 11
NOMINAL = (FUTURES - 1) / (FUTURES + 1)
"""the expected part of starts between the first and the last start of all futures, if the futures are as likely as the
real one: then each position of the real start among them is equally likely"""
FIRST_PART = 1 / 3
"""The first bound is at this part of the time to the first start of all futures. Early starts are correlated: the end
of one large allocation decides for all waiting ones, and a few futures may miss it."""
HORIZON_S = 30 * 86_400.0
"""Starts later than this are not forecast."""
DAY_S = 86_400.0
SHORT, LONG = 0.1, 0.9
"""the quantiles of similar run times that are used for the two bounds with run limits"""
SPAN_MIN_S = 3_600.0
"""Arrivals over a shorter time do not show their rate, so they are repeated after at least this time."""
ARRIVALS_MAX = 200
"""The most arrivals in one future; after them no new allocation arrives. Each future is computed while a user waits."""

_ARRIVAL: Final = "arrival "
"""The prefix of the names of arrivals; no real allocation has a space in its name."""
T = TypeVar("T")
Bounds = tuple[float, float | None]
"""(first, last) time in seconds; None: later than `HORIZON_S`"""


class LiveWork(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation that runs or waits."""

    part: AllocationPart
    """where it runs, or when it arrives"""
    fact: AllocationFact
    """the fact before the simulation; its uid is the name of the part"""
    ran_s: float = 0.0
    saved_s: float = 0.0
    """the part of `ran_s` that earlier attempts have saved"""


class PastArrival(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier arrival, which may arrive again in a future."""

    part: AllocationPart
    fact: AllocationFact
    ran_s: float = 0.0
    has_ended: bool = False


class KnownPast(msgspec.Struct, frozen=True, kw_only=True):
    """The known past of a pool."""

    runs: Sequence[PastRun]
    since: float
    """the time from which all arrivals are known"""
    arrivals: Sequence[float]
    """times in order"""
    pieces: Sequence[PastArrival]

    @property
    def is_enough(self) -> bool:
        """Whether enough runs have ended for an estimate."""
        return sum(run.has_ended for run in self.runs) >= SAMPLES_MIN


class PresentState(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of a pool: all facts except those of allocations, and the allocations as `work`."""

    at: float
    given: scenario_facts.ScenarioFacts
    work: Sequence[LiveWork]


def likely_starts(now: PresentState, past: KnownPast, latest: Mapping[str, float | None]) -> dict[str, Bounds]:
    """Return {name: likely bounds} of the allocations in `latest`.

    `latest` has their starts if all allocations use their run limits, None when that is unknown. An allocation that
    does not start although all others end and no new one arrives has no bounds. There are no bounds at all when the
    past is too short.
    """
    if not past.is_enough:
        return {}
    times = RunTimes(past.runs)
    certain = {name: at for name, at in latest.items() if at is not None}
    return _by_run_limits(now, times, certain) | _by_futures(now, past, times, latest.keys() - certain.keys())


def _by_run_limits(now: PresentState, times: RunTimes, latest: Mapping[str, float]) -> dict[str, Bounds]:
    """Return the bounds by run limits: from one run with short run times, and one with long ones."""
    if not latest:
        return {}
    ends = [_starts(now, _work_of(now, times, lambda _, part=part: part), [], latest) for part in (SHORT, LONG)]
    found: dict[str, Bounds] = {}
    for name, at in latest.items():
        starts = [at if (start := each[name]) is None else min(start, at) for each in ends]
        found[name] = min(starts), max(starts)
    return found


def _by_futures(now: PresentState, past: KnownPast, times: RunTimes, names: Collection[str]) -> dict[str, Bounds]:
    alone = _starts(now, _work_of(now, times, partial(_chance, 0, "work")), [], names)
    awaited = sorted(name for name, start in alone.items() if start is not None)
    drawn = [_future(now, past, awaited, number) for number in range(FUTURES)] if awaited else []
    found: dict[str, Bounds] = {}
    for name in awaited:
        starts = sorted(math.inf if (start := each[name]) is None else start for each in drawn)
        if math.isfinite(starts[0]):
            first = now.at + (starts[0] - now.at) * FIRST_PART
            found[name] = first, starts[-1] if math.isfinite(starts[-1]) else None
    return found


def gpus_of(fact: AllocationFact) -> int:
    """Return the whole GPUs that an allocation requests."""
    return sum(role.count * requests_of(role).gpu_units() for role in fact.roles) // GPU_UNITS


def as_run(fact: AllocationFact, ran_s: float, *, has_ended: bool = False) -> PastRun:
    """Return the run of an allocation, so far or to its end."""
    return PastRun(
        queue=fact.queue,
        user=fact.user,
        gpus=gpus_of(fact),
        limit_s=fact.max_runtime,
        ran_s=ran_s,
        has_ended=has_ended,
    )


def _future(now: PresentState, past: KnownPast, awaited: Collection[str], number: int) -> Mapping[str, float | None]:
    """Return {name: start} of these allocations in one future."""
    times = RunTimes(_resampled(past.runs, number, "run"))
    arriving = list(itertools.islice(_arriving(now.at, past, times, number), ARRIVALS_MAX))
    return _starts(now, _work_of(now, times, partial(_chance, number, "work")), arriving, awaited)


def _starts(
    now: PresentState, work: Sequence[LiveWork], arriving: Sequence[LiveWork], awaited: Collection[str]
) -> dict[str, float | None]:
    every = [*work, *arriving]
    given = msgspec.structs.replace(now.given, allocations={each.part.name: each.fact for each in every})
    scenario = Scenario(nodes=[], allocations=[each.part for each in every], until=now.at + HORIZON_S)
    lives = simulate(scenario, given=given, start=now.at, awaited=awaited).world.lives
    return {name: lives[name].first_start for name in awaited}


def _work_of(now: PresentState, times: RunTimes, chance: Callable[[str], float]) -> list[LiveWork]:
    """Return the allocations of the pool, each with a run time drawn by `chance` of its name."""
    found: list[LiveWork] = []
    for work in now.work:
        whole_s = times.draw(as_run(work.fact, work.ran_s), chance(work.part.name))
        duration = None if whole_s is None else whole_s - work.saved_s
        found.append(msgspec.structs.replace(work, part=msgspec.structs.replace(work.part, duration=duration)))
    return found


def _arriving(now: float, past: KnownPast, times: RunTimes, number: int) -> Iterator[LiveWork]:
    """Return the arrivals after now, repeated day after day.
    Allocations at the very beginning of the past are no arrivals."""
    span_s = min(DAY_S, max(SPAN_MIN_S, now - past.since))
    recent = [at for at in past.arrivals if max(past.since, now - span_s) < at <= now]
    pieces = _resampled(past.pieces, number, "piece")
    if not recent or not pieces:
        return
    instants = (at + span_s * turn for turn in itertools.count(1) for at in recent)
    for count, at in enumerate(itertools.takewhile(lambda at: at <= now + HORIZON_S, instants)):
        piece = pieces[int(_chance(number, "arrival", count) * len(pieces))]
        ran_s: float | None = piece.ran_s
        if not piece.has_ended:
            ran_s = times.draw(as_run(piece.fact, piece.ran_s), _chance(number, "duration", count))
        name = f"{_ARRIVAL}{count}"
        yield LiveWork(
            part=msgspec.structs.replace(piece.part, name=name, submit=at, duration=ran_s, placed=[]),
            fact=msgspec.structs.replace(piece.fact, name=name, uid=name, created=at),
        )


def _resampled(values: Iterable[T], number: int, what: str) -> list[T]:
    """Return as many values, drawn with replacement."""
    every = list(values)
    return [every[int(_chance(number, what, place) * len(every))] for place in range(len(every))]


def _chance(number: int, what: str, which: str | int) -> float:
    """Return a number from 0 to 1, without 1, which depends only on the arguments."""
    drawn = hashlib.blake2b(f"{number}/{what}/{which}".encode(), digest_size=6).digest()
    return int.from_bytes(drawn, "big") / (1 << 48)
