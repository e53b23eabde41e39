"""`slipway history`: what has ended, and who stood where."""

import pytest

from slipway.cli import main
from slipway.cli.verbs.history import moment_of
from slipway.crd.transitions import record
from slipway.errors import InvalidError
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from slipway.model.times import format_time
from tests.support.api_world import ApiWorld
from tests.support.cli import Desk


async def test_what_has_ended_is_listed_newest_first(world: ApiWorld, desk: Desk) -> None:
    """With its result; what lives is not in it; ids alone with -q."""
    assert "nothing has ended" in (await desk.run("history")).err
    for number, name in enumerate(("first", "second")):
        await world.launch(name=name)
        now = world.clock.now() + number
        found = await world.stored(name)
        over = record(found, Event.TERMINATED, now=now, ended_at=format_time(now), result=Result.CANCELED)
        await world.kube.replace_status(ALLOCATIONS, over)
    await world.launch(name="lives")
    lines = (await desk.run("history")).out.splitlines()
    assert [line.split()[0].rsplit("-", 1)[0] for line in lines[1:]] == ["second", "first"]
    assert "Canceled" in lines[1]
    assert len((await desk.run("history", "-q")).out.split()) == 2
    assert len((await desk.run("history", "-q", "--limit", "1")).out.split()) == 1
    assert (await desk.run("history", "--since", "1s", "-q")).code == main.OK


async def test_who_stood_where_then(world: ApiWorld, desk: Desk) -> None:
    """The moment is said back, with what this cannot know."""
    launched = await world.launch()
    shown = await desk.run("history", "--at", "0s")
    assert launched["id"] in shown.out
    assert "1 Pending" in shown.err
    before = await desk.run("history", "--at", "2020-01-01T00:00:00Z")
    assert "nothing was there" in before.err
    assert "note:" in before.err


def test_times_and_how_long_ago() -> None:
    """A time zone is needed; what is neither says what would do."""
    assert moment_of("2026-01-02T03:04:05Z", "--at") == "2026-01-02T03:04:05Z"
    assert moment_of("2h", "--at").endswith("Z")
    for text in ("yesterday", "2026-01-02T03:04:05"):
        with pytest.raises(InvalidError):
            moment_of(text, "--at")
