"""Templates and dead letters."""

import pytest

from slipway.crd.meta import ANNOTATION_USER
from slipway.kube.resources import TEMPLATES
from slipway.model.ids import AllocationId
from slipway.streams.ports import WorkHint
from slipway.streams.webhooks import Delivery
from tests.support.api_world import ApiWorld


async def test_templates_are_kept_per_workspace(world: ApiWorld) -> None:
    """A template can be added, read, replaced, listed and removed."""
    body = {"name": "base", "body": {"image": "a", "priority": 1}}
    created = await world.post("/templates", body)
    assert (created.status_code, created.headers["location"]) == (201, "/api/v1/templates/base?workspace=default")
    assert (await world.post("/templates", body)).status_code == 409
    assert (await world.get("/templates/base")).json()["body"] == {"image": "a", "priority": 1}
    replaced = await world.http.put("/api/v1/templates/base", json={"body": {"image": "b"}})
    assert (replaced.status_code, replaced.json()["body"]) == (200, {"image": "b"})
    assert (await world.http.put("/api/v1/templates/new", json={"body": {}})).status_code == 201
    assert [each["name"] for each in (await world.get("/templates")).json()["items"]] == ["base", "new"]
    assert (await world.http.delete("/api/v1/templates/base?workspace=default")).status_code == 204
    assert (await world.get("/templates/base")).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_template_keeps_what_was_written_about_it(world: ApiWorld, method: str) -> None:
    """The creator is recorded by each way to create a template; a replacement keeps creator, labels and annotations."""
    path = "/api/v1/templates/base" if method == "PUT" else "/api/v1/templates"
    body = {"name": "base", "body": {"image": "a", "env": {"A": "1"}}}
    assert (await world.http.request(method, path, json=body, headers={"X-Slipway-User": "ada"})).status_code == 201
    written = {"labels": {"team": "red"}, "annotations": {"note": "ours"}, "finalizers": ["example.org/keep"]}
    await world.kube.patch(TEMPLATES, "base", {"metadata": written}, namespace="default")
    replaced = await world.http.put(
        "/api/v1/templates/base", json={"body": {"image": "b"}}, headers={"X-Slipway-User": "eve"}
    )
    assert (replaced.status_code, replaced.json()["body"]) == (200, {"image": "b"})
    meta = (await world.kube.get(TEMPLATES, "base", namespace="default")).metadata
    assert meta.annotations == {ANNOTATION_USER: "ada", "note": "ours"}
    assert (meta.labels, meta.finalizers) == ({"team": "red"}, ["example.org/keep"])


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


async def test_dead_letters_are_listed_and_replayed(world: ApiWorld) -> None:
    """Dead letters are listed with their cause; a replay removes the letter."""
    queue = world.streams.work_queue("w")
    await world.streams.hints.send([WorkHint(namespace="default", allocation=AllocationId("llm-0123abcd"))])
    (claimed,) = await queue.claim(limit=1, block_s=0)
    await queue.dead_letter(claimed, cause="no luck")
    (letter,) = (await world.get("/dead")).json()["items"]
    assert (letter["cause"], letter["fields"]["key"]) == ("no luck", "default/llm-0123abcd")
    assert (await world.post(f"/dead/{letter['id']}/replay")).status_code == 202
    assert (await world.get("/dead")).json()["items"] == []
    assert (await world.post(f"/dead/{letter['id']}/replay")).status_code == 404
    for method, path in (("POST", "/replay"), ("GET", ""), ("DELETE", "")):
        bad = await world.http.request(method, f"/api/v1/dead/nonsense{path}")
        assert (bad.status_code, "GET /api/v1/dead lists them" in bad.json()["detail"]) == (422, True)
    (again,) = await queue.claim(limit=1, block_s=0)
    assert again.hint == claimed.hint


async def bury(world: ApiWorld, *causes: str) -> list[str]:
    """Make dead letters of the work queue, and return their ids."""
    queue = world.streams.work_queue("w")
    for cause in causes:
        await world.streams.hints.send([WorkHint(namespace="default", allocation=AllocationId("llm-0123abcd"))])
        (claimed,) = await queue.claim(limit=1, block_s=0)
        await queue.dead_letter(claimed, cause=cause)
    return [letter["id"] for letter in (await world.get("/dead")).json()["items"]]


async def test_a_dead_letter_is_shown_and_dropped(world: ApiWorld) -> None:
    """A dropped letter is gone, and nothing is sent again."""
    first, second = await bury(world, "no luck", "still none")
    shown = (await world.get(f"/dead/{first}")).json()
    assert (shown["id"], shown["cause"], shown["fields"]["key"]) == (first, "no luck", "default/llm-0123abcd")
    assert (await world.http.delete(f"/api/v1/dead/{first}")).status_code == 204
    assert (await world.http.delete(f"/api/v1/dead/{first}")).status_code == 404
    assert (await world.get(f"/dead/{first}")).status_code == 404
    assert [letter["id"] for letter in (await world.get("/dead")).json()["items"]] == [second]
    assert await world.streams.work_queue("w").claim(limit=9, block_s=0) == []


async def test_all_dead_letters_are_sent_again(world: ApiWorld) -> None:
    """The letters are those of one source, or of all; a letter whose receiver is gone stays, with the reason."""
    await bury(world, "a", "b")
    hooks = world.streams.webhooks("a")
    fields = {"id": b"llm-0123abcd/1"}
    await hooks.dead_letter(Delivery(webhook="gone", entry_id="1-1", fields=fields), cause="answered 500", tries=9)
    assert len((await world.get("/dead?source=webhook")).json()["items"]) == 1
    assert len((await world.get("/dead?source=work")).json()["items"]) == 2
    answer = await world.post("/dead/replay", {"source": "work"})
    assert (answer.status_code, answer.json()) == (202, {"replayed": 2, "refused": 0, "reasons": []})
    rest = (await world.post("/dead/replay")).json()
    assert (rest["replayed"], rest["refused"]) == (0, 1)
    assert "webhook gone was deleted" in rest["reasons"][0]
    (letter,) = (await world.get("/dead")).json()["items"]
    refused = await world.post(f"/dead/{letter['id']}/replay")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    bad = await world.post("/dead/replay", {"source": "elsewhere"})
    assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/source")
    assert (await world.post("/dead/replay", {"sauce": "work"})).status_code == 422


async def test_dead_letters_need_redis(world: ApiWorld) -> None:
    """Without Redis there is 503, because dead letters are kept there."""
    world.server.absent = True
    assert (await world.get("/dead")).status_code == 503
