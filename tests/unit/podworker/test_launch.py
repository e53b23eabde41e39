"""A launch on a small cluster: the created objects, their order, and the behaviour under faults, rivals and cancels."""

import asyncio

import pytest

from slipway.crd.homes import claim_name
from slipway.crd.meta import ANNOTATION_USER, TRACKING_FINALIZER
from slipway.errors import ControlPlaneError, DeadlineError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, NAMESPACES, PODS, RESOURCE_POOLS
from slipway.model.lifecycle import Event
from tests.support.allocations import a_template
from tests.support.podworker_harness import CrashError, PodWorkerHarness, ended_with, run_with_harness
from tests.support.small_cluster import look

CLAIMS = "persistentvolumeclaims"
GANG = ("n0", "n1", "n0")
AS_A_READER = {
    "spec": {"serviceAccountName": "reader", "containers": [{"name": "main", "image": "x", "command": ["true"]}]}
}


async def assert_launched(harness: PodWorkerHarness, *nodes: str) -> None:
    """Assert that the allocation is released with the uids of exactly its pods, each bound to its node."""
    allocation = await look(harness.kube)
    pods = await harness.pods()
    assert allocation.status.release is not None
    assert allocation.status.release.pod_uids == [pod.metadata.uid for pod in pods]
    assert [pod.spec.node_name for pod in pods] == list(nodes)


def test_one_rank_takes_four_writes_in_their_order() -> None:
    """One rank takes four writes in this order: ConfigMap, pod, release, binding; and three reads: the allocation and,
    once, its pool and its workspace."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        await harness.handle()
        assert harness.calls.seen == [
            (Verb.GET, "allocations"),
            (Verb.GET, "resourcepools"),
            (Verb.GET, "namespaces"),
            (Verb.CREATE, "configmaps"),
            (Verb.CREATE, "pods"),
            (Verb.UPDATE, "allocations"),
            (Verb.BIND, "pods"),
        ]
        await assert_launched(harness, "n0")

    run_with_harness(story)


def test_a_gang_gets_a_service_and_is_released_before_it_is_bound() -> None:
    """Every pod exists before the release, and the release before the first binding."""

    async def story(harness: PodWorkerHarness) -> None:
        allocation = await harness.assign(*GANG)
        await harness.handle()
        order = [f"{verb} {plural}" for verb, plural in harness.calls.writes]
        assert order == [
            "create configmaps",
            *["create pods"] * 3,
            "create services",
            "update allocations",
            *["bind pods"] * 3,
        ]
        await assert_launched(harness, *GANG)
        [service] = await harness.services()
        assert service.spec["clusterIP"] == "None"
        assert service.spec["selector"]["slipway.dev/allocation-uid"] == allocation.metadata.uid

    run_with_harness(story)


def test_a_pod_is_ours_tracked_and_unbound_by_anybody_else() -> None:
    """Owner, finalizer, labels and scheduler name are what the other services rely on."""

    async def story(harness: PodWorkerHarness) -> None:
        allocation = await harness.assign()
        await harness.handle()
        pod = harness.core.get("pods", "default", (await harness.pods())[0].metadata.name)
        assert pod["metadata"]["finalizers"] == [TRACKING_FINALIZER]
        [owner] = pod["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (allocation.metadata.uid, True)
        assert not owner.get("blockOwnerDeletion")
        assert pod["spec"]["schedulerName"] == "slipway"
        assert pod["metadata"]["labels"]["slipway.dev/rank"] == "0"

    run_with_harness(story)


def test_the_hints_that_a_launch_causes_cost_one_read() -> None:
    """The hints that follow from the worker's own writes cost one read, because it knows that it has bound
    everything."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        await harness.handle()
        harness.calls.seen.clear()
        await harness.handle()
        assert harness.calls.seen == [(Verb.GET, "allocations")]

    run_with_harness(story)


def test_a_worker_with_empty_memory_finds_everything_bound() -> None:
    """A worker with empty memory finds everything bound and writes nothing (I25)."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(*GANG)
        await harness.handle()
        worker, calls = harness.another_worker()
        await harness.handle(worker=worker)
        assert calls.writes == []

    run_with_harness(story)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(11))
@pytest.mark.parametrize("error", [DeadlineError, UnavailableError])
def test_a_lost_call_or_answer_at_any_point_still_makes_each_pod_once(
    number: int, moment: str, error: type[ControlPlaneError]
) -> None:
    """V4, V20: whether the write took effect is unknown; the retry adopts its own objects and never kills them."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(*GANG)
        harness.calls.fail_with(lambda call, when: error("lost") if (call, when) == (number, moment) else None)
        await harness.handle()
        await assert_launched(harness, *GANG)
        assert sum(call == (Verb.DELETE, "pods") for call in harness.calls.seen) == 0

    run_with_harness(story)


