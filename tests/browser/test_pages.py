"""The page in a browser: the main tasks of users, on a real stack."""

import asyncio
import hashlib
import json
import re
import sys
import time
import uuid
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from slipway.api.auth.route_rules import PAGES
from slipway.logarchive.archive import LogArchive
from slipway.logarchive.objects import open_archive
from slipway.logarchive.pieces import START, ArchiveRecord
from slipway.model.ids import AllocationId
from slipway.runtime.clock import SystemClock
from slipway.streams.logpacks import LogLine, StoredLine
from tests.browser.accessibility import AXE, barriers
from tests.browser.chromium import Browser, Page
from tests.support.access import a_token
from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

PYTHON = sys.executable
TALK = "import time\nfor i in range(100000): print(f'\\x1b[32mstep {i}\\x1b[0m', flush=True); time.sleep(0.2)"
FAIL = "print('reading config'); print('KeyError: <script>window.hacked = 1</script>'); raise SystemExit(3)"
SCRIPT = "<script>window.hacked=1</script>"
MANY = 200_000
WITH_MORE = ("/", "/queues", "/launch", "/templates", "/webhooks")
"""Pages that are also visited with a dialog or menu open."""
OTHERS = (
    *("/nodes/node-0", "/templates?new=1", "/webhooks?new=1"),
    *(path for path in PAGES if "{" not in path and path not in WITH_MORE),
)
"""Pages that need no existing object; an empty form is one of them."""
EXPECTED = re.compile(r"status of (?:400|401|403|404|409|422)")
"""Refusals that a page shows in words; a browser also logs them on its console."""


def gpus(each: int, ranks: int = 1) -> list[dict[str, Any]]:
    return [{"name": "worker", "count": ranks, "resources": {"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": each}}]


def command(program: str, **more: Any) -> dict[str, Any]:
    return {"kind": "command", "image": "local", "command": [PYTHON, "-c", program], **more}


class Visit:
    """A logged-in visitor."""

    def __init__(self, stack: RunningStack, page: Page) -> None:
        self._stack = stack
        self.page = page
        self._is_in = False
        self.origin = ""

    def go(self, path: str) -> None:
        """Open a page, and wait until it shows its content."""
        if not self._is_in:
            self.page.goto(self._stack.link(path))
            self._is_in = True
        else:
            self.page.goto(f"{self.origin}{path}")
        here = path.partition("?")[0]
        self.page.wait_for(f"location.pathname === {here!r} && !!document.querySelector('main h1')")
        self.page.wait_for("!document.querySelector('.loading')")
        self.origin = str(self.page.run("location.origin"))

    def shows(self, text: str) -> None:
        """Wait until the text can be read."""
        self.page.wait_for(f"document.body.innerText.includes({text!r})")

    def press(self, text: str) -> None:
        """Click the button or link with this text."""
        here = f"[...document.querySelectorAll('button, a')].find(e => e.innerText.trim() === {text!r})"
        self.page.wait_for(f"!!{here} && !{here}.disabled")
        self.page.run(f"{here}.click()")

    def put(self, selector: str, text: str) -> None:
        """Type into a field."""
        self.page.wait_for(f"!!document.querySelector({selector!r})")
        self.page.run(f"document.querySelector({selector!r}).focus()")
        self.page.call("Input.insertText", text=text)

    def is_clean(self) -> None:
        """Check that no script failed, and that no policy refused anything."""
        assert [each for each in self.page.errors if not EXPECTED.search(each)] == []
        assert self.page.run("window.hacked") is None


@pytest.fixture
def visit(stack: RunningStack, page: Page) -> Visit:
    return Visit(stack, page)


@pytest.fixture(scope="module")
def busy(stack: RunningStack) -> Generator[dict[str, str]]:
    """A running gang, a failed one, one that waits for resources, and a held one."""
    ids = {
        "gang": stack.launch({**command(TALK), "kind": "training", "name": "page-gang", "ranks": gpus(4, 2)}),
        "failed": stack.launch(command(FAIL, name="page-failed", labels={"note": "a"})),
        "big": stack.launch({**command(TALK), "kind": "training", "name": "page-big", "ranks": gpus(8, 8)}),
        "held": stack.launch(command("pass", name="page-held", hold=True)),
    }
    stack.wait_for(ids["gang"], "Running")
    stack.wait_for(ids["failed"], "Terminated")
    yield ids
    for id_ in ids.values():
        stack.ask(lambda api, id_=id_: api.post(f"/allocations/{id_}/kill"))


def test_a_launch_and_its_log(stack: RunningStack, visit: Visit) -> None:
    """The form is checked while the user types; the launched allocation opens, prints, and its log is shown as it
    arrives."""
    visit.go("/")
    visit.press("Launch")
    visit.shows("Write a command, or name an image")
    visit.put("[name=command]", f"{PYTHON} -c \"print('hello from ' + 'the form')\"")
    visit.put("[name=name]", "From The Form")
    visit.page.wait_for("document.querySelector('[name=name]').getAttribute('aria-invalid') === 'true'")
    assert visit.page.run("document.querySelector('form .primary').disabled") is True
    visit.page.run("document.querySelector('[name=name]').select()")
    visit.put("[name=name]", "from-the-form")
    visit.put("[name=image]", "local")
    visit.shows("fits now")
    visit.shows("slipway command start --name from-the-form --image local -- ")
    visit.page.run("document.querySelector('form .primary').click()")
    visit.page.wait_for("location.pathname.startsWith('/w/from-the-form-')")
    visit.page.wait_for("document.querySelector('h1 .state')?.innerText === 'Succeeded'")
    visit.press("Log")
    visit.page.wait_for("document.querySelector('.lines')?.innerText.includes('hello from the form')")
    visit.is_clean()
    id_ = str(visit.page.run("location.pathname.split('/')[2]"))
    assert stack.view(id_)["spec"]["template"]["spec"]["containers"][0]["command"][0] == PYTHON


