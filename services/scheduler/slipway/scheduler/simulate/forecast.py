"""Forecasts when waiting allocations will start: bounds that hold, and likely bounds. Pure.

Bounds that hold: the latest start is found by a run of the planner from the present state: every running allocation
uses its whole run limit, an allocation without a limit never ends, and no new allocation arrives. So the latest start
is unknown for an allocation that waits for one without a limit. The earliest start is now, or when its backoff is over,
because running allocations may end at any time. Both are times that change only with events.

How long an allocation runs is estimated from the run times of similar ones (same queue, user and size; with too few of
them, larger groups). With a run limit, the used part of the limit is what repeats; without one, the run time itself. An
allocation that still runs is known to need at least its time so far. If running allocations were left out, long run
times would seem rarer than they are, so the Kaplan-Meier estimate is used.

Source: Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations", 1958; Efron, "The Two Sample Problem
with Censored Data", 1967 (the weight of a running allocation is distributed to all longer run times).

Likely bounds exist without run limits too, and take new arrivals into account. They come from runs of the planner
through possible futures. If all allocations ahead have a run limit, the bounds are those of two runs: one in which
every run time is at the 10th percentile of similar allocations, and one in which it is at the 90th. More real starts
were within these bounds than within those of futures.

In each future an allocation runs as long as similar ones did, and new allocations arrive as they did during the last
day: at the same times of day, each one a copy of an earlier arrival. So new allocations overtake waiting ones as the
policy of the pool allows. A future draws its run times and its arrivals from a resampling of the past (the bootstrap):
a short past gives wider bounds than a long one.

Promises
- Without run limits the bounds are the first and the last start over `FUTURES` futures, with the first one moved
  earlier by `FIRST_PART`. If the real future is like them, at least `NOMINAL` of the starts are within;
  docs/scheduling-quality.md shows how many were.
- Equal questions have equal answers: each random number is a hash of the future's number and of the drawn value's name.

Not promised: bounds for allocations unlike all earlier ones, or while nodes are added and removed.

Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979; Vovk, Gammerman and Shafer, "Algorithmic
Learning in a Random World", 2005 (bounds from ranks among exchangeable draws).
"""

import bisect
import hashlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.mig import GPU_UNITS
from slipway.scheduler.plan.state.rank_request import requests_of
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.scenario_format import AllocationPart, PlacedPart, Scenario
from slipway.scheduler.simulate.world import AllocationHistory

SAMPLES_MIN = 10
"""With fewer similar runs, a larger group is used; with fewer runs in all, nothing is known."""


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run of one allocation."""

    queue: str
    user: str
    gpus: int = 0
    """whole GPUs that it held"""
    ran_s: float
    limit_s: float | None = None
    has_ended: bool = True
    """False while it still runs"""


class RunTimes:
    """The distributions of run times, by groups of similar allocations."""

    def __init__(self, runs: Iterable[PastRun]) -> None:
        found: dict[tuple[bool, tuple[str, ...]], list[tuple[float, bool]]] = {}
        for run in runs:
            for group in _groups(run.queue, run.user, run.gpus):
                found.setdefault((False, group), []).append((run.ran_s, run.has_ended))
                if run.limit_s:
                    found.setdefault((True, group), []).append((run.ran_s / run.limit_s, run.has_ended))
        self._known = {group: _LengthDistribution(values) for group, values in found.items()}

    def draw(self, like: PastRun, chance: float) -> float | None:
        """Return the run time at quantile `chance` (0 to 1, without 1) of similar runs that were longer than
        `like.ran_s`.

        None when too few similar runs have ended. If no run was so long, the result is longer than `ran_s` by a factor
        by which the longest runs differ from one another.
        """
        unit_s = like.limit_s or 1.0
        ran = like.ran_s / unit_s
        groups = _groups(like.queue, like.user, like.gpus)
        known = [self._known[key] for group in groups if (key := (bool(like.limit_s), group)) in self._known]
        chosen = next((each for each in known if each.longer_count(ran) >= SAMPLES_MIN), known[-1] if known else None)
        return None if chosen is None or chosen.count < SAMPLES_MIN else chosen.draw(ran, chance) * unit_s


class _LengthDistribution:
    """The lengths of a group of runs, each with its weight."""

    def __init__(self, lengths: Iterable[tuple[float, bool]]) -> None:
        """`lengths`: (length, whether the run has ended)."""
        # At the same length, ended runs are first, because running ones will be longer.
        ordered = sorted(lengths, key=lambda each: (each[0], not each[1]))
        self._ended = [length for length, has_ended in ordered if has_ended]
        self._longest = ordered[-1][0]
        weights: list[float] = []
        weight = 1.0
        for left, (_, has_ended) in zip(range(len(ordered) - 1, -1, -1), ordered, strict=True):
            if has_ended:
                weights.append(weight)
            elif left:
                weight += weight / left
        self._sums = list(itertools.accumulate(weights, initial=0.0))
        self._beyond = 0.0 if ordered[-1][1] else weight
        """the weight of lengths beyond the longest one that was seen"""

    @property
    def count(self) -> int:
        """The number of ended runs."""
        return len(self._ended)

    def longer_count(self, ran: float) -> int:
        """Return how many ended runs were longer than `ran`."""
        return len(self._ended) - bisect.bisect_right(self._ended, ran)

    def draw(self, ran: float, chance: float) -> float:
        """Return the length at quantile `chance` of all lengths longer than `ran`."""
        begin = self._sums[bisect.bisect_right(self._ended, ran)]
        inside = self._sums[-1] - begin
        at = chance * (inside + self._beyond)
        if at < inside:
            return self._ended[min(bisect.bisect_right(self._sums, begin + at), len(self._ended)) - 1]
        rest = (at - inside) / self._beyond if self._beyond else chance
        return max(ran, self._longest) * _growth(self._ended, rest)


def _growth(ended: Sequence[float], chance: float) -> float:
    """Return a growth factor: the ratio of one of the longest runs to the run below them (peaks over a threshold)."""
    longest = ended[-SAMPLES_MIN:]
    below = ended[-SAMPLES_MIN - 1] if len(ended) > SAMPLES_MIN else longest[0]
    return longest[int(chance * len(longest))] / below if below > 0 else 1.0


def _groups(queue: str, user: str, gpus: int) -> tuple[tuple[str, ...], ...]:
    """Return the groups of a run, from the most similar one to all runs.

    Sizes are grouped by a factor of four: up to 1 GPU, to 7, to 31, to 127 ...
    """
    size = str(gpus.bit_length() // 2)
    return ((queue, user, size), (queue, "", size), (queue, user), (queue,), ())


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


LIVES_MAX = 500
NODES_MAX = 2_000
"""With more allocations or more nodes there is no forecast, because it would cost too much."""


class StartEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a start, as times of the virtual or real clock (seconds); None: unknown."""

    earliest: float | None
    latest: float | None
    likely: Bounds | None = None
    """the likely bounds by past run times and arrivals; None: too few allocations have ended"""

    def as_data(self) -> dict[str, Any]:
        """Return the bounds for JSON."""
        bounds: dict[str, Any] = {"earliest": self.earliest, "latest": self.latest}
        if self.likely is not None:
            bounds["likely"] = {"earliest": self.likely[0], "latest": self.likely[1]}
        return bounds


