"""The scheduler's tick on a small cluster: what it writes, in which order, and what it leaves alone."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from slipway.crd.meta import LABEL_WORKSPACE, TEARDOWN_FINALIZER, RawObject, condition_of
from slipway.errors import DeniedError, StaleError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.ports import PatchType
from slipway.kube.resources import (
    ALLOCATIONS,
    LEASES,
    NAMESPACES,
    PERSISTENT_VOLUMES,
    QUEUES,
    RESOURCE_POOLS,
    VOLUME_CLAIMS,
    Resource,
)
from slipway.model.lifecycle import Event, Phase
from slipway.model.times import format_time
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.scheduler.leader import Scheduler
from slipway.scheduler.settings import Settings
from slipway.scheduler.standby import SchedulerDeps
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core, a_manifest, furnish, launch, look
from tests.support.virtual_time import VirtualClock, run_virtual


class SchedulerHarness:
    """A scheduler beside a cluster; `kube` is the test's own client, `its` the scheduler's."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.core = a_core(self.clock.now)
        self.kube = a_client(self.core)
        self.its = a_client(self.core, seed=2)
        self.server = MemoryServer(self.clock)

    def scheduler(self, identity: str = "one") -> Scheduler:
        return Scheduler(
            SchedulerDeps(
                kube=self.its,
                streams=MemoryStreams(self.server),
                clock=self.clock,
                random=SeededRandom(3),
                health=ProcessHealth(self.clock),
                settings=Settings(),
                identity=identity,
            )
        )

    async def tick(self, identity: str = "one") -> bool:
        """Run one pass over all pools of the scheduler `identity`; False when another one leads."""
        led = True
        for candidate, _ in await self.scheduler(identity).discover():
            led = await candidate.run_once() and led
        return led


def on_a_cluster(test: Callable[[SchedulerHarness], Coroutine[Any, Any, None]], **cluster: int) -> None:
    async def main() -> None:
        harness = SchedulerHarness()
        await furnish(harness.kube, **cluster)
        await test(harness)

    run_virtual(main)


def test_a_hand_applied_allocation_is_admitted_with_the_finalizer_and_a_decision_in_the_ledger() -> None:
    """The ledger has the decision before the admission is written, and each admission sets our finalizer."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, ranks=3)
        await harness.tick()

        found = await look(harness.kube)
        pool = await harness.kube.get(RESOURCE_POOLS, "default")
        assert found.status.phase is Phase.ASSIGNED
        assert TEARDOWN_FINALIZER in found.metadata.finalizers
        assert found.status.admission is not None
        assert [placement.rank for placement in found.status.admission.placements] == [0, 1, 2]
        assert found.status.admission.epoch == pool.status.epoch == 1
        assert found.status.admission.decision_id in [decision.id for decision in pool.status.decisions]
        assert [(entry.seq, entry.type) for entry in found.status.transitions] == [
            (1, Event.REQUESTED),
            (2, Event.ASSIGNED),
        ]

    on_a_cluster(test)


def test_a_gang_that_does_not_fit_waits_whole_and_says_why() -> None:
    """Nothing of a gang is placed unless all of it is; the condition names the gate."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, ranks=9)
        await harness.tick()

        found = await look(harness.kube)
        waiting = condition_of(found.status.conditions, "Admitted")
        assert found.status.phase is Phase.PENDING
        assert found.status.admission is None
        assert waiting is not None
        assert (waiting.status, waiting.reason) == ("False", "NoFit")
        assert "cpu" in waiting.message

    on_a_cluster(test, nodes=2, cpus=4)


def test_a_spec_that_can_never_run_is_marked_invalid_with_the_field() -> None:
    """Waiting would not help: the condition says which field to change."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(
            harness.kube,
            template={
                "spec": {"containers": [{"name": "main", "image": "x", "securityContext": {"privileged": True}}]}
            },
        )
        await harness.tick()

        invalid = condition_of((await look(harness.kube)).status.conditions, "Invalid")
        assert invalid is not None
        assert invalid.status == "True"
        assert "privileged" in invalid.message

    on_a_cluster(test)


def test_capacity_is_given_once() -> None:
    """What one allocation holds is not given to another, also before its pods exist."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, "first", ranks=4)
        await harness.tick()
        await launch(harness.kube, "second", ranks=1)
        await harness.tick("two")

        assert (await look(harness.kube, "first")).status.phase is Phase.ASSIGNED
        assert (await look(harness.kube, "second")).status.phase is Phase.PENDING

    on_a_cluster(test, nodes=1, cpus=4)


