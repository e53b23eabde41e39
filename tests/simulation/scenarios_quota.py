"""Scenarios of limits: of a queue, of its borrowing, of its budget, of Kubernetes itself; and of many allocations on
few nodes."""

import asyncio

from slipway.crd.meta import RawObject
from slipway.crd.v1alpha1 import Allocation
from slipway.facts.custom_resources import gate_of
from slipway.kube.resources import LIMIT_RANGES, QUEUES, RESOURCE_QUOTAS
from slipway.model.reasons import Gate, Result
from tests.simulation.scenario import DONE, RUNS_S, Ending, Scenario, ended, has_ended, is_running
from tests.support.kubelet import Script
from tests.support.small_cluster import add_node
from tests.support.world import Setup, World

MANY = 12


async def _limit(world: World) -> None:
    """The queue may use half of the cluster: the second allocation waits for the first, though nodes are free."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.kube.patch(QUEUES, "default", {"spec": {"limit": {"cpu": "2"}}})
    for name in ("first", "second"):
        await world.launch(name, ranks=2)
    for name in ("first", "second"):
        await world.when(has_ended, name=name)


async def _borrow(world: World) -> None:
    """A queue borrows up to its limit; an allocation beyond it waits until one of the queue has ended."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    for name, limit in (("theirs", "8"), ("mine", "2")):
        spec = {"pool": "default", "nominal": {"cpu": "2"}, "borrowingLimit": {"cpu": limit}}
        await world.kube.create(QUEUES, {"metadata": {"name": name}, "spec": spec})
    for name in ("own", "borrowed", "beyond"):
        await world.launch(name, ranks=2, queue="mine", preemptible=True)
    for name in ("own", "borrowed", "beyond"):
        await world.when(has_ended, name=name)


async def _budget(world: World) -> None:
    """The first uses up the GPU time of the day; the second waits for the next day, until its owner gives up."""
    await add_node(world.kube, "gpu", cpus=4, gpus=2)
    await world.kube.patch(QUEUES, "default", {"spec": {"budgets": [{"gpuHours": 0.0005, "window": "1d"}]}})
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=3.0)
    template = {"spec": {"containers": [{"name": "main", "image": "python:3.11", "command": ["true"]}]}}
    gpus = {"ranks": [{"name": "worker", "count": 1, "resources": {"cpu": "1", "nvidia.com/gpu": "1"}}]}
    spec = {"kind": "command", "template": template, **gpus}
    await world.apply({"metadata": {"name": "first", "namespace": "default"}, "spec": spec})
    await world.when(has_ended, name="first")
    await asyncio.sleep(1.0)
    await world.apply({"metadata": {"name": "second", "namespace": "default"}, "spec": spec})
    await asyncio.sleep(2.0)
    await world.cancel("second")
    await world.when(has_ended, name="second")


async def _kubernetes_quota(world: World) -> None:
    """The namespace's quota allows two pods, and the gang has three: it waits until the quota is raised."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await _grant(world, pods=2)
    await world.launch(ranks=3)
    await world.when(waits_for_resource_quota)
    await world.kube.patch(RESOURCE_QUOTAS, "team", {"spec": {"hard": {"pods": "5"}}}, namespace="default")
    await world.when(has_ended)


async def _late_quota(world: World) -> None:
    """A quota for two of three pods is created between the admission and the pods: the launch waits for more,
    without pods."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.launch(ranks=3)
    await world.created("configmaps")
    await _grant(world, pods=2)
    await asyncio.sleep(3.0)
    await world.kube.patch(RESOURCE_QUOTAS, "team", {"spec": {"hard": {"pods": "5"}}}, namespace="default")
    await world.when(has_ended)


