"""The waterfall of an allocation in a browser: its spans, their times and parents, without a collector."""

import sys
from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.support.local_stack import RunningStack

FAILS_ONCE = "import os, sys, time; time.sleep(1); sys.exit(int(os.environ['SLIPWAY_ATTEMPT'] == '1'))"
NAMES = "[...document.querySelectorAll('.rows .name')].map(name => name.innerText)"


@pytest.fixture(scope="module")
def tried_twice(stack: RunningStack) -> str:
    """An allocation that failed once and then succeeded."""
    body = {"kind": "command", "image": "local", "command": [sys.executable, "-c", FAILS_ONCE], "maxRestarts": 1}
    id_ = stack.launch({**body, "name": "tried-twice"})
    stack.wait_for(id_, "Terminated")
    return id_


def test_it_shows_the_whole_life(stack: RunningStack, page: Page, tried_twice: str, pictures: Path) -> None:
    """The allocation's link leads there; each span has a bar at its place, the request first, and nothing is cut."""
    page.goto(stack.link(stack.view(tried_twice)["links"]["trace"]))
    page.wait_for(f"{NAMES}.includes('attempt 2')")
    names = page.run(NAMES)
    assert names[0] == "POST /api/v1/allocations"
    for name in ("scheduler.admit", "podworker.launch", "podworker.bind", "watcher.terminated", "container main"):
        assert names.count(name) >= 1, name
    page.run("document.querySelector('[data-extent=all]').click()")
    inside = page.run(
        "[...document.querySelectorAll('.track')].every(track => { const t = track.getBoundingClientRect(),"
        " b = track.firstChild.getBoundingClientRect(); return b.left >= t.left - 1 && b.right <= t.right + 4 })"
    )
    assert inside
    assert page.run("document.querySelectorAll('.failed .name').length") >= 2
    page.picture(pictures / "trace-light.png")
    page.look(is_dark=True)
    page.picture(pictures / "trace-dark.png")
    assert page.errors == []


def test_a_span_shows_its_attributes(stack: RunningStack, page: Page, tried_twice: str, pictures: Path) -> None:
    """A click, or Enter, opens a span: its attributes, and its links, by name."""
    page.goto(stack.link(f"/trace/{tried_twice}"))
    page.wait_for(f"{NAMES}.includes('attempt 2')")
    page.run("[...document.querySelectorAll('.name')].find(n => n.innerText == 'attempt 2').closest('summary').focus()")
    page.press("Enter", 13, "\r")
    page.wait_for("document.querySelector('dl')?.innerText.includes('follows from')")
    told = page.run("document.querySelector('dl').innerText")
    assert "attempt 1" in told
    assert "k8s.namespace.name" in told
    page.picture(pictures / "trace-open.png")


def test_it_fits_a_phone(stack: RunningStack, page: Page, tried_twice: str, pictures: Path) -> None:
    """No element is wider than the screen."""
    page.look(width=390, height=780, is_dark=True)
    page.goto(stack.link(f"/trace/{tried_twice}"))
    page.wait_for(f"{NAMES}.includes('attempt 2')")
    page.picture(pictures / "trace-phone.png")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_the_trace_of_a_running_allocation_is_updated(stack: RunningStack, page: Page) -> None:
    """Spans appear while the page is open, and it shows the end."""
    id_ = stack.launch({"kind": "command", "image": "local", "command": [sys.executable, "-c", "pass"], "hold": True})
    page.goto(stack.link(f"/trace/{id_}"))
    page.wait_for("document.querySelector('#phase').innerText === 'Pending'")
    page.wait_for(f"{NAMES}.includes('POST /api/v1/allocations')")
    stack.ask(lambda api: api.post(f"/allocations/{id_}/resume"))
    page.wait_for(f"{NAMES}.includes('container main')")
    page.wait_for("document.querySelector('#phase').innerText === 'Terminated, Succeeded'")
    assert page.errors == []


def test_it_polls_one_request_at_a_time_while_the_api_is_down(stack: RunningStack, page: Page) -> None:
    """Each check schedules exactly one further check, also when both of its reads fail, and after the API is back."""
    id_ = stack.launch({"kind": "command", "image": "local", "command": ["true"], "hold": True})
    page.goto(stack.link(f"/trace/{id_}"))
    page.wait_for(f"{NAMES}.includes('POST /api/v1/allocations')")
    page.run(
        "window.due = []; window.reads = 0; window.isDown = true; const answers = window.fetch;"
        " window.setTimeout = (each) => due.push(each); window.fetch = (...what) => {"
        " reads += 1; return isDown ? Promise.reject(new TypeError('down')) : answers(...what) }; true"
    )
    page.wait_for("due.length > 0 && document.querySelector('.message').innerText.includes('does not answer')")
    for looks in (2, 3):
        page.run("due.splice(0).forEach((each) => each())")
        page.wait_for(f"reads >= {2 * looks} && due.length > 0")
    page.run("window.isDown = false; due.splice(0).forEach((each) => each())")
    page.wait_for("document.querySelector('.message').innerText === '' && due.length > 0")
    assert page.run("[reads, due.length]") == [8, 1]
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def test_a_missing_trace_is_reported(stack: RunningStack, page: Page) -> None:
    """An unknown id, however it is spelled, is shown as text only."""
    page.goto(stack.link("/trace/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"))
    page.wait_for("document.querySelector('.message').innerText.includes('no such allocation')")
    assert page.run("document.querySelectorAll('img').length") == 0
    assert "<img src=x" in page.text()
