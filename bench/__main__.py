"""`python -m bench [--only NAME[,NAME]]`: runs benchmarks, writes bench/results/NAME.json, prints one table."""

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
    "throughput": "sustained launches against the local cluster, and what each costs",
    "conformance": "sustained launches on a real kube-apiserver, beside a bare client",
    "planner": "planning alone, against kube-scheduler's workloads",
    "planner_scale": "the planner at size: ticks, growth with nodes and queue, memory",
    "planner_preempt": "preemption, against kube-scheduler's workload",
    "failover": "from the death or the end of a leader to the next tick, empty and large",
    "streams": "appends, hints, hand-over and feed on a real Valkey",
    "redis_rebuild": "the streams of 10,000 live allocations after Redis lost everything",
}


async def run(names: list[str], runs: int) -> list[Row]:
    """Each benchmark in turn; a result file per benchmark."""
    rows: list[Row] = []
    # Whoever ends us, what we have started ends too.
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    for name in names:
        started_s = time.perf_counter()
        print(f"bench {name}: {BENCHMARKS[name]} ...", file=sys.stderr, flush=True)
        found = await importlib.import_module(f"bench.{name}").measure(runs)
        write(name, found)
        rows += found
        print(f"bench {name}: {time.perf_counter() - started_s:.0f} s", file=sys.stderr, flush=True)
    return rows


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="benchmarks to run, comma-separated: " + ", ".join(BENCHMARKS))
    parser.add_argument("--runs", type=int, default=RUNS_MIN, help=f"runs per figure (default {RUNS_MIN})")
    options = parser.parse_args()
    names = [name for name in str(options.only).split(",") if name] or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(run(names, options.runs))
    print(table(rows))
    missed = ", ".join(each.id for each in rows if each.meets_must is False) or "none"
    print(f"{machine_line()}; {len(rows)} rows; short of their target: {missed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
