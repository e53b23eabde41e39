"""`slipway node`: nodes out of use, and back."""

from slipway.cli import main
from tests.support.api_world import ApiWorld
from tests.support.cli import Desk


async def test_nodes_are_drained_disabled_and_enabled(world: ApiWorld, desk: Desk) -> None:
    """By name or all of them; the list shows the state, and what will be moved is counted."""
    launched = await world.launch()
    await world.run(launched["name"])
    done = await desk.run("node", "disable", "n1")
    assert (done.code, "(1 running there)" in done.out) == (main.OK, True)
    assert (await desk.run("node", "drain", "n2")).code == main.OK
    shown = [line.split()[:2] for line in (await desk.run("nodes")).out.splitlines()[1:]]
    assert shown == [["n1", "Disabled"], ["n2", "Draining"]]
    assert (await desk.run("node", "enable", "--all")).code == main.OK
    shown = [line.split()[:2] for line in (await desk.run("node")).out.splitlines()[1:]]
    assert shown == [["n1", "Ready"], ["n2", "Ready"]]


async def test_a_node_is_named(desk: Desk) -> None:
    """Neither none nor both a name and all; an unknown one is not found."""
    assert (await desk.run("node", "drain")).code == main.USAGE
    assert (await desk.run("node", "drain", "n1", "--all")).code == main.USAGE
    gone = await desk.run("node", "drain", "n9")
    assert (gone.code, "n9" in gone.err) == (main.NOT_FOUND, True)