def test_a_waiting_allocation_shows_why(visit: Visit, busy: dict[str, str]) -> None:
    """The queue shows its position, the ones ahead, the reason in a chip, and the details behind it, also by an
    address."""
    visit.go("/queues")
    visit.shows("page-big")
    rows = "[...document.querySelectorAll('.waiting tbody tr')]"
    visit.page.run(f"{rows}.find(row => row.innerText.includes('page-big')).querySelector('.chip').click()")
    visit.page.wait_for("document.querySelector('tr.detail dl')?.innerText.includes('What helps')")
    told = str(visit.page.run("document.querySelector('tr.detail').innerText"))
    assert "Can never start with the pool's current nodes" in told
    assert "in queue default" in told
    assert "ask for less" in told.lower()
    assert visit.page.run("location.search") == f"?why={busy['big']}"
    visit.go(f"/w/{busy['big']}")
    visit.page.wait_for("document.querySelector('.notice')?.innerText.includes('No fit')")
    visit.is_clean()


def test_a_held_allocation_is_resumed(stack: RunningStack, visit: Visit) -> None:
    """The page of a held allocation offers to resume it, and shows each state without a reload."""
    id_ = stack.launch(command("import time; time.sleep(1)", name="page-resumed", hold=True))
    visit.go(f"/w/{id_}")
    visit.page.wait_for("document.querySelector('h1 .state').innerText === 'Held'")
    visit.press("Resume")
    visit.page.wait_for("document.querySelector('h1 .state').innerText === 'Succeeded'")
    visit.is_clean()


def test_a_kill_needs_a_confirmation(stack: RunningStack, visit: Visit) -> None:
    """Escape keeps it running; a confirmed dialog ends it, and the page shows that by itself."""
    id_ = stack.launch(command(TALK, name="page-killed"))
    stack.wait_for(id_, "Running")
    visit.go(f"/w/{id_}")
    visit.page.wait_for("document.querySelector('.lines')?.innerText.includes('step 2')")
    assert visit.page.run("getComputedStyle(document.querySelector('.lines .ansi-2')).color") not in (
        "",
        "rgb(0, 0, 0)",
    )
    visit.press("Kill")
    visit.page.wait_for("document.querySelector('dialog[open]')?.innerText.includes('Kill page-killed?')")
    visit.page.press("Escape", 27)
    visit.page.wait_for("!document.querySelector('dialog')")
    assert stack.view(id_)["desired"] == "Running"
    visit.press("Kill")
    visit.page.wait_for("!!document.querySelector('dialog[open] .danger')")
    visit.page.run("document.querySelector('dialog .danger').click()")
    visit.page.wait_for("document.querySelector('h1 .state').innerText === 'Canceled'")
    visit.is_clean()


def test_the_page_of_a_failed_allocation_begins_with_its_cause(visit: Visit, busy: dict[str, str]) -> None:
    """The reason, the rank, its exit code and its last words are shown first."""
    visit.go(f"/w/{busy['failed']}")
    visit.page.wait_for("document.querySelector('.notice .words')?.innerText.includes('reading config')")
    told = str(visit.page.run("document.querySelector('.notice').innerText"))
    assert told.startswith("Rank failed")
    assert "exit code 3" in told
    first = "document.querySelector('.notice').compareDocumentPosition(document.querySelector('.stepper')) & 4"
    assert visit.page.run(first) == 4
    visit.is_clean()


def test_text_of_other_users_is_escaped(stack: RunningStack, visit: Visit, busy: dict[str, str]) -> None:
    """Markup in a log line, a label, a command or an address creates no element and runs nothing."""
    id_ = stack.launch(command(f"print({SCRIPT!r})", name="page-markup", env={"HTML": SCRIPT}))
    stack.wait_for(id_, "Terminated")
    visit.go(f"/w/{id_}")
    visit.page.wait_for(f"document.querySelector('.lines')?.innerText.includes({SCRIPT!r})")
    visit.page.run("document.querySelector('.lines li').click()")
    visit.page.wait_for(f"document.querySelector('.chosen-line')?.innerText.includes({SCRIPT!r})")
    visit.go(f"/w/{id_}?tab=yaml")
    visit.shows(SCRIPT)
    visit.go(f"/launch?from={id_}")
    visit.page.wait_for(f"document.querySelector('[name=env]').value.includes({SCRIPT!r})")
    visit.page.goto(f"{visit.origin}/w/%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%3D1%22%3E")
    visit.shows("Not found")
    assert visit.page.run("document.querySelectorAll('main img, main script').length") == 0
    visit.is_clean()


def test_ranks_events_and_yaml(visit: Visit, busy: dict[str, str]) -> None:
    """Each rank has its node, state and last line; the YAML is the object, and can be read back."""
    visit.go(f"/w/{busy['gang']}?tab=ranks")
    visit.page.wait_for("document.querySelectorAll('.ranks tbody tr').length === 2")
    visit.page.wait_for("/step \\d+/.test(document.querySelector('.ranks .note').innerText)")
    visit.page.run("document.querySelector('#tab-ranks').focus()")
    visit.page.press("ArrowRight", 39)
    visit.page.wait_for("document.querySelectorAll('.events tbody tr').length >= 4")
    visit.page.press("ArrowRight", 39)
    visit.page.wait_for("document.querySelector('#tab-panel').innerText.includes('GPU hours')")
    visit.page.press("ArrowRight", 39)
    # Passing the terminal's tab opens no terminal.
    visit.page.wait_for("document.querySelector('#tab-panel').innerText.includes('Open a shell')")
    visit.page.press("ArrowRight", 39)
    visit.page.wait_for("!!document.querySelector('.yaml pre')")
    told = yaml.safe_load(str(visit.page.run("document.querySelector('.yaml pre').textContent")))
    assert (told["kind"], told["metadata"]["name"]) == ("Allocation", "page-gang")
    assert told["spec"]["template"]["spec"]["containers"][0]["command"] == [PYTHON, "-c", TALK]
    visit.is_clean()


def test_where_the_free_gpus_are(stack: RunningStack, visit: Visit, busy: dict[str, str]) -> None:
    """The numbers of the home page and of the map are those of the nodes; a draining node is marked."""
    nodes = stack.ask(lambda api: api.get("/nodes"))["items"]
    free = sum(node["gpus"] - node["gpusUsed"] for node in nodes)
    assert sum(node["gpusUsed"] for node in nodes) >= 8
    visit.go("/")
    visit.page.wait_for(f"document.querySelector('.free .figure b')?.innerText === '{free}'")
    visit.go("/cluster")
    cells = f"document.querySelectorAll('.node .cell[href=\"/w/{busy['gang']}\"]').length"
    visit.page.wait_for(f"{cells} === 8")
    assert visit.page.run("document.querySelectorAll('.node .cell').length") == sum(node["gpus"] for node in nodes)
    name = nodes[0]["name"]
    stack.ask(lambda api: api.post(f"/nodes/{name}/drain"))
    try:
        visit.go("/cluster")
        visit.page.wait_for("document.querySelector('.node.closed')?.innerText.includes('draining')")
    finally:
        stack.ask(lambda api: api.post(f"/nodes/{name}/enable"))
    visit.is_clean()


