"""A pool's defaults change while work waits for what they asked for."""

import asyncio

import pytest

from slipway.kube.resources import RESOURCE_POOLS
from slipway.model.lifecycle import Phase
from tests.simulation.scenario import has_begun
from tests.support.world import Setup, World, run_world

WHILE_S = 20.0
"""Long enough for anybody to have said why it waits."""


@pytest.mark.parametrize("has_redis", [True, False], ids=["redis", "no redis"])
def test_what_waits_is_placed_as_the_pool_is_now(has_redis: bool) -> None:
    """Defaults that ask for more than there is are put right: what has waited for them starts, with the new ones."""

    async def play(world: World) -> int:
        await world.kube.patch(RESOURCE_POOLS, "default", _asking("64"))
        await world.apply(
            {
                "apiVersion": "slipway.dev/v1alpha1",
                "kind": "Allocation",
                "metadata": {"name": "job", "namespace": "default"},
                "spec": {"kind": "command", "template": {"spec": {"containers": [_MAIN]}}},
            }
        )
        await asyncio.sleep(WHILE_S)
        assert (await world.when(lambda _found: True)).status.phase is Phase.PENDING
        await world.kube.patch(RESOURCE_POOLS, "default", _asking("1"))
        found = await world.when(has_begun)
        return found.status.attempt

    assert run_world(play, Setup(nodes=2, cpus=4, has_redis=has_redis)) == 1


_MAIN = {"name": "main", "image": "local", "command": ["true"]}


def _asking(cpus: str) -> dict[str, object]:
    return {"spec": {"defaults": {"command": {"resources": {"requests": {"cpu": cpus}}}}}}
