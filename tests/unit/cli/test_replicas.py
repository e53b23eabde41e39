"""`run --replicas` and `replicas` of a file: one launch for each, behind one Service."""

from pathlib import Path

import pytest

from slipway.cli import main
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser

RUN = ("run", "--image", "a", "--name", "llm", "--ranks", "2")
BODY = """
name: llm
kind: training
image: a
command: [serve]
service: {name: llm, port: 8000}
replicas: %s
"""


async def test_each_replica_is_a_launch_behind_the_service(world: ApiWorld, cli_user: CliUser) -> None:
    """Each replica is a launch behind the Service; the ids are printed, and stderr shows how to see them."""
    done = await cli_user.run(*RUN, "--replicas", "2", "--service", "llm:8000", "--", "serve")
    assert done.code == main.OK, done.err
    assert [line.rpartition("-")[0] for line in done.out.splitlines()] == ["llm-0", "llm-1"]
    assert "2 replicas behind Service llm; see them with: slipway ps -l slipway.dev/service=llm" in done.err
    for index in ("0", "1"):
        spec = (await world.stored(f"llm-{index}")).spec
        assert spec.env == {"REPLICA_INDEX": index}
        assert spec.ranks[0].count == 2
    listed = await cli_user.run("ps", "-l", "slipway.dev/service=llm")
    assert "llm-0" in listed.out
    assert "llm-1" in listed.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--replicas", "2"), "add --service NAME:PORT"),
        (("--replicas", "2", "--service", "llm:80", "--array", "0-1"), "cannot be combined with --array"),
        (("--replicas", "2", "--service", "llm:80", "--wait"), "--follow, --wait or --as"),
        (("--replicas", "2", "--service", "llm:80", "--as", "curl"), "--follow, --wait or --as"),
        (("--replicas", "0", "--service", "llm:80"), "replicas: must be a whole number from 1 to 200"),
        (("--replicas", "201", "--service", "llm:80"), "replicas: must be a whole number from 1 to 200"),
        (("--replicas", "2", "--service", "LLM:80"), "service.name"),
    ],
)
async def test_what_cannot_be_replicas_is_refused(
    world: ApiWorld, cli_user: CliUser, words: tuple[str, ...], said: str
) -> None:
    """Replicas that are not possible are refused with the field, the reason and what to write; nothing is launched."""
    refused = await cli_user.run(*RUN, *words, "--", "serve")
    assert refused.code == main.USAGE
    assert said in refused.err
    assert "launch." not in refused.err
    assert await world.names() == []


async def test_a_file_with_more_replicas_launches_those_that_are_new(
    world: ApiWorld, cli_user: CliUser, tmp_path: Path
) -> None:
    """A file with more replicas launches the new ones; applied again it launches nothing, and with fewer replicas it
    ends none."""
    path = tmp_path / "llm.yaml"
    for count, names in ((2, 2), (2, 2), (3, 3), (1, 3)):
        path.write_text(BODY % count)
        done = await cli_user.run("apply", "-f", str(path))
        assert done.code == main.OK, done.err
        assert sorted(await world.names()) == [f"llm-{index}" for index in range(names)]
    assert "1 replica behind Service llm (1 launched before)" in done.err


async def test_a_dry_run_shows_the_first(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """A dry run shows the first replica and says so; nothing is launched."""
    path = tmp_path / "llm.yaml"
    path.write_text(BODY % 3)
    shown = await cli_user.run("apply", "-f", str(path), "--dry-run")
    assert shown.code == main.OK, shown.err
    assert "name: llm-0" in shown.out
    assert "the first of 3 replicas" in shown.err
    assert await world.names() == []
