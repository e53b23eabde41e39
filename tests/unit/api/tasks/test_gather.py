"""The all-gather of ranks over two replicas, with peers that come again, leave or never come, and a Redis that is
lost."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from slipway.api.app import create_app
from slipway.api.deps import ApiDeps, connect
from slipway.api.http.errors import ConflictError, PeersMissingError
from slipway.api.settings import Settings
from slipway.api.tasks.gather import AllGather
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.runtime import telemetry
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import HealthApp, ProcessHealth
from slipway.streams import keys
from slipway.streams.allgather import AllgatherState, Gathered, GatherKey, Seat
from slipway.streams.mac_keys import GATHER_PURPOSE
from slipway.streams.memory_side import MemoryGatherings, MemoryStreams
from tests.support.api_world import ApiWorld
from tests.support.clock import wait_until
from tests.support.mac_keys import a_folder, some_keys

Json = dict[str, Any]


def a_second(world: ApiWorld, streams: MemoryStreams) -> ApiDeps:
    return connect(
        settings=Settings(),
        clock=world.clock,
        random=SeededRandom(8),
        stop=world.stop,
        kube=world.kube,
        streams=streams,
        behind=world.parts.behind,
        on_broken=world.broken.append,
    )


@pytest.fixture
async def replica(world: ApiWorld) -> AsyncGenerator[httpx2.AsyncClient]:
    """A second api over the same cluster and the same Redis."""
    parts = a_second(world, MemoryStreams(world.server))
    app = create_app(parts, HealthApp(ProcessHealth(world.clock)))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await parts.forwarder.aclose()


def forged_gatherings() -> float:
    labels = {"stream": "gather", "outcome": "forged"}
    return telemetry.REGISTRY.get_sample_value("slipway_deliveries_total", labels) or 0.0


async def test_forged_data_in_redis_reach_no_rank(world: ApiWorld, tmp_path: Path) -> None:
    """An attacker controls Redis: the forged gathering is removed and counted, the ranks send their data again, and
    meet."""
    macs = some_keys(a_folder(tmp_path), world.clock, purpose=GATHER_PURPOSE)
    _, path = await a_gang(world, 2)
    key = keys.gather(path.split("/")[4], 1, "default")  # pyright: ignore[reportArgumentType]
    parts = a_second(world, MemoryStreams(world.server, gather_macs=macs))
    app = create_app(parts, HealthApp(ProcessHealth(world.clock)))
    before = forged_gatherings()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client:
        first = asyncio.ensure_future(client.post(path, json=a_peer("a", 2)))
        await there(world, path, 1)
        for fields in (
            {"w:x": b"p t 1", "d:x": b'"forged"', "c": b"2", "s": b"1"},
            {"w:a": b"nonsense", "s": b"1"},
            {"d:a": b'"forged"', "s": b"1"},
            {"n": b"1", "s": b"1"},
        ):
            world.server.hash_set(key, fields)
            await wait_until(lambda: "s" not in world.server.hash_get(key), "the gathering begins anew")
            await there(world, path, 1)
        async with asyncio.timeout(5):
            second = await client.post(path, json=a_peer("b", 2))
            answers = [(await first).json(), second.json()]
    await parts.forwarder.aclose()
    assert [answer["data"] for answer in answers] == [[{"from": "a"}, {"from": "b"}]] * 2
    assert forged_gatherings() >= before + 4


class ForgedCompleteGatherings(MemoryGatherings):
    """A forged Redis that reports every gathering as complete, although its hash does not show that."""

    async def look(self, key: GatherKey, *, owner: str) -> Gathered:
        return msgspec.structs.replace(await super().look(key, owner=owner), outcome=AllgatherState.DONE)


async def test_no_rank_meets_fewer_than_it_waits_for(world: ApiWorld, tmp_path: Path) -> None:
    """A peer that is alone goes on waiting although Redis reports two. A former gathering with another number of peers
    is a conflict."""
    macs = some_keys(a_folder(tmp_path), world.clock, purpose=GATHER_PURPOSE)
    key = GatherKey(allocation=AllocationId("a-00000000"), attempt=1, group="default")

    async def still_on() -> None:
        return None

    gather = AllGather(ForgedCompleteGatherings(world.server, macs), world.clock, SeededRandom(9), world.stop)
    with pytest.raises(PeersMissingError):
        await gather.gather(key, Seat(request_id="a", rank=0), peers=2, wait_s=0.3, still_on=still_on)
    honest = AllGather(MemoryGatherings(world.server, macs), world.clock, SeededRandom(9), world.stop)
    met = await honest.gather(key, Seat(request_id="a", rank=0), peers=1, wait_s=0.3, still_on=still_on)
    assert len(met.seats) == 1
    with pytest.raises(ConflictError, match="numPeers: 1 have met"):
        await honest.gather(key, Seat(request_id="a", rank=0), peers=2, wait_s=0.3, still_on=still_on)


async def a_gang(world: ApiWorld, count: int = 4) -> tuple[str, str]:
    """(name, path of its all-gather)."""
    answer = await world.launch(ranks=[{"count": count}])
    await world.run(answer["name"])
    return answer["name"], f"/api/v1/allocations/{answer['id']}/allgather"


def a_peer(name: str, peers: int = 4, **more: Any) -> Json:
    return {"requestId": name, "numPeers": peers, "data": {"from": name}, **more}


async def there(world: ApiWorld, path: str, count: int, group: str = "default") -> None:
    """Wait until the gathering has so many peers."""
    key = keys.gather(path.split("/")[4], 1, group)  # pyright: ignore[reportArgumentType]
    await wait_until(lambda: int(world.server.hash_get(key).get("c", b"0")) == count, f"{count} peers")


async def test_all_get_all_data_through_any_replica(world: ApiWorld, replica: httpx2.AsyncClient) -> None:
    """Each peer gets the data of all peers, by rank, and its own place, from either replica."""
    name, path = await a_gang(world)
    calls = [
        (world.http if rank % 2 else replica).post(path, json=a_peer(f"peer-{9 - rank}", rank=rank))
        for rank in range(4)
    ]
    async with asyncio.timeout(5):
        answers = [response.json() for response in await asyncio.gather(*calls)]
    assert [answer.pop("position") for answer in answers] == [0, 1, 2, 3]
    assert answers[0] == {
        "requestIds": ["peer-9", "peer-8", "peer-7", "peer-6"],
        "ranks": [0, 1, 2, 3],
        "numPeers": 4,
        "group": "default",
        "attempt": 1,
        "data": [{"from": f"peer-{9 - rank}"} for rank in range(4)],
    }
    assert all(answer == answers[0] for answer in answers)
    signals = (await world.stored(name)).spec.signals
    assert signals is not None
    assert signals.ready


async def test_without_ranks_the_request_ids_order(world: ApiWorld) -> None:
    """All peers get the same order, whatever order they came in."""
    _, path = await a_gang(world)
    answers = await asyncio.gather(*(world.http.post(path, json=a_peer(name, 3)) for name in ("c", "a", "b")))
    assert {tuple(answer.json()["requestIds"]) for answer in answers} == {("a", "b", "c")}
    assert answers[0].json()["ranks"] == [None] * 3


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_same_id_again_takes_the_place(
    world: ApiWorld, replica: httpx2.AsyncClient, *, elsewhere: bool
) -> None:
    """The old request gets 409, at whichever replica it waits; the new data counts; other peers notice nothing."""
    _, path = await a_gang(world)
    old = asyncio.ensure_future(world.http.post(path, json=a_peer("a", 2)))
    await there(world, path, 1)
    new = asyncio.ensure_future((replica if elsewhere else world.http).post(path, json=a_peer("a", 2) | {"data": 2}))
    async with asyncio.timeout(5):
        refused = await old
        assert (refused.status_code, refused.json()["code"]) == (409, "replaced")
        assert "request id 'a' was sent again" in refused.json()["detail"]
        other = await world.http.post(path, json=a_peer("b", 2))
    assert other.json()["data"] == (await new).json()["data"] == [2, {"from": "b"}]


async def test_a_rank_that_leaves_removes_its_data(world: ApiWorld) -> None:
    """The data of a client that disconnects are removed: the others go on waiting until it is back."""
    _, path = await a_gang(world)
    gone = asyncio.Event()
    sent: list[Any] = []

    async def receive() -> Json:
        if not sent:
            sent.append(1)
            return {"type": "http.request", "body": b'{"requestId":"a","numPeers":2}', "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope: Json = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    call = asyncio.ensure_future(world.app(scope | {"scheme": "http"}, receive, send))
    await there(world, path, 1)
    gone.set()
    async with asyncio.timeout(5):
        await call
    await there(world, path, 0)


async def test_a_late_joiner_is_answered_at_once(world: ApiWorld, replica: httpx2.AsyncClient) -> None:
    """A peer whose answer was lost gets its place; a new peer gets the data, and no place in it."""
    _, path = await a_gang(world)
    await asyncio.gather(*(world.http.post(path, json=a_peer(name, 2)) for name in ("a", "b")))
    async with asyncio.timeout(2):
        again = (await replica.post(path, json=a_peer("b", 2))).json()
        late = (await replica.post(path, json=a_peer("z", 2))).json()
    assert (again["position"], late["position"]) == (1, None)
    assert again["data"] == late["data"] == [{"from": "a"}, {"from": "b"}]


async def test_the_time_is_up(world: ApiWorld) -> None:
    """The answer names the peers that are there and the ranks that are missing; the same request goes on waiting."""
    _, path = await a_gang(world)
    others = [asyncio.ensure_future(world.http.post(path, json=a_peer(f"p{n}", rank=n))) for n in (0, 3)]
    await there(world, path, 2)
    late = await world.http.post(path, json=a_peer("p1", rank=1, timeoutSeconds=0.1))
    assert (late.status_code, late.json()["code"], "Retry-After" in late.headers) == (408, "peers-missing", True)
    assert late.json()["detail"] == (
        "3 of 4 peers of 'default' have arrived (p0 of rank 0, p1 of rank 1, p3 of rank 3); 1 missing: rank 2. "
        "Send the same request again to continue to wait"
    )
    await there(world, path, 2)
    async with asyncio.timeout(5):
        rest = await asyncio.gather(*(world.http.post(path, json=a_peer(f"p{n}", rank=n)) for n in (1, 2)), *others)
    assert {answer.status_code for answer in rest} == {200}


async def test_numbers_must_agree(world: ApiWorld) -> None:
    """A peer with another number gets a refusal that names the number of the others."""
    _, path = await a_gang(world)
    waiting = asyncio.ensure_future(world.http.post(path, json=a_peer("a", 2)))
    await there(world, path, 1)
    wrong = await world.http.post(path, json=a_peer("b", 3))
    assert wrong.status_code == 409
    assert "sent 2, this request sent 3" in wrong.json()["detail"]
    await world.http.post(path, json=a_peer("b", 2))
    assert (await waiting).status_code == 200


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_redis_is_lost_while_they_wait(world: ApiWorld, *, is_noticed: bool) -> None:
    """After FLUSHALL waiting requests bring their data again by themselves, also when another peer has begun anew."""
    _, path = await a_gang(world)
    waiting = [asyncio.ensure_future(world.http.post(path, json=a_peer(name, 3))) for name in ("a", "b")]
    await there(world, path, 2)
    world.server.flush()
    if is_noticed:
        await there(world, path, 2)
    async with asyncio.timeout(5):
        answers = await asyncio.gather(world.http.post(path, json=a_peer("c", 3)), *waiting)
    assert all(answer.json()["requestIds"] == ["a", "b", "c"] for answer in answers)


async def test_no_redis(world: ApiWorld) -> None:
    """New requests and waiting ones get 503 with Retry-After."""
    _, path = await a_gang(world)
    waiting = asyncio.ensure_future(world.http.post(path, json=a_peer("a", 2)))
    await there(world, path, 1)
    world.server.absent = True
    for call in (waiting, world.http.post(path, json=a_peer("b", 2))):
        async with asyncio.timeout(5):
            answer = await call
        assert (answer.status_code, answer.json()["code"]) == (503, "redis-unavailable")
        assert "Retry-After" in answer.headers
        assert "all-gathers are kept in Redis" in answer.json()["detail"]


@pytest.mark.parametrize("event", [Event.TERMINATED, Event.RESTARTED])
async def test_the_attempt_is_over(world: ApiWorld, event: Event) -> None:
    """No request waits for ranks that can no longer come."""
    name, path = await a_gang(world)
    waiting = asyncio.ensure_future(world.http.post(path, json=a_peer("a", 2)))
    await there(world, path, 1)
    await world.step(name, event)
    async with asyncio.timeout(5):
        answer = await waiting
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    late = await world.http.post(path, json=a_peer("a", 2, attempt=1))
    assert late.status_code == 409


async def test_the_replica_stops(world: ApiWorld) -> None:
    """Requests that wait are sent to another replica, by 503 with Retry-After."""
    _, path = await a_gang(world)
    waiting = asyncio.ensure_future(world.http.post(path, json=a_peer("a", 2)))
    await there(world, path, 1)
    world.stop.set()
    async with asyncio.timeout(5):
        answer = await waiting
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    await there(world, path, 0)


async def test_many_peers(world: ApiWorld, replica: httpx2.AsyncClient) -> None:
    """Hundreds of peers at once, through two replicas, get one answer."""
    _, path = await a_gang(world)
    calls = [
        (world.http if rank % 2 else replica).post(path, json=a_peer(f"r{rank}", 300, rank=rank)) for rank in range(300)
    ]
    async with asyncio.timeout(30):
        answers = [response.json() for response in await asyncio.gather(*calls)]
    assert [answer["position"] for answer in answers] == list(range(300))
    assert {len(answer["data"]) for answer in answers} == {300}


@pytest.mark.parametrize(
    ("change", "pointer", "says"),
    [
        ({"requestId": ""}, "/requestId", "1 to 128 printable characters"),
        ({"requestId": "a b"}, "/requestId", "printable"),
        ({"numPeers": 0}, "/numPeers", "number of peers that must arrive"),
        ({"numPeers": 5000}, "/numPeers", "4096"),
        ({"group": "a b"}, "/group", "name of the all-gather"),
        ({"data": "x" * 70_000}, "/data", "one peer may send 65536"),
        ({"timeoutSeconds": 1e9}, "/timeoutSeconds", "600"),
        ({"rank": -1}, "/rank", "0"),
        ({"peers": 3}, "/peers", "unknown field"),
    ],
)
async def test_bad_input(world: ApiWorld, change: Json, pointer: str, says: str) -> None:
    """The error has the field, and the values that it may have."""
    _, path = await a_gang(world)
    answer = await world.http.post(path, json=a_peer("a") | change)
    assert answer.status_code == 422
    assert [(error["pointer"], says in error["detail"]) for error in answer.json()["errors"]] == [(pointer, True)]


async def test_more_data_than_is_stored(world: ApiWorld) -> None:
    """An allocation that exchanges without end gets 429, with what to do."""
    _, path = await a_gang(world)
    kept = keys.gathered(path.split("/")[4])  # pyright: ignore[reportArgumentType]
    world.server.hash_set(kept, {"b": b"100000000"})
    answer = await world.http.post(path, json=a_peer("a"))
    assert (answer.status_code, "Retry-After" in answer.headers) == (429, True)
    assert "exchange less often" in answer.json()["detail"]


async def test_more_data_than_all_ranks_may_send(world: ApiWorld) -> None:
    """The peer whose data no longer fit gets 413."""
    _, path = await a_gang(world)
    data = "x" * 65_000
    waiting = [
        asyncio.ensure_future(world.http.post(path, json=a_peer(f"p{n}", 17) | {"data": data})) for n in range(16)
    ]
    await there(world, path, 16)
    answer = await world.http.post(path, json=a_peer("last", 17) | {"data": data})
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")
    await world.http.post(path, json=a_peer("last", 17))
    assert {response.status_code for response in await asyncio.gather(*waiting)} == {200}
