"""The conformance run: `make conformance`. Builds what it needs, then runs each phase against real servers.

Owns the order and the summary. A phase is one run of pytest; the first gets a control plane of its own by name of a
kubeconfig, the others start theirs through the fixture `real`. With `KUBECONFIG` that cluster is used instead, and
what needs a control plane that nobody else uses is skipped.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from tests.conformance.cluster.binaries import (
    MissingProgramError,
    build_program,
    ensure_binaries,
    ensure_debian,
    find_go,
)
from tests.conformance.cluster.servers import running_cluster

TESTS = Path(__file__).parents[1]
EVALUATOR = TESTS / "conformance" / "crd" / "evaluator"


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One run of pytest."""

    name: str
    paths: Sequence[str]
    needs_kubeconfig: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a phase went."""

    phase: str
    code: int
    passed: int
    failed: int
    skipped: int
    seconds: float


PHASES = (
    Phase(name="contracts", paths=["contract", "conformance/crd"], needs_kubeconfig=True),
    Phase(name="models", paths=["conformance/models"]),
    Phase(name="system", paths=["conformance/kubelets", "conformance/system"]),
    Phase(name="scheduling", paths=["conformance/scheduling"]),
)


def main() -> int:
    """0 when every test of every phase passed; 2 when something is missing on this machine."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--only", choices=[phase.name for phase in PHASES], help="one phase")
    parser.add_argument("more", nargs="*", help="more words for pytest")
    words = parser.parse_args()
    given = os.environ.get("KUBECONFIG", "")
    began = time.monotonic()
    try:
        env = _environment(given)
        outcomes = [_run(phase, env, words.more) for phase in PHASES if words.only in (None, phase.name)]
    except MissingProgramError as error:
        _say(str(error))
        return 2
    for item in outcomes:
        _say(
            f"  {item.phase:<10} {item.passed:>5} passed {item.failed:>4} failed {item.skipped:>4} skipped"
            f" {item.seconds:>6.0f} s"
        )
    is_good = all(item.code == 0 for item in outcomes)
    passed, failed = sum(item.passed for item in outcomes), sum(item.failed for item in outcomes)
    where = f"the cluster of {given}" if given else "a real control plane"
    verdict = "everything holds" if is_good else "NOT everything holds"
    _say(
        f"make conformance: on {where} {verdict}: {passed} passed, {failed} failed in {time.monotonic() - began:.0f} s"
    )
    return 0 if is_good else 1


def _environment(given: str) -> dict[str, str]:
    """What every phase runs with; builds and installs what is missing."""
    ensure_debian("redis-server")
    env = {**os.environ, "SLIPWAY_CONFORMANCE": "1"}
    if not given:
        ensure_binaries()
    if not given or find_go():
        env["SLIPWAY_CRD_EVALUATOR"] = build_program(EVALUATOR)
    return env


def _run(phase: Phase, env: Mapping[str, str], more: Sequence[str]) -> Outcome:
    _say(f"phase {phase.name}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slipway-conformance-") as scratch, _kubeconfig(phase, scratch) as named:
        report = Path(scratch) / "report.xml"
        paths = [str(TESTS / path) for path in phase.paths]
        argv = [sys.executable, "-m", "pytest", *paths, f"--junitxml={report}", "--durations=10", *more]
        code = subprocess.run(argv, env={**env, **named}, check=False, cwd=TESTS.parent).returncode
        return _outcome(phase, code, report, time.monotonic() - began)


@contextmanager
def _kubeconfig(phase: Phase, scratch: str) -> Generator[dict[str, str]]:
    """The variables that name a cluster to the phase."""
    given = os.environ.get("KUBECONFIG", "")
    if not phase.needs_kubeconfig:
        yield {}
    elif given:
        yield {"SLIPWAY_CONTRACT_KUBECONFIG": given, "SLIPWAY_CONTRACT_CONTROLLERS": "1"}
    else:
        with running_cluster(Path(scratch) / "cluster") as cluster:
            _say(f"Kubernetes {cluster.binaries.version} at {cluster.url}")
            yield {"SLIPWAY_CONTRACT_KUBECONFIG": str(cluster.kubeconfig), "SLIPWAY_CONTRACT_CONTROLLERS": "1"}


def _outcome(phase: Phase, code: int, report: Path, seconds: float) -> Outcome:
    if not report.exists():
        return Outcome(phase=phase.name, code=code or 1, passed=0, failed=0, skipped=0, seconds=seconds)
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in suites:
        for name in counts:
            counts[name] += int(suite.get(name, "0"))
    failed = counts["failures"] + counts["errors"]
    return Outcome(
        phase=phase.name,
        code=code,
        passed=counts["tests"] - failed - counts["skipped"],
        failed=failed,
        skipped=counts["skipped"],
        seconds=seconds,
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
