"""Scenarios that need a certain moment: another user takes a name, a lease is deleted, undecodable hints arrive.

Like `scenarios.py` they only act and wait. The user and other programs act within the instant, before any service does.
"""

import asyncio

import msgspec

from slipway.crd.meta import RawObject
from slipway.crd.transitions import id_of, with_status
from slipway.crd.v1alpha1 import Stop
from slipway.kube.resources import ALLOCATIONS, LEASES, NODES, PODS
from slipway.local.apiserver.store import Commit
from slipway.model import ids
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason, Result
from slipway.model.times import format_time
from slipway.streams import codec, keys
from slipway.streams.ports import WorkHint
from tests.simulation.scenario import AGAIN, DONE, RUNS_S, STOPPED, Ending, Scenario, ended, has_ended, is_running
from tests.support.kubelet import Script
from tests.support.small_cluster import add_node
from tests.support.world import NAMESPACE, Setup, World

SLOWLY_S = 0.002
STAYS_S = 35.0
ARRIVALS, ARRIVES_S = 6, 0.2
TOLD = 24
"""More transitions than an object stores."""


async def name_taken(world: World) -> None:
    """Another user creates a pod with the name of the first rank: it is left alone, and the launch is refused."""
    launched = await world.launch(ranks=2)
    pod: RawObject = {
        "metadata": {"name": ids.pod_name(id_of(launched), 1, 0), "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "theirs"}]},
    }
    await world.kube.create(PODS, pod)
    await world.when(has_ended)
    await world.kube.delete(PODS, pod["metadata"]["name"], namespace="default")


async def bound_elsewhere(world: World) -> None:
    """Another program binds a pod of ours to a node that was not planned: the attempt is broken, the next one is
    not."""
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    # Each call takes some time: otherwise the pod worker could bind the pod before this scenario sees it.
    usual = world.injector.latency
    world.injector.latency = lambda: world.loop.sleep(SLOWLY_S)
    launched = await world.launch()
    await world.created("pods")
    placed = await world.when(lambda found: found.status.admission)
    given = {place.node for place in placed.status.admission.placements} if placed.status.admission else set[str]()
    nodes = [node.metadata.name for node in (await world.kube.list(NODES)).items]
    other = next(name for name in nodes if name not in given)
    pod = (await world.kube.list(PODS, namespace="default")).items[0].metadata
    await world.kube.bind("default", pod.name, pod.uid, other)
    world.injector.latency = usual
    await world.when(lambda found: has_ended(found) and found.metadata.uid == launched.metadata.uid)


REPLACED_S = 0.2
"""Seconds for which the leader is stopped while its object is replaced."""


async def replaced(world: World) -> None:
    """A decision for a deleted object must not be applied to another one of its name."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    first = await world.launch(ranks=2)
    await _decided(world)
    # The leader is stopped between the ledger and the admission, so the object has no finalizer yet.
    leader = world.processes["scheduler"]
    world.freeze(leader, REPLACED_S)
    await world.delete()
    second = await world.launch(ranks=3)
    assert second.metadata.uid != first.metadata.uid
    await world.when(has_ended)


async def lease_deleted(world: World) -> None:
    """After two leaders the lease is deleted and the leader dies: the terms restart at the beginning."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    for name in ("first", "second", "third"):
        await world.launch(name)
        await world.when(has_ended, name=name)
        if name == "second":
            await _without_lease(world)
        if name != "third":
            world.crash(world.processes["scheduler"])


async def lease_deleted_at_work(world: World) -> None:
    """The lease is deleted while work arrives: for a moment there are two leaders, and one of them decides."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    names = [f"job{number}" for number in range(ARRIVALS)]
    for name in names:
        await world.launch(name)
        if name == names[1]:
            await _without_lease(world)
        await asyncio.sleep(ARRIVES_S)
    for name in names:
        await world.when(has_ended, name=name)


async def _without_lease(world: World) -> None:
    for lease in (await world.kube.list(LEASES, namespace=NAMESPACE)).items:
        if "scheduler" in lease.metadata.name:
            await world.kube.delete(LEASES, lease.metadata.name, namespace=NAMESPACE)


async def new_node(world: World) -> None:
    """The only node with enough resources is created after the launch, and the watchers see it late."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=2.0)
    await world.launch(cpu="6")
    await asyncio.sleep(1.0)
    await add_node(world.kube, "large", cpus=8)
    await world.when(has_ended)


async def wait(world: World) -> None:
    """It is too large for the cluster: it waits, and its explanation is written once."""
    await world.launch(ranks=9)
    await world.when(lambda found: found.status.conditions)


async def much_told(world: World) -> None:
    """More transitions happen than the object stores while Redis is down; Redis returns empty."""
    await world.launch(ranks=2)
    await world.when(is_running)
    await asyncio.sleep(1.0)
    world.server.absent = True
    for turn in range(TOLD):
        waiting = turn % 2 == 0
        signals = {"attempt": 1, "waiting": waiting}
        await world.kube.patch(ALLOCATIONS, "job", {"spec": {"signals": signals}}, namespace="default")
        await world.when(lambda found, waiting=waiting: found.status.waiting == waiting)
    world.server.absent = False
    await asyncio.sleep(1.0)
    await world.cancel()
    await world.when(has_ended)


async def poison(world: World) -> None:
    """Undecodable hints, and hints that lead nowhere, are among the others."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    for shard in range(keys.SHARDS):
        world.server.add(keys.work(shard), {"nonsense": b"\xff"})
    nameless = codec.encode_hint(WorkHint(namespace="default", allocation=ids.AllocationId("no")))
    world.server.add(keys.work(0), nameless)
    await world.launch(ranks=2)
    await world.when(has_ended)


async def _decided(world: World) -> None:
    """Wait until a decision is in the ledger, and return in that instant."""
    decided = asyncio.Event()

    def look(change: Commit) -> None:
        if change.resource.startswith("resourcepools") and change.record.obj.get("status", {}).get("decisions"):
            decided.set()

    end = world.core.subscribe(look)
    await decided.wait()
    end()


async def pod_torn_out(world: World) -> None:
    """A running pod is removed with all its finalizers, so its exit can never be known."""
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    await world.launch(ranks=2)
    running = await world.when(is_running)
    uid = (running.status.ranks or [])[1].pod_uid
    for pod in (await world.kube.list(PODS, namespace="default")).items:
        if pod.metadata.uid == uid:
            name = pod.metadata.name
            await world.kube.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace="default")
            await world.kube.delete(PODS, name, namespace="default", grace_s=0)
    for container in world.kubelets.live(running.metadata.uid):
        if container.pod_uid == uid:
            container.ended_at = world.clock.now()
    await world.when(has_ended)


async def evict_ready(world: World) -> None:
    """It reports ready, and is evicted before the watchers have read that."""
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    await world.launch(preemptible=True, preemptionGrace="2s")
    await world.when(is_running)
    await asyncio.sleep(1.0)
    signals = {"attempt": 1, "ready": True}
    said = await world.kube.patch(ALLOCATIONS, "job", {"spec": {"signals": signals}}, namespace="default")
    await asyncio.sleep(0.02)
    stop = Stop(reason=Reason.PREEMPTED.value, at=format_time(world.clock.now()), requeue=True, by="default/other")
    status = msgspec.structs.replace(said.status, stop=stop)
    await world.kube.replace_status(ALLOCATIONS, with_status(said, status))
    await world.when(has_ended)


async def retained(world: World) -> None:
    """An allocation that ended long enough ago is deleted; its usage stays recorded."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.launch("first", ranks=2)
    await world.when(has_ended, name="first")
    await world.until(lambda: _is_gone(world, "first"))


async def stay_long(world: World) -> None:
    """It runs for longer than the interval of any sweep or resync."""
    await world.launch(ranks=2)
    await world.when(is_running)
    await asyncio.sleep(STAYS_S)


async def flushed_alone(world: World) -> None:
    """Redis loses everything while no pod worker runs, and then an allocation is launched."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await asyncio.sleep(5.0)
    world.crash(world.processes["podworker"])
    world.server.flush()
    await world.launch(ranks=2)
    await world.when(has_ended)


async def _is_gone(world: World, name: str) -> bool:
    return all(item.metadata.name != name for item in (await world.kube.list(ALLOCATIONS)).items)


CORNERS = (
    Scenario(name="name-taken", story=name_taken, ends={"job": ended(Result.INVALID)}),
    Scenario(name="bound-elsewhere", story=bound_elsewhere, ends=AGAIN),
    Scenario(name="replaced", story=replaced, ends=DONE),
    Scenario(
        name="lease-deleted",
        story=lease_deleted,
        ends={name: ended(Result.SUCCEEDED) for name in ("first", "second", "third")},
    ),
    Scenario(
        name="lease-deleted-at-work",
        story=lease_deleted_at_work,
        ends={f"job{number}": ended(Result.SUCCEEDED) for number in range(ARRIVALS)},
        setup=Setup(replicas={"scheduler": 2}),
    ),
    Scenario(name="new-node", story=new_node, ends=DONE, setup=Setup(lag_s={"nodes": 10.0}, has_redis=False)),
    Scenario(name="wait", story=wait, ends={"job": Ending(phase=Phase.PENDING, attempt=1)}),
    Scenario(name="much-told", story=much_told, ends=STOPPED),
    Scenario(name="poison", story=poison, ends=DONE),
    Scenario(name="stay-long", story=stay_long, ends={"job": Ending(phase=Phase.RUNNING, attempt=1)}),
    Scenario(
        name="stay-long-r0",
        story=stay_long,
        ends={"job": Ending(phase=Phase.RUNNING, attempt=1)},
        setup=Setup(has_redis=False),
    ),
    Scenario(name="flushed-alone", story=flushed_alone, ends=DONE),
    Scenario(name="pod-torn-out", story=pod_torn_out, ends=AGAIN),
    Scenario(name="evict-ready", story=evict_ready, ends=AGAIN, setup=Setup(lag_s={"allocations": 0.05})),
    Scenario(
        name="retained", story=retained, ends={"first": Ending(is_gone=True)}, setup=Setup(watcher={"retention_s": 5.0})
    ),
)
