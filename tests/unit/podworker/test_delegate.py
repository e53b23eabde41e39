"""Pools that leave the binding to kube-scheduler: gated until the release, pinned and opened in one write, never bound.

With other processes that open gates, and crashes in between, the end is the same: exactly the released pods are open.
"""

from typing import Any

import pytest

from slipway.crd.meta import ANNOTATION_OPENED
from slipway.errors import InvalidError, StaleError
from slipway.kube.errors import Verb
from slipway.kube.ports import PatchType
from slipway.kube.resources import PODS, RESOURCE_POOLS, STORAGE_CLASSES
from slipway.pods.podspec import LAUNCH_GATE, is_pinned
from tests.support.allocations import a_template
from tests.support.podworker_harness import CrashError, PodWorkerHarness, run_with_harness
from tests.support.small_cluster import look

GANG = ("n0", "n1", "n0")
OTHER = {"name": "example.com/quota"}


async def delegated(harness: PodWorkerHarness, *nodes: str, scheduler: str = "", **spec: Any) -> None:
    """Create an admitted gang in a pool that delegates."""
    await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"binding": "delegate", "schedulerName": scheduler}})
    await harness.assign(*nodes, **spec)


async def assert_open(harness: PodWorkerHarness, *nodes: str) -> None:
    """Assert that the gang is released, every gate open, every pod pinned, and no pod bound."""
    allocation = await look(harness.kube)
    pods = await harness.pods()
    assert allocation.status.release is not None
    assert allocation.status.release.pod_uids == [pod.metadata.uid for pod in pods]
    for pod, node in zip(pods, nodes, strict=True):
        assert not pod.spec.scheduling_gates
        assert is_pinned(pod.spec.affinity, node)
        assert not pod.spec.node_name
        assert pod.metadata.annotations[ANNOTATION_OPENED]


async def conditions(harness: PodWorkerHarness) -> list[tuple[str, str, str]]:
    return [(item.type, item.status, item.reason) for item in (await look(harness.kube)).status.conditions]


def test_pods_are_gated_until_the_release() -> None:
    """Pods are gated until the release; then one write per pod opens the gate and pins the node."""

    async def story(harness: PodWorkerHarness) -> None:
        await delegated(harness, *GANG)

        async def before(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.UPDATE, "allocations"):
                pods = await harness.pods()
                assert [[gate.name for gate in pod.spec.scheduling_gates] for pod in pods] == [[LAUNCH_GATE]] * 3
                assert all(pod.spec.affinity == {} for pod in pods)
                assert {pod.spec.scheduler_name for pod in pods} == {"default-scheduler"}

        harness.calls.hook = before
        await harness.handle()
        assert [f"{verb} {plural}" for verb, plural in harness.calls.writes] == [
            "create configmaps",
            *["create pods"] * 3,
            "create services",
            "update allocations",
            *["patch pods"] * 3,
        ]
        await assert_open(harness, *GANG)

    run_with_harness(story)


def test_scheduler_of_the_pool_is_named_in_its_pods() -> None:
    """The pods name the scheduler of the pool, which may be any that follows node affinity."""

    async def story(harness: PodWorkerHarness) -> None:
        await delegated(harness, "n0", scheduler="batch-scheduler")
        await harness.handle()
        assert [pod.spec.scheduler_name for pod in await harness.pods()] == ["batch-scheduler"]

    run_with_harness(story)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_between_any_two_effects_is_made_good(moment: str) -> None:
    """After a crash between any two effects the next worker opens the gates that are closed, and only those."""

    def at_call(number: int) -> None:
        async def story(harness: PodWorkerHarness) -> None:
            await delegated(harness, *GANG)
            harness.calls.fail_with(lambda at, when: CrashError() if (at, when) == (number, moment) else None)
            try:
                await harness.handle()
            except (CrashError, BaseExceptionGroup):
                worker, _ = harness.another_worker()
                await harness.handle(worker=worker)
            await assert_open(harness, *GANG)

        run_with_harness(story)

    for number in range(12):
        at_call(number)


def test_gates_of_others_stay() -> None:
    """A webhook adds a gate of its own to each pod: ours is removed, and the pod waits for the owner of the other
    gate."""

    async def story(harness: PodWorkerHarness) -> None:
        create = harness.core.create

        def with_a_gate(resource: str, namespace: str, obj: Any, options: Any = None) -> Any:
            if resource == "pods":
                gates = [OTHER, *obj["spec"].get("schedulingGates", [])]
                obj = {**obj, "spec": {**obj["spec"], "schedulingGates": gates}}
            return create(resource, namespace, obj, options)

        harness.core.create = with_a_gate
        await delegated(harness, "n0")
        await harness.handle()
        [pod] = await harness.pods()
        assert [gate.name for gate in pod.spec.scheduling_gates] == [OTHER["name"]]
        assert is_pinned(pod.spec.affinity, "n0")
        assert await conditions(harness) == []

    run_with_harness(story)


def test_gate_that_a_rival_has_opened_is_fine() -> None:
    """A gate that a rival has opened is no error: two workers open the same gates, and pin the pods to the same
    nodes."""

    async def story(harness: PodWorkerHarness) -> None:
        await delegated(harness, *GANG)
        rival, _ = harness.another_worker()
        reached: list[None] = []

        async def meanwhile(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.PATCH, "pods") and not reached:
                reached.append(None)
                await harness.handle(worker=rival)

        harness.calls.hook = meanwhile
        await harness.handle()
        assert reached
        await assert_open(harness, *GANG)
        assert await conditions(harness) == []

    run_with_harness(story)


