"""Templates and jobs from the command, against the real api."""

from pathlib import Path

from slipway.cli import main
from slipway.kube.resources import JOBS
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser

BODY = "image: python:3.11\nenv:\n  EPOCHS: '3'\n"


async def test_a_template_is_set_shown_and_removed(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """`set` adds and then replaces a template; `show` prints what `set -f` accepts; `rm` removes it."""
    file = tmp_path / "team.yaml"
    file.write_text(BODY)
    added = await cli_user.run("template", "set", "team", "-f", str(file))
    replaced = await cli_user.run("template", "set", "team", "-f", str(file))
    assert (added.out, replaced.out) == (
        "template team of workspace default is added\n",
        "template team of workspace default is replaced\n",
    )
    assert (await cli_user.run("template", "show", "team")).out == BODY
    listed = await cli_user.run("template", "ls")
    assert listed.out.splitlines()[1].split()[:2] == ["team", "default"]
    assert listed.out.splitlines()[1].endswith("env image")
    assert (await cli_user.run("templates", "-q")).out == "team\n"
    assert (await cli_user.run("template", "rm", "team")).code == 0
    assert (await cli_user.run("template", "show", "team")).code == main.NOT_FOUND


async def test_a_launch_takes_what_its_template_says(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """A launch uses the fields of its template, which the request overrides."""
    (tmp_path / "team.yaml").write_text(BODY)
    assert (await cli_user.run("template", "set", "team", "-f", f"{tmp_path}/team.yaml")).code == 0
    words = ("--template", "team", "--env", "SEED=1", "--detach", "--name", "train")
    assert (await cli_user.run("run", *words, "--", "true")).code == 0
    assert (await world.stored("train")).spec.env == {"EPOCHS": "3", "SEED": "1"}


async def test_what_is_wrong_with_a_template_is_named(cli_user: CliUser, tmp_path: Path) -> None:
    """The error of a bad template names the cause: a missing file, a missing name, an unknown field, or a field that
    belongs to a launch."""
    for words, said in (
        (("template", "set", "team"), "--filename: no file is given"),
        (("template", "show"), "no template is named; write: slipway template show NAME"),
        (("template", "set", "team", "-f", f"{tmp_path}/none.yaml"), "cannot be read"),
    ):
        refused = await cli_user.run(*words)
        assert refused.code == main.USAGE, words
        assert said in refused.err
    for text, said in (("imagee: a\n", "body.imagee"), ("name: a\n", "body.name")):
        (tmp_path / "bad.yaml").write_text(text)
        refused = await cli_user.run("template", "set", "team", "-f", f"{tmp_path}/bad.yaml")
        assert refused.code == main.USAGE
        assert said in refused.err


async def test_jobs_are_listed_with_what_they_hold(world: ApiWorld, cli_user: CliUser) -> None:
    """Jobs are listed with their limits and waiting allocations; without jobs the output explains what a job is."""
    assert "there are no jobs" in (await cli_user.run("job", "ls")).err
    job = {"metadata": {"name": "sweep", "namespace": "default"}, "spec": {"maxSlots": 4, "priority": 70}}
    await world.kube.create(JOBS, job)
    assert (await cli_user.run("run", "--image", "a", "--job", "sweep", "--detach", "--", "true")).code == 0
    row = (await cli_user.run("job", "ls")).out.splitlines()[1].split()
    assert row == ["sweep", "default", "Queued", "1", "0", "1", "0", "0", "4", "70", "1"]
    assert (await cli_user.run("jobs", "-o", "json")).json["items"][0]["name"] == "sweep"
