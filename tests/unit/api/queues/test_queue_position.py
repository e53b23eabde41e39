"""Moves ahead of and behind: only the object that moves is written, and the order that results is the scheduler's."""

import asyncio
from typing import Any

import pytest

from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, JOBS
from tests.support.api_world import ApiWorld


async def names(world: ApiWorld, queue: str = "default") -> list[str]:
    """The names of the waiting allocations, in the order of the queue."""
    return [each["name"] for each in (await world.get(f"/queues/{queue}")).json()["waiting"]]


async def launched(world: ApiWorld, *order: str, **body: Any) -> dict[str, str]:
    """Launch allocations that wait, and return {name: id}."""
    return {name: (await world.launch(name=name, **body))["id"] for name in order}


async def test_an_allocation_moves_ahead_of_and_behind_another(world: ApiWorld) -> None:
    """The allocation moves also between two that were created in the same second; the others are not written."""
    ids = await launched(world, "a", "b", "c", "d")
    before = await names(world)
    last, second = before[-1], before[1]
    versions = {name: (await world.stored(name)).metadata.resource_version for name in before}
    answer = await world.post(f"/allocations/{ids[last]}/move", {"aheadOf": ids[second]})
    assert answer.status_code == 200, answer.text
    assert await names(world) == [before[0], last, second, before[2]]
    await world.post(f"/allocations/{ids[before[0]]}/move", {"behind": ids[before[2]]})
    assert await names(world) == [last, second, before[2], before[0]]
    for name in (second, before[2]):
        assert (await world.stored(name)).metadata.resource_version == versions[name]


async def test_moving_to_the_current_position_writes_nothing(world: ApiWorld) -> None:
    """There is no new version, so no process is woken."""
    ids = await launched(world, "a", "b")
    first, second = await names(world)
    version = (await world.stored(first)).metadata.resource_version
    assert (await world.post(f"/allocations/{ids[first]}/move", {"aheadOf": ids[second]})).status_code == 200
    assert (await world.stored(first)).metadata.resource_version == version


async def test_a_job_moves_with_all_that_waits_of_it(world: ApiWorld) -> None:
    """The place is written on the job; a member that was moved by itself keeps its own place."""
    for name in ("j", "k"):
        await world.post("/jobs", {"name": name})
    await launched(world, "k1", "k2", job="k")
    await launched(world, "j1", "j2", job="j")
    await world.post("/jobs/j/move", {"behind": "k"})
    answer = await world.post("/jobs/j/move", {"aheadOf": "k"})
    assert answer.status_code == 200, answer.text
    order = await names(world)
    assert {*order[:2]} == {"j1", "j2"}
    assert (await world.kube.get(JOBS, "j", namespace="default")).spec.queue_position
    assert (await world.kube.get(JOBS, "k", namespace="default")).spec.queue_position == ""
    moved = (await world.post("/jobs/j/move", {"behind": "k"})).json()["job"]
    assert {*(await names(world))[2:]} == {"j1", "j2"}
    assert (moved["ahead"], moved["jobsAhead"]) == (2, 1)


async def test_a_job_and_an_allocation_move_beside_each_other(world: ApiWorld) -> None:
    """A job may be named with its workspace."""
    await world.post("/jobs", {"name": "j"})
    ids = await launched(world, "lone")
    await launched(world, "j1", "j2", job="j")
    await world.post("/jobs/j/move", {"aheadOf": ids["lone"]})
    assert (await names(world))[-1] == "lone"
    await world.post(f"/allocations/{ids['lone']}/move", {"aheadOf": "default/j"})
    assert (await names(world))[0] == "lone"


async def test_moving_beside_another_priority_takes_that_priority(world: ApiWorld) -> None:
    """Priority goes before place, so the place alone would not be enough; both are one write."""
    ids = await launched(world, "low")
    ids |= await launched(world, "high", priority=80)
    moved = (await world.post(f"/allocations/{ids['low']}/move", {"aheadOf": ids["high"]})).json()
    assert moved["priority"] == 80
    assert await names(world) == ["low", "high"]


