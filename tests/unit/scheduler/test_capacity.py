"""Requests for nodes on a small cluster: what the leader creates, reads and gives back, beside its ticks."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from slipway.crd.meta import ObjectMeta, RawObject, condition_of
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.objects import PodTemplate, ProvisioningRequest
from slipway.kube.resources import (
    ALLOCATIONS,
    CRDS,
    POD_TEMPLATES,
    PODS,
    PROVISIONING_REQUESTS,
    RESOURCE_POOLS,
    MetadataOnly,
    Resource,
)
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.scheduler.capacity_objects import WORDS_MAX, RequestObjects, read_requests, request_name
from slipway.scheduler.leader import Scheduler
from slipway.scheduler.plan.capacity.pod_sets import PodSet
from slipway.scheduler.plan.capacity.requests import CapacityAsk, RequestState
from slipway.scheduler.settings import Settings
from slipway.scheduler.standby import SchedulerDeps
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.provisioning_requests import a_condition, definition
from tests.support.small_cluster import a_client, a_core, a_manifest, add_node, furnish, look
from tests.support.virtual_time import VirtualClock, run_virtual

OURS = "slipway-system"
PRIORITY_CLASSES = Resource(
    group="scheduling.k8s.io",
    version="v1",
    plural="priorityclasses",
    kind="PriorityClass",
    namespaced=False,
    struct=MetadataOnly,
)


class Cluster:
    """A cluster with an elastic pool, and one scheduler at a time that leads it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.core = a_core(self.clock.now)
        self.kube = a_client(self.core)
        self.its = a_client(self.core, seed=2)
        self.server = MemoryServer(self.clock)
        self.server.absent = True  # no watcher writes a feed here: the leader LISTs
        self.calls: list[tuple[Verb, str]] = []
        self.its.before = self.note_call
        self.tasks = asyncio.TaskGroup()
        self._leads: asyncio.Task[None] | None = None

    async def furnish(self, mode: str, *, has_crd: bool = True, **autoscaling: Any) -> None:
        await furnish(self.kube, nodes=1, cpus=2)
        if has_crd:
            await self.kube.create(CRDS, definition(with_rules=False))
        await self.kube.create(PRIORITY_CLASSES, {"metadata": {"name": "slipway-placeholder"}, "value": -5})
        spec = {"mode": mode, "after": "10s", "backoff": "1m", "tries": 2, **autoscaling}
        await self.kube.patch(RESOURCE_POOLS, "default", {"spec": {"autoscaling": spec}})

    async def note_call(self, verb: Verb, plural: str) -> None:
        self.calls.append((verb, plural))
        await asyncio.sleep(0)

    async def lead(self, *, autoscaling: bool = True) -> None:
        """Start a scheduler."""
        deps = SchedulerDeps(
            kube=self.its,
            streams=MemoryStreams(self.server),
            clock=self.clock,
            random=SeededRandom(3),
            health=ProcessHealth(self.clock),
            settings=Settings(autoscaling=autoscaling, lease_duration_s=5.0, lease_renew_deadline_s=3.0),
            identity=f"at-{self.clock.now()}",
        )
        scheduler = Scheduler(deps)
        (candidate, stop), *_ = await scheduler.discover()
        self._leads = self.tasks.create_task(candidate.compete(stop))

    async def crash(self) -> None:
        """The scheduler ends without cleaning up."""
        assert self._leads is not None
        self._leads.cancel()
        with suppress(asyncio.CancelledError):
            await self._leads

    async def launch(self, name: str = "big", ranks: int = 2) -> None:
        await self.kube.create(ALLOCATIONS, a_manifest(name, ranks=ranks, cpu="2"), namespace="default")

    async def requests(self) -> list[ProvisioningRequest]:
        return (await self.kube.list(PROVISIONING_REQUESTS, namespace=OURS)).items

    async def templates(self) -> list[PodTemplate]:
        return (await self.kube.list(POD_TEMPLATES, namespace=OURS)).items

    async def placeholders(self) -> list[str]:
        return [pod.metadata.name for pod in (await self.kube.list(PODS, namespace=OURS)).items]

    async def let_go(self) -> None:
        """The kubelets end the placeholders that are being deleted."""
        for pod in (await self.kube.list(PODS, namespace=OURS)).items:
            if pod.metadata.deletion_timestamp is not None:
                await self.kube.delete(PODS, pod.metadata.name, namespace=OURS, grace_s=0)

    async def says(self, type_: str, message: str = "", status: str = "True") -> None:
        """The autoscaler sets a condition of every request."""
        at = format_time(self.clock.now(), "seconds")
        for each in await self.requests():
            found = await self.kube.get(PROVISIONING_REQUESTS, each.metadata.name, namespace=OURS)
            told: RawObject = {
                "metadata": {"name": each.metadata.name, "namespace": OURS, **_fence(found.metadata)},
                "status": {"conditions": [a_condition(type_, status, type_, message, at)]},
            }
            await self.kube.replace_status(PROVISIONING_REQUESTS, told)

    async def gate_of(self, name: str = "big") -> str:
        """The message of the condition Admitted; empty without the condition."""
        told = condition_of((await look(self.kube, name)).status.conditions, "Admitted")
        return told.message if told is not None else ""

    async def until(self, check: Callable[[], Awaitable[Any]], within_s: float = 300.0) -> None:
        """Virtual time passes until `check` is true."""
        ends = self.clock.now() + within_s
        while not await check():
            assert self.clock.now() < ends, f"not within {within_s} s; {await self.gate_of()}"
            await self.clock.sleep(1.0)


