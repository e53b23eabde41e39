"""The cookies of a browser: a sealed login for our origin, a ticket for that of one workload; neither shows a token."""

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random
from string import ascii_letters, ascii_lowercase, digits
from typing import Any

import httpx2
import msgspec
import pytest
from cryptography.fernet import Fernet
from starlette.applications import Starlette
from starlette.routing import Route

from slipway.api.auth.ended_sessions import EndedSessions
from slipway.api.auth.middleware import RequestStop
from slipway.api.auth.principal import LIST, UnauthenticatedCaller
from slipway.api.auth.route_rules import PermissionScope, RouteRule
from slipway.api.auth.session import (
    CODE_S,
    SEALED_CHARS_MAX,
    SETTLE_S,
    SKEW_S,
    TICKET_S,
    BrowserCaller,
    BrowserSessions,
    EntryCode,
    LoginSession,
    SealKeys,
    WorkloadTicket,
)
from slipway.api.deps import ApiDeps
from slipway.api.http.errors import UnauthorizedError
from slipway.api.settings import Settings
from slipway.errors import UnavailableError
from slipway.model.ids import NAME_LENGTH_MAX
from slipway.runtime.clock import SeededRandom
from slipway.runtime.service import ServiceStop
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.access import Teams, served_by, teams_world
from tests.support.api_world import api_world
from tests.support.clock import FakeClock
from tests.unit.api.auth.test_access_tokens import audit_lines, logged
from tests.unit.api.auth.test_login import BROWSER, DOMAIN, HOST, OWN, a_workload, code_of, cookie_of, echo, log_in, raw
from tests.unit.api.proxy.test_proxy import served

FETCH = {"Accept": "application/json"}


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncGenerator[Teams]:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "1.key").write_bytes(Fernet.generate_key())
    settings: dict[str, Any] = {"proxy_domain": DOMAIN, "hosts": (HOST,), "session_key_dir": str(keys)}
    async with teams_world("token", tmp_path, **settings) as found:
        yield found


def there(id_: str) -> dict[str, str]:
    return {"Host": f"{id_}.{DOMAIN}"}


def opened(parts: ApiDeps, cookie: dict[str, str], as_type: type[Any]) -> Any:
    """The value that is sealed in a cookie."""
    return parts.sessions.keys.open(cookie["Cookie"].partition("=")[2], as_type)


async def entered(http: httpx2.AsyncClient, id_: str, code: str, **more: str) -> httpx2.Response:
    """The answer to a browser that brings a code to the origin of a workload."""
    return await http.post("/.slipway/enter", data={"code": code}, headers={**there(id_), **OWN, **more})


async def a_ticket(teams: Teams, id_: str, cookie: dict[str, str]) -> dict[str, str]:
    """The cookie that the origin of a workload gives to a logged-in browser."""
    step = await teams.world.http.get(f"/proxy/{id_}/", headers={**cookie, **BROWSER})
    answer = await entered(teams.world.http, id_, code_of(step))
    assert answer.status_code == 303, answer.text
    return cookie_of(answer)


async def an_editor(teams: Teams) -> tuple[str, dict[str, str]]:
    """A token of a user who may open the pages of both teams, and the cookie of the login."""
    token = raw(await teams.token("ada", {"team-red": "editor", "team-blue": "editor"}))
    return token, cookie_of(await log_in(teams, token))


async def test_no_token_can_be_read(teams: Teams) -> None:
    """No cookie, page or address shows a token: only our key opens what a browser has."""
    token, cookie = await an_editor(teams)
    step = await teams.world.http.get(f"/proxy/{teams.ids['red']}/", headers={**cookie, **BROWSER})
    ticket = await a_ticket(teams, teams.ids["red"], cookie)
    secret = token.split("_", 2)[2]
    for text in (cookie["Cookie"], ticket["Cookie"], step.text, str(step.headers)):
        assert token not in text
        assert secret not in text
    assert opened(teams.world.parts, cookie, LoginSession).token == token