def forecast(scenario: Scenario, outcome: SimulationOutcome) -> dict[str, StartEstimate]:
    """Return {name: forecast} of the allocations that wait at the end of a run; empty when there are too many."""
    lives = [life for life in outcome.world.lives.values() if life.is_submitted and life.phase is not Phase.TERMINATED]
    waiting = [life for life in lives if life.phase is Phase.PENDING]
    if not waiting or len(lives) > LIVES_MAX or len(outcome.world.nodes) > NODES_MAX:
        return {}
    now = outcome.end
    given = msgspec.structs.replace(scenario_facts.facts_of(scenario), past=outcome.world.past.going_on(now, {}))
    work = [_work(life, now) for life in lives]
    by_limits = msgspec.structs.replace(scenario, allocations=[each.part for each in work], until=now + HORIZON_S)
    facts = msgspec.structs.replace(given, allocations={each.part.name: each.fact for each in work})
    names = [life.part.name for life in waiting]
    later = simulate(by_limits, given=facts, start=now, awaited=names).world.lives
    latest = {name: later[name].first_start for name in names}
    likely = likely_starts(PresentState(at=now, given=given, work=work), past(scenario, outcome), latest)
    found: dict[str, StartEstimate] = {}
    for life in waiting:
        why = outcome.explanations.get(life.fact.key)
        last = latest[life.part.name]
        is_unknown = life.fact.hold or bool(life.fact.waits_for)
        is_never = why is not None and (why.is_never or is_unknown) and last is None
        earliest = None if is_never else max(now, life.fact.not_before)
        found[life.part.name] = StartEstimate(earliest=earliest, latest=last, likely=likely.get(life.part.name))
    return found


def past(scenario: Scenario, outcome: SimulationOutcome) -> KnownPast:
    """Return the run times and arrivals in a simulation run."""
    now = outcome.end
    lives = [life for life in outcome.world.lives.values() if life.is_submitted]
    fresh = scenario_facts.facts_of(scenario).allocations
    arrivals = sorted(life.part.submit for life in lives)
    return KnownPast(
        runs=[
            as_run(life.fact, _ran_s(life, now), has_ended=life.end is not None)
            for life in lives
            if life.start is not None
        ],
        since=arrivals[0] if arrivals else now,
        arrivals=arrivals,
        pieces=[
            PastArrival(
                part=msgspec.structs.replace(life.part, after=[]),
                fact=msgspec.structs.replace(fresh[life.part.name], waits_for=(), hold=False),
                ran_s=_ran_s(life, now),
                has_ended=life.end is not None,
            )
            for life in lives
        ],
    )


def _ran_s(life: AllocationHistory, now: float) -> float:
    """Return for how long it has run, with its saved work, in seconds."""
    return life.saved + (0.0 if life.start is None else (now if life.end is None else life.end) - life.start)


def _work(life: AllocationHistory, now: float) -> LiveWork:
    fact = msgspec.structs.replace(life.fact, phase=Phase.PENDING, placements={}, devices={}, not_before=0.0)
    return LiveWork(part=_part(life, now), fact=fact, ran_s=_ran_s(life, now), saved_s=life.saved)


def _part(life: AllocationHistory, now: float) -> AllocationPart:
    """Return the allocation's part for a run from `now`: placed where it runs, or waiting."""
    placed = [
        PlacedPart(rank=place.rank, node=place.node, since=place.start, device=list(place.device) or None)
        for place in life.places
        if place.end is None
    ]
    is_running = life.phase is Phase.RUNNING
    return msgspec.structs.replace(
        life.part, submit=max(now, life.fact.not_before), duration=None, placed=placed if is_running else []
    )
