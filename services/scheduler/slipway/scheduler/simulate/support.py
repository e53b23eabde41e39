"""What a scenario may ask for and the planner does not do: each gives one warning, never a silent miss."""

from collections.abc import Iterator

from slipway.errors import InvalidError
from slipway.scheduler.plan.placement.scores import SCORES
from slipway.scheduler.simulate.parts import Scenario


def check_scores(scenario: Scenario) -> None:
    """Refuse names that are no score at all.

    Raises:
        InvalidError: with the path of the name.
    """
    for name in scenario.pool.scores:
        if name not in SCORES:
            raise InvalidError(f"pool.scores.{name}: there is no such score; known are {', '.join(sorted(SCORES))}")


def unsupported(scenario: Scenario) -> tuple[str, ...]:
    """One sentence per feature that the run went without."""
    return tuple(dict.fromkeys(_of_work(scenario)))


def _of_work(scenario: Scenario) -> Iterator[str]:
    for job in scenario.jobs:
        if job.weight != 1:
            yield f"job {job.name}: weight decides only between equal places; shares are between queues"
