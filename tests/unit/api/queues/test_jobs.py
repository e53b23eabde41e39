"""Jobs over the API: made, shown with their places, changed, removed; a change does not end running work."""

from typing import Any

import pytest

from slipway.kube.resources import JOBS, RESOURCE_POOLS
from slipway.model.lifecycle import Event
from tests.support.api_world import ApiWorld

TRAINING: dict[str, Any] = {"kind": "training"}


async def a_job(world: ApiWorld, name: str = "j", **body: Any) -> dict[str, Any]:
    answer = await world.post("/jobs", {"name": name, **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def patched(world: ApiWorld, name: str, body: dict[str, Any], **headers: str) -> Any:
    return await world.http.patch(f"/api/v1/jobs/{name}", json=body, headers=headers)


async def test_a_job_is_made_shown_and_removed(world: ApiWorld) -> None:
    """The API makes the same object as kubectl would; a taken name and an unknown one say what to do."""
    made = await a_job(world, maxSlots=4, priority=60, weight=2)
    assert (made["state"], made["maxSlots"], made["priority"], made["weight"], made["members"]) == (
        "Idle",
        4,
        60,
        2,
        [],
    )
    stored = await world.kube.get(JOBS, "j", namespace="default")
    assert (stored.spec.max_slots, stored.spec.priority, stored.spec.weight) == (4, 60, 2)
    taken = await world.post("/jobs", {"name": "j"})
    assert (taken.status_code, "PATCH" in taken.json()["detail"]) == (409, True)
    assert (await world.http.delete("/api/v1/jobs/j")).status_code == 204
    gone = await world.get("/jobs/j")
    assert (gone.status_code, "GET /api/v1/jobs" in gone.json()["detail"]) == (404, True)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/name"),
        ({"name": "Big Job"}, "/name"),
        ({"name": "j", "slots": 3}, "/slots"),
        ({"name": "j", "priority": 1001}, "/priority"),
        ({"name": "j", "maxSlots": -1}, "/maxSlots"),
        ({"name": "j", "weight": 0}, "/weight"),
        ({"name": "j", "queuePosition": "first"}, "/queuePosition"),
        ({"name": "j", "workspace": "nowhere"}, "/workspace"),
    ],
)
async def test_a_bad_job_is_refused_by_its_field(world: ApiWorld, body: dict[str, Any], pointer: str) -> None:
    """A bad job gets 422 with the field, and never a 500."""
    answer = await world.post("/jobs", body)
    assert answer.status_code == 422, answer.text
    assert pointer in [each["pointer"] for each in answer.json()["errors"]]


async def test_a_job_shows_state_members_and_places(world: ApiWorld) -> None:
    """The furthest member gives the state; the first that waits gives the place."""
    await a_job(world, "one")
    await a_job(world, "two")
    first = await world.launch(job="one", kind="training", ranks=[{"resources": {"nvidia.com/gpu": 1}}])
    second = await world.launch(job="two")
    third = await world.launch(job="one")
    queued = (await world.get("/jobs/two")).json()
    assert (queued["state"], queued["pending"], queued["queues"]) == ("Queued", 1, ["default"])
    waiting = (await world.get("/queues/default")).json()["waiting"]
    assert [each["ahead"] for each in waiting] == [0, 1, 2]
    assert {each["jobsAhead"] for each in waiting} == {0, 1}
    assert {each["id"] for each in (await world.get("/jobs/one")).json()["members"]} == {first["id"], third["id"]}
    await world.step(first["name"], Event.ASSIGNED, admission={"decisionId": "d", "epoch": 1, "attempt": 1})
    assert (await world.get("/jobs/one")).json()["state"] == "Scheduled"
    await world.step(first["name"], Event.RUNNING)
    running = (await world.get("/jobs/one")).json()
    assert (running["state"], running["live"], running["pending"], running["slotsInUse"]) == ("Running", 1, 1, 1)
    listed = (await world.get("/jobs")).json()["items"]
    assert [(each["name"], each["state"]) for each in listed] == [("one", "Running"), ("two", "Queued")]
    assert [each["name"] for each in (await world.get("/jobs?state=Queued")).json()["items"]] == ["two"]
    assert (await world.get("/jobs?state=Odd")).status_code == 400
    assert second["id"] in [each["id"] for each in (await world.get("/jobs/two")).json()["members"]]


async def test_limits_change_and_null_takes_them_away(world: ApiWorld) -> None:
    """Fields that are not named stay; If-Match limits a change to the version that was seen."""
    made = await a_job(world, maxSlots=4, priority=60)
    changed = (await patched(world, "j", {"maxSlots": None, "weight": 3})).json()["job"]
    assert (changed["maxSlots"], changed["priority"], changed["weight"]) == (None, 60, 3)
    stale = await patched(world, "j", {"weight": 4}, **{"if-match": f'"{made["resourceVersion"]}"'})
    assert stale.status_code == 412
    assert (await patched(world, "j", {"queue": 5})).json()["errors"][0]["pointer"] == "/queue"
    assert (await patched(world, "none", {"weight": 4})).status_code == 404


