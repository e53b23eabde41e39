"""The `simulate` verb: `slipway simulate FILE [--trace FILE --mapping FILE] [-o json|table|summary]`.

Exit codes: 0 answered; 2 the file or the arguments are invalid (the message names the file and the path of the field);
1 the planner broke one of its own rules. Standard output has the whole answer or nothing.

The text for users is not wider than the terminal, and has no repetitions: one row per allocation; below the rows the
reasons of waiting allocations (grouped by reason), the evictions, the scores and the figures. Omitted lines are
counted, and the JSON answer has them.
"""

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from slipway.errors import InvalidError, InvariantError
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.placement.scores import SCORES
from slipway.scheduler.simulate import answer, workload_trace
from slipway.scheduler.simulate.answer import Estimates, allocation_data, fair_shares, metrics
from slipway.scheduler.simulate.forecast import StartEstimate, forecast
from slipway.scheduler.simulate.run import Scores, SimulationOutcome, simulate
from slipway.scheduler.simulate.scenario import Scenario, check_scores, load, unsupported
from slipway.scheduler.simulate.scenario_facts import NAMESPACE

Json = dict[str, Any]
WIDTH = 80
WIDTH_MIN = 66
ROWS_MAX = 1000
NAMES_MAX = 6
SCORED_NODES_MAX = 20
_HEAD = ("ALLOCATION", "PHASE", "START", "END", "WAIT", "ATTEMPT", "NODES")
NAME_MAX = 40
NODES_MIN = 10


def as_table(
    outcome: SimulationOutcome, warnings: Sequence[str], estimates: Estimates = MappingProxyType({}), width: int = WIDTH
) -> str:
    """Return the whole answer as text."""
    width = max(width, WIDTH_MIN)
    lines = [*_rows(outcome, width)]
    for text in (*_reasons(outcome, estimates), *_evictions(outcome.world.evictions), *_fair_shares(outcome)):
        lines += _wrapped(text, width)
    for name, nodes in sorted((outcome.scores or {}).items()):
        lines += _scores(name, nodes, width)
    figures = ", ".join(f"{key} {number(value)}" for key, value in metrics(outcome).items())
    lines += _wrapped(f"{outcome.ticks} ticks; {figures}", width)
    for warning in warnings:
        lines += _wrapped(f"warning: {warning}", width)
    return "\n".join(lines) + "\n"


def as_summary(outcome: SimulationOutcome, warnings: Sequence[str], width: int = WIDTH) -> str:
    """Return only the figures, one per line."""
    figures = {**metrics(outcome), "ticks": outcome.ticks}
    name_width = max(map(len, figures))
    lines = [f"{name.ljust(name_width)}  {number(value)}" for name, value in figures.items()]
    for warning in warnings:
        lines += _wrapped(f"warning: {warning}", max(width, WIDTH_MIN))
    return "\n".join(lines) + "\n"


def _fair_shares(outcome: SimulationOutcome) -> list[str]:
    """Return one sentence for each queue, if the pool has `fairShare`."""
    found: list[str] = []
    for name, share in fair_shares(outcome).items():
        users = ", ".join(f"{user or '(no user)'} {number(hours)}" for user, hours in share["users"].items())
        whose = f" ({users})" if users else ""
        deserved, shifted = number(share["deservedGpus"]), number(share["shiftedGpus"])
        found.append(
            f"queue {name} has used {number(share['usedGpuHours'])} GPU-h{whose}; its weight is multiplied by "
            f"{number(share['weightFactor'])}; it deserves {deserved} GPUs, by its past use {shifted}"
        )
    return found


def number(value: float | None) -> str:
    """Return a number as short text, exact to the thousandth; `-` for None."""
    if value is None:
        return "-"
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return text if len(text) <= 10 else f"{value:.4g}"


def _rows(outcome: SimulationOutcome, width: int) -> list[str]:
    lives = list(outcome.world.lives.items())
    cells: list[tuple[list[str], list[str]]] = []
    is_flavored = False
    for name, life in lives[:ROWS_MAX]:
        data = allocation_data(outcome, life)
        is_flavored = is_flavored or "flavor" in data
        figures = [number(data["start"]), number(data["end"]), number(data["wait"]), str(data["attempts"])]
        nodes = list(dict.fromkeys(place["node"] for place in data["placements"]))
        cells.append(([name, data["phase"], *figures, data.get("flavor", "-")], nodes))
    head = [*_HEAD[:-1], "FLAVOR"]
    if not is_flavored:
        head.pop()
        cells = [(row[:-1], nodes) for row, nodes in cells]
    widths = [max(len(row[at]) for row in (head, *(cell for cell, _ in cells))) for at in range(len(head))]
    widths[0] = min(widths[0], NAME_MAX)
    most = max((len(_node_names(nodes)) for _, nodes in cells), default=0)
    gap = 2 if sum(widths) + 2 * len(widths) + most <= width else 1
    rest = max(NODES_MIN, width - sum(widths) - gap * len(widths))
    lines = [_line(head, widths, gap) + _HEAD[-1]]
    for row, nodes in cells:
        row[0] = _cut(row[0], widths[0])
        lines.append(_line(row, widths, gap) + _cut_nodes(nodes, rest))
    if len(lives) > ROWS_MAX:
        lines.append(f"... and {len(lives) - ROWS_MAX} more allocations; -o json has them all")
    return lines


