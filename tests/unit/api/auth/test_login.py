"""Browsers: a token is pasted once, and then a cookie stands for it; pages of workloads never act for their reader."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from slipway.api.auth import origins
from slipway.api.auth.rate_limit import RateLimiter
from slipway.api.auth.session import LoginSession
from slipway.api.settings import Settings
from slipway.crd.v1alpha1 import Stop
from slipway.errors import ThrottledError
from slipway.model.lifecycle import Event
from tests.support.access import CANARY, Teams, teams_world
from tests.support.api_world import ApiWorld
from tests.support.clock import FakeClock
from tests.unit.api.proxy.test_proxy import served

DOMAIN = "apps.localhost"
HOST = "localhost"
OWN = {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}
BROWSER = {"Accept": "text/html"}


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncGenerator[Teams]:
    async with teams_world("token", tmp_path, proxy_domain=DOMAIN, hosts=(HOST,), session_s=600.0) as found:
        yield found


def raw(headers: dict[str, str]) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


async def log_in(teams: Teams, token: str, *, following: str = "/", origin: str = OWN["Origin"]) -> httpx2.Response:
    form = {"token": token, "next": following}
    return await teams.world.http.post("/login", data=form, headers={"Origin": origin})


def cookie_of(answer: httpx2.Response) -> dict[str, str]:
    """The header that a browser sends from now on."""
    return {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}


def code_of(step: httpx2.Response) -> str:
    """The code in the form that leads to the origin of a workload."""
    found = re.search(r'name="code" value="([^"]+)"', step.text)
    assert found is not None, step.text
    return found[1]


async def test_a_page_may_no_more_than_read_its_workload(teams: Teams) -> None:
    """Whatever rights its reader has, a page runs no commands in ranks, reads no names of other workspaces, changes
    nothing."""
    ada = await teams.token("ada", {"*": "admin"})
    red = teams.ids["red"]
    link = await teams.world.http.post("/api/v1/login-links", json={"allocation": red}, headers=ada)
    code = dict(parse_qsl(urlsplit(str(link.json()["url"])).query))["code"]
    page = {"Host": f"{red}.{DOMAIN}"}
    entered = await teams.world.http.get(f"/.slipway/enter?code={code}", headers=page)
    ticket = {**page, **cookie_of(entered), "Sec-Fetch-Site": "same-origin", "Origin": f"http://{red}.{DOMAIN}"}
    about = f"/api/v1/allocations/{red}"
    assert (await teams.world.http.get(about, headers=ticket)).status_code == 200
    assert (await teams.world.http.get(f"{about}/logs?follow=false", headers=ticket)).status_code == 200
    plain = await teams.world.http.get(f"{about}/ranks/0/exec?command=id", headers=ticket)
    assert (plain.status_code, plain.json()["code"]) == (403, "forbidden")
    assert not guarded(f"{red}.{DOMAIN}", f"{about}/ranks/0/exec")
    assert guarded(f"{red}.{DOMAIN}", f"/proxy/{red}/socket")

    await teams.world.run(CANARY["red"], namespace="team-red")
    stop = Stop(reason="Preempted", at="2026-01-01T00:00:00Z", requeue=True, by=f"team-blue/{CANARY['blue']}")
    await teams.world.step(CANARY["red"], Event.PREEMPTING, namespace="team-red", stop=stop)
    read = await teams.world.http.get(f"{about}/signals/preemption", headers=ticket)
    assert read.json()["by"] == "work of another workspace"
    seen = await teams.world.http.get(f"{about}/signals/preemption", headers=ada)
    assert seen.json()["by"].startswith("team-blue/")


def guarded(host: str, path: str) -> bool:
    """Whether a WebSocket is let through in the origin of a workload."""
    return origins.is_inside(origins.workload_of(host, DOMAIN), "WEBSOCKET", path)


async def test_a_login_and_a_logout(teams: Teams) -> None:
    """The page refuses a token that is not valid, and accepts a valid one. Then the REST API knows the caller, until
    the logout."""
    page = await teams.world.http.get("/login?next=/docs")
    assert (page.status_code, 'value="/docs"' in page.text) == (200, True)
    assert "form-action 'self'" in page.headers["Content-Security-Policy"]
    assert page.headers["Referrer-Policy"] == "strict-origin"  # else a browser hides its origin, and is refused
    wrong = await log_in(teams, "slipway_" + "0" * 16 + "_" + "a" * 43)
    assert (wrong.status_code, "Set-Cookie" in wrong.headers) == (401, False)
    assert "unknown, expired or revoked token" in wrong.text
    token = await teams.token("ada", {"team-red": "editor"})
    answer = await log_in(teams, raw(token), following="/docs")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/docs")
    said = answer.headers["Set-Cookie"].lower()
    assert said.startswith("slipway_session=")
    assert {"httponly", "samesite=strict", "path=/", "max-age=600"} <= {part.strip() for part in said.split(";")}
    assert "domain=" not in said
    cookie = cookie_of(answer)
    assert (await teams.call("GET", "/me", cookie)).json()["user"] == "ada"
    assert "ada" in (await teams.world.http.get("/login", headers=cookie)).text
    out = await teams.world.http.post("/logout", headers={**cookie, **OWN})
    assert out.status_code == 303
    assert all("max-age=0" in value.lower() for value in out.headers.get_list("Set-Cookie"))


async def test_under_tls(teams: Teams) -> None:
    """The browser's page came by TLS, which may have ended in front of us: the cookie is Secure, and for this host
    only."""
    token = await teams.token("ada", {"team-red": "viewer"})
    said = (await log_in(teams, raw(token), origin=f"https://{HOST}")).headers["Set-Cookie"]
    assert said.startswith("__Host-slipway_session=")
    assert "secure" in said.lower()


async def test_it_ends(teams: Teams) -> None:
    """A login ends after its life, and at once when its token is revoked."""
    token = await teams.token("ada", {"team-red": "viewer"})
    cookie = cookie_of(await log_in(teams, raw(token)))
    assert (await teams.call("GET", "/me", cookie)).status_code == 200
    name, _, value = cookie["Cookie"].partition("=")
    keys = teams.world.parts.sessions.keys
    login = keys.open(value, LoginSession)
    assert login is not None
    assert 590 <= login.ends_at - teams.world.clock.now() <= 600
    over = keys.seal(msgspec.structs.replace(login, ends_at=login.ends_at - 601))
    assert (await teams.call("GET", "/me", {"Cookie": f"{name}={over}"})).status_code == 401
    assert teams.folder is not None
    for file in teams.folder.iterdir():
        file.unlink()
    await teams.look()
    assert (await teams.call("GET", "/me", cookie)).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (OWN, 201),
        ({"Origin": f"http://{HOST}"}, 201),
        ({}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": f"http://w-00000000.{DOMAIN}", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": f"http://{HOST}", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
async def test_changes_need_our_own_page(teams: Teams, headers: dict[str, str], status: int) -> None:
    """With a cookie, changes need a page of the same origin; with a token in a header they need none."""
    token = await teams.token("ada", {"team-red": "editor"})
    cookie = cookie_of(await log_in(teams, raw(token)))
    assert (await teams.launch({**cookie, **headers}, workspace="team-red")).status_code == status
    assert (await teams.launch(token, workspace="team-red")).status_code == 201


ELSEWHERE = (
    *(
        "//evil.example/",
        "https://evil.example/",
        "/\\evil.example",
        "evil",
        "javascript:alert(1)",
        "",
        "///evil.example",
    ),
    *("/\t/evil.example", "/\n/evil.example", "\t//evil.example", " //evil.example", "/\r\nSet-Cookie: a=b", "/\x00/e"),
)


@pytest.mark.parametrize("following", ELSEWHERE)
async def test_a_login_leads_nowhere_else(teams: Teams, following: str) -> None:
    """A login redirects only to our paths, also where a browser would drop or change characters, and in the pages that
    pass the address on."""
    token = await teams.token("ada", {"team-red": "viewer"})
    assert (await log_in(teams, raw(token), following=following)).headers["Location"] == "/"
    teams.world.http.cookies.clear()
    page = await teams.world.http.get("/login", params={"next": following})
    assert 'name="next" value="/"' in page.text
    linked = await teams.world.http.post("/api/v1/login-links", json={"path": "/x"}, headers=token)
    where = httpx2.URL(linked.json()["url"])
    asked = where.copy_merge_params({"next": following})
    assert (await teams.world.http.get(asked.raw_path.decode())).headers["Location"] == "/"


async def a_login(teams: Teams, name: str, *, is_secure: bool = False) -> str:
    """The sealed session of a user."""
    token = await teams.token(name, {"team-red": "viewer"})
    origin = f"{'https' if is_secure else 'http'}://{HOST}"
    cookie = cookie_of(await log_in(teams, raw(token), origin=origin))
    teams.world.http.cookies.clear()
    return cookie["Cookie"].partition("=")[2]


async def test_cookies_that_a_neighbour_has_set_do_not_displace_ours(teams: Teams) -> None:
    """A page of the parent domain can add cookies of our name: before ours, behind it, without a value, many. Ours
    counts."""
    mine = await a_login(teams, "ada")
    ours = f"slipway_session={mine}"
    for tossed in (
        f"slipway_session=forged; {ours}",
        f"{ours}; slipway_session=forged",
        f"slipway_session=; slipway_session; {ours}; slipway_session=a.b",
        "; ".join([*(f"slipway_session=forged{number}" for number in range(50)), ours]),
        "; ".join([*(f"other{number}=x" for number in range(170)), ours]),
    ):
        answer = await teams.call("GET", "/me", {"Cookie": tossed})
        assert (answer.status_code, answer.json().get("user")) == (200, "ada"), tossed[:80]


async def test_under_tls_a_neighbour_cannot_log_a_user_in(tmp_path: Path) -> None:
    """An attacker can set a cookie of the plain name for the parent domain, with their own session. It is ignored where
    the browser can keep the name that only this host may set, which a field shows that browsers send under TLS."""
    async with teams_world("token", tmp_path, proxy_domain="apps.lab.example", hosts=("lab.example",)) as teams:
        token = await teams.token("mallory", {"team-red": "viewer"})
        sessions = teams.world.parts.sessions
        sealed = sessions.keys.seal(sessions.begin(raw(token)))
        browser = {"Host": "lab.example", "Sec-Fetch-Site": "same-origin"}
        linked = await teams.world.http.post("/api/v1/login-links", json={}, headers={**token, "Host": "lab.example"})
        path = httpx2.URL(linked.json()["url"]).raw_path.decode()
        followed = await teams.world.http.get(path, headers={**browser, "Sec-Fetch-Site": "none"})
        assert followed.headers["Set-Cookie"].startswith("__Host-slipway_session=")
        teams.world.http.cookies.clear()
        tossed = await teams.call("GET", "/me", {**browser, "Cookie": f"slipway_session={sealed}"})
        assert tossed.status_code == 401
        kept = await teams.call("GET", "/me", {**browser, "Cookie": f"__Host-slipway_session={sealed}"})
        assert kept.json()["user"] == "mallory"


async def test_without_authentication_there_is_no_login(world: ApiWorld) -> None:
    """Mode `none` has no login."""
    assert (await world.http.get("/login")).status_code == 404
    assert (await world.http.post("/login", data={"token": "x"}, headers=OWN)).status_code == 404


async def echo(request: Request) -> JSONResponse:
    answer = JSONResponse({"cookies": dict(request.cookies), "headers": dict(request.headers)})
    answer.set_cookie("slipway_session", "9999999999.forged")
    answer.set_cookie("theirs", "1")
    return answer


async def a_workload(teams: Teams, port: int, headers: dict[str, str]) -> str:
    ports = [{"name": "http", "port": port}]
    made = await teams.launch(headers, workspace="default", name="book", ports=ports, kind="notebook")
    assert made.status_code == 201, made.text
    await teams.world.run("book")
    return str(made.json()["id"])


async def test_a_workload_has_an_origin_of_its_own(teams: Teams) -> None:
    """A form leads there from our origin. There only the workload is served, with no other part of the REST API, and
    our cookies do not reach it."""
    token = await teams.token("ada", {"default": "editor"})
    http = teams.world.http
    async with served(Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])) as port:
        id_ = await a_workload(teams, port, token)
        away = await http.get(f"/proxy/{id_}/lab", headers=BROWSER)
        assert (away.status_code, away.headers["Location"]) == (303, f"/login?next=/proxy/{id_}/lab")
        cookie = cookie_of(await log_in(teams, raw(token)))
        refused = await http.get(f"/proxy/{id_}/lab", headers=cookie)
        assert (refused.status_code, "SLIPWAY_PROXY_DOMAIN" in refused.text) == (403, True)
        step = await http.get(f"/proxy/{id_}/lab?a=1", headers={**cookie, **BROWSER})
        origin = f"http://{id_}.{DOMAIN}"
        assert f'action="{origin}/.slipway/enter"' in step.text
        assert origin in step.headers["Content-Security-Policy"]
        there = {"Host": f"{id_}.{DOMAIN}"}
        assert raw(token) not in step.text
        form = {"code": code_of(step), "next": f"/proxy/{id_}/lab?a=1"}
        foreign = await http.post("/.slipway/enter", data=form, headers={**there, "Origin": "http://evil.example"})
        assert foreign.status_code == 403
        entered = await http.post("/.slipway/enter", data=form, headers={**there, "Origin": OWN["Origin"]})
        assert (entered.status_code, entered.headers["Location"]) == (303, f"/proxy/{id_}/lab?a=1")
        mine = {**there, **cookie_of(entered)}
        page = await http.get(f"/proxy/{id_}/lab", headers={**mine, **BROWSER})
        assert page.status_code == 200, page.text
        assert page.json()["cookies"] == {}
        assert raw(token) not in page.text
        assert [value.partition("=")[0] for value in page.headers.get_list("Set-Cookie")] == ["theirs"]
        assert (await http.get(f"/api/v1/allocations/{id_}", headers=mine)).status_code == 200
        for path in ("/api/v1/me", "/api/v1/allocations", f"/proxy/{teams.ids['red']}/", "/login", "/docs"):
            assert (await http.get(path, headers=mine)).status_code == 404, path
        posted = await http.post(f"/proxy/{id_}/api", headers={**mine, "Origin": origin})
        assert posted.status_code == 200
        kill = await http.post(f"/api/v1/allocations/{id_}/kill", headers={**mine, "Origin": origin})
        assert kill.status_code == 404


async def test_a_user_without_access_cannot_open_the_workload(teams: Teams) -> None:
    """A user without the right gets no cookie in the origin of the workload, and no form that leads there."""
    token = await teams.token("bob", {"team-blue": "editor"})
    id_ = teams.ids["red"]
    headers = {"Host": f"{id_}.{DOMAIN}", "Origin": OWN["Origin"]}
    sessions = teams.world.parts.sessions
    code = sessions.code(sessions.begin(raw(token)), id_)
    answer = await teams.world.http.post("/.slipway/enter", data={"code": code}, headers=headers)
    assert (answer.status_code, "Set-Cookie" in answer.headers) == (404, False)
    cookie = cookie_of(await log_in(teams, raw(token)))
    step = await teams.world.http.get(f"/proxy/{id_}/", headers={**cookie, **BROWSER})
    assert (step.status_code, "/.slipway/enter" in step.text) == (404, False)


async def test_calls_of_one_user_are_limited(tmp_path: Path) -> None:
    """A user with too many calls gets 429 with Retry-After; other users are not held up."""
    async with teams_world("token", tmp_path, rate_per_s=0.01, rate_burst=3) as teams:
        ada, bob = await teams.token("ada", {"*": "viewer"}), await teams.token("bob", {"*": "viewer"})
        assert [(await teams.call("GET", "/me", ada)).status_code for _ in range(4)] == [200, 200, 200, 429]
        refused = await teams.call("GET", "/me", ada)
        assert 90 <= int(refused.headers["Retry-After"]) <= 100
        assert (await teams.call("GET", "/me", bob)).status_code == 200


def test_time_gives_calls_back_and_the_table_is_bounded() -> None:
    """Calls are given back evenly, up to a burst; the user who has not called for longest is forgotten."""
    clock = FakeClock()
    rates = RateLimiter(clock, rate_per_s=2.0, burst=1, users_max=2)
    for user in ("a", "b", "c"):
        rates.take(user)
    rates.take("a")
    with pytest.raises(ThrottledError) as refused:
        rates.take("c")
    assert refused.value.retry_after_s == pytest.approx(0.5)
    clock.advance(0.5)
    rates.take("c")
    with pytest.raises(ThrottledError):
        rates.take("c")


def test_settings_that_contradict() -> None:
    """A domain for workloads needs the names of the hosts whose pages lead there."""
    more: dict[str, Any] = {"auth": "token", "token_dir": "/x", "proxy_domain": DOMAIN}
    with pytest.raises(ValueError, match="SLIPWAY_HOSTS"):
        Settings(**more)
