"""`slipway replay` against a live log."""

from pathlib import Path

from slipway.cli import main
from slipway.scheduler.recorder import StreamSink
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser
from tests.support.planner import an_allocation as an_ask
from tests.support.planner import nodes
from tests.support.recording_leader import RecordingLeader as Leader


async def record_some(world: ApiWorld, count: int) -> None:
    """Record `count` ticks in the stream of pool `default`."""
    leader = Leader(StreamSink(world.streams.decisions, size_max=1 << 20)).furnish(*nodes(3))
    for number in range(count):
        leader.submit(an_ask(f"a{number}"))
        assert leader.tick().admits
    await leader.recorder.flush()


async def test_a_live_log_is_replayed_and_kept(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """A live log is replayed from the API and stored; a replay of the stored file has the same result without the
    API."""
    await record_some(world, 4)
    ran = await cli_user.run("replay")
    assert (ran.code, "ticks 1 to 4 of pool default" in ran.out) == (main.OK, True), ran.err
    kept = tmp_path / "kept"
    part = await cli_user.run(
        "replay", "--pool", "default", "--from", "2", "--to", "3", "-o", "json", "--save", str(kept)
    )
    assert (part.json["first"], part.json["last"], part.json["ticks"]) == (2, 3, 2)
    again = await cli_user.run("replay", str(kept), "--from", "2", "-o", "json")
    assert again.json == part.json


async def test_what_can_not_be_replayed(world: ApiWorld, cli_user: CliUser, tmp_path: Path) -> None:
    """An empty log, an unknown pool, invalid files and invalid arguments are refused."""
    empty = await cli_user.run("replay")
    assert (empty.code, "no recorded tick" in empty.err) == (main.USAGE, True)
    assert (await cli_user.run("replay", "--pool", "nope")).code == main.NOT_FOUND
    assert (await cli_user.run("replay", str(tmp_path / "none"))).code == main.USAGE
    assert (await cli_user.run("replay", str(tmp_path))).code == main.USAGE
    assert (await cli_user.run("replay", "--from", "x")).code == main.USAGE
    assert (await cli_user.run("replay", "--save", str(tmp_path / "no" / "where"))).code == main.USAGE
    world.server.absent = True
    away = await cli_user.run("replay")
    assert (away.code, "Redis" in away.err) == (main.FAILED, True)