def places(stack: RunningStack) -> list[str]:
    """The waiting names of the queue, in their order."""
    return [str(each["name"]) for each in stack.ask(lambda api: api.get("/queues/default"))["waiting"]]


def select(visit: Visit, *names: str) -> None:
    """Select the rows with these names."""
    for name in names:
        box = f"document.querySelector('.waiting input[aria-label$=\"select {name}\"]')"
        visit.page.wait_for(f"!!{box}")
        visit.page.run(f"{box}.click()")
    visit.page.wait_for(f"document.querySelector('.selection b')?.innerText === '{len(names)} selected'")


def choose(visit: Visit, selector: str, value: str) -> None:
    """Choose in a list, or set the time of a field, as a user does."""
    visit.page.wait_for(f"!!document.querySelector({selector!r})")
    visit.page.run(
        f"(() => {{ const box = document.querySelector({selector!r}); box.value = {value!r};"
        " box.dispatchEvent(new Event('change', {bubbles: true})) })()"
    )


def answer(visit: Visit, title: str, verb: str) -> None:
    """Confirm the dialog with that title."""
    visit.page.wait_for(f"document.querySelector('dialog[open] h2')?.innerText === {title!r}")
    visit.press(verb)
    visit.page.wait_for("!document.querySelector('dialog') && !document.querySelector('.selection')")


@pytest.fixture
def line(stack: RunningStack) -> Generator[dict[str, str]]:
    """Three held allocations in the queue; {name: id}."""
    prefix = f"line-{uuid.uuid4().hex[:6]}"
    names = [f"{prefix}-{letter}" for letter in "abc"]
    ids = {name: stack.launch(command("pass", name=name, hold=True, priority=40)) for name in names}
    yield ids
    for id_ in ids.values():
        stack.ask(lambda api, id_=id_: api.post(f"/allocations/{id_}/kill"))


def test_many_are_moved_at_once(stack: RunningStack, visit: Visit, busy: dict[str, str], line: dict[str, str]) -> None:
    """The selected ones move to the front or the end in their own order; the dialog counts them, and Escape changes
    nothing."""
    before = places(stack)
    moved = [name for name in before if name in line][1:]
    visit.go("/queues/default")
    select(visit, *moved)
    visit.press("Move")
    visit.page.wait_for("document.querySelector('dialog[open]')?.innerText.includes('Move 2 workloads?')")
    visit.page.press("Escape", 27)
    visit.page.wait_for("!document.querySelector('dialog')")
    assert places(stack) == before
    visit.press("Move")
    answer(visit, "Move 2 workloads?", "Move 2")
    assert places(stack)[:2] == moved
    select(visit, *moved)
    visit.press("Move")
    choose(visit, "#bulk-place", "end")
    answer(visit, "Move 2 workloads?", "Move 2")
    assert places(stack)[-2:] == moved
    visit.is_clean()


def test_the_priority_of_many_is_changed(
    stack: RunningStack, visit: Visit, busy: dict[str, str], line: dict[str, str]
) -> None:
    """A number out of bounds cannot be sent; a valid one changes each selected allocation, and no other."""
    visit.go("/queues/default")
    select(visit, *list(line)[:2])
    visit.press("Priority")
    visit.page.wait_for("document.activeElement.id === 'bulk-priority'")
    visit.page.run("document.querySelector('#bulk-priority').select()")
    visit.put("#bulk-priority", "1001")
    visit.page.wait_for("document.querySelector('dialog .primary').disabled")
    visit.page.run("document.querySelector('#bulk-priority').select()")
    visit.put("#bulk-priority", "77")
    answer(visit, "Change the priority of 2 workloads?", "Change 2")
    assert [stack.view(id_)["spec"]["priority"] for id_ in line.values()] == [77, 77, 40]
    visit.is_clean()


def test_many_are_killed_at_once(stack: RunningStack, visit: Visit, busy: dict[str, str], line: dict[str, str]) -> None:
    """One step selects everything that the filter shows; the dialog counts them, and no other is killed."""
    visit.go("/queues/default")
    visit.put("[aria-label='Filter waiting workloads']", next(iter(line)).removesuffix("-a"))
    visit.press("Select these 3")
    visit.press("Kill")
    answer(visit, "Kill 3 workloads?", "Kill 3")
    for id_ in line.values():
        assert stack.wait_for(id_, "Terminated")["result"] == "Canceled"
    assert stack.view(busy["held"])["desired"] == "Running"
    visit.is_clean()


def test_what_was_used(stack: RunningStack, visit: Visit, busy: dict[str, str]) -> None:
    """A row shows the API's figures, and links to its parts; a filter can be removed again."""
    visit.go("/usage")
    row = "[...document.querySelectorAll('.usage tbody tr')].find(row => row.innerText.includes('tester'))"
    visit.page.wait_for(f"!!{row}")
    (used,) = (
        each
        for each in stack.ask(lambda api: api.get("/usage", {"by": "user"}))["items"]
        if each["by"]["user"] == "tester"
    )
    assert visit.page.run(f"{row}.querySelector('[data-label=Admitted]').innerText") == str(used["admitted"])
    assert visit.page.run(f"{row}.querySelector('[data-label=Ended]').innerText") == str(used["ended"])
    assert used["admitted"] >= 2
    visit.page.run(f"{row}.querySelector('a').click()")
    visit.page.wait_for("location.search === '?user=tester&by=day'")
    visit.shows("Only")
    visit.page.wait_for("/^\\d{4}-\\d\\d-\\d\\d$/.test(document.querySelector('.usage tbody th')?.innerText)")
    visit.page.run("document.querySelector('button.filter').click()")
    visit.page.wait_for("location.search === '?by=day' && !document.querySelector('button.filter')")
    visit.press("By queue")
    visit.page.wait_for("document.querySelector('.usage tbody')?.innerText.includes('default')")
    visit.is_clean()


