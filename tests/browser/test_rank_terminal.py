"""A shell in a rank, on the page of its workload: typing, ranks, its end, and output that is too fast."""

import sys
from pathlib import Path

import pytest

from tests.browser.chromium import Page
from tests.support.local_stack import RunningStack

ROWS = "document.querySelector('.terminal .xterm-rows')?.innerText.replaceAll('\\u00a0', ' ')"
TOLD = "document.querySelector('.terminal .told')?.innerText"
OPEN = f"{TOLD}?.includes('Open in container')"


@pytest.fixture(scope="module")
def gang(stack: RunningStack) -> str:
    """Two running ranks."""
    program = "import time; print('here', flush=True); time.sleep(600)"
    ranks = [{"name": "worker", "count": 2, "resources": {"cpu": "100m", "memory": "64Mi"}}]
    command = {"image": "local", "command": [sys.executable, "-c", program], "ranks": ranks}
    id_ = stack.launch({"kind": "training", "name": "page-terminal", **command})
    stack.wait_for(id_, "Running")
    return id_


def opened(stack: RunningStack, page: Page, id_: str) -> None:
    page.goto(stack.link(f"/w/{id_}?tab=terminal"))
    start = "[...document.querySelectorAll('#tab-panel button')].find((b) => b.innerText === 'Open a shell')"
    page.wait_for(f"!!{start}")
    page.run(f"{start}.click()")
    page.wait_for(OPEN)
    page.wait_for("document.activeElement?.classList.contains('xterm-helper-textarea')")


def test_typed_input_runs_in_the_rank(stack: RunningStack, page: Page, gang: str, pictures: Path) -> None:
    """The command has the variables of the rank and the size of the page; switching tabs does not end it; another
    rank has its own shell."""
    opened(stack, page, gang)
    page.type("echo rank-$SLIPWAY_RANK-$((20+3)); stty size\n")
    page.wait_for(f"{ROWS}.includes('rank-0-23')")
    page.wait_for(f"/\\n\\d\\d? \\d\\d+ *\\n/.test({ROWS})")
    page.type(r"export KEPT=still; printf '\e[32mgreen\e[0m \e[38;2;1;200;3mexact\e[0m\n'" + "\n")
    page.wait_for(f"{ROWS}.includes('green exact')")
    colour = (
        "getComputedStyle([...document.querySelectorAll('.xterm-rows span')].find(e => e.innerText === 'exact')).color"
    )
    assert page.run(colour) == "rgb(1, 200, 3)"
    page.picture(pictures / "rank-terminal-light.png")
    page.look(is_dark=True)
    page.picture(pictures / "rank-terminal-dark.png")

    page.run("document.getElementById('tab-events').click()")
    page.wait_for("document.querySelector('.terminal').hidden")
    page.run("document.getElementById('tab-terminal').click()")
    page.wait_for("document.activeElement?.classList.contains('xterm-helper-textarea')")
    page.type("echo $KEPT-there\n")
    page.wait_for(f"{ROWS}.includes('still-there')")

    page.run(
        "(() => { const s = document.querySelector('[name=terminal-rank]'); s.value = '1';"
        " s.dispatchEvent(new Event('change')) })()"
    )
    page.wait_for(f"{OPEN} && !{ROWS}.includes('still-there')")
    page.type("echo rank-$SLIPWAY_RANK-\n")
    page.wait_for(f"{ROWS}.includes('rank-1-')")
    assert page.errors == []


def test_the_keyboard_can_leave_the_terminal_and_an_ended_shell_says_so(
    stack: RunningStack, page: Page, gang: str
) -> None:
    """Tab goes to the shell, Shift-Escape leaves it; the exit code is shown, and Enter opens another shell."""
    opened(stack, page, gang)
    page.type("true xqz")
    page.press("Tab", 9)
    assert page.run("document.activeElement.classList.contains('xterm-helper-textarea')")
    page.press("Escape", 27, modifiers=8)
    assert page.run("document.activeElement.id") == "tab-terminal"
    page.run("document.querySelector('.xterm-helper-textarea').focus()")
    page.type("; exit 7\n")
    page.wait_for(f"{TOLD}?.includes('ended with exit code 7')")
    page.type("\n")
    page.wait_for(OPEN)
    page.type("echo again-$((1+1))\n")
    page.wait_for(f"{ROWS}.includes('again-2')")
    assert page.errors == []


