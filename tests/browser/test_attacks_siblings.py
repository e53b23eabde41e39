"""Pages of workloads against their neighbours and the api, where all share a parent domain, which an operator may
choose.

The api is `lab.localhost`, workloads are below `apps.lab.localhost`: browsers treat both as one site, and let a page
set cookies for the parent. A page of a workload is the attacker's program, in a browser whose user is logged in.
"""

import json
import sys
from collections.abc import Generator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from slipway.inside.terminal import PROTOCOL
from tests.browser.attackers import a_frame, a_socket, outcome
from tests.browser.chromium import Page
from tests.support.local_stack import RunningStack, running_stack
from tests.support.wait import wait_until

NAMES = {"SLIPWAY_HOSTS": "lab.localhost", "SLIPWAY_PROXY_DOMAIN": "apps.lab.localhost"}
PAGE = """
import http.server, os
FIELDS = {
    "NEL": '{"report_to": "x", "max_age": 9999}', "Report-To": '{"group": "x", "endpoints": [{"url": "https://e.example"}]}',
    "Reporting-Endpoints": 'x="https://e.example"', "Strict-Transport-Security": "max-age=999; includeSubDomains",
    "Clear-Site-Data": '"*"', "Service-Worker-Allowed": "/", "Alt-Svc": 'h2="e.example:443"', "X-Own": "kept",
}
COOKIES = ("=slipway_ticket=forged", "slipway_ticket=forged; Path=/", "__Host-slipway_ticket=forged; Path=/; Secure",
    "slipway_session=forged; Domain=lab.localhost; Path=/", "nameless", "fine=1; Path=/; Domain=lab.localhost")

class Attack(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<!doctype html><title>attacker</title><h1>attacker</h1>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        for name, value in FIELDS.items():
            self.send_header(name, value)
        for value in COOKIES:
            self.send_header("Set-Cookie", value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer((os.environ["SLIPWAY_POD_IP"], 8080), Attack).serve_forever()
"""


class TwoWorkloads(NamedTuple):
    """The two workloads: the attacker's, and the victim's, whose terminal the attacker wants to use."""

    stack: RunningStack
    attacker: str
    victim: str


@pytest.fixture(scope="module")
def two_workloads(tmp_path_factory: pytest.TempPathFactory) -> Generator[TwoWorkloads]:
    with running_stack(tmp_path_factory.mktemp("lab") / "data", nodes=1, env=NAMES) as stack:
        ports = [{"name": "http", "port": 8080}]
        command = [sys.executable, "-c", PAGE]
        attacker = stack.launch({"kind": "command", "image": "local", "command": command, "ports": ports})
        victim = stack.launch({"kind": "shell"})
        wait_until(lambda: stack.view(victim)["ready"], "the shell to listen")
        stack.wait_for(attacker, "Running")
        yield TwoWorkloads(stack, attacker, victim)


@pytest.fixture
def attack(two_workloads: TwoWorkloads, page: Page) -> Page:
    """The attacker's page, in a logged-in browser that had the victim's terminal open before."""
    page.goto(two_workloads.stack.link("/more"))
    page.wait_for("location.pathname === '/more'")
    assert page.run("location.hostname") == "lab.localhost"
    open_page(two_workloads, page, two_workloads.victim, "!!document.querySelector('.bar')")
    open_page(two_workloads, page, two_workloads.attacker, "document.title === 'attacker'")
    return page


