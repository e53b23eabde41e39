"""`slipway apply`: bodies, manifests and several files at once are launched; invalid ones are refused."""

import io
from pathlib import Path

import pytest

from slipway.cli import main
from slipway.cli.verbs.apply import body_of
from slipway.cli.yamlfile import documents
from slipway.errors import InvalidError
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser

MANIFEST = """
apiVersion: slipway.dev/v1alpha1
kind: Allocation
metadata:
  name: from-file
  labels: {team: vision}
spec:
  kind: command
  template:
    spec:
      containers:
      - {name: main, image: "python:3.11", command: [python, -V]}
"""
BODY = '{"name": "short", "kind": "command", "image": "a", "command": ["true"]}'


async def test_manifests_and_bodies(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """Manifests and bodies are launched by one command; applied again, nothing is launched twice."""
    path = tmp_path / "two.yaml"
    path.write_text(f"{MANIFEST}---\n{BODY}\n")
    first, again = await cli_user.run("apply", "-f", str(path)), await cli_user.run("apply", "-f", str(path))
    assert first.code == again.code == 0
    assert first.out == again.out
    assert sorted(await world.names()) == ["from-file", "short"]
    assert (await world.stored("from-file")).metadata.labels["team"] == "vision"


async def test_standard_input(world: ApiWorld, cli_user: CliUser, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-f -` reads standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO(BODY))
    assert (await cli_user.run("apply", "-f", "-")).code == 0
    assert await world.names() == ["short"]


async def test_a_dry_run(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """A dry run launches nothing."""
    path = tmp_path / "a.yaml"
    path.write_text(MANIFEST)
    assert (await cli_user.run("apply", "-f", str(path), "--dry-run")).code == 0
    assert await world.names() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "contains no document"),
        ("[1, 2]", "must be an object"),
        ("{unclosed", "neither YAML nor JSON"),
        ("apiVersion: v1\nkind: Pod\n", "v1 Pod is not launched here"),
        ("kind: command\ncomand: [true]\n", "did you mean command?"),
    ],
)
async def test_what_can_not_be_launched(cli_user: CliUser, tmp_path: Path, text: str, said: str) -> None:
    """A file that cannot be launched is a usage error with the reason."""
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = await cli_user.run("apply", "-f", str(path))
    assert done.code == main.USAGE
    assert said in done.err


async def test_a_file_that_is_not_there(cli_user: CliUser) -> None:
    """A missing file is a usage error."""
    assert (await cli_user.run("apply", "-f", "/no/such")).code == main.USAGE


def test_a_manifest_as_a_body() -> None:
    """A manifest becomes a body with the name, workspace and labels of its metadata."""
    (document,) = documents(MANIFEST.replace("labels:", "namespace: team-a\n  labels:"))
    body = body_of(document)
    assert (body["name"], body["workspace"], body["labels"], body["kind"]) == (
        "from-file",
        "team-a",
        {"team": "vision"},
        "command",
    )


def test_yaml_that_runs_code_is_refused() -> None:
    """YAML with tags of Python objects is refused."""
    with pytest.raises(InvalidError):
        documents("!!python/object/apply:os.system [true]")


async def test_what_has_ended_is_not_launched_again_and_says_so(
    world: ApiWorld, cli_user: CliUser, tmp_path: Path
) -> None:
    """An allocation that has ended is not launched again: the output does not show it as running, and `--follow` exits
    with its exit code."""
    path = tmp_path / "one.yaml"
    path.write_text(BODY)
    first = await cli_user.run("apply", "-f", str(path))
    await world.run("short")
    await world.step("short", Event.TERMINATED, reason="RankFailed", result=Result.FAILED)
    again, followed = (
        await cli_user.run("apply", "-f", str(path)),
        await cli_user.run("apply", "--follow", "-f", str(path)),
    )
    assert (again.code, again.out) == (main.OK, first.out)
    assert (followed.code, followed.out) == (main.FAILED, "")
    for said in (again.err, followed.err):
        assert "not launched again: short has ended (Failed)" in said
        assert "launched\n" not in said
