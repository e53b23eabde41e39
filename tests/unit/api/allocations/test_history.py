"""Time travel: which work was where, from the objects, their streams, and the firehose for deleted work."""

from typing import Any

import msgspec
import pytest

from slipway.crd.transitions import record
from slipway.crd.v1alpha1 import RING_LENGTH, Allocation
from slipway.errors import ThrottledError
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Event
from slipway.model.times import format_time
from tests.support.api_world import ApiWorld

HOUR_S = 3600.0


async def moved(world: ApiWorld, name: str, *steps: tuple[Event, float, dict[str, Any]]) -> Allocation:
    """Write and publish transitions, each that many seconds from now."""
    found = await world.stored(name)
    for event, after_s, data in steps:
        from_start = world.clock.now() + after_s
        changes: dict[str, Any] = {"ended_at": format_time(from_start)} if event is Event.TERMINATED else {}
        found = await world.kube.replace_status(ALLOCATIONS, record(found, event, now=from_start, data=data, **changes))
        await world.publish_if_up(found, found.status.seq - 1)
    return found


def at(world: ApiWorld, after_s: float) -> str:
    return format_time(world.clock.now() + after_s)


async def test_one_user_leaves_a_place_for_others(world: ApiWorld) -> None:
    """An answer may read all events, so one user cannot have all places at a time."""
    places = world.parts.history_places
    with places.held("anybody"), places.held("anybody"), places.held("another"):
        refused = await world.get("/history")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert "3 questions about the past are in progress already" in refused.json()["detail"]
    with places.held("bob"), places.held("bob"), pytest.raises(ThrottledError, match="bob has 2 of 3"):
        places.held("bob").__enter__()
    assert (await world.get("/history")).status_code == 200


async def test_placements_at_an_earlier_time(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has the phase, the attempt and the nodes of that time. Work that had ended or did not exist yet is
    left out."""
    runs, waits = await world.launch(name="runs"), await world.launch(name="waits", queue="other")
    for launched in (runs, waits):
        await world.publish(await world.stored(launched["name"]))
    await moved(
        world,
        "runs",
        (Event.ASSIGNED, 100, {"nodes": {"n2": 1, "n1": 2}}),
        (Event.RUNNING, 200, {}),
        (Event.TERMINATED, 300, {}),
    )
    _travel(world, monkeypatch, HOUR_S)
    start = -HOUR_S
    seen: tuple[tuple[int, dict[str, tuple[str, list[str]]]], ...] = (
        (50, {"runs": ("Pending", []), "waits": ("Pending", [])}),
        (150, {"runs": ("Assigned", ["n1", "n2"]), "waits": ("Pending", [])}),
        (250, {"runs": ("Running", ["n1", "n2"]), "waits": ("Pending", [])}),
        (350, {"waits": ("Pending", [])}),
        (-50, {}),
    )
    for after_s, expected in seen:
        body = (await world.get(f"/history?at={at(world, start + after_s)}")).json()
        assert {each["name"]: (each["phase"], each["nodes"]) for each in body["items"]} == expected
        assert sum(body["counts"].values()) == len(expected)
    only = (await world.get(f"/history?at={at(world, start + 250)}&queue=other")).json()["items"]
    assert [each["name"] for each in only] == ["waits"]
    assert [each["name"] for each in (await world.get("/history")).json()["items"]] == ["waits"]


async def test_the_gpus_of_each_node_are_told_where_they_are_known(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks with the same requests have the same GPUs on each node; for ranks that differ, the places of that time are
    lost."""
    gpu = {"resources": {"nvidia.com/gpu": 4}}
    await world.launch(name="same", ranks=[{"name": "w", "count": 3, **gpu}])
    await world.launch(name="differ", ranks=[{"name": "a", "count": 1}, {"name": "b", "count": 2, **gpu}])
    for name in ("same", "differ"):
        await moved(world, name, (Event.ASSIGNED, 100, {"nodes": {"n2": 1, "n1": 2}}))
    body = (await world.get(f"/history?at={at(world, 30)}")).json()
    assert {each["name"]: each["gpus"] for each in body["items"]} == {"same": {}, "differ": {}}
    _travel(world, monkeypatch, 200)
    found = {each["name"]: each for each in (await world.get(f"/history?at={at(world, 0)}")).json()["items"]}
    assert found["same"]["ranks"] == found["differ"]["ranks"] == {"n1": 2, "n2": 1}
    assert (found["same"]["gpus"], found["differ"]["gpus"]) == ({"n1": 8, "n2": 4}, None)


async def test_events_that_left_the_ring_are_read_from_the_stream(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream has the transitions that the ring has lost; without a stream the phase is Unknown, and not made up."""
    await world.launch(name="old")
    await world.publish(await world.stored("old"))
    nothing: dict[str, Any] = {}
    flips = [(Event.UPDATED, 300.0 + number, nothing) for number in range(RING_LENGTH)]
    await moved(world, "old", (Event.ASSIGNED, 100, {"nodes": {"n1": 1}}), (Event.RUNNING, 200, {}), *flips)
    _travel(world, monkeypatch, HOUR_S)
    moment = at(world, -HOUR_S + 150)
    (known,) = (await world.get(f"/history?at={moment}")).json()["items"]
    assert (known["phase"], known["nodes"], known["source"]) == ("Assigned", ["n1"], "stream")
    world.server.absent = True
    body = (await world.get(f"/history?at={moment}")).json()
    assert [each["phase"] for each in body["items"]] == ["Unknown"]
    assert any("Redis" in each for each in body["lossy"])
    assert any("Unknown" in each for each in body["lossy"])


async def test_events_of_deleted_allocations_are_read_from_the_firehose(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted work is found as far back as the firehose goes; the answer about an earlier time states that it cannot
    know."""
    await world.launch(name="gone", headers={"x-slipway-user": "ada"})
    await world.publish(await world.stored("gone"))
    await moved(world, "gone", (Event.ASSIGNED, 100, {"nodes": {"n1": 1}}), (Event.TERMINATED, 300, {}))
    found = await world.stored("gone")
    assert found.metadata.finalizers
    bare: dict[str, Any] = {"metadata": {"finalizers": []}}
    await world.kube.patch(ALLOCATIONS, "gone", bare, namespace="default")
    await world.kube.delete(ALLOCATIONS, "gone", namespace="default")
    _travel(world, monkeypatch, HOUR_S)
    body = (await world.get(f"/history?at={at(world, -HOUR_S + 150)}")).json()
    (known,) = body["items"]
    assert (known["name"], known["phase"], known["user"], known["nodes"]) == ("gone", "Assigned", "ada", ["n1"])
    assert (known["source"], known["kind"], body["lossy"]) == ("firehose", "command", [])
    before = (await world.get(f"/history?at={at(world, -HOUR_S - 500)}")).json()
    assert (before["items"], len(before["lossy"])) == ([], 1)


@pytest.mark.parametrize("value", ["yesterday", "2026-01-02", "2999-01-01T00:00:00Z"])
async def test_a_time_is_an_instant_of_the_past(world: ApiWorld, value: str) -> None:
    """Another text gets 400, which names the parameter."""
    answer = await world.get(f"/history?at={value}")
    assert answer.status_code == 400
    assert "?at=" in answer.json()["errors"][0]["detail"]


def _travel(world: ApiWorld, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the api's clock forward."""
    now = world.clock.now
    monkeypatch.setattr(world.clock, "now", lambda: now() + seconds)
    assert msgspec.json.encode(now())
