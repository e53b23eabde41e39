"""Whole tasks of a user on the page, from the first click to the last, by Playwright in the machine's Chromium.

Elements are found as a user finds them: by role and text. Other files test single pages.
"""

import re
from collections.abc import Generator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from tests.browser.chromium import find
from tests.browser.test_pages import EXPECTED, FAIL, PYTHON, TALK, command, gpus
from tests.conformance.cluster.binaries import MissingProgramError, ensure_debian
from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

SHOWN_MS = 30_000.0
SERVES_MS = 90_000.0
PHONE_PX = 390
expect.set_options(timeout=SHOWN_MS)


class BrowserUser:
    """A logged-in user. `errors` has the complaints on the browser's console."""

    def __init__(self, stack: RunningStack, context: BrowserContext) -> None:
        self._stack = stack
        self.context = context
        self.page = context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)

    def comes_to(self, path: str) -> None:
        """Open a page by a link that logs in."""
        self.page.goto(self._stack.link(path))
        expect(self.page.get_by_role("heading", level=1)).to_be_visible()

    def goes_to(self, name: str) -> None:
        """Go to a page by the navigation."""
        self.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).first.click()
        expect(self.page.get_by_role("heading", level=1, name=name)).to_be_visible()

    def goes_home(self) -> None:
        """Go to the allocations of all users, because tests launch as another user."""
        self.page.get_by_role("navigation").get_by_role("link", name="Workloads", exact=True).first.click()
        self.presses("Everyone's")
        expect(self.page.get_by_role("heading", level=1, name="All workloads")).to_be_visible()

    def presses(self, name: str, within: Locator | None = None) -> None:
        """Press the button of that name."""
        (within or self.page).get_by_role("button", name=name, exact=True).click()

    def sees_state(self, word: str) -> None:
        """Wait for a state in the title of an allocation, without a reload."""
        expect(self.page.get_by_role("heading", level=1)).to_contain_text(word)

    def row(self, table: str, words: str) -> Locator:
        """The row with these words in the table with that label."""
        return self.page.get_by_role("table", name=table).get_by_role("row").filter(has_text=words)


