"""A slice of the simulation: every scenario undisturbed and with a handful of faults, and a sample of single points.

The whole is `python -m tests.simulation`; a failure here prints the line that replays it.
"""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.points import Family, handful, points
from tests.simulation.run import Outcome, run
from tests.simulation.scenarios import SCENARIOS

EVERY = 100
"""One point of so many is played here."""


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def assert_fine(outcome: Outcome) -> None:
    """No violation."""
    assert not outcome.violations, f"python -m tests.simulation {outcome.replay}\n" + "\n".join(outcome.violations)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_ends_as_it_should_and_leaves_nothing(name: str) -> None:
    """Without faults, and then at rest for longer than any resync: nobody writes anything but leases."""
    assert_fine(run(name, 1))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_handful_of_faults_changes_nothing_in_the_end(name: str) -> None:
    """Several faults of any kind in one run, with two of each service."""
    base = run(name, 2, replicas=2)
    assert_fine(base)
    assert_fine(run(name, 2, handful(base.effects, 2, has_redis=SCENARIOS[name].setup.has_redis), replicas=2))


@pytest.mark.parametrize("name", ["launch-4", "restart", "cancel-released", "compete", "delete-running", "node-lost"])
def test_a_fault_at_one_effect_changes_nothing_in_the_end(name: str) -> None:
    """A sample of: crash before and after, every error, FLUSHALL."""
    base = run(name, 1)
    families = [Family.CRASH, Family.ERROR, Family.FLUSH]
    for fault in list(points(base.effects, families, has_redis=True))[::EVERY]:
        assert_fine(run(name, 1, (fault,)))


@pytest.mark.parametrize("name", ["launch-1", "compete"])
def test_a_process_that_sleeps_over_its_lease_does_no_harm(name: str) -> None:
    """A sample of zombies: frozen before an effect until others have taken over, then resumed."""
    base = run(name, 1, replicas=2)
    for fault in list(points(base.effects, [Family.FREEZE], has_redis=True))[:: EVERY // 2]:
        assert_fine(run(name, 1, (fault,), replicas=2))


def test_equal_arguments_give_equal_runs() -> None:
    """What is found can be played again."""
    first, second = run("restart", 5), run("restart", 5)
    assert [str(effect) for effect in first.effects] == [str(effect) for effect in second.effects]
    assert first.virtual_s == second.virtual_s
