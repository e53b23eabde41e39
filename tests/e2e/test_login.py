"""Logging in at a real stack with tokens: every verb uses it, other users see nothing, and a revoked token is
refused."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipway.local.stack import StackOptions
from slipway.sdk import address
from tests.support.cli import CommandResult
from tests.support.local_stack import RunningStack, cli_words
from tests.support.names import fresh
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until


class TokenStack:
    """A stack in mode `token`, and users with a folder each."""

    def __init__(self, stack: RunningStack, tokens: Path, homes: Path) -> None:
        self.stack = stack
        self.tokens = tokens
        self.homes = homes

    def run(self, user: str, *words: str, given: str = "") -> CommandResult:
        """Run `slipway ...` as a process of that user."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        env |= {"SLIPWAY_CONFIG_DIR": str(self.homes / user), "XDG_STATE_HOME": str(self.homes), "NO_COLOR": "1"}
        done = subprocess.run(
            cli_words(*words), env=env, input=given, capture_output=True, text=True, timeout=90, check=False
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def token(self, user: str, *roles: str) -> str:
        """Create a token, and wait until it is valid."""
        options = [word for role in roles for word in ("--role", role)]
        made = self.run(user, "token", "create", "--for", user, *options, "--dir", str(self.tokens))
        assert made.code == 0, made.err
        token = made.out.strip()
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{self.stack.url}/api/v1/me"
        wait_until(
            lambda: httpx2.get(url, headers=headers, verify=NO_TLS, trust_env=False).status_code == 200,
            "the token counts",
        )
        return token

    def login(self, user: str, *roles: str) -> CommandResult:
        """Create a token for the user and log in with it."""
        return self.run(user, "login", self.stack.url, "--token", "-", given=self.token(user, *roles))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Generator[TokenStack]:
    base = tmp_path_factory.mktemp("guarded")
    tokens = base / "tokens"
    tokens.mkdir()
    options = StackOptions(
        folder=base / "stack", port=0, env={"SLIPWAY_AUTH": "token", "SLIPWAY_TOKEN_DIR": str(tokens)}
    )
    stack = RunningStack(options)
    try:
        stack.start()
        yield TokenStack(stack, tokens, base / "homes")
    finally:
        stack.stop()


def test_login_says_who_one_is_and_every_verb_goes_in(guarded: TokenStack) -> None:
    """Calls, streams and sockets use the token; the launch is that user's, whatever --user says."""
    assert guarded.run("nobody", "ps", "--server", guarded.stack.url).code == 4
    logged_in = guarded.login("ada", "default=editor")
    assert logged_in.code == 0, logged_in.err
    assert "as ada" in logged_in.out
    assert "workspaces: default" in logged_in.out
    mine, shell_name = fresh("mine"), fresh("sh1")
    run = guarded.run("ada", "run", "--user", "root", "--name", mine, "--", "python3", "-c", "print('hello')")
    assert (run.code, "hello" in run.out) == (0, True), run.err
    view: Any = json.loads(guarded.run("ada", "get", mine, "-o", "json").out)
    assert view["user"] == "ada"
    assert guarded.run("ada", "logs", "-f", mine).out.strip().endswith("hello")
    assert "terminated" in guarded.run("ada", "events", "-f", mine).out
    assert guarded.run("ada", "shell", "start", "--name", shell_name, "--detach").code == 0
    assert guarded.run("ada", "wait", shell_name, "--for", "ready").code == 0
    shell = guarded.run("ada", "shell", "open", shell_name, "--", "echo", "from inside")
    assert (shell.code, "from inside" in shell.out) == (0, True), shell.err
    guarded.run("ada", "kill", shell_name)


def test_a_viewer_looks_and_changes_nothing(guarded: TokenStack) -> None:
    """The exit code is 4, and the error names the required role."""
    guarded.login("ada", "default=editor")
    stays = fresh("stays")
    launched = guarded.run("ada", "command", "start", "--name", stays, "--detach", "--", "sleep", "60")
    assert launched.code == 0, launched.err
    assert guarded.login("vera", "default=viewer").code == 0
    assert stays in guarded.run("vera", "ps").out
    killed = guarded.run("vera", "kill", stays)
    assert (killed.code, "editor" in killed.err) == (4, True), killed.err
    guarded.run("ada", "kill", stays)


def test_other_users_find_nothing(guarded: TokenStack) -> None:
    """Objects of a workspace are not found for users of another one, rather than forbidden."""
    guarded.login("ada", "default=editor")
    hidden = fresh("hidden")
    launched = guarded.run("ada", "command", "start", "--name", hidden, "--detach", "--", "sleep", "60")
    assert launched.code == 0, launched.err
    assert guarded.login("eve", "elsewhere=admin").code == 0
    assert hidden not in guarded.run("eve", "ps", "-a").out
    for verb in ("get", "logs", "kill", "explain", "describe"):
        ran = guarded.run("eve", verb, hidden)
        assert (ran.code, f"there is no allocation '{hidden}'" in ran.err) == (3, True), (verb, ran.err)
    assert guarded.run("eve", "command", "start", "--workspace", "default", "--", "true").code == 3
    guarded.run("ada", "kill", hidden)


def test_a_revoked_token_is_refused(guarded: TokenStack) -> None:
    """A token is refused within seconds after it was revoked, without a restart; the folder lists the tokens."""
    token = guarded.token("rex", "default=editor")
    assert guarded.run("rex", "login", guarded.stack.url, "--token", "-", given=token).code == 0
    id_ = token.split("_")[1]
    assert id_ in guarded.run("rex", "token", "ls", "--dir", str(guarded.tokens)).out
    assert guarded.run("rex", "token", "revoke", id_, "--dir", str(guarded.tokens)).code == 0
    wait_until(lambda: guarded.run("rex", "ps").code == 4, "the token counts no more")
    assert "slipway login" in guarded.run("rex", "ps").err


def test_an_open_api_listens_nowhere_else(tmp_path: Path) -> None:
    """In mode `none` the api does not start on an address other than loopback, and the error gives the reason."""
    env = {**os.environ, "SLIPWAY_LISTEN": "0.0.0.0:0", "KUBECONFIG": str(tmp_path / "none")}
    argv = [sys.executable, "-m", "slipway.api.main"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "accepts every caller" in done.stderr
    assert address.parse("http://127.0.0.1:1", "test").credential is None
