"""Requests of web pages to the local API server: with other host names, from other origins, and those that a browser
sends without a preflight."""

import httpx2
import pytest

from slipway.local.apiserver.http import create_app
from tests.unit.local.apiserver.support import a_core

CONFIGS = "/api/v1/namespaces/default/configmaps"
OPENS = {"authorization": "Bearer t"}
BODY = b'{"metadata": {"name": "made"}}'
JSON = {"content-type": "application/json"}


def _client(host: str = "localhost", *, names: tuple[str, ...] = ()) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=create_app(a_core(), token="t", hosts=names))
    return httpx2.AsyncClient(transport=transport, base_url=f"http://{host}")


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost:6443", 200),
        ("127.0.0.1:1", 200),
        ("127.9.8.7", 200),
        ("[::1]:8", 200),
        ("cluster.test", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("10.0.0.1", 421),
    ],
)
async def test_only_own_names_are_served(host: str, code: int) -> None:
    """A name of another that resolves to this machine is refused, also with the token."""
    async with _client(host, names=("cluster.test",)) as client:
        answer = await client.get(CONFIGS, headers=OPENS)
    assert answer.status_code == code
    assert code == 200 or "is not served here" in answer.json()["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:8080"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example", "connection": "upgrade", "upgrade": "websocket"},
        {"origin": "https://evil.example", "connection": "upgrade", "upgrade": "SPDY/3.1"},
    ],
)
async def test_pages_of_other_origins_may_do_nothing(headers: dict[str, str]) -> None:
    """Pages of other origins can neither read nor change nor upgrade, with any token."""
    async with _client() as client:
        read = await client.get(CONFIGS, headers={**OPENS, **headers})
        made = await client.post(CONFIGS, content=BODY, headers={**OPENS, **JSON, **headers})
        probe = await client.get("/readyz", headers=headers)
    assert [read.status_code, made.status_code, probe.status_code] == [403, 403, 403]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_says_what_it_is(kind: str) -> None:
    """A body requires a content type that a browser cannot send without a preflight, also for a delete."""
    headers = {**OPENS, **({"content-type": kind} if kind else {})}
    async with _client() as client:
        for method, path in (
            ("POST", CONFIGS),
            ("PUT", f"{CONFIGS}/a"),
            ("PATCH", f"{CONFIGS}/a"),
            ("DELETE", f"{CONFIGS}/a"),
        ):
            assert (await client.request(method, path, content=BODY, headers=headers)).status_code == 415, method
        assert (await client.get(CONFIGS, headers=OPENS)).json()["items"] == []


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Bearer t2", "Basic dDp0", "t2"])
async def test_without_the_token_there_is_health_and_nothing_else(given: str) -> None:
    """Without the token only the health is served, not discovery, OpenAPI or the version."""
    headers = {"authorization": given} if given else {}
    async with _client() as client:
        for path in (CONFIGS, "/", "/api", "/apis", "/version", "/openapi/v3", "/metrics"):
            assert (await client.get(path, headers=headers)).status_code == 401, path
        codes = {(await client.get(path)).status_code for path in ("/livez", "/readyz", "/healthz")}
    assert codes == {200}
