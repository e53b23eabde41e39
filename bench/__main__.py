"""`python -m bench [--only NAME[,NAME]] [--all]`: runs benchmarks, writes bench/results/NAME.json, prints one table."""

import argparse
import asyncio
import importlib
import signal
import sys
import time

import uvloop

from bench.runner import RUNS_MIN, Row, machine_line, table, write

BENCHMARKS = {
    "startup": "the command's start, `slipway up`, memory at rest",
    "launch": "one launch on the idle local cluster, from the POST to the last bind",
    "throughput": "sustained launches against the local cluster, and the cost of each",
    "batch": "a thousand kills in one request, and by single requests",
    "conformance": "sustained launches on a real kube-apiserver, beside a bare client",
    "kube_scheduler": "gangs end to end on a real kube-apiserver, beside the real kube-scheduler",
    "jobs": "gangs and single ranks on a real kube-apiserver, beside Jobs and gang Jobs of Kubernetes",
    "planner": "planning alone, against kube-scheduler's workloads",
    "planner_scale": "the planner at size: ticks and memory",
    "planner_backfill": "Backfill queues beside BestEffort queues: a tick, and a simulated hour",
    "planner_policies": "flavors, past use and windows: what each adds to a tick",
    "planner_preempt": "preemption, against kube-scheduler's workload",
    "rounds": "one round over 320,000 queued",
    "growth": "the planner's cost per placement over nodes and queued work, as a chart",
    "failover": "from the kill or the stop of a leader to the next tick, on an empty and a large cluster",
    "streams": "appends, hints, hand-over and feed on a real Valkey",
    "libraries": "our own parts beside libraries for the same purpose",
    "redis_rebuild": "the streams of 10,000 live allocations after Redis lost everything",
    "transition_delay": "the time from a transition to its server-sent event",
    "fair_use": "calls of a quiet user beside a user who floods the api",
    "unschedulable": "the time until a job that does not fit has its reason, on a real kube-apiserver",
    "cohorts": "Kueue's performance tests on a real kube-apiserver with simulated nodes",
    "restart": "the start of a scheduler, api and watcher beside 5,000 nodes, 10,000 live and 50,000 queued",
    "capacity": "the cost of a thousand allocations, live and ended",
    "output": "lines that ranks print at a fixed rate: stored, or counted as missing",
    "first_line": "from the POST to a container's first line on a real node, beside a Job of Kubernetes",
    "browser": "the page in a real Chromium: first content, bytes, frames, memory, 500 viewers",
    "soak": "half an hour at 50 launches/s: whether memory stays flat",
}
LONG = frozenset(
    {"browser", "capacity", "cohorts", "first_line", "jobs", "kube_scheduler", "output", "restart", "soak"}
)
"""benchmarks that take minutes each: they run only when they are named, or with --all"""


async def run(names: list[str], runs: int, beside: str) -> list[Row]:
    """Run the benchmarks in turn; write a result file per benchmark."""
    rows: list[Row] = []
    # A SIGTERM cancels this task, so that the processes that it started are ended too.
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    for name in names:
        started_s = time.perf_counter()
        print(f"bench {name}: {BENCHMARKS[name]} ...", file=sys.stderr, flush=True)
        found = await importlib.import_module(f"bench.{name}").measure(runs)
        write(name, found, beside=beside)
        rows += found
        print(f"bench {name}: {time.perf_counter() - started_s:.0f} s", file=sys.stderr, flush=True)
    return rows


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="benchmarks to run, comma-separated: " + ", ".join(BENCHMARKS))
    parser.add_argument("--runs", type=int, default=RUNS_MIN, help=f"runs per figure (default {RUNS_MIN})")
    parser.add_argument("--all", action="store_true", help=f"also run the long benchmarks: {', '.join(sorted(LONG))}")
    parser.add_argument(
        "--beside", default="", help="other work of the machine during the run, for the notes of the rows"
    )
    options = parser.parse_args()
    usual = [name for name in BENCHMARKS if options.all or name not in LONG]
    names = [name for name in str(options.only).split(",") if name] or usual
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(run(names, options.runs, options.beside))
    print(table(rows))
    missed = ", ".join(each.id for each in rows if each.meets_must is False) or "none"
    print(f"{machine_line()}; {len(rows)} rows; targets missed: {missed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
