"""Jobs, nodes, templates, webhooks, tokens and dead letters in a browser: an ordinary task of each."""

import sys
from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from slipway.api.usage.gpu_use import AllocationGpuUse, GpuUseView
from slipway.streams import keys
from slipway.streams.codec import encode_dead
from tests.browser.chromium import Page
from tests.browser.test_pages import Visit, command, gpus
from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def visit(stack: RunningStack, page: Page) -> Visit:
    return Visit(stack, page)


def fill(visit: Visit, name: str, text: str) -> None:
    """Replace the text of a form's field."""
    field = f"document.getElementById('field-{name}')"
    # The field of a dialog exists a moment before the dialog is shown, and accepts no input until then.
    visit.page.wait_for(f"{field}?.checkVisibility() === true")
    visit.page.run(f"{field}.select()")
    visit.put(f"#field-{name}", text)
    visit.page.wait_for(f"{field}.value === {text!r}")


def say_yes(visit: Visit, title: str) -> None:
    """Confirm the dialog with this title, and wait until it is gone."""
    visit.page.wait_for(f"document.querySelector('dialog[open] h2')?.innerText === {title!r}")
    button = "document.querySelector('dialog[open] .actions button:last-child')"
    visit.page.wait_for(f"!{button}.disabled")
    visit.page.run(f"{button}.click()")
    visit.page.wait_for("!document.querySelector('dialog')")


def call(stack: RunningStack, method: str, path: str, *body: Any) -> Any:
    return stack.ask(lambda api: getattr(api, method)(path, *body))


def test_a_job_is_created_used_and_removed(stack: RunningStack, visit: Visit) -> None:
    """A job is created, changed, launched into, killed with all its allocations, and removed; an invalid number
    cannot be sent."""
    visit.go("/jobs")
    visit.press("New job")
    fill(visit, "name", "Sweep")
    visit.page.wait_for("document.querySelector('dialog .actions button:last-child').disabled")
    fill(visit, "name", "page-sweep")
    fill(visit, "maxSlots", "four")
    visit.shows("Write a whole number, or nothing.")
    fill(visit, "maxSlots", "4")
    say_yes(visit, "New job")
    visit.page.wait_for("document.querySelector('h1')?.innerText.includes('Job page-sweep')")
    assert visit.page.run("location.pathname + location.search") == "/jobs/page-sweep?workspace=default"
    visit.shows("No workload names this job")
    id_ = stack.launch(command(SLEEP, name="page-member", job="page-sweep"))
    visit.shows(id_)
    visit.press("Change")
    fill(visit, "priority", "70")
    fill(visit, "maxSlots", "0")
    visit.page.run("document.getElementById('field-maxSlots').select()")
    visit.page.press("Backspace", 8)
    say_yes(visit, "Change job page-sweep")
    visit.shows("priority 70")
    job = call(stack, "get", "/jobs/page-sweep")
    assert (job["maxSlots"], job["priority"]) == (None, 70)
    visit.press("Kill all")
    say_yes(visit, "Kill 1 workload of job page-sweep?")
    stack.wait_for(id_, "Terminated")
    visit.press("Remove")
    say_yes(visit, "Remove job page-sweep?")
    visit.page.wait_for("location.pathname === '/jobs'")
    assert "page-sweep" not in [each["name"] for each in call(stack, "get", "/jobs")["items"]]
    visit.is_clean()


def test_an_edit_of_a_job_sends_only_the_changed_fields(stack: RunningStack, visit: Visit) -> None:
    """A limit that another user changes while the dialog is open stays unchanged."""
    name = fresh("page-changed")
    call(stack, "post", "/jobs", {"name": name, "maxSlots": 4})
    visit.go(f"/jobs/{name}?workspace=default")
    visit.press("Change")
    fill(visit, "priority", "70")
    call(stack, "patch", f"/jobs/{name}", {"maxSlots": 8})
    id_ = stack.launch(command(SLEEP, name=fresh("page-told"), job=name, hold=True))
    try:
        visit.shows(id_)
        say_yes(visit, f"Change job {name}")
        job = call(stack, "get", f"/jobs/{name}")
        assert (job["maxSlots"], job["priority"]) == (8, 70)
    finally:
        call(stack, "post", f"/allocations/{id_}/kill")
    visit.is_clean()