async def test_what_can_not_be_moved_says_why(world: ApiWorld) -> None:
    """A move is refused beside work of another queue, work that runs or itself, and for a member whose job gives the
    priority."""
    ids = await launched(world, "a", "b", "runs")
    ids |= await launched(world, "far", queue="other")
    ids |= await launched(world, "urgent", priority=90)
    await world.post("/jobs", {"name": "j", "priority": 10})
    ids |= await launched(world, "member", job="j")
    await world.run("runs")
    cases = [
        ("a", ids["far"], "do not wait in the same queue"),
        ("a", ids["a"], "next to itself"),
        ("a", ids["runs"], "no allocation of"),
        ("runs", ids["a"], "only waiting allocations have a place"),
        ("member", ids["urgent"], "move the job instead"),
    ]
    for name, anchor, said in cases:
        answer = await world.post(f"/allocations/{ids[name]}/move", {"aheadOf": anchor})
        assert (answer.status_code, said in answer.json()["detail"]) == (409, True), answer.text
    assert (await world.post(f"/allocations/{ids['a']}/move", {"behind": "nobody"})).status_code == 404


@pytest.mark.parametrize("body", [{}, {"aheadOf": "a", "behind": "b"}, {"aheadOf": 3}, {"before": "a"}])
async def test_a_move_names_exactly_one_neighbour(world: ApiWorld, body: dict[str, Any]) -> None:
    """A move with neither or both, or with an unknown field, is refused by the field."""
    await launched(world, "a")
    answer = await world.post("/allocations/a/move", body)
    assert answer.status_code in (400, 422)
    assert answer.json()["errors"]


async def test_a_batch_applies_what_it_can_and_joins_the_errors(world: ApiWorld) -> None:
    """Each update has an item; the refused ones are named together."""
    await world.post("/jobs", {"name": "j"})
    ids = await launched(world, "a", "b")
    first, second = await names(world)
    updates = [
        {"job": "j", "priority": 70, "weight": 3},
        {"job": "none", "weight": 3},
        {"allocation": ids[second], "aheadOf": ids[first]},
        {"allocation": ids["a"], "weight": 3},
        {"allocation": ids["a"]},
        {"job": "j", "allocation": ids["a"], "priority": 3},
        {"allocation": ids["b"], "priority": 60},
    ]
    body = (await world.post("/jobs/batch", {"updates": updates})).json()
    assert [item["ok"] for item in body["items"]] == [True, False, True, False, False, False, True]
    assert body["failed"] == 4
    assert "none" in body["error"]
    assert "only jobs have weight and maxSlots" in body["error"]
    job = (await world.get("/jobs/j")).json()
    assert (job["priority"], job["weight"]) == (70, 3)
    assert (await world.stored("b")).spec.priority == 60
    assert (await world.post("/jobs/batch", {"updates": []})).status_code == 422
    assert (await world.post("/jobs/batch", {"updates": [{"job": "j", "prio": 1}]})).status_code == 422


async def test_a_batch_answers_also_when_its_allocations_are_deleted_meanwhile(world: ApiWorld) -> None:
    """The answer states what was changed, also when an allocation is deleted between the change and the answer."""
    await launched(world, "a", "b")

    async def deleted(verb: Verb, plural: str) -> None:
        if (verb, plural) == (Verb.PATCH, ALLOCATIONS.plural):
            world.kube.after = nothing
            await world.kube.delete(ALLOCATIONS, "a", namespace="default")
            await world.kube.patch(ALLOCATIONS, "a", {"metadata": {"finalizers": None}}, namespace="default")

    async def nothing(_verb: Verb, _plural: str) -> None:
        return None

    world.kube.after = deleted
    updates = [{"allocation": "a", "priority": 60}, {"allocation": "b", "priority": 61}]
    answer = await world.post("/jobs/batch", {"updates": updates})
    assert answer.status_code == 200, answer.text
    assert [item["ok"] for item in answer.json()["items"]] == [True, True]
    assert await world.names() == ["b"]
    assert (await world.stored("b")).spec.priority == 61


async def test_moves_at_the_same_moment_all_count(world: ApiWorld) -> None:
    """Each move is decided again on what the others have left; no caller gets a conflict about a version that it never
    named."""
    ids = await launched(world, "a", "b", "c", "d")
    first, *others = await names(world)
    moves = [world.post(f"/allocations/{ids[first]}/move", {"behind": ids[each]}) for each in others]
    changes = [world.http.patch(f"/api/v1/allocations/{ids[first]}", json={"hold": value}) for value in (True, False)]
    answers = await asyncio.gather(*moves, *changes)
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    await world.post("/jobs", {"name": "j"})
    changed = await asyncio.gather(
        *(world.http.patch("/api/v1/jobs/j", json={"weight": weight}) for weight in (2, 3, 4)),
        world.http.patch("/api/v1/jobs/j", json={"maxSlots": 7}),
    )
    assert [answer.status_code for answer in changed] == [200] * 4
    assert (await world.get("/jobs/j")).json()["maxSlots"] == 7
