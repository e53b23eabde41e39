"""`python -m tests.simulation` plays the requested scenarios, seeds and points, and prints a line to replay each
failure.

Owns the command line, the rounds of a sweep and its gate. Exits 1 when a violation was found, when the gate had too few
points, or when a point had no outcome.
"""

import argparse
import gc
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.simulation import found
from tests.simulation.fork_server import Branch, ForkServer, fork_server_process, play
from tests.simulation.plan import (
    FAMILIES,
    FOUND,
    SEED,
    ZOMBIE,
    Planned,
    Root,
    branches,
    leaves,
    resumed,
    roots,
    sample,
)
from tests.simulation.report import Report
from tests.simulation.run import Outcome, run
from tests.simulation.scenarios import SCENARIOS
from tests.support.faults import Effect, Fault

DESCRIPTION = "Play scenarios on the simulated system, with faults."
POINTS_MIN = 30_000
"""The least number of points of the gate and of a whole sweep."""
ZOMBIE_SHARE = 100
"""One point of this many in a sample is a zombie that wakes, because they take long."""
GATE = 30_450
"""The points that the gate requests; not every one is reached."""


class RunArguments(msgspec.Struct, array_like=True):
    """One outcome, as `--json` prints it."""

    family: str
    replay: str
    struck: int
    violations: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(argv)
    logging.disable(logging.CRITICAL)
    names = options.scenario or list(SCENARIOS)
    families = options.families.split(",") if options.families else list(FAMILIES)
    unknown = [name for name in names if name not in SCENARIOS] + [name for name in families if name not in FAMILIES]
    if unknown:
        print(f"no scenario or family {unknown[0]!r}", file=sys.stderr)
        print(f"scenarios: {', '.join(SCENARIOS)}\nfamilies: {', '.join(FAMILIES)}", file=sys.stderr)
        return 2
    if options.seed is not None:
        return _replay(names, options)
    report = Report()
    try:
        _sweep(names, families, options, report)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        report.show()
        return 130
    report.show()
    is_gate = not (options.scenario or options.families) and options.points in ("all", "gate")
    return _judge(report, is_gate=is_gate, keeps=options.keep)


def _sweep(names: Sequence[str], families: Sequence[str], options: argparse.Namespace, report: Report) -> None:
    """Make shared state before the first fork and exclude it from garbage collection; then play the rounds."""
    with_api = next((name for name in names if SCENARIOS[name].setup.replicas.get("api")), names[0])
    for name in dict.fromkeys((names[0], with_api)):
        run(name, SEED)
    gc.collect()
    gc.freeze()
    with fork_server_process() as forker:
        _rounds(names, families, options, report, forker)


def _rounds(
    names: Sequence[str], families: Sequence[str], options: argparse.Namespace, report: Report, forker: ForkServer
) -> None:
    """Play the undisturbed runs, the points that follow from them, and the points that follow from those where a
    process was held."""
    wanted = roots(names, options.seeds)
    report.expect_bases(wanted)
    undisturbed = [Branch(scenario=name, seed=seed, replicas=replicas) for name, seed, replicas in wanted]
    bases: dict[Root, Sequence[Effect]] = {}
    following: dict[Root, list[Planned]] = {}
    for outcome in _taken(undisturbed, forker, report, options):
        if not outcome.violations:
            root = (outcome.scenario, outcome.seed, outcome.replicas)
            bases[root] = outcome.effects
            # Compute them at once, while other runs play: later all trunks would wait for it.
            following[root] = leaves(root, outcome.effects, families, of_all_seeds=options.points == "gate")
    if options.points == "none":
        return
    bases = {root: bases[root] for root in wanted if root in bases}
    planned, zombies = [point for root in bases for point in following[root]], 0
    if options.points != "all":
        count = GATE if options.points == "gate" else int(options.points)
        left = max(0, count - len(wanted))
        zombies = left // ZOMBIE_SHARE if ZOMBIE in families else 0
        planned = sample(planned, left - zombies, options.sample, bases)
    if FOUND in families:
        planned = _once_found(names) + planned
    report.expect(planned)
    holds: list[Outcome] = []
    for outcome in _taken(branches(planned, bases), forker, report, options):
        if outcome.effects and not outcome.violations:
            holds.append(outcome)
    if ZOMBIE not in families:
        return
    holds.sort(key=lambda outcome: outcome.replay)
    woken: list[Planned] = resumed(holds)
    if options.points != "all":
        woken = sample(woken, zombies, options.sample, bases)
    report.expect(woken)
    for _ in _taken(branches(woken, bases), forker, report, options):
        pass