def _fence(meta: ObjectMeta) -> RawObject:
    return {"resourceVersion": meta.resource_version}


def on_a_cluster(
    test: Callable[[Cluster], Awaitable[None]], mode: str = "ProvisioningRequest", **autoscaling: Any
) -> None:
    async def main() -> None:
        cluster = Cluster()
        await cluster.furnish(mode, **autoscaling)
        async with cluster.tasks:
            await test(cluster)
            await cluster.crash()

    run_virtual(main)


def test_a_gang_gets_nodes_by_a_provisioning_request_and_gives_it_back() -> None:
    """The request has one pod set. Once the nodes exist the gang starts, and nothing of the request remains."""

    async def test(cluster: Cluster) -> None:
        await cluster.launch()
        await cluster.lead()
        await cluster.until(cluster.requests)
        (request,) = await cluster.requests()
        (template,) = await cluster.templates()
        assert template.metadata.name == f"{request.metadata.name}-0"
        assert template.metadata.owner_references[0].kind == "ResourcePool"

        async def is_told() -> bool:
            return "nodes for 2 ranks were requested at" in await cluster.gate_of()

        await cluster.until(is_told)
        await add_node(cluster.kube, "new", cpus=2)
        await cluster.says("Provisioned")

        async def is_over() -> bool:
            started = (await look(cluster.kube, "big")).status.phase is Phase.ASSIGNED
            return started and not await cluster.requests() and not await cluster.templates()

        await cluster.until(is_over)

    on_a_cluster(test)


def test_a_refusal_is_told_kept_through_a_crash_and_asked_again_after_the_backoff() -> None:
    """The template of the failed try records the backoff until the next try exists; another leader reads it."""

    async def test(cluster: Cluster) -> None:
        await cluster.launch()
        await cluster.lead()
        await cluster.until(cluster.requests)
        await cluster.says("Failed", "no capacity in eu-1")

        async def is_refused() -> bool:
            return not await cluster.requests() and "no capacity in eu-1" in await cluster.gate_of()

        await cluster.until(is_refused)
        assert len(await cluster.templates()) == 1
        await cluster.crash()
        await cluster.lead()
        await cluster.until(cluster.requests)
        (second,) = await cluster.requests()
        assert second.metadata.name.endswith("-2")

        async def is_alone() -> bool:
            return [each.metadata.name for each in await cluster.templates()] == [f"{second.metadata.name}-0"]

        await cluster.until(is_alone)
        await cluster.says("Failed", "still none")

        async def has_given_up() -> bool:
            return "all 2 tries failed" in await cluster.gate_of()

        await cluster.until(has_given_up)

    on_a_cluster(test)


