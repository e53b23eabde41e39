"""`python -m bench.budget [--write]`: counts everything, and compares the counts with `budget.json`.

Owns the comparison. A count above its budget fails. A count far below it fails too, so that the budget is written again
and the gain is kept. Each counter runs in its own process, with a fixed hash seed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from bench.budget import ticks
from bench.budget.launches import WORKLOADS

BUDGET = Path(__file__).parent / "budget.json"
MORE, LESS = 0.02, 0.10
"""MORE: fraction above the limit that is tolerated. LESS: fraction below the limit from which the gain must be kept."""
ALONE = 3.0
"""An absolute difference up to this is tolerated too: a few calls in a thousand launches."""
LISTS = ": list "
"""The text that marks the counts of LISTs. A LIST reads all objects of a kind, so no difference is tolerated."""
COUNTER_S = 300.0
INSTRUCTIONS = "instructions"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The checked-in budget. Calls and memory depend on the version of Python, instructions on its exact build."""

    python: str
    build: str
    limits: dict[str, float]


def measured(counters: Mapping[str, list[str]] | None = None) -> dict[str, float]:
    """Return {name of a count: count} of these counters ({name: arguments of the interpreter}), or of all counters."""
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        pages = list(workers.map(_counted, (counters or COUNTERS).values()))
    return {what: figure for page in pages for what, figure in page.items()}


COUNTERS = {name: ["-m", "bench.budget.launches", name] for name in WORKLOADS} | {
    "planner": ["-m", "bench.budget.ticks"],
    "exchanges": ["-m", "bench.budget.exchanges"],
}


def differences(limits: Mapping[str, float], figures: Mapping[str, float]) -> list[str]:
    """Return one line per count that differs from the budget; [] when none does."""
    told: list[str] = []
    for what in sorted({*limits, *figures}):
        limit, figure = limits.get(what, 0.0), figures.get(what, 0.0)
        more, less = limit * (1 + MORE) + ALONE, limit * (1 - LESS) - ALONE
        if LISTS in what:
            more = less = limit
        if figure > more:
            told.append(f"{what}: {figure:g}; the budget is {limit:g}")
        elif figure < less:
            told.append(f"{what}: {figure:g}; the budget is {limit:g}: keep the gain with --write")
    return told


def comparable(budget: Budget, counts: Mapping[str, float]) -> dict[str, float]:
    """Return the limits or the figures that can be compared on this interpreter.

    Counts that depend on the version or the build are left out when the budget was counted with another one.
    """
    found = dict(counts)
    if budget.build != sys.version:
        found = {what: count for what, count in found.items() if not what.endswith(INSTRUCTIONS)}
    if budget.python != _python():
        found = {what: count for what, count in found.items() if not what.startswith("planner, ")}
    return found


def read() -> Budget:
    """Return the checked-in budget."""
    return msgspec.json.decode(BUDGET.read_bytes(), type=Budget)


def _counted(arguments: list[str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=COUNTER_S,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        cwd=BUDGET.parents[2],
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _python() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.budget", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the counts as the new budget")
    options = parser.parse_args()
    figures = measured()
    has_valgrind = shutil.which("valgrind") is not None
    if has_valgrind:
        figures |= ticks.instructions()
    if options.write:
        budget = Budget(python=_python(), build=sys.version, limits=figures)
        BUDGET.write_bytes(msgspec.json.format(msgspec.json.encode(budget)) + b"\n")
        print(f"{len(figures)} figures written to {BUDGET.name}")
        return 0
    budget = read()
    limits, figures = comparable(budget, budget.limits), comparable(budget, figures)
    if budget.build != sys.version:
        print(f"instructions are not compared: the budget was counted with Python {budget.build}")
    if not has_valgrind:
        print("valgrind is not installed: instructions are not counted")
        limits = {what: limit for what, limit in limits.items() if not what.endswith(INSTRUCTIONS)}
    told = differences(limits, figures)
    print("\n".join(told) or f"{len(figures)} counts are within the budget")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
