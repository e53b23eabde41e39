"""A kill can be hurried: by a second one, by `grace`, by `force`; not by one request that was sent twice."""

import msgspec
import pytest

from slipway.crd.meta import Condition
from slipway.kube.resources import ALLOCATIONS, NODES
from slipway.model.lifecycle import Event
from slipway.model.times import format_time, parse_time
from tests.support.api_world import ApiWorld


async def grace_of(world: ApiWorld, name: str) -> int | None:
    signals = (await world.stored(name)).spec.signals
    return signals.grace_s if signals is not None else None


async def test_a_second_kill_ends_the_grace(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second kill counts once the work is being ended; the same request sent again at once is no second kill."""
    id_ = (await world.launch(name="a"))["id"]
    await world.run("a")
    assert (await world.post(f"/allocations/{id_}/kill")).status_code == 202
    await world.step("a", Event.TERMINATING, reason="Killed")
    assert (await world.post(f"/allocations/{id_}/kill")).status_code == 202
    assert await grace_of(world, "a") is None
    monkeypatch.setattr("slipway.api.allocations.verbs.SECOND_KILL_AFTER_S", 0.0)
    assert (await world.post(f"/allocations/{id_}/kill")).status_code == 202
    assert await grace_of(world, "a") == 1


async def test_a_wrong_clock_does_not_delay_a_second_kill(world: ApiWorld) -> None:
    """The work was ended by a process whose clock is an hour ahead; that still counts as before now."""
    id_ = (await world.launch(name="a"))["id"]
    await world.run("a")
    await world.post(f"/allocations/{id_}/kill")
    stored = await world.step("a", Event.TERMINATING, reason="Killed")
    ring = stored.status.transitions
    ahead = msgspec.structs.replace(ring[-1], time=format_time(parse_time(ring[-1].time) + 3600))
    status = msgspec.structs.replace(stored.status, transitions=[*ring[:-1], ahead])
    await world.kube.replace_status(ALLOCATIONS, msgspec.structs.replace(stored, status=status))
    assert (await world.post(f"/allocations/{id_}/kill")).status_code == 202
    assert await grace_of(world, "a") == 1


async def test_a_grace_is_given_with_the_kill_and_only_falls(world: ApiWorld) -> None:
    """The grace is in whole seconds, at least one; a bad one is refused before anything is ended."""
    id_ = (await world.launch(name="a"))["id"]
    await world.run("a")
    refused = await world.post(f"/allocations/{id_}/kill", {"grace": "soon"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/grace")
    assert (await world.stored("a")).spec.desired == "Running"
    for given, kept in (("20s", 20), ("1m", 20), ("0s", 1)):
        assert (await world.post(f"/allocations/{id_}/kill", {"grace": given})).status_code == 202
        assert await grace_of(world, "a") == kept


async def test_force_gives_up_what_is_on_nodes_that_do_not_answer(world: ApiWorld) -> None:
    """The ranks on other nodes are killed at once; once the work has ended nothing happens."""
    id_ = (await world.launch(name="a"))["id"]
    ranks = (await world.run("a")).status.ranks or []
    node = await world.kube.get(NODES, ranks[0].node)
    silent = [Condition(type="Ready", status="Unknown")]
    status = msgspec.structs.replace(node.status, conditions=silent)
    await world.kube.replace_status(NODES, msgspec.structs.replace(node, status=status))
    assert (await world.post(f"/allocations/{id_}/kill", {"force": True})).status_code == 202
    signals = (await world.stored("a")).spec.signals
    assert signals is not None
    assert (signals.grace_s, signals.lost_nodes) == (1, [ranks[0].node])
    over = await world.step("a", Event.TERMINATED)
    assert (await world.post(f"/allocations/{id_}/kill", {"force": True})).status_code == 200
    assert await world.stored("a") == over


async def test_explain_says_until_when_a_kill_waits(world: ApiWorld) -> None:
    """Explain states the end of the grace of the pods; for a hurried kill also how long the grace lasts from the kill
    on."""
    template = {"spec": {"terminationGracePeriodSeconds": 600}}
    id_ = (await world.launch(name="a", template=template))["id"]
    await world.run("a")
    await world.post(f"/allocations/{id_}/kill")
    ending = await world.step("a", Event.TERMINATING)
    began = parse_time(ending.status.transitions[-1].time)
    until = format_time(began + 600, "seconds")
    path = f"/allocations/{id_}/explain"
    assert f"until {until} to end (600 s)" in (await world.get(path)).json()["message"]
    await world.post(f"/allocations/{id_}/kill", {"grace": "5s"})
    hurried = f"they have at most 5 s from the last kill, until {until} at the latest"
    assert hurried in (await world.get(path)).json()["message"]
