"""The versions of command and server: a difference is reported on a terminal once a day for each server, and by
`slipway version`."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipway.cli import versions
from slipway.cli.terminal import Terminal
from slipway.installed import VERSION_HEADER, installed_version, mismatch
from tests.support.cli import CliUser, run_here
from tests.support.http_stub import serve
from tests.support.pty_command import on_a_terminal

URL = "http://server.example"


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        """It is a terminal."""
        return True


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a new cache, and a terminal without colours."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path / "slipway/versions.json"


def printed_about(version: str, url: str = URL, *, screen: io.StringIO | None = None) -> str:
    """The text that a command prints about a server of this version."""
    err = Screen() if screen is None else screen
    versions.tell(Terminal(io.StringIO(), err), url, version)
    return err.getvalue()


@pytest.mark.parametrize(
    ("own", "server", "word"),
    [
        ("1.2.0", "1.2.9", ""),
        ("1.2.0", "1.3.0", "pipx install --force slipway_ai-1.3.0-"),
        ("1.9.0", "1.10.0", "pipx install"),
        ("1.2.0", "1.1.9", "helm upgrade"),
        ("2.0.0", "1.9.0", "helm upgrade"),
        (None, "1.1.9", ""),
        ("1.2.0", "unknown", ""),
        ("1.2.0", "", ""),
    ],
)
def test_which_versions_fit(own: str | None, server: str, word: str) -> None:
    """Versions with the same minor version fit; otherwise one line says which side to upgrade and how."""
    said = mismatch(own, server, URL)
    assert (word in said) if word else (said == "")
    assert "\n" not in said


def test_it_is_said_once_a_day_for_each_server(cache: Path) -> None:
    """The message is printed once a day for each server, and again when the server has another version."""
    assert "helm upgrade" in printed_about("0.0.1")
    assert printed_about("0.0.1") == ""
    assert "0.0.1" in printed_about("0.0.1", "http://other.example")
    assert "pipx" in printed_about("99.0.0")
    cache.write_text(json.dumps({URL: ["99.0.0", "2020-01-01"]}), encoding="utf-8")
    assert "pipx" in printed_about("99.0.0")


def test_nothing_is_said_where_nobody_reads_or_all_fits(cache: Path) -> None:
    """Nothing is printed in a pipe or when the versions fit; in a pipe nothing is stored either."""
    assert printed_about("0.0.1", screen=io.StringIO()) == ""
    assert printed_about("") == ""
    assert not cache.exists()
    assert printed_about(str(installed_version())) == ""


def test_what_cannot_be_read_or_written_is_no_failure(cache: Path) -> None:
    """A cache that cannot be read or written is no failure; the message is then printed each time."""
    cache.parent.mkdir()
    cache.write_text("no json", encoding="utf-8")
    assert printed_about("0.0.1")
    cache.unlink()
    cache.mkdir()
    assert printed_about("0.0.1")
    assert printed_about("0.0.1")


def test_the_file_stays_small(cache: Path) -> None:
    """The file stays small: it keeps the servers that were called last."""
    for number in range(versions.SERVERS_MAX + 5):
        printed_about("0.0.1", f"http://{number}.example")
    kept = json.loads(cache.read_text("utf-8"))
    assert len(kept) == versions.SERVERS_MAX
    assert f"http://{versions.SERVERS_MAX + 4}.example" in kept


async def answer(request: Request) -> Response:
    """An old server."""
    headers = {VERSION_HEADER: "0.0.1"}
    return JSONResponse({"user": "ada", "items": []}, headers=headers)


async def test_version_shows_both() -> None:
    """`slipway version` shows the versions of the command and the server, and the next step when they do not fit, with
    one request."""
    async with serve(answer) as stub:
        ran = await CliUser(stub.url).run("version")
        only = await CliUser(stub.url).run("version", "--client")
    assert ran.code == 0
    assert ran.out.splitlines() == [f"slipway {installed_version()}", f"server  0.0.1 at {stub.url}"]
    assert "helm upgrade" in ran.err
    assert only.out == f"slipway {installed_version()}\n"
    assert len(stub.requests) == 1


def test_a_server_that_is_not_there_is_no_failure() -> None:
    """`slipway version` succeeds without a server, and shows the version of the command."""
    ran = run_here("version", "--server", "http://127.0.0.1:1")
    assert (ran.code, ran.out) == (0, f"slipway {installed_version()}\n")
    assert "server unknown: no Slipway answers" in ran.err


async def test_any_verb_says_it_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal any verb prints the message at its end, without an extra request; a second command on that day does
    not."""
    async with serve(answer) as stub:
        monkeypatch.setenv("SLIPWAY_SERVER", stub.url)

        def workspaces() -> str:
            with on_a_terminal("workspace", "ls") as command:
                command.end()
            return command.written

        first, second = await asyncio.to_thread(workspaces), await asyncio.to_thread(workspaces)
    assert first.count("note: this is Slipway") == 1
    assert "note:" not in second
    assert len({request.target for request in stub.requests}) * 2 == len(stub.requests)
