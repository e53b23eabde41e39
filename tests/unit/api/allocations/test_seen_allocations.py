"""A watch keeps allocations: lists of them cost no LIST, and are never older than an earlier answer or event."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from slipway.api.allocations import seen_allocations
from slipway.api.allocations.listing import ListFilter
from slipway.api.allocations.seen_allocations import KNOWN_S
from slipway.api.queues.queue_view import gpu_units_of
from slipway.crd.transitions import events_after
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Result
from slipway.model.times import format_time
from tests.support.api_world import COMMAND, ApiWorld, Json
from tests.support.clock import wait_until

READS = (
    "/queues",
    "/queues/default",
    "/queues/default/waiting",
    "/queue-stats",
    "/queue-stats?days=false",
    "/usage",
    "/usage?by=user",
    "/usage/raw",
    "/jobs",
    "/jobs/sweep",
    "/pools",
    "/nodes",
    "/workspaces",
    "/workspaces/team",
    "/allocations?active=true&sort=-createdAt",
    "/allocations?phase=Pending&sort=name",
)
ACTIVE = "/allocations?active=true&sort=name"


class AllocationListCounter:
    """Counts the LISTs of allocations, and refuses them while there is a `refusal`."""

    def __init__(self, world: ApiWorld) -> None:
        self.count = 0
        self.refusal: Exception | None = None
        world.kube.before = self._before

    async def _before(self, verb: Verb, plural: str) -> None:
        if plural == "allocations" and verb is Verb.LIST:
            self.count += 1
        if plural == "allocations" and verb in (Verb.LIST, Verb.WATCH) and self.refusal is not None:
            raise self.refusal


async def names(world: ApiWorld, path: str = ACTIVE) -> list[str]:
    """The names in a list."""
    answer = await world.get(path)
    assert answer.status_code == 200, answer.text
    return [item["name"] for item in answer.json()["items"]]


async def launched(world: ApiWorld, name: str, **body: Any) -> Json:
    """A launch of this name."""
    return await world.launch(name=name, **body)


async def ended(world: ApiWorld, name: str) -> Allocation:
    """Let the allocation run and end."""
    if (await world.stored(name)).status.phase is Phase.PENDING:
        await world.step(name, Event.ASSIGNED)
    await world.step(name, Event.RUNNING)
    return await world.step(name, Event.TERMINATED, result=Result.SUCCEEDED)


def last_event(allocation: Allocation) -> AllocationEvent:
    """The event of the allocation's last transition."""
    return events_after(allocation, allocation.status.seq - 1)[-1]


async def test_lists_of_what_has_not_ended_cost_no_call(world: ApiWorld) -> None:
    """Queues, pools, nodes, workloads, jobs, usage and workspaces, a dry run, and the search for the beginning of an id
    read what the watch keeps, however often they are asked for."""
    id_ = (await launched(world, "waits"))["id"]
    assert await names(world) == ["waits"]
    await world.post("/jobs", {"name": "sweep"})
    await world.post("/workspaces", {"name": "team", "quota": {"nvidia.com/gpu": 4}})
    lists = AllocationListCounter(world)
    for path in READS * 2:
        assert (await world.get(path)).status_code == 200
    assert (await world.post("/allocations?dryRun=true", COMMAND)).status_code == 200
    assert lists.count == 0
    # The text may be a name as well: that is one LIST, of that name alone.
    assert (await world.get(f"/allocations/{id_[:4]}")).json()["id"] == id_
    assert lists.count == 1


async def test_what_ends_or_is_deleted_leaves_the_lists_of_what_lives(world: ApiWorld) -> None:
    """Ended and deleted allocations leave the lists as soon as the watch shows it."""
    for name in ("a", "b", "c"):
        await launched(world, name)
    await ended(world, "a")
    await world.kube.patch(ALLOCATIONS, "b", {"metadata": {"finalizers": []}}, namespace="default")
    await world.kube.delete(ALLOCATIONS, "b", namespace="default")
    lists = AllocationListCounter(world)
    assert await names(world) == ["c"]
    assert (await world.get("/queues/default/waiting")).json()["count"] == 1
    assert lists.count == 0


