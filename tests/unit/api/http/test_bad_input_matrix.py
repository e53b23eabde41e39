"""Every route against every kind of bad input: never a 5xx, always a problem that says what to do.

The matrix is made from the routes themselves, so that it covers a new route from its first day. It does not know what a
route does: it checks that nonsense is refused, and what a refusal looks like.
"""

import asyncio
import itertools
import json
import random
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
import pytest

from slipway.api.app import ENDPOINTS
from slipway.api.http.endpoint import Endpoint
from tests.support.api_world import ApiWorld

Json = dict[str, Any]

ANSWER_S = 5.0
DEEP = '{"a":' * 60 + "1" + "}" * 60
BODIES: dict[str, tuple[bytes, str]] = {
    "not-json": (b"{", "application/json"),
    "a-list": (b"[1, 2]", "application/json"),
    "a-word": (b'"words"', "application/json"),
    "null": (b"null", "application/json"),
    "not-utf8": (b'{"a": "\xff"}', "application/json"),
    "lone-surrogate": (b'{"name": "\\ud800", "reason": "\\ud800", "body": {"image": "\\udfff"}}', "application/json"),
    "nul": (b'{"name": "a\\u0000b", "reason": "\\u0000", "workspace": "\\u0000"}', "application/json"),
    "deep": (DEEP.encode(), "application/json"),
    "very-deep": (b'{"a":' * 50_000, "application/json"),
    "huge-number": (b'{"priority": 1e999, "count": 123456789012345678901234567890}', "application/json"),
    "not-a-number": (b'{"priority": NaN}', "application/json"),
    "unknown-field": (b'{"noSuchField": 1}', "application/json"),
    "twice": (b'{"priority": 1, "priority": "x"}', "application/json"),
    "yaml": (b"kind: command", "application/yaml"),
    "a-form": (b"kind=command", "application/x-www-form-urlencoded"),
    "too-large": (b'{"a": "' + b"x" * (2 * 1024 * 1024) + b'"}', "application/json"),
}
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 2**63, -(2**70), 1e308, "", " ", "x" * 5000, "\x00", "\u202e\ufeff", "../../etc", "%00",
    [], [[]], [None], {}, {"": None}, {"a": {"b": [1]}}, ["a", 1], "2026-13-99T99:99:99Z", "-5m", "NaN", {"$ne": 1},
    10**400, "²", "9" * 4301, "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59",
)  # fmt: skip
QUERIES = (
    "",
    "x",
    "-1",
    "0",
    "99999999999999999999",
    "NaN",
    "1e9",
    "true,false",
    "a=b&c",
    "\x00",
    "%ff",
    "☃",
    "a" * 4000,
    "../..",
    "²",
    "4-²",
    "9" * 5000,
    "0001-01-01",
    "9999-12-31",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "9999-12-31T23:59:59.999999Z",
    "9999999h",
)
PATHS = (
    "nope", "%2e%2e%2f%2e%2e", "a" * 300, "%00", "%ff", "UPPER", "-x", "a b", "☃", "a;b", "'; drop",
    "${x}", "%0a", "default", "0" * 64, "²", "9" * 5000,
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
ETAGS = ('"x"', "x", 'W/"1"', "*", '""', "1, 2", "\x7f", "9" * 400)

_NOUN = re.compile(r"\{(\w+)(?::\w+)?\}")
WITH_QUERY = [pytest.param(row, id=f"{row.method} {row.path}") for row in ENDPOINTS if row.query]
WITH_BODY = [
    pytest.param(row, id=f"{row.method} {row.path}") for row in ENDPOINTS if row.method in ("POST", "PUT", "PATCH")
]


BY_BODY = [
    pytest.param(row, id=f"{row.method} {row.path}")
    for row in {(str(row.body), row.handler): row for row in reversed(ENDPOINTS) if row.body}.values()
    if not row.path.endswith(("/notebooks", "/shells", "/commands", "/tensorboards", "/trainings"))
]
"""One route for each body; the collections of one kind are left out, since they accept a launch as /allocations
does."""


def path_of(row: Endpoint, **known: str) -> str:
    """The path with a value in each place: that of `known`, else `nope`."""
    return _NOUN.sub(lambda match: known.get(match[1], "nope"), row.path)


def _fits(pattern: str, path: str) -> bool:
    return re.fullmatch(_NOUN.sub("[^/]+", pattern), path) is not None


async def an_allocation(world: ApiWorld) -> str:
    """The id of a running allocation, so that routes get further than the lookup."""
    launched = await world.launch(name="victim", ranks=[{"count": 2}])
    await world.run("victim")
    return str(launched["id"])


def judge(response: httpx2.Response, what: str) -> None:
    """Assert that the answer is no fault of the api, and that a refusal is a problem that says why."""
    told = f"{what}: {response.status_code} {response.text[:300]}"
    assert response.status_code < 500 or response.json().get("code") in ("redis-unavailable", "unavailable"), told
    if response.status_code < 400 or response.request.method == "HEAD":
        return
    assert response.headers["content-type"] == "application/problem+json", told
    problem = response.json()
    assert problem["status"] == response.status_code, told
    assert len(problem["detail"]) > 8, told
    for error in problem.get("errors", []):
        assert error["pointer"] == "" or error["pointer"].startswith("/"), told
        assert error["detail"], told
    assert not re.search(r"Traceback|msgspec|starlette|<class|object at 0x", response.text), told


async def send(world: ApiWorld, method: str, path: str, **how: Any) -> httpx2.Response:
    """One request. The process is about to stop, so that streams and long polls end at once."""
    world.stop.set()
    async with asyncio.timeout(ANSWER_S):
        return await world.http.request(method, path, **how)


@pytest.mark.matrix(most=14)
@pytest.mark.parametrize("row", WITH_BODY)
async def test_bodies_that_are_none(world: ApiWorld, row: Endpoint) -> None:
    """A body that is not JSON, of another type, too large, too deep or no text gets 4xx from every route that reads a
    body."""
    id_ = await an_allocation(world)
    for name, (content, media_type) in BODIES.items():
        path = path_of(row, id=id_, name="default", rank="0")
        response = await send(world, row.method, path, content=content, headers={"content-type": media_type})
        judge(response, name)
        is_unread = row.body is None
        assert is_unread or response.status_code >= 400, f"{name} was taken: {response.text[:200]}"


@pytest.mark.matrix(most=6)
@pytest.mark.parametrize("row", BY_BODY)
async def test_every_field_of_every_body(world: ApiWorld, row: Endpoint) -> None:
    """Each field with each odd value is accepted, or refused with a pointer at the field or below it."""
    id_ = await an_allocation(world)
    fields = [field.encode_name for field in msgspec.structs.fields(row.body)]
    sound = _sound(row)
    for field, value in itertools.product(fields, VALUES):
        body = {**sound, field: value}
        path = path_of(row, id=id_, name="default", rank="0")
        try:
            content = json.dumps(body).encode()
        except UnicodeEncodeError:
            continue
        response = await send(world, row.method, path, content=content, headers={"content-type": "application/json"})
        judge(response, f"{field}={value!r:.60}")
        if response.status_code == 422 and response.json()["code"] == "invalid":
            pointers = [error["pointer"] for error in response.json().get("errors", [])]
            assert pointers, f"{field}={value!r:.60} is refused without a pointer: {response.text[:300]}"


@pytest.mark.matrix(most=8)
@pytest.mark.parametrize("row", WITH_QUERY)
async def test_query_parameters(world: ApiWorld, row: Endpoint) -> None:
    """Nonsense in a parameter is never a fault of the api, and a value of another type is refused."""
    id_ = await an_allocation(world)
    for query in row.query:
        for value in QUERIES:
            path = path_of(row, id=id_, name="default", rank="0")
            if row.is_long and query.name in ("timeout_seconds", "timeoutSeconds") and value in ("", "0"):
                continue
            # A followed log in plain text that ends with the process has no end, which only a connection can show.
            headers = {"accept": "text/event-stream"} if query.name == "follow" else {}
            body = b"{}" if row.body else b""
            response = await send(world, row.method, path, params={query.name: value}, content=body, headers=headers)
            judge(response, f"?{query.name}={value!r:.60}")
            if query.type != "string" and value in ("x", "-1", "NaN", "☃", "99999999999999999999"):
                assert response.status_code >= 400, f"?{query.name}={value!r:.60} was taken"


async def test_path_parameters(world: ApiWorld) -> None:
    """Names that nothing has, and names that lead elsewhere, find nothing and never get a 5xx."""
    for row, value in itertools.product([row for row in ENDPOINTS if "{" in row.path], PATHS):
        filled = _NOUN.sub(lambda _match, value=value: value, row.path)
        response = await send(world, row.method, filled, content=b"{}" if row.body else b"")
        judge(response, f"{row.method} {row.path} with {value}")
        if value != "default":
            assert response.status_code >= 400, f"{row.path}: {value} was found: {response.text[:200]}"


async def test_one_path_parameter_of_several(world: ApiWorld) -> None:
    """Nonsense in one place is refused also while the others name what exists, so that the route gets further."""
    known = {"id": await an_allocation(world), "name": "default", "rank": "0", "pool": "default"}
    for row in (each for each in ENDPOINTS if len(_NOUN.findall(each.path)) > 1):
        for noun, value in itertools.product(_NOUN.findall(row.path), PATHS):
            response = await send(
                world, row.method, path_of(row, **{**known, noun: value}), content=b"{}" if row.body else b""
            )
            judge(response, f"{row.method} {row.path} with {noun}={value:.60}")
            assert response.status_code >= 400, f"{row.path}: {noun}={value:.60} was found: {response.text[:200]}"


async def test_wrong_methods(world: ApiWorld) -> None:
    """Each wrong method gets 405 with the right ones."""
    for path, method in itertools.product(sorted({row.path for row in ENDPOINTS}), METHODS):
        known = {row.method for row in ENDPOINTS if row.path == path}
        here = _NOUN.sub("nope", path)
        if any(row.method == method and _fits(row.path, here) for row in ENDPOINTS):
            continue
        response = await send(world, method, here)
        judge(response, f"{method} {path}")
        assert response.status_code == 405, f"{method} {path}: {response.status_code}"
        assert known & set(response.headers["allow"].replace(" ", "").split(","))


@pytest.mark.matrix(most=10)
@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.method} {row.path}") for row in ENDPOINTS])
async def test_headers(world: ApiWorld, row: Endpoint) -> None:
    """Nonsense in conditions, Idempotency-Key, user, Accept, Last-Event-ID or traceparent is refused or ignored."""
    id_ = await an_allocation(world)
    names = ("idempotency-key", "x-slipway-user", "last-event-id")
    headers = list(itertools.product(("if-match", "if-none-match"), ETAGS))
    headers += list(itertools.product(names, ("\t", "☃", "x" * 9000)))
    headers += [("accept", "image/png"), ("accept", ";;;"), ("traceparent", "00-zz")]
    headers += [("content-length", "-1"), ("range", "x")]
    path = path_of(row, id=id_, name="default", rank="0")
    for name, value in headers:
        response = await send(world, row.method, path, headers={name: value.encode()}, content=b"")
        judge(response, f"{row.method} {row.path} {name}: {value!r:.60}")


