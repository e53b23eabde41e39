"""`forget`: an admin gives up ranks on machines that are off."""

import msgspec

from slipway.crd.meta import Condition
from slipway.kube.resources import NODES
from slipway.model.lifecycle import Event
from tests.support.api_world import ApiWorld


async def silence(world: ApiWorld, name: str) -> None:
    """Set the node's Ready to Unknown, as the node lifecycle controller does for a silent node."""
    node = await world.kube.get(NODES, name)
    ready = Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown")
    await world.kube.replace_status(
        NODES, msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, conditions=[ready]))
    )


async def test_nodes_that_do_not_answer_are_given_up(world: ApiWorld) -> None:
    """The nodes of live ranks are recorded by name, for this attempt; a second call changes nothing."""
    launched = await world.launch(name="work", ranks=[{"count": 2}])
    await world.run("work")
    await silence(world, "n1")
    await silence(world, "n2")
    answer = await world.post(f"/allocations/{launched['id']}/forget")
    signals = (await world.stored("work")).spec.signals
    assert signals is not None
    assert (answer.status_code, signals.lost_nodes, signals.attempt) == (202, ["n1"], 1)
    before = (await world.stored("work")).metadata.version
    assert (await world.post(f"/allocations/{launched['id']}/forget")).status_code == 202
    assert (await world.stored("work")).metadata.version == before


async def test_what_answers_is_not_given_up(world: ApiWorld) -> None:
    """The call gets 409, with what to do instead; also after the work has ended."""
    launched = await world.launch(name="work")
    path = f"/allocations/{launched['id']}/forget"
    assert (await world.post(path)).status_code == 409
    await world.run("work")
    refused = await world.post(path)
    assert (refused.status_code, "kill it" in refused.json()["detail"]) == (409, True)
    await world.step("work", Event.TERMINATED)
    assert (await world.post(path)).status_code == 409
    assert (await world.post("/allocations/nobody-00000000/forget")).status_code == 404


async def test_a_node_that_does_not_answer_is_explained(world: ApiWorld) -> None:
    """For running work `explain` names its silent nodes and says what an admin may do; it names no other nodes."""
    launched = await world.launch(name="work", ranks=[{"count": 2}])
    await world.run("work")
    path = f"/allocations/{launched['id']}/explain"
    assert (await world.get(path)).json()["message"] == "running"
    await silence(world, "n1")
    await silence(world, "n2")
    why = (await world.get(path)).json()
    assert why["message"] == "running; node n1 does not answer, so it is unknown whether its ranks still run"
    assert "slipway forget" in why["change"][0]["detail"]
