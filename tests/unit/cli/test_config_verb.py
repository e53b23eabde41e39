"""`slipway config`: the effective values and their origins; how values are set, and their effect."""

import stat

import pytest

from slipway.cli import main
from slipway.sdk import contexts
from slipway.sdk.contexts import CliContext, CliContexts
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser, CommandResult, run_here


def shown(*words: str) -> dict[str, tuple[str, str]]:
    """{name: (value, its origin)}"""
    done = run_here("config", *words, "-o", "json")
    assert done.code == main.OK, done.err
    return {item["name"]: (item["value"], item["from"]) for item in done.json["items"]}


def test_each_value_is_shown_with_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value is shown with its origin: an option wins over the environment, the environment over the file, the file
    over the default."""
    first = shown()
    assert first["server"] == ("http://127.0.0.1:8080", "the default")
    assert first["token"] == ("", "none is sent")
    assert first["user"][1] == "your login name"
    assert first["workspace"] == ("default", "the default")
    assert run_here("config", "set", "workspace", "team-red").code == main.OK
    assert run_here("config", "set", "user", "ada").code == main.OK
    kept = shown()
    assert kept["workspace"] == ("team-red", "`slipway config set workspace`")
    assert kept["user"] == ("ada", "`slipway config set user`")
    monkeypatch.setenv("SLIPWAY_WORKSPACE", "team-blue")
    monkeypatch.setenv("SLIPWAY_USER", "eve")
    monkeypatch.setenv("SLIPWAY_SERVER", "http://10.0.0.1:9")
    named = shown()
    assert [named[name] for name in ("workspace", "user", "server")] == [
        ("team-blue", "$SLIPWAY_WORKSPACE"),
        ("eve", "$SLIPWAY_USER"),
        ("http://10.0.0.1:9", "$SLIPWAY_SERVER"),
    ]
    assert shown("--server", "http://10.0.0.2:9")["server"] == ("http://10.0.0.2:9", "--server")
    assert shown("--user", "vic")["user"] == ("vic", "--user")


def test_a_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is never shown, only its origin: the login or the environment."""
    contexts.write(CliContexts("a", {"a": CliContext("http://10.0.0.1:9", token="canary")}))
    assert shown()["token"] == ("***", "your login (token)")
    assert shown()["server"] == ("http://10.0.0.1:9", "the context that you are logged in at")
    monkeypatch.setenv("SLIPWAY_API_TOKEN", "canary")
    assert shown()["token"] == ("***", "$SLIPWAY_API_TOKEN")
    assert "canary" not in run_here("config").out


def test_settings_and_logins_keep_each_other() -> None:
    """Settings and logins are in one file, which only its owner can read, and keep each other; an unset value is
    removed."""
    contexts.write(CliContexts("a", {"a": CliContext("http://10.0.0.1:9", token="t")}))
    run_here("config", "set", "workspace", "team-red")
    assert contexts.read().all["a"].token == "t"
    assert stat.S_IMODE((contexts.folder() / contexts.FILE).stat().st_mode) == 0o600
    run_here("context", "rm", "a")
    assert shown()["workspace"][0] == "team-red"
    done = run_here("config", "unset", "workspace")
    assert (done.code, done.out) == (main.OK, "workspace is default (from the default)\n")
    assert contexts.read().settings == {}


def test_what_goes_before_a_setting_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that another origin overrides is stored, with a message that says so."""
    monkeypatch.setenv("SLIPWAY_WORKSPACE", "team-blue")
    done = run_here("config", "set", "workspace", "team-red")
    assert (done.code, done.err) == (main.OK, "$SLIPWAY_WORKSPACE overrides the stored value\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "workspace"), "write slipway config set NAME VALUE"),
        (("unset", "workspace", "x"), "write slipway config unset NAME"),
        (("set", "workspce", "x"), "workspce: there is no such setting; the settings are user and workspace"),
        (("set", "workspace", "Team Red"), "workspace: 'Team Red' is not a valid workspace name"),
        (("set", "user", "a\nb"), "user: must be 1 to 253 printable ASCII characters"),
        (("set", "server", "http://a"), "log in with `slipway login URL`"),
        (("set", "token", "x"), "log in again with `slipway login URL --token -`"),
        (("show", "workspace"), "takes no name"),
        (("st", "workspace", "x"), "invalid choice: 'st'"),
    ],
)
def test_what_cannot_be_set(words: tuple[str, ...], said: str) -> None:
    """A bad setting is refused with the next step, and nothing is written."""
    done: CommandResult = run_here("config", *words)
    assert (done.code, said in done.err) == (main.USAGE, True), done.err
    assert contexts.read() == CliContexts("", {})


async def test_launches_go_into_the_workspace_that_is_set(world: ApiWorld, cli_user: CliUser) -> None:
    """Launches go into the configured workspace; an option overrides it, and a rerun stays in the workspace of the
    first launch."""
    launch = ("run", "--image", "python:3.11", "-o", "json", "-d")
    before = await cli_user.run(*launch, "--name", "before", "--", "true")
    run_here("config", "set", "workspace", "no-such-place")
    refused = await cli_user.run(*launch, "--name", "a", "--", "true")
    assert (refused.code, "no-such-place" in refused.err) == (main.USAGE, True), refused
    named = await cli_user.run(*launch, "--name", "b", "-n", "default", "--", "true")
    assert named.json["workspace"] == "default"
    again = await cli_user.run("rerun", before.json["id"], "-d", "-o", "json", "--name", "c")
    assert again.json["workspace"] == "default"
    assert await world.names() == ["b", "before", "c"]
    for words in (("job", "create", "j"), ("notebook", "start", "-d", "--image", "a")):
        there = await cli_user.run(*words)
        assert (there.code != main.OK, "no-such-place" in there.err) == (True, True), there
