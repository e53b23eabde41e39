"""Bad input gets a precise answer, over real HTTP and by the command, and nothing is lost by it."""

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.local_stack import RunningStack
from tests.support.wait import DEADLINE_S, wait_until

Json = dict[str, Any]
GOOD: Json = {"kind": "command", "command": ["true"]}
PATH = "/api/v1/allocations"


def send(stack: RunningStack, body: bytes, method: str = "POST", **headers: str) -> tuple[int, Json, dict[str, str]]:
    """Send one request; return (status, body, headers)."""
    parts = urlsplit(stack.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=DEADLINE_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(
            method, PATH, body=body, headers={**stack.headers, "Content-Type": "application/json", **named}
        )
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}"), {k.lower(): v for k, v in response.getheaders()}
    finally:
        connection.close()


def post(stack: RunningStack, body: Json, **headers: str) -> tuple[int, Json, dict[str, str]]:
    """POST a launch."""
    return send(stack, json.dumps(body).encode(), **headers)


@pytest.mark.parametrize(
    ("change", "pointer", "said"),
    [
        ({"imagee": "x"}, "/imagee", "did you mean image?"),
        ({"ranks": [{"resources": {"cpu": "many"}}]}, "/ranks/0/resources/cpu", "not a quantity"),
        ({"command": []}, "/command", "no command"),
        ({"name": "Not_A_Name"}, "/name", "lower case"),
        ({"workspace": "nowhere"}, "/workspace", "there is no namespace nowhere"),
        ({"pool": "nowhere"}, "/pool", "there is no pool nowhere"),
        ({"priority": 5000}, "/priority", "1000"),
        ({"ranks": [{"count": 0}]}, "/ranks/0/count", "1"),
        (
            {"failurePolicy": {"rules": [{"action": "fail", "exitCodes": ["0-9"]}]}},
            "/failurePolicy/rules/0/exitCodes/0",
            "0 is no failure; write exit codes from 1 to 255",
        ),
        (
            {"failurePolicy": {"rules": [{"action": "fail", "exitCode": [1]}]}},
            "/failurePolicy/rules/0/exitCode",
            "did you mean exitCodes?",
        ),
        (
            {"successPolicy": {"targets": [{"role": "worker", "count": 2}]}},
            "/successPolicy/targets/0/count",
            "2 is above 1, the number of ranks; lower it",
        ),
    ],
)
def test_a_bad_field_is_named(stack: RunningStack, change: Json, pointer: str, said: str) -> None:
    """A bad field gets 422 as problem+json, with a pointer to the field and what to write instead; nothing is
    created."""
    before = len(stack.ask(lambda api: api.get("/allocations")["items"]))
    status, problem, headers = post(stack, {**GOOD, **change})
    assert (status, headers["content-type"]) == (422, "application/problem+json")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert said in problem["errors"][0]["detail"]
    assert problem["traceId"]
    assert len(stack.ask(lambda api: api.get("/allocations")["items"])) == before


def test_a_missing_image(stack: RunningStack) -> None:
    """Without a default of the pool a missing image is refused, and the error says where to set one."""
    template = {"spec": {"containers": [{"name": "main", "command": ["true"]}, {"name": "side"}]}}
    status, problem, _ = post(stack, {"kind": "command", "template": template})
    assert status == 422
    assert "image" in problem["errors"][0]["pointer"]


@pytest.mark.parametrize("size", [2 * 1024 * 1024])
def test_a_body_that_is_too_large(stack: RunningStack, size: int) -> None:
    """A body that is too large gets 413, at once."""
    status, problem, _ = post(stack, {**GOOD, "env": {"A": "x" * size}})
    assert (status, problem["code"]) == (413, "body-too-large")


def test_bytes_that_are_no_json(stack: RunningStack) -> None:
    """A body that is no JSON gets 400, one of another media type 415."""
    assert send(stack, b"{no")[0] == 400
    assert send(stack, b"kind: command", Content_Type="application/yaml")[0] == 415


def test_one_key_with_another_body(stack: RunningStack) -> None:
    """One key gets 201, then 200 with the same id, then 422 with another body."""
    key = f"key-{time.monotonic_ns()}"
    first = post(stack, GOOD, Idempotency_Key=key)
    again = post(stack, GOOD, Idempotency_Key=key)
    other = post(stack, {**GOOD, "command": ["false"]}, Idempotency_Key=key)
    assert (first[0], again[0], other[0]) == (201, 200, 422)
    assert first[1]["id"] == again[1]["id"]
    assert other[1]["code"] == "idempotency-key-reused"


def test_a_gang_larger_than_the_pool(stack: RunningStack) -> None:
    """It is accepted with a warning, and its explanation shows why it waits; a kill ends it."""
    status, view, _ = post(stack, {**GOOD, "ranks": [{"count": 3, "resources": {"nvidia.com/gpu": 8}}]})
    assert status == 201
    assert view["warnings"]

    def code() -> str:
        return str(stack.ask(lambda api: api.get(f"/allocations/{view['id']}/explain")["code"]))

    wait_until(lambda: code() == "NoFit", "the explanation")
    assert stack.command("kill", view["id"], "--wait").code == 0
    assert stack.view(view["id"])["result"] == "Canceled"


def test_a_kill_of_what_has_ended(stack: RunningStack) -> None:
    """A kill of an ended allocation gets 200 without effect; the command succeeds too."""
    id_ = stack.launch(GOOD)
    before = stack.wait_for(id_, "Terminated")
    assert stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))["result"] == "Succeeded"
    done = stack.command("kill", id_)
    assert (done.code, "had ended" in done.out) == (0, True)
    assert stack.view(id_)["status"]["seq"] == before["status"]["seq"]


def test_the_command_says_it_too(stack: RunningStack) -> None:
    """The command returns 2 with the option, and 3 for an unknown object."""
    bad = stack.command("run", "--cpus", "many", "--", "true")
    assert (bad.code, "--cpus: 'many' is not a quantity" in bad.err) == (2, True)
    assert stack.command("describe", "nosuch").code == 3


def test_an_unreachable_kubernetes(stack: RunningStack) -> None:
    """The answer is a quick 503 with Retry-After; accepted launches still exist when Kubernetes is back."""
    id_ = stack.launch({"kind": "command", "command": ["sleep", "3"]})
    stack.halt("cluster")
    try:
        begin = time.monotonic()
        status, problem, headers = post(stack, GOOD)
        took_s = time.monotonic() - begin
        done = stack.command("run", "--detach", "--", "true")
    finally:
        stack.resume("cluster")
    assert (status, problem["code"]) == (503, "unavailable")
    assert int(headers["retry-after"]) >= 1
    assert took_s < 10
    assert done.code == 1
    assert "try again in" in done.err
    assert stack.wait_for(id_, "Terminated")["result"] == "Succeeded"