def test_days_without_use(visit: Visit, busy: dict[str, str]) -> None:
    """Days without any allocation are shown as empty; an invalid day is refused in words."""
    visit.go("/usage?from=2020-01-01&to=2020-01-02")
    visit.shows("Nothing was used")
    visit.go("/usage?from=yesterday")
    visit.page.wait_for("document.querySelector('.failure')?.innerText.includes('from')")
    visit.is_clean()


def test_current_state_is_shown_beside_an_earlier_time(stack: RunningStack, visit: Visit, busy: dict[str, str]) -> None:
    """The page shows the allocations of a past time, their later states, and newer ones; a time before all is shown
    as empty."""
    gone, later = (f"{word}-{uuid.uuid4().hex[:6]}" for word in ("gone", "later"))
    id_ = stack.launch(command(TALK, name=gone))
    stack.wait_for(id_, "Running")
    time.sleep(1.1)
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    time.sleep(1.1)
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    stack.wait_for(id_, "Terminated")
    held = stack.launch(command("pass", name=later, hold=True))
    try:
        visit.go(f"/history?at={at}")
        row = f"[...document.querySelectorAll('.past tbody tr')].find(row => row.innerText.includes({gone!r}))"
        visit.page.wait_for(f"!!{row}")
        visit.page.wait_for(f"{row}.querySelector('[data-label=Now]').innerText === 'Terminated'")
        assert visit.page.run(f"{row}.querySelector('.state').innerText") == "Running"
        kept = "[...document.querySelectorAll('.past tbody tr')].find(row => row.innerText.includes('page-gang'))"
        assert visit.page.run(f"{kept}.querySelector('[data-label=Now]').innerText") == "the same"
        assert later not in visit.page.text()
        assert int(visit.page.run("document.querySelector('[aria-label=\"Since then\"] b').innerText")) >= 1
        assert visit.page.run(
            "[...document.querySelectorAll('.choice button')].find(b => b.innerText === '+1 h').disabled"
        )
        visit.press("\u22121 day")
        visit.shows("No workloads at that time")
    finally:
        stack.ask(lambda api: api.post(f"/allocations/{held}/kill"))
    visit.is_clean()


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_no_page_has_accessibility_violations(visit: Visit, busy: dict[str, str], *, is_dark: bool) -> None:
    """Axe finds no serious barrier on any page, nor in a dialog, wide or on a phone."""
    visit.page.look(is_dark=is_dark)
    for path in (
        "/?of=everyone",
        f"/queues/default?why={busy['big']}",
        f"/launch?from={busy['gang']}",
        f"/w/{busy['gang']}",
        f"/w/{busy['gang']}?tab=ranks",
        f"/w/{busy['gang']}?tab=events",
        f"/w/{busy['gang']}?tab=yaml",
        f"/w/{busy['failed']}",
        f"/w/{busy['big']}",
        "/w/not-there",
        "/launch?as=yaml",
        *OTHERS,
    ):
        visit.go(path)
        assert barriers(visit.page) == [], path
    visit.page.look(width=390, height=844, is_dark=is_dark)
    visit.go("/queues/default")
    select(visit, "page-held")
    visit.press("Kill")
    visit.page.wait_for("!!document.querySelector('dialog[open]')")
    assert barriers(visit.page) == []


def test_the_accessibility_checker_is_the_vendored_version() -> None:
    """Each vendored file is in the README with its hash, and is unchanged."""
    rows = re.findall(r"^\| `([^`]+)` .*`([0-9a-f]{64})` \|$", (AXE.parent / "README.md").read_text(), re.MULTILINE)
    files = [path for path in AXE.parent.iterdir() if path.name != "README.md"]
    assert dict(rows) == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_a_phone(visit: Visit, busy: dict[str, str], pictures: Path, *, is_dark: bool) -> None:
    """No element is wider than the screen on any page; no script and no policy complains."""
    visit.page.look(width=390, height=844, is_dark=is_dark)
    for name, path in {
        "home": "/",
        "queues": f"/queues/default?why={busy['big']}",
        "launch": f"/launch?from={busy['gang']}",
        "log": f"/w/{busy['gang']}",
        "ranks": f"/w/{busy['gang']}?tab=ranks",
        "events": f"/w/{busy['gang']}?tab=events",
        "yaml": f"/w/{busy['gang']}?tab=yaml",
        "failed": f"/w/{busy['failed']}",
        "launch-yaml": "/launch?as=yaml",
        **{path[1:].partition("?")[0].replace("/", "-"): path for path in OTHERS},
    }.items():
        visit.go(path)
        visit.page.picture(pictures / f"{name}-phone-{'dark' if is_dark else 'light'}.png")
        assert visit.page.run("document.documentElement.scrollWidth") <= 390, name
    visit.is_clean()


def test_on_a_phone_what_waits_is_unblocked_and_killed(stack: RunningStack, visit: Visit) -> None:
    """From the queue the user reaches the reason, the page and the fix; then it runs, prints, and is killed there."""
    visit.page.look(width=390, height=844)
    name = f"phone-{uuid.uuid4().hex[:6]}"
    id_ = stack.launch(command(TALK, name=name, hold=True))
    visit.go("/")
    visit.press("Queues")
    row = f"[...document.querySelectorAll('.waiting tbody tr')].find(row => row.innerText.includes({name!r}))"
    visit.page.wait_for(f"!!{row}")
    visit.page.run(f"{row}.querySelector('.chip').click()")
    visit.page.wait_for("/release it/i.test(document.querySelector('tr.detail')?.innerText)")
    assert visit.page.run("document.documentElement.scrollWidth") <= 390
    visit.page.run(f"{row}.querySelector('th a').click()")
    visit.page.wait_for("document.querySelector('h1 .state')?.innerText === 'Held'")
    visit.press("Resume")
    visit.page.wait_for("document.querySelector('h1 .state').innerText === 'Running'")
    visit.press("Log")
    visit.page.wait_for("document.querySelector('.lines')?.innerText.includes('step 2')")
    visit.press("Kill")
    visit.page.wait_for(f"document.querySelector('dialog[open]')?.innerText.includes('Kill {name}?')")
    visit.page.run("document.querySelector('dialog .danger').click()")
    visit.page.wait_for("document.querySelector('h1 .state').innerText === 'Canceled'")
    assert stack.view(id_)["result"] == "Canceled"
    visit.is_clean()


