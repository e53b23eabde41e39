"""The conformance run: `make conformance`. Builds what it needs, then runs each phase against real servers.

Owns the order and the summary. A phase is one run of pytest. The first phase gets the kubeconfig of a control plane
that is started for it; the others start their own. The longest phase runs in parallel shards beside the others, each on
its own control plane, because it waits most of the time: there are three lanes at once. The output of a phase is shown
when it has ended, and all failed tests are listed again at the end. With `KUBECONFIG` the phases use that cluster, one
after the other, and tests that need a control plane of their own are skipped.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from tests.conformance.cluster.servers import ClusterOptions, running_cluster

TESTS = Path(__file__).parents[1]
EVALUATOR = TESTS / "conformance" / "crd" / "evaluator"


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One run of pytest."""

    name: str
    paths: Sequence[str]
    needs_kubeconfig: bool = False
    words: Sequence[str] = ()
    """more for pytest"""
    shard: str = ""
    """`1/2`: the first of two parts"""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a phase."""

    phase: str
    code: int
    passed: int
    failed: int
    skipped: int
    seconds: float
    failures: Sequence[str]
    """the pytest ids of the failed tests"""


SYSTEM = Phase(name="system", paths=["conformance/kubelets", "conformance/system"])
SHARDS = (
    msgspec.structs.replace(SYSTEM, name="system 1", shard="1/2"),
    msgspec.structs.replace(SYSTEM, name="system 2", shard="2/2", paths=["conformance/system"]),
)
"""The shards of the longest phase. They run beside each other and beside the other phases."""
AFTER_A_SHARD = ("models", "scheduling")
"""The phases that follow the shorter shard, so that all lanes end at about the same time."""
PHASES = (
    SYSTEM,
    Phase(name="contracts", paths=["contract", "conformance/crd"], needs_kubeconfig=True),
    Phase(name="models", paths=["conformance/models"]),
    Phase(name="scheduling", paths=["conformance/scheduling"]),
    # The tests of an installation run in file order, which is the order in which people do these steps.
    Phase(name="installs", paths=["conformance/installs"], words=["--randomly-dont-reorganize"]),
)


def main() -> int:
    """Run every phase; return 0 when every test passed, 2 when this machine lacks a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--only", choices=[phase.name for phase in PHASES], help="one phase")
    parser.add_argument("more", nargs="*", help="more words for pytest")
    words = parser.parse_args()
    given = os.environ.get("KUBECONFIG", "")
    began = time.monotonic()
    try:
        env = _environment(given)
        wanted = [phase for phase in PHASES if words.only in (None, phase.name)]
        outcomes = _run_all(wanted, env, words.more, is_alone=bool(given))
    except MissingProgramError as error:
        _say(str(error))
        return 2
    for item in outcomes:
        _say(
            f"  {item.phase:<11} {item.passed:>5} passed {item.failed:>4} failed {item.skipped:>4} skipped"
            f" {item.seconds:>6.0f} s"
        )
    for item in outcomes:
        for failure in item.failures:
            _say(f"FAILED {failure}  (again: make conformance ARGS='--only {item.phase.split()[0]}')")
    is_good = all(item.code == 0 for item in outcomes)
    passed, failed = sum(item.passed for item in outcomes), sum(item.failed for item in outcomes)
    where = f"the cluster of {given}" if given else "a real control plane"
    verdict = "everything holds" if is_good else "NOT everything holds"
    _say(
        f"make conformance: on {where} {verdict}: {passed} passed, {failed} failed in {time.monotonic() - began:.0f} s"
    )
    return 0 if is_good else 1


def _environment(given: str) -> dict[str, str]:
    """Build and install what is missing, and return the environment of every phase."""
    ensure_debian("redis-server")
    env = {**os.environ, "SLIPWAY_CONFORMANCE": "1"}
    if not given:
        ensure_binaries()
    if not given or find_go():
        env["SLIPWAY_CRD_EVALUATOR"] = build_program(EVALUATOR)
    return env


