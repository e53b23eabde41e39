"""Scenarios of gangs with rules on failures and on success: two ranks end, and the first end decides.

Owns the scenarios. A watcher may be down between the two ends and then sees both at once.
"""

import asyncio
from typing import Any

from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import RankState
from slipway.model.reasons import Result
from tests.simulation.scenario import AGAIN, DONE, RUNS_S, STOPPED, Scenario, Story, ended, has_ended, is_running
from tests.support.kubelet import Script
from tests.support.world import World

RULES: dict[str, Any] = {
    "rules": [
        {"action": "fail", "exitCodes": [42]},
        {"action": "notCounted", "exitCodes": [75]},
        {"action": "ignore", "exitCodes": [3]},
    ]
}
APART_S = 2.0


def _two_ends(*ends: tuple[int, int], **spec: Any) -> Story:
    """`ends` are (rank, exit code), one after the other; a later attempt succeeds by itself."""

    async def story(world: World) -> None:
        """Two ranks end, one after the other."""
        world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
        launched = await world.launch(ranks=3, maxRestarts=2, failurePolicy=RULES, **spec)
        await world.when(is_running)
        for rank, code in ends:
            for container in world.kubelets.live(launched.metadata.uid):
                if (container.attempt, container.rank) == (1, rank):
                    world.kubelets.exit(container.pod_uid, code)
            await asyncio.sleep(APART_S)
        await world.when(has_ended)

    return story


async def _bounded(world: World) -> None:
    """Every attempt ends with an exit code that is not counted, until two of them have; then it is counted."""
    world.kubelets.script = lambda _attempt, rank: Script(runs_s=RUNS_S, code=75 if rank == 1 else 0)
    rules = {**RULES, "maxUncountedRestarts": 2}
    await world.launch(ranks=2, maxRestarts=1, failurePolicy=rules)
    found: Allocation = await world.when(has_ended)
    assert (found.status.uncounted_restarts, found.status.restarts) == (2, 1)


def _in_place(*, failures: int, restarts: int, most: int = 2) -> Story:
    """Rank 1 fails that many times, and then succeeds; that many of these failures are restarts in place."""

    async def story(world: World) -> None:
        """A rank fails and restarts, while the other one runs on."""

        def script(_attempt: int, rank: int) -> Script:
            begun = sum(container.rank == 1 for container in world.kubelets.containers)
            return Script(runs_s=RUNS_S if rank else None, code=3 if begun <= failures else 0)

        world.kubelets.script = script
        launched = await world.launch(ranks=2, restart="rank", maxRestarts=most)
        await world.when(lambda found: has_ended(found) or _has_done_its_work(found, 1))
        for container in world.kubelets.live(launched.metadata.uid):
            world.kubelets.exit(container.pod_uid, 0)
        found = await world.when(has_ended)
        assert (found.status.restarts, found.status.attempt) == (restarts, 1)

    return story


def _has_done_its_work(found: Allocation, rank: int) -> bool:
    ranks = found.status.ranks or []
    return len(ranks) > rank and ranks[rank].phase is RankState.SUCCEEDED


async def _cancelled_between(world: World) -> None:
    """A rank has failed and waits for its next pod when its user cancels."""
    world.kubelets.script = lambda _attempt, rank: Script(runs_s=RUNS_S if rank == 1 else None, code=3)
    await world.launch(ranks=2, restart="rank", maxRestarts=9)
    await world.when(lambda found: found.status.restarted_ranks)
    await world.cancel()
    await world.when(has_ended)


POLICIES = (
    Scenario(name="rule-fails", story=_two_ends((1, 42), (0, 75)), ends={"job": ended(Result.FAILED)}),
    Scenario(name="rule-spares", story=_two_ends((1, 75), (0, 42)), ends=AGAIN),
    Scenario(name="rank-again", story=_in_place(failures=1, restarts=1), ends=DONE),
    Scenario(name="rank-again-twice", story=_in_place(failures=2, restarts=2), ends=DONE),
    Scenario(
        name="rank-again-bounded",
        story=_in_place(failures=2, restarts=1, most=1),
        ends={"job": ended(Result.FAILED)},
    ),
    Scenario(name="rank-again-cancelled", story=_cancelled_between, ends=STOPPED),
    Scenario(name="rule-bounded", story=_bounded, ends={"job": ended(Result.FAILED, 4)}),
    Scenario(
        name="enough",
        story=_two_ends((1, 3), (2, 0), successPolicy={"targets": [{"count": 2}]}),
        ends=DONE,
    ),
    Scenario(
        name="enough-too-late",
        story=_two_ends((1, 42), (2, 0), successPolicy={"targets": [{"count": 1}]}),
        ends={"job": ended(Result.FAILED)},
    ),
)
