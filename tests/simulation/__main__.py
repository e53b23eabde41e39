"""`python -m tests.simulation`: every scenario, seed and point that is asked for; a line to replay each failure.

Owns the command line and the sharing of the work among processes. Exits 1 when anything was found.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.pool import Pool

import msgspec

from tests.simulation.points import Family, handful, points
from tests.simulation.run import Outcome, run
from tests.simulation.scenarios import SCENARIOS
from tests.support.faults import Fault

DESCRIPTION = "Play scenarios on the simulated system, with faults."
SHOWN_MAX = 40
PROGRESS_EVERY = 500
POINT_SEED = 1
REPLICAS_OF_FREEZES = 2


class Task(msgspec.Struct, frozen=True):
    """One run to make."""

    scenario: str
    seed: int
    faults: tuple[Fault, ...] = ()
    replicas: int = 1


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _parser().parse_args(argv)
    logging.disable(logging.CRITICAL)
    names = options.scenario or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        print(f"no scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    if options.seed is not None:
        return _replay(names, options)
    begun = time.perf_counter()
    jobs = options.jobs or os.cpu_count() or 1
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        tasks = list(_tasks(names, options, pool))
        print(f"{len(tasks)} points of {len(names)} scenarios on {jobs} processes", flush=True)
        failed = _show(pool.imap_unordered(_run, tasks, chunksize=8), len(tasks), verbose=options.verbose)
    took_s = time.perf_counter() - begun
    print(
        f"make sim: {len(tasks)} points in {took_s:.1f} s, {len(tasks) / took_s:.1f} points/s, {failed} with violations"
    )
    return 1 if failed else 0


def _tasks(names: Sequence[str], options: argparse.Namespace, pool: Pool) -> Iterator[Task]:
    """Every scenario without faults and with a random handful per seed; every point of the first seed."""
    families = [Family(word) for word in options.families.split(",")]
    bases = [Task(name, POINT_SEED) for name in names]
    pairs = [Task(name, POINT_SEED, replicas=REPLICAS_OF_FREEZES) for name in names]
    yield from bases + pairs
    singles = [family for family in families if family is not Family.FREEZE]
    freezes = [family for family in families if family is Family.FREEZE]
    found: list[Task] = []
    for task, outcome in zip(bases + pairs, pool.map(_run, bases + pairs), strict=True):
        has_redis = SCENARIOS[task.scenario].setup.has_redis
        asked = singles if task.replicas == 1 else freezes
        for fault in points(outcome.effects, asked, has_redis=has_redis) if options.points != "none" else ():
            found.append(Task(task.scenario, POINT_SEED, (fault,), task.replicas))
        for seed in range(2, options.seeds + 1):
            if task.replicas == 1 or seed % 2:
                yield Task(task.scenario, seed, (), task.replicas)
                yield Task(task.scenario, seed, handful(outcome.effects, seed, has_redis=has_redis), task.replicas)
    if options.points not in ("all", "none"):
        step = max(1, len(found) // int(options.points))
        found = found[::step]
    yield from found


def _run(task: Task) -> Outcome:
    return run(task.scenario, task.seed, task.faults, replicas=task.replicas)


def _show(outcomes: Iterator[Outcome], total: int, *, verbose: bool) -> int:
    failed = 0
    for done, outcome in enumerate(outcomes, start=1):
        if done % PROGRESS_EVERY == 0:
            print(f"{done} of {total}, {failed} with violations", file=sys.stderr, flush=True)
        if verbose and not outcome.violations:
            print(f"ok {outcome.replay} ({outcome.virtual_s:.0f} s virtual, {outcome.real_s:.2f} s)")
        if not outcome.violations:
            continue
        failed += 1
        if failed <= SHOWN_MAX:
            print(f"python -m tests.simulation {outcome.replay}")
            for violation in outcome.violations[:4]:
                print(f"    {violation}", flush=True)
    return failed


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
    parser.add_argument("--seeds", type=int, default=5, help="seeds with no and with random faults, per scenario")
    parser.add_argument("--points", default="all", help="all, none, or about how many single faults to try")
    parser.add_argument("--families", default="crash,error,flush,freeze", help="which single faults")
    parser.add_argument("--jobs", type=int, default=0, help="processes; default: one per core")
    parser.add_argument("--seed", type=int, help="replay: the seed")
    parser.add_argument("--crash", action="append", default=[], help="replay: [kind@]role:number:before|after")
    parser.add_argument("--replicas", type=int, default=1, help="replay: processes of each service")
    parser.add_argument("--log", action="store_true", help="replay: with the services' own log")
    parser.add_argument("--verbose", action="store_true", help="every run, or (replay) every effect")
    return parser


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of names have an order, and it belongs to what a seed repeats.
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, "PYTHONHASHSEED": "0"})
    raise SystemExit(main())