def open_page(two_workloads: TwoWorkloads, page: Page, id_: str, until: str) -> None:
    """Open the page of a workload in the way of a user."""
    page.goto(two_workloads.stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for(until)


def origins(two_workloads: TwoWorkloads) -> tuple[str, str]:
    """The origins of the api and of the victim."""
    port = urlsplit(two_workloads.stack.link("/")).port
    return f"http://lab.localhost:{port}", f"http://{two_workloads.victim}.apps.lab.localhost:{port}"


def test_requests_from_a_neighbouring_workload_are_refused(two_workloads: TwoWorkloads, attack: Page) -> None:
    """Browsers send `same-two_workloads` and the cookies: no read, change, frame, socket or form succeeds."""
    api, victim = origins(two_workloads)
    assert attack.run("location.hostname") == f"{two_workloads.attacker}.apps.lab.localhost"
    for url in (f"{api}/api/v1/me", f"{victim}/proxy/{two_workloads.victim}/sessions", f"{api}/openapi.json"):
        options = "{credentials: 'include'}"
        assert outcome(attack, f"fetch('{url}', {options})") == "broken", url
        assert "items" not in outcome(attack, f"fetch('{url}', {{mode: 'no-cors', credentials: 'include'}})")
        assert outcome(attack, a_frame(url)) == "kept refused", url
    body = json.dumps(json.dumps({"kind": "command", "image": "local", "command": ["true"], "name": "hijacked"}))
    options = f"{{method: 'POST', mode: 'no-cors', credentials: 'include', body: {body}}}"
    outcome(attack, f"fetch('{api}/api/v1/allocations', {options})")
    outcome(attack, f"fetch('{api}/logout', {{method: 'POST', mode: 'no-cors', credentials: 'include'}})")
    sockets = (f"{victim}/proxy/{two_workloads.victim}/terminal", f"{api}/proxy/{two_workloads.victim}/terminal")
    for url in sockets:
        assert outcome(attack, a_socket(url.replace("http", "ws", 1), PROTOCOL)) == "broken", url
    listed = two_workloads.stack.ask(lambda api: api.get("/allocations")["items"])
    assert "hijacked" not in [each["name"] for each in listed]
    attack.goto(f"{api}/more")
    attack.wait_for("!!document.querySelector('main h1')")
    assert attack.run("fetch('/api/v1/me').then(answer => answer.status)") == 200


def test_cookies_that_a_neighbour_sets_open_and_close_nothing(two_workloads: TwoWorkloads, attack: Page) -> None:
    """Cookies for the parent domain and every path, before and beside ours, do not change the user's login, in the
    api and in their terminal."""
    api, victim = origins(two_workloads)
    for name in ("slipway_session", "slipway_ticket", "__Host-slipway_session", "__Host-slipway_ticket"):
        for where in ("Domain=lab.localhost", "Domain=apps.lab.localhost"):
            for path in ("/", "/api", f"/proxy/{two_workloads.victim}", "/api/v1/me"):
                attack.run(f"(() => {{ document.cookie = '{name}=forged; {where}; Path={path}' }})()")
                attack.run(f"(() => {{ document.cookie = '{name}=forged; {where}; Path={path}; Secure' }})()")
    assert "slipway_session=forged" in attack.run("document.cookie")  # the browser has accepted all that it may
    attack.goto(f"{api}/more")
    attack.wait_for("!!document.querySelector('main h1')")
    assert attack.run("fetch('/api/v1/me').then(answer => answer.status)") == 200
    attack.goto(f"{victim}/proxy/{two_workloads.victim}/")
    attack.wait_for("document.querySelector('.bar')?.dataset.state === 'open'")


def test_many_cookies_of_a_neighbour_do_not_open_anything(two_workloads: TwoWorkloads, attack: Page) -> None:
    """With enough cookies the browser drops ours, or sends a head that is too large: its user has to log in again,
    and is not logged in until then. A neighbour can do this; workloads should have their own domain."""
    api, _ = origins(two_workloads)
    attack.run(
        "(() => { for (let number = 0; number < 400; number++)"
        " document.cookie = `flood${number}=x; Domain=lab.localhost; Path=/` })()"
    )
    attack.goto(f"{api}/api/v1/me")
    attack.wait_for("document.readyState === 'complete'")
    assert attack.run(
        "document.body.innerText.includes('\"status\":401') || document.body.innerText.includes('\"user\"')"
    )


def test_response_headers_of_a_workload_affect_only_its_own_origin(two_workloads: TwoWorkloads, attack: Page) -> None:
    """Fields for the whole host, cookies with our names, and cookies without a name do not reach the browser."""
    told = attack.run("fetch(location.href).then(answer => JSON.stringify([...answer.headers.keys()]))")
    names = set(json.loads(str(told)))
    assert "x-own" in names
    assert not names & {
        *("nel", "report-to", "reporting-endpoints", "strict-transport-security", "clear-site-data", "alt-svc"),
        "service-worker-allowed",
    }
    kept = attack.call("Network.getCookies", urls=[str(attack.run("location.href"))])["cookies"]
    assert {each["name"] for each in kept} == {"slipway_ticket", "fine"}
    [fine] = [each for each in kept if each["name"] == "fine"]
    assert (fine["path"], fine["domain"].lstrip(".")) == (
        f"/proxy/{two_workloads.attacker}/",
        f"{two_workloads.attacker}.apps.lab.localhost",
    )
    assert all(each["value"] != "forged" for each in kept)
