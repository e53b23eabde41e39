"""Scenarios in which allocations preempt others, by the planner's own decisions."""

import asyncio

from slipway.crd.v1alpha1 import Allocation
from slipway.kube.resources import ALLOCATIONS, QUEUES
from slipway.model.lifecycle import Phase, RankState
from tests.support.world import World


async def in_queue(world: World) -> None:
    """An allocation of higher priority preempts one that saves its work first, and that runs again afterwards."""
    await _queue(world, "default", withinQueue="LowerPriority")
    low = await _run_ready(world, "low", ranks=4, priority=10, preemptionGrace="40s")
    await world.launch("high", ranks=3, priority=90)
    await _save_work(world, low)
    high = await world.when(_is_running, name="high")
    assert not world.kubelets.live(low.metadata.uid)
    await _end(world, high)
    again = await world.when(_is_running, name="low")
    assert [item.by for item in again.status.preemptions] == ["default/high"]
    await _end(world, again)


async def unheard(world: World) -> None:
    """The victim does not acknowledge: it has its whole grace, then it is killed."""
    await _queue(world, "default", withinQueue="LowerPriority")
    low = await _run_ready(world, "low", ranks=4, priority=10, preemptionGrace="8s")
    await world.launch("high", ranks=4, priority=90)
    told = await world.when(_is_told, name="low")
    assert world.kubelets.live(low.metadata.uid)
    await _end(world, await world.when(_is_running, name="high"))
    assert told.status.attempt == 1
    await _end(world, await world.when(_is_running, name="low"))


async def reclaim(world: World) -> None:
    """A queue reclaims its quota from one that has borrowed it; a victim that is not ready has no work to save."""
    await _queue(world, "theirs", nominal={"cpu": "4"})
    await _queue(world, "mine", nominal={"cpu": "4"}, reclaim="Any")
    for name in ("first", "second"):
        await world.launch(name, ranks=4, queue="theirs", preemptible=True)
        await world.when(_is_running, name=name)
    await world.launch("owner", ranks=4, queue="mine")
    await _end(world, await world.when(_is_running, name="owner"))
    for name in ("first", "second"):
        await _end(world, await world.when(_is_running, name=name))


async def shrink(world: World) -> None:
    """Surplus ranks of an elastic gang are evicted; the other ranks are not disturbed."""
    await _queue(world, "default", withinQueue="LowerPriority")
    await world.launch("gang", ranks=4, minAvailable=1, priority=10, preemptible=True)
    gang = await world.when(_is_running, name="gang")
    await world.launch("high", ranks=2, priority=90)
    high = await world.when(_is_running, name="high")
    shrunk = await world.when(_has_shrunk, name="gang")
    assert len(world.kubelets.live(gang.metadata.uid)) == 2
    assert (shrunk.status.phase, shrunk.status.attempt) == (Phase.RUNNING, 1)
    await _end(world, shrunk)
    await _end(world, high)


async def grow(world: World) -> None:
    """A gang that began with its minimum gets the missing ranks when resources are free; its first rank runs on."""
    gang = await _below_its_count(world)
    first = {container.pod_uid for container in world.kubelets.live(gang.metadata.uid)}
    await _end(world, await world.when(_is_running, name="holder"))
    grown = await world.when(lambda found: _has_grown(found, 3), name="gang")
    standing = {container.pod_uid for container in world.kubelets.live(gang.metadata.uid)}
    assert first < standing
    assert len(standing) == 3
    await _end_grown(world, grown)


async def grow_cancelled(world: World) -> None:
    """A gang is cancelled while it grows: nothing of it is left."""
    await _below_its_count(world)
    await _end(world, await world.when(_is_running, name="holder"))
    await world.when(lambda found: found.status.growth is not None, name="gang")
    await world.cancel("gang")
    await world.when(lambda found: found.status.phase is Phase.TERMINATED, name="gang")


async def grow_then_shrink(world: World) -> None:
    """Evicted ranks start again under their numbers and are evicted again, and no other rank restarts."""
    await _queue(world, "default", withinQueue="LowerPriority")
    await world.launch("gang", ranks=4, minAvailable=1, priority=10, preemptible=True)
    gang = await world.when(_is_running, name="gang")
    await world.launch("high", ranks=2, priority=90)
    high = await world.when(_is_running, name="high")
    await world.when(_has_shrunk, name="gang")
    await _end(world, high)
    await world.when(lambda found: _has_grown(found, 4), name="gang")
    assert len(world.kubelets.live(gang.metadata.uid)) == 4
    await world.launch("higher", ranks=3, priority=90)
    higher = await world.when(_is_running, name="higher")
    shrunk = await world.when(_has_shrunk, name="gang")
    assert len(world.kubelets.live(gang.metadata.uid)) == 1
    assert (shrunk.status.phase, shrunk.status.attempt) == (Phase.RUNNING, 1)
    await _end_grown(world, shrunk)
    await _end(world, higher)


