"""`slipway usage`: sums, lines, CSV."""

import csv
import io

from slipway.cli import main
from slipway.crd.v1alpha1 import Admission
from slipway.model.lifecycle import Event
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser


async def test_what_runs_is_summed_listed_and_written_as_csv(world: ApiWorld, cli_user: CliUser) -> None:
    """Usage is summed by user in a table with a total, and listed raw with ids, as CSV and as JSON."""
    ids: list[str] = []
    for user in ("ada", "bob"):
        launched = await world.launch(headers={"x-slipway-user": user})
        await world.step(launched["name"], Event.ASSIGNED)
        await world.step(launched["name"], Event.RUNNING, slots=1)
        ids.append(launched["id"])
    lines = (await cli_user.run("usage")).out.splitlines()
    assert lines[0].split()[0] == "USER"
    assert [line.split()[0] for line in lines[1:]] == ["ada", "bob", "total"]
    raw = (await cli_user.run("usage", "--raw")).out
    assert all(id_ in raw for id_ in ids)
    rows = list(csv.DictReader(io.StringIO((await cli_user.run("usage", "--by", "user,kind", "--csv")).out)))
    assert [(row["user"], row["kind"], row["admitted"]) for row in rows] == [
        ("ada", "command", "1"),
        ("bob", "command", "1"),
    ]
    only = (await cli_user.run("usage", "--owner", "ada", "-o", "json")).json
    assert only["total"]["admitted"] == 1
    assert "nothing was used" in (await cli_user.run("usage", "--to", "2020-01-01")).err


async def test_by_gpu_type_it_tells_gpu_time_alone(world: ApiWorld, cli_user: CliUser) -> None:
    """The table by GPU type contains only GPU time, not the values of a whole allocation."""
    launched = await world.launch()
    await world.step(launched["name"], Event.ASSIGNED, admission=Admission(decision_id="d1", epoch=1, flavor="h100"))
    await world.step(launched["name"], Event.RUNNING, slots=1)
    assert "no GPU was used from" in (await cli_user.run("usage", "--by", "gpuType", "--to", "2020-01-01")).err
    head, row = (await cli_user.run("usage", "--by", "gpuType")).out.splitlines()
    assert head.split() == ["GPUTYPE", "GPU", "TIME", "OF", "IT", "RUNNING"]
    assert row.split()[0] == "h100"


async def test_bad_words_say_what_would_do(cli_user: CliUser) -> None:
    """A bad argument is refused with the parameter and its values."""
    wrong = await cli_user.run("usage", "--by", "colour")
    assert (wrong.code, "user" in wrong.err) == (main.USAGE, True)
    assert (await cli_user.run("usage", "--csv", "-o", "json")).code == main.USAGE
    assert (await cli_user.run("usage", "--from", "soon")).code == main.USAGE
