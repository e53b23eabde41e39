"""The real programs in a browser: JupyterLab runs a cell, TensorBoard draws a curve."""

import subprocess
import sys
from pathlib import Path

from tests.browser.chromium import Page
from tests.support.local_stack import RunningStack

WRITE_SCALARS = """
import sys
from tensorboard.summary import Writer
writer = Writer(sys.argv[1])
for step in range(50):
    writer.add_scalar("loss", 2.0 / (1 + step), step)
writer.close()
"""
SERVES_S = 60.0


def write_scalars(folder: Path) -> None:
    """Write an event file with a curve, with TensorBoard's own writer."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", WRITE_SCALARS, str(folder)], check=True, timeout=120)


def test_jupyterlab_runs_a_cell(stack: RunningStack, page: Page, pictures: Path) -> None:
    """From the waiting page the user reaches the launcher and a kernel that answers, all through the proxy."""
    id_ = stack.launch({"kind": "notebook"})
    page.goto(stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for("!!document.querySelector('.jp-LauncherCard')", timeout_s=SERVES_S)
    page.picture(pictures / "jupyterlab-launcher.png")
    page.click(".jp-LauncherCard[data-category='Notebook']")
    page.wait_for("!!document.querySelector('.jp-Notebook .cm-content')", timeout_s=SERVES_S)
    page.wait_for("document.body.innerText.includes('| Idle')", timeout_s=SERVES_S)
    page.click(".jp-Notebook .cm-content")
    page.wait_for("!!document.activeElement.closest('.jp-Notebook')")
    page.type("print('sum', 40 + 2)")
    page.press("Enter", 13, "\r", modifiers=8)
    page.wait_for("document.querySelector('.jp-OutputArea-output')?.innerText.includes('sum 42')", timeout_s=SERVES_S)
    page.picture(pictures / "jupyterlab-cell.png")
    assert not [each for each in page.errors if "WebSocket" in each or "403" in each]


def test_an_open_page_does_not_count_as_activity(stack: RunningStack, page: Page) -> None:
    """An unused notebook ends by its timeout, though its page is open and polls all the time."""
    id_ = stack.launch({"kind": "notebook", "idleTimeout": "20s"})
    page.goto(stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for("!!document.querySelector('.jp-LauncherCard')", timeout_s=SERVES_S)
    ended = stack.wait_for(id_, "Terminated", timeout_s=90)
    assert (ended["result"], ended["reason"]) == ("TimedOut", "IdleTimeout")
    assert page.run("document.title").startswith("JupyterLab")


def test_tensorboard_draws_a_curve(stack: RunningStack, page: Page, pictures: Path, tmp_path: Path) -> None:
    """When the files exist, the page shows their scalars."""
    write_scalars(tmp_path / "run")
    id_ = stack.launch({"kind": "tensorboard", "env": {"TENSORBOARD_LOGDIR": str(tmp_path)}})
    page.goto(stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for("document.title === 'TensorBoard'", timeout_s=SERVES_S)
    page.wait_for("(document.body.innerText || '').includes('loss')", timeout_s=SERVES_S)
    page.wait_for("!!document.querySelector('scalar-card, tb-card-view, card-view')", timeout_s=SERVES_S)
    page.picture(pictures / "tensorboard.png")
