"""Signing in with a browser at an OpenID Connect issuer: which users may sign in, what is refused, what ends a
login."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from cryptography.fernet import Fernet

from slipway.api.auth.session import LoginSession
from slipway.api.auth.sign_ins import PENDING_S, RENEW_GAP_S
from slipway.api.deps import ApiDeps
from slipway.runtime.clock import SeededRandom
from tests.support.access import Teams, served_by, teams_world
from tests.support.clock import ShiftedClock
from tests.support.issuer import SECRET, WEB, RunningIssuer
from tests.unit.api.auth.test_login import BROWSER, DOMAIN, HOST, OWN, code_of

ROLE_LISTS = {"group:ml": {"team-red": "editor"}}
LIFE_S = 600


class Browser:
    """A browser at the api: it keeps cookies by name, and follows no redirect by itself."""

    def __init__(self, http: httpx2.AsyncClient, host: str = HOST) -> None:
        self._http = http
        self._host = host
        self.cookies: dict[str, str] = {}
        self.seen = ""
        """everything that a page, its address or a script could read"""

    async def ask(self, method: str, address: str, **options: Any) -> httpx2.Response:
        headers = {**BROWSER, **options.pop("headers", {})}
        self._http.cookies.clear()
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        parts = urlsplit(address)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        answer = await self._http.request(method, path, headers=headers, **options)
        for each in answer.headers.get_list("Set-Cookie"):
            name, _, value = each.partition(";")[0].partition("=")
            self.cookies.pop(name, None)
            if value and "max-age=0" not in each.lower():
                self.cookies[name] = value
        kept = {name: value for name, value in answer.headers.items() if name.lower() != "set-cookie"}
        self.seen += answer.text + str(kept)
        return answer

    async def start(self, following: str = "/", origin: str = OWN["Origin"]) -> str:
        """Submit the form; return the address at the issuer to which it leads."""
        answer = await self.ask("POST", "/login/start", data={"next": following}, headers={"Origin": origin})
        assert answer.status_code == 200, answer.text
        return target_of(answer)

    async def sign_in(self, issuer: RunningIssuer, following: str = "/") -> httpx2.Response:
        """Do the whole sign-in."""
        return await self.ask("GET", issuer.visit(await self.start(following)))

    async def me(self) -> httpx2.Response:
        return await self.ask("GET", "/api/v1/me")


def target_of(page: httpx2.Response) -> str:
    """The address to which a page continues, by itself and by its link."""
    link = re.search(r'href="([^"]+)">(?:Go on|Sign out)', page.text)
    assert link is not None, page.text
    assert page.headers["Refresh"] == f"0; url={unescape(link[1])}"
    return unescape(link[1])


def settings_of(url: str, folder: Path) -> dict[str, Any]:
    """The settings of a web client with a secret, and keys that all replicas share."""
    keys = folder / "keys"
    keys.mkdir()
    (keys / "1.key").write_bytes(Fernet.generate_key())
    (folder / "secret").write_text(f"{SECRET}\n", encoding="utf-8")
    return {
        "oidc_issuer_url": url,
        "oidc_client_id": WEB,
        "oidc_client_secret_file": str(folder / "secret"),
        "oidc_username_prefix": "oidc:",
        "oidc_roles": ROLE_LISTS,
        "oidc_label": "Example <Corp>",
        "proxy_domain": DOMAIN,
        "hosts": (HOST,),
        "session_key_dir": str(keys),
    }


@pytest.fixture
async def teams(issuer: RunningIssuer, tmp_path: Path) -> AsyncGenerator[Teams]:
    async with teams_world("token", tmp_path, **settings_of(issuer.url, tmp_path)) as found:
        yield found
        await closed(found.world.parts)


async def closed(parts: ApiDeps) -> None:
    assert parts.issuer is not None
    await parts.issuer.aclose()


@asynccontextmanager
async def replica(teams: Teams, clock: ShiftedClock) -> AsyncGenerator[tuple[ApiDeps, Browser]]:
    """Another process of the api, with a clock that a test moves, and a browser at it."""
    parts = await teams.replica(clock=clock)
    async with served_by(parts) as http:
        yield parts, Browser(http)
    await closed(parts)


@pytest.fixture
def browser(teams: Teams) -> Browser:
    return Browser(teams.world.http)


async def test_a_sign_in_from_a_page_with_a_long_address(browser: Browser, issuer: RunningIssuer) -> None:
    """An address that does not fit the cookie of the step is left out: the sign-in succeeds, and leads to the first
    page."""
    done = await browser.sign_in(issuer, f"/docs?of={SeededRandom(1).token_hex(4_000)}")
    assert (done.status_code, target_of(done)) == (200, "/")
    assert (await browser.me()).status_code == 200


async def test_a_sign_in_and_a_logout(teams: Teams, browser: Browser, issuer: RunningIssuer) -> None:
    """A user signs in from the login page, reaches the requested page and is known; then logs out here and at the
    issuer."""
    page = await browser.ask("GET", "/login?next=/queues")
    assert 'action="/login/start"' in page.text
    assert "Sign in with Example &lt;Corp&gt;" in page.text
    assert 'name="token"' in page.text
    there = await browser.start("/queues")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(there).query).items()}
    assert there.startswith(f"{issuer.url}/authorize?")
    assert (asked["response_type"], asked["code_challenge_method"], asked["client_id"]) == ("code", "S256", WEB)
    assert asked["redirect_uri"] == f"http://{HOST}/login/callback"
    assert "openid" in asked["scope"].split()
    back = await browser.ask("GET", issuer.visit(there))
    assert (back.status_code, target_of(back)) == (200, "/queues"), back.text
    assert set(browser.cookies) == {"slipway_session"}
    me = (await browser.me()).json()
    assert (me["user"], me["roles"]) == ("oidc:ada", {"team-red": "editor"})
    out = await browser.ask("POST", "/logout", headers=OWN)
    ended = target_of(out)
    assert urlsplit(ended).path == "/end"
    assert parse_qs(urlsplit(ended).query)["post_logout_redirect_uri"] == [f"http://{HOST}/login"]
    assert browser.cookies == {}
    assert (await browser.me()).status_code == 401


async def test_a_session_that_was_logged_out_stays_logged_out(
    teams: Teams, browser: Browser, issuer: RunningIssuer
) -> None:
    """After a logout a copy of the cookie is refused, and the refresh token is revoked at the issuer."""
    await browser.sign_in(issuer)
    copy, kept = dict(browser.cookies), issuer.seen()["refresh"]
    await browser.ask("POST", "/logout", headers=OWN)
    browser.cookies = copy
    assert (await browser.me()).status_code == 401
    assert issuer.seen()["refresh"] == kept - 1


async def test_cookies_are_for_this_host_and_no_script(teams: Teams, issuer: RunningIssuer) -> None:
    """Cookies are HttpOnly and for one path; under TLS for this host only; the state of the step to the issuer lasts
    ten minutes."""
    for origin, prefix in ((f"http://{HOST}", ""), (f"https://{HOST}", "__Host-")):
        form = {"next": "/"}
        step = await teams.world.http.post("/login/start", data=form, headers={"Origin": origin})
        said = step.headers["Set-Cookie"].lower()
        assert said.startswith(f"{prefix.lower()}slipway_signing_in=")
        assert {"httponly", "samesite=lax", "path=/", "max-age=600"} <= {part.strip() for part in said.split(";")}
        assert ("secure" in said) is bool(prefix)
        browser = Browser(teams.world.http)
        back = await browser.ask("GET", issuer.visit(await browser.start(origin=origin)))
        kept = next(each for each in back.headers.get_list("Set-Cookie") if "session" in each).lower()
        assert kept.startswith(f"{prefix.lower()}slipway_session=")
        assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in kept.split(";")}


async def test_no_token_of_the_issuer_can_be_read(teams: Teams, browser: Browser, issuer: RunningIssuer) -> None:
    """No page, no address, and no cookie without our key shows a token."""
    await browser.sign_in(issuer)
    await browser.ask("GET", "/login")
    session = teams.world.parts.sessions.keys.open(browser.cookies["slipway_session"], LoginSession)
    assert session is not None
    assert session.signed_in is not None
    assert session.signed_in.refresh_token
    everything = browser.seen + str(browser.cookies)
    assert session.signed_in.refresh_token not in everything
    assert "eyJ" not in everything


async def test_the_answer_is_for_the_browser_that_asked(teams: Teams, browser: Browser, issuer: RunningIssuer) -> None:
    """Another browser, one with another request, and one without a state get 401, and nothing is stored."""
    stolen = issuer.visit(await browser.start())
    other = Browser(teams.world.http)
    nothing = await other.ask("GET", stolen)
    await other.start()
    another = await other.ask("GET", stolen)
    query = {name: values[0] for name, values in parse_qs(urlsplit(stolen).query).items()}
    stateless = await browser.ask("GET", f"/login/callback?{urlencode({'code': query['code']})}")
    for answer in (nothing, another, stateless):
        assert (answer.status_code, "was begun in another browser" in answer.text) == (401, True), answer.text
    assert "slipway_session" not in other.cookies | browser.cookies


async def test_an_answer_is_good_once(teams: Teams, browser: Browser, issuer: RunningIssuer) -> None:
    """The same address and cookie a second time, here or at another replica, get 401, and the issuer is not called."""
    back = issuer.visit(await browser.start())
    cookies = dict(browser.cookies)
    assert (await browser.ask("GET", back)).status_code == 200
    asked = issuer.calls("/token")
    async with replica(teams, ShiftedClock()) as (_, elsewhere):
        for again in (browser, elsewhere):
            again.cookies = dict(cookies)
            answer = await again.ask("GET", back)
            assert (answer.status_code, "used before" in answer.text) == (401, True), answer.text
            assert "slipway_session" not in again.cookies
    assert issuer.calls("/token") == asked


async def test_a_code_of_another_sign_in_is_refused_by_the_verifier(
    teams: Teams, browser: Browser, issuer: RunningIssuer
) -> None:
    """A code that is injected into an attacker's own answer belongs to another challenge (PKCE)."""
    other = Browser(teams.world.http)
    injected = parse_qs(urlsplit(issuer.visit(await other.start())).query)["code"][0]
    state = parse_qs(urlsplit(await browser.start()).query)["state"][0]
    answer = await browser.ask("GET", f"/login/callback?{urlencode({'code': injected, 'state': state})}")
    assert (answer.status_code, "invalid_grant" in answer.text) == (401, True), answer.text


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"drop_nonce": True}, "nonce is missing"),
        ({"nonce": "another"}, "nonce is missing or differs"),
        ({"claims": {"aud": "slipway-cli"}}, "is for &#x27;slipway-cli&#x27;"),
        ({"claims": {"aud": [WEB, "x"], "azp": "x"}}, "another client"),
        ({"claims": {"iss": "https://evil.example"}}, "not issued by"),
        ({"claims": {"exp": 1_600_000_000}}, "has expired"),
        ({"claims": {"sub": ""}}, "no claim sub"),
    ],
)
async def test_a_bad_id_token_signs_nobody_in(
    teams: Teams, browser: Browser, issuer: RunningIssuer, faults: dict[str, Any], said: str
) -> None:
    """The answer is 401 with the reason and a way back; nothing is stored."""
    issuer.faults(**faults)
    answer = await browser.sign_in(issuer)
    assert (answer.status_code, said in answer.text, 'href="/login"' in answer.text) == (401, True, True), answer.text
    assert browser.cookies == {}


