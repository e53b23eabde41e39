"""Text of others on our pages: every name from a user, a program or an issuer is shown as text and never runs.

The tests try every input. Each that the API accepts must be seen on one of the pages, so that the tests prove
something. A refused input is in the refusal, which is a page too.
"""

import io
import json
import sys
import tarfile
from collections.abc import Generator
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.browser.attackers import PLANTED, SHOWN, assert_nothing_ran
from tests.browser.chromium import Page
from tests.browser.gallery import Caller
from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

Json = dict[str, Any]
USER = '<b data-planted>planted</b><img src=x onerror="window.hacked=1">@evil.example'
LINK = "\x1b]8;;javascript:window.hacked=1\x07a link of the log\x1b]8;;\x07"
TALKS = (
    f"import sys, time\nprint({PLANTED!r})\nprint('\\x1b[31m' + {PLANTED!r} + '\\x1b[0m')\nprint({LINK!r})\n"
    f"print('\\x1b]0;{SHOWN}\\x07\\x1b[2J\\x1bPq' + {SHOWN!r}, file=sys.stderr)\n"
)
FAILS = f"{TALKS}raise SystemExit({PLANTED!r})"
RUNS = f"{TALKS}sys.stdout.flush()\nwhile True: time.sleep(1)"


@pytest.fixture(scope="module")
def planted(stack: RunningStack) -> Generator[dict[str, str]]:
    """Allocations, a webhook, a template, a job and a token of a user with a hostile name, with planted text in each
    field."""
    caller = Caller(stack, USER)
    env = {"PLANTED": PLANTED}
    ids = {
        "runs": caller.launch(RUNS, fresh("runs"), env=env),
        "failed": caller.launch(FAILS, fresh("failed"), env=env),
        "waits": caller.launch("pass", fresh("waits"), gpus=8, ranks=8, kind="training"),
        "broken": caller.launch("pass", fresh("broken"), hold=True),
    }
    name = fresh("planted")
    body = {"image": "local", "command": ["echo", PLANTED], "env": env}
    stack.ask(lambda api: api.post("/templates", {"name": name, "body": body}))
    stack.ask(lambda api: api.post("/jobs", {"name": name}))
    hook = {"name": name, "url": f"http://127.0.0.1:9/?{quote(PLANTED)}", "description": PLANTED}
    stack.ask(lambda api: api.post("/webhooks", hook))
    stack.wait_for(ids["failed"], "Terminated")
    stack.wait_for(ids["runs"], "Running")
    wait_until(lambda: stack.view(ids["waits"])["status"].get("conditions"), "why it waits is known")
    yield {**ids, "name": name, "link": caller.link()}
    stack.ask(lambda api: api.call("DELETE", f"/webhooks/{name}"))
    stack.ask(lambda api: api.call("DELETE", f"/templates/{name}"))
    for id_ in ids.values():
        stack.ask(lambda api, id_=id_: api.post(f"/allocations/{id_}/kill"))


def shown_on(planted: dict[str, str]) -> dict[str, str]:
    """{page: planted texts that must be seen there}; empty: the page must only not run them"""
    name, runs, failed = planted["name"], planted["runs"], planted["failed"]
    text = quote(PLANTED, safe="")
    return {
        "/?of=everyone": USER,
        f"/w/{runs}?tab=log": SHOWN,
        f"/w/{failed}?tab=log": SHOWN,
        f"/w/{failed}": "",
        f"/w/{runs}?tab=events": "",
        f"/w/{runs}?tab=ranks": "",
        f"/w/{runs}?tab=yaml": SHOWN,
        f"/w/{planted['waits']}": USER,
        f"/launch?from={runs}&as=yaml": "",
        f"/launch?from={text}": "",
        f"/launch?template={text}&workspace={text}": "",
        f"/templates/{name}": SHOWN,
        f"/templates/{text}": SHOWN,
        "/templates": "",
        "/webhooks": SHOWN,
        "/tokens": USER,
        "/history": USER,
        f"/history?at={text}": "",
        f"/cluster?at={text}": "",
        "/cluster?by=user": USER,
        "/usage?by=user": "",
        f"/usage?by={text}&user={text}&queue={text}": "",
        f"/w/{text}": SHOWN,
        f"/queues/{text}": SHOWN,
        f"/queues/default?why={text}": "",
        f"/jobs/{text}": SHOWN,
        f"/jobs/{name}": "",
        f"/nodes/{text}": SHOWN,
        f"/?q={text}&state={text}&queue={text}&user={text}": "",
        "/dead": "",
        "/queues": "",
        "/nodes/node-0": "",
        "/more": "",
        f"/trace/{text}": SHOWN,
        f"/trace/{runs}": "",
        f"/login?next={text}": USER,
        f"/docs?{text}": "",
        f"/login/callback?error={text}&error_description={text}": "",
        f"/login/link?code={text}": "",
        f"/proxy/{text}/": "",
        f"/api/v1/allocations/{text}": "data-planted",
        f"/api/v1/queues/{text}?{text}": "data-planted",
    }


