"""A teardown on a small cluster: what is deleted, when, and what is never touched."""

import pytest

from slipway.crd.meta import RawObject
from slipway.crd.v1alpha1 import RankStatus
from slipway.errors import DeadlineError, DeniedError, InvalidError, PermanentError, ThrottledError, TransientError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS
from slipway.model.lifecycle import Event, RankState
from slipway.podworker.teardown import BY_NAME_MAX
from tests.support.podworker_harness import PodWorkerHarness, ended_with, run_with_harness
from tests.support.small_cluster import launch, look

SIZES = [pytest.param(("n0",), id="by name"), pytest.param(("n0", "n1") * BY_NAME_MAX, id="by list")]


async def run(harness: PodWorkerHarness, *nodes: str) -> None:
    """Create a launched and running allocation."""
    await harness.assign(*nodes)
    await harness.handle()


@pytest.mark.parametrize("nodes", SIZES)
def test_what_terminates_loses_its_pods_and_what_has_ended_everything(nodes: tuple[str, ...]) -> None:
    """While Terminating the pods are deleted, and the ConfigMap stays while containers may run; 60 s after the end
    nothing is left (I11)."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, *nodes)
        await harness.write("job", Event.TERMINATING)
        await harness.handle()
        assert all(pod.metadata.deletion_timestamp for pod in await harness.pods())
        assert len(await harness.configmaps()) == 1
        await harness.finish_deletes()
        await harness.write("job", Event.TERMINATED)
        await harness.handle()
        assert await harness.pods() == []
        assert await harness.configmaps() == []
        assert await harness.services() == []

    run_with_harness(story)


@pytest.mark.parametrize("nodes", SIZES)
def test_a_pod_that_ended_by_itself_is_kept_until_its_log_is_read(nodes: tuple[str, ...]) -> None:
    """A pod that ended by itself is left to the log reader, because its node removes the log once it is marked deleted.
    The other pods and objects of its gang are deleted."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, *nodes)
        found = await harness.pods()
        first = next(pod for pod in found if pod.metadata.name.endswith("-0"))
        ended = RankStatus(pod_uid=first.metadata.uid, phase=RankState.FAILED, exit_code=1)
        await harness.write("job", Event.TERMINATING, ranks=[ended])
        await harness.handle()
        kept = [pod.metadata.name for pod in await harness.pods() if pod.metadata.deletion_timestamp is None]
        assert kept == [first.metadata.name]
        await harness.finish_deletes()
        await harness.write("job", Event.TERMINATED)
        await harness.handle()
        [left] = await harness.pods()
        assert (left.metadata.name, left.metadata.deletion_timestamp) == (first.metadata.name, None)
        assert [*await harness.configmaps(), *await harness.services()] == []

    run_with_harness(story)


@pytest.mark.parametrize("nodes", SIZES)
def test_a_teardown_of_what_is_gone_writes_nothing(nodes: tuple[str, ...]) -> None:
    """A teardown whose objects are gone writes nothing."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, *nodes)
        await harness.write("job", Event.TERMINATED)
        await harness.handle()
        await harness.finish_deletes()
        harness.core.settle()
        first = harness.core.version
        await harness.handle()
        assert harness.core.version == first

    run_with_harness(story)


@pytest.mark.parametrize("nodes", SIZES)
def test_a_pod_that_was_made_late_goes_too(nodes: tuple[str, ...]) -> None:
    """A pod that a slow create makes under the name of a deleted, released pod is deleted too."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, *nodes)
        await harness.write("job", Event.TERMINATED)
        late = (await harness.pods())[0]
        body = harness.core.get("pods", "default", late.metadata.name)
        await harness.handle()
        await harness.finish_deletes()
        meta = {name: body["metadata"][name] for name in ("name", "namespace", "labels", "ownerReferences")}
        spec = {name: value for name, value in body["spec"].items() if name != "nodeName"}
        await harness.kube.create(PODS, {"metadata": meta, "spec": spec}, namespace="default")
        await harness.handle()
        assert await harness.pods() == []

    run_with_harness(story)


def test_running_pods_get_their_own_grace() -> None:
    """Running pods get their own grace: the delete names none, so the server uses the pod's."""

    async def story(harness: PodWorkerHarness) -> None:
        template = {
            "spec": {
                "containers": [{"name": "main", "image": "i", "command": ["c"]}],
                "terminationGracePeriodSeconds": 77,
            }
        }
        await harness.assign(template=template)
        await harness.handle()
        await harness.write("job", Event.TERMINATING)
        await harness.handle()
        [pod] = await harness.pods()
        assert pod.metadata.deletion_grace_period_seconds == 77

    run_with_harness(story)


