"""`python -m tests.models kubernetes|redis|all`: random operations on a model and on the real server side by side.

Owns the command line, the table of models and the summary. A model is a module with `differ(operations, seed, case) ->
Report`; it starts and stops its real server. Exits 1 when the two differ anywhere.
"""

import argparse
import importlib
import signal
import sys
import time
from collections.abc import Sequence

from tests.models.report import Report

MODELS = {
    "kubernetes": "tests.models.kubernetes.running",
    "redis": "tests.models.redis",
    "cancellations": "tests.models.cancellations",
}
DESCRIPTION = "Random operations on a model and on the real server side by side; every answer is compared."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 when nothing differs, 1 when something does."""
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _end)
    names = list(MODELS) if options.model == "all" else [options.model]
    return max([_differ(name, options) for name in names])


def _end(number: int, frame: object) -> None:
    """End the started servers with this process."""
    sys.exit(128 + number)


def _differ(name: str, options: argparse.Namespace) -> int:
    began = time.monotonic()
    report: Report = importlib.import_module(MODELS[name]).differ(options.operations, options.seed, options.case)
    took_s = time.monotonic() - began
    for text in report.differences:
        _say(text)
    for note in report.notes:
        _say(f"  {note}")
    _say(
        f"{name}: {report.operations} operations with seed {options.seed} in {took_s:.0f} s"
        f" ({report.operations / max(took_s, 0.001):.0f}/s), {len(report.differences)} differences"
    )
    return 1 if report.differences else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=DESCRIPTION)
    parser.add_argument("model", choices=[*MODELS, "all"])
    parser.add_argument("--operations", type=int, default=10_000, help="how many, in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same operations")
    parser.add_argument("--case", default="", help="one sequence of the seed, as a difference names it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
