"""Single sign-on in a real browser: from the login page over the issuer's site and back, then the logout."""

from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from slipway.local.stack import StackOptions
from tests.browser.chromium import Browser
from tests.support.issuer import SECRET, WEB, RunningIssuer, running_issuer
from tests.support.local_stack import RunningStack


@pytest.fixture
def issuer() -> Generator[RunningIssuer]:
    with running_issuer() as found:
        yield found


@pytest.fixture
def stack_with_issuer(issuer: RunningIssuer, tmp_path: Path) -> Generator[RunningStack]:
    secret = tmp_path / "secret"
    secret.write_text(SECRET, encoding="utf-8")
    env = {
        "SLIPWAY_OIDC_ISSUER_URL": issuer.url,
        "SLIPWAY_OIDC_CLIENT_ID": WEB,
        "SLIPWAY_OIDC_CLIENT_SECRET_FILE": str(secret),
        "SLIPWAY_OIDC_USERNAME_PREFIX": "oidc:",
        "SLIPWAY_OIDC_ROLES": '{"group:ml": {"default": "editor"}}',
    }
    stack = RunningStack(StackOptions(folder=tmp_path / "stack", port=0, env=env))
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def test_a_browser_signs_in_and_out(stack_with_issuer: RunningStack, browser: Browser) -> None:
    """The requested page opens with the new login; after the logout the login page is shown again."""
    parts = urlsplit(stack_with_issuer.link("/"))
    origin = f"{parts.scheme}://{parts.netloc}"
    with browser.page() as page:
        page.goto(f"{origin}/login?next=/queues")
        page.wait_for("!!document.querySelector('form[action=\"/login/start\"]')")
        page.run("document.querySelector('form[action=\"/login/start\"]').submit()")
        page.wait_for("location.pathname === '/queues' && document.readyState === 'complete'")
        told = page.run("fetch('/api/v1/me').then(answer => answer.json()).then(me => me.user)")
        assert told == "oidc:ada"
        page.goto(f"{origin}/login")
        page.wait_for("!!document.querySelector('form[action=\"/logout\"]')")
        page.run("document.querySelector('form[action=\"/logout\"]').submit()")
        page.wait_for("!!document.querySelector('form[action=\"/login/start\"]')")
        page.goto(f"{origin}/api/v1/me")
        page.wait_for("document.body.innerText.includes('unauthorized')")
