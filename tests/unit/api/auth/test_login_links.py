"""One-time links: a browser logs in once, without a token to paste."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest

from slipway.api.auth.session import LIFE_S, LINKS_MAX, LINKS_OF_ONE_MAX, LoginLinks
from slipway.runtime.clock import SeededRandom
from tests.support.access import Teams, teams_world
from tests.support.clock import FakeClock
from tests.unit.api.auth.test_access_tokens import audit_lines, logged

OWN, DOMAIN = "slipway-1.localhost", "workloads-1.localhost"
LOCAL: dict[str, Any] = {"hosts": (OWN,), "proxy_domain": DOMAIN, "listen": "127.0.0.1:8080"}


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncIterator[Teams]:
    async with teams_world("token", tmp_path, **LOCAL) as world:
        yield world


async def a_link(teams: Teams, **body: str) -> str:
    """A link of a user who may do everything."""
    headers = await teams.token("ada", {"*": "admin"})
    answer = await teams.world.http.post("/api/v1/login-links", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["url"])


async def followed(teams: Teams, url: str, **headers: str) -> httpx2.Response:
    """The answer to a browser without any cookie that follows the link."""
    teams.world.http.cookies.clear()
    parts = urlsplit(url)
    return await teams.world.http.get(f"{parts.path}?{parts.query}", headers={"host": parts.netloc, **headers})


async def test_a_link_logs_in_once(teams: Teams) -> None:
    """The next address is without the code, the cookie is for no script and no other site, and a second use gets
    401."""
    url = await a_link(teams, path="/docs")
    assert (urlsplit(url).hostname, urlsplit(url).path) == (OWN, "/login/link")
    first = await followed(teams, url)
    assert (first.status_code, first.headers["location"]) == (303, "/docs")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    opened = {"cookie": cookie.partition(";")[0], "host": OWN}
    assert (await teams.world.http.get("/api/v1/me", headers=opened)).json()["user"] == "ada"
    again = await followed(teams, url)
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)
    assert "slipway open" in again.text


OPENED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
ELSEWHERE: list[dict[str, str]] = [
    {**OPENED, "sec-fetch-site": "cross-site"},
    {**OPENED, "sec-fetch-site": "same-site"},
    {"referer": "https://evil.example/page"},
]


@pytest.mark.parametrize("headers", ELSEWHERE, ids=["another site", "a neighbour", "an old browser"])
@pytest.mark.parametrize("is_workload", [False, True])
async def test_another_site_cannot_log_a_user_in(teams: Teams, headers: dict[str, str], is_workload: bool) -> None:
    """The user is asked first, and sees for whom the login is; the link stays valid until then."""
    id_ = teams.ids["red"] if is_workload else ""
    url = await a_link(teams, **({"allocation": id_} if id_ else {"path": "/docs"}))
    asked = await followed(teams, url, **headers)
    assert (asked.status_code, "set-cookie" in asked.headers) == (200, False)
    assert "Log in as ada" in asked.text
    assert "frame-ancestors 'none'" in asked.headers["content-security-policy"]
    where = urlsplit(url)
    form = {"link": dict(parse_qsl(where.query))["code"], "next": ""}
    foreign = {"host": where.netloc, "origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    refused = await teams.world.http.post(where.path, data=form, headers=foreign)
    assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
    own = {"host": where.netloc, "origin": f"http://{where.netloc}", "sec-fetch-site": "same-origin"}
    taken = await teams.world.http.post(where.path, data=form, headers=own)
    assert (taken.status_code, "set-cookie" in taken.headers) == (303, True)
    assert (await teams.world.http.post(where.path, data=form, headers=own)).status_code == 401


async def test_a_confirmed_link_to_a_workload_has_one_audit_line(teams: Teams) -> None:
    """The login by the link and the step into the origin of the workload are one call."""
    where = urlsplit(await a_link(teams, allocation=teams.ids["red"]))
    form = {"link": dict(parse_qsl(where.query))["code"], "next": ""}
    own = {"host": where.netloc, "origin": f"http://{where.netloc}", "sec-fetch-site": "same-origin"}
    with logged() as stream:
        await teams.world.http.post(where.path, data=form, headers=own)
    assert audit_lines(stream) == [("POST", "/.slipway/enter", 303)]


async def test_what_a_program_or_a_person_opens_goes_on_at_once(teams: Teams) -> None:
    """No page led there: the address was typed, or a program gave it to the browser."""
    for headers in ({**OPENED, "sec-fetch-site": "none"}, {}):
        assert (await followed(teams, await a_link(teams), **headers)).status_code == 303


async def test_a_link_ends_with_its_token(teams: Teams) -> None:
    """A link opens nothing when its token was revoked in between."""
    url = await a_link(teams)
    assert teams.folder is not None
    for file in teams.folder.iterdir():
        file.unlink()
    await teams.look()
    assert (await followed(teams, url)).status_code == 401


async def test_a_link_ends_with_its_time() -> None:
    """After its life the code opens nothing."""
    clock = FakeClock()
    links = LoginLinks(clock, SeededRandom(1))
    in_time, late = links.make("a", "ada")[0], links.make("b", "ada")[0]
    clock.advance(LIFE_S - 1)
    assert links.use(in_time) == "a"
    clock.advance(2)
    assert links.use(late) == ""


async def test_a_prefetch_does_not_use_up_the_link(teams: Teams) -> None:
    """HEAD, and what a browser loads before its user asks for it, are refused and the link stays good."""
    url = await a_link(teams)
    parts = urlsplit(url)
    head = await teams.world.http.head(f"{parts.path}?{parts.query}", headers={"host": parts.netloc})
    assert head.status_code == 403
    assert (await followed(teams, url, **{"sec-purpose": "prefetch;prerender"})).status_code == 403
    assert (await followed(teams, url)).status_code == 303


async def test_a_link_leads_to_paths_of_ours_only(teams: Teams) -> None:
    """Whatever `next` contains, a link leads only to our paths."""
    url = await a_link(teams)
    bent = url.rpartition("next=")[0] + "next=%2F%2Fevil.example"
    assert (await followed(teams, bent)).headers["location"] == "/"


async def test_the_code_of_a_workload_opens_its_origin_only(teams: Teams) -> None:
    """The code opens neither our origin nor that of another workload."""
    canary = next(iter(teams.ids.values()))
    url = await a_link(teams, allocation=canary)
    assert urlsplit(url).hostname == f"{canary}.{DOMAIN}"
    code = dict(parse_qsl(urlsplit(url).query))["code"]
    assert (await followed(teams, f"http://{OWN}/login/link?code={code}")).status_code == 401
    url = await a_link(teams, allocation=canary)
    code = dict(parse_qsl(urlsplit(url).query))["code"]
    other = await followed(teams, f"http://other.{DOMAIN}/.slipway/enter?code={code}")
    assert (other.status_code, "set-cookie" in other.headers) == (401, False)
    good = await followed(teams, await a_link(teams, allocation=canary))
    assert (good.status_code, good.headers["location"]) == (303, f"/proxy/{canary}/")


async def test_a_browser_session_cannot_create_login_links(teams: Teams) -> None:
    """A page that has the cookie cannot pass the login on."""
    first = await followed(teams, await a_link(teams))
    headers = {"cookie": first.headers["set-cookie"].partition(";")[0], "host": OWN, "origin": f"http://{OWN}"}
    answer = await teams.world.http.post("/api/v1/login-links", json={}, headers=headers)
    assert answer.status_code == 403


async def test_nothing_is_kept_for_a_loopback_address(teams: Teams) -> None:
    """A browser would send that cookie to every program that listens there: it is led to the name that is ours."""
    shown = await teams.world.http.get("/login?next=/docs", headers={"host": "127.0.0.1:8080"})
    assert (shown.status_code, shown.headers["location"]) == (303, f"http://{OWN}:8080/login?next=/docs")
    token = (await teams.token("ada", {"*": "admin"}))["Authorization"].removeprefix("Bearer ")
    pasted = await teams.world.http.post("/login", data={"token": token}, headers={"host": "127.0.0.1:8080"})
    assert (pasted.status_code, "set-cookie" in pasted.headers) == (403, False)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
async def test_other_names_are_not_served_on_a_loopback_address(teams: Teams, host: str) -> None:
    """On a loopback address, with tokens too, a foreign name that resolves to this machine gets not even public
    pages."""
    assert (await teams.world.http.get("/docs", headers={"host": host})).status_code == 421


async def test_links_are_bounded() -> None:
    """The oldest links are removed, and no others."""
    links = LoginLinks(FakeClock(), SeededRandom(1))
    codes = [links.make(f"token-{number}", f"user-{number}")[0] for number in range(LINKS_MAX + 1)]
    assert (links.use(codes[0]), links.use(codes[1]), links.use(codes[-1])) == ("", "token-1", f"token-{LINKS_MAX}")


def test_many_links_of_one_user_cost_nobody_else_a_link() -> None:
    """A user's own oldest link is removed, also when the user has many tokens. When all places are taken, the user with
    the most links loses one."""
    links = LoginLinks(FakeClock(), SeededRandom(1))
    theirs, _ = links.make("alice", "alice")
    codes = [links.make(f"bob-{number}", "bob")[0] for number in range(2 * LINKS_MAX)]
    others = [links.make("other", f"user-{number}")[0] for number in range(LINKS_MAX - 2)]
    assert links.use(theirs) == "alice"
    assert [links.use(code) for code in others] == ["other"] * len(others)
    kept = [links.use(code) for code in codes[-LINKS_OF_ONE_MAX:]]
    assert kept == ["", "", "", "", "", "", "", f"bob-{2 * LINKS_MAX - 1}"]


@pytest.mark.parametrize("is_whole", [False, True], ids=["its beginning", "the whole id"])
async def test_a_link_tells_nothing_of_what_one_may_not_see(teams: Teams, is_whole: bool) -> None:
    """An id of another workspace, whole or its beginning, gets the same answer, to the letter, as one that does not
    exist."""
    headers = await teams.token("bob", {"team-red": "admin"})
    theirs = teams.ids["blue"]
    beginnings = (theirs[:length] for length in range(3, len(theirs)))
    given = theirs if is_whole else next(each for each in beginnings if not teams.ids["red"].startswith(each))
    elsewhere = await teams.world.http.post("/api/v1/login-links", json={"allocation": given}, headers=headers)
    nowhere = await teams.world.http.post("/api/v1/login-links", json={"allocation": "q" * len(given)}, headers=headers)
    assert (elsewhere.status_code, nowhere.status_code) == (404, 404)
    assert elsewhere.json()["detail"].replace(given, "q" * len(given)) == nowhere.json()["detail"]


async def test_a_link_to_a_workload_needs_the_right_to_its_page(teams: Teams) -> None:
    """A viewer sees the workload and may not open its page."""
    headers = await teams.token("vic", {"team-red": "viewer"})
    body = {"allocation": teams.ids["red"]}
    answer = await teams.world.http.post("/api/v1/login-links", json=body, headers=headers)
    assert (answer.status_code, "proxy" in answer.json()["detail"]) == (403, True)