@pytest.fixture
def drained(stack: RunningStack) -> Generator[str]:
    """A node that is enabled again at the end."""
    name: str = call(stack, "get", "/nodes")["items"][0]["name"]
    yield name
    call(stack, "post", f"/nodes/{name}/enable")


def test_a_node_is_taken_out_of_use_and_back(stack: RunningStack, visit: Visit, drained: str) -> None:
    """From the list the user opens the node, which shows whose ranks it has; draining needs a confirmation, enabling
    does not."""
    id_ = stack.launch({**command(SLEEP, name="page-on-node"), "kind": "training", "ranks": gpus(1)})
    try:
        stack.wait_for(id_, "Running")
        visit.go("/nodes")
        visit.press(drained)
        visit.page.wait_for(f"location.pathname === '/nodes/{drained}'")
        visit.press("Drain")
        say_yes(visit, f"Drain {drained}?")
        visit.page.wait_for("document.querySelector('h1 .state').innerText === 'draining'")
        assert call(stack, "get", f"/nodes/{drained}")["scheduling"] == "draining"
        visit.press("Enable")
        visit.page.wait_for("document.querySelector('h1 .state').innerText === 'ready'")
        at = call(stack, "get", f"/allocations/{id_}")["status"]["admission"]["placements"][0]["node"]
        visit.go(f"/nodes/{at}")
        visit.page.wait_for(f"[...document.querySelectorAll('.list a')].some(a => a.innerText === {id_!r})")
    finally:
        call(stack, "post", f"/allocations/{id_}/kill")
    visit.is_clean()


def test_a_template_is_created_and_launched(stack: RunningStack, visit: Visit) -> None:
    """Wrong YAML is reported with its line, an unknown field by name; a launch with the template has its fields."""
    visit.go("/templates?new=1")
    fill(visit, "name", "page-base")
    fill(visit, "yaml", "image: local\n env: [")
    visit.page.wait_for("/^Line \\d+: /.test(document.getElementById('about-yaml').innerText)")
    assert visit.page.run("document.querySelector('.editor .primary').disabled") is True
    fill(visit, "yaml", "image: local\nmemry: 1Gi\n")
    visit.press("Make it")
    visit.page.wait_for("document.querySelector('.editor .bad')?.innerText.includes('memry')")
    fill(visit, "yaml", "image: local\nenv:\n  SHARED: 'yes'\n")
    visit.press("Make it")
    visit.page.wait_for("location.pathname === '/templates/page-base'")
    visit.press("Change")
    fill(visit, "yaml", "image: local\nenv:\n  SHARED: 'no'\n")
    visit.press("Save")
    visit.page.wait_for("document.querySelector('pre')?.innerText.includes('SHARED: \"no\"')")
    visit.press("Launch with it")
    visit.page.wait_for("document.querySelector('#field-template')?.value === 'page-base'")
    visit.put("[name=command]", f"{sys.executable} -c 'import os; print(os.environ[\"SHARED\"])'")
    visit.shows("fits now")
    visit.page.run("document.querySelector('form .primary').click()")
    visit.page.wait_for("document.querySelector('h1 .state')?.innerText === 'Succeeded'")
    visit.press("Log")
    visit.page.wait_for("document.querySelector('.lines')?.innerText.includes('no')")
    visit.go("/templates/page-base?workspace=default")
    visit.press("Remove")
    say_yes(visit, "Remove template page-base?")
    visit.page.wait_for("location.pathname === '/templates'")
    assert call(stack, "get", "/templates")["items"] == []
    visit.is_clean()