async def test_the_issuers_refusal_is_shown_as_text(teams: Teams, browser: Browser) -> None:
    """The issuer's message is in the page, without markup; an answer that names another issuer is refused."""
    for answer_of, said in (
        ({"error": "access_denied", "error_description": "<b>no</b>"}, "&lt;b&gt;no&lt;/b&gt;"),
        ({"code": "c", "iss": "https://evil.example"}, "another issuer"),
        ({}, "answer has no code"),
    ):
        state = parse_qs(urlsplit(await browser.start()).query)["state"][0]
        answer = await browser.ask("GET", f"/login/callback?{urlencode({**answer_of, 'state': state})}")
        assert (answer.status_code, said in answer.text) == (401, True), answer.text


async def test_a_step_that_took_too_long_is_begun_anew(teams: Teams, issuer: RunningIssuer) -> None:
    """After ten minutes the browser's state of the step has expired."""
    clock = ShiftedClock()
    async with replica(teams, clock) as (_, browser):
        back = issuer.visit(await browser.start())
        clock.advance(PENDING_S + 1)
        assert (await browser.ask("GET", back)).status_code == 401


async def test_an_issuer_that_is_away_is_said_on_a_page(issuer: RunningIssuer, tmp_path: Path) -> None:
    """At both ends of the step the page is a 503 with a way to retry."""
    issuer.faults(away=True)
    async with teams_world("token", tmp_path, **settings_of(issuer.url, tmp_path)) as teams:
        away = await teams.world.http.post("/login/start", data={}, headers=OWN)
        assert (away.status_code, 'href="/login"' in away.text, issuer.url in away.text) == (503, True, True)
        await closed(teams.world.parts)
    issuer.faults()
    folder = tmp_path / "second"
    folder.mkdir()
    async with teams_world("token", folder, **settings_of(issuer.url, folder)) as teams:
        browser = Browser(teams.world.http)
        back = issuer.visit(await browser.start())
        issuer.faults(away=True)
        late = await browser.ask("GET", back)
        assert (late.status_code, 'href="/login"' in late.text) == (503, True)
        await closed(teams.world.parts)