def test_a_theme_is_kept(visit: Visit) -> None:
    """The chosen theme wins over the colours of the system, also after a reload."""
    visit.go("/")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = visit.page.run(paper)
    visit.page.run("document.querySelector('.menu summary').click()")
    visit.press("Dark")
    dark = visit.page.run(paper)
    assert dark != light
    visit.go("/cluster")
    assert visit.page.run(paper) == dark
    visit.is_clean()


def test_a_click_elsewhere_closes_the_menu(visit: Visit) -> None:
    """A click in the menu leaves it open."""
    visit.go("/")
    visit.page.run("document.querySelector('.menu summary').click()")
    visit.page.run("document.querySelector('.menu p.soft').click()")
    assert visit.page.run("document.querySelector('.menu').open") is True
    visit.page.run("document.querySelector('main h1').click()")
    visit.page.wait_for("document.querySelector('.menu').open === false")
    visit.is_clean()


def test_the_keyboard_leads_through(visit: Visit) -> None:
    """The first Tab offers to skip the navigation; the focus is visible."""
    visit.go("/")
    visit.page.press("Tab", 9)
    assert visit.page.run("document.activeElement.className") == "skip"
    for _ in range(3):
        visit.page.press("Tab", 9)
        assert visit.page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    visit.is_clean()


def test_a_user_who_is_not_logged_in_is_redirected_to_the_login(stack: RunningStack, page: Page) -> None:
    """The page shows the login, and returns to itself afterwards."""
    page.goto(f"{stack.url}/cluster")
    page.wait_for("document.body.innerText.includes('You are not logged in')")
    assert page.run("document.querySelector('main .primary').getAttribute('href')") == "/login?next=%2Fcluster"


def test_a_viewer_has_no_buttons_that_change_anything(stack: RunningStack, page: Page, busy: dict[str, str]) -> None:
    """The page offers nothing that the API would refuse; a refusal is shown where it was caused."""
    token = a_token(stack.folder / "tokens", "eve", SystemClock().now(), {"default": "viewer"})

    def is_known() -> bool:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx2.get(f"{stack.url}/api/v1/me", headers=headers, verify=NO_TLS, trust_env=False).status_code == 200

    wait_until(is_known, "the token to be known")
    origin = stack.link("/").partition("/login")[0]
    page.goto(f"{origin}/login?next=/w/{busy['gang']}")
    page.wait_for("!!document.querySelector('[name=token]')")
    page.run(f"document.querySelector('[name=token]').value = {token!r}; document.querySelector('button').click()")
    visit = Visit(stack, page)
    visit.press("Queues")
    visit.shows("page-held")
    assert page.run("document.querySelectorAll('.waiting input').length") == 0
    offered = "[...document.querySelectorAll('main button')].map(button => button.innerText)"
    page.goto(f"{origin}/w/{busy['gang']}")
    visit.shows("Launch again")
    assert not {"Kill", "Priority", "Hold"} & set(page.run(offered))
    page.goto(f"{origin}/nodes/node-0")
    visit.shows("Node node-0")
    assert not {"Drain", "Disable"} & set(page.run(offered))
    page.goto(f"{origin}/webhooks")
    visit.shows("You may not see webhooks")
    page.goto(f"{origin}/launch")
    visit.put("[name=command]", "true")
    visit.shows("Not permitted")
    page.run("document.querySelector('.menu summary').click()")
    visit.press("Log out")
    page.wait_for("location.pathname === '/login'")
    visit.is_clean()


def test_one_call_without_an_answer_does_not_make_the_page_slow(visit: Visit, busy: dict[str, str]) -> None:
    """The stream of events continues: with the next answer the page is live again."""
    state = "document.querySelector('.connection').innerText"
    visit.go("/?of=everyone")
    visit.page.wait_for(f"{state} === 'Live'")
    visit.page.run(
        "(() => { const real = fetch; let isFirst = true; window.fetch = (url, sent) => { if (!isFirst ||"
        " !String(url).includes('/allocations')) return real(url, sent); isFirst = false; window.fetch = real;"
        " return Promise.reject(new TypeError('lost')) } })()"
    )
    visit.page.run(
        f"window.states = []; new MutationObserver(() => states.push({state})).observe("
        "document.body, { childList: true, characterData: true, subtree: true }); true"
    )
    root = "new URL('.', document.querySelector('script[type=module]').src).href + 'store.js'"
    visit.page.run(f"import({root}).then((m) => m.reloadAll())")
    visit.page.wait_for("states.includes('No answer')")
    visit.page.wait_for(f"{state} === 'Live'", timeout_s=15)


def test_the_page_recovers_after_a_restart_of_the_api(stack: RunningStack, visit: Visit, busy: dict[str, str]) -> None:
    """Without an answer the known content stays, and the page shows that; afterwards it continues by itself."""
    visit.go("/?of=everyone")
    visit.page.wait_for("document.querySelector('.connection').innerText === 'Live'")
    stack.halt("api")
    try:
        visit.page.wait_for("document.querySelector('.connection').innerText === 'No answer'")
        assert "page-gang" in visit.page.text()
    finally:
        stack.resume("api")
    visit.page.wait_for("document.querySelector('.connection').innerText === 'Live'", timeout_s=60)
    name = "page-after"
    stack.launch(command(TALK, name=name, hold=True))
    visit.shows(name)


def test_a_long_log_stays_fluid(stack: RunningStack, visit: Visit) -> None:
    """Of 200,000 lines only a few are in the document; the end is shown first, and search finds lines far above."""
    id_ = stack.launch(command(f"for i in range({MANY}): print('line', i, 'of it')", name=fresh("page-long")))
    stack.wait_for(id_, "Terminated", timeout_s=120)
    visit.go(f"/w/{id_}")
    visit.page.wait_for(f"document.querySelector('.lines')?.innerText.includes('line {MANY - 1} of it')")
    visit.page.wait_for(
        f"document.querySelector('.log [role=status]').innerText.startsWith('{MANY:,} lines')", timeout_s=120
    )
    assert visit.page.run("document.querySelectorAll('.lines li').length") < 200
    slowest = visit.page.run(
        "new Promise((done) => { const box = document.querySelector('.lines'); let frames = 0, worst = 0,"
        " last = performance.now(); const step = (at) => { worst = Math.max(worst, at - last); last = at; frames += 1;"
        " box.scrollTop = (box.scrollHeight * frames) / 60; frames < 60 ? requestAnimationFrame(step) : done(worst) };"
        " requestAnimationFrame(step) })"
    )
    assert slowest < 500, slowest
    visit.put(".log input[type=search]", "line 777 of")
    visit.page.wait_for("document.querySelector('.log [role=status]').innerText.startsWith('1 of')")
    assert visit.page.run("document.querySelector('.lines mark').innerText") == "line 777 of"
    visit.is_clean()