def test_a_new_leader_raises_the_epoch_and_finishes_what_its_predecessor_decided() -> None:
    """The ledger is written, the admission is not: the successor writes it, under the predecessor's own epoch."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube)

        async def refuse(verb: Verb, plural: str) -> None:
            if verb is Verb.UPDATE and plural == ALLOCATIONS.plural:
                raise UnavailableError("lost")

        harness.its.before = refuse
        await harness.tick()
        harness.its = a_client(harness.core, seed=5)
        await harness.tick("two")

        found = await look(harness.kube)
        pool = await harness.kube.get(RESOURCE_POOLS, "default")
        assert found.status.phase is Phase.ASSIGNED
        assert found.status.admission is not None
        assert found.status.admission.epoch == 1
        assert pool.status.epoch == 2

    on_a_cluster(test)


def test_a_cancelled_allocation_is_never_admitted() -> None:
    """A cancel that was committed before the tick wins."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube)
        await harness.kube.patch(ALLOCATIONS, "job", {"spec": {"desired": "Stopped"}}, namespace="default")
        await harness.tick()

        assert (await look(harness.kube)).status.phase is Phase.PENDING

    on_a_cluster(test)


def test_a_passed_deadline_is_written_as_a_stop() -> None:
    """Deadlines are stored in the object, and the tick fires them."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, ranks=9, pendingTimeout="30s")
        await harness.clock.sleep(31)
        await harness.tick()

        stop = (await look(harness.kube)).status.stop
        assert stop is not None
        assert stop.reason == "PendingTimeout"

    on_a_cluster(test)


@pytest.mark.parametrize("error", [StaleError("conflict"), UnavailableError("lost")])
def test_a_plan_that_time_alone_asked_for_is_made_again_when_the_ledger_refused_it(error: Exception) -> None:
    """Nothing in the cluster changes after the backoff has run out, so nothing else would wake the planner."""

    async def test(harness: SchedulerHarness) -> None:
        found = await launch(harness.kube)
        later = msgspec.structs.replace(found.status, not_before=format_time(harness.clock.now() + 30))
        await harness.kube.replace_status(ALLOCATIONS, msgspec.structs.replace(found, status=later))
        refused: list[float] = []

        async def refuse(verb: Verb, plural: str) -> None:
            if (
                verb is Verb.UPDATE
                and plural == RESOURCE_POOLS.plural
                and harness.clock.monotonic() > 20
                and not refused
            ):
                refused.append(harness.clock.monotonic())
                raise error

        harness.its.before = refuse
        async with asyncio.TaskGroup() as tasks:
            for candidate, stop in await harness.scheduler().discover():
                leading = tasks.create_task(candidate.compete(stop))
                await harness.clock.sleep(45)
                stop.set()
                await leading
        assert refused
        assert (await look(harness.kube)).status.phase is Phase.ASSIGNED

    on_a_cluster(test)


def test_at_rest_the_scheduler_writes_nothing() -> None:
    """A tick that changes nothing writes nothing."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, ranks=9)
        await harness.tick()
        writes: list[tuple[Verb, str]] = []

        async def note(verb: Verb, plural: str) -> None:
            if verb in (Verb.UPDATE, Verb.PATCH, Verb.CREATE) and plural != "leases":
                writes.append((verb, plural))

        harness.its.before = note
        await harness.tick("two")
        assert writes == [(Verb.UPDATE, RESOURCE_POOLS.plural)], "only the promotion's epoch"

    on_a_cluster(test)


def test_each_pool_has_a_leader_and_a_ledger_of_its_own() -> None:
    """One process may lead several; each places its own work on its own nodes, under its own lease."""

    async def test(harness: SchedulerHarness) -> None:
        await harness.kube.patch(
            RESOURCE_POOLS, "default", {"spec": {"nodeSelector": {"kubernetes.io/hostname": "n0"}}}
        )
        other = {"metadata": {"name": "other"}, "spec": {"nodeSelector": {"kubernetes.io/hostname": "n1"}}}
        await harness.kube.create(RESOURCE_POOLS, other)
        await harness.kube.create(QUEUES, {"metadata": {"name": "others"}, "spec": {"pool": "other"}})
        await launch(harness.kube, "one")
        await launch(harness.kube, "two", pool="other", queue="others")
        await harness.tick()

        nodes = {name: (await look(harness.kube, name)).status.admission for name in ("one", "two")}
        assert {name: each.placements[0].node for name, each in nodes.items() if each} == {"one": "n0", "two": "n1"}
        epochs = [(await harness.kube.get(RESOURCE_POOLS, name)).status.epoch for name in ("default", "other")]
        assert all(epochs)
        leases = {each.metadata.name for each in (await harness.kube.list(LEASES)).items}
        assert leases == {"slipway-scheduler-default", "slipway-scheduler-other"}

    on_a_cluster(test)