async def test_a_ticket_is_for_its_allocation_alone(teams: Teams) -> None:
    """In the origin of another allocation a page leads back, and a fetch gets 401; in our origin the ticket is not
    valid."""
    _, cookie = await an_editor(teams)
    red, blue = teams.ids["red"], teams.ids["blue"]
    ticket, http = await a_ticket(teams, red, cookie), teams.world.http
    assert (await http.get(f"/api/v1/allocations/{red}", headers={**there(red), **ticket})).status_code == 200
    page = await http.get(f"/proxy/{blue}/lab?a=1", headers={**there(blue), **ticket, **BROWSER})
    assert (page.status_code, page.headers["Content-Type"].partition(";")[0]) == (401, "text/html")
    assert f'href="http://{HOST}/proxy/{blue}/lab?a=1"' in page.text
    fetched = await http.get(f"/proxy/{blue}/lab", headers={**there(blue), **ticket, **FETCH})
    assert (fetched.status_code, fetched.headers["Content-Type"]) == (401, "application/problem+json")
    assert (await http.get("/api/v1/me", headers=ticket)).status_code == 401
    named = {"Cookie": f"slipway_session={ticket['Cookie'].partition('=')[2]}"}
    assert (await http.get("/api/v1/me", headers=named)).status_code == 401


async def test_a_login_is_no_ticket(teams: Teams) -> None:
    """A cookie of our origin opens nothing in the origin of a workload, whatever its name."""
    _, cookie = await an_editor(teams)
    id_ = teams.ids["red"]
    for name in ("slipway_session", "slipway_ticket", "__Host-slipway_ticket"):
        given = {"Cookie": f"{name}={cookie['Cookie'].partition('=')[2]}"}
        answer = await teams.world.http.get(f"/api/v1/allocations/{id_}", headers={**there(id_), **given})
        assert answer.status_code == 401, name


async def test_an_expired_ticket_leads_back(teams: Teams) -> None:
    """A navigation gets a page that leads over our origin, and loses the cookie; a fetch and a WebSocket get 401."""
    _, cookie = await an_editor(teams)
    id_, parts, http = teams.ids["red"], teams.world.parts, teams.world.http
    ticket = opened(parts, await a_ticket(teams, id_, cookie), WorkloadTicket)
    over = {"Cookie": f"slipway_ticket={parts.sessions.keys.seal(msgspec.structs.replace(ticket, ends_at=1.0))}"}
    page = await http.get(f"/proxy/{id_}/lab", headers={**there(id_), **over, **BROWSER})
    assert (page.status_code, f'href="http://{HOST}/proxy/{id_}/lab"' in page.text) == (401, True)
    assert all("max-age=0" in each.lower() for each in page.headers.get_list("Set-Cookie"))
    for method in ("GET", "POST"):
        call = await http.request(method, f"/proxy/{id_}/lab", headers={**there(id_), **over, **FETCH})
        assert (call.status_code, call.headers["Content-Type"]) == (401, "application/problem+json")
    none = await http.get(f"/proxy/{id_}/lab?a=1", headers={**there(id_), **BROWSER})
    assert (none.status_code, none.headers["Location"]) == (303, f"http://{HOST}/proxy/{id_}/lab?a=1")


async def test_a_code_is_good_once_on_all_replicas(teams: Teams) -> None:
    """A second use is refused at every replica, with the way back; so is a code for another allocation."""
    _, cookie = await an_editor(teams)
    red, blue, http = teams.ids["red"], teams.ids["blue"], teams.world.http
    async with served_by(await teams.replica()) as other:
        code = code_of(await http.get(f"/proxy/{red}/", headers={**cookie, **BROWSER}))
        assert (await entered(other, blue, code)).status_code == 401
        assert (await entered(other, red, code)).status_code == 303
        for again in (other, http):
            answer = await entered(again, red, code)
            assert (answer.status_code, f'href="http://{HOST}/proxy/{red}/"' in answer.text) == (401, True)
            assert not any("slipway_ticket=g" in each for each in answer.headers.get_list("Set-Cookie"))


