"""`terminate` and `pause`: their messages, and the requests that the api receives."""

from slipway.model.lifecycle import Event
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser

RUN = ("run", "--detach", "--image", "python:3.11", "--name", "train", "--preemptible")


async def test_terminate_says_what_it_came_to(world: ApiWorld, cli_user: CliUser) -> None:
    """`terminate` reports its result: requested, ended, or nothing to do."""
    await cli_user.run(*RUN, "--", "true")
    await world.run("train")
    await world.step("train", Event.READY, ready=True)
    asked = await cli_user.run("terminate", "train", "--reason", "maintenance")
    assert (asked.code, "was asked to save its work and end" in asked.out) == (0, True)
    signals = (await world.stored("train")).spec.signals
    assert signals is not None
    assert signals.preempt is not None
    assert signals.preempt.reason == "maintenance"
    await world.step("train", Event.TERMINATED)
    assert "had ended" in (await cli_user.run("terminate", "train")).out
    await cli_user.run("run", "--detach", "--image", "python:3.11", "--name", "other", "--", "true")
    killed = await cli_user.run("terminate", "other")
    assert (killed.code, "is being ended" in killed.out) == (0, True)
    assert (await cli_user.run("terminate", "nobody")).code == 3


async def test_pause_says_how_it_goes_on(world: ApiWorld, cli_user: CliUser) -> None:
    """`pause` reports what happens next, for a waiting and for a running allocation."""
    await cli_user.run(*RUN, "--", "true")
    waiting = await cli_user.run("pause", "train")
    assert (waiting.code, "is held until `slipway resume`" in waiting.out) == (0, True)
    await cli_user.run("resume", "train")
    await world.run("train")
    paused = await cli_user.run("pause", "train")
    assert (paused.code, "was asked to save its work" in paused.out) == (0, True)
    assert (await world.stored("train")).spec.hold
    await cli_user.run("notebook", "start", "--detach", "--name", "nb")
    await world.run("nb")
    refused = await cli_user.run("pause", "nb")
    assert (refused.code != 0, "cannot be paused" in refused.err) == (True, True)
