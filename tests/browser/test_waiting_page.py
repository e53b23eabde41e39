"""The waiting page: the state of a workload, and the redirect to it when it answers."""

import sys
from pathlib import Path

from tests.browser.chromium import Page
from tests.support.local_stack import RunningStack

PAGES = [sys.executable, "-m", "slipway.local.pages"]


def test_it_shows_progress_and_opens_the_workload(stack: RunningStack, page: Page, pictures: Path) -> None:
    """A held workload is shown as held; resumed, each step is shown, and its own page follows by itself."""
    id_ = stack.launch({"kind": "notebook", "hold": True, "image": "local", "command": [*PAGES, "notebook"]})
    page.goto(stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for("document.querySelector('li.now')?.dataset.phase === 'Pending'")
    page.wait_for("document.querySelector('.message').innerText.length > 10")
    page.picture(pictures / "waiting-light.png")
    page.look(is_dark=True)
    page.picture(pictures / "waiting-dark.png")
    page.look(width=390, height=780, is_dark=True)
    page.picture(pictures / "waiting-phone.png")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.errors == []
    page.look()
    stack.ask(lambda api: api.post(f"/allocations/{id_}/resume"))
    page.wait_for("!!document.querySelector('textarea')")
    page.picture(pictures / "built-in-notebook.png")


def test_it_polls_one_request_at_a_time_while_the_api_hangs(stack: RunningStack, page: Page) -> None:
    """A pending check is the only one; after its answer the next check follows."""
    id_ = stack.launch({"kind": "notebook", "hold": True})
    page.goto(stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for("!!document.querySelector('li.now')")
    page.run(
        "window.asked = []; window.ticks = 0; setInterval(() => ticks += 1, 2000);"
        " window.fetch = (url) => new Promise((answer) => asked.push(() => answer(String(url).endsWith('/explain')"
        " ? new Response('{}') : new Response('', { status: 503 })))); true"
    )
    page.wait_for("ticks >= 3 && asked.length > 0")
    assert page.run("asked.length") == 1
    for number in range(1, 5):
        page.run("asked.at(-1)()")
        page.wait_for(f"asked.length === {number + 1}")
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


def test_the_end_is_told(stack: RunningStack, page: Page, pictures: Path) -> None:
    """The page shows the end with its reason, and stops checking."""
    id_ = stack.launch({"kind": "notebook", "hold": True})
    page.goto(stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for("!!document.querySelector('li.now')")
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    page.wait_for("document.body.dataset.ended === 'true'")
    assert "has ended" in page.text()
    page.picture(pictures / "ended.png")
