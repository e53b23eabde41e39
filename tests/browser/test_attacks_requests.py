"""Attacks by requests that a browser is led to make (links, redirects, frames, sockets), and by bare connections."""

import json
import socket
from collections.abc import Generator
from urllib.parse import quote, urlsplit

import pytest

from slipway.api.auth.route_rules import OTHERS
from slipway.inside.terminal import PROTOCOL
from tests.browser.attackers import a_frame, a_socket, foreign_site, open_foreign, outcome
from tests.browser.chromium import Browser, Page
from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import DEADLINE_S, wait_until

ELSEWHERE = ("//evil.example/", "https://evil.example/", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)")
PAGES = [path for path in OTHERS if not path.startswith(("/assets", "/livez", "/readyz", "/metrics", "/proxy", "/."))]


@pytest.fixture(scope="module")
def foreign() -> Generator[str]:
    with foreign_site() as site:
        yield site


@pytest.fixture(scope="module")
def shell(stack: RunningStack) -> str:
    """A running terminal."""
    id_ = stack.launch({"kind": "shell", "name": fresh("attacked")})
    wait_until(lambda: stack.view(id_)["ready"], "the shell to listen")
    return id_


def own_origin(stack: RunningStack) -> str:
    parts = urlsplit(stack.link("/"))
    return f"{parts.scheme}://{parts.netloc}"


def logged_in(stack: RunningStack, page: Page) -> str:
    """A logged-in browser, and our origin as the browser sees it."""
    page.goto(stack.link("/more"))
    page.wait_for("location.pathname === '/more'")
    return str(page.run("location.origin"))


def test_a_link_changes_nothing(stack: RunningStack, page: Page, foreign: str, shell: str) -> None:
    """A browser follows a link of another site with the user's login: no GET changes anything."""
    origin = logged_in(stack, page)
    paths = [f"/api/v1/allocations/{shell}/{verb}" for verb in ("kill", "terminate", "forget", "hold")]
    for path in (*paths, "/logout", "/login/start", "/api/v1/login-links"):
        open_foreign(page, foreign)
        page.run(f"(() => {{ location.href = '{origin}{path}' }})()")
        page.wait_for(f"!location.href.startsWith({foreign!r}) && document.readyState === 'complete'")
    page.goto(f"{origin}/more")
    page.wait_for("!!document.querySelector('main h1')")
    assert page.run("fetch('/api/v1/me').then(answer => answer.status)") == 200
    assert stack.view(shell)["phase"] == "Running"


def test_no_parameter_leads_to_another_site(stack: RunningStack, page: Page) -> None:
    """The parameter `next` of the login, of the step to the issuer and of one-time links cannot leave our site,
    however a browser reads the address."""
    for there in ELSEWHERE:
        link = stack.link("/more")
        page.goto(f"{link.partition('&next=')[0]}&next={quote(there)}")
        page.wait_for("!!document.querySelector('#app')")
        assert page.run("location.pathname") == "/"
        origin = str(page.run("location.origin"))
        page.goto(f"{origin}/login?next={quote(there)}&return={quote(there)}&url={quote(there)}")
        page.wait_for("!!document.querySelector('form[action=\"/logout\"]')")
        assert page.run("location.origin") == origin
        assert page.run("[...document.querySelectorAll('a')].every(each => each.origin === location.origin)")


def test_no_page_of_another_origin_frames_ours(stack: RunningStack, page: Page, foreign: str, shell: str) -> None:
    """Each page of the table refuses to be framed, logged in, by its address and by the name with the login. So does
    the terminal."""
    ours = logged_in(stack, page)
    terminal = stack.link(f"/proxy/{shell}/", allocation=shell)
    page.goto(terminal)
    page.wait_for("!!document.querySelector('.bar')")
    there = str(page.run("location.href"))
    assert len(PAGES) > 20
    for path in [*(f"{ours}{each}" for each in PAGES), there, f"{stack.url}/", f"{ours}/api/v1/me"]:
        url = path.replace("{id}", shell).replace("{name}", "x").replace("{path:path}", "")
        open_foreign(page, foreign)
        assert outcome(page, a_frame(url)) == "kept refused", url


def test_a_socket_needs_the_cookie_and_the_own_page(
    stack: RunningStack, browser: Browser, foreign: str, shell: str
) -> None:
    """The terminal and a command refuse a page of the right origin without a login, and one of another origin with
    it."""
    ours, ws = own_origin(stack), own_origin(stack).replace("http", "ws", 1)
    there = f"{ws.partition('//')[0]}//{shell}.{_domain(stack, shell)}"
    urls = (f"{ws}/proxy/{shell}/terminal", f"{there}/proxy/{shell}/terminal")
    commands = f"{ws}/api/v1/allocations/{shell}/ranks/0/exec?command=true"
    with browser.page() as nobody:
        nobody.goto(f"{ours}/docs")
        nobody.wait_for("document.title === 'Slipway API'")
        nobody.goto(f"{ours}/")
        nobody.wait_for("!!document.querySelector('#app')")
        for url in (*urls[:1], commands):
            assert outcome(nobody, a_socket(url, PROTOCOL)) == "broken", url
    with browser.page() as page:
        page.goto(stack.link(f"/proxy/{shell}/sessions", allocation=shell))
        page.wait_for("document.body.innerText.includes('items')")
        assert outcome(page, a_socket(urls[1], PROTOCOL)) == "kept open"
        logged_in(stack, page)
        for url in (*urls, commands):
            open_foreign(page, foreign)
            assert outcome(page, a_socket(url, PROTOCOL)) == "broken", url


def _domain(stack: RunningStack, id_: str) -> str:
    """The domain of the workloads' origins, with the port."""
    return str(urlsplit(stack.link("/", allocation=id_)).netloc).removeprefix(f"{id_}.")


HEADS = {
    "unknown host": ("GET /api/v1/me HTTP/1.1\r\nHost: evil.example\r\n", 421),
    "host twice": ("GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400),
    "host twice, one unknown": ("GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", 400),
    "no host": ("GET /api/v1/me HTTP/1.1\r\n", 421),
    "another host in the target": ("GET http://evil.example/api/v1/me HTTP/1.1\r\nHost: localhost\r\n", 400),
    "an unknown host in both": ("GET http://evil.example/api/v1/me HTTP/1.1\r\nHost: evil.example\r\n", 421),
    "the same host in both": ("GET http://localhost/api/v1/me HTTP/1.1\r\nHost: localhost\r\n", 200),
    "a tunnel": ("CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n", 400),
    "credentials twice": ("GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n", 400),
    "lengths of two kinds": (
        "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        400,
    ),
}


@pytest.mark.parametrize("what", HEADS)
def test_a_request_that_can_be_read_in_two_ways(stack: RunningStack, what: str) -> None:
    """Ambiguous requests are sent over a bare connection to the real process, with a valid token."""
    head, status = HEADS[what]
    parts = urlsplit(stack.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S) as line:
        token = stack.headers["Authorization"]
        line.sendall(f"{head}Authorization: {token}\r\nConnection: close\r\n\r\n".encode())
        first = line.makefile("rb").readline().decode()
    assert first.startswith(f"HTTP/1.1 {status}"), (what, first, json.dumps(head))