async def _quota_rivals(world: World) -> None:
    """A quota of four pods and two gangs of three, planned at once: one starts, the other waits for its end."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=3.0)
    await _grant(world, pods=4)
    for name in ("first", "second"):
        await world.launch(name, ranks=3)
    await world.when(waits_for_resource_quota, name="second")
    for name in ("first", "second"):
        await world.when(has_ended, name=name)


async def _grant(world: World, *, pods: int) -> None:
    quota = {"metadata": {"name": "team"}, "spec": {"hard": {"pods": str(pods)}}}
    await world.kube.create(RESOURCE_QUOTAS, quota, namespace="default")


def waits_for_resource_quota(found: Allocation) -> bool:
    """Whether its status shows that it waits for a quota."""
    return gate_of(found)[0] == Gate.RESOURCE_QUOTA


async def _limit_range(world: World) -> None:
    """A LimitRange gives each pod three of a node's four cpus: the second of two allocations waits for the first."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=3.0)
    await _range(world, defaultRequest={"cpu": "3"})
    for name in ("first", "second"):
        await world.apply(_an_asking(name))
    for name in ("first", "second"):
        await world.when(has_ended, name=name)


async def _out_of_range(world: World) -> None:
    """An allocation that the LimitRange refuses shows that and has no pod; it starts when the LimitRange allows it."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await _range(world, max={"cpu": "1"})
    await world.apply(_an_asking("job", cpu="2"))
    await world.when(lambda found: gate_of(found)[0] == Gate.LIMIT_RANGE)
    limits = [{"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "2"}, "defaultRequest": {"cpu": "2"}}]
    await world.kube.patch(LIMIT_RANGES, "bounds", {"spec": {"limits": limits}}, namespace="default")
    await world.when(has_ended)


async def _range(world: World, **item: object) -> None:
    spec = {"limits": [{"type": "Container", **item}]}
    await world.kube.create(LIMIT_RANGES, {"metadata": {"name": "bounds"}, "spec": spec}, namespace="default")


def _an_asking(name: str, **resources: str) -> RawObject:
    """An allocation of one rank whose container asks for 64Mi of memory and `resources`."""
    memory = {"requests": {"memory": "64Mi"}}
    container: RawObject = {"name": "main", "image": "python:3.11", "command": ["true"], "resources": memory}
    spec: RawObject = {"kind": "command", "template": {"spec": {"containers": [container]}}}
    if resources:
        amounts = {"requests": resources, "limits": resources}
        spec["ranks"] = [{"name": "worker", "count": 1, "resources": amounts}]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def _many(world: World) -> None:
    """Twelve allocations for four places: each runs once."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=0.4)
    for number in range(MANY):
        await world.launch(f"job{number}", priority=50 + number % 3)
    for number in range(MANY):
        await world.when(has_ended, name=f"job{number}")


async def _freed(world: World) -> None:
    """The waiting allocation begins when the running one is stopped, and not before its pods are gone."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=None, term_s=2.0)
    await world.launch("first", ranks=4)
    await world.when(is_running, name="first")
    second = await world.launch("second", ranks=4)
    await world.cancel("first")
    await world.when(is_running, name="second")
    for container in world.kubelets.live(second.metadata.uid):
        world.kubelets.exit(container.pod_uid, 0)
    await world.when(has_ended, name="second")


def _all(names: list[str]) -> dict[str, Ending]:
    return {name: ended(Result.SUCCEEDED) for name in names}


QUOTA = (
    Scenario(name="queue-limit", story=_limit, ends=_all(["first", "second"])),
    Scenario(name="borrow", story=_borrow, ends=_all(["own", "borrowed", "beyond"])),
    Scenario(name="budget", story=_budget, ends={"first": ended(Result.SUCCEEDED), "second": ended(Result.CANCELED)}),
    Scenario(name="kubernetes-quota", story=_kubernetes_quota, ends=DONE),
    Scenario(name="late-quota", story=_late_quota, ends=DONE),
    Scenario(name="quota-rivals", story=_quota_rivals, ends=_all(["first", "second"])),
    Scenario(name="limit-range", story=_limit_range, ends=_all(["first", "second"]), setup=Setup(nodes=1)),
    Scenario(name="out-of-range", story=_out_of_range, ends=DONE),
    Scenario(name="many", story=_many, ends=_all([f"job{n}" for n in range(MANY)]), setup=Setup(nodes=1)),
    Scenario(
        name="freed",
        story=_freed,
        ends={"first": ended(Result.CANCELED), "second": ended(Result.SUCCEEDED)},
        setup=Setup(nodes=1),
    ),
)