async def test_an_own_write_is_in_the_next_answer(world: ApiWorld) -> None:
    """While the watch is late, the answer is a LIST."""
    await launched(world, "old")
    world.kube.is_stalled = True
    await launched(world, "new")
    assert await names(world) == ["new", "old"]
    assert (await world.http.patch("/api/v1/allocations/old", json={"priority": 70})).status_code == 200
    waiting = (await world.get("/queues/default/waiting")).json()["items"]
    assert {item["name"]: item["priority"] for item in waiting} == {"new": 50, "old": 70}
    assert (await world.http.delete("/api/v1/allocations/new")).status_code < 300
    assert await names(world, "/queues/default/waiting") == ["old"]


async def test_after_the_watch_has_shown_a_write_nobody_lists(world: ApiWorld) -> None:
    """The api forgets what the watch was late with, once the watch shows it."""
    await launched(world, "old")
    world.kube.is_stalled = True
    await launched(world, "new")
    world.kube.is_stalled = False
    await launched(world, "newer")
    assert await names(world) == ["new", "newer", "old"]
    lists = AllocationListCounter(world)
    assert await names(world) == ["new", "newer", "old"]
    assert lists.count == 0


async def test_a_published_event_is_in_the_next_answer(world: ApiWorld) -> None:
    """A page that asks because of an event does not get an answer from before it."""
    await launched(world, "job")
    world.kube.is_stalled = True
    moved = await world.step("job", Event.ASSIGNED)
    world.parts.seen.heard(last_event(moved))
    (item,) = (await world.get(ACTIVE)).json()["items"]
    assert item["phase"] == "Assigned"
    over = await ended(world, "job")
    world.parts.seen.heard(last_event(over))
    assert await names(world) == []


async def test_events_that_the_watch_already_showed_cause_no_list(world: ApiWorld) -> None:
    """A client that resumes a stream gets events which the watch showed long ago: answers do not become LISTs for
    that."""
    await launched(world, "job")
    first, *_, last = events_after(await ended(world, "job"), 1)
    assert await names(world) == []
    lists = AllocationListCounter(world)
    world.parts.seen.heard(msgspec.structs.replace(first, time=format_time(world.clock.now() - KNOWN_S - 1)))
    assert (await names(world), lists.count) == ([], 0)
    for event in (first, last):
        world.parts.seen.heard(event)
    assert (await names(world), lists.count) == ([], 0)


async def test_an_event_of_what_is_gone_is_no_news(world: ApiWorld) -> None:
    """An allocation is deleted soon after its end: the watch may show that before the events are sent."""
    await launched(world, "job")
    event = last_event(await ended(world, "job"))
    await world.kube.patch(ALLOCATIONS, "job", {"metadata": {"finalizers": []}}, namespace="default")
    await world.kube.delete(ALLOCATIONS, "job", namespace="default")
    assert await names(world) == []
    lists = AllocationListCounter(world)
    world.parts.seen.heard(event)
    assert (await names(world), lists.count) == ([], 0)


async def test_what_has_ended_is_read_once_for_a_page(world: ApiWorld) -> None:
    """The view has a short form of ended work: the items of a page are read whole by their names, once for all
    callers."""
    for name in ("a", "b", "c"):
        await launched(world, name)
        await ended(world, name)
    path = "/allocations?phase=Terminated&sort=-name&limit=2"
    calls, lists = Counter[Verb](), AllocationListCounter(world)

    async def count(verb: Verb, plural: str) -> None:
        calls[verb] += plural == "allocations"

    world.kube.before = count
    first = (await world.get(path)).json()
    assert [item["name"] for item in first["items"]] == ["c", "b"]
    assert all(item["spec"]["template"] and item["status"]["transitions"] for item in first["items"])
    assert (await world.get(path)).json() == first
    rest = (await world.get(f"{path}&continue={first['metadata']['continue']}")).json()
    assert [item["name"] for item in rest["items"]] == ["a"]
    assert (calls, lists.count) == ({Verb.GET: 3}, 0)