@pytest.mark.parametrize("nodes", SIZES)
def test_what_only_looks_like_ours_is_left_alone(nodes: tuple[str, ...]) -> None:
    """An object with our label whose owner is not the allocation is left alone."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, *nodes)
        allocation = await look(harness.kube)
        labels = {"slipway.dev/allocation-uid": allocation.metadata.uid, "slipway.dev/attempt": "1"}
        stranger: RawObject = {"metadata": {"name": "stranger", "namespace": "default", "labels": labels}}
        await harness.kube.create(CONFIG_MAPS, stranger)
        await harness.write("job", Event.TERMINATED)
        await harness.handle()
        assert [item.metadata.name for item in await harness.configmaps()] == ["stranger"]

    run_with_harness(story)


def test_a_name_that_was_taken_again_is_safe() -> None:
    """V8: a new object under an old name is safe, because the delete has the uid of the pod in the release."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, "n0")
        [old] = await harness.pods()
        raw = harness.core.get("pods", "default", old.metadata.name)
        await harness.kube.delete(PODS, old.metadata.name, namespace="default")
        await harness.finish_deletes()
        fresh: RawObject = {"metadata": {"name": old.metadata.name, "namespace": "default"}, "spec": raw["spec"]}
        new = await harness.kube.create(PODS, fresh)
        await harness.write("job", Event.TERMINATED)
        await harness.handle()
        [left] = await harness.pods()
        assert (left.metadata.uid, left.metadata.deletion_timestamp) == (new.metadata.uid, None)

    run_with_harness(story)


@pytest.mark.parametrize("nodes", SIZES)
def test_lost_answers_and_throttling_do_not_stop_a_teardown(nodes: tuple[str, ...]) -> None:
    """After lost answers and throttling every delete is sent again until it is done."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, *nodes)
        await harness.write("job", Event.TERMINATED)
        harness.calls.seen.clear()
        harness.calls.fail_with(
            lambda call, when: (
                (DeadlineError if when == "after" else ThrottledError)("later") if call % 3 == 1 and call < 12 else None
            )
        )
        while await ended_with(harness.handle()) is not None:
            pass
        assert all(pod.metadata.deletion_timestamp for pod in await harness.pods())
        assert await harness.configmaps() == []

    run_with_harness(story)


def test_an_allocation_cancelled_while_it_waited_costs_one_read() -> None:
    """An allocation that is cancelled while it waits costs one read, because nothing was created for it."""

    async def story(harness: PodWorkerHarness) -> None:
        await launch(harness.kube)
        await harness.cancel()
        await harness.write("job", Event.TERMINATED)
        await harness.handle()
        assert harness.calls.seen == [(Verb.GET, ALLOCATIONS.plural)]

    run_with_harness(story)


@pytest.mark.parametrize(
    "error",
    [
        DeniedError('User "podworker" cannot delete resource "pods"'),
        InvalidError("ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request"),
    ],
)
def test_a_delete_that_is_not_permitted_keeps_the_hint(error: PermanentError) -> None:
    """A missing permission to delete, or a policy that refuses it, keeps the hint: the operator can repair both."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, "n0")
        await harness.write("job", Event.TERMINATED)
        harness.calls.fail(error, (Verb.DELETE, "pods"))
        assert isinstance(await ended_with(harness.handle()), TransientError)

    run_with_harness(story)


@pytest.mark.parametrize("phase", [Event.TERMINATING, Event.TERMINATED])
def test_a_teardown_that_keeps_failing_is_reported_and_never_given_up(phase: Event) -> None:
    """After ten minutes of failures, over all restarts, the condition Stuck of the attempt is True with the message of
    the API server. No hint becomes a dead letter. When the teardown succeeds, the condition is False."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, "n0")
        await harness.write("job", phase)
        denied = DeniedError('User "podworker" cannot delete resource "pods"')
        reported: list[str] = []
        for _ in range(25):
            worker, calls = harness.another_worker()
            calls.fail(denied, (Verb.DELETE, "pods"))
            assert isinstance(await ended_with(harness.handle(worker=worker)), TransientError)
            [found] = (await look(harness.kube)).status.conditions
            reported.append(found.status)
            await harness.clock.sleep(30)
        assert sorted(set(reported), key=reported.index) == ["Unknown", "True"]
        [found] = (await look(harness.kube)).status.conditions
        assert (found.type, found.reason, found.observed_generation) == ("Stuck", "TeardownFailed", 1)
        assert str(denied) in found.message
        await harness.handle()
        assert all(pod.metadata.deletion_timestamp for pod in await harness.pods())
        [found] = (await look(harness.kube)).status.conditions
        assert (found.type, found.status, found.reason) == ("Stuck", "False", "Recovered")

    run_with_harness(story)


def test_a_missing_permission_to_read_keeps_the_hint() -> None:
    """A missing permission to read the allocation keeps the hint."""

    async def story(harness: PodWorkerHarness) -> None:
        await run(harness, "n0")
        harness.calls.fail(DeniedError('User "podworker" cannot get resource "allocations"'), (Verb.GET, "allocations"))
        assert isinstance(await ended_with(harness.handle()), TransientError)

    run_with_harness(story)
