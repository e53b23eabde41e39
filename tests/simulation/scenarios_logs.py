"""Scenarios of ranks' output: floods that are larger than the stored share of a log, in several attempts."""

import asyncio

from slipway.model.reasons import Result
from tests.simulation.scenario import STOPPED, Ending, Scenario, has_ended, is_running
from tests.support.kubelet import Script
from tests.support.simulated_log import QUIET, Burst
from tests.support.world import Setup, World

FLOOD = (*QUIET[:2], Burst(0.3, 1_200, width=110), *QUIET[2:])
"""More lines than the smallest share stores, and more bytes than are read ahead."""
SMALL = {"log_bytes_max": 1}
"""Each log has the smallest share."""


def _talk(_attempt: int, rank: int) -> tuple[Burst, ...]:
    return QUIET if rank else FLOOD


async def _flood(world: World) -> None:
    """Rank 0 prints more than its share; rank 1 fails in two attempts, and the third one ends."""
    world.kubelets.simulated = _talk
    world.kubelets.script = lambda attempt, rank: Script(runs_s=1.2, code=3 if rank and attempt < 3 else 0)
    await world.launch(ranks=2, maxRestarts=2)
    await world.when(has_ended)


async def _killed_in_a_flood(world: World) -> None:
    """It is cancelled while its flood is being stored."""
    world.kubelets.simulated = _talk
    await world.launch(ranks=2)
    await world.when(is_running)
    await asyncio.sleep(0.35)
    await world.cancel()
    await world.when(has_ended)


LOGS = (
    Scenario(
        name="flood",
        story=_flood,
        ends={"job": Ending(result=Result.SUCCEEDED, attempt=3)},
        setup=Setup(watcher=SMALL),
    ),
    Scenario(name="killed-in-a-flood", story=_killed_in_a_flood, ends=STOPPED, setup=Setup(watcher=SMALL)),
)