async def test_continue_tokens(world: ApiWorld) -> None:
    """A token that no page has had, a damaged one and one of another list are refused, with words about the token."""
    lists = {
        "/api/v1/allocations?limit=1": (422, "invalid continue token"),
        "/api/v1/allocations?limit=1&sort=name": (400, "parameter continue"),
        "/api/v1/queues/default/waiting?limit=1": (400, "parameter continue"),
    }
    for name in ("a", "b"):
        await world.launch(name=name)
    tokens = [(await world.http.get(path)).json()["metadata"]["continue"] for path in lists]
    for own, (path, (status, words)) in zip(tokens, lists.items(), strict=True):
        others = [token for token in tokens if token != own]
        for token in ("x", "eyJ2IjoxfQ", "☃", "a" * 3000, "\x00", own[1:], own[:-3], *others):
            response = await world.http.get(f"{path}&continue={quote(token)}")
            judge(response, token)
            assert (response.status_code, words in response.json()["detail"]) == (status, True), response.text
        assert (await world.http.get(f"{path}&continue={quote(own)}")).status_code == 200


async def test_random_bodies(world: ApiWorld) -> None:
    """Three hundred launches of random shapes are refused or accepted, and none is a fault of the api."""
    chance = random.Random(11)
    fields = list(_fields_of_a_launch())
    for _ in range(300):
        body = {chance.choice(fields): _random_value(chance, 3) for _ in range(chance.randint(1, 6))}
        content = json.dumps({"kind": "command", "image": "a", "command": ["x"], **body}).encode()
        query = "?dryRun=true" if chance.random() < 0.7 else ""
        judge(await world.http.post(f"/api/v1/allocations{query}", content=content), content.decode()[:200])


