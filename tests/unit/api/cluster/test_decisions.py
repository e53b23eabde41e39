"""The decision log over HTTP: its pages contain what a replay of a range needs."""

import base64
from typing import Any

from slipway.streams.decisions import CHAIN_MAX, DecisionEntry, DecisionLogLimits
from tests.support.api_world import ApiWorld

CAPS = DecisionLogLimits(entries=1000, size=1_000_000)


async def write(world: ApiWorld, first: int, count: int) -> None:
    """Write a chain of `count` records, whose base is of tick `first`."""
    base: str | None = None
    for number in range(count):
        entry = DecisionEntry(chain=f"1-{first}", number=number, tick=first + number, data=b"data")
        cursor = await world.streams.decisions.append("default", entry, base=base, caps=CAPS)
        base = base or cursor


async def ticks(world: ApiWorld, query: str = "") -> list[int]:
    """The ticks of all pages."""
    found: list[int] = []
    after = ""
    while True:
        answer = await world.get(f"/pools/default/decisions?{query}&after={after}")
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        found += [each["tick"] for each in page["items"]]
        after = page["metadata"]["continue"]
        if not after:
            return found


async def test_the_log_is_read_page_by_page(world: ApiWorld) -> None:
    """The pages have each record once, in order, with its data."""
    await write(world, 1, 7)
    assert await ticks(world, "limit=3") == [1, 2, 3, 4, 5, 6, 7]
    [first, *_] = (await world.get("/pools/default/decisions")).json()["items"]
    assert (first["chain"], first["number"], first["size"]) == ("1-1", 0, 4)
    assert base64.b64decode(first["data"]) == b"data"
    assert (await world.get("/pools/default/decisions?data=false")).json()["items"][0]["data"] is None


async def test_a_range_comes_with_what_it_builds_on(world: ApiWorld) -> None:
    """A range begins at the base of the chain that may contain its first tick."""
    await write(world, 1, CHAIN_MAX)
    await write(world, CHAIN_MAX + 1, 10)
    assert await ticks(world, f"from={CHAIN_MAX + 5}&to={CHAIN_MAX + 6}&limit=500") == list(
        range(CHAIN_MAX + 1, CHAIN_MAX + 7)
    )
    assert (await ticks(world, "from=2&to=3&limit=500")) == [1, 2, 3]


async def test_an_empty_log_and_a_pool_that_is_not_there(world: ApiWorld) -> None:
    """A pool without decisions has an empty log; a pool that does not exist gets 404."""
    assert await ticks(world) == []
    assert (await world.get("/pools/nope/decisions")).status_code == 404


async def test_without_redis_there_is_no_log(world: ApiWorld) -> None:
    """The answer states that Redis is unavailable, and a client may try again."""
    world.server.absent = True
    answer = await world.get("/pools/default/decisions")
    assert (answer.status_code, answer.json()["code"]) == (503, "redis-unavailable")
