"""Ranks that are added to a running gang: what the pod worker creates for them, and what it returns."""

from typing import Any

import msgspec
import pytest

from slipway.crd.v1alpha1 import Allocation, Growth, Placement, RankStatus, Shrink
from slipway.errors import DeniedError, InvalidError, QuotaExceededError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, PODS
from slipway.model.lifecycle import Event, RankState
from slipway.model.times import parse_time
from slipway.podworker.intent import AddRanks, DeleteRanks, NoAction, decide
from tests.support.podworker_desk import CrashError, Desk, at_a_desk
from tests.support.small_cluster import look


async def put(desk: Desk, **changes: Any) -> Allocation:
    """Write to the status as another service."""
    found = await look(desk.kube)
    status = msgspec.structs.replace(found.status, **changes)
    return await desk.kube.replace_status(ALLOCATIONS, msgspec.structs.replace(found, status=status))


async def a_growing_gang(desk: Desk) -> Allocation:
    """A gang of three that needs one runs with rank 0; the scheduler has placed the others."""
    role = {"name": "worker", "count": 3}
    body = desk.a_body(ranks=3, minAvailable=1)
    assert body["spec"]["ranks"][0]["count"] == role["count"]
    await desk.kube.create(ALLOCATIONS, body, namespace="default")
    await desk.admit("n0")
    await desk.handle()
    for event in (Event.PULLING, Event.STARTING, Event.RUNNING):
        await desk.write("job", event)
    places = [Placement(rank=rank, role="worker", node="n1") for rank in (1, 2)]
    desk.calls.seen.clear()
    return await put(desk, growth=Growth(n=1, attempt=1, placements=places))


async def growth_of(desk: Desk) -> Growth:
    found = (await look(desk.kube)).status.growth
    assert found is not None
    return found


def test_added_ranks_are_made_named_and_then_bound() -> None:
    """The pods of added ranks are created, named and then bound, in this order; the release and the first pod are
    unchanged."""

    async def story(desk: Desk) -> None:
        before = await a_growing_gang(desk)
        await desk.handle()
        assert desk.calls.writes == [
            *[(Verb.CREATE, "pods")] * 2,
            (Verb.UPDATE, "allocations"),
            *[(Verb.BIND, "pods")] * 2,
        ]
        pods = await desk.pods()
        assert [pod.spec.node_name for pod in pods] == ["n0", "n1", "n1"]
        assert (await growth_of(desk)).pod_uids == [pod.metadata.uid for pod in pods[1:]]
        assert (await look(desk.kube)).status.release == before.status.release

    at_a_desk(story)


def test_a_new_rank_finds_the_first_and_has_a_number_of_its_own() -> None:
    """An added rank can find the first, which has a name although it started alone, and has its own number."""

    async def story(desk: Desk) -> None:
        await a_growing_gang(desk)
        await desk.handle()
        told: list[dict[str, str]] = []
        for pod in await desk.pods():
            body = desk.core.get("pods", "default", pod.metadata.name)
            told.append({item["name"]: item.get("value", "") for item in body["spec"]["containers"][0]["env"]})
        assert [env["RANK"] for env in told] == ["0", "1", "2"]
        assert len({env["MASTER_ADDR"] for env in told}) == 1
        assert {env["PET_NNODES"] for env in told} == {"1:3"}
        assert told[0]["MASTER_ADDR"].startswith((await desk.pods())[0].metadata.name)

    at_a_desk(story)


def test_the_same_hint_again_changes_nothing() -> None:
    """A repeated hint changes nothing, in this process or in another."""

    async def story(desk: Desk) -> None:
        await a_growing_gang(desk)
        await desk.handle()
        desk.calls.seen.clear()
        await desk.handle()
        assert desk.calls.writes == []
        worker, calls = desk.another_worker()
        await desk.handle(worker=worker)
        assert calls.writes == []

    at_a_desk(story)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(10))
def test_a_crash_at_any_point_is_gone_on_from(number: int, moment: str) -> None:
    """After a crash at any point another process finds the created objects, and creates the rest."""

    async def story(desk: Desk) -> None:
        await a_growing_gang(desk)
        desk.calls.fail_with(lambda at, when: CrashError() if (at, when) == (number, moment) else None)
        try:
            await desk.handle()
        except BaseException as error:  # noqa: BLE001 - the crash, alone or in a group
            assert "CrashError" in repr(error)  # noqa: PT017
        worker, _ = desk.another_worker()
        await desk.handle(worker=worker)
        assert [pod.spec.node_name for pod in await desk.pods()] == ["n0", "n1", "n1"]
        assert len((await growth_of(desk)).pod_uids) == 2

    at_a_desk(story)


def test_a_cancel_before_the_pods_are_named_starts_nothing() -> None:
    """After a cancel before the pods are named, the server refuses the names, and nothing is bound."""

    async def story(desk: Desk) -> None:
        await a_growing_gang(desk)

        async def cancel(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.UPDATE, "allocations"):
                desk.calls.hook = None
                await desk.kube.patch(ALLOCATIONS, "job", {"spec": {"desired": "Stopped"}}, namespace="default")

        desk.calls.hook = cancel
        await desk.handle()
        assert (await growth_of(desk)).pod_uids == []
        assert [bool(pod.spec.node_name) for pod in await desk.pods()] == [True, False, False]
        assert decide(await look(desk.kube)) == NoAction("stopping")

    at_a_desk(story)


