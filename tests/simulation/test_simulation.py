"""A slice of the simulation: every scenario undisturbed, and a sample of faults.

`make sim` plays all of it; a failure here prints the line that replays it.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.points import Family, handful, points
from tests.simulation.run import Outcome, run
from tests.simulation.scenarios import SCENARIOS
from tests.support.wait import wait_until

EVERY = 150
"""One point of this many is played here."""
STRUCK = ("launch-4", "restart", "cancel-released", "compete", "delete-running", "node-lost")
ASLEEP = ("launch-1", "compete")
SEVERAL = tuple(SCENARIOS)[::6]
COMMAND = [sys.executable, "-m", "tests.simulation"]
FOUND = Path(__file__).with_name("found.txt")


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def assert_fine(outcome: Outcome) -> None:
    """Check that there is no violation."""
    assert not outcome.violations, f"python -m tests.simulation {outcome.replay}\n" + "\n".join(outcome.violations)


@pytest.mark.matrix(most=30)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_ends_as_it_should_and_leaves_nothing(name: str) -> None:
    """The scenario runs without faults; then, at rest for longer than any resync interval, only leases are written."""
    assert_fine(run(name, 1))


@pytest.mark.matrix(most=2)
@pytest.mark.parametrize("name", STRUCK)
def test_a_fault_at_one_effect_changes_nothing_in_the_end(name: str) -> None:
    """A sample of crashes before and after an effect, of every error, and of FLUSHALL."""
    base = run(name, 1)
    families = [Family.CRASH, Family.ERROR, Family.FLUSH]
    for fault in list(points(base.effects, families, has_redis=True))[::EVERY]:
        assert_fine(run(name, 1, (fault,)))


@pytest.mark.matrix(most=1)
@pytest.mark.parametrize("name", ASLEEP)
def test_a_process_paused_beyond_its_lease_does_no_harm(name: str) -> None:
    """A sample of processes that are frozen before an effect until another one has taken over, and then continue."""
    base = run(name, 1, replicas=2)
    for fault in list(points(base.effects, [Family.FREEZE], has_redis=True))[:: EVERY // 5]:
        assert_fine(run(name, 1, (fault,), replicas=2))


@pytest.mark.matrix(most=5)
@pytest.mark.parametrize("name", SEVERAL)
def test_several_faults_change_nothing_in_the_end(name: str) -> None:
    """Several faults of any kind strike in one run, with two of each service."""
    base = run(name, 2, replicas=2)
    assert_fine(base)
    every = list(points(base.effects, Family, has_redis=SCENARIOS[name].setup.has_redis))
    assert_fine(run(name, 2, handful(every, 2), replicas=2))


@pytest.mark.costly
def test_earlier_failures_stay_fixed() -> None:
    """Every line of found.txt is played without a violation."""
    for line in FOUND.read_text(encoding="utf-8").splitlines():
        if line.startswith("--"):
            done = subprocess.run(
                [*COMMAND, *line.split()], env=_environment(), capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout


@pytest.mark.costly
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="who else runs is read from /proc")
def test_an_interrupt_leaves_no_process_behind() -> None:
    """Neither Ctrl-C nor a signal to the first process leaves a process behind."""
    mark = f"--sample={os.getpid()}"
    sweep = subprocess.Popen(
        [*COMMAND, "--points", "3000", "--seeds", "1", "--scenario", "launch-1", mark],
        env=_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(list(_marked(mark))) >= 3, "it has forked")
        sweep.send_signal(signal.SIGINT)
        assert sweep.wait(30) == 130
        wait_until(lambda: not list(_marked(mark)), "all are gone")
    finally:
        sweep.kill()
        sweep.wait()


def _marked(mark: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if mark in words:
                yield int(entry.name)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": "0"}