def _once_found(names: Sequence[str]) -> list[Planned]:
    lines = map(found.parse, found.lines())
    return [
        Planned(FOUND, (line.scenario, line.seed, line.replicas), line.faults)
        for line in lines
        if line.scenario in names and line.faults
    ]


def _taken(
    wanted: Iterable[Branch], forker: ForkServer, report: Report, options: argparse.Namespace
) -> Iterable[Outcome]:
    for outcome in play(wanted, options.jobs or os.cpu_count() or 1, forker):
        family = report.take(outcome)
        if options.json:
            with Path(options.json).open("ab") as file:
                file.write(
                    msgspec.json.encode(RunArguments(family, outcome.replay, outcome.struck, outcome.violations))
                    + b"\n"
                )
        if options.verbose and not outcome.violations:
            print(f"ok {outcome.replay} ({outcome.virtual_s:.0f} s virtual, {outcome.real_s:.2f} s)")
        yield outcome


def _judge(report: Report, *, is_gate: bool, keeps: bool) -> int:
    if report.failed:
        if keeps:
            kept = found.keep(report.failed)
            print(f"{kept} more in {found.KEPT.name}; every sweep plays them from now on", file=sys.stderr)
        return 1
    if report.lost:
        print("points were lost: nobody knows what they would have shown", file=sys.stderr)
        return 1
    if is_gate and report.total < POINTS_MIN:
        print(f"fewer than {POINTS_MIN:,} points", file=sys.stderr)
        return 1
    return 0


def _replay(names: Sequence[str], options: argparse.Namespace) -> int:
    if options.log:
        logging.disable(logging.NOTSET)
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    faults = tuple(Fault.parse(text) for text in options.crash)
    failed = 0
    for name in names:
        outcome = run(name, options.seed, faults, replicas=options.replicas)
        if options.verbose:
            for effect in outcome.effects:
                print(f"{effect.at - 1_700_000_000:9.3f} {effect.process:14} {effect.label:60} {effect.outcome}")
        print(f"{outcome.replay}: {len(outcome.effects)} effects, {outcome.struck} of {len(faults)} faults struck")
        for violation in outcome.violations:
            print(f"    {violation}")
        failed += bool(outcome.violations)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=DESCRIPTION)
    parser.add_argument("--scenario", action="append", help="only this one (may be repeated)")
    parser.add_argument("--seeds", type=int, default=2, help="seeds with random handfuls of faults, per scenario")
    parser.add_argument("--points", default="gate", help="gate, all, none, or about how many: an even sample")
    parser.add_argument("--sample", type=int, default=1, help="the seed of the sample")
    parser.add_argument("--families", default="", help=f"only these points, of {','.join(FAMILIES)}")
    parser.add_argument("--json", default="", help="a file to which each outcome is added, one line each")
    parser.add_argument("--keep", action="store_true", help="add what fails to found.txt")
    parser.add_argument("--jobs", type=int, default=0, help="processes at once; default: one per core")
    parser.add_argument("--seed", type=int, help="replay: the seed")
    parser.add_argument("--crash", action="append", default=[], help="replay: [kind@]role:number:before|after")
    parser.add_argument("--replicas", type=int, default=1, help="replay: processes of each service")
    parser.add_argument("--log", action="store_true", help="replay: with the services' own log")
    parser.add_argument("--verbose", action="store_true", help="every run, or (replay) every effect")
    return parser


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of names depends on the hash seed, and a replay must repeat it.
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, "PYTHONHASHSEED": "0"})
    raise SystemExit(main())