def test_a_webhook_shows_its_key_once(stack: RunningStack, visit: Visit) -> None:
    """A webhook is created with chosen events, tried without a listener (which is reported), paused, given a new
    key, and removed."""
    visit.go("/webhooks?new=1")
    fill(visit, "url", "ftp://nobody")
    visit.press("Make it")
    visit.page.wait_for("document.getElementById('about-url').className === 'bad'")
    fill(visit, "url", "http://127.0.0.1:9/hook?token=canary")
    fill(visit, "name", "page-hook")
    visit.page.run("[...document.querySelectorAll('.boxes label')].find(l => l.innerText === 'terminated').click()")
    visit.press("Make it")
    visit.shows("The signing key of page-hook")
    key = str(visit.page.run("document.querySelector('.notice code').innerText"))
    assert key.startswith("whsec_")
    assert "canary" not in visit.page.text()
    visit.press("Try it")
    visit.page.wait_for("document.querySelector('.webhook [role=status]')?.innerText.startsWith('Not accepted')")
    visit.press("Pause")
    visit.page.wait_for("document.querySelector('.webhook .state').innerText === 'paused'")
    found = call(stack, "get", "/webhooks/page-hook")
    assert (found["enabled"], found["events"]) == (False, ["terminated"])
    visit.press("New key")
    say_yes(visit, "Give page-hook a new key?")
    visit.page.wait_for(f"document.querySelector('.notice code').innerText !== {key!r}")
    visit.go("/webhooks")
    assert "whsec_" not in visit.page.text()
    visit.press("Remove")
    say_yes(visit, "Remove page-hook?")
    visit.shows("There are no webhooks")
    visit.is_clean()


def test_dead_letters_are_read_and_dropped(stack: RunningStack, visit: Visit) -> None:
    """A message that failed repeatedly is shown with its cause and its fields, until a user drops it."""
    with stack.redis() as redis:
        letter = encode_dead(keys.DEAD_DELIVERY, "1-0", 9, "the receiver answered 500", {"webhook": b"page-gone"})
        redis.xadd(keys.DEAD.prefix, letter)
    wait_until(lambda: call(stack, "get", "/dead")["items"], "the letter is there")
    visit.go("/dead")
    visit.shows("The receiver answered 500")
    visit.press("Open")
    visit.shows("page-gone")
    visit.press("Send again")
    visit.shows("the letter has no receiver")
    visit.press("Drop")
    say_yes(visit, "Drop this letter?")
    visit.shows("There are no dead letters")
    visit.is_clean()


def test_tokens_show_their_owner(visit: Visit) -> None:
    """The page shows a token's user, role and expiry, and nothing of the token itself."""
    visit.go("/tokens")
    visit.shows("admin everywhere")
    visit.shows("the account that started this stack")
    visit.go("/more")
    visit.press("Tokens")
    visit.page.wait_for("location.pathname === '/tokens'")
    visit.is_clean()


def test_a_remedy_is_offered_as_a_button(stack: RunningStack, visit: Visit) -> None:
    """Its job's limit blocks it: its page offers to raise the limit by the missing amount, and then it runs."""
    call(stack, "post", "/jobs", {"name": "page-narrow", "maxSlots": 1})
    body = {**command(SLEEP), "kind": "training", "ranks": gpus(1), "job": "page-narrow"}
    first = stack.launch({**body, "name": "page-first"})
    try:
        stack.wait_for(first, "Running")
        second = stack.launch({**body, "name": "page-second"})
        visit.go(f"/w/{second}")
        label = "Let job page-narrow have 1 GPU more"
        visit.press(label)
        say_yes(visit, f"{label}?")
        stack.wait_for(second, "Running")
        visit.page.wait_for("document.querySelector('h1 .state').innerText === 'Running'")
        assert call(stack, "get", "/jobs/page-narrow")["maxSlots"] == 2
    finally:
        call(stack, "post", "/jobs/page-narrow/kill")
    visit.is_clean()


