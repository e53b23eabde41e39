"""Gangs that kube-scheduler binds are groups of pods where the API server serves groups; elsewhere nothing changes."""

import asyncio
from typing import Any

import pytest

from slipway.errors import DeniedError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import CONFIG_MAPS, POD_GROUPS, RESOURCE_POOLS
from slipway.local.apiserver.podgroups import POD_GROUPS as STORED
from slipway.local.apiserver.podgroups import named_group
from slipway.model.lifecycle import Event
from slipway.pods.podspec import is_pinned
from tests.support.podworker_harness import CrashError, PodWorkerHarness, ended_with, run_with_harness
from tests.support.small_cluster import look

GANG = ("n0", "n1", "n0")
ASKED = (Verb.GET, "podgroups")
MADE = (Verb.CREATE, "podgroups")


async def assign(
    harness: PodWorkerHarness, *nodes: str, binding: str = "delegate", name: str = "job", **spec: Any
) -> None:
    """Create an admitted gang in a pool whose pods kube-scheduler binds."""
    await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"binding": binding}})
    await harness.assign(*nodes, name=name, **spec)


async def group_name(harness: PodWorkerHarness) -> str:
    return f"job-{(await look(harness.kube)).metadata.uid[:8]}-1"


def named(harness: PodWorkerHarness) -> list[str]:
    """The group that each pod names; empty without one."""
    return [named_group(record.obj) for record in harness.core.store.scan("pods")]


def groups(harness: PodWorkerHarness) -> list[dict[str, Any]]:
    return [record.obj for record in harness.core.store.scan(STORED)]


async def assert_grouped(harness: PodWorkerHarness) -> None:
    """Assert that the gang is released, its gates are open, and its pods are in one group that belongs to the ConfigMap
    of the attempt."""
    name = await group_name(harness)
    assert named(harness) == [name] * len(GANG)
    [group] = groups(harness)
    [config_map] = await harness.configmaps()
    assert group["metadata"]["name"] == name == config_map.metadata.name
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [config_map.metadata.uid]
    pods = await harness.pods()
    assert [bool(pod.spec.scheduling_gates) for pod in pods] == [False] * len(GANG)
    assert all(is_pinned(pod.spec.affinity, node) for pod, node in zip(pods, GANG, strict=True))


def test_gang_is_one_group_of_all_its_pods() -> None:
    """All pods of a gang are in one group, which is created before them; the server is asked once whether it serves
    groups."""

    async def story(harness: PodWorkerHarness) -> None:
        harness.core.serve_pod_groups()
        await assign(harness, *GANG)
        await harness.handle()
        await assert_grouped(harness)
        [group] = groups(harness)
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        assert group["spec"]["disruptionMode"] == {"all": {}}
        writes = [f"{verb} {plural}" for verb, plural in harness.calls.writes]
        assert writes[:2] == ["create configmaps", "create podgroups"]
        assert writes[2:6] == [*["create pods"] * 3, "create services"]
        assert writes[6:] == ["update allocations", *["patch pods"] * 3]
        await assign(harness, *GANG, name="more")
        await harness.handle("more")
        assert harness.calls.seen.count(ASKED) == 1

    run_with_harness(story)


def test_gang_that_may_shrink_is_disrupted_pod_by_pod() -> None:
    """A gang that may shrink has a group that is disrupted pod by pod, because the loss of one rank does not end it."""

    async def story(harness: PodWorkerHarness) -> None:
        harness.core.serve_pod_groups()
        await assign(harness, *GANG, minAvailable=2)
        await harness.handle()
        assert [group["spec"]["disruptionMode"] for group in groups(harness)] == [{"single": {}}]

    run_with_harness(story)


@pytest.mark.parametrize("nodes", [GANG, ("n0",)])
def test_without_groups_nothing_changes(nodes: tuple[str, ...]) -> None:
    """On a server without groups the pods are gated, pinned and opened as usual; the server is asked once, and only for
    a gang."""

    async def story(harness: PodWorkerHarness) -> None:
        await assign(harness, *nodes)
        await harness.handle()
        await assign(harness, *nodes, name="more")
        await harness.handle("more")
        assert harness.calls.seen.count(ASKED) == (1 if len(nodes) > 1 else 0)
        assert MADE not in harness.calls.seen
        assert named(harness) == [""] * len(nodes) * 2

    run_with_harness(story)


def test_what_we_bind_asks_for_no_group() -> None:
    """A gang that the pod worker binds itself needs no group."""

    async def story(harness: PodWorkerHarness) -> None:
        harness.core.serve_pod_groups()
        await assign(harness, *GANG, binding="direct")
        await harness.handle()
        assert ASKED not in harness.calls.seen
        assert named(harness) == ["", "", ""]

    run_with_harness(story)


def test_without_permission_to_list_groups_none_are_made() -> None:
    """When a hardened cluster forbids discovery, the gang starts as on a server without groups."""

    async def story(harness: PodWorkerHarness) -> None:
        await assign(harness, *GANG)
        harness.calls.fail(DeniedError("forbidden"), ASKED)
        await harness.handle()
        assert named(harness) == ["", "", ""]
        assert (await look(harness.kube)).status.release is not None

    run_with_harness(story)


