"""A watch keeps nodes: reads of them cost no call, are fresh, and state when they are not."""

import asyncio
import secrets
from collections import Counter

import pytest

from slipway.api.cluster import watched
from slipway.api.cluster.seen_nodes import SEEN_NODES
from slipway.api.cluster.watched import OLD_MAX_S, WatchedObjects
from slipway.api.settings import Settings
from slipway.errors import DeniedError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import NODES
from slipway.runtime.clock import SeededRandom
from slipway.runtime.service import ServiceStop
from slipway.runtime.tasks import TaskGroup
from tests.support.api_world import COMMAND, ApiWorld, watching
from tests.support.clock import FakeClock, wait_until
from tests.support.kube_core import CoreKube

READS = ("/nodes", "/pools", "/queues/default")


class Calls:
    """Counts the calls of Kubernetes by verb for one plural, and refuses those in `refused`."""

    def __init__(self, kube: CoreKube, plural: str = "nodes") -> None:
        self.counts: Counter[Verb] = Counter()
        self.refused: dict[Verb, Exception] = {}
        self._plural = plural
        kube.before = self._before

    async def _before(self, verb: Verb, plural: str) -> None:
        if plural != self._plural:
            return
        self.counts[verb] += 1
        if verb in self.refused:
            raise self.refused[verb]


async def interrupt(world: ApiWorld, why: str) -> Calls:
    """End the watches of nodes, and refuse new ones until the caller clears `refused`."""
    calls = Calls(world.kube)
    calls.refused = dict.fromkeys((Verb.WATCH, Verb.LIST), UnavailableError(why))
    world.kube.closes_watches = True
    await stir(world)
    return calls


async def stir(world: ApiWorld) -> None:
    """Change a node, so that a watch gets an event."""
    await world.kube.patch(NODES, "n2", {"metadata": {"annotations": {"stirred": secrets.token_hex(4)}}})


async def test_nodes_are_listed_once(world: ApiWorld) -> None:
    """Launches, dry runs and the pages of nodes, pools and queues read what the watch keeps."""
    assert (await world.get("/nodes")).status_code == 200
    calls = Calls(world.kube)
    for _ in range(3):
        for path in READS:
            assert (await world.get(path)).status_code == 200
        await world.launch(ranks=[{"count": 5, "resources": {"cpu": 4}}])
        assert (await world.http.post("/api/v1/allocations?dryRun=true", json=COMMAND)).status_code == 200
    assert calls.counts[Verb.LIST] == 0


async def test_a_node_that_comes_and_goes_shows(world: ApiWorld) -> None:
    """The node shows in the list and in the size of its pool, without another LIST."""
    await world.kube.create(NODES, {"metadata": {"name": "n3"}})
    await wait_until(lambda: world.parts.nodes.store.get("n3") is not None, "the watch to bring the node")
    assert (await world.get("/pools")).json()["items"][0]["nodes"] == 3
    await world.kube.delete(NODES, "n3")
    await wait_until(lambda: world.parts.nodes.store.get("n3") is None, "the watch to take it away")
    assert [node["name"] for node in (await world.get("/nodes")).json()["items"]] == ["n1", "n2"]


async def test_an_interrupted_watch_shows_in_the_answer(world: ApiWorld) -> None:
    """The answer has the nodes that were seen last, with their age and the reason; once the watch goes on there is no
    warning."""
    assert "warnings" not in (await world.get("/nodes")).json()
    calls = await interrupt(world, "the API server is away")
    await wait_until(lambda: world.parts.nodes.age_s > 0, "the watch to break")
    for path in ("/nodes", "/pools"):
        answer = (await world.get(path)).json()
        assert answer["items"]
        [warning] = answer["warnings"]
        assert "their watch is interrupted: the API server is away" in warning
    calls.refused, world.kube.closes_watches = {}, False
    await wait_until(lambda: world.parts.nodes.age_s == 0, "the watch to go on")
    assert "warnings" not in (await world.get("/nodes")).json()


async def test_before_the_first_list_a_read_waits_and_then_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A LIST that fails gives 503 with the server's own words; an answer comes as soon as there is one."""
    monkeypatch.setattr(watched, "SYNC_S", 0.05)
    world = ApiWorld(Settings())
    await world.furnish()
    calls = Calls(world.kube)
    calls.refused = {Verb.LIST: DeniedError("slipway-api cannot list nodes")}
    async with world.http, watching(world.parts):
        await wait_until(lambda: world.parts.nodes.is_away, "the LIST to be refused")
        answer = await world.get("/nodes")
        assert answer.status_code == 503
        assert "slipway-api cannot list nodes" in answer.json()["detail"]
        calls.refused = {}
        await wait_until(lambda: world.parts.nodes.store.synced, "the LIST to be tried again")
        assert len((await world.get("/nodes")).json()["items"]) == 2


async def test_a_view_that_is_too_old_is_none(world: ApiWorld) -> None:
    """A view that is too old would help no caller: reads fail, and state since when and why."""
    nodes = WatchedObjects(world.kube, SEEN_NODES, FakeClock(), SeededRandom(1))
    stop = ServiceStop()
    async with TaskGroup() as tasks:
        tasks.create_task(nodes.run(stop))
        assert len(await nodes.items()) == 2
        await interrupt(world, "away")
        await wait_until(lambda: nodes.age_s > OLD_MAX_S, "the backoff to grow")
        with pytest.raises(UnavailableError, match=r"there has been no news of the nodes for \d+ s: away"):
            await nodes.items()
        stop.set()


async def test_an_own_write_is_waited_for(world: ApiWorld) -> None:
    """Although the watch is late, a caller that has drained a node reads that it is drained, and does not wait for
    ever."""
    found = await world.parts.nodes.items()
    assert {node.status.conditions[0].status for node in found} == {"True"}
    world.kube.is_stalled = True
    assert (await world.post("/nodes/n1/drain")).status_code == 200
    reading = asyncio.ensure_future(world.get("/nodes"))
    world.kube.is_stalled = False
    await stir(world)
    assert [node["scheduling"] for node in (await reading).json()["items"]] == ["draining", "enabled"]