@pytest.mark.parametrize(
    "following", ["//evil.example/", "https://evil.example/", "/\\evil.example", "evil", "/a\r\nX-Bad: 1", "/a;url=//b"]
)
async def test_a_sign_in_leads_to_our_own_pages_only(
    teams: Teams, browser: Browser, issuer: RunningIssuer, following: str
) -> None:
    """Whatever target was requested, the sign-in leads home or to a path of ours."""
    back = await browser.sign_in(issuer, following)
    there = back.headers["Refresh"].removeprefix("0; url=")
    assert there.startswith("/")
    assert not there.startswith("//")
    assert "X-Bad" not in back.headers


async def test_only_our_own_page_and_name_begin_it(teams: Teams) -> None:
    """A page of another site, a host name that is not the api's, and a GET begin no sign-in."""
    http = teams.world.http
    foreign = await http.post("/login/start", data={}, headers={"Origin": "http://evil.example"})
    host = {"Host": "evil.example", "Origin": "http://evil.example"}
    named = await http.post("/login/start", data={}, headers=host)
    got = await http.get("/login/start")
    assert (foreign.status_code, named.status_code, got.status_code) == (403, 421, 405)
    assert not any("Set-Cookie" in each.headers for each in (foreign, named, got))


async def test_where_no_issuer_is_set_up(tmp_path: Path) -> None:
    """The login page accepts only a token, and there is no step to begin."""
    async with teams_world("token", tmp_path) as teams:
        page = await teams.world.http.get("/login")
        assert "login/start" not in page.text
        assert (await teams.world.http.post("/login/start", data={}, headers=OWN)).status_code == 404
        assert (await teams.world.http.get("/login/callback?code=a&state=b")).status_code == 404


