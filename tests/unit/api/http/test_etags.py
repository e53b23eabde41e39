"""Conditions by entity tags: what a client knows already, and which version it wants to change."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from slipway.api.app import ENDPOINTS
from slipway.api.http.openapi import document
from slipway.errors import StaleError
from slipway.kube.errors import Verb
from tests.support.api_world import ApiWorld

CURRENT: dict[str, Callable[[str], list[str]]] = {
    "the-tag": lambda tag: [tag],
    "weak": lambda tag: [f"W/{tag}"],
    "a-list": lambda tag: [f'"x", {tag}'],
    "a-list-without-spaces": lambda tag: [f'"x",W/{tag},"y"'],
    "two-headers": lambda tag: ['"x"', tag],
    "any": lambda tag: ["*"],
}
"""{name: values of the header that name the current version}"""
OTHER = ('"x"', 'W/"x"', '"x", "y"', "x", '""', 'w/"x"', "\x7f", "9" * 400)
PATHS = ("/api/v1/allocations/held", "/cluster", "/assets/terminal/terminal.js")
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "/api/v1/allocations/held": ("PATCH", {"priority": 7}),
    "/api/v1/jobs/held": ("PATCH", {"weight": 7}),
    "/api/v1/templates/held": ("PUT", {"body": {"image": "b"}}),
}
"""{path: (method, body) of a change}"""


async def tag_at(world: ApiWorld, path: str) -> str:
    """The tag of the current version of an object at this path."""
    if path.endswith("/held"):
        await world.launch(name="held")
        assert (await world.post("/jobs", {"name": "held"})).status_code == 201
        assert (await world.post("/templates", {"name": "held", "body": {"image": "a"}})).status_code == 201
    return (await world.http.get(path)).headers["etag"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("written", CURRENT)
async def test_what_a_client_has_is_not_sent_again(world: ApiWorld, path: str, written: str) -> None:
    """The answer is 304 with the tag and without a body, for each form of If-None-Match that names the version."""
    tag = await tag_at(world, path)
    answer = await world.http.get(path, headers=[("if-none-match", each) for each in CURRENT[written](tag)])
    assert (answer.status_code, answer.headers["etag"], answer.content) == (304, tag, b"")


@pytest.mark.parametrize("path", PATHS)
async def test_another_version_is_sent(world: ApiWorld, path: str) -> None:
    """The answer is 200 for a tag that is not the current one, and for a text that is no tag at all."""
    tag = await tag_at(world, path)
    for other in (*OTHER, tag.strip('"'), tag[:-1]):
        answer = await world.http.get(path, headers={"if-none-match": other})
        assert answer.status_code == 200, other


@pytest.mark.parametrize("path", WRITTEN)
@pytest.mark.parametrize("written", CURRENT)
async def test_the_version_that_a_client_names_is_changed(world: ApiWorld, path: str, written: str) -> None:
    """The answer is 200 for each form of If-Match that names the version."""
    tag = await tag_at(world, path)
    headers = [("if-match", each) for each in CURRENT[written](tag)]
    method, body = WRITTEN[path]
    answer = await world.http.request(method, path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert (await world.http.get(path)).headers["etag"] not in ("", tag)


@pytest.mark.parametrize("path", WRITTEN)
async def test_only_the_version_that_a_client_names_is_deleted(world: ApiWorld, path: str) -> None:
    """412 for any other, and the object stays; also when it changes between the comparison and the write."""
    tag = await tag_at(world, path)
    for other in OTHER:
        refused = await world.http.delete(path, headers={"if-match": other})
        assert (refused.status_code, tag in refused.json()["detail"]) == (412, True), other

    async def changed_first(verb: Verb, _plural: str) -> None:
        if verb is Verb.DELETE:
            raise StaleError("the object has been modified")

    world.kube.before, before = changed_first, world.kube.before
    assert (await world.http.delete(path, headers={"if-match": tag})).status_code == 412
    world.kube.before = before
    assert (await world.http.delete(path, headers={"if-match": tag})).status_code in (202, 204)


async def test_a_put_with_a_condition_adds_nothing(world: ApiWorld) -> None:
    """Whoever names a version, or any version, means an object that is there."""
    for tag in ("*", '"1"'):
        answer = await world.http.put("/api/v1/templates/none", json={"body": {}}, headers={"if-match": tag})
        assert (answer.status_code, "there is no template none" in answer.json()["detail"]) == (412, True)
    assert (await world.get("/templates/none")).status_code == 404


def test_each_object_whose_version_is_shown_is_held_to_it() -> None:
    """Where GET shows a `resourceVersion`, each write at the same path takes If-Match: the OpenAPI document says so."""
    shown = {
        row.path
        for row in ENDPOINTS
        if row.method == "GET" and any(each.name == "resource_version" for each in fields_of(row.answer))
    }
    writes = [row for row in ENDPOINTS if row.path in shown and row.method in ("PUT", "PATCH", "DELETE")]
    paths = document(ENDPOINTS, "1")["paths"]
    for row in writes:
        parameters = paths[row.path][row.method.lower()]["parameters"]
        assert any(each["name"] == "If-Match" for each in parameters), f"{row.method} {row.path}"
    assert {row.path for row in writes} == {*map(pattern_of, WRITTEN), "/api/v1/webhooks/{name}"}


def fields_of(answer: Any) -> tuple[Any, ...]:
    return msgspec.structs.fields(answer) if isinstance(answer, type) and issubclass(answer, msgspec.Struct) else ()


def pattern_of(path: str) -> str:
    return path.replace("held", "{id}" if "/allocations/" in path else "{name}")


@pytest.mark.parametrize("path", WRITTEN)
async def test_another_version_is_not_changed(world: ApiWorld, path: str) -> None:
    """The answer is 412, and states the current version; the object stays as it is."""
    tag = await tag_at(world, path)
    for other in (*OTHER, tag.strip('"'), tag[:-1]):
        method, body = WRITTEN[path]
        answer = await world.http.request(method, path, json=body, headers={"if-match": other})
        assert answer.status_code == 412, other
        assert tag in answer.json()["detail"]
    assert (await world.http.get(path)).headers["etag"] == tag
