"""The number of calls of the pod worker in the life of an allocation, and the calls that its memory saves."""

from collections import Counter

import pytest

from slipway.crd.meta import RawObject
from slipway.kube.errors import Verb
from slipway.kube.resources import CONFIG_MAPS
from slipway.model.lifecycle import Event
from slipway.podworker.teardown import BY_NAME_MAX
from tests.support.podworker_harness import Calls, PodWorkerHarness, run_with_harness

GANG = ("n0", "n1") * BY_NAME_MAX
SIZES = [pytest.param(("n0",), id="one"), pytest.param(GANG, id="gang")]


async def launched(harness: PodWorkerHarness, *nodes: str) -> None:
    await harness.assign(*nodes)
    await harness.handle()
    harness.calls.seen.clear()


def kinds(calls: Calls) -> Counter[tuple[Verb, str]]:
    return Counter(calls.seen)


@pytest.mark.parametrize("nodes", SIZES)
def test_the_worker_that_launched_it_tears_it_down_without_a_list(nodes: tuple[str, ...]) -> None:
    """The process that launched an allocation tears it down with one read of the allocation and one delete of each
    object."""

    async def story(harness: PodWorkerHarness) -> None:
        await launched(harness, *nodes)
        await harness.write("job", Event.TERMINATED)
        await harness.handle()
        wanted = {
            (Verb.GET, "allocations"): 1,
            (Verb.DELETE, "pods"): len(nodes),
            (Verb.DELETE, "configmaps"): 1,
        }
        if len(nodes) > 1:
            wanted[Verb.DELETE, "services"] = 1
        assert kinds(harness.calls) == wanted
        assert await harness.configmaps() == []

    run_with_harness(story)


@pytest.mark.parametrize("nodes", SIZES)
def test_a_pod_is_deleted_once_in_a_life_that_is_cut_short(nodes: tuple[str, ...]) -> None:
    """A pod is deleted once: a delete that was accepted while the attempt was Terminating is not repeated at its
    end."""

    async def story(harness: PodWorkerHarness) -> None:
        await launched(harness, *nodes)
        await harness.write("job", Event.TERMINATING)
        await harness.handle()
        await harness.write("job", Event.TERMINATED)
        await harness.handle()
        calls = kinds(harness.calls)
        assert (calls[Verb.DELETE, "pods"], calls[Verb.DELETE, "configmaps"]) == (len(nodes), 1)
        assert calls[Verb.LIST, "pods"] == 0

    run_with_harness(story)


@pytest.mark.parametrize("nodes", SIZES)
def test_another_worker_finds_all_of_it(nodes: tuple[str, ...]) -> None:
    """The memory of a process ends with it: another worker looks up the objects and deletes all of them."""

    async def story(harness: PodWorkerHarness) -> None:
        await launched(harness, *nodes)
        await harness.write("job", Event.TERMINATING)
        successor, _ = harness.another_worker()
        await harness.handle(worker=successor)
        assert all(pod.metadata.deletion_timestamp for pod in await harness.pods())
        await harness.write("job", Event.TERMINATED)
        third, _ = harness.another_worker()
        await harness.handle(worker=third)
        assert (await harness.configmaps(), await harness.services()) == ([], [])

    run_with_harness(story)


def test_a_gang_that_is_told_to_end_again_is_looked_for() -> None:
    """At a second teardown of a gang a LIST shows the pods that are left, so that deleted pods get no further
    deletes."""

    async def story(harness: PodWorkerHarness) -> None:
        await launched(harness, *GANG)
        await harness.write("job", Event.TERMINATING)
        await harness.handle()
        await harness.finish_deletes()
        harness.calls.seen.clear()
        await harness.handle()
        assert kinds(harness.calls) == {(Verb.GET, "allocations"): 1, (Verb.LIST, "pods"): 1}

    run_with_harness(story)


def test_a_name_that_was_taken_again_is_not_deleted_by_what_is_remembered() -> None:
    """A delete has the uid of the ConfigMap that this process created, so that a new object of that name stays."""

    async def story(harness: PodWorkerHarness) -> None:
        await launched(harness, "n0")
        [ours] = await harness.configmaps()
        await harness.kube.delete(CONFIG_MAPS, ours.metadata.name, namespace="default")
        name = {"name": ours.metadata.name, "namespace": "default", "labels": {"slipway.dev/attempt": "1"}}
        theirs: RawObject = {"metadata": name, "data": {"a": "b"}}
        await harness.kube.create(CONFIG_MAPS, theirs)
        await harness.write("job", Event.TERMINATED)
        await harness.handle()
        [left] = await harness.configmaps()
        assert left.data == {"a": "b"}

    run_with_harness(story)