async def test_a_login_is_renewed_by_itself(teams: Teams, issuer: RunningIssuer) -> None:
    """After half of its life a login is renewed with the present groups, beyond the life of the first token; other
    replicas know it."""
    clock = ShiftedClock()
    async with replica(teams, clock) as (_, browser):
        await browser.sign_in(issuer)
        before = issuer.calls("/token")
        clock.advance(LIFE_S / 2 - 5)
        assert (await browser.me()).json()["roles"] == {"team-red": "editor"}
        assert issuer.calls("/token") == before
        issuer.user(sub="ada", groups=[])
        clock.advance(10)
        now = await browser.me()
        assert (now.status_code, now.json()["workspaces"]) == (200, []), now.text
        assert issuer.calls("/token") == before + 1
        async with replica(teams, clock) as (_, elsewhere):
            elsewhere.cookies = dict(browser.cookies)
            assert (await elsewhere.me()).json()["workspaces"] == []
            assert issuer.calls("/token") == before + 1


async def test_a_login_ends_when_its_refresh_is_refused(teams: Teams, issuer: RunningIssuer) -> None:
    """When the issuer refuses the refresh, the cookie is refused on all replicas from then on."""
    clock = ShiftedClock()
    async with replica(teams, clock) as (_, browser):
        await browser.sign_in(issuer)
        issuer.faults(refuse_refresh=True)
        clock.advance(LIFE_S / 2 + 5)
        refused = await browser.me()
        assert (refused.status_code, "sign in again" in refused.text) == (401, True), refused.text
        issuer.faults()
        assert (await browser.me()).status_code == 401
        async with replica(teams, clock) as (other, elsewhere):
            await other.sessions.ended.look()
            elsewhere.cookies = dict(browser.cookies)
            assert (await elsewhere.me()).status_code == 401