class NarrowKube(CoreKube):
    """A client that may write nothing in namespace `elsewhere`, like an account without Roles there."""

    async def patch(
        self,
        resource: Resource[Any],
        name: str,
        patch: RawObject | list[RawObject],
        *,
        namespace: str | None = None,
        type_: PatchType = PatchType.MERGE,
    ) -> Any:
        self._check(namespace)
        return await super().patch(resource, name, patch, namespace=namespace, type_=type_)

    async def get(self, resource: Resource[Any], name: str, *, namespace: str | None = None) -> Any:
        self._check(namespace)
        return await super().get(resource, name, namespace=namespace)

    async def replace_status(self, resource: Resource[Any], body: Any) -> Any:
        if resource is ALLOCATIONS:
            self._check(body["metadata"]["namespace"])
        return await super().replace_status(resource, body)

    def _check(self, namespace: str | None) -> None:
        if namespace == "elsewhere":
            raise DeniedError("forbidden")


@pytest.mark.parametrize("ranks", [1, 100])
def test_where_the_scheduler_may_not_write_nobody_else_waits_for_it(ranks: int) -> None:
    """The scheduler can read and write nothing there, and other work is still placed."""

    async def test(harness: SchedulerHarness) -> None:
        labels = {LABEL_WORKSPACE: "true"}
        await harness.kube.create(NAMESPACES, {"metadata": {"name": "elsewhere", "labels": labels}})
        first = {**a_manifest(ranks=ranks), "metadata": {"name": "first"}}
        await harness.kube.create(ALLOCATIONS, first, namespace="elsewhere")
        await harness.clock.sleep(1)
        await launch(harness.kube, "second")
        harness.its = NarrowKube(harness.core, random=SeededRandom(2))
        await harness.tick()
        assert (await look(harness.kube, "second")).status.phase is Phase.ASSIGNED
        assert (await harness.kube.get(ALLOCATIONS, "first", namespace="elsewhere")).status.phase is Phase.PENDING

    on_a_cluster(test)


def mounting(claim: str) -> RawObject:
    """A pod template with that claim."""
    container = {"name": "main", "image": "python:3.11", "command": ["true"]}
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    return {"spec": {"containers": [container], "volumes": [volume]}}


def test_a_launch_goes_to_the_node_that_reaches_its_bound_volume() -> None:
    """The first tick that sees the launch places it there. A second launch waits for that node, though the other node
    is free."""

    async def test(harness: SchedulerHarness) -> None:
        where = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}
        terms = [{"matchExpressions": [where]}]
        disk: RawObject = {
            "metadata": {"name": "disk"},
            "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
        }
        await harness.kube.create(PERSISTENT_VOLUMES, disk)
        claim: RawObject = {"metadata": {"name": "data"}, "spec": {"volumeName": "disk"}}
        await harness.kube.create(VOLUME_CLAIMS, claim, namespace="default")
        harness.core.settle()
        await launch(harness.kube, "first", cpu="4", template=mounting("data"))
        await harness.tick()
        await launch(harness.kube, "second", cpu="4", template=mounting("data"))
        await harness.tick()

        first, second = await look(harness.kube, "first"), await look(harness.kube, "second")
        assert first.status.admission is not None
        assert [placement.node for placement in first.status.admission.placements] == ["n1"]
        waiting = condition_of(second.status.conditions, "Admitted")
        assert waiting is not None
        assert waiting.reason == "NoFit"
        assert "1 lacks 4 cpu free, 1 cannot reach the volume of claim data (only node n1 can)" in waiting.message

    on_a_cluster(test, nodes=2, cpus=4)


def test_a_launch_waits_for_a_claim_that_is_not_there_without_a_place() -> None:
    """The launch starts in the first tick that finds the claim."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, template=mounting("data"))
        await harness.tick()
        found = await look(harness.kube)
        waiting = condition_of(found.status.conditions, "Admitted")
        assert (found.status.phase, found.status.admission) == (Phase.PENDING, None)
        assert waiting is not None
        assert waiting.reason == "WaitingForVolume"
        assert waiting.message.startswith("volume claim data does not exist in namespace default")
        await harness.kube.create(VOLUME_CLAIMS, {"metadata": {"name": "data"}, "spec": {}}, namespace="default")
        harness.core.settle()
        await harness.tick()
        assert (await look(harness.kube)).status.phase is Phase.ASSIGNED

    on_a_cluster(test)
