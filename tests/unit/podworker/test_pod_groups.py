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
from slipway.pods.pin import is_pinned
from tests.support.podworker_desk import CrashError, Desk, at_a_desk, ended_with
from tests.support.small_cluster import look

GANG = ("n0", "n1", "n0")
ASKED = (Verb.GET, "podgroups")
MADE = (Verb.CREATE, "podgroups")


async def assign(desk: Desk, *nodes: str, binding: str = "delegate", name: str = "job", **spec: Any) -> None:
    """Create an admitted gang in a pool whose pods kube-scheduler binds."""
    await desk.kube.patch(RESOURCE_POOLS, "default", {"spec": {"binding": binding}})
    await desk.assign(*nodes, name=name, **spec)


async def group_name(desk: Desk) -> str:
    return f"job-{(await look(desk.kube)).metadata.uid[:8]}-1"


def named(desk: Desk) -> list[str]:
    """The group that each pod names; empty without one."""
    return [named_group(record.obj) for record in desk.core.store.scan("pods")]


def groups(desk: Desk) -> list[dict[str, Any]]:
    return [record.obj for record in desk.core.store.scan(STORED)]


async def assert_grouped(desk: Desk) -> None:
    """Assert that the gang is released, its gates are open, and its pods are in one group that belongs to the ConfigMap
    of the attempt."""
    name = await group_name(desk)
    assert named(desk) == [name] * len(GANG)
    [group] = groups(desk)
    [config_map] = await desk.configmaps()
    assert group["metadata"]["name"] == name == config_map.metadata.name
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == [config_map.metadata.uid]
    pods = await desk.pods()
    assert [bool(pod.spec.scheduling_gates) for pod in pods] == [False] * len(GANG)
    assert all(is_pinned(pod.spec.affinity, node) for pod, node in zip(pods, GANG, strict=True))


def test_gang_is_one_group_of_all_its_pods() -> None:
    """All pods of a gang are in one group, which is created before them; the server is asked once whether it serves
    groups."""

    async def story(desk: Desk) -> None:
        desk.core.serve_pod_groups()
        await assign(desk, *GANG)
        await desk.handle()
        await assert_grouped(desk)
        [group] = groups(desk)
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        assert group["spec"]["disruptionMode"] == {"all": {}}
        writes = [f"{verb} {plural}" for verb, plural in desk.calls.writes]
        assert writes[:2] == ["create configmaps", "create podgroups"]
        assert writes[2:6] == [*["create pods"] * 3, "create services"]
        assert writes[6:] == ["update allocations", *["patch pods"] * 3]
        await assign(desk, *GANG, name="more")
        await desk.handle("more")
        assert desk.calls.seen.count(ASKED) == 1

    at_a_desk(story)


def test_gang_that_may_shrink_is_disrupted_pod_by_pod() -> None:
    """A gang that may shrink has a group that is disrupted pod by pod, because the loss of one rank does not end it."""

    async def story(desk: Desk) -> None:
        desk.core.serve_pod_groups()
        await assign(desk, *GANG, minAvailable=2)
        await desk.handle()
        assert [group["spec"]["disruptionMode"] for group in groups(desk)] == [{"single": {}}]

    at_a_desk(story)


@pytest.mark.parametrize("nodes", [GANG, ("n0",)])
def test_without_groups_nothing_changes(nodes: tuple[str, ...]) -> None:
    """On a server without groups the pods are gated, pinned and opened as usual; the server is asked once, and only for
    a gang."""

    async def story(desk: Desk) -> None:
        await assign(desk, *nodes)
        await desk.handle()
        await assign(desk, *nodes, name="more")
        await desk.handle("more")
        assert desk.calls.seen.count(ASKED) == (1 if len(nodes) > 1 else 0)
        assert MADE not in desk.calls.seen
        assert named(desk) == [""] * len(nodes) * 2

    at_a_desk(story)


def test_what_we_bind_asks_for_no_group() -> None:
    """A gang that the pod worker binds itself needs no group."""

    async def story(desk: Desk) -> None:
        desk.core.serve_pod_groups()
        await assign(desk, *GANG, binding="direct")
        await desk.handle()
        assert ASKED not in desk.calls.seen
        assert named(desk) == ["", "", ""]

    at_a_desk(story)


def test_where_nobody_may_look_there_are_no_groups() -> None:
    """When a hardened cluster forbids discovery, the gang starts as on a server without groups."""

    async def story(desk: Desk) -> None:
        await assign(desk, *GANG)
        desk.calls.fail(DeniedError("forbidden"), ASKED)
        await desk.handle()
        assert named(desk) == ["", "", ""]
        assert (await look(desk.kube)).status.release is not None

    at_a_desk(story)