async def test_two_tabs(teams: Teams) -> None:
    """Each tab has a step of its own; the ticket of the second does not end that of the first."""
    _, cookie = await an_editor(teams)
    red, blue, http = teams.ids["red"], teams.ids["blue"], teams.world.http
    steps = [await http.get(f"/proxy/{id_}/", headers={**cookie, **BROWSER}) for id_ in (red, red, blue)]
    answers = [await entered(http, id_, code_of(step)) for id_, step in zip((red, red, blue), steps, strict=True)]
    assert [answer.status_code for answer in answers] == [303, 303, 303]
    for id_, answer in zip((red, red, blue), answers, strict=True):
        page = await http.get(f"/api/v1/allocations/{id_}", headers={**there(id_), **cookie_of(answer)})
        assert page.status_code == 200


async def test_what_is_used_is_renewed_with_its_answers(teams: Teams) -> None:
    """Past half of its time, a ticket is renewed by the workload's answer, for the same login; before that it is
    not."""
    token = raw(await teams.token("ada", {"default": "editor"}))
    cookie, parts = cookie_of(await log_in(teams, token)), teams.world.parts
    async with served(Starlette(routes=[Route("/{path:path}", echo)])) as port:
        id_ = await a_workload(teams, port, {"Authorization": f"Bearer {token}"})
        fresh = await a_ticket(teams, id_, cookie)
        page = await teams.world.http.get(f"/proxy/{id_}/lab", headers={**there(id_), **fresh})
        assert [each.partition("=")[0] for each in page.headers.get_list("Set-Cookie")] == ["theirs"]
        ticket = opened(parts, fresh, WorkloadTicket)
        half_over = msgspec.structs.replace(ticket, ends_at=ticket.ends_at - TICKET_S / 2 - 1)
        used = {"Cookie": f"slipway_ticket={parts.sessions.keys.seal(half_over)}"}
        page = await teams.world.http.get(f"/proxy/{id_}/lab", headers={**there(id_), **used})
        given = [each for each in page.headers.get_list("Set-Cookie") if each.startswith("slipway_ticket=")]
        assert len(given) == 1
        assert {"httponly", "samesite=lax", "path=/"} <= {part.strip() for part in given[0].lower().split(";")}
        renewed = parts.sessions.keys.open(given[0].partition("=")[2].partition(";")[0], WorkloadTicket)
        assert renewed is not None
        assert renewed.session == ticket.session
        assert renewed.ends_at > half_over.ends_at


async def test_a_logout_reaches_every_replica_and_every_ticket(teams: Teams) -> None:
    """The login, its tickets and its codes end. Another replica learns of it at its next look, every two seconds."""
    _, cookie = await an_editor(teams)
    id_, http, parts = teams.ids["red"], teams.world.http, await teams.replica()
    async with served_by(parts) as other:
        ticket = await a_ticket(teams, id_, cookie)
        code = code_of(await http.get(f"/proxy/{id_}/", headers={**cookie, **BROWSER}))
        assert (await other.get("/api/v1/me", headers=cookie)).status_code == 200
        assert (await http.post("/logout", headers={**cookie, **OWN})).status_code == 303
        await parts.sessions.ended.look()
        for each in (http, other):
            assert (await each.get("/api/v1/me", headers=cookie)).status_code == 401
            called = await each.get(f"/api/v1/allocations/{id_}", headers={**there(id_), **ticket})
            assert called.status_code == 401
            assert (await entered(each, id_, code)).status_code == 401


async def test_a_logout_while_redis_is_away(teams: Teams) -> None:
    """The logout holds here at once, and the page states that other replicas do not know it yet. They learn of it when
    Redis is back."""
    _, cookie = await an_editor(teams)
    http, parts = teams.world.http, await teams.replica()
    async with served_by(parts) as other:
        teams.world.server.absent = True
        out = await http.post("/logout", headers={**cookie, **OWN})
        assert (out.status_code, "cannot be notified right now" in out.text) == (200, True)
        assert (await http.get("/api/v1/me", headers=cookie)).status_code == 401
        await parts.sessions.ended.look()
        assert (await other.get("/api/v1/me", headers=cookie)).status_code == 200
        teams.world.server.absent = False
        await teams.world.parts.sessions.ended.look()
        await parts.sessions.ended.look()
        assert (await other.get("/api/v1/me", headers=cookie)).status_code == 401


