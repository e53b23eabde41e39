"""Workspaces from the command, against the real api."""

import pytest

from slipway.cli import main
from slipway.kube.resources import NAMESPACES
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser


async def test_a_workspace_from_the_command(world: ApiWorld, cli_user: CliUser) -> None:
    """A workspace is created with defaults and a quota, listed, changed and removed."""
    made = await cli_user.run("workspace", "create", "team", "--pool", "default", "--quota", "nvidia.com/gpu=8")
    assert (made.code, "slipway run -n team" in made.out) == (main.OK, True)
    listed = await cli_user.run("workspace", "ls")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["WORKSPACE", "default", "team"]
    assert "nvidia.com/gpu ?/8" in listed.out or "nvidia.com/gpu 0/8" in listed.out
    assert (await cli_user.run("workspace", "set", "team", "--pool", "none", "--quota", "none")).code == main.OK
    shown = (await cli_user.run("workspace", "show", "team", "-o", "json")).json
    assert (shown["defaultPool"], shown["quota"]) == ("", {})
    assert (await cli_user.run("workspaces", "ls", "-q")).out == "default\nteam\n"
    assert (await cli_user.run("workspace", "rm", "team")).code == main.OK
    assert (await world.kube.get(NAMESPACES, "team")).metadata.deletion_timestamp


async def test_secrets_for_images_from_the_command(world: ApiWorld, cli_user: CliUser) -> None:
    """Secrets for images are set one by one, and removed by `none`."""
    assert (
        await cli_user.run("workspace", "create", "team", "--pull-secret", "a", "--pull-secret", "b")
    ).code == main.OK
    assert (await cli_user.run("workspace", "show", "team", "-o", "json")).json["imagePullSecrets"] == ["a", "b"]
    assert (await cli_user.run("workspace", "set", "team", "--pull-secret", "none")).code == main.OK
    assert (await cli_user.run("workspace", "show", "team", "-o", "json")).json["imagePullSecrets"] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("create", "Bad_Name"), main.USAGE, "name"),
        (("create", "team", "--pool", "nope"), main.USAGE, "there is no pool nope"),
        (("create", "team", "--quota", "gpu"), main.USAGE, "is not NAME=AMOUNT"),
        (("create", "default"), main.FAILED, "exists"),
        (("set", "team"), main.USAGE, "nothing to change"),
        (("show", "nope"), main.NOT_FOUND, "there is no workspace"),
        (("rm", "default"), main.FAILED, "cannot be deleted"),
    ],
)
async def test_what_goes_wrong(cli_user: CliUser, words: tuple[str, ...], code: int, said: str) -> None:
    """A failure has its exit code and the reason."""
    ran = await cli_user.run("workspace", *words)
    assert (ran.code, said in ran.err) == (code, True), ran.err


async def test_homes_are_an_option_of_a_workspace_and_of_a_launch(world: ApiWorld, cli_user: CliUser) -> None:
    """Homes have a size, class and mode; `none` removes them, and an invalid size is refused with the option."""
    assert (await cli_user.run("workspace", "create", "team", "--home", "5Gi:fast:ReadWriteMany")).code == 0
    shown = (await world.get("/workspaces/team")).json()["home"]
    assert shown == {"size": "5Gi", "storageClass": "fast", "accessMode": "ReadWriteMany"}
    words = ("run", "-n", "team", "--image", "a", "--name", "at-home", "--detach", "--home", "--", "true")
    assert (await cli_user.run(*words)).code == 0
    assert (await world.stored("at-home", namespace="team")).spec.home
    assert (await cli_user.run("workspace", "set", "team", "--home", "none")).code == 0
    assert (await world.get("/workspaces/team")).json()["home"] is None
    refused = await cli_user.run("workspace", "set", "team", "--home", "much")
    assert (refused.code, "home.size: 'much' is not a size; write one such as 10Gi" in refused.err) == (2, True), (
        refused.err
    )
