"""The edge around every request: guard, ids, headers, problems, documents, probes."""

import asyncio
import io
import json
import logging
import re
from typing import Any

import httpx2
import pytest
from starlette.routing import Route

from slipway import errors
from slipway.api.app import ENDPOINTS
from slipway.api.auth.route_rules import PAGES
from slipway.api.http import errors as http_errors
from slipway.api.http.problems import TABLE, row_of
from slipway.api.http.request_telemetry import QUIET_PATHS
from slipway.api.settings import Settings
from slipway.api.web import assets, trace_page
from slipway.errors import ControlPlaneError, InvariantError
from slipway.installed import VERSION_HEADER, installed_version
from slipway.kube.errors import Verb
from slipway.runtime import log, telemetry
from slipway.runtime.settings import load
from tests.support.api_world import COMMAND, ApiWorld, api_world

ID = "run-1-0badcafe"
LISTEN_ELSEWHERE = ["0.0.0.0:8080", ":8080", "10.0.0.1:80", "[::]:80", "example.com:80"]


@pytest.mark.parametrize("listen", LISTEN_ELSEWHERE)
def test_without_authentication_only_loopback_is_served(listen: str) -> None:
    """The api refuses to start with such an address, and says what to do."""
    with pytest.raises(errors.InvalidError, match="loopback"):
        load(Settings, {"SLIPWAY_LISTEN": listen})


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:80", "[::1]:8080", "127.9.9.9:1"])
def test_loopback_is_fine(listen: str) -> None:
    """No further setting is needed."""
    assert load(Settings, {"SLIPWAY_LISTEN": listen}).listen == listen


OUR_HOSTS = ("localhost:80", "127.0.0.1", "[::1]:8", "a.localhost", "lab.example:1")
ODD_HOSTS = ("user@localhost", "127.0.0.1/x", "127.0.0.1:80#evil.example", "localhost:80:1", "localhost:http", "[::1")
FOREIGN_HOSTS = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.1.2.3", *ODD_HOSTS, "")


@pytest.mark.parametrize(
    ("host", "status"), [*((host, 200) for host in OUR_HOSTS), *((host, 421) for host in FOREIGN_HOSTS)]
)
async def test_only_our_own_names_are_served(host: str, status: int) -> None:
    """A foreign name that resolves to this machine gets 421."""
    async with api_world(Settings(hosts=("Lab.example",))) as world:
        assert (await world.get("/me", host=host)).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_pages_of_other_origins_may_do_nothing(world: ApiWorld, headers: dict[str, str]) -> None:
    """Without authentication, pages of other origins can neither change nor read; a program, and a page of ours,
    can."""
    for refused in (await world.post("/allocations", COMMAND, **headers), await world.get("/allocations", **headers)):
        assert (refused.status_code, refused.json()["code"]) == (403, "cross-origin")
    assert await world.names() == []
    page = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    for own in ({}, page):
        assert (await world.post("/allocations", COMMAND, **own)).status_code == 201
        assert (await world.get("/allocations", **own)).status_code == 200