async def test_of_a_long_page_of_what_has_ended_nothing_is_read_alone(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long page is one LIST. On a short page, allocations that were deleted in between are left out."""
    for name in ("a", "b"):
        await launched(world, name)
        await ended(world, name)
    path = "/allocations?sort=name"
    lists = AllocationListCounter(world)
    monkeypatch.setattr(seen_allocations, "READ_MAX", 1)
    assert await names(world, path) == ["a", "b"]
    assert lists.count == 1
    monkeypatch.setattr(seen_allocations, "READ_MAX", 2)
    world.kube.is_stalled = True
    await world.kube.patch(ALLOCATIONS, "a", {"metadata": {"finalizers": []}}, namespace="default")
    await world.kube.delete(ALLOCATIONS, "a", namespace="default")
    assert await names(world, path) == ["b"]
    assert lists.count == 1


async def test_while_the_watch_is_interrupted_answers_are_lists(world: ApiWorld) -> None:
    """The answers are current, and fail as a LIST does, with the message of the API server."""
    await launched(world, "one")
    lists = AllocationListCounter(world)
    lists.refusal, world.kube.closes_watches = UnavailableError("the API server is away"), True
    await world.step("one", Event.ASSIGNED)
    await wait_until(lambda: not world.parts.seen.is_kept, "the watch to break")
    answer = await world.get("/queues")
    assert answer.status_code == 503
    assert "the API server is away" in answer.json()["detail"]
    lists.refusal = None
    assert (await world.get("/queues")).status_code == 200
    assert lists.count > 0


async def test_when_more_is_known_than_is_noted_answers_are_lists(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a burst that the watch is late with, no allocation is missing."""
    monkeypatch.setattr(seen_allocations, "AHEAD_MAX", 1)
    await launched(world, "a")
    world.kube.is_stalled = True
    for name in ("b", "c", "d"):
        await launched(world, name)
    assert await names(world) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "query",
    [
        "active=true",
        "active=true&queue=other",
        "active=true&pool=default",
        "active=true&workspace=default",
        "active=true&labelSelector=team=a",
        "phase=Pending",
        "phase=Assigned,Pending",
        "phase=Pending,Terminated",
        "phase=Terminated&active=true",
        "phase=Pending,Terminated&active=true",
        "active=true&user=nobody",
        "result=Succeeded",
        "phase=Terminated&search=c",
        "kind=command",
    ],
)
async def test_the_view_answers_as_the_api_server_does(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """The view and the API server give the same names, for every filter."""
    await launched(world, "a", labels={"team": "a"})
    await launched(world, "b", queue="other")
    await launched(world, "c")
    await world.step("a", Event.ASSIGNED)
    await ended(world, "c")
    path = f"/allocations?{query}&sort=-name"
    kept = await names(world, path)
    monkeypatch.setattr(ListFilter, "is_of_view", False)
    assert kept == await names(world, path)


async def test_gpus_are_counted_once_for_each_version(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs of ten thousand waiting allocations are not counted anew for each caller; those of a changed one are."""
    counts = Counter[str]()

    def counting(allocation: Allocation) -> int:
        counts[allocation.metadata.name] += 1
        return gpu_units_of(allocation)

    monkeypatch.setattr(seen_allocations, "gpu_units_of", counting)
    await launched(world, "a")
    await launched(world, "b")
    for _ in range(3):
        await world.get("/queue-stats?days=false")
    await world.http.patch("/api/v1/allocations/a", json={"priority": 70})
    await world.get("/queue-stats?days=false")
    assert counts == {"a": 2, "b": 1}
