"""A page of another site in a browser whose user is logged in: it can neither read, launch, connect nor reach the
cluster. Also tests the one-time link in the same browser."""

import json
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

import pytest

from slipway.inside.terminal import PROTOCOL
from tests.browser.attackers import a_socket, foreign_site, open_foreign, outcome
from tests.browser.chromium import Browser, Page
from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

Json = dict[str, Any]
LAUNCH: Json = {"kind": "command", "image": "local", "name": "hijacked", "command": ["true"]}
CONFIG: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "hijacked"}}
CONFIGS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def foreign() -> Generator[str]:
    with foreign_site() as site:
        yield site


@pytest.fixture
def victim(stack: RunningStack, page: Page, foreign: str) -> Page:
    """A tab with the foreign page, in a logged-in browser."""
    page.goto(stack.link("/api/v1/me"))
    page.wait_for("document.body.innerText.includes('\"user\"')")
    open_foreign(page, foreign)
    return page


def origins(stack: RunningStack) -> list[str]:
    """Both origins of the API: its address, and the name with the browser's login."""
    parts = urlsplit(stack.link("/"))
    return [stack.url, f"{parts.scheme}://{parts.netloc}"]


def names(stack: RunningStack) -> list[str]:
    """The names of all allocations."""
    listed: list[Json] = stack.ask(lambda api: api.get("/allocations")["items"])
    return [str(each["name"]) for each in listed]


def terminal_at(origin: str, id_: str) -> str:
    """A promise of a connection to a terminal."""
    return a_socket(f"{origin.replace('http', 'ws', 1)}/proxy/{id_}/terminal", PROTOCOL)


def test_the_browser_is_logged_in(stack: RunningStack, page: Page) -> None:
    """Without this the other tests would prove nothing."""
    page.goto(stack.link("/more"))
    page.wait_for("!!document.querySelector('main h1')")
    assert "hijack" not in page.text()
    status = page.run("fetch('/api/v1/allocations').then(answer => answer.status)")
    assert status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_it_launches_nothing_by_fetch(stack: RunningStack, victim: Page, kind: str) -> None:
    """A request without a preflight is sent, with the cookie if there is one, and refused."""
    body = f"new Blob([{json.dumps(json.dumps(LAUNCH))}], {{type: {json.dumps(kind)}}})"
    for origin in origins(stack):
        options = f"{{method: 'POST', mode: 'no-cors', credentials: 'include', body: {body}}}"
        assert outcome(victim, f"fetch('{origin}/api/v1/allocations', {options}).then(r => r.type)") in (
            "kept opaque",
            "broken",
        )
    assert "hijacked" not in names(stack)


def test_it_launches_nothing_with_json(stack: RunningStack, victim: Page) -> None:
    """The answer to the preflight does not allow it."""
    for origin in origins(stack):
        headers = "{'Content-Type': 'application/json'}"
        options = (
            f"{{method: 'POST', credentials: 'include', headers: {headers}, body: {json.dumps(json.dumps(LAUNCH))}}}"
        )
        assert outcome(victim, f"fetch('{origin}/api/v1/allocations', {options})") == "broken"
    assert "hijacked" not in names(stack)


def test_it_launches_nothing_by_a_form(stack: RunningStack, victim: Page, foreign: str) -> None:
    """A form whose text is valid JSON is refused."""
    for origin in origins(stack):
        open_foreign(victim, foreign)
        head, tail = json.dumps({**LAUNCH, "labels": {"a": "="}}).split("=", 1)
        victim.run(
            "(() => { const form = document.createElement('form'); form.method = 'post'; form.enctype = 'text/plain';"
            f"form.action = '{origin}/api/v1/allocations'; const field = document.createElement('input');"
            f"field.name = {json.dumps(head)}; field.value = {json.dumps(tail)}; form.append(field);"
            "document.body.append(form); form.submit() })()"
        )
        refused = victim.wait_for('document.body && /"status":(401|403)/.test(document.body.innerText)')
        assert refused
    assert "hijacked" not in names(stack)


def test_it_reads_nothing(stack: RunningStack, victim: Page) -> None:
    """It can read nothing, with the cookie or without, and no image, script or frame of ours loads."""
    for origin in origins(stack):
        for path in ("/api/v1/me", "/api/v1/allocations", "/api/v1/events", "/openapi.json", "/metrics"):
            assert outcome(victim, f"fetch('{origin}{path}', {{credentials: 'include'}})") == "broken", origin + path
        script = (
            "new Promise((kept, broken) => { const each = document.createElement('script');"
            f"each.onload = kept; each.onerror = broken; each.src = '{origin}/api/v1/me';"
            "document.head.append(each) })"
        )
        assert outcome(victim, script) == "broken"


