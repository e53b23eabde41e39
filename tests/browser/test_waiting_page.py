"""The page before the page: where a workload stands, and the way to it when it answers."""

import sys
from pathlib import Path

from tests.browser.chromium import Page
from tests.support.local_stack import RunningStack

PAGES = [sys.executable, "-m", "slipway.local.pages"]


def test_it_shows_progress_and_goes_on(stack: RunningStack, page: Page, pictures: Path) -> None:
    """Held, it says so; resumed, each step is shown, and the workload's own page follows by itself."""
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


def test_the_end_is_told(stack: RunningStack, page: Page, pictures: Path) -> None:
    """Who looks at a workload that ends is told so, with the reason, and no page looks for ever."""
    id_ = stack.launch({"kind": "notebook", "hold": True})
    page.goto(stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for("!!document.querySelector('li.now')")
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))
    page.wait_for("document.body.dataset.ended === 'true'")
    assert "has ended" in page.text()
    page.picture(pictures / "ended.png")