@pytest.mark.parametrize("number", range(11))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_worker_that_dies_at_any_point_is_followed_by_one_that_finishes(number: int, moment: str) -> None:
    """V5: the successor knows nothing and ends with the same pods."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(*GANG)

        harness.calls.fail_with(lambda call, when: CrashError() if (call, when) == (number, moment) else None)
        with pytest.raises((CrashError, BaseExceptionGroup)):
            await harness.handle()
        before = {pod.metadata.uid for pod in await harness.pods()}
        worker, _ = harness.another_worker()
        await harness.handle(worker=worker)
        await assert_launched(harness, *GANG)
        assert before <= {pod.metadata.uid for pod in await harness.pods()}

    run_with_harness(story)


def test_two_workers_with_the_same_hint_make_one_set_of_pods() -> None:
    """V5: both create, each adopts what the other made, one release wins."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(*GANG)
        rival, _ = harness.another_worker()
        await asyncio.gather(harness.handle(), harness.handle(worker=rival))
        await assert_launched(harness, *GANG)

    run_with_harness(story)


@pytest.mark.parametrize("number", range(8))
def test_a_slow_concurrent_worker_leaves_a_finished_launch_alone(number: int) -> None:
    """V5: a slow rival finds bound pods, which it cannot adopt; they are in a release, so it does not replace them."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(*GANG)
        rival, calls = harness.another_worker()

        async def launch_meanwhile(_verb: Verb, _plural: str) -> None:
            if len(calls.seen) == number:
                await harness.handle()

        calls.hook = launch_meanwhile
        await harness.handle(worker=rival)
        await assert_launched(harness, *GANG)
        assert [pod.metadata.name for pod in await harness.pods() if pod.metadata.deletion_timestamp] == []

    run_with_harness(story)


@pytest.mark.parametrize("number", range(8))
def test_a_cancel_committed_before_the_release_never_starts_a_container(number: int) -> None:
    """V21, I13: after a cancel before the release, at any point, nothing is bound, and created objects are deleted."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(*GANG)

        async def cancel_first(_verb: Verb, _plural: str) -> None:
            if len(harness.calls.seen) == number:
                await harness.cancel()

        harness.calls.hook = cancel_first
        await harness.handle()
        allocation = await look(harness.kube)
        assert allocation.status.release is None
        assert all(not pod.spec.node_name and pod.metadata.deletion_timestamp for pod in await harness.pods())
        assert await harness.configmaps() == []
        assert await harness.services() == []

    run_with_harness(story)


def test_a_status_written_meanwhile_costs_a_new_decision_but_no_new_pods() -> None:
    """After a conflict on the release the worker reads, decides again, and releases the existing pods."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()

        async def meddle(verb: Verb, _plural: str) -> None:
            if verb is Verb.UPDATE and not any(call[0] is Verb.UPDATE for call in harness.calls.seen):
                await harness.set_status(message="noted")

        harness.calls.hook = meddle
        await harness.handle()
        assert sum(call == (Verb.CREATE, "pods") for call in harness.calls.seen) == 1
        await assert_launched(harness, "n0")

    run_with_harness(story)


def test_the_next_attempt_has_pods_of_its_own_and_removes_those_before() -> None:
    """V8: the next attempt has its own pods, whose names never repeat, and the pods of the previous one are removed."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        await harness.handle()
        [first] = await harness.pods()
        await harness.write("job", Event.RESTARTED)
        await harness.admit("n1")
        await harness.handle()
        await harness.finish_deletes()
        [second] = await harness.pods()
        assert second.metadata.name != first.metadata.name
        assert second.spec.node_name == "n1"
        assert len(await harness.configmaps()) == 1

    run_with_harness(story)


