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
from tests.support.podworker_harness import CrashError, PodWorkerHarness, run_with_harness
from tests.support.small_cluster import look


async def put(harness: PodWorkerHarness, **changes: Any) -> Allocation:
    """Write to the status as another service."""
    found = await look(harness.kube)
    status = msgspec.structs.replace(found.status, **changes)
    return await harness.kube.replace_status(ALLOCATIONS, msgspec.structs.replace(found, status=status))


async def a_growing_gang(harness: PodWorkerHarness) -> Allocation:
    """A gang of three that needs one runs with rank 0; the scheduler has placed the others."""
    role = {"name": "worker", "count": 3}
    body = harness.a_body(ranks=3, minAvailable=1)
    assert body["spec"]["ranks"][0]["count"] == role["count"]
    await harness.kube.create(ALLOCATIONS, body, namespace="default")
    await harness.admit("n0")
    await harness.handle()
    for event in (Event.PULLING, Event.STARTING, Event.RUNNING):
        await harness.write("job", event)
    places = [Placement(rank=rank, role="worker", node="n1") for rank in (1, 2)]
    harness.calls.seen.clear()
    return await put(harness, growth=Growth(n=1, attempt=1, placements=places))


async def growth_of(harness: PodWorkerHarness) -> Growth:
    found = (await look(harness.kube)).status.growth
    assert found is not None
    return found


def test_added_ranks_are_made_named_and_then_bound() -> None:
    """The pods of added ranks are created, named and then bound, in this order; the release and the first pod are
    unchanged."""

    async def story(harness: PodWorkerHarness) -> None:
        before = await a_growing_gang(harness)
        await harness.handle()
        assert harness.calls.writes == [
            *[(Verb.CREATE, "pods")] * 2,
            (Verb.UPDATE, "allocations"),
            *[(Verb.BIND, "pods")] * 2,
        ]
        pods = await harness.pods()
        assert [pod.spec.node_name for pod in pods] == ["n0", "n1", "n1"]
        assert (await growth_of(harness)).pod_uids == [pod.metadata.uid for pod in pods[1:]]
        assert (await look(harness.kube)).status.release == before.status.release

    run_with_harness(story)


def test_a_new_rank_finds_the_first_and_has_a_number_of_its_own() -> None:
    """An added rank can find the first, which has a name although it started alone, and has its own number."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_growing_gang(harness)
        await harness.handle()
        told: list[dict[str, str]] = []
        for pod in await harness.pods():
            body = harness.core.get("pods", "default", pod.metadata.name)
            told.append({item["name"]: item.get("value", "") for item in body["spec"]["containers"][0]["env"]})
        assert [env["RANK"] for env in told] == ["0", "1", "2"]
        assert len({env["MASTER_ADDR"] for env in told}) == 1
        assert {env["PET_NNODES"] for env in told} == {"1:3"}
        assert told[0]["MASTER_ADDR"].startswith((await harness.pods())[0].metadata.name)

    run_with_harness(story)


def test_the_same_hint_again_changes_nothing() -> None:
    """A repeated hint changes nothing, in this process or in another."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_growing_gang(harness)
        await harness.handle()
        harness.calls.seen.clear()
        await harness.handle()
        assert harness.calls.writes == []
        worker, calls = harness.another_worker()
        await harness.handle(worker=worker)
        assert calls.writes == []

    run_with_harness(story)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(10))
def test_a_crash_at_any_point_is_gone_on_from(number: int, moment: str) -> None:
    """After a crash at any point another process finds the created objects, and creates the rest."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_growing_gang(harness)
        harness.calls.fail_with(lambda at, when: CrashError() if (at, when) == (number, moment) else None)
        try:
            await harness.handle()
        except BaseException as error:  # noqa: BLE001 - the crash, alone or in a group
            assert "CrashError" in repr(error)  # noqa: PT017
        worker, _ = harness.another_worker()
        await harness.handle(worker=worker)
        assert [pod.spec.node_name for pod in await harness.pods()] == ["n0", "n1", "n1"]
        assert len((await growth_of(harness)).pod_uids) == 2

    run_with_harness(story)


def test_a_cancel_before_the_pods_are_named_starts_nothing() -> None:
    """After a cancel before the pods are named, the server refuses the names, and nothing is bound."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_growing_gang(harness)

        async def cancel(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.UPDATE, "allocations"):
                harness.calls.hook = None
                await harness.kube.patch(ALLOCATIONS, "job", {"spec": {"desired": "Stopped"}}, namespace="default")

        harness.calls.hook = cancel
        await harness.handle()
        assert (await growth_of(harness)).pod_uids == []
        assert [bool(pod.spec.node_name) for pod in await harness.pods()] == [True, False, False]
        assert decide(await look(harness.kube)) == NoAction("stopping")

    run_with_harness(story)


