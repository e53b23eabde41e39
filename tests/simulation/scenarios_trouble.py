"""Scenarios of other programs' actions: deleted namespaces, given-up nodes, evicted pods, permanent refusals."""

import asyncio

from slipway.kube.resources import ALLOCATIONS, NODES, PODS
from slipway.model.reasons import Result
from tests.simulation.scenario import (
    AGAIN,
    DONE,
    GONE,
    RUNS_S,
    STOPPED,
    Scenario,
    ended,
    has_begun,
    has_ended,
    is_running,
)
from tests.support.kubelet import Script
from tests.support.small_cluster import a_manifest
from tests.support.world import Setup, World


def _first_stays(attempt: int, _rank: int) -> Script:
    """A script: the first attempt runs until it is ended."""
    return Script(runs_s=RUNS_S if attempt > 1 else None)


async def _namespace(world: World) -> None:
    """The workspace is deleted with running allocations."""
    await world.launch(ranks=2)
    await world.when(is_running)
    await world.delete_namespace()
    await world.until(lambda: _is_gone(world))


async def _namespace_launching(world: World) -> None:
    """The workspace is deleted while pods are being created: some exist, others are refused."""
    await world.launch(ranks=4)
    await world.created("pods")
    await world.delete_namespace()
    await world.until(lambda: _is_gone(world))


async def _namespace_waiting(world: World) -> None:
    """The workspace is deleted while the allocation is pending."""
    await world.launch(ranks=9)
    await asyncio.sleep(1.0)
    await world.delete_namespace()
    await world.until(lambda: _is_gone(world))


async def _delete_waiting(world: World) -> None:
    """A pending allocation is deleted by `kubectl delete`."""
    await world.launch(ranks=9)
    await asyncio.sleep(1.0)
    await world.delete()
    await world.until(lambda: _is_gone(world))


async def _delete_ended(world: World) -> None:
    """An ended allocation is deleted by `kubectl delete`, and one with the same name is created at once."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=0.4)
    await world.launch()
    await world.when(has_ended)
    await world.delete()
    await world.until(lambda: _is_gone(world))
    await world.launch()
    await world.when(has_ended)


async def _pod_evicted(world: World) -> None:
    """A kubelet evicts one pod: this is not the user's fault, so the whole gang runs again."""
    world.kubelets.script = _first_stays
    await world.launch(ranks=2)
    running = await world.when(is_running)
    world.kubelets.evict((running.status.ranks or [])[0].pod_uid)
    await world.when(has_ended)


async def _out_of_service(world: World) -> None:
    """The machine dies, its Node object stays, and an administrator declares it out of service: the gang runs again
    elsewhere."""
    world.kubelets.script = _first_stays
    await world.launch(ranks=2, cpu="3")
    running = await world.when(is_running)
    node = (running.status.ranks or [])[0].node
    world.kubelets.lose(node)
    await asyncio.sleep(2.0)
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "value": "nodeshutdown"}
    unreachable = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    await world.kube.patch(NODES, node, {"spec": {"taints": [taint, unreachable], "unschedulable": True}})
    await world.when(has_ended)


async def _pod_killed(world: World) -> None:
    """A pod is deleted by hand at the moment of the release: that attempt ends, and the next one is whole."""
    world.kubelets.script = _first_stays
    released = await _when_released(world)
    for pod in (await world.kube.list(PODS, namespace="default")).items:
        if pod.metadata.uid == released:
            await world.kube.delete(PODS, pod.metadata.name, namespace="default")
    await world.when(has_ended)


async def _when_released(world: World) -> str:
    """Wait until a gang of three is released, and return the uid of its last pod."""
    await world.launch(ranks=3)
    found = await world.when(lambda found: found.status.release is not None)
    return found.status.release.pod_uids[-1] if found.status.release else ""


async def _refused(world: World) -> None:
    """The cluster refuses its pods permanently, because their priority class does not exist."""
    manifest = a_manifest(ranks=2)
    manifest["spec"]["template"]["spec"]["priorityClassName"] = "nowhere"
    await world.apply(manifest)
    await world.when(has_ended)


async def _too_large(world: World) -> None:
    """Its status is larger than an object may be."""
    manifest = a_manifest(ranks=2)
    manifest["spec"]["env"] = {f"WORD_{number}": "x" * 3_000 for number in range(100)}
    await world.apply(manifest)
    await world.when(has_ended)


async def _killed_twice(world: World) -> None:
    """Two ranks fail at once; the user cancels the allocation, and deletes it before its end."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=0.6, code=4, term_s=1.0)
    await world.launch(ranks=3, maxRestarts=3)
    await world.when(has_begun)
    await asyncio.sleep(0.5)
    await world.cancel()
    await world.delete()
    await world.until(lambda: _is_gone(world))


async def _slow_to_go(world: World) -> None:
    """It does not obey SIGTERM: it is killed when its grace is over, and not before."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=None, term_s=600.0)
    await world.launch(ranks=2)
    await world.when(is_running)
    await world.cancel()
    await world.when(has_ended)


async def _is_gone(world: World) -> bool:
    return not (await world.kube.list(ALLOCATIONS)).items


TROUBLE = (
    Scenario(name="namespace-deleted", story=_namespace, ends=GONE),
    Scenario(name="namespace-launching", story=_namespace_launching, ends=GONE),
    Scenario(name="namespace-waiting", story=_namespace_waiting, ends=GONE),
    Scenario(name="delete-waiting", story=_delete_waiting, ends=GONE),
    Scenario(name="delete-ended", story=_delete_ended, ends=DONE),
    Scenario(name="delete-cancelled", story=_killed_twice, ends=GONE),
    Scenario(name="pod-evicted", story=_pod_evicted, ends=AGAIN),
    Scenario(name="pod-killed-released", story=_pod_killed, ends=AGAIN),
    Scenario(name="out-of-service", story=_out_of_service, ends=AGAIN, setup=Setup(nodes=3)),
    Scenario(name="pods-refused", story=_refused, ends={"job": ended(Result.INVALID)}),
    Scenario(name="too-large", story=_too_large, ends={"job": ended(Result.INVALID)}),
    Scenario(name="slow-to-go", story=_slow_to_go, ends=STOPPED),
)