def _line(row: Sequence[str], widths: Sequence[int], gap: int) -> str:
    return "".join(cell.ljust(width + gap) for cell, width in zip(row, widths, strict=True))


def _cut(text: str, width: int) -> str:
    """Return the beginning and the end of a text that is too long, because names may differ at either."""
    if len(text) <= width:
        return text
    tail = (width - 2) // 2
    return f"{text[: width - 2 - tail]}..{text[len(text) - tail :]}"


def _node_names(nodes: Sequence[str]) -> str:
    return ",".join(nodes) or "-"


def _cut_nodes(nodes: Sequence[str], width: int) -> str:
    """Return as many names as fit and the number of the others, or only the number."""
    text = _node_names(nodes)
    if len(nodes) == 1:
        return _cut(text, width)
    for count in range(len(nodes) - 1, -1, -1):
        if len(text) <= width:
            return text
        text = f"{','.join(nodes[:count])} +{len(nodes) - count}" if count else f"{len(nodes)} nodes"
    return text


def _reasons(outcome: SimulationOutcome, estimates: Estimates) -> list[str]:
    """Return the reasons of waiting allocations, each reason once."""
    groups: dict[str, list[str]] = {}
    for name, life in outcome.world.lives.items():
        why = outcome.explanations.get(f"{NAMESPACE}/{name}")
        if life.phase is Phase.PENDING and why is not None:
            groups.setdefault(f"{why.gate}: {why.message}{_in_words(estimates.get(name))}", []).append(name)
    return [f"{_names(names)}: {reason}" for reason, names in groups.items()]


def _in_words(estimate: StartEstimate | None) -> str:
    if estimate is None:
        return ""
    told: list[str] = []
    if estimate.likely is not None and estimate.likely[1] is not None:
        told.append(f"likely starts between {number(estimate.likely[0])} and {number(estimate.likely[1])}")
    if estimate.latest is not None:
        told.append(f"starts by {number(estimate.latest)}")
    return f" ({', '.join(told)})" if told else ""


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"


def _evictions(evictions: Sequence[Json]) -> list[str]:
    """Return one line for all ranks of an allocation that were evicted together."""
    groups: dict[tuple[float, str, str | None], list[int]] = {}
    for item in evictions:
        groups.setdefault((item["time"], item["allocation"], item["for"]), []).append(item["rank"])
    lines: list[str] = []
    for (time, name, by), ranks in groups.items():
        what = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
        lines.append(f"evicted: {name} {what} at {number(time)}" + (f" for {by}" if by else ""))
    if len(lines) > ROWS_MAX:
        lines[ROWS_MAX:] = [f"... and {len(lines) - ROWS_MAX} more evictions; -o json has them all"]
    return lines


def _scores(name: str, nodes: Scores, width: int) -> list[str]:
    lines = [f"scores of {_cut(name, width - 10)}, before their weights:"]
    if not nodes:
        return [f"scores of {_cut(name, width - 30)}: no node fits"]
    for node, plugins in list(nodes.items())[:SCORED_NODES_MAX]:
        lines += _wrapped(f"  {node}  {_plugins(plugins)}", width, indent="    ")
    if len(nodes) > SCORED_NODES_MAX:
        lines.append(f"  ... and {len(nodes) - SCORED_NODES_MAX} more nodes; -o json has them all")
    return lines


def _plugins(plugins: Mapping[str, int]) -> str:
    return " ".join(f"{plugin}={value}" for plugin, value in plugins.items())


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True, replace_whitespace=False
    )


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
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    if form == "summary":
        return as_summary(outcome, warnings, columns)
    estimates = forecast(scenario, outcome)
    if form == "json":
        return json.dumps(answer.as_json(outcome, warnings, estimates), indent=2) + "\n"
    return as_table(outcome, warnings, estimates, columns)


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