def test_conflict_over_a_gate_is_tried_again() -> None:
    """The server may answer 409 to a patch under many writes: the pod is as it was, so the gate is opened."""

    async def story(harness: PodWorkerHarness) -> None:
        await delegated(harness, "n0")
        failed: list[int] = []

        def once(number: int, moment: str) -> StaleError | None:
            if harness.calls.seen[number] != (Verb.PATCH, "pods") or moment != "before" or failed:
                return None
            failed.append(number)
            return StaleError("the object has been modified")

        harness.calls.fail_with(once)
        await harness.handle()
        assert failed
        await assert_open(harness, "n0")
        assert await conditions(harness) == []

    run_with_harness(story)


def test_pin_that_the_server_refuses_breaks_the_attempt() -> None:
    """A pin that the server refuses breaks the attempt, with the server's message and without endless retries."""

    async def story(harness: PodWorkerHarness) -> None:
        await delegated(harness, "n0")
        harness.calls.fail(InvalidError("only additions are allowed"), (Verb.PATCH, "pods"))
        await harness.handle()
        [stuck] = (await look(harness.kube)).status.conditions
        assert (stuck.type, stuck.reason) == ("Stuck", "BindRefused")
        assert "only additions are allowed" in stuck.message

    run_with_harness(story)


def test_gate_that_somebody_else_has_opened_breaks_the_attempt() -> None:
    """A gate that another process has opened without a pin breaks the attempt, because the pod may run on any node."""

    async def story(harness: PodWorkerHarness) -> None:
        await delegated(harness, "n0")

        async def meanwhile(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.PATCH, "pods"):
                [pod] = await harness.pods()
                if pod.spec.scheduling_gates:
                    opening = [{"op": "remove", "path": "/spec/schedulingGates"}]
                    await harness.kube.patch(
                        PODS, pod.metadata.name, opening, namespace="default", type_=PatchType.JSON
                    )

        harness.calls.hook = meanwhile
        await harness.handle()
        assert await conditions(harness) == [("Stuck", "True", "BindRefused")]

    run_with_harness(story)


def test_pod_on_another_node_breaks_the_attempt() -> None:
    """A pod that is bound to another node breaks the attempt, because its capacity there was not reserved."""

    async def story(harness: PodWorkerHarness) -> None:
        await delegated(harness, "n0")
        await harness.handle()
        [pod] = await harness.pods()
        await harness.kube.bind("default", pod.metadata.name, pod.metadata.uid, "n1")
        worker, _ = harness.another_worker()
        await harness.handle(worker=worker)
        assert await conditions(harness) == [("Stuck", "True", "BindRefused")]

    run_with_harness(story)


def test_pod_on_its_way_out_breaks_the_attempt() -> None:
    """A pod that is deleted between release and opening breaks the attempt: it can no longer be bound, and the next
    worker returns the attempt."""

    async def story(harness: PodWorkerHarness) -> None:
        await delegated(harness, "n0")

        async def meanwhile(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.PATCH, "pods"):
                [pod] = await harness.pods()
                await harness.kube.delete(PODS, pod.metadata.name, namespace="default")

        harness.calls.hook = meanwhile
        await harness.handle()
        worker, _ = harness.another_worker()
        await harness.handle(worker=worker)
        assert await conditions(harness) == [("Stuck", "True", "BindRefused")]

    run_with_harness(story)


def test_affinity_of_the_role_is_kept_and_narrowed() -> None:
    """The role's own affinity terms are kept, and the node is added to each."""

    async def story(harness: PodWorkerHarness) -> None:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
        own = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        containers = [{"name": "main", "image": "python:3.11", "command": ["true"]}]
        await delegated(harness, "n1", template={"spec": {"containers": containers, "affinity": own}})
        await harness.handle()
        await assert_open(harness, "n1")
        [pod] = await harness.pods()
        terms = pod.spec.affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert [item["matchExpressions"] for item in terms] == [term["matchExpressions"]]

    run_with_harness(story)


def test_cancel_before_the_release_opens_nothing() -> None:
    """I13: the release does not commit, so no gate is ever opened."""

    async def story(harness: PodWorkerHarness) -> None:
        await delegated(harness, *GANG)

        async def meanwhile(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.UPDATE, "allocations"):
                await harness.cancel()

        harness.calls.hook = meanwhile
        await harness.handle()
        assert (Verb.PATCH, "pods") not in harness.calls.seen
        assert all(pod.metadata.deletion_timestamp is not None for pod in await harness.pods())

    run_with_harness(story)


SCRATCH: dict[str, Any] = {
    "name": "scratch",
    "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"]}}},
}
NEEDS: dict[str, dict[str, Any]] = {
    "a volume that waits for its first consumer": {"volumes": [SCRATCH]},
    "devices by claims": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]},
}


@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.parametrize("fails_at", [None, 1, 3, 5])
def test_an_attempt_that_needs_kube_scheduler_is_left_to_it_in_any_pool(need: str, fails_at: int | None) -> None:
    """An attempt that needs kube-scheduler is bound by it in any pool: all its ranks are gated until the release, also
    when a worker dies in between."""

    async def story(harness: PodWorkerHarness) -> None:
        late = {"metadata": {"name": "late"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}
        await harness.kube.create(STORAGE_CLASSES, late)
        await harness.assign(
            *GANG, template=a_template({"name": "main", "image": "x", "command": ["x"]}, **NEEDS[need])
        )
        harness.calls.fail_with(lambda at, when: CrashError() if (at, when) == (fails_at, "after") else None)
        try:
            await harness.handle()
        except (CrashError, BaseExceptionGroup):
            worker, _ = harness.another_worker()
            await harness.handle(worker=worker)
        assert {pod.spec.scheduler_name for pod in await harness.pods()} == {"default-scheduler"}
        await assert_open(harness, *GANG)

    run_with_harness(story)