def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    """When the answer about groups is lost, the launch waits and asks again."""

    async def story(desk: Desk) -> None:
        desk.core.serve_pod_groups()
        await assign(desk, *GANG)
        desk.calls.fail(UnavailableError("away"), ASKED)
        await ended_with(desk.handle())
        assert await desk.pods() == []
        desk.calls.fail_with(lambda _number, _moment: None)
        await desk.handle()
        await assert_grouped(desk)

    at_a_desk(story)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_between_any_two_effects_is_made_good(moment: str) -> None:
    """After a crash between any two effects the next worker finds the group, or creates it."""

    def at_call(number: int) -> None:
        async def story(desk: Desk) -> None:
            desk.core.serve_pod_groups()
            await assign(desk, *GANG)
            desk.calls.fail_with(lambda at, when: CrashError() if (at, when) == (number, moment) else None)
            try:
                await desk.handle()
            except (CrashError, BaseExceptionGroup):
                worker, _ = desk.another_worker()
                await desk.handle(worker=worker)
            await assert_grouped(desk)

        at_a_desk(story)

    for number in range(14):
        at_call(number)


def test_group_of_somebody_else_is_left_alone_and_refuses_the_launch() -> None:
    """A group of another owner is left alone and refuses the launch; the condition of the allocation names the
    group."""

    async def story(desk: Desk) -> None:
        desk.core.serve_pod_groups()
        await assign(desk, *GANG)
        theirs: dict[str, Any] = {
            "metadata": {"name": await group_name(desk)},
            "spec": {"schedulingPolicy": {"basic": {}}},
        }
        desk.core.create(STORED, "default", theirs)
        await desk.handle()
        [condition] = (await look(desk.kube)).status.conditions
        assert (condition.type, condition.reason) == ("Refused", "LaunchRefused")
        assert f"PodGroup {await group_name(desk)} exists and belongs to another owner" in condition.message
        assert [group["spec"]["schedulingPolicy"] for group in groups(desk)] == [{"basic": {}}]

    at_a_desk(story)


def test_group_of_an_earlier_try_is_waited_for() -> None:
    """The launch waits for a group of an earlier try whose ConfigMap is gone: the cluster will delete it, and pods that
    name it would wait for ever."""

    async def story(desk: Desk) -> None:
        desk.core.serve_pod_groups()
        await assign(desk, *GANG)
        meta = (await look(desk.kube)).metadata
        name = await group_name(desk)
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": "an-earlier-one"}
        labels = {"slipway.dev/allocation-uid": meta.uid}
        body = {"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}}
        spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
        desk.core.create(STORED, "default", {**body, "spec": spec})
        waiting = asyncio.ensure_future(desk.handle())
        await desk.clock.sleep(2)
        assert not waiting.done()
        assert await desk.pods() == []
        await desk.kube.delete(POD_GROUPS, name, namespace="default")
        desk.core.settle()
        await waiting
        await assert_grouped(desk)

    at_a_desk(story)


def test_pods_of_an_earlier_try_do_not_keep_its_group() -> None:
    """When another version of this service replaces the ConfigMap, its group is deleted. The pods that name the group
    are deleted too, and all are created again."""

    async def story(desk: Desk) -> None:
        desk.core.serve_pod_groups()
        await assign(desk, *GANG)
        desk.calls.fail(UnavailableError("away"), (Verb.UPDATE, "allocations"))
        await ended_with(desk.handle())
        before = {pod.metadata.uid for pod in await desk.pods()}
        assert len(before) == len(GANG)
        other = {"metadata": {"annotations": {"slipway.dev/spec-hash": "of another version"}}}
        await desk.kube.patch(CONFIG_MAPS, await group_name(desk), other, namespace="default")
        worker, _ = desk.another_worker()
        again = asyncio.ensure_future(desk.handle(worker=worker))
        for _ in range(20):
            await desk.clock.sleep(0.2)
            desk.core.settle()
            await desk.finish_deletes()
        await again
        await assert_grouped(desk)
        assert not before & {pod.metadata.uid for pod in await desk.pods()}

    at_a_desk(story)


def test_groups_that_are_served_no_more_are_done_without() -> None:
    """When the server no longer serves groups, it is asked again, and the gang starts without one."""

    async def story(desk: Desk) -> None:
        desk.core.serve_pod_groups()
        await assign(desk, *GANG)

        async def close(verb: Verb, plural: str) -> None:
            if (verb, plural) == MADE:
                desk.core.registry.remove(STORED)

        desk.calls.hook = close
        await desk.handle()
        assert (await look(desk.kube)).status.release is not None
        assert desk.calls.seen.count(ASKED) == 2

    at_a_desk(story)


def test_the_group_goes_with_the_attempt() -> None:
    """The teardown deletes the ConfigMap, and the cluster then deletes the group, which it owns."""

    async def story(desk: Desk) -> None:
        desk.core.serve_pod_groups()
        await assign(desk, *GANG)
        await desk.handle()
        assert len(groups(desk)) == 1
        await desk.write("job", Event.RESTARTED)
        await desk.admit("n1")
        await desk.handle()
        await desk.finish_deletes()
        desk.core.settle()
        assert len(await desk.configmaps()) == 1
        assert groups(desk) == []

    at_a_desk(story)
