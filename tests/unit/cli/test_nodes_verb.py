"""`slipway node`: takes nodes out of use and returns them."""

from slipway.cli import main
from slipway.kube.resources import NODES
from slipway.model.resources import GPU
from tests.support.api_world import ApiWorld
from tests.support.cli import CliUser


async def test_nodes_are_drained_disabled_and_enabled(world: ApiWorld, cli_user: CliUser) -> None:
    """Nodes are drained, disabled and enabled by name or all at once; the list shows their state, and the output counts
    the allocations that will move."""
    launched = await world.launch()
    await world.run(launched["name"])
    done = await cli_user.run("node", "disable", "n1")
    assert (done.code, "(1 running there)" in done.out) == (main.OK, True)
    assert (await cli_user.run("node", "drain", "n2")).code == main.OK
    shown = [line.split()[:2] for line in (await cli_user.run("nodes")).out.splitlines()[1:]]
    assert shown == [["n1", "Disabled"], ["n2", "Draining"]]
    assert (await cli_user.run("node", "enable", "--all")).code == main.OK
    shown = [line.split()[:2] for line in (await cli_user.run("node")).out.splitlines()[1:]]
    assert shown == [["n1", "Ready"], ["n2", "Ready"]]


async def test_a_node_is_named(cli_user: CliUser) -> None:
    """Either a name or `--all` is required, not both; an unknown node is not found."""
    assert (await cli_user.run("node", "drain")).code == main.USAGE
    assert (await cli_user.run("node", "drain", "n1", "--all")).code == main.USAGE
    gone = await cli_user.run("node", "drain", "n9")
    assert (gone.code, "n9" in gone.err) == (main.NOT_FOUND, True)


async def test_slices_count_as_parts_of_gpus(world: ApiWorld, cli_user: CliUser) -> None:
    """The columns of nodes and pools count slices as parts of GPUs: here two slices of seven of one GPU."""
    await world.offer("n1", {GPU: "0", "nvidia.com/mig-1g.10gb": "7"})
    launched = await world.launch(ranks=[{"count": 2, "resources": {"nvidia.com/mig-1g.10gb": 1}}])
    await world.run(launched["name"])
    assert (await cli_user.run("nodes")).out.splitlines()[1].split()[:3] == ["n1", "Ready", "0.286/1"]
    whole = (await world.kube.get(NODES, "n2")).status.allocatable[GPU]
    assert (await cli_user.run("pool")).out.splitlines()[1].split()[2] == str(int(whole) + 1)