async def test_another_user_does_not_take_over_a_login(teams: Teams, issuer: RunningIssuer) -> None:
    """A renewal that names another user ends the login."""
    clock = ShiftedClock()
    async with replica(teams, clock) as (_, browser):
        await browser.sign_in(issuer)
        issuer.user(sub="eve", groups=["ml"])
        clock.advance(LIFE_S / 2 + 5)
        assert (await browser.me()).status_code == 401


async def test_a_session_of_another_login_in_redis_is_not_accepted(teams: Teams, issuer: RunningIssuer) -> None:
    """An attacker who controls Redis can neither open a sealed sign-in nor give it to another login."""
    clock = ShiftedClock()
    async with replica(teams, clock) as (parts, eve), served_by(parts) as http:
        boss = Browser(http)
        issuer.user(sub="eve", groups=[])
        await eve.sign_in(issuer)
        clock.advance(60)
        issuer.user(sub="boss", groups=["ml"])
        await boss.sign_in(issuer)
        ids = [session_of(parts, each).id for each in (eve, boss)]
        await parts.sessions.ended.share(ids[0], await parts.sessions.ended.shared(ids[1]), LIFE_S)
        issuer.user(sub="eve", groups=[])
        clock.advance(LIFE_S / 2 - 50)
        me = (await eve.me()).json()
        assert (me["user"], me["workspaces"]) == ("oidc:eve", [])
        assert (await boss.me()).json()["user"] == "oidc:boss"


def session_of(parts: ApiDeps, browser: Browser) -> LoginSession:
    found = parts.sessions.keys.open(browser.cookies["slipway_session"], LoginSession)
    assert found is not None
    return found


async def test_the_issuer_may_be_away_for_a_while(teams: Teams, issuer: RunningIssuer) -> None:
    """The login is valid until the issuer's last answer expires; then the answer is 503, not 401; it works again
    when the issuer is back."""
    clock = ShiftedClock()
    async with replica(teams, clock) as (_, browser):
        await browser.sign_in(issuer)
        issuer.faults(away=True)
        clock.advance(LIFE_S / 2 + 5)
        before = issuer.calls("/token")
        for _ in range(5):
            assert (await browser.me()).status_code == 200
        assert issuer.calls("/token") <= before + 1
        clock.advance(LIFE_S / 2)
        assert (await browser.me()).status_code == 503
        issuer.faults(life_s=10 * LIFE_S)  # the test does not move the issuer's clock
        teams.world.server.flush()  # nor the clock of Redis, which remembers recent requests
        clock.advance(RENEW_GAP_S + 1)
        back = await browser.me()
        assert back.status_code == 200, back.text


