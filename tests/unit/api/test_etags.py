"""Conditions by entity tags: what a client knows already, and which version it wants to change."""

from collections.abc import Callable

import pytest

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
WRITTEN = {"/api/v1/allocations/held": {"priority": 7}, "/api/v1/jobs/held": {"weight": 7}}
"""{path: a change}"""


async def tag_at(world: ApiWorld, path: str) -> str:
    """The tag of the current version of an object at this path."""
    if path.endswith("/held"):
        await world.launch(name="held")
        assert (await world.post("/jobs", {"name": "held"})).status_code == 201
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
    answer = await world.http.patch(path, json=WRITTEN[path], headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", WRITTEN)
async def test_another_version_is_not_changed(world: ApiWorld, path: str) -> None:
    """The answer is 412, and states the current version."""
    tag = await tag_at(world, path)
    for other in (*OTHER, tag.strip('"'), tag[:-1]):
        answer = await world.http.patch(path, json=WRITTEN[path], headers={"if-match": other})
        assert answer.status_code == 412, other
        assert tag in answer.json()["detail"]