async def test_a_new_priority_begins_preemptible_work_again(world: ApiWorld) -> None:
    """The ranks are asked to save their work, and another attempt follows; waiting work is only ordered anew."""
    await a_job(world, priority=50)
    runs = await world.launch(job="j", preemptible=True, **TRAINING)
    waits = await world.launch(job="j", preemptible=True, **TRAINING)
    await world.run(runs["name"])
    same = (await patched(world, "j", {"priority": 50})).json()
    assert same["preempted"] == []
    changed = (await patched(world, "j", {"priority": 70})).json()
    assert (changed["preempted"], changed["job"]["priority"]) == ([runs["id"]], 70)
    signals = (await world.stored(runs["name"])).spec.signals
    assert signals is not None
    assert signals.preempt is not None
    assert signals.preempt.requeue
    assert (await world.stored(waits["name"])).spec.signals is None


async def test_a_new_priority_is_refused_while_work_runs_that_can_not_be_preempted(world: ApiWorld) -> None:
    """A refused change changes nothing; with `interrupt: false` the priority counts from the next attempt on."""
    await a_job(world, priority=50)
    runs = await world.launch(job="j")
    await world.run(runs["name"])
    refused = await patched(world, "j", {"priority": 70, "weight": 9})
    assert refused.status_code == 409
    assert runs["id"] in refused.json()["detail"]
    assert "interrupt: false" in refused.json()["detail"]
    stored = (await world.kube.get(JOBS, "j", namespace="default")).spec
    assert (stored.priority, stored.weight) == (50, 1)
    changed = (await patched(world, "j", {"priority": 70, "interrupt": False})).json()
    assert (changed["preempted"], changed["job"]["priority"]) == ([], 70)
    assert (await world.stored(runs["name"])).spec.signals is None


async def test_a_job_moves_to_another_queue_as_far_as_it_waits(world: ApiWorld) -> None:
    """Admitted work stays in the queue that counts its quota, and the answer names it."""
    await a_job(world)
    waits, runs = await world.launch(job="j"), await world.launch(job="j")
    await world.run(runs["name"])
    await world.make_queue("other")
    answer = (await patched(world, "j", {"queue": "other"})).json()
    assert (await world.stored(waits["name"])).spec.queue == "other"
    assert (await world.stored(runs["name"])).spec.queue == "default"
    assert len(answer["unchanged"]) == 1
    assert runs["id"] in answer["unchanged"][0]


async def test_a_job_in_use_is_not_removed_but_may_be_killed_whole(world: ApiWorld) -> None:
    """Without the job, its limits would not hold for work that waits."""
    await a_job(world)
    launched = await world.launch(job="j")
    refused = await world.http.delete("/api/v1/jobs/j")
    assert (refused.status_code, launched["id"] in refused.json()["detail"]) == (409, True)
    killed = await world.post("/jobs/j/kill")
    assert (killed.status_code, killed.json()["killed"]) == (202, [launched["id"]])
    assert (await world.stored(launched["name"])).spec.desired == "Stopped"


async def test_a_queue_adds_up_the_slices_of_its_work(world: ApiWorld) -> None:
    """Eight allocations of one slice of seven are two GPUs of the queue, and a slot each."""
    slices = [{"count": 1, "resources": {"nvidia.com/mig-1g.10gb": 1}}]
    for _ in range(8):
        launched = await world.launch(ranks=slices)
        await world.run(launched["name"])
    assert (await world.get("/queues/default")).json()["slotsInUse"] == 2
    stats = (await world.get("/queue-stats")).json()["queues"]
    assert [each["slotsInUse"] for each in stats if each["queue"] == "default"] == [2]


async def test_stats_count_what_waits_and_runs(world: ApiWorld) -> None:
    """The work that waits and runs is counted per queue, and summed per pool."""
    gpus = [{"count": 2, "resources": {"nvidia.com/gpu": 1}}]
    runs, _ = await world.launch(ranks=gpus), await world.launch(ranks=gpus)
    await world.launch(queue="other")
    await world.run(runs["name"])
    stats = (await world.get("/queue-stats")).json()
    by_queue = {each["queue"]: each for each in stats["queues"]}
    assert {name: (each["queued"], each["running"]) for name, each in by_queue.items()} == {
        "default": (1, 1),
        "other": (1, 0),
    }
    assert (by_queue["default"]["slotsQueued"], by_queue["default"]["slotsInUse"]) == (2, 2)
    (pool,) = stats["pools"]
    assert (pool["pool"], pool["queued"], pool["running"]) == ("default", 2, 1)
    await world.kube.create(RESOURCE_POOLS, {"metadata": {"name": "idle"}, "spec": {}})
    assert (await world.get("/queue-stats?pool=idle")).json()["queues"] == []


@pytest.mark.parametrize("path", ["/allocations", "/allocations?dryRun=true"])
async def test_a_launch_into_a_job_that_is_not_there_is_refused(world: ApiWorld, path: str) -> None:
    """The error is at `/job`, with the jobs of the workspace and the way to make one, because no limits would bind the
    work."""
    await a_job(world, "sweep")
    answer = await world.post(path, {"kind": "shell", "job": "swep"})
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/job"
    assert error["detail"] == (
        "workspace default has no job swep; there are: sweep; create it with: slipway job create swep"
    )
