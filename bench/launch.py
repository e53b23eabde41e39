"""P9 and P10 on the idle local cluster: one rank, one launch at a time, from the POST to the last bind.

The figures are those of a client that watches pods and allocations. Each launch starts when the one before has ended
and its pod is gone, so no launch waits for another.
"""

import asyncio
import statistics

from bench.bench_stack import BenchStack, Marks, a_bench_stack, launch_body
from bench.runner import Row, Target, percentile, row

WARM_UP = 5
LAUNCHES = 12
GANG = 8
PAUSE_S = 0.1
STEPS = ("answered", "created", "Assigned", "pod", "release", "bound")


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    async with a_bench_stack() as bench_stack:
        for _ in range(WARM_UP):
            await one(bench_stack, 1)
        singles = [[await one(bench_stack, 1) for _ in range(LAUNCHES)] for _ in range(runs)]
        gangs = [[await one(bench_stack, GANG)] for _ in range(runs)]
    posts = [[each["answered"] for each in run] for run in singles]
    bounds = [[each["bound"] for each in run] for run in singles]
    return [
        row("P9-p50", "POST to bound, 1 rank, p50", _medians(bounds), "ms", target=Target(must=60, moonshot=25)),
        row("P9-p99", "POST to bound, 1 rank, p99", [_p99(bounds)], "ms", target=Target(must=200, moonshot=80)),
        row("P9-gang8-p50", "POST to all 8 ranks bound, p50", _medians([[e["bound"] for e in g] for g in gangs]), "ms"),
        row("P10-post-p50", "POST answered, idle, p50", _medians(posts), "ms", target=Target(must=15)),
        row("P10-post-p99", "POST answered, idle, p99", [_p99(posts)], "ms", target=Target(must=100, moonshot=30)),
        *(
            row(f"P9-at-{step}", f"of that: until {step}", _medians([[e[step] for e in run] for run in singles]), "ms")
            for step in STEPS[1:-1]
        ),
    ]


async def one(bench_stack: BenchStack, ranks: int) -> dict[str, float]:
    """Make one launch alone; return {step: milliseconds since the POST was sent}."""
    allocation, sent, answered = await bench_stack.post(launch_body(ranks))
    marks = bench_stack.watching.of(allocation)
    await marks.until(lambda: len(marks.bound) >= ranks, "all ranks bound")
    times = _since(marks, sent, ranks) | {"answered": (answered - sent) * 1_000}
    await marks.until(lambda: "Terminated" in marks.at and len(marks.gone) >= ranks, "the end of its pods")
    await asyncio.sleep(PAUSE_S)
    return times


def _since(marks: Marks, sent: float, ranks: int) -> dict[str, float]:
    at = marks.at | {"bound": marks.at[f"bound:{ranks}"]}
    # A release that the watch shows after the binding was nevertheless committed before it.
    return {step: (at.get(step, at["bound"]) - sent) * 1_000 for step in STEPS if step != "answered"}


def _medians(runs: list[list[float]]) -> list[float]:
    return [statistics.median(run) for run in runs]


def _p99(runs: list[list[float]]) -> float:
    return percentile([figure for run in runs for figure in run], 99)