def _run_all(
    phases: Sequence[Phase], env: Mapping[str, str], more: Sequence[str], *, is_alone: bool
) -> Sequence[Outcome]:
    """Run the phases and return their outcomes in order; phases that share a cluster run one after the other."""
    is_shared = not is_alone and SYSTEM in phases and len(phases) > 1
    lanes = [list(phases)]
    if is_shared:
        after = [each for each in phases if each.name in AFTER_A_SHARD]
        others = [each for each in phases if each != SYSTEM and each not in after]
        lanes = [[SHARDS[0]], [SHARDS[1], *after], others]

    with tempfile.TemporaryDirectory(prefix="slipway-conformance-") as told:

        def follow(lane: Sequence[Phase]) -> list[Outcome]:
            return [_run(phase, {**env, **_shard(phase, Path(told))}, more) for phase in lane]

        with ThreadPoolExecutor(len(lanes)) as threads:
            outcomes = [outcome for lane in threads.map(follow, lanes) for outcome in lane]
        return [*outcomes, *_judge_permissions(Path(told))] if is_shared else outcomes


def _shard(phase: Phase, told: Path) -> dict[str, str]:
    """The environment of a shard: which part it runs, and the file to which it writes the permissions that it did
    not use."""
    if not phase.shard:
        return {}
    return {
        "SLIPWAY_CONFORMANCE_SHARD": phase.shard,
        "SLIPWAY_CONFORMANCE_UNUSED": str(told / phase.shard.replace("/", "-")),
    }


def _judge_permissions(told: Path) -> Generator[Outcome]:
    """The outcome of `test_every_permission_was_needed` over all shards. None while a shard has not written its
    part: then that shard itself has failed."""
    pages = [set(path.read_text("utf-8").splitlines()) for path in sorted(told.iterdir())]
    if len(pages) == len(SHARDS):
        left = sorted(pages[0].intersection(*pages[1:]))
        yield Outcome(
            phase="system 1+2",
            code=1 if left else 0,
            passed=0 if left else 1,
            failed=1 if left else 0,
            skipped=0,
            seconds=0.0,
            failures=left,
        )


def _run(phase: Phase, env: Mapping[str, str], more: Sequence[str]) -> Outcome:
    _say(f"phase {phase.name} begins")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="slipway-conformance-") as scratch, _kubeconfig(phase, scratch) as named:
        report, printed = Path(scratch) / "report.xml", Path(scratch) / "printed"
        paths = [str(TESTS / path) for path in phase.paths]
        argv = [sys.executable, "-m", "pytest", *paths, f"--junitxml={report}", "--durations=10", *phase.words, *more]
        with printed.open("wb") as out:
            done = subprocess.run(
                argv, env={**env, **named}, stdout=out, stderr=subprocess.STDOUT, check=False, cwd=TESTS.parent
            )
        text = printed.read_text("utf-8", errors="replace")
        _say(f"phase {phase.name}\n{text.rstrip()}")
        return _outcome(phase, done.returncode, report, text, time.monotonic() - began)


@contextmanager
def _kubeconfig(phase: Phase, scratch: str) -> Generator[dict[str, str]]:
    """The environment variables that name a cluster to the phase."""
    given = os.environ.get("KUBECONFIG", "")
    if not phase.needs_kubeconfig:
        yield {}
    elif given:
        yield {"SLIPWAY_CONTRACT_KUBECONFIG": given, "SLIPWAY_CONTRACT_CONTROLLERS": "1"}
    else:
        # A server with groups of pods is a contract too; the second shard runs on a server without them.
        with running_cluster(Path(scratch) / "cluster", ClusterOptions(pod_groups=True)) as cluster:
            _say(f"Kubernetes {cluster.binaries.version} at {cluster.url}")
            yield {"SLIPWAY_CONTRACT_KUBECONFIG": str(cluster.kubeconfig), "SLIPWAY_CONTRACT_CONTROLLERS": "1"}


def _outcome(phase: Phase, code: int, report: Path, text: str, seconds: float) -> Outcome:
    failures = list(dict.fromkeys(re.findall(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - |$)", text, re.MULTILINE)))
    if not report.exists():
        return Outcome(
            phase=phase.name, code=code or 1, passed=0, failed=0, skipped=0, seconds=seconds, failures=failures
        )
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
        failures=failures,
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
