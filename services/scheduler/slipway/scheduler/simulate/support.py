"""What a scenario may ask for and the planner does not do: each gives one warning, never a silent miss."""

from collections.abc import Iterator

from slipway.errors import InvalidError
from slipway.scheduler.plan.scores import SCORES
from slipway.scheduler.simulate.scenario import RankPart, Scenario

UNSUPPORTED_SCORES = frozenset(
    {"RequestedToCapacityRatio", "PodTopologySpread", "InterPodAffinity", "ImageLocality", "GpuFragmentation"}
)


def check_scores(scenario: Scenario) -> None:
    """Refuse names that are no score at all.

    Raises:
        InvalidError: with the path of the name.
    """
    for name in scenario.pool.scores:
        if name not in SCORES and name not in UNSUPPORTED_SCORES:
            raise InvalidError(f"pool.scores.{name}: there is no such score; known are {', '.join(sorted(SCORES))}")


def unsupported(scenario: Scenario) -> tuple[str, ...]:
    """One sentence per feature that the run went without."""
    return tuple(dict.fromkeys([*_of_pool(scenario), *_of_queues(scenario), *_of_work(scenario)]))


def _of_pool(scenario: Scenario) -> Iterator[str]:
    if scenario.pool.sampling:
        yield "pool.sampling: every node is looked at"
    for name in scenario.pool.scores:
        if name in UNSUPPORTED_SCORES:
            yield f"pool.scores.{name}: this score is not counted"


def _of_queues(scenario: Scenario) -> Iterator[str]:
    for queue in scenario.queues:
        if queue.preemption.within_queue != "Never" or queue.preemption.reclaim != "Never":
            yield f"queue {queue.name}: preemption and reclaim are not done; nothing is evicted for it"
        if queue.ordering == "Backfill":
            yield f"queue {queue.name}: ordering Backfill makes no reservations; it runs as BestEffortFIFO"


def _of_work(scenario: Scenario) -> Iterator[str]:
    for part in scenario.allocations:
        for rank in part.ranks:
            yield from _of_rank(part.name, rank)
    for job in scenario.jobs:
        if job.weight != 1:
            yield f"job {job.name}: weight is not counted"


def _of_rank(name: str, rank: RankPart) -> Iterator[str]:
    if rank.gpu_milli:
        yield f"allocation {name}: gpuMilli takes a whole GPU"
    for kind in ("podAffinity", "podAntiAffinity"):
        if rank.affinity.get(kind):
            yield f"allocation {name}: {kind} is not looked at"
