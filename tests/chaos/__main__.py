"""Chaos on real processes: `python -m tests.chaos --minutes M --seed S`.

0 when nothing was lost, doubled or broken; 1 when something was, with the seed and the folder that holds the evidence;
2 when something is missing on this machine.
"""

import argparse
import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.chaos import bad_run_report, faults, table
from tests.chaos.run import Options, Run, keep
from tests.chaos.stage import Stage
from tests.chaos.table import Outcome
from tests.conformance.cluster.binaries import MissingProgramError

SAID_MAX = 30
GUARD_S, GUARD_MINUTE_S = 480.0, 120.0
"""Seconds, plus seconds for each minute of faults, after which a run is aborted because it hangs."""


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults; every kind comes at least once")
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument("--only", action="append", default=[], choices=[*faults.KINDS], help="only these kinds")
    parser.add_argument("--json", type=Path, help="the result goes there, too")
    parser.add_argument("--keep", action="store_true", help="keep the evidence also when everything holds")
    words = parser.parse_args()
    seed = words.seed if words.seed is not None else secrets.randbelow(100_000)
    folder = Path(tempfile.mkdtemp(prefix="slipway-chaos-"))
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - began:5.0f} s] {line}\n")
        sys.stdout.flush()

    # Started processes must be stopped then too.
    signal.signal(signal.SIGTERM, lambda _sign, _frame: sys.exit(1))
    say(f"seed {seed}, {words.minutes:g} minutes, in {folder}")
    try:
        stage = Stage(folder, seed)
    except MissingProgramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    options = Options(minutes=words.minutes, seed=seed, only=words.only)
    try:
        run, outcome = _perform(stage, options, say)
    except BaseException as error:
        for line in bad_run_report.lines(folder, stage.logs(), ()):
            sys.stdout.write(f"{line}\n")
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        say(f"make chaos: broken off by {what[: table.WIDTH]}; seed {seed}")
        raise
    is_kept = not outcome.is_good or words.keep
    outcome = msgspec.structs.replace(outcome, took_s=time.monotonic() - began)
    if is_kept:
        keep(run.evidence, outcome, folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if words.json:
        words.json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    for violation in outcome.violations[:SAID_MAX]:
        sys.stdout.write(f"VIOLATION {violation}\n")
    if is_kept and outcome.is_good:
        sys.stdout.write(f"the evidence is in {folder}\n")
    if not outcome.is_good:
        for line in bad_run_report.lines(folder, stage.logs(), outcome.subjects):
            sys.stdout.write(f"{line}\n")
        again = f"make chaos MINUTES={words.minutes:g} SEED={seed}"
        sys.stdout.write(f"the same faults again: {again}\n")
    for line in table.lines(outcome):
        sys.stdout.write(f"{line}\n")
    return 0 if outcome.is_good else 1


def _perform(stage: Stage, options: Options, say: Callable[[str], None]) -> tuple[Run, Outcome]:
    """Run it; no process of the stage is left running."""
    try:
        stage.start()
        say("everything runs: two processes of each service, six nodes")
        run = Run(stage, options, say)
        return run, asyncio.run(_bounded(run, GUARD_S + options.minutes * GUARD_MINUTE_S))
    finally:
        stage.stop()


async def _bounded(run: Run, guard_s: float) -> Outcome:
    """Raise TimeoutError, with an explanation, when the run is not over in time."""
    guard = asyncio.timeout(guard_s)
    try:
        async with guard:
            return await run.run()
    except TimeoutError as error:
        if guard.expired():
            raise TimeoutError(f"not over after {guard_s:.0f} s: it hangs") from error
        raise


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