def test_an_elastic_gang_is_launched_with_the_ranks_that_were_placed() -> None:
    """RANK counts the launched ranks, SLIPWAY_RANK names the rank."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.kube.create(
            ALLOCATIONS,
            {
                "metadata": {"name": "job", "namespace": "default"},
                "spec": {
                    "kind": "training",
                    "minAvailable": 2,
                    "ranks": [{"name": "worker", "count": 4, "resources": {"cpu": "1"}}],
                    "template": {"spec": {"containers": [{"name": "main", "image": "i", "command": ["c"]}]}},
                },
            },
        )
        await harness.admit("n0", "n1", "n0")
        await harness.handle()
        await assert_launched(harness, "n0", "n1", "n0")
        env = harness.core.get("pods", "default", (await harness.pods())[2].metadata.name)["spec"]["containers"][0][
            "env"
        ]
        assert {item["name"]: item.get("value") for item in env}["WORLD_SIZE"] == "3"

    run_with_harness(story)


def test_a_pool_that_delegates_binding_gets_gated_pods_pinned_to_their_nodes() -> None:
    """In a pool that delegates binding the pods are gated and pinned; the gate is removed after the release, and only
    kube-scheduler binds."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"binding": "delegate"}})
        await harness.assign("n1")
        await harness.handle()
        assert (Verb.BIND, "pods") not in harness.calls.seen
        [pod] = await harness.pods()
        stored = harness.core.get("pods", "default", pod.metadata.name)
        assert not stored["spec"].get("schedulingGates")
        required = stored["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert required["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["n1"]
        worker, calls = harness.another_worker()
        await harness.handle(worker=worker)
        assert calls.writes == []

    run_with_harness(story)


def test_a_configmap_of_somebody_else_is_left_alone_and_refuses_the_launch() -> None:
    """A ConfigMap of another owner is left alone and refuses the launch; the watcher ends the allocation with the
    reason in its condition."""

    async def story(harness: PodWorkerHarness) -> None:
        allocation = await harness.assign()
        name = f"job-{allocation.metadata.uid[:8]}-1"
        await harness.kube.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "default"}, "data": {"a": "b"}})
        await harness.handle()
        [condition] = (await look(harness.kube)).status.conditions
        assert (condition.type, condition.status, condition.reason) == ("Refused", "True", "LaunchRefused")
        assert condition.observed_generation == 1
        assert (await harness.kube.get(CONFIG_MAPS, name, namespace="default")).data == {"a": "b"}
        harness.calls.seen.clear()
        await harness.handle()
        assert harness.calls.writes == []

    run_with_harness(story)


def test_an_own_pod_of_another_version_is_replaced_before_the_release() -> None:
    """An own pod of another version is replaced before the release, as in an upgrade of this service; unreleased pods
    do not run."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(UnavailableError("away"), (Verb.UPDATE, "allocations"))
        await ended_with(harness.handle())
        [old] = await harness.pods()
        other = {"metadata": {"annotations": {"slipway.dev/spec-hash": "of another version"}}}
        await harness.kube.patch(PODS, old.metadata.name, other, namespace="default")
        worker, _ = harness.another_worker()
        first = asyncio.ensure_future(harness.handle(worker=worker))
        await harness.clock.sleep(0.2)
        await harness.finish_deletes()
        await first
        await assert_launched(harness, "n0")
        assert (await harness.pods())[0].metadata.uid != old.metadata.uid

    run_with_harness(story)


def test_a_pod_on_its_way_out_is_waited_for() -> None:
    """V4: the launch waits for a pod that is being deleted, without a forced delete; the name is free when the pod is
    gone."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        harness.calls.fail(UnavailableError("away"), (Verb.UPDATE, "allocations"))
        await ended_with(harness.handle())
        [old] = await harness.pods()
        await harness.kube.delete(PODS, old.metadata.name, namespace="default")
        worker, calls = harness.another_worker()
        waiting = asyncio.ensure_future(harness.handle(worker=worker))
        await harness.clock.sleep(2)
        assert not waiting.done()
        await harness.finish_deletes()
        await waiting
        await assert_launched(harness, "n0")
        assert (Verb.DELETE, "pods") not in calls.seen

    run_with_harness(story)


def test_images_are_pulled_with_the_secrets_of_the_workspace() -> None:
    """The pull secrets of the workspace follow those of the pod template; invalid names in the workspace are left
    out."""

    async def story(harness: PodWorkerHarness) -> None:
        marks = {"slipway.dev/image-pull-secrets": "team, own,Not A Name,,more"}
        await harness.kube.patch(NAMESPACES, "default", {"metadata": {"annotations": marks}})
        template = a_template(imagePullSecrets=[{"name": "own"}])
        await harness.assign(template=template)
        await harness.handle()
        [pod] = harness.core.list("pods").records
        assert [item["name"] for item in pod.obj["spec"]["imagePullSecrets"]] == ["own", "team", "more"]

    run_with_harness(story)


