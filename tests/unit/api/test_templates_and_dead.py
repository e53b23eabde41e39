"""Templates and dead letters."""

import pytest

from slipway.model.ids import AllocationId
from slipway.streams.ports import WorkHint
from tests.support.api_world import ApiWorld


async def test_templates_are_kept_per_workspace(world: ApiWorld) -> None:
    """Add, read, replace, list, remove."""
    body = {"name": "base", "body": {"image": "a", "priority": 1}}
    created = await world.post("/templates", body)
    assert (created.status_code, created.headers["location"]) == (201, "/api/v1/templates/base")
    assert (await world.post("/templates", body)).status_code == 409
    assert (await world.get("/templates/base")).json()["body"] == {"image": "a", "priority": 1}
    replaced = await world.http.put("/api/v1/templates/base", json={"body": {"image": "b"}})
    assert (replaced.status_code, replaced.json()["body"]) == (200, {"image": "b"})
    assert (await world.http.put("/api/v1/templates/new", json={"body": {}})).status_code == 201
    assert [each["name"] for each in (await world.get("/templates")).json()["items"]] == ["base", "new"]
    assert (await world.http.delete("/api/v1/templates/base")).status_code == 204
    assert (await world.get("/templates/base")).status_code == 404


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"body": {"immage": "a"}}, "/body/immage"),
        ({"body": {"priority": -1}}, "/body/priority"),
        ({"body": {"name": "llm"}}, "/body/name"),
        ({"body": {"template": "other"}}, "/body/template"),
        ({"body": {}, "workspace": "none"}, "/workspace"),
        ({}, "/body"),
    ],
)
async def test_a_template_must_be_part_of_a_launch(world: ApiWorld, body: dict[str, object], pointer: str) -> None:
    """A typo in it is found when it is written, not at every launch."""
    response = await world.post("/templates", {"name": "base", **body})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer)


async def test_dead_letters_are_listed_and_sent_again(world: ApiWorld) -> None:
    """With their cause; a replay takes the letter away."""
    queue = world.streams.work_queue("w")
    await world.streams.hints.send([WorkHint(namespace="default", allocation=AllocationId("llm-0123abcd"))])
    (claimed,) = await queue.claim(limit=1, block_s=0)
    await queue.dead_letter(claimed, cause="no luck")
    (letter,) = (await world.get("/dead")).json()["items"]
    assert (letter["cause"], letter["fields"]["key"]) == ("no luck", "default/llm-0123abcd")
    assert (await world.post(f"/dead/{letter['id']}/replay")).status_code == 202
    assert (await world.get("/dead")).json()["items"] == []
    assert (await world.post(f"/dead/{letter['id']}/replay")).status_code == 404
    assert (await world.post("/dead/nonsense/replay")).status_code == 422
    (again,) = await queue.claim(limit=1, block_s=0)
    assert again.hint == claimed.hint


async def test_dead_letters_need_redis(world: ApiWorld) -> None:
    """503: that is where they are kept."""
    world.server.absent = True
    assert (await world.get("/dead")).status_code == 503