@pytest.fixture(scope="module")
def modules(browser: Browser, stack: RunningStack) -> Generator[Any]:
    """The value of an expression over the page's own modules."""
    with browser.page() as page:
        page.goto(stack.link("/"))
        page.wait_for("!!document.querySelector('main h1')")
        root = page.run("new URL('.', document.querySelector('script[type=module]').src).href")

        def run(module: str, expression: str) -> Any:
            return page.run(f"import('{root}{module}').then((m) => {expression})")

        yield run


@pytest.mark.parametrize(("search", "count"), [("loss: 0.5", 1), ("32m", 0), ("20%", 1), ("10%", 0)])
def test_a_search_of_the_log_finds_what_is_shown(modules: Any, search: str, count: int) -> None:
    """Search ignores the codes of colours between the words, and text that a progress bar has overwritten."""
    lines = [{"rank": 0, "text": text} for text in ("\x1b[32mloss:\x1b[0m 0.5", "10%\r20%")]
    wanted = json.dumps({"search": search, "rank": ""})
    assert modules("log_book.js", f"new m.LogSelection().of({json.dumps(lines)}, {wanted}).length") == count


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [{"c": "x y", "d": ["1", True, "true"]}, [], [[1], [2, {"k": None}]]], "e": {}, "f": ""},
        {"text": "one\ntwo\n", "more": "one\ntwo", "most": "one\n\n", "lead": "  one\ntwo\n", "colon": "a: b #c"},
        {"- q": "*x", "on": "off", "n": "1e3", "hex": "0x10", "date": "2026-01-02", "tab": "a\tb", "empty": [""]},
        {"line": "a\u2028b", "control": "\u0007", "quote": "'\"", "tilde": "~", "at": "@x", "space": " x "},
    ],
)
def test_yaml_reads_back(modules: Any, value: dict[str, Any]) -> None:
    """Another YAML reader gets the same meaning."""
    assert yaml.safe_load(modules("yaml.js", f"m.toYaml({json.dumps(value)})")) == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python train.py --epochs 3", ["python", "train.py", "--epochs", "3"]),
        ("sh -c 'echo \"a b\"; exit 1'", ["sh", "-c", 'echo "a b"; exit 1']),
        ('a\\ b "c \\" d" e""f \'\'', ["a b", 'c " d', "ef", ""]),
        ("a \\\n  b", ["a", "b"]),
    ],
)
def test_words_of_a_command(modules: Any, line: str, words: list[str]) -> None:
    """Words are split as by a shell; joined again they are the same."""
    assert modules("words.js", f"m.wordsOf({line!r})") == words
    assert modules("words.js", f"m.wordsOf(m.wordsOf({line!r}).map(m.quoted).join(' '))") == words


def test_colours_of_a_line(modules: Any) -> None:
    """Colours and styles are shown, all other sequences are dropped; a carriage return overwrites earlier text."""
    line = "\\x1b[1;31mred\\x1b[0m plain \\x1b[38;5;196mx\\x1b[48;2;1;2;3my\\x1b[K\\x1b]0;title\\x07"
    runs = modules("ansi.js", f'm.styledRuns("{line}")')
    assert [(run["text"], run["classes"]) for run in runs[:2]] == [("red", "ansi-bold ansi-1"), (" plain ", "")]
    assert (runs[2]["color"], runs[3]["background"]) == ("rgb(255 0 0)", "rgb(1 2 3)")
    assert modules("ansi.js", 'm.plainText("10%\\r\\x1b[32m20%\\x1b[0m")') == "20%"


def test_only_lines_of_ranks_are_counted(modules: Any) -> None:
    """Remarks about a log, and the mark of a hole, are among its lines and are not counted; a search shows them
    uncounted."""
    lines = [
        {"rank": 0, "stream": "stdout", "text": "step 1", "number": 1},
        {"rank": 0, "stream": "event", "text": "step: its node may have removed lines"},
        {"rank": 0, "stream": "stdout", "text": "", "number": 2, "missing": 7},
        {"rank": 1, "stream": "stdout", "text": "step 2", "number": 1},
    ]
    told = modules(
        "log_book.js",
        "(() => { const book = new m.LogBook('/x', () => true), selection = new m.LogSelection(); "
        f"book.add({json.dumps(lines)}); const found = selection.of(book.lines, {{ search: 'STEP', rank: '0' }}); "
        "return [book.lines.length, book.printed, found.length, selection.printed]; })()",
    )
    assert told == [4, 2, 3, 1]


def test_the_largest_gang(modules: Any) -> None:
    """Ranks fit on whole nodes; a draining or silent node does not count as free."""
    node = {"gpus": 8, "gpusUsed": 2, "ready": True, "schedulable": True, "pool": "p", "gpuType": ""}
    nodes = [node, {**node, "gpusUsed": 0}, {**node, "schedulable": False}, {**node, "ready": False}]
    told = json.dumps(nodes)
    assert modules("capacity.js", f"[1, 4, 8].map((size) => m.ranksThatFit({told}, size))") == [14, 3, 1]
    assert modules("capacity.js", f"m.partsOf({told})[0]")["free"] == 14


def test_an_answer_keeps_the_objects_of_what_has_not_changed(modules: Any) -> None:
    """Items are identified by their id, in any position; an item that is equal to the one before is the same object."""
    old = [{"id": "a", "n": [1]}, {"id": "b", "n": [2]}, {"id": "c"}]
    fresh = [{"id": "b", "n": [2]}, {"id": "a", "n": [3]}, {"id": "d"}]
    given = f"const old = {{items: {json.dumps(old)}}}, fresh = {{items: {json.dumps(fresh)}}};"
    found = modules(
        "answers.js",
        f"{{ {given} const now = m.kept(old, fresh); return [JSON.stringify(now) === JSON.stringify(fresh), "
        "now.items[0] === old.items[1], now.items[1] === old.items[0], m.kept(old, structuredClone(old)) === old]; }",
    )
    assert found == [True, True, False, True]


