"""Each bad input gets a precise problem: the status, a code, the field and what to do about it."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from slipway.crd.meta import ANNOTATION_USER
from slipway.model.lifecycle import Event
from tests.support.api_world import COMMAND, ApiWorld

Json = dict[str, Any]

CASES: list[tuple[Json, str, str]] = [
    ({**COMMAND, "immage": "x"}, "/immage", "did you mean image?"),
    ({**COMMAND, "resources": {"cpu": 1}}, "/resources", "did you mean ranks[].resources?"),
    ({**COMMAND, "ranks": [{"cont": 2}]}, "/ranks/0/cont", "did you mean count?"),
    ({**COMMAND, "kind": "jobb"}, "/kind", "must be one of notebook, "),
    ({"image": "a", "command": ["x"]}, "/kind", "is required"),
    ({**COMMAND, "ranks": [{"resources": {"cpu": "12x"}}]}, "/ranks/0/resources/cpu", "is not a quantity"),
    ({**COMMAND, "ranks": [{"resources": {"memory": "\u00b2"}}]}, "/ranks/0/resources/memory", "is not a quantity"),
    ({**COMMAND, "ranks": [{"resources": {"memory": "9" * 5000}}]}, "/ranks/0/resources/memory", ""),
    ({**COMMAND, "failurePolicy": {"rules": [{"exitCodes": ["\u00b2"], "action": "fail"}]}}, "/failurePolicy", ""),
    ({**COMMAND, "failurePolicy": {"rules": [{"exitCodes": ["9" * 5000], "action": "fail"}]}}, "/failurePolicy", ""),
    ({**COMMAND, "ranks": [{"resources": {"gpu": 1}}]}, "/ranks/0/resources/gpu", "did you mean nvidia.com/gpu?"),
    ({**COMMAND, "ranks": [{"count": "two"}]}, "/ranks/0/count", "must be a whole number, not text"),
    ({**COMMAND, "ranks": [{"count": 0}]}, "/ranks/0/count", "must be at least 1"),
    ({"kind": "command", "command": ["x"]}, "/image", "no image"),
    ({"kind": "training"}, "/command", "no command"),
    ({**COMMAND, "name": "Bad_Name"}, "/name", "lower case"),
    ({**COMMAND, "name": "a" * 41}, "/name", "must have at most 40 characters"),
    ({**COMMAND, "workspace": "No Such"}, "/workspace", "use lower case letters, digits and hyphens"),
    ({**COMMAND, "priority": 1001}, "/priority", "must be at most 1000"),
    ({**COMMAND, "maxRuntime": "soon"}, "/maxRuntime", "'soon' is not valid; such as 90s, 30m or 2h45m"),
    ({**COMMAND, "command": "python"}, "/command", "must be a list, not text"),
    ({**COMMAND, "env": {"A": 1}}, "/env/A", "must be text, not a whole number"),
    ({**COMMAND, "desired": "Stopped"}, "/desired", "leave it out"),
    ({**COMMAND, "signals": {"ready": True}}, "/signals", "leave it out"),
    ({**COMMAND, "labels": {"slipway.dev/rank": "1"}}, "/labels/slipway.dev~1rank", "reserved for Slipway"),
    ({**COMMAND, "labels": {"a": "not ok!"}}, "/labels", ""),
    ({**COMMAND, "minAvailable": 3}, "/minAvailable", "above the 1 ranks"),
    ({**COMMAND, "template": "none-such"}, "/template", "there is no template none-such"),
    ({**COMMAND, "template": {"spec": {"hostNetwork": True}}}, "/template/spec/hostNetwork", ""),
    ({**COMMAND, "files": [{"path": "/etc/passwd", "content": ""}]}, "/files/0/path", "relative"),
]


@pytest.mark.parametrize(
    ("body", "pointer", "detail"), CASES, ids=[f"{place}{case[1]}{case[2]}" for place, case in enumerate(CASES)]
)
async def test_a_bad_launch_names_the_field(world: ApiWorld, body: Json, pointer: str, detail: str) -> None:
    """A bad launch gets 422 with the pointer, and nothing is created."""
    response = await world.post("/allocations", body)
    problem = response.json()
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["status"] == 422
    assert problem["type"] == "urn:slipway:problem:invalid"
    assert problem["instance"] == "/api/v1/allocations"
    found = {error["pointer"]: error["detail"] for error in problem["errors"]}
    at = next((each for each in found if each.startswith(pointer)), "")
    assert at, found
    assert detail in found[at]
    assert await world.names() == []


async def test_every_problem_is_told_at_once(world: ApiWorld) -> None:
    """One answer has all problems of a body."""
    body = {"kind": "training", "immage": "x", "ranks": [{"count": "a", "foo": 1}], "priority": -1}
    problem = (await world.post("/allocations", body)).json()
    assert {error["pointer"] for error in problem["errors"]} == {
        "/immage",
        "/ranks/0/count",
        "/ranks/0/foo",
        "/priority",
    }
    assert problem["detail"].startswith("4 problems")


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (b"{", "application/json", 400, "malformed"),
        (b"[1]", "application/json", 400, "malformed"),
        (b"\xff\xfe", "application/json", 400, "malformed"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "application/json", 400, "malformed"),
        (b'{"a":' * 100_000, "application/json", 400, "malformed"),
        (b"kind=command", "application/x-www-form-urlencoded", 415, "unsupported-media-type"),
        (b"x" * (2 * 1024 * 1024), "application/json", 413, "body-too-large"),
        (b"{}", "application/json", 422, "invalid"),
    ],
)
async def test_a_body_that_can_not_be_read(
    world: ApiWorld, content: bytes, media_type: str, status: int, code: str
) -> None:
    """Each kind of body has its own status."""
    response = await world.http.post("/api/v1/allocations", content=content, headers={"content-type": media_type})
    assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.parametrize("length", [b"\xb2", b"9" * 5000, b"-1", b"1_0", b" "])
@pytest.mark.parametrize(("method", "path"), [("POST", "/allocations"), ("PUT", "/contexts")])
async def test_a_length_that_is_no_number_is_overlooked(world: ApiWorld, method: str, path: str, length: bytes) -> None:
    """The length is ignored and the body is judged: neither body is a launch or an archive."""
    kind = b"application/json" if method == "POST" else b"application/gzip"
    headers = {b"content-length": length, b"content-type": kind}
    answer = await world.http.request(method, f"/api/v1{path}", content=b"[1]", headers=headers)
    expected = (400, "malformed") if method == "POST" else (422, "invalid-archive")
    assert (answer.status_code, answer.json()["code"]) == expected, answer.text


async def test_a_body_without_a_length_is_limited_too(world: ApiWorld) -> None:
    """The bytes that are read are counted, whatever was announced."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        for _ in range(64):
            yield b" " * 65536

    response = await world.http.post("/api/v1/allocations", content=chunks())
    assert response.status_code == 413


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "phase=Nope", "kind=nope", "active=maybe"])
async def test_bad_parameters(world: ApiWorld, query: str) -> None:
    """A bad parameter gets 400, which names it."""
    response = await world.get(f"/allocations?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "malformed")
    assert query.partition("=")[0] in response.json()["detail"]


@pytest.mark.parametrize("key", [" " * 256, "a\tb"])
async def test_a_bad_key(world: ApiWorld, key: str) -> None:
    """An Idempotency-Key is printable and short."""
    response = await world.post("/allocations", COMMAND, **{"idempotency-key": f"k{key}k"})
    assert response.status_code == 422
    assert "Idempotency-Key" in response.json()["detail"]


async def test_a_bad_user(world: ApiWorld) -> None:
    """The user becomes an annotation, so it has a limit."""
    response = await world.post("/allocations", COMMAND, **{"x-slipway-user": "x" * 200})
    assert response.status_code == 400
    assert await world.names() == []
    assert (await world.stored((await world.launch())["name"])).metadata.annotations[ANNOTATION_USER] == "unknown"


async def test_unknown_paths_and_methods(world: ApiWorld) -> None:
    """An unknown path gets 404, which says where paths are listed; a wrong method gets 405, which lists those of the
    path."""
    nowhere, wrong = await world.get("/nowhere"), await world.http.put("/api/v1/allocations", json={})
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "no-such-path")
    assert "/openapi.json" in nowhere.json()["detail"]
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method-not-allowed")
    assert {"GET", "POST"} <= set(wrong.headers["allow"].split(", "))
    assert wrong.json()["detail"] == f"PUT is not possible on this path: use {wrong.headers['allow']}"


async def test_a_kill_of_an_ended_one_is_fine(world: ApiWorld) -> None:
    """The answer is 200, and nothing changes."""
    answer = await world.launch()
    ended = await world.step(answer["name"], Event.TERMINATED)
    response = await world.post(f"/allocations/{answer['id']}/kill")
    assert response.status_code == 200
    assert await world.stored(answer["name"]) == ended
