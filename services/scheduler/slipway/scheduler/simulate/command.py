"""The `simulate` verb: `slipway simulate FILE [--trace FILE --mapping FILE] [-o json|table|summary]`.

Exit codes: 0 answered; 2 the file or the arguments are invalid (the message names the file and the path of the field);
1 the planner broke one of its own rules. Standard output has the whole answer or nothing.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence

from slipway.errors import InvalidError, InvariantError
from slipway.scheduler.plan.placement.scores import SCORES
from slipway.scheduler.simulate import answer, table, workload_trace
from slipway.scheduler.simulate.forecast import forecast
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import Scenario, load
from slipway.scheduler.simulate.unsupported import check_scores, unsupported

EXIT_FAULT = 1
EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb with the arguments after `simulate`."""
    arguments = _parser().parse_args(argv)
    try:
        text = _answer(arguments)
    except InvalidError as exc:
        return _complain(str(exc), EXIT_BAD_INPUT)
    except InvariantError as exc:
        return _complain(f"{arguments.file}: this is a fault of the planner; please report it: {exc}", EXIT_FAULT)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, so the output that Python flushes at its end must go to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _answer(arguments: argparse.Namespace) -> str:
    scenario, told = _read(arguments)
    outcome = simulate(scenario, with_scores=arguments.explain_scores)
    warnings = [*told, *unsupported(scenario)]
    form = arguments.output or ("summary" if arguments.trace else "table")
    columns = shutil.get_terminal_size((table.WIDTH, 24)).columns
    if form == "summary":
        return table.as_summary(outcome, warnings, columns)
    estimates = forecast(scenario, outcome)
    if form == "json":
        return json.dumps(answer.as_json(outcome, warnings, estimates), indent=2) + "\n"
    return table.as_table(outcome, warnings, estimates, columns)


def _complain(text: str, code: int) -> int:
    """Write the error as one line, without any control characters for the terminal."""
    sys.stderr.write("".join(char if char.isprintable() else "?" for char in " ".join(text.split())) + "\n")
    return code


def _read(arguments: argparse.Namespace) -> tuple[Scenario, Sequence[str]]:
    """Return the scenario, with the allocations of the trace if there is one, and warnings about the trace."""
    name, told = arguments.file, ()
    if arguments.trace or arguments.mapping:
        if not (arguments.trace and arguments.mapping):
            raise InvalidError("--trace and --mapping need each other; state both")
        traced = workload_trace.load(name, arguments.trace, arguments.mapping)
        scenario, told = traced.scenario, traced.warnings
    else:
        scenario = load(name)
    try:
        check_scores(scenario)
    except InvalidError as exc:
        where = "" if name == "-" else f"{name}: "
        raise InvalidError(f"{where}{exc}") from exc
    return scenario, told


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slipway simulate", description="Run the scheduler's planner over a scenario, in virtual time."
    )
    parser.add_argument("file", metavar="FILE", help="the scenario (YAML or JSON); - reads standard input")
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "summary"),
        help="output format; summary: only the metrics (default: table, with --trace summary)",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="also run the allocations of this workload trace (CSV or JSON lines)"
    )
    parser.add_argument("--mapping", metavar="FILE", help="meaning of the columns of the trace (YAML or JSON)")
    parser.add_argument(
        "--explain-scores",
        action="store_true",
        help=f"also show the scores of each node for the first rank ({', '.join(sorted(SCORES))})",
    )
    return parser