@pytest.mark.parametrize("error", [QuotaExceededError("exceeded quota: q"), InvalidError("spec: no")])
def test_what_cannot_be_created_is_given_back(error: Exception) -> None:
    """Added ranks that cannot be created are returned: the gang continues unchanged, and requests no ranks for a
    while."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_growing_gang(harness)
        harness.calls.fail(error, (Verb.CREATE, "pods"))  # type: ignore[arg-type]
        await harness.handle()
        growth = await growth_of(harness)
        assert (growth.placements, growth.pod_uids, growth.n) == ([], [], 2)
        assert growth.not_before
        assert growth.reason == str(error)
        found = await look(harness.kube)
        assert not found.status.conditions
        assert len(await harness.pods()) == 1
        assert decide(found) == NoAction("running")

    run_with_harness(story)


@pytest.mark.parametrize("error", [QuotaExceededError("exceeded quota: q"), DeniedError("pods is forbidden")])
@pytest.mark.parametrize(("reason", "pause_s"), [("", 30.0), ("exceeded quota: q", 600.0)])
def test_what_refuses_again_is_asked_seldom(error: Exception, reason: str, pause_s: float) -> None:
    """Repeated refusals lengthen the pause: at first another pod may end soon, or a permission return; later, retries
    each half minute would be useless writes."""

    async def story(harness: PodWorkerHarness) -> None:
        found = await a_growing_gang(harness)
        assert found.status.growth is not None
        await put(harness, growth=msgspec.structs.replace(found.status.growth, reason=reason))
        harness.calls.fail(error, (Verb.CREATE, "pods"))  # type: ignore[arg-type]
        await harness.handle()
        waits_s = parse_time((await growth_of(harness)).not_before) - harness.clock.now()
        assert waits_s == pytest.approx(pause_s, abs=1.0)

    run_with_harness(story)


def test_a_quota_that_refuses_one_of_two_leaves_none() -> None:
    """When a quota refuses one of two added pods, the created one is deleted."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_growing_gang(harness)
        made = 0

        def second(at: int, when: str) -> BaseException | None:
            nonlocal made
            is_create = when == "before" and harness.calls.seen[at] == (Verb.CREATE, "pods")
            made += is_create
            return QuotaExceededError("exceeded quota: q") if is_create and made > 1 else None

        harness.calls.fail_with(second)
        await harness.handle()
        assert (await growth_of(harness)).placements == []
        assert len([pod for pod in await harness.pods() if pod.metadata.deletion_timestamp is None]) == 1

    run_with_harness(story)


def test_a_rank_that_is_to_go_before_it_has_a_pod_never_gets_one() -> None:
    """A rank that must make room before it has a pod is removed from the growth; the others join."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_growing_gang(harness)
        found = await put(harness, shrink=Shrink(ranks=[1], attempt=1, by="default/urgent"))
        assert decide(found) == DeleteRanks((1,))
        await harness.handle()
        assert [place.rank for place in (await growth_of(harness)).placements] == [2]
        await put(harness, shrink=Shrink(ranks=[1], attempt=1, by="default/urgent", told=1))
        await harness.handle()
        assert [pod.metadata.labels["slipway.dev/rank"] for pod in await harness.pods()] == ["0", "2"]

    run_with_harness(story)


def test_a_poll_without_redis_finds_a_growth() -> None:
    """A poll without Redis finds a growth, because its allocation is not settled until its ranks are bound."""

    async def story(harness: PodWorkerHarness) -> None:
        found = await a_growing_gang(harness)
        assert decide(found) == AddRanks(1, (1, 2))
        assert not harness.worker.is_settled(found)
        await harness.poller.run_once()
        assert all(pod.spec.node_name for pod in (await harness.kube.list(PODS, namespace="default")).items)

    run_with_harness(story)


def test_a_rank_that_was_lost_does_not_keep_others_from_joining() -> None:
    """A rank that was added, ran, and was lost with its node does not block the next ones: its pod is not required."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_growing_gang(harness)
        await harness.handle()
        growth = await growth_of(harness)
        first = (await look(harness.kube)).status.release
        assert first is not None
        ran = [
            RankStatus(pod_uid=first.pod_uids[0], phase=RankState.RUNNING),
            RankStatus(pod_uid=growth.pod_uids[0], phase=RankState.RUNNING),
            RankStatus(),
        ]
        for pod in (await harness.pods())[1:]:
            name = pod.metadata.name
            await harness.kube.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace="default")
            await harness.kube.delete(PODS, name, namespace="default", grace_s=0)
        again = msgspec.structs.replace(growth, n=2, pod_uids=growth.pod_uids[:1])
        assert decide(await put(harness, growth=again, ranks=ran)) == AddRanks(2, (2,))
        await harness.handle()
        assert [pod.spec.node_name for pod in await harness.pods()] == ["n0", "n1"]

    run_with_harness(story)
