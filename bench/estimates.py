"""Compares estimated starts with real ones: `python -m bench.estimates [--seeds N]`.

The work of `bench.quality` is simulated to its end, and also stopped at some earlier moments. At each of these moments
the waiting work gets its estimate, from the work that has run and arrived so far. A figure is the percentage of the
estimates whose bounds contain the real start: the likely bounds, and the bounds that follow from run limits. The seeds
measured here were not used to tune the estimates. The definition of similar work, the number of futures and their
bounds were chosen with seeds 1 to 20.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.quality import LOAD, SEEDS, TEAMS, Json, Piece, one_queue_scenario, scenario, work
from bench.runner import Row, Target, machine_line, row, table, write
from slipway.scheduler.simulate.forecast import StartEstimate, forecast
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import whole

FIRST_SEED = 21
MOMENTS = (0.35, 0.7)
"""the moments of the estimates, as fractions of the time from the first to the last arrival"""
WITHIN = Target(must=80.0, better="higher")
_EXACT_S = 1e-6


class EstimateAndStart(msgspec.Struct, frozen=True, kw_only=True):
    """One estimate, and the real start of the work."""

    estimate: StartEstimate
    start: float

    @property
    def is_within(self) -> bool:
        """Whether the real start is within the likely bounds."""
        return self.estimate.likely is not None and _is_between(self.start, *self.estimate.likely)

    @property
    def is_possible(self) -> bool:
        """Whether the real start is within the bounds that follow from run limits."""
        return _is_between(self.start, self.estimate.earliest, self.estimate.latest)

    @property
    def width_s(self) -> float:
        """The distance between the likely bounds, in seconds."""
        first, last = self.estimate.likely or (None, None)
        return math.inf if first is None or last is None else last - first


def _is_between(at: float, first: float | None, last: float | None) -> bool:
    return (first is None or first - _EXACT_S <= at) and (last is None or at <= last + _EXACT_S)


def without_limits(document: Json) -> Json:
    """Return the same work without run limits."""
    kept: list[dict[str, Any]] = [
        {name: value for name, value in item.items() if name != "maxRuntime"} for item in document["allocations"]
    ]
    return {**document, "allocations": kept}


def asked(document: Json) -> list[EstimateAndStart]:
    """Return all estimates of a scenario that have likely bounds."""
    starts = {name: life.first_start for name, life in simulate(whole(document)).world.lives.items()}
    span_s = max(float(item["submit"]) for item in document["allocations"])
    found: list[EstimateAndStart] = []
    for part in MOMENTS:
        at = part * span_s
        stopped = whole({**document, "until": at})
        for name, estimate in forecast(stopped, simulate(stopped)).items():
            start = starts[name]
            if start is not None and estimate.likely is not None:
                found.append(EstimateAndStart(estimate=estimate, start=start))
    return found


def percent(answers: Sequence[bool]) -> float:
    """Return the percentage of true answers."""
    return 100.0 * sum(answers) / len(answers) if answers else 100.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Some work, and the policy under which it runs."""

    what: str
    document: Callable[[list[Piece]], Json]
    load: float = LOAD

    def of(self, seed: int) -> Json:
        """Return the scenario of a seed."""
        return self.document(work(seed, self.load))


def _free(pieces: list[Piece]) -> Json:
    return without_limits(one_queue_scenario("BestEffortFIFO", pieces))


def _teams(pieces: list[Piece]) -> Json:
    """Return a scenario with one queue per team, in which past use of queues and users matters."""
    queues = [{"name": f"team-{number}", "userOrder": "LeastUsed"} for number in range(TEAMS)]
    return without_limits(scenario(pieces, pool={"fairShare": {"halfLife": "1d"}}, queues=queues, is_by_team=True))


CASES = {
    "limits": Case(what="with run limits, `Backfill`", document=lambda pieces: one_queue_scenario("Backfill", pieces)),
    "none": Case(what="without run limits, `BestEffortFIFO`", document=_free),
    "low": Case(what="the same, load 0.8", document=_free, load=0.8),
    "high": Case(what="the same, load 1.0", document=_free, load=1.0),
    "teams": Case(what="without run limits, team queues, past use", document=_teams),
}
"""{name: the case to measure}"""


def rows(name: str, seeds: int) -> list[Row]:
    """Return the figures of one case, over the estimates of all seeds."""
    case = CASES[name]
    answers: list[list[EstimateAndStart]] = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        start_s = time.process_time()
        answers.append(asked(case.of(seed)))
        spent_s = time.process_time() - start_s
        print(f"{name}, seed {seed}: {len(answers[-1])} estimates, {spent_s:.1f} s of CPU", file=sys.stderr, flush=True)
    every = [each for of_seed in answers for each in of_seed]
    by_seed = ", ".join(f"{percent([each.is_within for each in of_seed]):.0f}" for of_seed in answers if of_seed)
    within, possible = percent([each.is_within for each in every]), percent([each.is_possible for each in every])
    width_h = statistics.median(each.width_s for each in every) / 3600
    note = f"{len(every)} estimates of {seeds} seeds; by seed: {by_seed}"
    what = case.what
    return [
        row(f"ESTIMATE-{name}-within", f"{what}: starts in the likely bounds", [within], "%", target=WITHIN, note=note),
        row(f"ESTIMATE-{name}-possible", f"{what}: starts in the bounds by run limits", [possible], "%"),
        row(f"ESTIMATE-{name}-width", f"{what}: the likely bounds are apart, median", [width_h], "h"),
    ]


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.estimates", description=__doc__)
    parser.add_argument("--only", default=",".join(CASES), help="cases, with commas (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs, each with its own work (default {SEEDS})")
    options = parser.parse_args()
    names = [name for name in str(options.only).split(",") if name]
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    found: list[Row] = []
    for name in names:
        measured = rows(name, options.seeds)
        write("estimates", measured, command=f"python -m bench.estimates --only {name}")
        found += measured
    print(table(found))
    print(machine_line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