def test_a_flood_of_output_does_not_freeze_the_page(stack: RunningStack, page: Page, gang: str) -> None:
    """Output that is faster than the drawing is skipped; keys still arrive, and the shell works as before."""
    opened(stack, page, gang)
    page.type("yes 0123456789012345678901234567890123456789 | head -c 60000000; echo done-$((40+2))\n")
    page.wait_for(f"{ROWS}.includes('done-42')", timeout_s=60)
    page.type("clear; echo after-$((1+1))\n")
    page.wait_for(f"{ROWS}.includes('after-2')")


def test_a_terminal_that_cannot_be_opened_says_why(stack: RunningStack, page: Page, gang: str) -> None:
    """The API's refusal is shown in its words."""
    page.goto(stack.link(f"/w/{gang}"))
    page.wait_for("!!document.getElementById('tab-terminal')")
    root = page.run("new URL('.', document.querySelector('script[type=module]').src).href")
    path = f"/allocations/{gang}/ranks/0"
    told = page.run(
        f"import('{root}exec_session.js').then((m) => new Promise((onEnd) => m.startExec({path!r}, "
        "{ container: 'none', columns: 80, rows: 24 }, { onOpen() {}, onOutput() {}, onEnd })))"
    )
    assert told["code"] is None
    assert "none" in told["message"]
    assert "container" in told["message"]


def test_input_before_the_shell_is_open_is_not_lost(stack: RunningStack, page: Page, gang: str) -> None:
    """It has the size that the page has when it opens, and gets the keys that were typed until then."""
    page.goto(stack.link(f"/w/{gang}"))
    page.wait_for("!!document.getElementById('tab-terminal')")
    root = page.run("new URL('.', document.querySelector('script[type=module]').src).href")
    path = f"/allocations/{gang}/ranks/0"
    told = page.run(
        f"import('{root}exec_session.js').then((m) => new Promise((onEnd) => {{ let text = '';"
        f" const session = m.startExec({path!r}, {{ container: 'main', columns: 80, rows: 24 }},"
        " { onOpen() {}, onOutput(bytes) { text += new TextDecoder().decode(bytes) },"
        " onEnd: ({ code }) => onEnd({ code, text }) });"
        " session.resize(123, 45);"
        " session.send(new TextEncoder().encode('stty size; exit 7\\n')) }))"
    )
    assert told["code"] == 7
    assert "45 123" in told["text"]


def test_nothing_runs_there_is_no_terminal(stack: RunningStack, page: Page) -> None:
    """An ended allocation has no terminal tab; an old link shows what is needed."""
    id_ = stack.launch({"kind": "command", "image": "local", "command": ["true"]})
    stack.wait_for(id_, "Terminated")
    page.goto(stack.link(f"/w/{id_}?tab=terminal"))
    page.wait_for("document.body.innerText.includes('A terminal can be opened only in a running rank.')")
    assert not page.run("!!document.getElementById('tab-terminal')")


def test_omitted_output_is_counted(stack: RunningStack, page: Page) -> None:
    """Beyond 4 MiB of undrawn output the rest is dropped; below 1 MiB it continues, and shows how much is missing."""
    page.goto(stack.link("/"))
    page.wait_for("!!document.querySelector('main h1')")
    root = page.run("new URL('.', document.querySelector('script[type=module]').src).href")
    told = page.run(
        f"import('{root}exec_session.js').then(({{ OutputLimit }}) => {{ const l = new OutputLimit(), m = 1024 * 1024;"
        " return [l.takes(5 * m), l.takes(7), l.takes(8), l.drawn(3 * m), l.takes(1), l.drawn(m), l.takes(9)] })"
    )
    assert told == [True, False, False, 0, False, 16, True]
