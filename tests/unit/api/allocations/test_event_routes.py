"""Events: in order, each once, resumable, ended by the end; with Redis and without."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar

import httpx2
import msgspec
import pytest

from slipway.api.allocations.event_feed import EventFeed
from slipway.api.allocations.lookup import Lookup
from slipway.errors import DeniedError
from slipway.kube.resources import ALLOCATIONS, Resource
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.runtime.clock import SeededRandom
from slipway.streams import keys
from tests.support.api_world import ApiWorld
from tests.support.clock import wait_until
from tests.support.http_stub import serve_app
from tests.support.kube_core import CoreKube

T = TypeVar("T")
JSON = {"accept": "application/json"}


class Reader:
    """A client that reads server-sent events in the background."""

    def __init__(self, client: httpx2.AsyncClient, path: str, last_id: str = "") -> None:
        self.ids: list[str] = []
        self.names: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.status = 0
        self._client, self._path = client, path
        self._headers = {"last-event-id": last_id} if last_id else {}
        self.task = asyncio.ensure_future(self._run())

    @property
    def seqs(self) -> list[int]:
        return [event["data"]["seq"] for event in self.events]

    async def _run(self) -> None:
        async with self._client.stream("GET", self._path, headers=self._headers) as response:
            self.status = response.status_code
            async for line in response.aiter_lines():
                if line.startswith("id: "):
                    self.ids.append(line.removeprefix("id: "))
                elif line.startswith("event: "):
                    self.names.append(line.removeprefix("event: "))
                elif line.startswith("data: "):
                    self.events.append(msgspec.json.decode(line.removeprefix("data: ")))

    async def aclose(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


class RefusingKube(CoreKube):
    """A client that the API server refuses until it `knows_roles`."""

    knows_roles = False
    refused = 0

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        if self.knows_roles:
            return await super().get(resource, name, namespace=namespace)
        self.refused += 1
        raise DeniedError(f'User "api" cannot get resource "{resource.plural}"')


@asynccontextmanager
async def listening(world: ApiWorld) -> AsyncGenerator[httpx2.AsyncClient, None]:
    """The api on a real socket: streams need one."""
    async with (
        serve_app(world.app, before_stop=world.stop.set) as url,
        httpx2.AsyncClient(base_url=url, timeout=10) as client,
    ):
        yield client


@pytest.mark.parametrize("is_absent", [False, True], ids=["redis", "no-redis"])
async def test_a_stream_ends_with_its_allocation(world: ApiWorld, is_absent: bool) -> None:
    """Past and new events are sent in order and once; then the stream ends by itself."""
    world.server.absent = is_absent
    answer = await world.launch()
    await world.publish_if_up(await world.stored(answer["name"]))
    async with listening(world) as client:
        reader = Reader(client, f"/api/v1/allocations/{answer['id']}/events")
        await wait_until(lambda: reader.seqs == [1], "the first event")
        await world.publish_if_up(await world.run(answer["name"]), after=1)
        await wait_until(lambda: reader.seqs == [1, 2, 3], "the running event")
        await world.publish_if_up(await world.step(answer["name"], Event.TERMINATED), after=3)
        async with asyncio.timeout(5):
            await reader.task
        assert reader.seqs == [1, 2, 3, 4]
        assert [event["type"].rpartition(".")[2] for event in reader.events] == [
            "requested",
            "assigned",
            "running",
            "terminated",
        ]
        assert all(event["subject"] == answer["id"] for event in reader.events)


@pytest.mark.parametrize("is_absent", [False, True], ids=["redis", "no-redis"])
async def test_a_reader_resumes_where_it_stopped(world: ApiWorld, is_absent: bool) -> None:
    """With Last-Event-ID there is no gap and no repetition; after the end there is 204, so that no browser
    reconnects."""
    world.server.absent = is_absent
    answer = await world.launch()
    await world.run(answer["name"])
    await world.publish_if_up(await world.step(answer["name"], Event.TERMINATED))
    path = f"/api/v1/allocations/{answer['id']}/events"
    async with listening(world) as client:
        first = Reader(client, path)
        await first.task
        assert first.seqs == [1, 2, 3, 4]
        second = Reader(client, path, first.ids[1])
        await second.task
        assert second.seqs == [3, 4]
        last = Reader(client, path, first.ids[-1])
        await last.task
        assert (last.status, last.seqs) == (204, [])


async def test_a_stream_that_lags_is_completed_from_the_object(world: ApiWorld) -> None:
    """The watcher has published only the first event; the object knows more."""
    answer = await world.launch()
    await world.publish(await world.stored(answer["name"]))
    await world.run(answer["name"])
    page = (await world.get(f"/allocations/{answer['id']}/events", **JSON)).json()
    assert [event["data"]["seq"] for event in page["items"]] == [1, 2, 3]


async def test_redis_may_come_and_go_under_a_stream(world: ApiWorld) -> None:
    """No event is missed, and none is sent twice."""
    answer = await world.launch()
    await world.publish(await world.stored(answer["name"]))
    async with listening(world) as client:
        reader = Reader(client, f"/api/v1/allocations/{answer['id']}/events")
        await wait_until(lambda: reader.seqs == [1], "the first event")
        world.server.absent = True
        running = await world.run(answer["name"])
        await wait_until(lambda: reader.seqs == [1, 2, 3], "events without Redis")
        world.server.flush()
        world.server.absent = False
        await world.publish(running)
        await world.publish(await world.step(answer["name"], Event.TERMINATED), after=3)
        async with asyncio.timeout(8):
            await reader.task
        assert reader.seqs == [1, 2, 3, 4]


async def test_a_reader_outlasts_an_api_server_that_does_not_know_the_roles_yet(world: ApiWorld) -> None:
    """An API server that has just started refuses everybody for a moment: the events go on when it accepts us again."""
    world.server.absent = True
    answer = await world.launch()
    kube = RefusingKube(world.core, random=SeededRandom(1), logs=world.pod_logs, accounts=world.accounts)
    feed = EventFeed(world.streams.events, Lookup(kube), world.clock)
    seqs: list[int] = []

    async def emit(event: AllocationEvent) -> None:
        seqs.append(event.seq)

    following = asyncio.ensure_future(feed.follow(await world.stored(answer["name"]), after=0, emit=emit))
    await wait_until(lambda: kube.refused > 0, "a refusal")
    kube.knows_roles = True
    await world.run(answer["name"])
    await world.step(answer["name"], Event.TERMINATED)
    async with asyncio.timeout(8):
        await following
    assert seqs == [1, 2, 3, 4]


async def test_a_stream_ends_when_the_object_is_gone(world: ApiWorld) -> None:
    """The object was deleted, so no event can follow."""
    world.server.absent = True
    answer = await world.launch()
    async with listening(world) as client:
        reader = Reader(client, f"/api/v1/allocations/{answer['id']}/events")
        await wait_until(lambda: reader.seqs == [1], "the first event")
        await world.kube.patch(ALLOCATIONS, answer["name"], {"metadata": {"finalizers": []}}, namespace="default")
        await world.kube.delete(ALLOCATIONS, answer["name"], namespace="default")
        async with asyncio.timeout(5):
            await reader.task


async def test_streams_end_when_the_process_drains(world: ApiWorld) -> None:
    """A client then reconnects to another replica with its last id."""
    answer = await world.launch()
    async with listening(world) as client:
        reader = Reader(client, f"/api/v1/allocations/{answer['id']}/events")
        await wait_until(lambda: reader.seqs == [1], "the first event")
        world.stop.set()
        async with asyncio.timeout(2):
            await reader.task


async def test_a_reader_that_leaves_frees_its_place(world: ApiWorld) -> None:
    """The number of open streams has a limit, and a reader that leaves no longer counts."""
    answer = await world.launch()
    async with listening(world) as client:
        reader = Reader(client, f"/api/v1/allocations/{answer['id']}/events")
        await wait_until(lambda: reader.seqs == [1], "the first event")
        assert world.parts.open_streams.count == 1
        await reader.aclose()
        await wait_until(lambda: world.parts.open_streams.count == 0, "the stream to be closed")


async def test_too_many_streams_are_refused(world: ApiWorld) -> None:
    """One stream too many gets 503 with Retry-After, so that the process does not become slow."""
    answer = await world.launch()
    with ExitStack() as held:
        for _ in range(world.parts.settings.streams_max):
            held.enter_context(world.parts.open_streams.held("events"))
        response = await world.get(f"/allocations/{answer['id']}/events")
    assert (response.status_code, response.json()["code"]) == (503, "too-many-streams")


async def test_pages_follow_each_other(world: ApiWorld) -> None:
    """`continue` is the cursor of the next page."""
    answer = await world.launch()
    await world.publish(await world.run(answer["name"]))
    path = f"/allocations/{answer['id']}/events"
    first = (await world.get(f"{path}?limit=2", **JSON)).json()
    assert [event["data"]["seq"] for event in first["items"]] == [1, 2]
    second = (await world.get(f"{path}?limit=2&after={first['metadata']['continue']}", **JSON)).json()
    assert [event["data"]["seq"] for event in second["items"]] == [3]
    empty = (await world.get(f"{path}?after={second['metadata']['continue']}", **JSON)).json()
    assert empty == {"items": [], "metadata": {"continue": second["metadata"]["continue"]}}


async def test_a_bad_cursor_is_refused(world: ApiWorld) -> None:
    """A bad cursor gets 422; the stream does not begin somewhere else."""
    answer = await world.launch()
    response = await world.get(f"/allocations/{answer['id']}/events", **{"last-event-id": "nonsense"})
    assert response.status_code == 422


async def test_the_firehose_tells_of_all(world: ApiWorld) -> None:
    """The firehose has the events of all allocations from now on, can be filtered and resumed."""
    async with listening(world) as client:
        reader = Reader(client, "/api/v1/events?type=running")
        await wait_until(lambda: reader.status == 200, "the stream to be open")
        one, two = await world.launch(), await world.launch()
        for answer in (one, two):
            await world.publish(await world.run(answer["name"]))
        await wait_until(lambda: len(reader.events) == 2, "both running events")
        assert {event["subject"] for event in reader.events} == {one["id"], two["id"]}
        position, first, _ = reader.ids
        assert position != first
        resumed = Reader(client, "/api/v1/events?type=running", first)
        await wait_until(lambda: len(resumed.events) == 1, "the second one")
        assert resumed.events[0]["subject"] == reader.events[1]["subject"]
        await reader.aclose()
        await resumed.aclose()


async def test_a_reader_of_the_firehose_can_come_back_before_the_first_event(world: ApiWorld) -> None:
    """It is sent the position at which it began, so that what happens while its connection is cut is not lost."""
    async with listening(world) as client:
        reader = Reader(client, "/api/v1/events")
        await wait_until(lambda: bool(reader.ids), "its position")
        await reader.aclose()
        answer = await world.launch()
        await world.publish(await world.stored(answer["name"]))
        resumed = Reader(client, "/api/v1/events", reader.ids[-1])
        await wait_until(lambda: bool(resumed.events), "the event")
        await resumed.aclose()
    assert (reader.events, [event["subject"] for event in resumed.events]) == ([], [answer["id"]])


async def test_a_reader_of_the_firehose_that_comes_back_too_late_is_told_of_the_gap(world: ApiWorld) -> None:
    """Events after its last id were removed: it first gets an entry named `gap`, then what is left."""
    async with listening(world) as client:
        reader = Reader(client, "/api/v1/events")
        await wait_until(lambda: bool(reader.ids), "its position")
        await reader.aclose()
        answer = await world.launch()
        await world.publish(await world.run(answer["name"]))
        key = keys.events(keys.shard_of(AllocationId(answer["id"])))
        [oldest, *left] = world.server.after(key, (0, 0), 100)
        assert world.server.remove(key, oldest[0])
        resumed = Reader(client, "/api/v1/events", reader.ids[-1])
        await wait_until(lambda: len(resumed.events) == 1 + len(left), "the gap and the events that are left")
        await resumed.aclose()
    gap, *events = resumed.events
    assert "read the allocations again" in gap["message"]
    assert [resumed.names, [event["subject"] for event in events]] == [["gap"], [answer["id"]] * len(left)]


async def test_the_firehose_needs_redis(world: ApiWorld) -> None:
    """Without Redis there is 503, because there is nothing to read the firehose from."""
    world.server.absent = True
    assert (await world.get("/events")).status_code == 503