async def consolidate(world: World) -> None:
    """A movable allocation is placed again beside others, so that a large one has a node of its own."""
    await world.launch("stays", cpu="2", priority=50)
    await world.when(_is_running, name="stays")
    await world.launch("moved", cpu="2", priority=50, preemptible=True)
    before = await world.when(_is_running, name="moved")
    await world.launch("large", cpu="4", priority=50)
    large = await world.when(_is_running, name="large")
    after = await world.when(lambda found: _is_running(found) and found.status.attempt == 2, name="moved")
    assert _nodes(after) != _nodes(before) == _nodes(large)
    for found in (large, after, await world.when(_is_running, name="stays")):
        await _end(world, found)


async def called_off(world: World) -> None:
    """The preemptor is cancelled while its victim ends: the reservation is dropped, and the victim gets the place
    again."""
    await _queue(world, "default", withinQueue="LowerPriority")
    low = await _run_ready(world, "low", ranks=4, priority=10, preemptionGrace="40s")
    await world.launch("high", ranks=4, priority=90)
    await world.when(_is_told, name="low")
    await world.cancel("high")
    await _save_work(world, low)
    again = await world.when(lambda found: _is_running(found) and found.status.attempt == 2, name="low")
    await _end(world, again)


async def outranked(world: World) -> None:
    """A more urgent allocation arrives while the victim ends: it gets the place, and the first one waits."""
    await _queue(world, "default", withinQueue="LowerPriority")
    low = await _run_ready(world, "low", ranks=4, priority=10, preemptionGrace="40s")
    await world.launch("high", ranks=4, priority=60)
    await world.when(_is_told, name="low")
    await world.launch("top", ranks=4, priority=90)
    await asyncio.sleep(1.0)
    await _save_work(world, low)
    for name in ("top", "high", "low"):
        await _end(world, await world.when(_is_running, name=name))


async def _end_grown(world: World, found: Allocation) -> None:
    """End its ranks successfully, including a rank whose growth was decided before that."""
    for _ in range(20):
        await asyncio.sleep(0.5)
        for container in world.kubelets.live(found.metadata.uid):
            world.kubelets.exit(container.pod_uid, 0)
    await world.when(lambda item: item.status.phase is Phase.TERMINATED, name=found.metadata.name)


async def _below_its_count(world: World) -> Allocation:
    """`gang` runs with one of three ranks, because `holder` uses the rest of the node."""
    await world.launch("holder", ranks=3, priority=50)
    await world.when(_is_running, name="holder")
    await world.launch("gang", ranks=3, minAvailable=1, priority=10)
    return await world.when(_is_running, name="gang")


def _has_grown(found: Allocation, ranks: int) -> bool:
    """Whether that many ranks run, and the status shows it."""
    growth = found.status.growth
    running = sum(rank.phase is RankState.RUNNING for rank in found.status.ranks or ())
    return growth is not None and growth.told == growth.n and running == ranks


def _has_shrunk(found: Allocation) -> bool:
    """Whether ranks were evicted, and the status shows it."""
    shrink = found.status.shrink
    return shrink is not None and shrink.told > 0


def _is_running(found: Allocation) -> bool:
    return found.status.phase is Phase.RUNNING


def _is_told(found: Allocation) -> bool:
    return "preemption" in found.status.deadlines


async def _queue(world: World, name: str, *, nominal: dict[str, str] | None = None, **preemption: str) -> None:
    spec: dict[str, object] = {"pool": "default", "preemption": preemption}
    if nominal is not None:
        spec["nominal"] = nominal
    if name == "default":
        await world.kube.patch(QUEUES, name, {"spec": spec})
    else:
        await world.kube.create(QUEUES, {"metadata": {"name": name}, "spec": spec})


async def _run_ready(world: World, name: str, **spec: object) -> Allocation:
    """Launch it, wait until it runs, and report that it can save its work."""
    await world.launch(name, preemptible=True, **spec)
    await world.when(_is_running, name=name)
    await _signal(world, name, {"ready": True})
    return await world.when(lambda found: found.status.ready, name=name)


async def _save_work(world: World, found: Allocation) -> None:
    """Let its ranks read the request, acknowledge it and end."""
    name, attempt = found.metadata.name, found.status.attempt
    await world.when(_is_told, name=name)
    await _signal(world, name, {"acks": {"0": 1}})
    await asyncio.sleep(0.5)
    for container in world.kubelets.live(found.metadata.uid):
        if container.attempt == attempt:
            world.kubelets.exit(container.pod_uid, 0)


async def _signal(world: World, name: str, signals: dict[str, object]) -> None:
    await world.kube.patch(ALLOCATIONS, name, {"spec": {"signals": {"attempt": 1, **signals}}}, namespace="default")


async def _end(world: World, found: Allocation) -> None:
    """End its ranks successfully."""
    await asyncio.sleep(0.3)
    for container in world.kubelets.live(found.metadata.uid):
        world.kubelets.exit(container.pod_uid, 0)
    await world.when(lambda item: item.status.phase is Phase.TERMINATED, name=found.metadata.name)


def _nodes(found: Allocation) -> set[str]:
    return {rank.node for rank in found.status.ranks or []}
