"""GET /queues/NAME: how long work of a queue is not evicted, and what is left of the limits on its evictions."""

from typing import Any

from slipway.kube.resources import QUEUES, RESOURCE_POOLS
from slipway.model.times import format_time
from tests.support.api_world import ApiWorld


async def a_tree(world: ApiWorld, **above: Any) -> None:
    """Queue `lab` below queue `top`."""
    for name, spec in (("top", above), ("lab", {"parent": "top"})):
        await world.kube.create(QUEUES, {"metadata": {"name": name}, "spec": {"pool": "default", **spec}})


async def test_a_queue_shows_the_min_runtime_that_holds(world: ApiWorld) -> None:
    """The time is the queue's own, else that of the nearest queue above it; empty where no queue states one."""
    await a_tree(world, minRuntime="10m")
    assert (await world.get("/queues/lab")).json()["minRuntime"] == "10m"
    assert (await world.get("/queues/default")).json()["minRuntime"] == ""
    await world.kube.patch(QUEUES, "lab", {"spec": {"minRuntime": "0s"}})
    assert (await world.get("/queues/lab")).json()["minRuntime"] == "0s"


async def test_a_queue_shows_what_is_left_of_its_eviction_limits(world: ApiWorld) -> None:
    """The limits are also those of the queues above it and of the pool, with the time of the next eviction where some
    is used."""
    await a_tree(world, evictionLimit={"count": 2, "per": "1h", "burst": 3})
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"evictionLimit": {"count": 5, "per": "1m"}}})
    now_ms = int(world.clock.now() * 1000)
    pool = await world.kube.get(RESOURCE_POOLS, "default")
    used = {"queue": "top", "used": 2 * 3_600_000, "perMs": 3_600_000, "atMs": now_ms}
    status = {"epoch": 1, "tick": 1, "evicted": [used]}
    await world.kube.replace_status(RESOURCE_POOLS, {"metadata": pool.metadata.fence, "status": status})
    of_queue, of_pool = (await world.get("/queues/lab")).json()["evictionLimits"]
    assert (of_queue["of"], of_queue["left"], of_queue["burst"]) == ("top", 1, 3)
    assert of_queue["nextAt"] == format_time(now_ms / 1000 + 1800)
    assert of_pool == {"of": "", "count": 5, "per": "1m", "burst": 5, "left": 5, "nextAt": ""}
