"""The rendezvous of ranks: which ranks are missing, what stays, and when a wait ends."""

import asyncio

import pytest

from slipway.api.schemas import RendezvousView
from slipway.api.tasks.rendezvous import Rendezvous
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.resources import PODS
from slipway.model.ids import AllocationId, pod_name
from slipway.model.lifecycle import Event
from tests.support.api_world import ApiWorld


async def a_gang(world: ApiWorld, count: int = 3) -> tuple[str, str]:
    """(name, id) of a running gang."""
    answer = await world.launch(ranks=[{"count": count}])
    await world.run(answer["name"])
    return answer["name"], answer["id"]


async def ends(world: ApiWorld, id_: str, rank: int) -> None:
    """End the pod of a rank."""
    name = pod_name(id_, 1, rank)  # pyright: ignore[reportArgumentType]
    pod = await world.kube.get(PODS, name, namespace="default")
    version, labels = pod.metadata.resource_version, pod.metadata.labels
    meta = {"name": name, "namespace": "default", "resourceVersion": version, "labels": labels}
    await world.kube.replace_status(PODS, {"metadata": meta, "status": {"phase": "Failed", "podIP": "127.0.0.1"}})


async def test_who_is_missing(world: ApiWorld) -> None:
    """After the timeout the answer has the ranks that have no address, and what is known of them."""
    answer = await world.launch(ranks=[{"count": 20}])
    path = f"/allocations/{answer['id']}/rendezvous?timeout_seconds=1"
    async with asyncio.timeout(5):
        found = (await world.get(path)).json()
    assert (found["ready"], found["missing"]) == (False, list(range(20)))
    assert found["message"].startswith("0 of 20 ranks have an address; missing: rank 0 (no pod yet), rank 1")
    assert found["message"].endswith(" and 4 more")


async def test_only_pods_of_the_release_are_ranks(world: ApiWorld) -> None:
    """A pod with the labels of a rank that the release does not name, as a node may make one, gets no traffic."""
    name, id_ = await a_gang(world, 2)
    found = await world.stored(name)

    async def reload() -> Allocation:
        return found

    async def asked() -> RendezvousView:
        return await Rendezvous(world.kube, world.clock, world.stop).wait_for_addresses(found, wait_s=0, reload=reload)

    right = await asked()
    pod = await world.kube.get(PODS, pod_name(AllocationId(id_), 1, 0), namespace="default")
    meta = {"name": "zz-mirror", "namespace": "default", "labels": pod.metadata.labels}
    made = await world.kube.create(PODS, {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "a"}]}})
    status = {"phase": "Running", "podIP": "6.6.6.6", "startTime": "2026-01-02T03:04:05Z"}
    version = {"resourceVersion": made.metadata.resource_version}
    await world.kube.replace_status(PODS, {"metadata": {**meta, **version}, "status": status})
    assert await asked() == right


async def test_a_completed_rendezvous_stays_complete(world: ApiWorld) -> None:
    """A rank that has ended since keeps its place, for late callers."""
    name, id_ = await a_gang(world)
    found = await world.stored(name)
    views: list[RendezvousView] = []

    async def reload() -> Allocation:
        return found

    for _ in range(2):
        # Another replica each time: nothing is remembered.
        views.append(
            await Rendezvous(world.kube, world.clock, world.stop).wait_for_addresses(found, wait_s=0, reload=reload)
        )
        await ends(world, id_, 1)
    assert [address.rank for address in views[0].addresses] == [0, 1, 2]
    assert views[0] == views[1]


@pytest.mark.parametrize("event", [Event.TERMINATED, Event.RESTARTED])
async def test_the_end_ends_the_wait(world: ApiWorld, event: Event) -> None:
    """Calls that wait get 409, because the ranks that are waited for will not come."""
    answer = await world.launch(ranks=[{"count": 2}])
    waiting = asyncio.ensure_future(world.get(f"/allocations/{answer['id']}/rendezvous?timeout_seconds=60"))
    await asyncio.sleep(0)
    if event is Event.RESTARTED:
        await world.run(answer["name"])
        await ends(world, answer["id"], 0)
    await world.step(answer["name"], event)
    async with asyncio.timeout(5):
        refused = await waiting
    assert refused.status_code in ((409,) if event is Event.TERMINATED else (200, 409))
    late = await world.get(f"/allocations/{answer['id']}/rendezvous?attempt=1")
    assert late.status_code == 409


@pytest.mark.parametrize(
    ("query", "status"), [("rank=2", 200), ("rank=3", 400), ("rank=x", 400), ("attempt=1", 200), ("attempt=2", 409)]
)
async def test_an_unknown_rank_is_refused(world: ApiWorld, query: str, status: int) -> None:
    """A rank, or an attempt, that does not exist is refused."""
    _, id_ = await a_gang(world)
    answer = await world.get(f"/allocations/{id_}/rendezvous?{query}")
    assert answer.status_code == status, answer.text
    if query == "rank=3":
        assert "3 is not a rank of this attempt; the ranks are 0, 1, 2" in answer.json()["detail"]


async def test_it_is_ready_when_the_ranks_have_met(world: ApiWorld) -> None:
    """A POST states that a rank is there; a GET only looks."""
    name, id_ = await a_gang(world)
    await world.get(f"/allocations/{id_}/rendezvous")
    assert (await world.stored(name)).spec.signals is None
    await asyncio.gather(*(world.post(f"/allocations/{id_}/rendezvous") for _ in range(3)))
    signals = (await world.stored(name)).spec.signals
    assert signals is not None
    assert signals.ready