@pytest.mark.parametrize("mode", ["ProvisioningRequest", "PlaceholderPods"])
@pytest.mark.parametrize("lost", range(1, 5))
def test_a_crash_between_two_writes_asks_for_nothing_twice(mode: str, lost: int) -> None:
    """Whichever write was the last, the next leader finishes the request under the same names."""

    async def test(cluster: Cluster) -> None:
        made = 0

        async def note(verb: Verb, plural: str) -> None:
            nonlocal made
            await asyncio.sleep(0)
            made += verb is Verb.CREATE and plural in ("podtemplates", "pods", "provisioningrequests")
            if made == lost:
                made += 1
                raise UnavailableError("the connection broke")

        cluster.its.before = note
        await cluster.launch()
        await cluster.lead()
        await cluster.clock.sleep(11.5)
        await cluster.crash()
        cluster.its.before = cluster.note_call
        await cluster.lead()

        async def stands() -> bool:
            return bool(await cluster.requests()) or len(await cluster.placeholders()) == 2

        await cluster.until(stands)
        await cluster.clock.sleep(30.0)
        assert len(await cluster.templates()) == 1
        assert len(await cluster.requests()) + len(await cluster.placeholders()) / 2 == 1

    on_a_cluster(test, mode)


def test_placeholder_pods_leave_when_each_has_a_node_and_the_gang_takes_their_room() -> None:
    """While one placeholder waits for a node, all of them stay."""

    async def test(cluster: Cluster) -> None:
        await cluster.launch(ranks=2)
        await cluster.lead()
        await cluster.until(cluster.placeholders)
        pods = (await cluster.kube.list(PODS, namespace=OURS)).items
        assert {pod.spec.containers[0].resources["requests"]["cpu"] for pod in pods} == {"2"}
        await add_node(cluster.kube, "new", cpus=2)
        await cluster.kube.bind(OURS, pods[0].metadata.name, pods[0].metadata.uid, "n0")
        await cluster.clock.sleep(30.0)
        assert len(await cluster.placeholders()) == 2
        assert (await look(cluster.kube, "big")).status.phase is Phase.PENDING
        await cluster.kube.bind(OURS, pods[1].metadata.name, pods[1].metadata.uid, "new")

        async def starts() -> bool:
            await cluster.let_go()
            return (await look(cluster.kube, "big")).status.phase is Phase.ASSIGNED

        await cluster.until(starts)

        async def is_left() -> bool:
            await cluster.let_go()
            return not (await cluster.placeholders() or await cluster.templates())

        await cluster.until(is_left)

    on_a_cluster(test, "PlaceholderPods")


@pytest.mark.parametrize("change", [{"desired": "Stopped"}, {"hold": True}])
def test_a_request_goes_with_what_it_was_made_for(change: RawObject) -> None:
    """The allocation is stopped or held, so it does not need the nodes."""

    async def test(cluster: Cluster) -> None:
        await cluster.launch()
        await cluster.lead()
        await cluster.until(cluster.requests)
        await cluster.kube.patch(ALLOCATIONS, "big", {"spec": change}, namespace="default")

        async def is_left() -> bool:
            return not (await cluster.requests() or await cluster.templates())

        await cluster.until(is_left)

    on_a_cluster(test)


def test_without_the_kind_it_says_what_to_install() -> None:
    """A missing definition stops neither ticks nor other work."""

    async def test(cluster: Cluster) -> None:
        await cluster.launch()
        await cluster.lead()

        async def is_told() -> bool:
            return "this cluster has no ProvisioningRequest" in await cluster.gate_of()

        await cluster.until(is_told)
        await cluster.kube.create(ALLOCATIONS, a_manifest("small", cpu="1"), namespace="default")

        async def starts() -> bool:
            return (await look(cluster.kube, "small")).status.phase is Phase.ASSIGNED

        await cluster.until(starts)

    on_a_cluster(test, has_crd=False)


