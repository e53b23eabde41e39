"""GET /pools, GET /queues/NAME and the explanation: times in which nodes of a pool are reserved."""

from typing import Any

from slipway.kube.resources import NODES, RESOURCE_POOLS
from slipway.model.times import format_time
from tests.support.api_world import ApiWorld


async def with_windows(world: ApiWorld, *windows: dict[str, Any]) -> None:
    """The pool with these windows; one node is of rack a."""
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"windows": list(windows)}})
    await world.kube.patch(NODES, "n1", {"metadata": {"labels": {"rack": "a"}}})


def at(now: float, later_s: float) -> str:
    return format_time(now + later_s, "seconds")


async def test_a_pool_shows_its_windows_the_next_first(world: ApiWorld) -> None:
    """A window has its queues, its nodes, its start and its end; a window that is over is not shown."""
    now = world.clock.now()
    await with_windows(
        world,
        {"name": "over", "start": at(now, -7200), "duration": "1h", "maintenance": True},
        {"name": "class", "start": at(now, 3600), "duration": "2h", "queues": ["default"], "nodes": 1,
         "repeat": {"every": "Weekly"}, "timeZone": "Europe/Berlin"},
        {"name": "patch", "start": at(now, -60), "duration": "1h", "maintenance": True,
         "nodeSelector": {"rack": "a"}, "onStart": "Evict", "leadTime": "2h"},
    )  # fmt: skip
    (pool,) = (await world.get("/pools")).json()["items"]
    patch, lesson = pool["windows"]
    assert (patch["name"], patch["queues"], patch["isBegun"], patch["matching"]) == ("patch", [], True, 1)
    assert (patch["start"], patch["end"]) == (at(now, -60), at(now, 3540))
    assert (patch["onStart"], patch["leadTimeS"], patch["nodes"], patch["gpus"]) == ("Evict", 7200.0, None, None)
    assert (lesson["queues"], lesson["isBegun"], lesson["nodes"], lesson["matching"]) == (["default"], False, 1, 2)
    assert (lesson["every"], lesson["timeZone"], lesson["leadTimeS"]) == ("Weekly", "Europe/Berlin", 86400.0)
    assert (await world.get("/queues/default")).json()["windows"] == pool["windows"]


async def test_what_is_wrong_or_doubtful_about_a_window_is_said_beside_it(world: ApiWorld) -> None:
    """A window that cannot be understood has no times; an unknown queue and too many nodes are noted."""
    start = at(world.clock.now(), 60)
    await with_windows(
        world,
        {"name": "odd", "start": start, "duration": "1h", "maintenance": True, "timeZone": "Mars/Base"},
        {"name": "ghost", "start": start, "duration": "1h", "queues": ["ghost"], "nodes": 9},
    )
    (pool,) = (await world.get("/pools")).json()["items"]
    odd, ghost = pool["windows"]
    assert (odd["name"], odd["start"]) == ("odd", "")
    assert odd["notes"][0].startswith("timeZone: there is no time zone 'Mars/Base'")
    assert ghost["notes"] == [
        "the pool has no queue ghost; nothing may use the nodes for it",
        "asks for 9 nodes, and the nodes that match have 2; ask for fewer",
    ]


async def test_the_explanation_says_which_run_limit_starts_it_now(world: ApiWorld) -> None:
    """The limit follows from the time in the scheduler's message; once that time has passed, the usual help is
    shown."""
    answer = await world.launch()
    by = f"a maxRuntime that ends it by {at(world.clock.now(), 12_030)} would let it start now"
    await world.explain(answer["name"], "NoFit", f"0 of 2 nodes fit: 2 are reserved for maintenance patch; {by}")
    path = f"/allocations/{answer['id']}/explain"
    (change,) = (await world.get(path)).json()["change"]
    assert change["kind"] == "maxRuntime"
    assert change["detail"].startswith("set its maxRuntime to at most 3h20m to start now")
    assert change["detail"].endswith(f"slipway limit {answer['id']} --max-runtime 3h20m")
    await world.explain(
        answer["name"], "NoFit", f"a maxRuntime that ends it by {at(world.clock.now(), -1)} would let it start now"
    )
    assert [each["kind"] for each in (await world.get(path)).json()["change"]] == ["fit"]
