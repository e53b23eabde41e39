"""The routes of webhooks: what is accepted, what is shown, what is refused."""

import base64
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.settings import Settings
from slipway.kube.resources import NAMESPACES, SECRETS
from tests.support.api_world import ApiWorld, api_world
from tests.support.http_stub import serve

NAMESPACE = "slipway-system"
SETTINGS = Settings(
    namespace=NAMESPACE, redis_url="redis://127.0.0.1:1", webhook_networks=("127.0.0.0/8",), webhook_timeout_s=2.0
)
URL = "https://hooks.example/in"


@pytest.fixture
async def world() -> AsyncGenerator[ApiWorld, None]:
    """An api that may send to this machine."""
    async with api_world(SETTINGS) as fresh:
        await fresh.kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        yield fresh
        await fresh.parts.sender.aclose()


async def test_a_webhook_is_added_shown_changed_and_removed(world: ApiWorld) -> None:
    """The key is in the answer to the POST and nowhere else; of the URL only the host is shown."""
    body = {
        "name": "pager",
        "url": f"{URL}/T0/B0/password?token=T",
        "events": ["dev.slipway.allocation.terminated", "running"],
    }
    created = await world.post("/webhooks", body)
    assert (created.status_code, created.headers["location"]) == (201, "/api/v1/webhooks/pager")
    view = created.json()
    assert view["secret"].startswith("whsec_")
    assert len(base64.b64decode(view["secret"].removeprefix("whsec_"))) == 32
    assert (view["url"], view["events"], view["backlog"]) == (
        "https://hooks.example/***",
        ["terminated", "running"],
        0,
    )
    shown = (await world.get("/webhooks/pager")).json()
    listed = (await world.get("/webhooks")).json()["items"]
    assert (shown, listed) == ({name: view[name] for name in view if name != "secret"}, [shown])
    changed = await world.http.patch("/api/v1/webhooks/pager", json={"enabled": False, "description": "on call"})
    assert (changed.json()["enabled"], changed.json()["description"]) == (False, "on call")
    assert "secret" not in changed.json()
    assert changed.json()["events"] == ["terminated", "running"]
    assert (await world.http.delete("/api/v1/webhooks/pager")).status_code == 204
    assert (await world.get("/webhooks")).json()["items"] == []
    assert (await world.get("/webhooks/pager")).status_code == 404


async def test_only_the_version_that_a_client_names_is_changed_or_removed(world: ApiWorld) -> None:
    """If-Match with the tag of another version is 412, and the webhook stays as it is."""
    old = (await world.post("/webhooks", {"name": "a", "url": URL})).headers["etag"]
    path = "/api/v1/webhooks/a"
    changed = await world.http.patch(path, json={"description": "x"}, headers={"if-match": old})
    tag = (await world.http.get(path)).headers["etag"]
    assert (changed.status_code, changed.headers["etag"]) == (200, tag)
    for method in ("PATCH", "DELETE"):
        refused = await world.http.request(method, path, json={"description": "y"}, headers={"if-match": old})
        assert (refused.status_code, tag in refused.json()["detail"]) == (412, True)
    assert (await world.http.delete(path, headers={"if-match": tag})).status_code == 204


async def test_a_key_may_be_given_and_changed(world: ApiWorld) -> None:
    """A generated key is shown once, in the answer to the change."""
    key = "whsec_" + base64.b64encode(b"x" * 32).decode()
    created = (await world.post("/webhooks", {"name": "a", "url": URL, "secret": key})).json()
    assert created["secret"] == key
    rotated = (await world.http.patch("/api/v1/webhooks/a", json={"rotateSecret": True})).json()
    assert rotated["secret"] not in ("", key)
    stored = await world.kube.get(SECRETS, "slipway-webhook-a", namespace=NAMESPACE)
    assert base64.b64decode(stored.data["key"]) == base64.b64decode(rotated["secret"].removeprefix("whsec_"))


async def test_a_name_is_generated_and_a_used_one_is_refused(world: ApiWorld) -> None:
    """A taken name gets 409, which says how the other webhook is changed."""
    made_up = (await world.post("/webhooks", {"url": URL})).json()["name"]
    assert made_up.startswith("hook-")
    again = await world.post("/webhooks", {"url": URL, "name": made_up})
    assert (again.status_code, again.json()["code"]) == (409, "already-exists")
    assert f"PATCH /api/v1/webhooks/{made_up}" in again.json()["detail"]


