"""What the planner does in a tick, counted: calls of Python functions, and the memory that it takes at most.

2,000 nodes whose GPUs are all in use, 4,000 running, 10,000 queued of 20 shapes. Calls are those that Python makes and
that it makes of C (`sys.setprofile`); they follow the work, not the machine. Equal code of one Python version counts
equal. Must not read a clock.
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
    """The state that is counted on; what happens to it is what the timed benchmark has happen."""

    def __init__(self) -> None:
        self.columns = full_state(NODES, RUNNING, QUEUED)
        self.next = RUNNING + QUEUED
        ticked(self.columns)

    def once_idle(self) -> None:
        """A tick in which nothing has changed."""
        ticked(self.columns)

    def once_arrived(self) -> None:
        """A tick after one arrival for which there is no place."""
        self.columns.set_allocation(blocked(self.next))
        self.next += 1
        ticked(self.columns)

    def once_departed(self) -> None:
        """An arrival that runs, and the tick after its end: all shapes are tried again."""
        runs(self.columns, self.next)
        ends(self.columns, self.next)
        self.next += 1


def placing() -> Work:
    """A plan that places 1,000 single ranks of 20 shapes on empty nodes."""
    made = snapshot(nodes(NODES, cpu=64, gpus=8), [shaped(number) for number in range(PLACED)])
    policy = msgspec.structs.replace(policy_of(made.pool), decisions_max=PLACED)

    def once() -> None:
        decided = plan(made, policy, 0.0, 0)
        if len(decided.admits) != PLACED:
            raise SystemExit(f"{len(decided.admits)} of {PLACED} admitted")

    return once


def ordered(ordering: str) -> Work:
    """A tick that admits 200 past large gangs for which there is no room, in queues of this ordering."""
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
"""{what a tick is for: gives the tick, once its state is there}"""
TIMES = {"idle tick": 50, "plan of 1,000": 2}
"""How often what is counted in instructions is done."""


def calls_of(work: Callable[[], None]) -> int:
    """Calls that the second go makes: the first fills what is kept."""
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
    """Memory that the third go takes at most, beyond what there was."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def measure() -> dict[str, float]:
    """{what is counted: how much of it}."""
    found: dict[str, float] = {}
    for name, prepare in WORKS.items():
        work = prepare()
        found[f"planner, {name}: calls"] = calls_of(work)
        found[f"planner, {name}: KiB at most"] = round(peak_bytes(work) / 1024, 1)
    return found


def instructions() -> dict[str, float]:
    """{what is counted: millions of instructions} of one go, under valgrind's callgrind."""
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
    """Instructions of a process that prepares the work and does it so often."""
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
    """`python -m bench.budget.ticks [WORK TIMES]`: the counts as JSON, or only the work, for a counter outside."""
    match sys.argv[1:]:
        case [name, times]:
            work = WORKS[name]()
            for _ in range(int(times)):
                work()
        case _:
            json.dump(measure(), sys.stdout)


if __name__ == "__main__":
    main()