async def test_a_client_that_the_issuer_refuses_is_our_fault_and_ends_no_login(
    teams: Teams, issuer: RunningIssuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a wrong secret the answer is 503, with an error in the log; with the right one the login works again."""
    clock = ShiftedClock()
    async with replica(teams, clock) as (_, browser):
        await browser.sign_in(issuer)
        (tmp_path / "secret").write_text("wrong", encoding="utf-8")
        clock.advance(LIFE_S)
        assert (await browser.me()).status_code == 503
        assert "the issuer refuses the api's client" in caplog.text
        (tmp_path / "secret").write_text(f"{SECRET}\n", encoding="utf-8")
        issuer.faults(life_s=10 * LIFE_S)  # the test does not move the issuer's clock
        teams.world.server.flush()
        clock.advance(RENEW_GAP_S + 1)
        back = await browser.me()
        assert back.status_code == 200, back.text


async def test_replicas_renew_by_themselves_while_redis_is_away(teams: Teams, issuer: RunningIssuer) -> None:
    """The replica that renews goes on. This issuer's refresh tokens can be used once; at another issuer the user
    would sign in again."""
    clock = ShiftedClock()
    async with replica(teams, clock) as (_, one), replica(teams, clock) as (_, two):
        await one.sign_in(issuer)
        two.cookies = dict(one.cookies)
        teams.world.server.absent = True
        issuer.faults(life_s=10 * LIFE_S)
        clock.advance(LIFE_S / 2 + 5)
        before = issuer.calls("/token")
        for _ in range(3):
            assert (await one.me()).status_code == 200
        assert issuer.calls("/token") == before + 1
        refused = await two.me()
        assert (refused.status_code, "sign in again" in refused.text) == (401, True), refused.text
        assert (await one.me()).status_code == 200


async def test_without_a_refresh_token_a_login_ends_with_the_id_token(teams: Teams, issuer: RunningIssuer) -> None:
    """The login ends with the ID token, and so does its cookie."""
    issuer.faults(no_refresh_token=True)
    clock = ShiftedClock()
    async with replica(teams, clock) as (_, browser):
        await browser.sign_in(issuer)
        assert (await browser.me()).status_code == 200
        clock.advance(LIFE_S + 31)
        assert (await browser.me()).status_code == 401


async def test_more_groups_than_a_browser_keeps_are_refused_in_words(
    teams: Teams, browser: Browser, issuer: RunningIssuer
) -> None:
    """The error says what to change; some dozens of groups fit."""
    many = [Fernet.generate_key().decode()[:36] for _ in range(150)]
    issuer.user(sub="ada", groups=[*many[:40], "ml"])
    assert (await browser.sign_in(issuer)).status_code == 200
    assert (await browser.me()).json()["roles"] == {"team-red": "editor"}
    issuer.user(sub="ada", groups=many)
    refused = await browser.sign_in(issuer)
    assert (refused.status_code, "too many for a cookie" in refused.text) == (401, True), refused.text


async def test_a_signed_in_user_opens_a_workload(teams: Teams, browser: Browser, issuer: RunningIssuer) -> None:
    """The user opens a workload by the same one-time step as with a token; the ticket is renewed at the issuer like
    the login."""
    await browser.sign_in(issuer)
    red = teams.ids["red"]
    step = await browser.ask("GET", f"/proxy/{red}/")
    there = {"Host": f"{red}.{DOMAIN}"}
    entered = await teams.world.http.post(
        "/.slipway/enter", data={"code": code_of(step)}, headers={**there, "Origin": OWN["Origin"]}
    )
    assert entered.status_code == 303, entered.text
    ticket = {"Cookie": entered.headers["Set-Cookie"].partition(";")[0]}
    looked = await teams.world.http.get(f"/api/v1/allocations/{red}", headers={**there, **ticket})
    assert looked.status_code == 200