@pytest.mark.parametrize(
    ("body", "pointer", "said"),
    [
        ({}, "/url", "is required"),
        ({"url": "nowhere"}, "/url", "https://"),
        ({"url": "http://10.0.0.1/"}, "/url", "SLIPWAY_WEBHOOK_NETWORKS"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "/url", "public internet"),
        ({"url": "https://u:p@a.example/"}, "/url", "a user and password"),
        ({"url": URL, "name": "Not A Name"}, "/name", ""),
        ({"url": URL, "events": ["finished"]}, "/events/0", "known are requested"),
        ({"url": URL, "results": ["Good"]}, "/results/0", "known are Succeeded"),
        ({"url": URL, "events": ["running"], "results": ["Failed"]}, "/results", "terminated"),
        ({"url": URL, "workspaces": ["Not One"]}, "/workspaces/0", ""),
        ({"url": URL, "secret": "hunter2"}, "/secret", "whsec_"),
        ({"url": URL, "colour": "red"}, "/colour", "unknown field"),
        ({"url": URL, "enabled": "yes"}, "/enabled", "must be true or false"),
    ],
)
async def test_bad_input_is_refused_at_its_field(
    world: ApiWorld, body: dict[str, Any], pointer: str, said: str
) -> None:
    """A problem with a pointer and what to do; nothing is stored, and a key is not repeated."""
    response = await world.post("/webhooks", body)
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    [error] = response.json()["errors"]
    assert error["pointer"] == pointer
    assert said in error["detail"]
    assert "hunter2" not in response.text
    assert (await world.get("/webhooks")).json()["items"] == []


async def test_bad_changes_are_refused(world: ApiWorld) -> None:
    """A change is checked like a new webhook."""
    await world.post("/webhooks", {"name": "a", "url": URL})
    for body, pointer in (
        ({"url": "ftp://x"}, "/url"),
        ({"events": ["x"]}, "/events/0"),
        ({"name": "b"}, "/name"),
        ({"rotateSecret": True, "secret": "whsec_" + "A" * 44}, "/rotateSecret"),
    ):
        refused = await world.http.patch("/api/v1/webhooks/a", json=body)
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer)
    assert (await world.http.patch("/api/v1/webhooks/none", json={})).status_code == 404
    assert (await world.http.delete("/api/v1/webhooks/none")).status_code == 404
    assert (await world.http.delete("/api/v1/webhooks/Not%20One")).status_code in (404, 422)
    assert (await world.post("/webhooks/none/test")).status_code == 404


async def test_a_test_says_how_it_went(world: ApiWorld) -> None:
    """One message is sent at once, whatever the filters state; of the receiver's answer only the status is shown."""
    status = 200

    async def answer(_request: Request) -> Response:
        return Response("internal details", status_code=status)

    async with serve(answer) as stub:
        await world.post("/webhooks", {"name": "a", "url": stub.url, "events": ["running"], "enabled": False})
        good = (await world.post("/webhooks/a/test")).json()
        status = 500
        bad = await world.post("/webhooks/a/test")
    assert (good["delivered"], good["status"], good["detail"]) == (True, 200, "")
    assert (bad.json()["delivered"], bad.json()["detail"]) == (False, "answered 500")
    assert "internal details" not in bad.text
    assert stub.requests[0].json["type"] == "dev.slipway.webhook.test"


async def test_without_redis_nothing_can_be_delivered() -> None:
    """Without Redis (R0) a new webhook is refused with the reason, and the list is empty."""
    async with api_world(Settings(namespace=NAMESPACE)) as world:
        await world.kube.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        refused = await world.post("/webhooks", {"url": URL})
        assert refused.status_code == 409
        assert "Redis" in refused.json()["detail"]
        assert (await world.get("/webhooks")).json()["items"] == []


async def test_while_redis_is_away_webhooks_are_kept_all_the_same(world: ApiWorld) -> None:
    """Webhooks are objects of Kubernetes; only the length of their queues is not known without Redis."""
    world.server.absent = True
    assert (await world.post("/webhooks", {"name": "a", "url": URL})).status_code == 201
    assert (await world.get("/webhooks/a")).json()["backlog"] is None
    assert (await world.http.delete("/api/v1/webhooks/a")).status_code == 204


async def test_a_webhook_for_a_chat(world: ApiWorld) -> None:
    """The format and the address of the pages are stored, shown and changed; a bad value is refused at its field."""
    made = await world.post(
        "/webhooks", {"name": "chat", "url": URL, "format": "slack", "pageUrl": "https://a.example"}
    )
    assert (made.json()["format"], made.json()["pageUrl"]) == ("slack", "https://a.example")
    changed = (await world.http.patch("/api/v1/webhooks/chat", json={"format": "teams", "pageUrl": ""})).json()
    assert (changed["format"], changed["pageUrl"]) == ("teams", "")
    for field, value in (("format", "irc"), ("pageUrl", "ftp://a"), ("pageUrl", "https://a.example/?x=1|2")):
        refused = await world.post("/webhooks", {"url": URL, field: value})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["pointer"] == f"/{field}"
    plain = (await world.post("/webhooks", {"name": "plain", "url": URL})).json()
    assert (plain["format"], plain["pageUrl"]) == ("cloudevents", "")


async def test_a_trial_has_the_form_of_the_chat(world: ApiWorld) -> None:
    """What the receiver gets is a message of Slack, and no CloudEvent."""

    async def answer(_request: Request) -> Response:
        return Response("ok")

    async with serve(answer) as stub:
        await world.post("/webhooks", {"name": "chat", "url": stub.url, "format": "slack"})
        assert (await world.post("/webhooks/chat/test")).json()["delivered"]
    [got] = stub.requests
    assert got.headers["content-type"].startswith("application/json")
    assert set(got.json) == {"text", "blocks"}
