"""The terminal in a browser: typing, reconnecting, colours and sizes."""

from pathlib import Path

from tests.browser.chromium import Page
from tests.support.local_stack import RunningStack

SCREEN = (
    "(() => { const b = slipwayTerminal.buffer.active; return [...Array(b.length).keys()]"
    ".map((i) => (b.getLine(i).isWrapped ? '' : '\\n') + b.getLine(i).translateToString(true)).join('') })()"
)
"""The text of the screen; a line that is wrapped by the width of the screen is one line."""
OPEN = "document.querySelector('.bar')?.dataset.state === 'open'"


def a_shell(stack: RunningStack, page: Page) -> str:
    id_ = stack.launch({"kind": "shell"})
    page.goto(stack.link(f"/proxy/{id_}/", allocation=id_))
    page.wait_for(OPEN)
    return id_


def test_typed_input_is_run(stack: RunningStack, page: Page, pictures: Path) -> None:
    """From the waiting page the user reaches the prompt and gets an answer; a reload returns to the same session."""
    id_ = a_shell(stack, page)
    page.type("echo hi-$((20+3))\n")
    page.wait_for(f"{SCREEN}.includes('hi-23')")
    page.type("export KEPT=still-here PS1='$ '; clear; ls --color=always /\n")
    page.type(r"printf '\e[1;32mgreen\e[0m \e[31mred\e[0m \e[34mblue\e[0m\n'" + "\n")
    page.wait_for(f"{SCREEN}.includes('green red blue')")
    page.picture(pictures / "terminal-light.png")
    session = page.run("location.hash")
    assert len(session) > 6
    # The old page still answers for a moment.
    page.run("window.goes = true; location.reload()")
    page.wait_for(f"!window.goes && {OPEN} && {SCREEN}.includes('green red blue')")
    page.type("echo $KEPT\n")
    page.wait_for(f"{SCREEN}.includes('still-here\\n')")
    assert page.run("location.hash") == session
    page.look(is_dark=True)
    page.picture(pictures / "terminal-dark.png")
    assert page.errors == []
    assert stack.view(id_)["phase"] == "Running"


def test_the_window_decides_the_size(stack: RunningStack, page: Page, pictures: Path) -> None:
    """The program gets the new size; a phone has keys that its keyboard lacks."""
    a_shell(stack, page)
    page.look(width=390, height=780, is_dark=True)
    page.wait_for("slipwayTerminal.cols < 60")
    page.type("clear; stty size\n")
    size = page.run("`${slipwayTerminal.rows} ${slipwayTerminal.cols}`")
    page.wait_for(f"{SCREEN}.includes('{size}')")
    page.type("sleep 100\n")
    page.run("[...document.querySelectorAll('.keys button')].find((b) => b.textContent === 'Ctrl').click()")
    page.picture(pictures / "terminal-phone.png")
    page.type("c")
    # Input that is typed before the interrupt has arrived is flushed with it.
    page.wait_for(f"{SCREEN}.includes('^C')")
    page.type("echo back-$((1+1))\n")
    page.wait_for(f"{SCREEN}.includes('back-2')")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.errors == []


def test_the_end_of_a_session_is_shown_and_enter_starts_a_new_one(stack: RunningStack, page: Page) -> None:
    """The exit code is shown in the bar."""
    a_shell(stack, page)
    page.type("exit 5\n")
    page.wait_for("document.querySelector('[role=status]').textContent === 'ended with exit code 5'")
    page.type("\n")
    page.wait_for(OPEN)
    page.type("echo new-$((1+1))\n")
    page.wait_for(f"{SCREEN}.includes('new-2')")


def test_a_restart_of_the_api_interrupts_the_terminal_only_briefly(stack: RunningStack, page: Page) -> None:
    """kill -9 of the API: the page reconnects by itself, and nothing of the session is lost."""
    a_shell(stack, page)
    page.type("VALUE=before; (sleep 1; echo printed-$((1+1))-meanwhile) &\n")
    stack.kill("api")
    page.wait_for("document.querySelector('.bar').dataset.state === 'lost'")
    page.type("echo $VALUE-and-after\n")
    page.wait_for(f"{OPEN} && {SCREEN}.includes('before-and-after')")
    page.wait_for(f"{SCREEN}.includes('printed-2-meanwhile')")
