"""Keys of the page: Ctrl-K leads anywhere, others to pages, and none disturbs typing."""

import pytest

from tests.browser.accessibility import barriers
from tests.browser.chromium import Page
from tests.browser.test_pages import Visit, command
from tests.support.local_stack import RunningStack

CONTROL = 2
CODES = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40}
HEADING = "document.activeElement.tagName === 'H1' ? document.activeElement.innerText : ''"
CHOSEN = "document.querySelector('.palette [aria-selected=true]')?.innerText ?? ''"


@pytest.fixture
def visit(stack: RunningStack, page: Page) -> Visit:
    """A visitor on the first page."""
    found = Visit(stack, page)
    found.go("/")
    return found


def keys(page: Page, *pressed: str, control: bool = False) -> None:
    """Press the keys one after the other, as a keyboard sends them."""
    for key in pressed:
        code = CODES.get(key, ord(key[0].upper()))
        page.press(key, code, key if len(key) == 1 and not control else "", modifiers=CONTROL if control else 0)


def is_at(page: Page, path: str, heading: str) -> None:
    """Whether the page is shown, and the focus is at its heading."""
    page.wait_for(f"location.pathname === {path!r} && ({HEADING}).includes({heading!r})")


def test_a_page_by_keys_alone(visit: Visit) -> None:
    """Ctrl-K, a few letters and Enter, or `g` and a letter, open a page; Escape leaves everything unchanged."""
    page = visit.page
    keys(page, "k", control=True)
    page.wait_for("document.activeElement.role === 'combobox'")
    page.type("clus")
    page.wait_for(f"({CHOSEN}).startsWith('Cluster')")
    keys(page, "Enter")
    is_at(page, "/cluster", "Cluster")
    keys(page, "g", "q")
    is_at(page, "/queues", "Queues")
    keys(page, "k", control=True)
    page.wait_for("document.activeElement.role === 'combobox'")
    keys(page, "Escape")
    is_at(page, "/queues", "Queues")
    visit.is_clean()


def test_a_workload_by_a_part_of_its_name(stack: RunningStack, visit: Visit) -> None:
    """The server finds it, also long after its end; the arrows wrap around, and its page is opened."""
    id_ = stack.launch(command("print('done')", name="page-palette"))
    stack.wait_for(id_, "Terminated")
    page = visit.page
    keys(page, "k", control=True)
    page.wait_for("document.activeElement.role === 'combobox'")
    page.type("PALETTE")
    page.wait_for(f"({CHOSEN}).includes({id_!r})")
    keys(page, "ArrowUp", "ArrowDown")
    assert id_ in str(page.run(CHOSEN))
    assert barriers(page) == []
    keys(page, "Enter")
    is_at(page, f"/w/{id_}", "page-palette")
    keys(page, "k", control=True)
    page.wait_for("document.activeElement.role === 'combobox'")
    page.type("no-such-workload")
    visit.shows("No workload has these letters")
    keys(page, "Enter")
    assert page.run("location.pathname") == f"/w/{id_}"
    visit.is_clean()


def test_keys_do_not_disturb_who_types(visit: Visit) -> None:
    """In a field a letter is a letter; `/` goes to the filter, `?` lists the keys, and they can be switched off."""
    page = visit.page
    keys(page, "/")
    page.wait_for("document.activeElement.type === 'search'")
    keys(page, "g", "q", "?")
    page.wait_for("document.activeElement.value === 'gq?'")
    assert page.run("location.pathname") == "/"
    page.run("document.activeElement.blur()")
    keys(page, "?")
    visit.shows("show this list")
    assert barriers(page) == []
    page.run("document.querySelector('dialog input[type=checkbox]').click()")
    keys(page, "Escape")
    page.wait_for("!document.querySelector('dialog')")
    keys(page, "?", "g", "q")
    assert page.run("location.pathname + (document.querySelector('dialog') ? ' asks' : '')") == "/"
    keys(page, "k", control=True)
    page.wait_for("document.activeElement.role === 'combobox'")
    visit.is_clean()
