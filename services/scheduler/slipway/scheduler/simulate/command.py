"""The `simulate` verb: `slipway simulate FILE [-o json|table] [--explain-scores]`.

Exit codes: 0 answered; 2 the file or the arguments are bad (the message starts with the path of the field).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from slipway.errors import InvalidError
from slipway.scheduler.plan.scores import SCORES
from slipway.scheduler.simulate import answer
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import Scenario, decode, load
from slipway.scheduler.simulate.support import check_scores, unsupported

EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb with the arguments after `simulate`."""
    arguments = _parser().parse_args(argv)
    try:
        scenario = _read(arguments.file)
    except InvalidError as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_BAD_INPUT
    outcome = simulate(scenario, with_scores=arguments.explain_scores)
    warnings = unsupported(scenario)
    if arguments.output == "json":
        sys.stdout.write(json.dumps(answer.as_json(outcome, warnings), indent=2) + "\n")
    else:
        sys.stdout.write(answer.as_table(outcome, warnings))
    return 0


def _read(name: str) -> Scenario:
    if name == "-":
        scenario = decode(sys.stdin.read())
        check_scores(scenario)
        return scenario
    scenario = load(Path(name))
    try:
        check_scores(scenario)
    except InvalidError as exc:
        raise InvalidError(f"{name}: {exc}") from exc
    return scenario


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slipway simulate", description="Run the scheduler's planner over a scenario, in virtual time."
    )
    parser.add_argument("file", metavar="FILE", help="the scenario (YAML or JSON); - reads standard input")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="form of the answer")
    parser.add_argument(
        "--explain-scores",
        action="store_true",
        help=f"also say how each node was scored for the first rank ({', '.join(sorted(SCORES))})",
    )
    return parser