def test_an_older_answer_does_not_undo_a_newer_event(modules: Any) -> None:
    """The answer was on its way when the event arrived; the next answer is newer."""
    before, after = {"id": "a", "status": {"seq": 3}}, {"id": "a", "status": {"seq": 4}}
    assert modules("answers.js", f"m.kept({json.dumps(after)}, {json.dumps(before)})") == after


@pytest.mark.parametrize(
    ("view", "event", "state"),
    [
        ({"phase": "Pending"}, {"phase": "Assigned"}, "Assigned"),
        ({"phase": "Starting"}, {"phase": "Running"}, "Running"),
        ({"phase": "Running"}, {"phase": "Running", "type": "ready"}, "Ready"),
        ({"phase": "Running", "ready": True}, {"phase": "Running", "waiting": True}, "Waiting"),
        ({"phase": "Running", "ready": True, "waiting": True}, {"phase": "Running", "waiting": False}, "Ready"),
        ({"phase": "Pending"}, {"phase": "Pending", "held": True}, "Held"),
        ({"phase": "Running", "ready": True}, {"phase": "Pending", "attempt": 2, "type": "restarted"}, "Pending"),
        ({"phase": "Running"}, {"phase": "Terminated", "result": "Failed"}, "Failed"),
        ({"phase": "Running", "state": "Running"}, {"phase": "Assigned", "seq": 5}, "Running"),
    ],
)
def test_after_an_event_an_allocation_shows_the_state_label_of_the_api(
    modules: Any, view: dict[str, Any], event: dict[str, Any], state: str
) -> None:
    """The phase is that of the event, or of a newer answer; a known event changes nothing."""
    whole = {"id": "a", "attempt": 1, "hold": False, "ready": False, "waiting": False, "result": None, **view}
    whole["status"] = {"seq": 5}
    data = {"seq": 6, "attempt": 1, "reason": "", **event}
    told = {"subject": "a", "type": f"dev.slipway.allocation.{data.pop('type', 'updated')}", "time": "", "data": data}
    found = modules("answers.js", f"m.after({{items: [{json.dumps(whole)}]}}, [{json.dumps(told)}]).items[0]")
    assert found["state"] == state
    assert found["status"]["seq"] == max(5, data["seq"])


def test_an_allocation_that_left_its_queue_is_not_listed_as_waiting(modules: Any) -> None:
    """An event with another phase removes it; others stay."""
    queue = {"items": [{"id": "a"}, {"id": "b"}, {"id": "c"}], "first": 1, "count": 9}
    events = [{"subject": "a", "data": {"phase": "Assigned"}}, {"subject": "b", "data": {"phase": "Pending"}}]
    found = modules("answers.js", f"m.after({json.dumps(queue)}, {json.dumps(events)})")
    assert found == {"items": [{"id": "b"}, {"id": "c"}], "first": 1, "count": 8}


def test_a_change_is_shown_before_the_next_request(page: Page, stack: RunningStack) -> None:
    """The event itself has the new state of the allocation."""
    id_ = stack.launch(command("import time; time.sleep(60)"))
    stack.wait_for(id_, "Running")
    page.goto(stack.link("/?of=everyone"))
    state = f"document.querySelector(\"main a[href='/w/{id_}']\")?.closest('tr').querySelector('.state').textContent"
    page.wait_for(f"{state} === 'Running' && !!document.querySelector('.connection .good')")
    page.run("window.fetch = () => new Promise(() => {})")
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    page.wait_for(f"{state} === 'Canceled'")


def test_events_during_a_list_request_are_not_lost(page: Page, stack: RunningStack) -> None:
    """A new allocation changes after the list was read and before the answer arrives: its row includes these events."""
    name = fresh("on-its-way")
    page.goto(stack.link("/?of=everyone"))
    page.wait_for("!!document.querySelector('.connection .good') && !document.querySelector('.loading')")
    page.run(
        "(() => { const real = window.fetch; let isOver = false; window.phases = new Set();"
        " new EventSource('/api/v1/events').onmessage = ({ data }) => {"
        " const event = JSON.parse(data); window.phases.add(event.subject + event.data.phase); };"
        " window.fetch = async (path, ...more) => {"
        " if (!String(path).includes('active=true')) return real(path, ...more);"
        " if (isOver) return new Promise(() => {});"
        " const answer = await real(path, ...more); const body = await answer.clone().text();"
        f" if (!body.includes('{name}')) return answer;"
        " isOver = true; window.isRead = true; await new Promise((resolve) => (window.release = resolve));"
        " return answer; }; })()"
    )
    id_ = stack.launch(command("import time; time.sleep(60)", name=name, hold=True))
    page.wait_for("window.isRead === true")
    stack.ask(lambda api: api.post(f"/allocations/{id_}/resume"))
    page.wait_for(f"window.phases.has('{id_}Running')")
    # The page has received it too, at most a moment later.
    page.run("new Promise((resolve) => setTimeout(resolve, 500)).then(() => window.release())")
    row = f"document.querySelector(`main a[href='/w/{id_}']`)?.closest('tr')"
    page.wait_for(f"{row}?.querySelector('.state').innerText === 'Running'")
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def test_a_long_list_goes_on_by_itself_for_a_while_and_then_asks(modules: Any) -> None:
    """Entries near the visible part are drawn; beyond some length the user has to press, because they may want
    content below the list."""
    begin = (
        "import(new URL('runtime.js', document.querySelector('script[type=module]').src)).then(({ html, render }) => "
        "new Promise((resolve) => { let left = 100; "
        "const box = document.body.appendChild(document.createElement('div')); "
        "const draw = () => render(html`<${m.More} count=${left} by=${25} isByItself=${left > 50} "
        "onMore=${() => { left -= 25; draw(); }} />`, box); draw(); box.scrollIntoView(); "
        "const look = () => setTimeout(left > 50 ? look : () => resolve(box.textContent), 200); look(); }))"
    )
    assert modules("components.js", begin) == "Show 25 of 50 more"


