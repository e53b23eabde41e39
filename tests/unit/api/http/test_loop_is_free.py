"""No request blocks the loop: whatever a body of the allowed size contains, no step takes longer than STEP_S."""

import asyncio
import gc
import json
from collections.abc import Generator
from functools import cache
from typing import Any

import pytest

from slipway.api.http.endpoint import Endpoint
from tests.support.api_world import ApiWorld
from tests.support.watchdog import Watchdog
from tests.unit.api.http.test_bad_input_matrix import BY_BODY, an_allocation, judge, path_of

Json = dict[str, Any]
STEP_S, TRIES = 0.05, 3
MOST = 1_000_000
LAUNCH = b'{"kind":"command","image":"a","command":["x"],'


def many(count: int, prefix: str = "N") -> dict[str, str]:
    """So many short entries."""
    return {f"{prefix}{number}": "" for number in range(count)}


def nested(depth: int, wide: int) -> Json:
    """Objects in objects, each with entries beside the next one."""
    found: Json = many(wide)
    for _ in range(depth):
        found = {**many(wide), "x": found}
    return found


TEMPLATE = {"spec": {"containers": [{"name": "main", "env": [{"name": f"N{n}", "value": ""} for n in range(15_000)]}]}}
HEAVY: dict[str, Json] = {
    "env and labels": {"env": many(50_000), "labels": many(20_000, "l")},
    "env": {"env": many(500)},
    "labels": {"labels": many(60_000, "l")},
    "labels within the limit": {"labels": many(250, "l")},
    "bad labels": {"labels": many(250, "_")},
    "secrets": {"secrets": many(60_000)},
    "unknown fields": many(60_000),
    "unknown fields that are long": {"x" * 9000 + str(number): 1 for number in range(100)},
    "one unknown field that is long": {"priority" * 100_000: 1},
    "deep and wide": {"template": nested(28, 2000)},
    "annotations": {"template": {"metadata": {"annotations": many(50_000)}}},
    "env of a template": {"template": TEMPLATE},
    "containers": {"template": {"spec": {"containers": [{"name": f"c{n}"} for n in range(30_000)]}}},
    "volumes": {"template": {"spec": {"volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(15_000)]}}},
    "roles": {"ranks": [{"name": f"r{n}", "count": 1} for n in range(20_000)]},
    "roles and their templates": {"ranks": [{"name": f"r{n}", "template": {"spec": {}}} for n in range(60)]},
    "ranks": {"ranks": [{"count": 4096}]},
    "roles and ranks": {"ranks": [{"name": f"r{n}", "count": 64} for n in range(60)]},
    "resources": {"ranks": [{"resources": many(50_000, "r/")}]},
    "words": {"command": ["$(X)" * 20] * 10_000},
    "one word": {"command": ["$(" * 400_000]},
    "args": {"args": ["$$(X)" * 200] * 900},
    "files": {"files": [{"path": f"f{n}", "content": ""} for n in range(20_000)]},
    "ports": {"ports": [{"port": n + 1, "name": f"p{n}"} for n in range(20_000)]},
    "a list": {"command": [0] * 400_000},
    "lists": {"command": [[]] * 300_000},
    "a name": {"name": "a" * 900_000},
    "a duration": {"maxRuntime": "1h" * 400_000},
    "a quantity": {"ranks": [{"resources": {"cpu": "1" * 900_000}}]},
    "a reason": {"reason": "r" * 900_000},
    "a scenario": {"scenario": nested(28, 2000)},
    "allocations": {"allocations": [{"allocation": f"a{n}"} for n in range(20_000)]},
    "ids": {"ids": [f"command-{n}-00000000" for n in range(20_000)]},
    "a body": {"body": {"env": many(50_000), "labels": many(20_000, "l")}},
}


@cache
def encoded() -> dict[str, bytes]:
    """The bodies: sent to every route as they are, and to /allocations as a whole launch."""
    found = {name: json.dumps(body, separators=(",", ":")).encode() for name, body in HEAVY.items()}
    assert max(map(len, found.values())) < MOST * 1.05
    return found


@pytest.fixture
def watchdog(world: ApiWorld) -> Generator[Watchdog]:
    """A watchdog of the loop that the test runs on."""
    dog = Watchdog()
    dog.leave_out(world.kube)
    gc.freeze()  # otherwise each collection would look through all objects of the tests
    with dog.watching():
        yield dog
    gc.unfreeze()


@pytest.mark.parametrize("row", BY_BODY)
async def test_large_bodies_do_not_block_the_event_loop(world: ApiWorld, watchdog: Watchdog, row: Endpoint) -> None:
    """Every route accepts or refuses each body, within short steps."""
    id_ = await an_allocation(world)
    path = path_of(row, id=id_, name="default", rank="0")
    slow: list[str] = []
    for name, body in encoded().items():
        for query in ("", "?dryRun=true") if row.path == "/api/v1/allocations" else ("",):
            # The last of two equal names counts.
            content = LAUNCH + body[1:] if row.path == "/api/v1/allocations" else body
            took: list[float] = []
            # A machine that is disturbed makes one try longer, and not each of them.
            while len(took) < TRIES and min(took, default=1.0) > STEP_S:
                await asyncio.sleep(0)  # what the test did to make it is a step of its own
                watchdog.forget()
                response = await world.http.request(
                    row.method, path + query, content=content, headers={"content-type": "application/json"}
                )
                await asyncio.sleep(0)
                judge(response, name)
                took.append(watchdog.longest.seconds)
            if min(took) > STEP_S:
                slow.append(f"{name}{query}: {min(took):.3f} s")
    assert slow == []