def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    """When the answer about groups is lost, the launch waits and asks again."""

    async def story(harness: PodWorkerHarness) -> None:
        harness.core.serve_pod_groups()
        await assign(harness, *GANG)
        harness.calls.fail(UnavailableError("away"), ASKED)
        await ended_with(harness.handle())
        assert await harness.pods() == []
        harness.calls.fail_with(lambda _number, _moment: None)
        await harness.handle()
        await assert_grouped(harness)

    run_with_harness(story)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_between_any_two_effects_is_made_good(moment: str) -> None:
    """After a crash between any two effects the next worker finds the group, or creates it."""

    def at_call(number: int) -> None:
        async def story(harness: PodWorkerHarness) -> None:
            harness.core.serve_pod_groups()
            await assign(harness, *GANG)
            harness.calls.fail_with(lambda at, when: CrashError() if (at, when) == (number, moment) else None)
            try:
                await harness.handle()
            except (CrashError, BaseExceptionGroup):
                worker, _ = harness.another_worker()
                await harness.handle(worker=worker)
            await assert_grouped(harness)

        run_with_harness(story)

    for number in range(14):
        at_call(number)


def test_group_of_somebody_else_is_left_alone_and_refuses_the_launch() -> None:
    """A group of another owner is left alone and refuses the launch; the condition of the allocation names the
    group."""

    async def story(harness: PodWorkerHarness) -> None:
        harness.core.serve_pod_groups()
        await assign(harness, *GANG)
        theirs: dict[str, Any] = {
            "metadata": {"name": await group_name(harness)},
            "spec": {"schedulingPolicy": {"basic": {}}},
        }
        harness.core.create(STORED, "default", theirs)
        await harness.handle()
        [condition] = (await look(harness.kube)).status.conditions
        assert (condition.type, condition.reason) == ("Refused", "LaunchRefused")
        assert f"PodGroup {await group_name(harness)} exists and belongs to another owner" in condition.message
        assert [group["spec"]["schedulingPolicy"] for group in groups(harness)] == [{"basic": {}}]

    run_with_harness(story)


def test_group_of_an_earlier_try_is_waited_for() -> None:
    """The launch waits for a group of an earlier try whose ConfigMap is gone: the cluster will delete it, and pods that
    name it would wait for ever."""

    async def story(harness: PodWorkerHarness) -> None:
        harness.core.serve_pod_groups()
        await assign(harness, *GANG)
        meta = (await look(harness.kube)).metadata
        name = await group_name(harness)
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": "an-earlier-one"}
        labels = {"slipway.dev/allocation-uid": meta.uid}
        body = {"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}}
        spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
        harness.core.create(STORED, "default", {**body, "spec": spec})
        waiting = asyncio.ensure_future(harness.handle())
        await harness.clock.sleep(2)
        assert not waiting.done()
        assert await harness.pods() == []
        await harness.kube.delete(POD_GROUPS, name, namespace="default")
        harness.core.settle()
        await waiting
        await assert_grouped(harness)

    run_with_harness(story)


def test_pods_of_an_earlier_try_do_not_keep_its_group() -> None:
    """When another version of this service replaces the ConfigMap, its group is deleted. The pods that name the group
    are deleted too, and all are created again."""

    async def story(harness: PodWorkerHarness) -> None:
        harness.core.serve_pod_groups()
        await assign(harness, *GANG)
        harness.calls.fail(UnavailableError("away"), (Verb.UPDATE, "allocations"))
        await ended_with(harness.handle())
        before = {pod.metadata.uid for pod in await harness.pods()}
        assert len(before) == len(GANG)
        other = {"metadata": {"annotations": {"slipway.dev/spec-hash": "of another version"}}}
        await harness.kube.patch(CONFIG_MAPS, await group_name(harness), other, namespace="default")
        worker, _ = harness.another_worker()
        again = asyncio.ensure_future(harness.handle(worker=worker))
        for _ in range(20):
            await harness.clock.sleep(0.2)
            harness.core.settle()
            await harness.finish_deletes()
        await again
        await assert_grouped(harness)
        assert not before & {pod.metadata.uid for pod in await harness.pods()}

    run_with_harness(story)


def test_groups_that_are_served_no_more_are_done_without() -> None:
    """When the server no longer serves groups, it is asked again, and the gang starts without one."""

    async def story(harness: PodWorkerHarness) -> None:
        harness.core.serve_pod_groups()
        await assign(harness, *GANG)

        async def close(verb: Verb, plural: str) -> None:
            if (verb, plural) == MADE:
                harness.core.registry.remove(STORED)

        harness.calls.hook = close
        await harness.handle()
        assert (await look(harness.kube)).status.release is not None
        assert harness.calls.seen.count(ASKED) == 2

    run_with_harness(story)


def test_the_group_goes_with_the_attempt() -> None:
    """The teardown deletes the ConfigMap, and the cluster then deletes the group, which it owns."""

    async def story(harness: PodWorkerHarness) -> None:
        harness.core.serve_pod_groups()
        await assign(harness, *GANG)
        await harness.handle()
        assert len(groups(harness)) == 1
        await harness.write("job", Event.RESTARTED)
        await harness.admit("n1")
        await harness.handle()
        await harness.finish_deletes()
        harness.core.settle()
        assert len(await harness.configmaps()) == 1
        assert groups(harness) == []

    run_with_harness(story)