def is_settled(page: Page) -> None:
    """Whether the page has the data that it requests from the API."""
    page.wait_for("document.readyState === 'complete' && !document.querySelector('.loading')")


def test_no_page_runs_a_name_as_a_script(planted: dict[str, str], page: Page) -> None:
    """Names, labels, variables, log lines with control sequences, ends, explanations, titles, parameters of
    addresses and the name of the present user do not run."""
    page.goto(planted["link"])
    page.wait_for("!!document.querySelector('main h1')")
    origin = str(page.run("location.origin"))
    for path, seen in shown_on(planted).items():
        page.goto(f"{origin}{path}#{quote(PLANTED)}")
        is_settled(page)
        if seen:
            # The text of an input field is in its value.
            page.wait_for(
                "(document.body.innerText + document.title + [...document.querySelectorAll('input, textarea')]"
                f".map(each => each.value).join(' ')).includes({json.dumps(seen)})"
            )
        assert_nothing_ran(page, path)


def test_a_refusal_on_the_launch_page_is_text(stack: RunningStack, page: Page) -> None:
    """The API's refusal quotes the text, and is shown next to the field while the user types."""
    page.goto(stack.link("/launch"))
    for field in ("name", "command", "image"):
        page.wait_for(f"!!document.querySelector('[name={field}]')")
        page.run(f"document.querySelector('[name={field}]').focus()")
        page.call("Input.insertText", text=PLANTED)
    page.wait_for("document.querySelector('[name=name]').getAttribute('aria-invalid') === 'true'")
    page.wait_for(f"document.body.innerText.includes({json.dumps(SHOWN)})")
    assert_nothing_ran(page, "the launch page")
    page.goto(stack.link("/launch").replace("code=", "code=x"))  # the refusal of a wrong link is a page too
    is_settled(page)
    assert_nothing_ran(page, "a used link")


def test_terminal_output_runs_no_script(stack: RunningStack, page: Page) -> None:
    """A terminal shows a program's output without markup, without links that run a script, and without the program's
    title."""
    id_ = stack.launch({"kind": "shell", "name": fresh("screen")})
    page.goto(stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for("document.querySelector('.bar')?.dataset.state === 'open'")
    program = (
        f"print({PLANTED!r}); print({LINK!r}); print('\\x1b]0;{SHOWN}\\x07'); "
        "print('\\x1b[38;2;1;200;3mgreen\\x1b[0m'); print(6*7)"
    )
    page.type(f"{sys.executable} -c {json.dumps(program)}\n")
    page.wait_for("document.querySelector('.xterm-rows').innerText.includes('42')")
    page.wait_for("document.querySelector('.xterm-rows').innerText.includes('a link of the log')")
    assert_nothing_ran(page, "the terminal")
    # Colours work although the policy refuses inline styles.
    colour = (
        "getComputedStyle([...document.querySelectorAll('.xterm-rows span')].find(e => e.innerText === 'green')).color"
    )
    assert page.run(colour) == "rgb(1, 200, 3)"


def test_refusals_and_downloads_are_not_rendered_as_pages(stack: RunningStack, planted: dict[str, str]) -> None:
    """Refusals that quote a name, log lines, and names of files of an archive are not shown as a page by a browser."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        member = tarfile.TarInfo(f"../{PLANTED}")
        packed.addfile(member, io.BytesIO())
    url, headers = f"{stack.url}/api/v1", stack.headers
    with httpx2.Client(headers=headers, trust_env=False) as client:
        answers = [
            client.put(f"{url}/contexts", content=archive.getvalue(), headers={"content-type": "application/gzip"}),
            client.post(f"{url}/allocations", json={"kind": "command", "name": PLANTED, "queue": PLANTED}),
            client.post(f"{url}/allocations", json={PLANTED: 1}),
            client.post(f"{url}/allocations", json={"kind": "command", "image": "local", "labels": {PLANTED: PLANTED}}),
            client.post(f"{url}/webhooks", json={"name": "x", "url": f"javascript:{PLANTED}"}),
            client.get(f"{url}/allocations/{planted['runs']}/logs", params={"follow": "false"}),
            client.get(f"{url}/usage", params={"format": "csv"}),
            client.get(f"{stack.url}/{PLANTED}"),
        ]
    for answer in answers:
        kind = answer.headers["content-type"]
        assert kind.startswith(("application/problem+json", "text/plain", "text/csv", "application/")), kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert sum("data-planted" in answer.text for answer in answers) >= 4
