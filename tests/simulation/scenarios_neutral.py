"""Scenarios in which all services restart while no allocation changes: the restart must have no visible effect."""

import asyncio

from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import RestartPeriod
from tests.simulation.scenario import Ending, Scenario, is_running
from tests.support.world import Setup, World

CALM_S = 5.0
AFTER_S = 20.0
"""Longer than a service needs to lead again, to list everything and to finish one round."""


async def _all_restarted(world: World) -> None:
    """A gang runs; each service ends normally and is started again."""
    await _run(world)
    begun_at = world.clock.now()
    for role in list(world.processes):
        await world.restart(role)
    await _calm(world, begun_at)


async def _all_killed(world: World) -> None:
    """A gang runs; all services are killed at once, and start again with empty memories."""
    await _run(world)
    begun_at = world.clock.now()
    for process in list(world.processes.values()):
        world.crash(process)
    await _calm(world, begun_at)


async def _run(world: World) -> None:
    await world.launch(ranks=2)
    await world.when(is_running)
    await asyncio.sleep(CALM_S)


async def _calm(world: World, begun_at: float) -> None:
    await asyncio.sleep(AFTER_S)
    world.restarts.append(RestartPeriod(begun_at=begun_at, ended_at=world.clock.now()))


STAYS = {"job": Ending(phase=Phase.RUNNING, attempt=1)}
NEUTRAL = (
    Scenario(name="all-restarted", story=_all_restarted, ends=STAYS, setup=Setup(replicas={"api": 1})),
    Scenario(name="all-killed", story=_all_killed, ends=STAYS, setup=Setup(replicas={"watcher": 2})),
)
