"""The work of the planner in a tick as counts: calls of functions, and the peak of its memory.

The state has 2,000 nodes whose GPUs are all in use, 4,000 running and 10,000 queued allocations of 20 shapes. Calls are
those of Python and C functions (`sys.setprofile`); they depend on the work, not on the machine. The same code gives the
same counts with the same version of Python. Must not read a clock.
"""

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import msgspec

from bench import planner_backfill
from bench.planner import nodes, snapshot
from bench.planner_scale import blocked, ends, full_state, runs, shaped, ticked
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan

NODES, RUNNING, QUEUED = 2_000, 4_000, 10_000
VALGRIND_S = 600.0
PLACED = 1_000

Work = Callable[[], None]


class Small:
    """The state for the counts; its changes are those of the timed benchmark."""

    def __init__(self) -> None:
        self.columns = full_state(NODES, RUNNING, QUEUED)
        self.next = RUNNING + QUEUED
        ticked(self.columns)

    def once_idle(self) -> None:
        """Run a tick without a change."""
        ticked(self.columns)

    def once_arrived(self) -> None:
        """Run a tick after the arrival of an allocation that does not fit."""
        self.columns.set_allocation(blocked(self.next))
        self.next += 1
        ticked(self.columns)

    def once_departed(self) -> None:
        """Run the ticks after an arrival that starts and after its end: all shapes are retried."""
        runs(self.columns, self.next)
        ends(self.columns, self.next)
        self.next += 1


def placing() -> Work:
    """Return a plan that places 1,000 single ranks of 20 shapes on empty nodes."""
    made = snapshot(nodes(NODES, cpu=64, gpus=8), [shaped(number) for number in range(PLACED)])
    policy = msgspec.structs.replace(policy_of(made.pool), decisions_max=PLACED)

    def once() -> None:
        decided = plan(made, policy, 0.0, 0)
        if len(decided.admits) != PLACED:
            raise SystemExit(f"{len(decided.admits)} of {PLACED} admitted")

    return once


def ordered(ordering: str) -> Work:
    """Return a tick that admits 200 allocations past large gangs that do not fit, in queues of this ordering."""
    columns = planner_backfill.state(1_000, 4_000, ordering)

    def once() -> None:
        planner_backfill.ticked(columns)

    return once


WORKS: dict[str, Callable[[], Work]] = {
    "idle tick": lambda: Small().once_idle,
    "tick after an arrival": lambda: Small().once_arrived,
    "tick after an end": lambda: Small().once_departed,
    "plan of 1,000": placing,
    "tick of BestEffort queues": lambda: ordered(planner_backfill.BEST_EFFORT),
    "tick of Backfill queues": lambda: ordered(planner_backfill.BACKFILL),
}
"""{name of the work: function that prepares its state and returns it}"""
TIMES = {"idle tick": 50, "plan of 1,000": 2}
"""{name of the work: number of repetitions for the count of its instructions}"""


def calls_of(work: Callable[[], None]) -> int:
    """Return the calls of the second run: the first run fills the caches."""
    work()
    count = 0

    def seen(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def peak_bytes(work: Callable[[], None]) -> int:
    """Return the peak memory of the third run, without the memory before it."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def measure() -> dict[str, float]:
    """Return {name of a count: count}."""
    found: dict[str, float] = {}
    for name, prepare in WORKS.items():
        work = prepare()
        found[f"planner, {name}: calls"] = calls_of(work)
        found[f"planner, {name}: KiB at most"] = round(peak_bytes(work) / 1024, 1)
    return found


def instructions() -> dict[str, float]:
    """Return {name of a count: millions of instructions} of one run, under valgrind's callgrind."""
    places = [(name, count) for name, times in TIMES.items() for count in (1, 1 + times)]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        collected = dict(zip(places, workers.map(_collected, places), strict=True))
    return {
        f"planner, {name}: million instructions": round(
            (collected[name, 1 + times] - collected[name, 1]) / times / 1e6, 2
        )
        for name, times in TIMES.items()
    }


def _collected(place: tuple[str, int]) -> int:
    """Return the instructions of a process that prepares the work and repeats it."""
    name, times = place
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable]
    done = subprocess.run(
        [*command, "-m", "bench.budget.ticks", name, str(times)],
        capture_output=True,
        text=True,
        check=True,
        timeout=VALGRIND_S,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    line = next(each for each in done.stderr.splitlines() if "Collected :" in each)
    return int(line.rsplit(maxsplit=1)[1])


def main() -> None:
    """`python -m bench.budget.ticks [WORK TIMES]`: print the counts as JSON, or only do the work, for valgrind."""
    match sys.argv[1:]:
        case [name, times]:
            work = WORKS[name]()
            for _ in range(int(times)):
                work()
        case _:
            json.dump(measure(), sys.stdout)


if __name__ == "__main__":
    main()
