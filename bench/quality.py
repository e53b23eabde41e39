"""The quality of schedules: `python -m bench.quality [--only POLICY,...] [--seeds N]`.

It compares the figures of `slipway simulate` for the same work under several policies.

The work is synthetic and heavy-tailed, and differs for each seed. Sizes and run times follow Lublin and Feitelson ("The
workload on parallel supercomputers", JPDC 2003), users follow Zipf. Arrivals have a daily cycle, and run limits are
those that users choose. All policies get the same work for a seed. All policies except `conservative` are policies of
the product, run by the planner over a scenario. The product has no conservative backfill, so `conservative.py`
implements it.
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bench.conservative import conservative
from bench.runner import Row, machine_line, percentile, row, table, write
from slipway.scheduler.simulate.answer import SLOWDOWN_BOUND_S, jain, metrics
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import whole

NODES, GPUS = 16, 8
WORK = 350
"""allocations per seed"""
LOAD = 0.9
"""requested GPU time, divided by the available GPU time from the first to the last arrival"""
USERS, TEAMS = 24, 4
ZIPF = 1.2
SEEDS, FIRST_SEED = 10, 1
DAY_S = 86_400.0
DAY_SWING = 0.6
"""the rate of arrivals at noon is (1 + this) / (1 - this) times the rate at midnight"""
RUN_LOG_MAX = 12.0
"""natural logarithm of the longest run time: 45 hours"""
RUN_MIN_S = 30.0
SINGLE, POWER_OF_TWO = 0.24, 0.75
"""fraction of the work that requests one GPU; fraction of the rest that requests a power of two"""
LOG_SIZE = (0.8, 4.5, 6.0, 0.86)
"""log2 of the GPUs: lowest, bend, highest; then the fraction below the bend"""
GAMMAS = ((4.2, 0.94), (312.0, 0.03))
"""shape and scale of the two gamma distributions of the logarithm of the run time"""
SHORT = (-0.0054, 0.78)
"""weight of the first gamma distribution: its slope over the size, and its value for size 0"""
LIMITS_S = tuple(minutes * 60.0 for minutes in (10, 30, 60, 120, 240, 480, 720, 1440, 2880))
"""run limits that users choose"""
CHECKPOINT_S = 900.0

Json = dict[str, Any]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work: `ranks` ranks with `gpus` GPUs each."""

    name: str
    user: int
    submit: float
    duration: float
    limit: float
    ranks: int
    gpus: int


