"""Logging in: the stored token, the server that it is sent to, and what is never shown."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from slipway.cli import rank_session, ssh_keys
from slipway.cli.http import Api
from slipway.errors import InvalidError
from slipway.model import apitokens
from slipway.sdk import address, contexts, credentials
from slipway.sdk.contexts import CliContext, CliContexts
from slipway.sdk.credentials import Credential, Kubernetes
from tests.support.cli import CliUser, run_here
from tests.support.http_stub import serve as serve_stub


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a new home folder, without a running stack."""
    monkeypatch.setenv("SLIPWAY_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("SLIPWAY_SERVER", "SLIPWAY_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_the_token_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """The file is 0600 in a folder of 0700, also when it existed before."""
    kept = CliContexts(
        "b", {"a": CliContext("http://a:1", token="s3cret"), "b": CliContext("http://b:1", token_file="/t")}
    )
    contexts.write(CliContexts("", {}))
    contexts.write(kept)
    path = tmp_path / "config" / contexts.FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert contexts.read() == kept
    path.write_text("{", encoding="utf-8")
    with pytest.raises(InvalidError, match="log in again"):
        contexts.read()


def test_the_folder_is_closed_whatever_it_was(tmp_path: Path) -> None:
    """The folder is closed before a token or a key is stored, because a user who can write there can set the server
    that gets the token. A folder that `ssh-config` created first is closed too."""
    folder = tmp_path / "config"
    folder.mkdir()
    for use in (lambda: contexts.write(CliContexts("", {})), lambda: ssh_keys.keys_of("a-1")):
        folder.chmod(0o777)
        use()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_what_another_account_wrote_is_not_read() -> None:
    """In a folder that was open to others, files of another account are not read. Files of root are valid for all, and
    root reads the files of its caller."""
    script = (
        "import os, sys; from slipway.sdk import contexts; os.setuid(int(sys.argv[1])); print(contexts.read().current)"
    )
    # The folders of pytest are closed to other accounts.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / contexts.FILE
        path.write_text('{"current": "a", "contexts": {}}', encoding="utf-8")
        path.chmod(0o644)
        path.parent.chmod(0o755)

        def read_as(uid: int, owner: int) -> tuple[str, str]:
            os.chown(path, owner, owner)
            argv = [sys.executable, "-c", script, str(uid)]
            env = {**os.environ, "SLIPWAY_CONFIG_DIR": name}
            done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
            return done.stdout, done.stderr

        assert "was written by another account (uid 12346)" in read_as(12345, 12346)[1]
        for uid, owner in ((12345, 12345), (12345, 0), (0, 12345)):
            assert read_as(uid, owner) == ("a\n", "")


def test_a_token_goes_to_its_own_server_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is sent to its own server only; the token of the environment is sent to any server."""
    contexts.write(CliContexts("a", {"a": CliContext("http://a:1", token="for-a")}))
    found = address.find()
    assert (found.url, found.credential.token() if found.credential else "") == ("http://a:1", "for-a")
    assert address.find("http://evil:1").credential is None
    assert address.find("http://a:2").credential is None
    monkeypatch.setenv("SLIPWAY_API_TOKEN", "any")
    other = address.find("http://b:1").credential
    assert other is not None
    assert other.token() == "any"


async def test_only_a_page_is_opened_in_a_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only http and https links are opened in a browser: the server sets the link of a login, and another scheme may
    start a program of the desktop."""
    monkeypatch.setenv("SLIPWAY_API_TOKEN", "any")

    async def answer(_: Request) -> Response:
        return JSONResponse({"url": "file:///etc/passwd"})

    async with serve_stub(answer) as stub:
        done = await CliUser(stub.url).run("open")
    assert "in a browser" not in done.err
    assert "the server names no address of a page: 'file:///etc/passwd'" in done.err


def test_no_token_on_the_screen() -> None:
    """A token is never printed; a printed command contains the variable instead."""
    shown: list[str] = []
    server = address.parse("http://127.0.0.1:9", "test")._replace(credential=credentials.fixed("s3cret"))
    with pytest.raises(Exception, match="connection was refused"):
        Api(server, show=shown.append).get("/me")
    assert "s3cret" not in shown[0]
    assert '-H "Authorization: Bearer $SLIPWAY_API_TOKEN"' in shown[0]
    assert "s3cret" not in repr(server)


def test_a_token_that_ends_is_asked_for_again() -> None:
    """A token is renewed before it expires; one without an expiry is kept."""
    asked: list[str] = []

    def jwt(ends_at: float) -> str:
        body = credentials.base64.urlsafe_b64encode(json.dumps({"exp": ends_at}).encode()).decode().rstrip("=")
        asked.append(body)
        return f"e30.{body}.x"

    short = Credential(lambda: jwt(1.0))
    assert short.token() == short.token()
    assert len(asked) == 2
    long = Credential(lambda: jwt(4e9))
    assert long.token() == long.token()
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("user", "token"),
    [
        ({"token": "plain"}, "plain"),
        ({"exec": {"command": "sh", "args": ["-c", 'echo "{\\"status\\":{\\"token\\":\\"$X\\"}}"'],
                   "apiVersion": "v1", "env": [{"name": "X", "value": "from-exec"}]}}, "from-exec"),
    ],
)  # fmt: skip
def test_what_a_kubeconfig_logs_in_with(
    user: dict[str, object], token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login uses the token of a kubeconfig, or the token from its plug-in."""
    _a_kubectl(tmp_path, monkeypatch, json.dumps({"users": [{"user": user}]}))
    assert credentials.of_kubernetes(Kubernetes()).token() == token


@pytest.mark.parametrize(
    "user",
    [
        {"tokenFile": "/nowhere/token"},
        {"exec": {"command": "printf", "args": ["no json"]}},
        {"exec": {"command": "printf", "args": ["[]"]}},
        {"exec": {"command": "printf", "args": ["{}"], "env": [{"value": "x"}]}},
        {"exec": {"args": ["x"]}},
        {"exec": {"command": "/dev/null"}},
        "none",
    ],
)
def test_a_login_of_a_kubeconfig_that_cannot_be_used(
    user: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plug-in with another answer, or a missing file, is an error with the reason."""
    _a_kubectl(tmp_path, monkeypatch, json.dumps({"users": [{"user": user}]}))
    with pytest.raises(InvalidError, match=r"kubeconfig|cannot be run"):
        credentials.of_kubernetes(Kubernetes()).token()


def test_a_certificate_is_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client certificate is no token: the message names the alternatives, such as a token of an account that kubectl
    makes for our audience."""
    _a_kubectl(tmp_path, monkeypatch, json.dumps({"users": [{"user": {"client-certificate-data": "x"}}]}))
    with pytest.raises(InvalidError, match="--account NAMESPACE/NAME"):
        credentials.of_kubernetes(Kubernetes()).token()
    _a_kubectl(tmp_path, monkeypatch, "made")
    assert credentials.of_kubernetes(Kubernetes("team/ada")).token() == "made"
    words = (tmp_path / "words").read_text(encoding="utf-8").split()
    assert words == ["create", "token", "ada", "--namespace", "team", "--audience", "slipway-api", "--duration=3600s"]


def test_tokens_in_a_folder(tmp_path: Path) -> None:
    """Tokens in a folder are created, listed without hashes and removed; the token itself is printed once, and is in no
    file."""
    folder = str(tmp_path / "tokens")
    made = run_here("token", "create", "--for", "ada", "--role", "red=editor", "--role", "viewer", "--dir", folder)
    assert made.code == 0, made.err
    token = made.out.strip()
    [path] = Path(folder).iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    record = apitokens.decode(path.name, path.read_bytes())
    assert (record.is_of(token), dict(record.roles)) == (True, {"red": "editor", "*": "viewer"})
    assert token.split("_", 2)[2] not in path.read_text(encoding="utf-8")
    listed = run_here("token", "ls", "--dir", folder, "-o", "json").json["items"]
    assert [(each["id"], each["user"], "hash" in each) for each in listed] == [(record.id, "ada", False)]
    assert run_here("token", "revoke", record.id, "--dir", folder).code == 0
    assert run_here("token", "revoke", record.id, "--dir", folder).code == 3
    assert list(Path(folder).iterdir()) == []


def test_tokens_in_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a Secret the command is printed, or run by kubectl; both contain only the hash, under a key of its own."""
    _a_kubectl(tmp_path, monkeypatch, "patched")
    create = ("token", "create", "--for", "ada", "--role", "red=editor", "--secret", "ops/tokens")
    printed = run_here(*create)
    assert "kubectl patch secret tokens --namespace ops --type merge --patch" in printed.err
    assert printed.out.strip() not in printed.err
    done = run_here(*create, "--apply")
    patch = json.loads((tmp_path / "given").read_text(encoding="utf-8"))
    [(key, value)] = patch["data"].items()
    record = apitokens.decode(key, credentials.base64.b64decode(value))
    assert record.is_of(done.out.strip())
    run_here("token", "revoke", record.id, "--secret", "tokens", "--apply")
    assert json.loads((tmp_path / "given").read_text(encoding="utf-8")) == {"data": {key: None}}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("token", "create", "--role", "admin", "--dir", "x"), "--for USER"),
        (("token", "create", "--for", "a", "--role", "owner", "--dir", "x"), "viewer, editor, admin"),
        (("token", "create", "--for", "a", "--role", "admin"), "--dir FOLDER, or --secret NAME"),
        (("token", "create", "--for", "a", "--role", "admin", "--dir", "x", "--expires", "9999d"), "at most 365d"),
        (("token", "revoke", "zz", "--dir", "x"), "not the id of a token"),
        (("context", "use", "nowhere"), "there is no context"),
        (("login", "http://127.0.0.1:9", "--account", "a/b"), "--account needs --kubernetes"),
    ],
)
def test_what_is_missing_is_named(words: tuple[str, ...], told: str) -> None:
    """A missing argument is named with what to write instead."""
    ran = run_here(*words)
    assert ran.code in (2, 3)
    assert told in ran.err


def _a_kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """A kubectl that prints `answer`, and records its arguments and its input."""
    program = folder / "bin" / "kubectl"
    program.parent.mkdir(exist_ok=True)
    (folder / "answer").write_text(answer, encoding="utf-8")
    program.write_text(
        f'#!/bin/sh\necho "$@" > {folder}/words\n[ "$1" = patch ] && cat > {folder}/given\ncat {folder}/answer\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


async def test_a_websocket_brings_the_token() -> None:
    """A WebSocket sends the token, so that terminals and forwarded ports are authenticated like every call."""
    seen: list[str] = []

    async def serve_one(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request.headers.get("Authorization", ""))
        await connection.close()

    async with serve(serve_one, "127.0.0.1", 0, subprotocols=[Subprotocol("p")]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        there = address.parse(f"http://127.0.0.1:{port}", "test")
        for credential in (credentials.fixed("s3cret"), None):
            opened = there._replace(credential=credential)
            async with await rank_session.connect(opened, rank_session.url_of(opened, "/proxy/x/"), "p") as socket:
                await socket.wait_closed()
    assert seen == ["Bearer s3cret", ""]
