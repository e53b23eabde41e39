"""`slipway login` at an OpenID Connect issuer: by a browser, by a code; the sign-on is stored, renewed, ended."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.access import Teams, teams_world
from tests.support.cli import CommandResult
from tests.support.issuer import CLI, WEB, RunningIssuer
from tests.support.local_stack import cli_words
from tests.unit.api.proxy.test_proxy import served

VISITS = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"
WITHIN_S = 60


class SignedInUser:
    """A user with a folder, whose browser is signed in at the issuer, and a real listener of the api."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.file = folder / "config" / "contexts.json"
        script = folder / "visit.py"
        script.write_text(VISITS, encoding="utf-8")
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")} | {
            "SLIPWAY_CONFIG_DIR": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "BROWSER": f"{sys.executable} {script} %s",
            "NO_COLOR": "1",
        }

    async def run(self, *words: str) -> CommandResult:
        """Run `slipway ...` as a process."""
        return await asyncio.to_thread(self._run, words)

    def _run(self, words: tuple[str, ...]) -> CommandResult:
        argv = cli_words(*words)
        done = subprocess.run(argv, env=self._env, capture_output=True, text=True, timeout=WITHIN_S, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            cli_words(*words), env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def kept(self) -> dict[str, str]:
        """The content of the file of the sign-on."""
        told = json.loads(self.file.read_text(encoding="utf-8"))
        return next(iter(told["contexts"].values()))["oidc"]

    def keep(self, **changed: str) -> None:
        told = json.loads(self.file.read_text(encoding="utf-8"))
        next(iter(told["contexts"].values()))["oidc"].update(changed)
        self.file.write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture
async def teams(issuer: RunningIssuer, tmp_path: Path) -> AsyncGenerator[Teams]:
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    settings = {
        "oidc_issuer_url": issuer.url,
        "oidc_client_id": WEB,
        "oidc_cli_client_id": CLI,
        "oidc_username_prefix": "oidc:",
        "oidc_roles": {"group:ml": {"team-red": "editor"}},
    }
    async with teams_world("token", tokens, **settings) as found:
        yield found
        assert found.world.parts.issuer is not None
        await found.world.parts.issuer.aclose()


@pytest.fixture
async def cli_user(teams: Teams, tmp_path: Path) -> AsyncGenerator[SignedInUser]:
    async with served(teams.world.app) as port:
        yield SignedInUser(f"http://127.0.0.1:{port}", tmp_path)


async def test_a_browser_signs_the_command_in(cli_user: SignedInUser, teams: Teams) -> None:
    """No option is needed, because the server shows its issuer; the file is readable for its owner only, and no
    token is printed."""
    ran = await cli_user.run("login", cli_user.url)
    assert ran.code == 0, ran.err
    assert "as oidc:ada" in ran.out
    assert "roles: editor in team-red" in ran.out
    kept = cli_user.kept()
    assert stat.S_IMODE(cli_user.file.stat().st_mode) == 0o600
    for secret in (kept["id_token"], kept["refresh_token"]):
        assert secret
        assert secret not in ran.out + ran.err
    who = await cli_user.run("whoami")
    assert (who.code, "oidc:ada at" in who.out, "until" in who.out, "renewed automatically" in who.out) == (
        0,
        *[True] * 3,
    )
    assert (await cli_user.run("get", teams.ids["red"], "-o", "json")).code == 0
    assert "sign-on at" in (await cli_user.run("context", "ls")).out


async def test_a_token_that_ends_is_renewed_once(cli_user: SignedInUser, issuer: RunningIssuer) -> None:
    """Many commands at the same time renew it once, where a refresh token can be used once; the new tokens are
    stored."""
    assert (await cli_user.run("login", cli_user.url, "--sso")).code == 0
    first = cli_user.kept()
    cli_user.keep(id_token=issuer.token(exp=1_600_000_000, aud=CLI))
    before = issuer.calls("/token")
    ran = await asyncio.gather(*(cli_user.run("whoami") for _ in range(3)))
    assert [each.code for each in ran] == [0, 0, 0], [each.err for each in ran]
    assert issuer.calls("/token") == before + 1
    assert cli_user.kept()["refresh_token"] != first["refresh_token"]


async def test_a_sign_on_that_the_issuer_has_ended(cli_user: SignedInUser, issuer: RunningIssuer) -> None:
    """The exit code is 4, and the message says what to do."""
    assert (await cli_user.run("login", cli_user.url, "--sso")).code == 0
    cli_user.keep(id_token="")
    issuer.faults(refuse_refresh=True)
    ran = await cli_user.run("whoami")
    assert (ran.code, "invalid_grant" in ran.err, "slipway login" in ran.err) == (4, True, True), ran.err


async def test_a_code_on_another_device(cli_user: SignedInUser, issuer: RunningIssuer) -> None:
    """The address and the code are printed; the command waits, more slowly when asked to, and is signed in after the
    confirmation."""
    issuer.faults(slow_down=False)
    command = cli_user.start("login", cli_user.url, "--device")
    assert command.stderr is not None
    shown = [await asyncio.to_thread(command.stderr.readline) for _ in range(2)]
    assert f"{issuer.url}/device" in shown[0]
    code = shown[1].rpartition(" ")[2].strip()
    issuer.tell("approve", {code: True})
    out, err = await asyncio.to_thread(command.communicate, timeout=WITHIN_S)
    assert (command.returncode, "as oidc:ada" in out) == (0, True), err


async def test_a_device_that_is_refused(cli_user: SignedInUser, issuer: RunningIssuer) -> None:
    """The command reports the refusal, and stores nothing."""
    command = cli_user.start("login", cli_user.url, "--device")
    assert command.stderr is not None
    shown = [await asyncio.to_thread(command.stderr.readline) for _ in range(2)]
    issuer.tell("approve", {shown[1].rpartition(" ")[2].strip(): False})
    _, err = await asyncio.to_thread(command.communicate, timeout=WITHIN_S)
    assert (command.returncode, "access_denied" in err, cli_user.file.exists()) == (4, True, False), err


async def test_a_logout_forgets_and_revokes(cli_user: SignedInUser, issuer: RunningIssuer) -> None:
    """A logout removes the file and revokes the token at the issuer; a second one reports that there is nothing."""
    assert (await cli_user.run("login", cli_user.url, "--sso")).code == 0
    kept = issuer.seen()["refresh"]
    out = await cli_user.run("logout")
    assert (out.code, "logged out of" in out.out) == (0, True), out.err
    assert issuer.seen()["refresh"] == kept - 1
    assert "eyJ" not in cli_user.file.read_text(encoding="utf-8")
    assert (await cli_user.run("logout")).code == 3


async def test_an_answer_without_our_nonce_is_refused(cli_user: SignedInUser, issuer: RunningIssuer) -> None:
    """An answer without our nonce belongs to another sign-in."""
    issuer.faults(drop_nonce=True)
    ran = await cli_user.run("login", cli_user.url, "--sso")
    assert (ran.code, "nonce" in ran.err, cli_user.file.exists()) == (4, True, False), ran.err


async def test_a_server_without_an_issuer(tmp_path: Path) -> None:
    """A sign-in that is requested by name is refused, and the message names the other way."""
    async with teams_world("token", tmp_path) as teams, served(teams.world.app) as port:
        cli_user = SignedInUser(f"http://127.0.0.1:{port}", tmp_path)
        ran = await cli_user.run("login", cli_user.url, "--sso")
        assert (ran.code, "--token-file" in ran.err) == (3, True), ran.err