def _fields_of_a_launch() -> Iterator[str]:
    row = next(each for each in ENDPOINTS if (each.method, each.path) == ("POST", "/api/v1/allocations"))
    for field in msgspec.structs.fields(row.body):
        yield field.encode_name


def _random_value(chance: random.Random, depth: int) -> Any:
    kind = chance.randint(0, 6 if depth else 4)
    if kind == 5:
        return [_random_value(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    if kind == 6:
        keys = ("spec", "containers", "metadata", "name", "count", "resources", "cpu", "a/b", "", "template", "volumes")
        return {chance.choice(keys): _random_value(chance, depth - 1) for _ in range(chance.randint(0, 3))}
    return chance.choice(VALUES[:20])


def _sound(row: Endpoint) -> Json:
    """A body that the route accepts."""
    known: Json = {
        "name": "sound", "kind": "command", "image": "a", "command": ["x"], "priority": 1, "body": {}, "reason": "r",
        "url": "http://127.0.0.1:9/", "rank": 0, "ranks": None, "workspace": "default", "progress": 0.5,
        "verb": "kill",
    }  # fmt: skip
    found: Json = {}
    for field in msgspec.structs.fields(row.body):
        if field.required and known.get(field.encode_name) is not None:
            found[field.encode_name] = known[field.encode_name]
    if row.path.endswith("/allocations/batch"):
        found |= {"ids": ["sound"]}
    if row.path.endswith("/allocations/launches"):
        found |= {"launch": {"kind": "command", "image": "a", "command": ["x"]}, "each": [{"name": "sound"}]}
    if row.path.endswith(("/allocations",)):
        found |= {"image": "a", "command": ["x"]}
    return found