@pytest.mark.parametrize("error", [QuotaExceededError("exceeded quota: q"), InvalidError("spec: no")])
def test_what_cannot_be_created_is_given_back(error: Exception) -> None:
    """Added ranks that cannot be created are returned: the gang continues unchanged, and requests no ranks for a
    while."""

    async def story(desk: Desk) -> None:
        await a_growing_gang(desk)
        desk.calls.fail(error, (Verb.CREATE, "pods"))  # type: ignore[arg-type]
        await desk.handle()
        growth = await growth_of(desk)
        assert (growth.placements, growth.pod_uids, growth.n) == ([], [], 2)
        assert growth.not_before
        assert growth.reason == str(error)
        found = await look(desk.kube)
        assert not found.status.conditions
        assert len(await desk.pods()) == 1
        assert decide(found) == NoAction("running")

    at_a_desk(story)


@pytest.mark.parametrize("error", [QuotaExceededError("exceeded quota: q"), DeniedError("pods is forbidden")])
@pytest.mark.parametrize(("reason", "pause_s"), [("", 30.0), ("exceeded quota: q", 600.0)])
def test_what_refuses_again_is_asked_seldom(error: Exception, reason: str, pause_s: float) -> None:
    """Repeated refusals lengthen the pause: at first another pod may end soon, or a permission return; later, retries
    each half minute would be useless writes."""

    async def story(desk: Desk) -> None:
        found = await a_growing_gang(desk)
        assert found.status.growth is not None
        await put(desk, growth=msgspec.structs.replace(found.status.growth, reason=reason))
        desk.calls.fail(error, (Verb.CREATE, "pods"))  # type: ignore[arg-type]
        await desk.handle()
        waits_s = parse_time((await growth_of(desk)).not_before) - desk.clock.now()
        assert waits_s == pytest.approx(pause_s, abs=1.0)

    at_a_desk(story)


def test_a_quota_that_refuses_one_of_two_leaves_none() -> None:
    """When a quota refuses one of two added pods, the created one is deleted."""

    async def story(desk: Desk) -> None:
        await a_growing_gang(desk)
        made = 0

        def second(at: int, when: str) -> BaseException | None:
            nonlocal made
            is_create = when == "before" and desk.calls.seen[at] == (Verb.CREATE, "pods")
            made += is_create
            return QuotaExceededError("exceeded quota: q") if is_create and made > 1 else None

        desk.calls.fail_with(second)
        await desk.handle()
        assert (await growth_of(desk)).placements == []
        assert len([pod for pod in await desk.pods() if pod.metadata.deletion_timestamp is None]) == 1

    at_a_desk(story)


def test_a_rank_that_is_to_go_before_it_has_a_pod_never_gets_one() -> None:
    """A rank that must make room before it has a pod is removed from the growth; the others join."""

    async def story(desk: Desk) -> None:
        await a_growing_gang(desk)
        found = await put(desk, shrink=Shrink(ranks=[1], attempt=1, by="default/urgent"))
        assert decide(found) == DeleteRanks((1,))
        await desk.handle()
        assert [place.rank for place in (await growth_of(desk)).placements] == [2]
        await put(desk, shrink=Shrink(ranks=[1], attempt=1, by="default/urgent", told=1))
        await desk.handle()
        assert [pod.metadata.labels["slipway.dev/rank"] for pod in await desk.pods()] == ["0", "2"]

    at_a_desk(story)


def test_a_poll_without_redis_finds_a_growth() -> None:
    """A poll without Redis finds a growth, because its allocation is not settled until its ranks are bound."""

    async def story(desk: Desk) -> None:
        found = await a_growing_gang(desk)
        assert decide(found) == AddRanks(1, (1, 2))
        assert not desk.worker.is_settled(found)
        await desk.poller.run_once()
        assert all(pod.spec.node_name for pod in (await desk.kube.list(PODS, namespace="default")).items)

    at_a_desk(story)


def test_a_rank_that_was_lost_does_not_keep_others_from_joining() -> None:
    """A rank that was added, ran, and was lost with its node does not block the next ones: its pod is not required."""

    async def story(desk: Desk) -> None:
        await a_growing_gang(desk)
        await desk.handle()
        growth = await growth_of(desk)
        first = (await look(desk.kube)).status.release
        assert first is not None
        ran = [
            RankStatus(pod_uid=first.pod_uids[0], phase=RankState.RUNNING),
            RankStatus(pod_uid=growth.pod_uids[0], phase=RankState.RUNNING),
            RankStatus(),
        ]
        for pod in (await desk.pods())[1:]:
            name = pod.metadata.name
            await desk.kube.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace="default")
            await desk.kube.delete(PODS, name, namespace="default", grace_s=0)
        again = msgspec.structs.replace(growth, n=2, pod_uids=growth.pod_uids[:1])
        assert decide(await put(desk, growth=again, ranks=ran)) == AddRanks(2, (2,))
        await desk.handle()
        assert [pod.spec.node_name for pod in await desk.pods()] == ["n0", "n1"]

    at_a_desk(story)