async def test_a_page_next_to_ours_may_load_nothing_with_the_cookies_of_its_user() -> None:
    """Browsers send cookies with the requests of pages of the same site, such as those of another workload."""
    settings = Settings(auth="token", token_dir="/nowhere", hosts=("lab.example",), proxy_domain="apps.lab.example")
    async with api_world(settings) as world:
        for host, path in (("lab.example", "/api/v1/me"), (f"{ID}.apps.lab.example", f"/proxy/{ID}/data.json")):
            sibling = {"host": host, "sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}
            refused = await world.http.get(path, headers=sibling)
            assert (refused.status_code, refused.json()["code"]) == (403, "cross-origin")
            framed = {**sibling, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
            assert (await world.http.get(path, headers=framed)).status_code == 403
            opened = {**sibling, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
            assert (await world.http.get(path, headers=opened)).status_code == 401


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("host", "localhost"), ("host", "localhost")], "Host twice"),
        ([("host", "localhost"), ("authorization", "Bearer a"), ("authorization", "Bearer b")], "Authorization twice"),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/me", f"/proxy/{ID}/x", "/docs"])
async def test_what_can_be_read_in_two_ways_is_refused(
    world: ApiWorld, path: str, fields: list[tuple[str, str]], said: str
) -> None:
    """A proxy and the api must not read one request as two different ones."""
    refused = await world.http.send(httpx2.Request("GET", f"http://localhost{path}", headers=fields))
    assert (refused.status_code, refused.json()["code"]) == (400, "malformed")
    assert said in refused.json()["detail"]


@pytest.mark.parametrize("host", ODD_HOSTS)
async def test_a_host_is_a_name_and_a_port(host: str) -> None:
    """A host that two servers could read differently is refused, also where all host names are served."""
    async with api_world(Settings(auth="token", token_dir="/nowhere")) as world:
        refused = await world.get("/me", host=host)
        assert (refused.status_code, refused.json()["code"]) in [(400, "malformed"), (421, "unknown-host")]


async def test_a_request_without_a_host_is_refused() -> None:
    """Without the field Host the intended origin is not known, so the request is refused, also where all host names are
    served."""
    settings = Settings(auth="token", token_dir="/nowhere", listen="0.0.0.0:8080")
    async with api_world(settings) as world:
        refused = await world.get("/me", host="")
        assert (refused.status_code, refused.json()["code"]) == (400, "malformed")
        assert "no field Host" in refused.json()["detail"]


async def test_a_link_on_another_site_may_lead_here(world: ApiWorld) -> None:
    """A browser may open our page from anywhere, but not as a frame or for a script."""
    asked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await world.http.get("/docs", headers=asked)).status_code == 200
    assert (await world.http.get("/docs", headers={**asked, "sec-fetch-dest": "iframe"})).status_code == 403
    assert (await world.http.get("/docs", headers={**asked, "sec-fetch-mode": "no-cors"})).status_code == 403


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_says_that_it_is_json(world: ApiWorld, kind: str) -> None:
    """A browser sends these types, or none, for any page and without a preflight."""
    headers = {"content-type": kind} if kind else {}
    body = json.dumps(COMMAND).encode()
    for path in ("/api/v1/allocations", "/api/v1/simulate", "/api/v1/jobs"):
        answer = await world.http.post(path, content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type"), answer.text


async def test_an_answer_names_the_version_to_those_who_are_known(world: ApiWorld) -> None:
    """An answer has the version, so that no client has to ask; a caller without a valid token gets no version."""
    assert (await world.get("/me")).headers[VERSION_HEADER] == installed_version()
    assert (await world.get("/nowhere")).headers[VERSION_HEADER] == installed_version()
    settings = Settings(auth="token", token_dir="/nowhere", listen="0.0.0.0:8080")
    async with api_world(settings) as closed:
        refused = await closed.get("/me")
    assert refused.status_code == 401
    assert VERSION_HEADER not in refused.headers


async def test_a_request_has_an_id_and_safe_headers(world: ApiWorld) -> None:
    """The id is the client's own when it is valid, else a new one."""
    given = await world.get("/me", **{"x-request-id": "abc-1"})
    made = await world.get("/nowhere", **{"x-request-id": "bad id!"})
    assert given.headers["x-request-id"] == "abc-1"
    assert re.fullmatch(r"[0-9a-f]{16}", made.headers["x-request-id"])
    assert made.headers["x-content-type-options"] == "nosniff"
    assert made.headers["x-frame-options"] == "DENY"


async def test_every_answer_has_a_policy_that_allows_no_inline_code(world: ApiWorld) -> None:
    """No page, document, answer of the API or refusal may be framed by another origin, or may run inline code."""
    paths = [str(getattr(route, "path", "")) for route in world.app.routes]
    paths = [path for path in paths if path not in QUIET_PATHS]
    assert len(paths) > 100
    for path in paths:
        asked = re.sub(r"\{[^}]*\}", "x", path)
        for accept in ("text/html", "application/json"):
            if asked.endswith("/events"):
                continue  # a stream
            answer = await world.http.get(asked, headers={"accept": accept})
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy, asked
            assert "unsafe" not in policy, asked
            assert "frame-ancestors 'none'" in policy or "frame-ancestors 'self'" in policy, asked


async def test_paths_do_not_become_metric_labels(world: ApiWorld) -> None:
    """Only routes become labels, so that callers cannot make ever more metrics."""
    await world.get("/allocations/secret-name-123")
    await world.http.get("/some/unknown-path-456")
    text = telemetry.render_metrics()[1].decode()
    assert "secret-name-123" not in text
    assert "unknown-path-456" not in text
    assert 'route="/api/v1/allocations/{id}"' in text


async def test_the_trace_goes_from_the_request_into_the_object(world: ApiWorld) -> None:
    """The annotation continues the caller's trace; problems name it."""
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    telemetry.setup("api")
    try:
        headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
        answer = await world.launch(headers=headers)
        problem = (await world.get("/allocations/nope", **headers)).json()
    finally:
        telemetry.shutdown()
    annotation = (await world.stored(answer["name"])).metadata.annotations["slipway.dev/trace"]
    assert annotation.split("-")[1] == problem["traceId"] == trace_id
    assert (await world.get(f"/allocations/{answer['id']}/trace")).json()["traceId"] == trace_id


def every_error() -> list[type[ControlPlaneError]]:
    modules = (errors, http_errors)
    found = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    return sorted((each for each in found if issubclass(each, ControlPlaneError)), key=lambda each: each.__name__)


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_every_error_of_the_tree_has_a_row(error: type[ControlPlaneError]) -> None:
    """The row is its own or its parent's: 4xx for what the client can mend, and Retry-After for what passes."""
    row = row_of(error.__new__(error))
    assert 400 <= row.status < 600
    if issubclass(error, errors.TransientError):
        assert row.retry == (row.status != 502)
        assert row.status in (408, 429, 502, 503)
    if issubclass(error, errors.PermanentError) and error is not errors.DeniedError:
        assert 400 <= row.status < 500


def test_codes_are_unique() -> None:
    """A client can tell refusals apart by code; only the generic ones share."""
    codes = [row.code for kind, row in TABLE.items() if kind not in (errors.TransientError, ControlPlaneError)]
    assert len(codes) == len(set(codes))


async def test_a_broken_invariant_ends_the_process(world: ApiWorld) -> None:
    """The answer is 500 without the text of the error; the composition root gets the error."""

    async def break_it(verb: Verb, plural: str) -> None:
        if plural == "allocations" and verb is Verb.LIST:
            raise InvariantError("internal detail")

    world.kube.before = break_it
    response = await world.get("/allocations")
    assert response.status_code == 500
    assert "internal detail" not in response.text
    assert [str(each) for each in world.broken] == ["internal detail"]


async def test_a_bug_is_a_problem_without_its_text(world: ApiWorld) -> None:
    """The answer is 500 as problem+json with the id and the headers of every answer; what happened goes to the log,
    under that id."""

    async def fail(verb: Verb, plural: str) -> None:
        if plural == "allocations" and verb is Verb.LIST:
            raise ZeroDivisionError("internal detail")

    world.kube.before = fail
    written = io.StringIO()
    listener = logging.StreamHandler(written)
    listener.setFormatter(log.JsonFormatter("api", lambda: None))
    logging.getLogger().addHandler(listener)
    try:
        response = await world.get("/allocations", **{"x-request-id": "abc-1"})
    finally:
        logging.getLogger().removeHandler(listener)
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert response.headers["content-type"] == "application/problem+json"
    assert "internal detail" not in response.text
    assert response.headers["x-request-id"] == "abc-1"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    line = json.loads(written.getvalue())
    assert (line["msg"], line["request_id"], line["error"]) == ("request", "abc-1", "internal detail")


async def test_a_request_has_a_deadline() -> None:
    """A request that takes too long gets 503 with Retry-After."""
    async with api_world(Settings(request_timeout_s=0.05)) as world:

        async def hang(_verb: Verb, _plural: str) -> None:
            await asyncio.sleep(10)

        world.kube.before = hang
        response = await world.get("/allocations")
        assert (response.status_code, response.json()["code"]) == (503, "deadline")
        assert "retry-after" in response.headers


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_probes_need_no_host(world: ApiWorld, path: str) -> None:
    """Probes are served under every name and address, because a kubelet calls by address."""
    assert (await world.http.get(path, headers={"host": "10.1.2.3"})).status_code == 200


async def test_the_document_describes_every_route(world: ApiWorld) -> None:
    """The document is OpenAPI 3.1, from the same rows that are served; every reference resolves."""
    document: dict[str, Any] = (await world.http.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    described = {(path, method.upper()) for path, row in document["paths"].items() for method in row}
    assert described == {(row.path, row.method) for row in ENDPOINTS}
    served = {route.path for route in world.app.routes if isinstance(route, Route)}
    undocumented = {
        "/login",
        "/login/link",
        "/login/client",
        "/login/start",
        "/login/callback",
        "/logout",
        "/.slipway/enter",
        "/livez",
        "/readyz",
        "/metrics",
        *PAGES,
        "/docs",
        "/openapi.json",
        "/asyncapi.json",
        assets.PATH,
        trace_page.PATH,
    }
    assert {path for path in served if not path.startswith("/proxy/")} - undocumented == set(document["paths"])
    schemas = document["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/([^"]+)"', httpx2.Response(200, json=document).text):
        assert name in schemas
    launch = schemas["LaunchBody"]
    assert launch["required"] == ["kind"]
    assert launch["additionalProperties"] is False
    ids = [operation["operationId"] for row in document["paths"].values() for operation in row.values()]
    assert len(ids) == len(set(ids))


async def test_the_document_knows_both_answers_of_an_end(world: ApiWorld) -> None:
    """Both are in the document: 202 where something is ended, 200 where it has ended already."""
    paths: dict[str, Any] = (await world.http.get("/openapi.json")).json()["paths"]
    ending = [row["post"] for path, row in paths.items() if path.endswith(("{id}/kill", "/terminate"))]
    assert len(ending) > 3
    for operation in ending:
        assert {"200", "202"} <= set(operation["responses"])
        assert all("application/json" in operation["responses"][code]["content"] for code in ("200", "202"))


async def test_the_docs_page_stands_alone(world: ApiWorld) -> None:
    """The page has every route, loads nothing from elsewhere, and has no script."""
    page = await world.http.get("/docs")
    assert page.status_code == 200
    assert all(f"<code>{row.path}</code>" in page.text for row in ENDPOINTS)
    assert "<script" not in page.text
    assert not re.findall(r'(?:src|href)="(?!/|data:,")', page.text)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


async def test_long_answers_are_compressed_for_whoever_takes_that(world: ApiWorld) -> None:
    """The same answer needs fewer bytes. An answer that fits into a packet stays as it is, and so do answers to other
    clients."""
    for number in range(20):
        await world.launch(name=f"run-{number}")
    plain = await world.get("/allocations", **{"accept-encoding": "identity"})
    small = await world.get("/allocations", **{"accept-encoding": "gzip, br"})
    assert plain.json() == small.json()
    assert "content-encoding" not in plain.headers
    assert small.headers["content-encoding"] == "gzip"
    assert int(small.headers["content-length"]) < int(plain.headers["content-length"]) / 4
    assert plain.headers["vary"] == small.headers["vary"] == "Accept-Encoding"
    assert "content-encoding" not in (await world.get("/me", **{"accept-encoding": "gzip"})).headers
