"""A pool's defaults, or the LimitRanges of a workspace, change while allocations wait because of them."""

import asyncio

import pytest

from slipway.facts.custom_resources import gate_of
from slipway.kube.resources import LIMIT_RANGES, RESOURCE_POOLS
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Gate
from tests.simulation.scenario import has_begun
from tests.support.world import Setup, World, run_world

WHILE_S = 20.0
"""Long enough for every service to explain why it waits."""


@pytest.mark.parametrize("has_redis", [True, False], ids=["redis", "no redis"])
def test_what_waits_is_placed_as_the_pool_is_now(has_redis: bool) -> None:
    """Defaults that no node can satisfy are corrected: waiting allocations start, with the new defaults."""

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


@pytest.mark.parametrize("has_redis", [True, False], ids=["redis", "no redis"])
@pytest.mark.parametrize(
    ("too_much", "gate"),
    [({"defaultRequest": {"cpu": "64"}}, Gate.NO_FIT), ({"max": {"memory": "1Mi"}}, Gate.LIMIT_RANGE)],
    ids=["default", "max"],
)
def test_what_waits_is_placed_as_its_limit_range_is_now(
    has_redis: bool, too_much: dict[str, object], gate: Gate
) -> None:
    """The explanation shows a LimitRange that makes pods too large for any node, or refuses them; without it waiting
    allocations start."""

    async def play(world: World) -> int:
        limits = [{"type": "Container", **too_much}]
        await world.kube.create(
            LIMIT_RANGES, {"metadata": {"name": "bounds"}, "spec": {"limits": limits}}, namespace="default"
        )
        await world.apply(
            {
                "apiVersion": "slipway.dev/v1alpha1",
                "kind": "Allocation",
                "metadata": {"name": "job", "namespace": "default"},
                "spec": {
                    "kind": "command",
                    "template": {"spec": {"containers": [{**_MAIN, "resources": {"requests": {"memory": "64Mi"}}}]}},
                },
            }
        )
        await world.when(lambda found: gate_of(found)[0] == gate)
        await world.kube.delete(LIMIT_RANGES, "bounds", namespace="default")
        found = await world.when(has_begun)
        return found.status.attempt

    assert run_world(play, Setup(nodes=2, cpus=4, has_redis=has_redis)) == 1


_MAIN = {"name": "main", "image": "local", "command": ["true"]}


def _asking(cpus: str) -> dict[str, object]:
    return {"spec": {"defaults": {"command": {"resources": {"requests": {"cpu": cpus}}}}}}
