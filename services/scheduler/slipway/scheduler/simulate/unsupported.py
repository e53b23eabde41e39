"""Warns about features of a scenario that the planner does not support, so that none is ignored silently."""

from collections.abc import Iterator

from slipway.errors import InvalidError
from slipway.scheduler.plan.placement.scores import SCORES
from slipway.scheduler.simulate.scenario_format import Scenario


def check_scores(scenario: Scenario) -> None:
    """Check that all names of scores are known.

    Raises:
        InvalidError: a name is unknown; the message has its path.
    """
    for name in scenario.pool.scores:
        if name not in SCORES:
            raise InvalidError(f"pool.scores.{name}: there is no such score; known are {', '.join(sorted(SCORES))}")


def unsupported(scenario: Scenario) -> tuple[str, ...]:
    """Return one sentence for each feature that was ignored."""
    return tuple(dict.fromkeys(_of_work(scenario)))


def _of_work(scenario: Scenario) -> Iterator[str]:
    for job in scenario.jobs:
        if job.weight != 1:
            yield f"job {job.name}: weight decides only between equal places; shares are between queues"