@pytest.mark.parametrize("status", [303, 200], ids=["redirected", "with a page"])
async def test_the_audit_line_of_a_logout_has_the_status_of_its_answer(teams: Teams, status: int) -> None:
    """While Redis is away, the answer is a page and no redirect."""
    _, cookie = await an_editor(teams)
    teams.world.server.absent = status == 200
    with logged() as stream:
        out = await teams.world.http.post("/logout", headers={**cookie, **OWN})
    assert out.status_code == status
    assert audit_lines(stream) == [("POST", "/logout", status)]


async def test_workloads_open_while_redis_is_away(teams: Teams) -> None:
    """A code is then good once on each replica, so that users can open their notebooks."""
    _, cookie = await an_editor(teams)
    id_, http = teams.ids["red"], teams.world.http
    teams.world.server.absent = True
    code = code_of(await http.get(f"/proxy/{id_}/", headers={**cookie, **BROWSER}))
    assert [(await entered(http, id_, code)).status_code for _ in range(2)] == [303, 401]


async def test_a_logout_survives_a_loss_of_redis(teams: Teams) -> None:
    """A replica that knows of it writes it again, so that a replica that starts later knows it too."""
    _, cookie = await an_editor(teams)
    assert (await teams.world.http.post("/logout", headers={**cookie, **OWN})).status_code == 303
    await teams.world.parts.sessions.ended.look()
    teams.world.server.flush()
    await teams.world.parts.sessions.ended.look()
    late = await teams.replica()
    await late.sessions.ended.look()
    async with served_by(late) as other:
        assert (await other.get("/api/v1/me", headers=cookie)).status_code == 401


async def test_an_open_socket_ends_with_its_login() -> None:
    """An open socket is checked every few seconds; it ends with its login, by logout or by time, and not before."""
    clock = FakeClock()
    sessions, ended = some_sessions(clock)
    mine, another = sessions.begin("a"), sessions.begin("a")
    rule = RouteRule(PermissionScope.OBJECT, LIST)
    for login in (mine, another):
        stop = RequestStop(
            ServiceStop(), clock, BrowserCaller(UnauthenticatedCaller("ada"), login, sessions), rule, "w"
        )
        waiting = asyncio.ensure_future(stop.wait())
        asked_before = len(clock.slept)
        for _ in range(10):
            await asyncio.sleep(0)
        assert (waiting.done(), len(clock.slept) > asked_before + 1) == (False, True)
        if login is mine:
            await ended.end(login.id, login.ends_at)
            async with asyncio.timeout(5):
                await waiting
            assert clock.slept[-1] <= 5.0
            continue
        clock.advance(600)  # the end of the login by itself
        async with asyncio.timeout(5):
            await waiting


async def test_a_cookie_of_an_older_version_is_refused_and_removed(teams: Teams) -> None:
    """A cookie of an older version contained the token itself. The user logs in again, and the browser removes the
    cookie."""
    token, _ = await an_editor(teams)
    old = {"Cookie": f"slipway_session=9999999999.{token}"}
    assert (await teams.world.http.get("/api/v1/me", headers=old)).status_code == 401
    page = await teams.world.http.get("/login", headers=old)
    assert (page.status_code, "<form" in page.text) == (200, True)
    assert any("slipway_session=" in each and "Max-Age=0" in each for each in page.headers.get_list("Set-Cookie"))


