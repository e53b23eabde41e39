"""The means of attackers: their own site, and text that would run if a page treated it as markup.

Owns the site of another origin, the outcomes of a browser's promises as values, and the planted text with the check
whether it ran.
"""

import http.server
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tests.browser.chromium import Page

TITLE = "foreign"
PLANTED = '<b data-planted>planted</b><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
"""A page that shows it as text has all of it in `innerText`; a page that treats it as markup has an element
`data-planted`."""
SHOWN = "<b data-planted>planted</b>"
_HAS_RUN = (
    "JSON.stringify([window.hacked ?? 0, document.querySelectorAll('[data-planted], img[src=x]').length,"
    'document.querySelectorAll(\'a[href^="javascript:" i], form[action^="javascript:" i]\').length])'
)


class _Empty(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"<!doctype html><title>{TITLE}</title>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""


@contextmanager
def foreign_site() -> Generator[str]:
    """The origin of another program on this machine, which a browser treats as another site."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def open_foreign(page: Page, site: str) -> None:
    """Show a page of the site."""
    page.run("window.isBefore = true")
    page.goto(site)
    page.wait_for(f"!window.isBefore && document.readyState === 'complete' && document.title === {TITLE!r}")


def outcome(page: Page, call: str) -> str:
    """The outcome of a promise: `kept` with its value, or `broken`."""
    return str(page.run(f"({call}).then(value => 'kept ' + value, error => 'broken')"))


def a_socket(url: str, protocol: str = "") -> str:
    """A promise of a WebSocket that opens."""
    offered = f", {json.dumps(protocol)}" if protocol else ""
    return (
        f"new Promise((kept, broken) => {{ const each = new WebSocket({json.dumps(url)}{offered});"
        "each.onopen = () => { each.close(); kept('open') }; each.onerror = broken })"
    )


def a_frame(url: str) -> str:
    """A promise of a frame: whether its page can be read, or what the browser shows instead."""
    return (
        "new Promise(kept => { const each = document.createElement('iframe');"
        f"each.src = {json.dumps(url)}; each.onload = () => {{ let seen = 'foreign';"
        "try { seen = each.contentDocument.body.innerText } catch (error) { seen = 'refused' }"
        "each.remove(); kept(seen) }; document.body.append(each) })"
    )


def assert_nothing_ran(page: Page, where: str) -> None:
    """Check that no planted element is in the page, no script of the attacker has run, and no policy had to stop
    one."""
    assert page.run(_HAS_RUN) == "[0,0,0]", (where, page.run(_HAS_RUN))
    refused = [each for each in page.errors if "Content Security Policy" in each or "TrustedHTML" in each]
    assert refused == [], where