def work(seed: int, load: float = LOAD) -> list[Piece]:
    """Return the work of a seed, in the order of arrival."""
    chance = random.Random(seed)
    drawn = [(size := _size(chance), _run_s(chance, size)) for _ in range(WORK)]
    span_s = sum(size * run_s for size, run_s in drawn) / (NODES * GPUS * load)
    arrivals = sorted(_arrival(chance, span_s) for _ in drawn)
    weights = [1 / (rank + 1) ** ZIPF for rank in range(USERS)]
    pieces: list[Piece] = []
    for number, ((size, run_s), at) in enumerate(zip(drawn, arrivals, strict=True)):
        wished = run_s * chance.uniform(1.0, 5.0)
        pieces.append(
            Piece(
                name=f"w{number:04d}",
                user=chance.choices(range(USERS), weights)[0],
                submit=at - arrivals[0],
                duration=run_s,
                limit=next((limit for limit in LIMITS_S if limit >= wished), LIMITS_S[-1]),
                ranks=max(1, size // GPUS),
                gpus=min(size, GPUS),
            )
        )
    return pieces


def _size(chance: random.Random) -> int:
    """Draw a number of GPUs: a part of a node, or whole nodes."""
    if chance.random() < SINGLE:
        return 1
    low, bend, high, below = LOG_SIZE
    log = chance.uniform(low, bend) if chance.random() < below else chance.uniform(bend, high)
    size = 2 ** round(log) if chance.random() < POWER_OF_TWO else round(2**log)
    return size if size <= GPUS else math.ceil(size / GPUS) * GPUS


def _run_s(chance: random.Random, size: int) -> float:
    """Draw from a hyper-gamma distribution of short and long work; larger work is more often long."""
    first = min(1.0, max(0.0, SHORT[0] * size + SHORT[1]))
    shape, scale = GAMMAS[0] if chance.random() < first else GAMMAS[1]
    return max(RUN_MIN_S, math.exp(min(RUN_LOG_MAX, chance.gammavariate(shape, scale))))


def _arrival(chance: random.Random, span_s: float) -> float:
    """Draw a moment of the span; days are busier than nights."""
    while True:
        at = chance.uniform(0.0, span_s)
        if chance.random() * (1 + DAY_SWING) < 1 - DAY_SWING * math.cos(2 * math.pi * at / DAY_S):
            return at


def scenario(pieces: list[Piece], *, pool: Json, queues: list[Json], is_by_team: bool) -> Json:
    """Return the work as a scenario of the product."""
    return {
        "nodes": [{"name": "n", "count": NODES, "cpu": 64, "memory": "512Gi", "gpus": GPUS}],
        "pool": pool,
        "queues": queues,
        "allocations": [
            {
                "name": piece.name,
                "queue": f"team-{piece.user % TEAMS}" if is_by_team else "all",
                "user": f"u{piece.user:02d}",
                "submit": piece.submit,
                "duration": piece.duration,
                "maxRuntime": piece.limit,
                "preemptible": True,
                "checkpointEvery": CHECKPOINT_S,
                "ranks": [{"count": piece.ranks, "cpu": 1, "gpus": piece.gpus}],
            }
            for piece in pieces
        ],
    }


def one_queue_scenario(ordering: str, pieces: list[Piece]) -> Json:
    """Return a scenario with all work in one queue."""
    return scenario(pieces, pool={}, queues=[{"name": "all", "ordering": ordering}], is_by_team=False)


def one_queue(ordering: str) -> "Play":
    """Return a function that simulates all work in one queue."""
    return lambda pieces: played(one_queue_scenario(ordering, pieces))


def teams(**queue: Any) -> "Play":
    """Return a function that simulates a queue per team, in which past use of queues and users matters."""
    queues = [{"name": f"team-{number}", "userOrder": "LeastUsed", **queue} for number in range(TEAMS)]
    return lambda pieces: played(
        scenario(pieces, pool={"fairShare": {"halfLife": "1d"}}, queues=queues, is_by_team=True)
    )


def played(document: Json) -> Json:
    """Return the figures of a scenario."""
    return metrics(simulate(whole(document)))


def conservative_figures(pieces: list[Piece]) -> Json:
    """Return the same figures for a schedule with conservative backfill."""
    starts = conservative(pieces, NODES, GPUS)
    waits = sorted(starts[piece.name] - piece.submit for piece in pieces)
    slow = {
        piece.name: max(
            1.0, (starts[piece.name] + piece.duration - piece.submit) / max(piece.duration, SLOWDOWN_BOUND_S)
        )
        for piece in pieces
    }
    by_user: dict[int, list[float]] = {}
    for piece in pieces:
        by_user.setdefault(piece.user, []).append(1 / slow[piece.name])
    end = max(starts[piece.name] + piece.duration for piece in pieces)
    used = sum(piece.duration * piece.ranks * piece.gpus for piece in pieces)
    return {
        "waitMean": statistics.mean(waits),
        "waitP95": percentile(waits, 95),
        "waitP99": percentile(waits, 99),
        "slowdownMean": statistics.mean(slow.values()),
        "slowdownP95": percentile(list(slow.values()), 95),
        "fairnessUsers": jain([statistics.mean(values) for values in by_user.values()]),
        "utilisation": used / (NODES * GPUS * end),
        "gpuHoursLost": 0.0,
    }


Play = Callable[[list[Piece]], Json]
RECLAIM = {"preemption": {"reclaim": "Any"}, "minRuntime": "30m"}
POLICIES: dict[str, tuple[str, Play]] = {
    "fifo": ("one queue, `StrictFIFO`", one_queue("StrictFIFO")),
    "first-fit": ("one queue, `BestEffortFIFO`: the default", one_queue("BestEffortFIFO")),
    "conservative": ("conservative backfill, by `bench/conservative.py`", conservative_figures),
    "easy": ("one queue, `Backfill`: EASY backfill", one_queue("Backfill")),
    "fair-share": ("team queues, past use, `BestEffortFIFO`", teams()),
    "fair-backfill": ("team queues, past use, `Backfill`", teams(ordering="Backfill")),
    "reclaim": ("the same with `reclaim: Any`, `minRuntime: 30m`", teams(ordering="Backfill", **RECLAIM)),
}
"""{name: (description, function from work to its figures)}"""
FIGURES = {
    "waitMean": ("mean wait", "s"),
    "waitP95": ("95 % of waits are below", "s"),
    "waitP99": ("99 % of waits are below", "s"),
    "slowdownMean": ("mean bounded slowdown", "times"),
    "slowdownP95": ("95 % of bounded slowdowns are below", "times"),
    "fairnessUsers": ("fairness between users (Jain)", ""),
    "utilisation": ("utilisation", ""),
    "gpuHoursLost": ("GPU-hours lost to evictions", "h"),
}
"""{figure of `slipway simulate`: (description, unit)}"""


def rows(policy: str, seeds: int) -> list[Row]:
    """Return the figures of one policy, with one sample per seed."""
    what, play = POLICIES[policy]
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        start_s = time.process_time()
        figures = play(work(seed))
        for name, values in found.items():
            values.append(figures[name])
        print(f"{policy}, seed {seed}: {time.process_time() - start_s:.1f} s of CPU", file=sys.stderr, flush=True)
    return [
        row(f"QUALITY-{policy}-{name}", f"{FIGURES[name][0]}: {what}", values, FIGURES[name][1])
        for name, values in found.items()
    ]


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__)
    parser.add_argument("--only", default=",".join(POLICIES), help="policies, with commas (default: all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs, each with its own work (default {SEEDS})")
    options = parser.parse_args()
    names = [name for name in str(options.only).split(",") if name]
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        parser.error(f"no such policy: {', '.join(unknown)}; there are {', '.join(POLICIES)}")
    found: list[Row] = []
    for name in names:
        measured = rows(name, options.seeds)
        write("quality", measured, command=f"python -m bench.quality --only {name}")
        found += measured
    print(table(found))
    print(machine_line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