@pytest.fixture(scope="module")
def chromium() -> Generator[Browser]:
    try:
        program = find() or ensure_debian("chromium-headless-shell")
    except MissingProgramError as error:
        pytest.skip(f"no browser: {error}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


def visiting(stack: RunningStack, context: BrowserContext) -> Generator[BrowserUser]:
    """A user for one test, whose console must be clean at the end."""
    visitor = BrowserUser(stack, context)
    yield visitor
    context.close()
    assert [each for each in visitor.errors if not EXPECTED.search(each)] == []


@pytest.fixture
def browser_user(stack: RunningStack, chromium: Browser) -> Generator[BrowserUser]:
    """A user at a screen."""
    yield from visiting(stack, chromium.new_context(viewport={"width": 1280, "height": 800}))


@pytest.fixture
def walker(stack: RunningStack, chromium: Browser) -> Generator[BrowserUser]:
    """A user with a phone that has a touch screen."""
    phone = chromium.new_context(viewport={"width": PHONE_PX, "height": 844}, is_mobile=True, has_touch=True)
    yield from visiting(stack, phone)


def test_a_notebook_is_launched_and_opened(stack: RunningStack, browser_user: BrowserUser) -> None:
    """From the home page the user chooses the kind, launches, watches the start, and opens JupyterLab in a new tab."""
    name = fresh("journey-notebook")
    browser_user.comes_to("/")
    browser_user.page.get_by_role("link", name="Launch", exact=True).last.click()
    browser_user.page.get_by_role("group", name="Kind").get_by_role("button", name="notebook", exact=True).click()
    browser_user.page.get_by_label("Name", exact=True).fill(name)
    browser_user.presses("Launch")
    expect(browser_user.page).to_have_url(re.compile(f"/w/{name}-"))
    try:
        browser_user.sees_state("Running")
        with browser_user.context.expect_page() as opened:
            browser_user.page.get_by_role("link", name="Open", exact=True).click()
        lab: Page = opened.value
        # A page of a workload has its own origin: the user confirms once that it is opened there.
        lab.get_by_role("button", name=f"Open {name}").click()
        expect(lab.locator(".jp-LauncherCard").first).to_be_visible(timeout=SERVES_MS)
        lab.close()
    finally:
        id_ = browser_user.page.url.rpartition("/")[2].partition("?")[0]
        stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def test_a_waiting_allocation_shows_its_reason_and_is_unblocked(stack: RunningStack, browser_user: BrowserUser) -> None:
    """From the queue the user reads the reason, presses the smallest change as a button, and the allocation runs to
    its end."""
    name = fresh("journey-held")
    stack.launch(command("print('went on')", name=name, hold=True))
    browser_user.comes_to("/")
    browser_user.goes_to("Queues")
    row = browser_user.row("Waiting in default", name)
    row.get_by_role("button", name=re.compile("held", re.IGNORECASE)).click()
    why = browser_user.page.locator("tr.detail")
    expect(why).to_contain_text("Smallest change")
    browser_user.presses("Resume it", why)
    browser_user.presses("Resume it", browser_user.page.get_by_role("dialog"))
    expect(row).to_have_count(0)
    browser_user.goes_home()
    browser_user.page.get_by_role("link", name=name).click()
    browser_user.sees_state("Succeeded")
    expect(browser_user.page.get_by_role("log")).to_contain_text("went on")


def test_the_ranks_of_a_gang_are_followed_as_they_arrive(stack: RunningStack, browser_user: BrowserUser) -> None:
    """The gang is held at first; when it is resumed each rank runs, arrives at the rendezvous, and shows its last
    line."""
    id_ = stack.launch(
        {**command(TALK), "kind": "training", "name": fresh("journey-gang"), "ranks": gpus(1, 3), "hold": True}
    )
    browser_user.comes_to(f"/w/{id_}")
    browser_user.page.get_by_role("tab", name="Ranks").click()
    browser_user.presses("Resume")
    rows = browser_user.page.get_by_role("tabpanel").get_by_role("row")
    expect(rows.filter(has_text="Running")).to_have_count(3)
    expect(rows.filter(has_text="arrived")).to_have_count(3)
    expect(rows.filter(has_text=re.compile(r"step \d+"))).to_have_count(3)
    browser_user.presses("Kill")
    browser_user.page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    browser_user.sees_state("Canceled")


def test_a_failed_allocation_shows_its_cause(stack: RunningStack, browser_user: BrowserUser) -> None:
    """From the list of ended allocations the user reaches the cause: the rank, its exit code, its last words."""
    name = fresh("journey-failed")
    stack.wait_for(stack.launch(command(FAIL, name=name)), "Terminated")
    browser_user.comes_to("/?of=everyone")
    row = browser_user.row("Ended", name)
    expect(row).to_contain_text("Failed")
    row.get_by_role("link", name=name).click()
    cause = browser_user.page.locator(".notice")
    expect(cause).to_contain_text("exit code 3")
    expect(cause).to_contain_text("KeyError")


def test_a_running_allocation_is_killed(stack: RunningStack, browser_user: BrowserUser) -> None:
    """A cancelled question keeps it running; a confirmed one ends it, which the list shows too."""
    name = fresh("journey-killed")
    id_ = stack.launch(command(TALK, name=name))
    browser_user.comes_to("/?of=everyone")
    browser_user.row("Running", name).get_by_role("link", name=name).click()
    browser_user.sees_state("Running")
    browser_user.presses("Kill")
    browser_user.page.keyboard.press("Escape")
    expect(browser_user.page.get_by_role("dialog")).to_have_count(0)
    assert stack.view(id_)["desired"] == "Running"
    browser_user.presses("Kill")
    browser_user.page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    browser_user.sees_state("Canceled")
    browser_user.goes_home()
    expect(browser_user.row("Ended", name)).to_contain_text("Canceled")


def test_a_confirmation_opens_on_the_click_that_needs_it(stack: RunningStack, browser_user: BrowserUser) -> None:
    """A key pressed right after the click goes to the dialog: the page does not wait for its next frame to open it."""
    id_ = stack.launch(command(TALK, name=fresh("journey-quick")))
    browser_user.comes_to(f"/w/{id_}")
    kill = browser_user.page.get_by_role("button", name="Kill", exact=True)
    # Only microtasks run between the two lines: a browser delivers the next key to the page after them.
    is_open = """async button => {
        button.click();
        for (let turn = 0; turn < 10; turn += 1) await null;
        return document.querySelector("dialog")?.open ?? false;
    }"""
    assert kill.evaluate(is_open)
    browser_user.page.keyboard.press("Escape")
    expect(browser_user.page.get_by_role("dialog")).to_have_count(0)
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def test_current_state_is_compared_with_an_earlier_time(stack: RunningStack, browser_user: BrowserUser) -> None:
    """The page shows an allocation that existed at a past time and is gone; an hour earlier, before the cluster, it
    shows none."""
    name = fresh("journey-gone")
    id_ = stack.launch(command(TALK, name=name))
    stack.wait_for(id_, "Running")
    began = datetime.now(UTC).replace(microsecond=0)
    wait_until(lambda: (datetime.now(UTC) - began).total_seconds() > 2, "a second that the history can name")
    at = began.timestamp() + 1
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    stack.wait_for(id_, "Terminated")
    browser_user.comes_to(f"/history?at={datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}")
    row = browser_user.page.locator(".past tbody tr").filter(has_text=name)
    expect(row).to_contain_text("Running")
    expect(row).to_contain_text("Terminated")
    browser_user.presses("−1 h")  # noqa: RUF001 - the sign that the page shows
    expect(browser_user.page.get_by_text("No workloads at that time")).to_be_visible()


def test_on_a_phone_an_allocation_is_found_opened_and_killed(stack: RunningStack, walker: BrowserUser) -> None:
    """The user works by touch, and no element is wider than the screen."""
    name = fresh("journey-phone")
    stack.wait_for(stack.launch(command(TALK, name=name)), "Running")
    walker.comes_to("/?of=everyone")
    walker.page.get_by_role("link", name=name).tap()
    walker.sees_state("Running")
    expect(walker.page.get_by_role("log")).to_contain_text("step 2")
    assert walker.page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
    walker.page.get_by_role("button", name="Kill", exact=True).tap()
    walker.page.get_by_role("dialog").get_by_role("button", name="Kill").tap()
    walker.sees_state("Canceled")


def test_a_command_is_typed_checked_and_launched(stack: RunningStack, browser_user: BrowserUser) -> None:
    """A mistake is shown while the user types; a right command shows that it fits now, and prints its output."""
    name = fresh("journey-typed")
    browser_user.comes_to("/launch")
    browser_user.page.get_by_label("Command", exact=True).fill(f"{PYTHON} -c \"print('typed by hand')\"")
    name_field = browser_user.page.get_by_label("Name", exact=True)
    name_field.fill("Not A Name")
    expect(name_field).to_have_attribute("aria-invalid", "true")
    expect(browser_user.page.get_by_role("form", name="Launch").get_by_role("button", name="Launch")).to_be_disabled()
    name_field.fill(name)
    browser_user.page.get_by_label("Image", exact=True).fill("local")
    expect(browser_user.page.get_by_role("complementary", name="What would happen")).to_contain_text("fits now")
    browser_user.presses("Launch")
    browser_user.sees_state("Succeeded")
    browser_user.page.get_by_role("tab", name="Log").click()
    expect(browser_user.page.get_by_role("log")).to_contain_text("typed by hand")
