"""`python -m tests.simulation.bugs`: hunts every bug with all its points, and shows how each was found.

Exits 1 when a bug was not found. `--write` stores the finds (`found.json`), from which the table in the documentation
is made.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

import msgspec

from tests.simulation.bugs import BUGS
from tests.simulation.bugs.hunt import KEPT, Found, hunt, kept

_BY_NAME = {bug.name: bug for bug in BUGS}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.bugs", description="Hunt the seeded bugs.")
    parser.add_argument("names", nargs="*", help="only bugs whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=0, help="processes; default: one per core")
    parser.add_argument("--new", action="store_true", help="only those that were not found before")
    parser.add_argument("--write", action="store_true", help="keep the finds")
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    before = kept()
    names = [
        bug.name
        for bug in BUGS
        if (not options.names or any(part in bug.name for part in options.names))
        and not (options.new and bug.name in before)
    ]
    begun, missed = time.perf_counter(), 0
    finds = dict(before)
    with multiprocessing.get_context("fork").Pool(options.jobs or os.cpu_count() or 1) as pool:
        for name, found, said, took_s in pool.imap_unordered(_hunted, names):
            if found is None:
                missed += 1
                finds.pop(name, None)
                _say(f"NOT FOUND  {name} ({took_s:.1f} s); the checker said {said}")
                continue
            finds[name] = found
            _say(f"{found.invariant:8} {name} ({_BY_NAME[name].breaks})")
            if options.write:
                _write(finds)
            _say(f"         {found.replay}: point {found.points}, {took_s:.1f} s")
    if options.write:
        _write(finds)
    _say(f"{len(names) - missed} of {len(names)} bugs found in {time.perf_counter() - begun:.0f} s")
    return 1 if missed else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _hunted(name: str) -> tuple[str, Found | None, list[str], float]:
    begun = time.perf_counter()
    try:
        found, said = hunt(_BY_NAME[name])
    except Exception as error:  # noqa: BLE001 - what cannot be installed any more is not found either
        found, said = None, [repr(error)]
    return name, found, list(dict.fromkeys(said))[:5], time.perf_counter() - begun


def _write(finds: dict[str, Found]) -> None:
    ordered = [finds[bug.name] for bug in BUGS if bug.name in finds]
    KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of names depends on the hash seed, and a replay must repeat it.
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, "PYTHONHASHSEED": "0"})
    raise SystemExit(main())
