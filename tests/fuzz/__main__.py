"""`python -m tests.fuzz`: the REST surface, then every decoder, for as long as is asked; exits 1 with findings."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.surface import OperationAnswers, Report, fuzz, running_target

PROBLEM = 400


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(argv)
    failed = _surface(options) if options.part in ("surface", "all") else 0
    return failed | (_decoders(options) if options.part in ("decoders", "all") else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("all", "surface", "decoders"), default="all")
    parser.add_argument("--cases", type=int, default=100, help="of each operation in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=int, default=0, help="fail when fewer cases than this were played")
    parser.add_argument("--seconds", type=int, default=120, help="for the decoders")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def _surface(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, running_target(Path(folder) / "data") as (stack, known):
        report = fuzz(stack, known, cases=options.cases, rounds=options.rounds, start=options.seed, tell=_dot)
    print(file=sys.stderr)
    print(f"{'operation':<52} {'cases':>6} {'2xx':>5} {'4xx':>6} {'slowest':>8}")
    for each in report.operations.values():
        fine = sum(number for status, number in each.statuses.items() if status < PROBLEM)
        print(f"{each.label[:52]:<52} {each.cases:>6} {fine:>5} {each.cases - fine:>6} {each.slowest_s:>6.2f} s")
    _close(report, time.monotonic() - begun)
    played = sum(each.cases for each in report.operations.values())
    if played < options.least:
        print(f"FOUND {played} cases were played, of {options.least} at least")
    return 1 if report.findings or played < options.least else 0


def _dot(_answered: OperationAnswers) -> None:
    print(".", end="", file=sys.stderr, flush=True)


def _close(report: Report, took_s: float) -> None:
    for what in report.findings:
        print(f"FOUND {what}")
    cases, lesser = (sum(getattr(each, name) for each in report.operations.values()) for name in ("cases", "lesser"))
    memory = " -> ".join(f"{each:.0f}" for each in report.rss_mib)
    print(
        f"make fuzz: {cases} cases, and {lesser} calls of them without the right for it, to {len(report.operations)} "
        f"operations in {took_s:.0f} s, "
        f"{len(report.findings)} findings; the api's memory by round: {memory} MiB"
    )


def _decoders(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"-max_total_time={options.seconds}", f"-seed={options.seed}", "-print_final_stats=1"]
        command = [sys.executable, "-m", "tests.fuzz.coverage", folder, *flags]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    said = (ran.stdout + ran.stderr).splitlines()
    runs = next((line.split()[-1] for line in said if line.startswith("stat::number_of_executed_units")), "?")
    if ran.returncode:
        print("\n".join(said[-40:]))
    print(f"make fuzz: {runs} inputs to the decoders in {options.seconds} s, {1 if ran.returncode else 0} findings")
    return 1 if ran.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