def test_it_opens_no_websocket(stack: RunningStack, victim: Page, foreign: str) -> None:
    """A connection to a terminal would be a shell of the user; it is refused also when that browser has the
    terminal's page open."""
    id_ = stack.launch({"kind": "shell"})
    wait_until(lambda: stack.view(id_)["ready"], "the shell to listen")
    link = stack.link(f"/proxy/{id_}/sessions", allocation=id_)
    victim.goto(link)
    victim.wait_for("document.body.innerText.includes('items')")
    parts = urlsplit(link)
    own = f"{parts.scheme}://{parts.netloc}"
    assert outcome(victim, terminal_at(own, id_)) == "kept open"
    open_foreign(victim, foreign)
    for origin in [*origins(stack), own]:
        assert outcome(victim, terminal_at(origin, id_)) == "broken", origin


def test_it_does_not_reach_the_cluster(stack: RunningStack, victim: Page) -> None:
    """The local API server creates no object for it, and it can read nothing."""
    cluster = stack.stack.children["cluster"].url
    for scheme in ("https", "http"):
        url = f"{scheme}://{urlsplit(cluster).netloc}{CONFIGS}"
        body = json.dumps(json.dumps(CONFIG))
        outcome(victim, f"fetch('{url}', {{method: 'POST', mode: 'no-cors', body: {body}}})")
        assert outcome(victim, f"fetch('{url}')") == "broken"
    found = stack.kubernetes("GET", CONFIGS)["items"]
    assert "hijacked" not in [each["metadata"]["name"] for each in found]


def test_a_link_works_once(stack: RunningStack, browser: Browser) -> None:
    """The page behind the link has no code in its address; the same link is refused in another browser."""
    url = stack.link("/api/v1/me")
    with browser.page() as first:
        first.goto(url)
        first.wait_for("document.body.innerText.includes('\"user\"')")
        assert first.run("location.pathname") == "/api/v1/me"
        assert "code" not in first.run("location.href + document.referrer")
        assert first.run("document.cookie") == ""
    with browser.page() as second:
        second.goto(url)
        second.wait_for("document.title === 'This link is no longer valid'")
        second.goto(f"{origins(stack)[1]}/api/v1/me")
        second.wait_for("document.body.innerText.includes('\"status\":401')")


def test_the_origin_of_a_workload_gets_a_ticket_and_no_token(stack: RunningStack, page: Page) -> None:
    """The step from our page passes a ticket, and no token. On the way back from a page of another site the login is
    found too. After the logout the workload's page leads to the login."""
    id_ = stack.launch({"kind": "shell"})
    wait_until(lambda: stack.view(id_)["ready"], "the shell to listen")
    main = stack.link("/api/v1/me")
    own = f"{urlsplit(main).scheme}://{urlsplit(main).netloc}"
    page.goto(main)
    page.wait_for("document.body.innerText.includes('\"user\"')")
    page.goto(f"{own}/proxy/{id_}/sessions")
    page.wait_for("!!document.querySelector('form [name=code]')")
    assert stack.stack.token not in str(page.run("document.documentElement.outerHTML"))
    page.run("document.querySelector('form').submit()")
    page.wait_for("document.body.innerText.includes('items')")
    there = str(page.run("location.origin"))
    assert str(urlsplit(there).hostname).startswith(f"{id_}.")
    assert (page.run("document.cookie"), "code" in str(page.run("location.href"))) == ("", False)
    assert page.run(f"fetch('/proxy/{id_}/sessions').then(answer => answer.status)") == 200
    page.run(f"(() => {{ location.href = '{own}/proxy/{id_}/sessions' }})()")
    page.wait_for("!!document.querySelector('form [name=code]')")
    page.goto(f"{own}/login")
    page.wait_for("!!document.querySelector('form[action=\"/logout\"]')")
    page.run("document.querySelector('form').submit()")
    page.wait_for("!!document.querySelector('input[name=token]')")
    page.goto(f"{there}/proxy/{id_}/sessions")
    page.wait_for("document.title === 'Open this page again'")
    page.run("document.querySelector('a').click()")
    page.wait_for("!!document.querySelector('input[name=token]')")