@pytest.mark.parametrize(("marks", "is_launched"), [({}, True), ({"slipway.dev/secrets": "x"}, False)])
def test_a_rank_names_secrets_that_its_workspace_releases(marks: dict[str, str], is_launched: bool) -> None:
    """A rank may name only Secrets that its workspace releases, also in an allocation that did not pass an api."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.kube.patch(NAMESPACES, "default", {"metadata": {"annotations": marks}})
        await harness.assign(template=a_template(volumes=[{"name": "v", "secret": {"secretName": "team"}}]))
        await harness.handle()
        conditions = {each.type: each.message for each in (await look(harness.kube)).status.conditions}
        assert len(harness.core.list("pods").records) == is_launched, conditions
        assert ("slipway.dev/secrets" in conditions.get("Refused", "")) is not is_launched

    run_with_harness(story)


@pytest.mark.parametrize(("marks", "is_launched"), [({}, False), ({"slipway.dev/service-accounts": "x, reader"}, True)])
def test_a_rank_is_a_service_account_that_its_workspace_allows(marks: dict[str, str], is_launched: bool) -> None:
    """A rank may use only service accounts that its workspace allows, also in an allocation that did not pass an api:
    others are refused, and nothing is created."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.kube.patch(NAMESPACES, "default", {"metadata": {"annotations": marks}})
        harness.core.create("serviceaccounts", "default", {"metadata": {"name": "reader"}})
        await harness.assign(template=AS_A_READER)
        await harness.handle()
        pods = [record.obj["spec"].get("serviceAccountName") for record in harness.core.list("pods").records]
        conditions = {each.type: each.message for each in (await look(harness.kube)).status.conditions}
        assert pods == (["reader"] if is_launched else []), conditions
        assert ("slipway.dev/service-accounts" in conditions.get("Refused", "")) is not is_launched

    run_with_harness(story)


HOMES = {"slipway.dev/home": '{"size": "5Gi", "storageClass": "fast"}'}


def bind_volumes(harness: PodWorkerHarness) -> None:
    """From now on the cluster binds claims, as the volume controller does."""

    async def settle(_verb: Verb, _plural: str) -> None:
        harness.core.settle()

    harness.calls.hook = settle


async def assign_at_home(harness: PodWorkerHarness, name: str, user: str) -> None:
    """Create an admitted allocation of that user, with a home."""
    body = harness.a_body(name, home=True)
    body["metadata"]["annotations"] = {ANNOTATION_USER: user}
    await harness.kube.create(ALLOCATIONS, body, namespace="default")
    await harness.admit("n0", name=name)


def test_a_home_is_made_on_first_use_and_stays() -> None:
    """Each user of the workspace gets one claim, made from the workspace's template at the first use. It has no owner,
    so it stays after the allocation."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.kube.patch(NAMESPACES, "default", {"metadata": {"annotations": HOMES}})
        bind_volumes(harness)
        for name, user in (("one", "ada"), ("two", "ada"), ("three", "eve")):
            await assign_at_home(harness, name, user)
            await harness.handle(name)
        claims = {record.obj["metadata"]["name"]: record.obj for record in harness.core.list(CLAIMS).records}
        assert claims.keys() == {claim_name("ada"), claim_name("eve")}
        claim = claims[claim_name("ada")]
        assert claim["spec"]["resources"]["requests"] == {"storage": "5Gi"}
        assert (claim["spec"]["accessModes"], claim["spec"]["storageClassName"]) == (["ReadWriteOnce"], "fast")
        assert "ownerReferences" not in claim["metadata"]
        assert claim["metadata"]["labels"]["slipway.dev/home"] == "true"
        mounted = [
            volume["persistentVolumeClaim"]["claimName"]
            for record in harness.core.list("pods").records
            for volume in record.obj["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        ]
        assert sorted(mounted) == sorted([claim_name("ada"), claim_name("ada"), claim_name("eve")])

    run_with_harness(story)


def test_of_two_who_make_a_home_at_once_one_does() -> None:
    """Of two launches that need a home at once, one creates it, and the other uses it as it is; so does a launch whose
    claim an administrator created before."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.kube.patch(NAMESPACES, "default", {"metadata": {"annotations": HOMES}})
        await assign_at_home(harness, "job", "ada")

        async def rival(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.CREATE, CLAIMS):
                spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}
                harness.core.create(CLAIMS, "default", {"metadata": {"name": claim_name("ada")}, "spec": spec})
            harness.core.settle()

        harness.calls.hook = rival
        await harness.handle()
        [claim] = harness.core.list(CLAIMS).records
        assert claim.obj["spec"]["accessModes"] == ["ReadWriteMany"]
        assert len(harness.core.list("pods").records) == 1

    run_with_harness(story)


@pytest.mark.parametrize(
    ("marks", "user", "why"),
    [({}, "ada", "has no home directories"), (HOMES, "", "set the annotation slipway.dev/user")],
)
def test_a_home_that_cannot_be_is_refused(marks: dict[str, str], user: str, why: str) -> None:
    """A home that is not possible is refused with the field and the next step, also in an allocation that did not pass
    an api, and nothing is created."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.kube.patch(NAMESPACES, "default", {"metadata": {"annotations": marks}})
        await assign_at_home(harness, "job", user)
        await harness.handle()
        conditions = {each.type: each.message for each in (await look(harness.kube)).status.conditions}
        assert conditions["Refused"].startswith("/home: ")
        assert why in conditions["Refused"]
        assert not harness.core.list("pods").records
        assert not harness.core.list(CLAIMS).records

    run_with_harness(story)