def test_without_the_setting_nothing_is_asked_and_the_setting_is_named() -> None:
    """Without the setting the account has no rights for requests."""

    async def test(cluster: Cluster) -> None:
        await cluster.launch()
        await cluster.lead(autoscaling=False)

        async def is_told() -> bool:
            return "set scheduler.settings.autoscaling=true" in await cluster.gate_of()

        await cluster.until(is_told)
        assert not {plural for _, plural in cluster.calls} & {"podtemplates", "provisioningrequests"}

    on_a_cluster(test)


def test_a_pool_without_an_autoscaler_costs_one_read_for_each_leadership() -> None:
    """A new leader deletes what an earlier leader left behind; then there are no calls."""

    async def test(cluster: Cluster) -> None:
        await cluster.launch()
        await cluster.lead()
        await cluster.until(cluster.requests)
        await cluster.crash()
        await cluster.kube.patch(RESOURCE_POOLS, "default", {"spec": {"autoscaling": None}})
        await cluster.lead()

        async def is_left() -> bool:
            return not (await cluster.requests() or await cluster.templates())

        await cluster.until(is_left)
        await cluster.clock.sleep(10.0)
        cluster.calls.clear()
        await cluster.clock.sleep(1000.0)
        assert not {plural for _, plural in cluster.calls} & {"podtemplates", "provisioningrequests"}

    on_a_cluster(test)


def an_ask(**more: Any) -> CapacityAsk:
    """Nodes for one rank."""
    said: dict[str, Any] = {"allocation": "default/big", "uid": "u", "attempt": 1, "shape": "s", "number": 1, **more}
    return CapacityAsk(pod_sets=(PodSet(count=1),), **said)


def test_the_name_of_a_request_follows_from_what_it_is_for() -> None:
    """Another attempt, another shape and another try have other names; each name can be a label."""
    names = {request_name(an_ask(**more)) for more in ({}, {"attempt": 2}, {"shape": "t"}, {"number": 2}, {"uid": "v"})}
    assert len(names) == 5
    longest = request_name(an_ask(allocation=f"default/{'x' * 63}", number=100))
    assert len(longest) <= 63
    assert request_name(an_ask()) == request_name(an_ask())


def test_what_is_no_record_is_no_request() -> None:
    """Another program may have given a template our label."""
    meta = ObjectMeta(name="x", labels={"slipway.dev/capacity-request": "x"}, annotations={})
    assert read_requests(RequestObjects(templates=(PodTemplate(metadata=meta),))) == ()


@pytest.mark.parametrize(
    ("type_", "status", "state"),
    [
        ("Failed", "True", RequestState.FAILED),
        ("CapacityRevoked", "True", RequestState.FAILED),
        ("Provisioned", "True", RequestState.PROVISIONED),
        ("Provisioned", "False", RequestState.ASKED),
        ("Accepted", "True", RequestState.ASKED),
        ("Failed", "False", RequestState.ASKED),
    ],
)
def test_the_conditions_of_the_autoscaler_are_read(type_: str, status: str, state: RequestState) -> None:
    """The message of the condition is read too, shortened."""

    async def test(cluster: Cluster) -> None:
        await cluster.launch()
        await cluster.lead()
        await cluster.until(cluster.requests)
        await cluster.crash()
        await cluster.says(type_, "w" * (WORDS_MAX + 1), status)
        standing = RequestObjects(templates=tuple(await cluster.templates()), requests=tuple(await cluster.requests()))
        (request,) = read_requests(standing)
        assert request.state is state
        assert request.is_settled == (state is RequestState.ASKED)
        assert len(request.words) in (0, WORDS_MAX)

    on_a_cluster(test)