async def test_a_link_of_another_site_finds_the_login(teams: Teams) -> None:
    """A browser does not send a strict cookie with a link of another site: a page of ours opens the address once
    more."""
    _, cookie = await an_editor(teams)
    path = f"/proxy/{teams.ids['red']}/lab?a=1"
    teams.world.http.cookies.clear()
    link = {**BROWSER, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    hidden = await teams.world.http.get(path, headers=link)
    assert (hidden.status_code, hidden.headers["Refresh"]) == (200, "0")
    assert f'href="{path}"' in hidden.text
    shown = await teams.world.http.get(path, headers={**BROWSER, **cookie, "Sec-Fetch-Site": "same-origin"})
    assert "/.slipway/enter" in shown.text
    without = await teams.world.http.get(path, headers={**BROWSER, "Sec-Fetch-Site": "same-origin"})
    assert without.status_code == 303


async def test_without_logins_pages_of_workloads_are_apart_too() -> None:
    """Mode `none` with a domain: a browser is led to the origin of the workload. There the REST API shows only that
    workload, and its pages may send nothing to our origin. Programs are served as before."""
    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    async with served(app) as port, api_world(Settings(proxy_domain=DOMAIN)) as world:
        made = await world.launch(name="book", ports=[{"name": "http", "port": port}])
        await world.run("book")
        id_, http = str(made["id"]), world.http
        led = await http.get("/proxy/book/lab?a=1", headers=BROWSER)
        assert (led.status_code, led.headers["Location"]) == (307, f"http://{id_}.{DOMAIN}/proxy/{id_}/lab?a=1")
        own = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{HOST}"}
        assert (await http.get(f"/proxy/{id_}/lab", headers={"Sec-Fetch-Site": "same-origin"})).status_code == 403
        assert (await http.post(f"/proxy/{id_}/lab", headers=own)).status_code == 403
        assert (await http.get(f"/proxy/{id_}/lab", headers={**there(id_), **BROWSER})).status_code == 200
        assert (await http.post(f"/api/v1/allocations/{id_}/kill", headers=there(id_))).status_code == 404
        page = {"Origin": f"http://{id_}.{DOMAIN}", "Sec-Fetch-Site": "cross-site"}
        assert (await http.get(f"/api/v1/allocations/{id_}", headers=page)).status_code == 403
        assert (await http.get(f"/proxy/{id_}/lab")).status_code == 200


def some_sessions(clock: FakeClock, keys: SealKeys | None = None) -> tuple[BrowserSessions, EndedSessions]:
    """The sessions of one process with a Redis of its own; `keys` may be those of other processes."""
    ended = EndedSessions(MemoryStreams(MemoryServer(clock)).logouts, clock)
    found = keys or SealKeys(None, clock)
    return BrowserSessions(found, ended, clock, SeededRandom(3), domain=DOMAIN, life_s=600.0), ended


async def test_clocks_that_differ() -> None:
    """A code of a replica whose clock is ahead is good a little longer; a code of one far ahead is not good at all."""
    clock = FakeClock()
    keys = SealKeys(None, clock)
    sessions, _ = some_sessions(clock, keys)
    login = sessions.begin("a")

    def a_code(id_: str, ahead_s: float) -> str:
        return keys.seal(EntryCode(id=id_, session=login, allocation="w", ends_at=clock.now() + CODE_S + ahead_s))

    assert await sessions.redeem(a_code("a", SKEW_S - 1), "w") == login
    assert await sessions.redeem(a_code("b", SKEW_S + 1), "w") is None
    assert await sessions.redeem(a_code("c", 1 - CODE_S), "w") == login
    assert await sessions.redeem(a_code("d", -CODE_S), "w") is None
    assert not sessions.is_good(msgspec.structs.replace(login, ends_at=clock.now() + 600.0 + SKEW_S + 1))


async def test_a_rotated_key(tmp_path: Path) -> None:
    """A new key opens at once, and seals when every replica has had time to get it; a removed key opens nothing."""
    clock, value = FakeClock(), LoginSession(id="a", token="b", ends_at=1.0)
    (tmp_path / "1.key").write_bytes(Fernet.generate_key())
    keys = SealKeys(tmp_path, clock)
    await keys.look()
    first = keys.seal(value)
    new = Fernet.generate_key()
    (tmp_path / "2.key").write_bytes(new + b"\n")
    await keys.look()
    only_new_folder = tmp_path / "other"
    only_new_folder.mkdir()
    (only_new_folder / "2.key").write_bytes(new)
    late = SealKeys(only_new_folder, clock)
    await late.look()
    assert keys.open(late.seal(value), LoginSession) == value
    assert late.open(keys.seal(value), LoginSession) is None
    clock.advance(SETTLE_S)
    assert late.open(keys.seal(value), LoginSession) == value
    assert keys.open(first, LoginSession) == value
    (tmp_path / "1.key").unlink()
    await keys.look()
    assert keys.open(first, LoginSession) is None
    assert keys.open(late.seal(value), LoginSession) == value


async def test_a_folder_without_a_usable_key(tmp_path: Path) -> None:
    """No user can log in, and the error names the folder. A bad file beside a good one is ignored; the last keys
    stay."""
    clock, value = FakeClock(), LoginSession(id="a", token="b", ends_at=1.0)
    keys = SealKeys(tmp_path, clock)
    (tmp_path / "9.key").write_text("not a key")
    await keys.look()
    with pytest.raises(UnavailableError, match=re.escape(str(tmp_path))):
        keys.seal(value)
    (tmp_path / "1.key").write_bytes(Fernet.generate_key())
    await keys.look()
    text = keys.seal(value)
    (tmp_path / "1.key").unlink()
    await keys.look()
    assert keys.open(text, LoginSession) == value
    with pytest.raises(UnavailableError, match="missing"):
        await SealKeys(tmp_path / "missing", clock).look()


@pytest.mark.parametrize("change", ["", "x", "gAAAAA", "{0}x", "{1}", "é", "a" * 10_000])
def test_a_cookie_that_we_did_not_seal_is_refused(change: str) -> None:
    """An empty value, noise, a value with a change or an addition, and another thing that we sealed give None and no
    error."""
    keys = SealKeys(None, FakeClock())
    good = keys.seal(LoginSession(id="a", token="b", ends_at=1.0))
    changed = good[:20] + ("A" if good[20] != "A" else "B") + good[21:]
    assert keys.open(change.format(good, changed), LoginSession) is None
    assert keys.open(good, EntryCode) is None
    assert keys.open(good, WorkloadTicket) is None


def test_long_tokens() -> None:
    """A token is accepted if all that is sealed with it fits a cookie; a longer one is refused before anything is
    stored."""
    sessions, _ = some_sessions(FakeClock())
    random = SeededRandom(5)
    token = random.token_hex(1_000)
    login = sessions.begin(token)
    assert login.token == token
    assert len(sessions.code(login, "w" * 64)) <= SEALED_CHARS_MAX
    with pytest.raises(UnauthorizedError, match="too long for a cookie"):
        sessions.begin(random.token_hex(2_500))


async def test_the_code_of_every_accepted_login_opens_a_workload() -> None:
    """A token and an allocation that cannot be compressed: if the login is accepted, its code is short enough too."""
    sessions, _ = some_sessions(FakeClock())
    random = Random(5)
    accepted = refused = 0
    for length in range(2_000, 3_800, 7):
        token = "".join(random.choices(ascii_letters + digits + "-_", k=length))
        allocation = "".join(random.choices(ascii_lowercase + digits, k=NAME_LENGTH_MAX + 9))
        try:
            login = sessions.begin(token)
        except UnauthorizedError:
            refused += 1
            continue
        accepted += 1
        assert await sessions.redeem(sessions.code(login, allocation), allocation) == login
    assert accepted
    assert refused


async def test_logout_marks_expire() -> None:
    """A logout is forgotten at the end of its login, which then opens nothing by itself."""
    clock = FakeClock()
    sessions, ended = some_sessions(clock)
    login = sessions.begin("a")
    await ended.end(login.id, login.ends_at)
    assert ended.has(login.id)
    clock.advance(601)
    await ended.look()
    assert not sessions.is_good(login)


async def test_a_code_is_good_again_when_its_own_time_is_over() -> None:
    """The mark of a used code ends with the code's time, also behind the mark of an earlier code that lasts longer."""
    clock = FakeClock()
    ended = EndedSessions(MemoryStreams(MemoryServer(clock)).logouts, clock)
    assert [await ended.take("long", 600), await ended.take("short", 10), await ended.take("short", 10)] == [
        True,
        True,
        False,
    ]
    clock.advance(11)
    assert [await ended.take("short", 10), await ended.take("long", 600)] == [True, False]