def test_a_limit_that_was_removed_is_not_set_again(stack: RunningStack, visit: Visit) -> None:
    """The button was made for a limit that the job no longer has: pressing it changes nothing."""
    name = fresh("page-unlimited")
    call(stack, "post", "/jobs", {"name": name})
    visit.go("/")
    visit.page.run(
        "import(new URL('unblock.js', document.querySelector('script[type=module]').src)).then((m) =>"
        f" m.offerOf('a', 'default', [{{ kind: 'maxSlots', name: {name!r}, slots: 1 }}]).send())"
    )
    assert call(stack, "get", f"/jobs/{name}").get("maxSlots") is None
    visit.is_clean()


def test_allocated_idle_gpus_are_shown(stack: RunningStack, visit: Visit) -> None:
    """Home counts them, Usage names their users, and the allocation's page shows them; each from the API's own
    answer."""
    id_ = stack.launch({**command(SLEEP), "kind": "training", "name": "page-idle", "ranks": gpus(2, 1)})
    stack.wait_for(id_, "Running")
    since = str(stack.view(id_)["startedAt"])
    row = AllocationGpuUse(
        id=id_,
        workspace="default",
        user="tester",
        kind="training",
        pool="default",
        queue="default",
        gpus=2,
        running_since=since,
        percent=0.4,
        peak_percent=3.0,
        is_idle=True,
        ranks=[],
    )
    view = GpuUseView(is_configured=True, window_seconds=300, idle_seconds=1800, idle_percent=5, items=[row])
    visit.page.call("Page.enable")
    visit.page.call("Page.addScriptToEvaluateOnNewDocument", source=_answering("/api/v1/gpu-use", view))
    visit.go("/")
    visit.press("2 GPUs held and idle")
    visit.page.wait_for("location.pathname === '/usage'")
    visit.page.wait_for("document.querySelector('#gpu-use tbody tr')?.innerText.includes('tester')")
    visit.shows("2 of 2 GPUs held and idle")
    visit.page.run("document.querySelector('#gpu-use tbody a').click()")
    visit.page.wait_for(f"location.pathname.endsWith({id_!r})")
    visit.shows("GPUs 0 % busy")
    visit.shows("GPUs idle for 30 min")
    visit.is_clean()
    call(stack, "post", f"/allocations/{id_}/kill")


def _answering(path: str, view: GpuUseView) -> str:
    """A script that answers one address as an api with a Prometheus would; other requests pass."""
    body = msgspec.json.encode(view).decode()
    return f"""const ask = window.fetch;
    window.fetch = (where, how) => new URL(where, location).pathname === {path!r}
      ? Promise.resolve(new Response({body!r}, {{headers: {{"Content-Type": "application/json"}}}}))
      : ask(where, how);"""


def test_a_page_that_fails_to_load_says_so_and_can_be_reloaded(visit: Visit) -> None:
    """The modules of a page are loaded when it is opened; until then the frame and a heading are shown."""
    visit.page.call("Network.enable")
    visit.page.call("Network.setBlockedURLs", urls=["*/usage.js"])
    visit.go("/more")
    visit.press("Usage")
    visit.page.wait_for("document.querySelector('h1')?.innerText === 'This page could not be loaded'")
    visit.page.call("Network.setBlockedURLs", urls=[])
    visit.press("Try again")
    visit.page.wait_for("document.querySelector('h1')?.innerText === 'Usage'")
    visit.press("Workloads")
    visit.page.wait_for("document.querySelector('h1')?.innerText === 'Your workloads'")
    assert visit.page.run("document.activeElement.tagName") == "H1"


def test_other_pages_are_preloaded(visit: Visit) -> None:
    """Some seconds after the first page, going to another one needs no further module."""
    visit.go("/more")
    for name in ("workload.js", "queues.js", "launch.js", "tokens.js"):
        loaded = "performance.getEntriesByType('resource')"
        visit.page.wait_for(f"{loaded}.some(each => each.name.endsWith('/{name}') && each.responseEnd > 0)")
    visit.is_clean()
