"""A real Chromium without a screen, driven over its DevTools protocol.

Owns the browser's process, its pages, and their console output. It needs no driver, because the protocol is JSON over a
WebSocket. Source: Chrome DevTools Protocol, domains Target, Page, Runtime, Input, Emulation.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.support.wait import wait_until

Json = dict[str, Any]

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_S = 30.0
CALL_S = 30.0
WAIT_S = 30.0
POLL_S = 0.05
_REPLACED = "Inspected target navigated or closed"
_FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=SpareRendererForSitePerProcess",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--password-store=basic",
    "--remote-debugging-port=0",
)


def find() -> str:
    """The path of a Chromium; empty when there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), "")


class ReplacedError(AssertionError):
    """Another page replaced the page during a call."""


class Page:
    """One tab, in its own context: it shares no cookies with others."""

    def __init__(self, browser: "Browser", context: str) -> None:
        self._browser = browser
        self.context = context
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self._session = str(browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        self.errors: list[str] = []
        """exceptions of scripts, and the browser's complaints about policies and missing files"""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Json:
        """Send one command of the protocol to this tab."""
        return self._browser.call(method, self._session, self, **parameters)

    def heard(self, event: Json) -> None:
        """Handle an event of the tab."""
        told: Json = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif event["method"] == "Log.entryAdded" and told["entry"]["level"] == "error":
            if "status of 503" in told["entry"]["text"]:
                return  # normal for a waiting page until the workload answers
            self.errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")

    def goto(self, url: str) -> None:
        """Begin to load a page."""
        told = self.call("Page.navigate", url=url)
        assert "errorText" not in told, told

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; if it is a promise, wait for it."""
        told = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait_for(self, script: str, *, timeout_s: float = WAIT_S) -> Any:
        """Wait until the expression is true; retry while the page is being replaced."""
        deadline = time.monotonic() + timeout_s
        while True:
            told: Json = {}
            with suppress(ReplacedError):
                told = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
            value = told["result"].get("value") if told and "exceptionDetails" not in told else None
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"waited {timeout_s:.0f} s for: {script}\n{told}\n{self.errors}\n{self.text()[:2000]}"
                )
            time.sleep(POLL_S)

    def text(self) -> str:
        """The readable text of the page."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def type(self, text: str) -> None:
        """Type on the keyboard; a newline is Enter."""
        for part in text.splitlines(keepends=True):
            line = part.rstrip("\n")
            if line:
                self.call("Input.insertText", text=line)
            if part.endswith("\n"):
                self.press("Enter", 13, "\r")

    def press(self, key: str, code: int, text: str = "", *, modifiers: int = 0) -> None:
        """Press one key, by its name and its Windows code; modifiers: 2 is Ctrl, 8 is Shift."""
        about: Json = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        self.wait_for(f"!!document.querySelector({json.dumps(selector)})")
        box = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def look(self, *, width: int = 1200, height: int = 800, is_dark: bool = False) -> None:
        """Set the size of the window, and the user's preferred colours; a narrow window is a phone."""
        is_phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_phone)
        scheme = "dark" if is_dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> Path:
        """A picture of the page, as a PNG or, by the suffix, as WebP."""
        small: dict[str, Any] = {"format": "webp", "quality": 70} if path.suffix == ".webp" else {"format": "png"}
        told = self.call("Page.captureScreenshot", **small)
        path.write_bytes(base64.b64decode(told["data"]))
        return path


class Browser:
    """A running browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._pages: dict[str, Page] = {}
        self.call_s = CALL_S
        """the timeout of one command"""

    def call(self, method: str, session: str = "", page: Page | None = None, **parameters: Any) -> Json:
        """Send one command; events that arrive meanwhile are passed to their page."""
        self._number += 1
        if page is not None:
            self._pages[session] = page
        message: Json = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        deadline = time.monotonic() + self.call_s
        while True:
            told: Json = json.loads(self._socket.recv(max(0.1, deadline - time.monotonic())))
            if told.get("id") == self._number:
                if _REPLACED in str(told.get("error", "")):
                    raise ReplacedError(f"{method}: {told['error']}")
                assert "error" not in told, f"{method}: {told['error']}"
                result: Json = told["result"]
                return result
            owner = self._pages.get(str(told.get("sessionId", "")))
            if owner is not None and "method" in told:
                owner.heard(told)

    @contextmanager
    def page(self) -> Generator[Page]:
        """Open a new tab that shares nothing with the others."""
        context = str(self.call("Target.createBrowserContext")["browserContextId"])
        try:
            yield Page(self, context)
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)


@contextmanager
def running_browser(program: str) -> Generator[Browser]:
    """Run a browser, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="slipway-chromium-", ignore_cleanup_errors=True) as folder:
        # As root, and in containers without user namespaces, its sandbox does not work; it loads our own pages only.
        argv = [program, *_FLAGS, "--no-sandbox", f"--user-data-dir={folder}", "about:blank"]
        env = {**os.environ, "HOME": folder}
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            told = Path(folder) / "DevToolsActivePort"

            def where() -> list[str]:
                assert process.poll() is None, log.read_text(errors="replace")
                lines = told.read_text().splitlines() if told.exists() else []
                return lines if len(lines) == 2 else []

            port, path = wait_until(where, "the browser to listen", timeout_s=START_S)
            with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None, compression=None) as socket:
                yield Browser(socket)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
