"""The folder of a local stack: which accounts can open it, and how the command finds its token by an address."""

import os
import stat
from collections.abc import Generator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from slipway.local import access
from slipway.local.layout import (
    Layout,
    StackProcess,
    StackState,
    index_folder,
    register,
    start_ticks,
    token_at,
    unregister,
)
from slipway.model import apitokens
from slipway.sdk import address

API = "http://127.0.0.1:18123"
PORT = 18123
NOW = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _loose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLIPWAY_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("SLIPWAY_API_TOKEN", raising=False)
    before = os.umask(0)
    yield
    os.umask(before)


def a_stack(folder: Path, *, pid: int | None = None) -> Layout:
    """A folder as a running stack leaves it; its api is this process."""
    layout = Layout(folder)
    layout.make()
    access.make_token(layout, NOW)
    access.make_browser_hosts(layout)
    own = os.getpid() if pid is None else pid
    api = StackProcess(name="api", pid=own, started=start_ticks(own), url=API)
    layout.write_kubeconfig("https://127.0.0.1:1", token="t", authority=b"pem")
    layout.write_state(StackState(api=API, kubeconfig="", redis_url="", kubernetes="", supervisor=own, members=[api]))
    register(API, folder)
    return layout


def test_no_other_account_can_open_anything(tmp_path: Path) -> None:
    """No other account can open anything in the folder, with any umask, also when an earlier version created it."""
    folder = tmp_path / "data"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs/api.log").write_text("")
    (folder / "kubeconfig").write_text("")
    a_stack(folder)
    found = [folder, *folder.rglob("*"), index_folder(), *index_folder().iterdir()]
    loose = [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert loose == []
    assert (folder / "kubeconfig") in found


def test_the_command_finds_the_token_by_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command finds the token by the numeric address, wherever the folder is, and sends it to no other server."""
    token = a_stack(tmp_path / "anywhere").token.read_text()
    monkeypatch.setenv("SLIPWAY_SERVER", f"http://localhost:{PORT}")
    found = address.find()
    assert found.credential is not None
    assert (found.credential.token(), found.url) == (token, API)
    for other in (f"http://127.0.0.2:{PORT}", f"https://127.0.0.1:{PORT}", f"http://10.0.0.1:{PORT}", f"{API}4"[:-2]):
        assert address.find(other).credential is None, other


def test_a_token_is_given_to_a_stack_that_runs(tmp_path: Path) -> None:
    """A token is sent only to a running stack, because another program may have the port of an ended one."""
    folder = tmp_path / "data"
    a_stack(folder, pid=2**22 + 1)
    assert token_at(PORT) == ""
    a_stack(folder)
    assert token_at(PORT) != ""
    unregister(API, tmp_path / "other")
    assert token_at(PORT) != ""
    unregister(API, folder)
    assert token_at(PORT) == ""


def test_browsers_stay_logged_in_over_a_restart(tmp_path: Path) -> None:
    """The key that seals cookies is created once, readable by this account only, and the api can use it, so that
    browsers stay logged in."""
    layout = Layout(tmp_path)
    layout.make()
    access.make_session_key(layout)
    (path,) = layout.session_keys.glob("*.key")
    key = path.read_bytes()
    assert Fernet(key)
    assert path.stat().st_mode & 0o077 == 0
    access.make_session_key(layout)
    assert path.read_bytes() == key


def test_a_folder_keeps_its_token_and_its_names(tmp_path: Path) -> None:
    """A folder keeps its token and names, another folder has others; a token without its record is created anew."""
    layout, other = Layout(tmp_path / "one"), Layout(tmp_path / "two")
    for each in (layout, other):
        each.make()
    token, names = access.make_token(layout, NOW), access.make_browser_hosts(layout)
    assert (access.make_token(layout, NOW), access.make_browser_hosts(layout)) == (token, names)
    assert token != access.make_token(other, NOW)
    assert names != access.make_browser_hosts(other)
    (layout.tokens / apitokens.file_of(apitokens.id_of(token))).unlink()
    assert access.make_token(layout, NOW) != token
