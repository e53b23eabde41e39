"""Liveness is progress by the monotonic clock, readiness is every check; both say what is wrong and why."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from slipway.runtime.health import HealthApp, ProcessHealth
from slipway.runtime.http_server import HttpServer
from slipway.runtime.listen import ListenAddress, bind
from slipway.runtime.liveness import Loop
from tests.support.clock import FakeClock
from tests.support.plain_http import NO_TLS


async def _get(
    app: HealthApp, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any], bytes]:
    sent: list[Any] = []
    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "path": path, "method": method, "headers": pairs}, receive, send)
    body = sent[1]["body"]
    is_json = (b"content-type", b"application/json") in sent[0]["headers"] and body
    return sent[0]["status"], json.loads(body) if is_json else {}, body


async def test_a_fresh_process_is_alive_and_ready():
    """A fresh process, without registered checks, is alive and ready."""
    app = HealthApp(ProcessHealth(FakeClock()))
    assert (await _get(app, "/livez"))[:2] == (200, {"status": "ok", "problems": {}})
    assert (await _get(app, "/readyz"))[0] == 200


def a_loop(name: str = "tick", bound_s: float = 10) -> Loop:
    return Loop(name=name, bound_s=bound_s, moves="each step")


async def test_a_loop_past_its_bound_fails_liveness_and_is_named():
    """A loop past its bound fails liveness and is named; progress heals it, and its end removes it."""
    clock = FakeClock()
    health = ProcessHealth(clock)
    app = HealthApp(health)
    with health.watch(a_loop()) as pulse:
        clock.advance(11)
        status, body, _ = await _get(app, "/livez")
        assert status == 503
        assert body["problems"] == {"tick": "no progress for 11 s, allowed 10 s"}
        assert (await _get(app, "/readyz"))[0] == 503
        assert health.standstill() == "loop tick: no progress for 11 s, allowed 10 s"
        pulse.progress()
        assert health.liveness().ok
        assert health.standstill() is None
        clock.advance(11)
    assert health.liveness().ok


def test_an_announced_pause_extends_the_bound():
    """An announced pause extends the bound, because a loop that backs off is not hung."""
    clock = FakeClock()
    health = ProcessHealth(clock)
    with health.watch(a_loop()) as pulse:
        pulse.failed("down", next_in_s=30)
        clock.advance(39)
        assert health.liveness().ok
        clock.advance(2)
        assert not health.liveness().ok


def test_a_failing_dependency_never_fails_liveness():
    """A failing dependency does not fail liveness, because a restart would not help; a required loop affects only
    readiness."""
    health = ProcessHealth(FakeClock())
    with health.watch(a_loop("feed")) as feed, health.watch(a_loop("watch"), required=True) as watch:
        for pulse in (feed, watch):
            pulse.failed("cannot reach redis://u:hunter2@h")
            pulse.failed("cannot reach redis://u:hunter2@h")
        assert health.liveness().ok
        assert health.readiness().problems == {"watch": "failed 2 times in a row: cannot reach redis://u:***@h"}
        watch.progress()
        assert health.readiness().ok


async def test_readiness_lists_each_failing_check_with_its_reason():
    """Readiness lists each failing check with its reason; the checks run at every probe."""
    health = ProcessHealth(FakeClock())
    reasons: dict[str, str | None] = {"pods": "not synced", "nodes": None}
    for name in reasons:
        health.add_check(name, lambda name=name: reasons[name])
    status, body, _ = await _get(HealthApp(health), "/readyz")
    assert (status, body) == (503, {"status": "failing", "problems": {"pods": "not synced"}})
    reasons["pods"] = None
    assert health.readiness().ok
    reasons["pods"] = "lost"
    health.remove_check("pods")
    assert health.readiness().ok


def test_a_draining_process_is_alive_but_not_ready():
    """A draining process is alive but not ready, so that traffic moves away before it ends."""
    health = ProcessHealth(FakeClock())
    health.drain()
    assert health.liveness().ok
    assert health.readiness().problems == {"drain": "the process is stopping"}


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/metrics", "GET", 200), ("/livez", "HEAD", 200), ("/livez", "POST", 405), ("/", "GET", 404)],
)
async def test_routes(path: str, method: str, status: int):
    """There are three paths and two methods; HEAD has no body."""
    answered, _, body = await _get(HealthApp(ProcessHealth(FakeClock())), path, method)
    assert answered == status
    assert (body == b"") is (method == "HEAD")


async def test_the_server_answers_on_a_free_port_until_it_is_told_to_stop():
    """The server answers on a free port, which is known before the first request, and stops promptly."""
    stop = asyncio.Event()
    with bind(ListenAddress("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        server = HttpServer(HealthApp(ProcessHealth(FakeClock())), [listener], drain_timeout_s=2, websockets=False)
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve(stop.wait))
            async with httpx2.AsyncClient(base_url=f"http://{host}:{port}", verify=NO_TLS, trust_env=False) as client:
                answer = await client.get("/livez")
                assert (answer.status_code, answer.json()["status"]) == (200, "ok")
                assert "server" not in answer.headers
                assert b"slipway_loop_steps" in (await client.get("/metrics")).content
            stop.set()


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [
        ("/metrics", {}, 401),
        ("/metrics", {"authorization": "Bearer wrong"}, 401),
        ("/metrics", {"authorization": "Basic s3cret"}, 401),
        ("/metrics", {"authorization": "Bearer s3cret"}, 200),
        ("/readyz", {}, 200),
        ("/readyz", {"origin": "http://evil.example"}, 403),
        ("/livez", {"host": "evil.example"}, 421),
        ("/metrics", {"authorization": "Bearer s3cret", "sec-fetch-site": "cross-site"}, 403),
    ],
)
async def test_with_a_token_the_numbers_are_not_for_everybody(path: str, headers: dict[str, str], code: int):
    """With a token the metrics need it and the probes do not; web pages of other sites get neither."""
    named = {"host": "127.0.0.1:1", **headers}
    status, _, _ = await _get(HealthApp(ProcessHealth(FakeClock()), "s3cret"), path, headers=named)
    assert status == code