def test_a_stream_that_is_opened_again_holds_one_listener(modules: Any) -> None:
    """A page that is open for days, whose stream ends many times, keeps no listeners of ended pauses."""
    follow = (
        "(() => { const stop = new AbortController(), { signal } = stop, { fetch, setTimeout } = window; "
        "let held = 0, opened = 0; "
        "signal.addEventListener = (...what) => { held += 1; "
        "AbortSignal.prototype.addEventListener.apply(signal, what) }; "
        "signal.removeEventListener = (...what) => { held -= 1; "
        "AbortSignal.prototype.removeEventListener.apply(signal, what) }; "
        "window.setTimeout = (end, ms) => setTimeout(end, ms === 2000 ? 0 : ms); "
        "window.fetch = (path, ...what) => { if (!path.endsWith('/a-stream')) return fetch(path, ...what); "
        "opened += 1; if (opened === 5) stop.abort(); return Promise.resolve(new Response(null, { status: 204 })) }; "
        "return m.follow('/a-stream', { signal, onItems() {} }).then(() => [opened, held])"
        ".finally(() => Object.assign(window, { fetch, setTimeout })) })()"
    )
    assert modules("api.js", follow) == [5, 0]


@pytest.mark.parametrize(
    ("after", "statuses", "asked"),
    [
        ("", [400], [""]),
        ("", [503, 422], ["", ""]),
        ("1-1", [422, 404], ["1-1", ""]),
        ("1-1", [400, 400], ["1-1", ""]),
        ("1-1", [429, 401, 410], ["1-1", "1-1", "1-1"]),
    ],
)
def test_a_stream_that_is_refused_permanently_is_not_retried(
    modules: Any, after: str, statuses: list[int], asked: list[str]
) -> None:
    """What is wrong with the request stays wrong. Only a cursor that the server does not know is left out, once."""
    follow = (
        "(() => { const { signal } = new AbortController(), { fetch, setTimeout } = window, asked = [], told = []; "
        f"const statuses = {json.dumps(statuses)}; "
        "window.setTimeout = (end, ms) => setTimeout(end, ms < 45000 ? 0 : ms); "
        "window.fetch = (path, options) => { if (!path.endsWith('/a-stream')) return fetch(path, options); "
        "asked.push(options.headers['last-event-id'] ?? ''); "
        "return Promise.resolve(new Response('{}', { status: statuses.shift() ?? 500 })) }; "
        "const onLost = (refusal, isForGood) => told.push(isForGood); "
        f"return m.follow('/a-stream', {{ signal, after: {json.dumps(after)}, onItems() {{}}, onLost }})"
        ".then(() => [asked, told]).finally(() => Object.assign(window, { fetch, setTimeout })) })()"
    )
    assert modules("api.js", follow) == [asked, [False] * (len(asked) - 1) + [True]]


def test_a_refused_log_shows_the_reason_and_is_not_retried(modules: Any) -> None:
    """Its state is none that promises another try."""
    read = (
        "(() => { const { fetch } = window, asked = []; "
        "window.fetch = (path, options) => { if (!path.includes('/a-log')) return fetch(path, options); "
        "asked.push(path); return Promise.resolve(Response.json({ detail: 'no such container' }, { status: 400 })) }; "
        "const book = new m.LogBook('/a-log', () => false); "
        "return book.start().then(() => [asked.length, book.state.value, book.error.value.message])"
        ".finally(() => Object.assign(window, { fetch })) })()"
    )
    assert modules("log_book.js", read) == [1, "refused", "no such container"]


def test_a_position_without_an_entry_is_kept(modules: Any) -> None:
    """A stream that breaks before its first entry is resumed at the position that the server sent first."""
    follow = (
        "(() => { const stop = new AbortController(), { signal } = stop, { fetch, setTimeout } = window; "
        "const asked = [], items = []; "
        "window.setTimeout = (end, ms) => setTimeout(end, ms < 45000 ? 0 : ms); "
        "window.fetch = (path, options) => { if (!path.endsWith('/a-stream')) return fetch(path, options); "
        "asked.push(options.headers['last-event-id'] ?? ''); if (asked.length === 3) stop.abort(); "
        "const told = asked.length === 1 ? 'retry: 1\\n\\nid: 7-0\\n\\n' : 'id: 8-0\\ndata: 1\\n\\n'; "
        "return Promise.resolve(new Response(told)) }; "
        "return m.follow('/a-stream', { signal, onItems: (found) => items.push(...found) }).then(() => [asked, items])"
        ".finally(() => Object.assign(window, { fetch, setTimeout })) })()"
    )
    asked, items = modules("api.js", follow)
    assert (asked, items[:1]) == (["", "7-0", "8-0"], [{"id": "8-0", "data": 1}])


def test_a_filter_finds_a_text_in_any_case(modules: Any) -> None:
    """An empty text finds all entries."""
    names = "['Ab', 'cab', 'b'].map((name) => ({ name }))"
    finder = "m.finder((each) => each.name)"
    found = modules("format.js", f"['', 'AB'].map((text) => {names}.filter((one) => {finder}(one, text)).length)")
    assert found == [3, 2]


def test_the_log_of_a_workload_that_is_gone(stack: RunningStack, visit: Visit) -> None:
    """Its address still shows the archived log; for an unknown allocation it shows that it does not exist."""
    gone = AllocationId(f"{fresh('gone')}-0a1b2c3d")
    name = gone.removesuffix("-0a1b2c3d")
    line = LogLine(attempt=1, rank=0, time="2026-01-02T03:04:05Z", text="the last words", number=1)
    record = ArchiveRecord(
        allocation=gone,
        workspace="default",
        name=name,
        uid="0a1b2c3d-0000-0000-0000-000000000000",
        ended_at="2026-01-02T03:04:06Z",
        end="5-0",
        logs={"1/0/stdout/": 1},
        main="main",
        containers=("main",),
    )

    async def archive_it() -> None:
        archive = LogArchive(open_archive(stack.stack.layout.log_archive.as_uri()))
        await archive.write_record(record)
        assert await archive.add("default", gone, START, [StoredLine(cursor="5-0", line=line)])

    asyncio.run(archive_it())
    visit.go(f"/w/{gone}")
    visit.shows("This workload was deleted. Its log is archived.")
    visit.page.wait_for("document.querySelector('.lines')?.innerText.includes('the last words')")
    visit.go(f"/w/{fresh('never')}-0a1b2c3d")
    visit.shows("Not found")
    visit.is_clean()
