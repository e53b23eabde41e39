"""`slipway wait`: for one allocation, for several, for those of a job."""

import pytest

from slipway.cli import main
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser


async def test_it_waits_for_all_of_them(world: ApiWorld, cli_user: CliUser) -> None:
    """`wait` waits for all given allocations and prints a line for each, in their order; a failed one sets the exit
    code."""
    good, bad = await world.launch(), await world.launch()
    await world.step(good["name"], Event.TERMINATED, result=Result.SUCCEEDED)
    assert (await cli_user.run("wait", good["id"])).code == main.OK
    await world.step(bad["name"], Event.TERMINATED, result=Result.FAILED)
    both = await cli_user.run("wait", good["id"], bad["id"])
    assert both.out.splitlines() == [f"{good['id']} Succeeded", f"{bad['id']} Failed"]
    assert both.code == main.FAILED


async def test_it_waits_for_what_is_in_a_job(world: ApiWorld, cli_user: CliUser) -> None:
    """`wait` waits for the allocations of a job, such as the launches of an array."""
    await world.post("/jobs", {"name": "sweep"})
    inside = [await world.launch(job="sweep") for _ in range(2)]
    other = await world.launch()
    for each in inside:
        await world.step(each["name"], Event.TERMINATED, result=Result.SUCCEEDED)
    ran = await cli_user.run("wait", "--job", "sweep")
    assert (ran.code, len(ran.out.splitlines()), other["id"] in ran.out) == (main.OK, 2, False)


async def test_the_time_is_that_of_all_together(world: ApiWorld, cli_user: CliUser) -> None:
    """The timeout is for all together: the allocations that did not reach the phase are named, and the exit code is
    that of a timeout."""
    ids = [(await world.launch())["id"] for _ in range(2)]
    ran = await cli_user.run("wait", *ids, "--timeout", "50ms")
    assert ran.code == main.TIMED_OUT
    assert all(f"{id_} is not terminated after 50ms" in ran.err for id_ in ids)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), main.USAGE, "give at least one ID, or --job J, not both"),
        (("--job", "none"), main.USAGE, "workspace default has no job none"),
        (("a-b", "--job", "sweep"), main.USAGE, "give at least one ID, or --job J, not both"),
        (("no-such", "b-c"), main.NOT_FOUND, "there is no allocation 'no-such'"),
    ],
)
async def test_what_is_waited_for_is_named(cli_user: CliUser, words: tuple[str, ...], code: int, said: str) -> None:
    """No argument, an unknown job, or an unknown ID is an error at once; so are IDs together with a job."""
    ran = await cli_user.run("wait", *words)
    assert (ran.code, ran.out, said in ran.err) == (code, "", True), ran.err
