"""Ranks that restart in their place: what the pod worker creates for them, and when."""

from typing import Any

import msgspec
import pytest

from slipway.crd.v1alpha1 import Allocation, RankRestart, RankStatus
from slipway.errors import InvalidError, QuotaExceededError, StaleError, TransientError
from slipway.kube.errors import Verb
from slipway.kube.objects import Pod
from slipway.kube.resources import ALLOCATIONS, PODS
from slipway.model.lifecycle import Event, RankState
from slipway.model.times import format_time
from slipway.podworker.intent import NoAction, RestartRanks, decide
from tests.support.podworker_harness import CrashError, PodWorkerHarness, ended_with, run_with_harness
from tests.support.small_cluster import look


async def a_failed_rank(harness: PodWorkerHarness, *, is_gone: bool = True, in_s: float = 0.0) -> Allocation:
    """An allocation of two ranks: rank 1 has failed, the watcher has counted that, and its pod is gone or still
    exists."""
    await harness.assign("n0", "n1", restart="rank", maxRestarts=3)
    await harness.handle()
    for event in (Event.PULLING, Event.STARTING, Event.RUNNING):
        await harness.write("job", event)
    first, second = await harness.pods()
    await harness.kube.patch(PODS, second.metadata.name, {"status": {"phase": "Failed"}}, namespace="default")
    if is_gone:
        await remove(harness, second)
    ranks = [
        RankStatus(pod_uid=first.metadata.uid, node="n0", phase=RankState.RUNNING),
        RankStatus(pod_uid=second.metadata.uid, node="n1", phase=RankState.FAILED, exit_code=1, reason="RankFailed"),
    ]
    harness.calls.seen.clear()
    due = format_time(harness.clock.now() + in_s)
    return await harness.set_status(ranks=ranks, restarts=1, restarted_ranks=[RankRestart(rank=1, n=1, not_before=due)])


async def remove(harness: PodWorkerHarness, pod: Pod) -> None:
    """Remove a pod whose log was read, as the watcher and the API server do."""
    name = pod.metadata.name
    await harness.kube.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace="default")
    await harness.kube.delete(PODS, name, namespace="default", grace_s=0)


async def restart_of(harness: PodWorkerHarness) -> RankRestart:
    return (await look(harness.kube)).status.restarted_ranks[0]


def environment_of(harness: PodWorkerHarness, pod: Pod) -> dict[str, Any]:
    """The environment of a pod without its trace."""
    body = harness.core.get("pods", "default", pod.metadata.name)
    env = {item["name"]: item.get("value", "") for item in body["spec"]["containers"][0]["env"]}
    return {name: value for name, value in env.items() if name != "TRACEPARENT"}


def test_the_next_pod_is_made_named_and_then_bound() -> None:
    """The next pod is created, named and then bound, in this order, on the same node and with the same name; the
    release and the other rank are unchanged."""

    async def story(harness: PodWorkerHarness) -> None:
        before = await a_failed_rank(harness)
        assert decide(before) == RestartRanks((1,))
        await harness.handle()
        assert harness.calls.writes == [(Verb.CREATE, "pods"), (Verb.UPDATE, "allocations"), (Verb.BIND, "pods")]
        first, second = await harness.pods()
        assert (first.spec.node_name, second.spec.node_name) == ("n0", "n1")
        assert before.status.release is not None
        assert first.metadata.uid == before.status.release.pod_uids[0]
        assert second.metadata.uid != before.status.release.pod_uids[1]
        assert (await restart_of(harness)).pod_uid == second.metadata.uid
        assert (await look(harness.kube)).status.release == before.status.release

    run_with_harness(story)


def test_the_next_pod_is_told_what_the_first_was_told() -> None:
    """The next pod gets the same environment: its rank, the number of ranks, and the address of the first rank."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign("n0", "n1", restart="rank", maxRestarts=3)
        await harness.handle()
        first = environment_of(harness, (await harness.pods())[1])
        await harness.kube.delete(ALLOCATIONS, "job", namespace="default")
        assert first["RANK"] == "1"
        assert first["WORLD_SIZE"] == "2"

    async def again(harness: PodWorkerHarness) -> None:
        await a_failed_rank(harness)
        await harness.handle()
        pod = (await harness.pods())[1]
        assert {name: environment_of(harness, pod)[name] for name in ("RANK", "WORLD_SIZE")} == {
            "RANK": "1",
            "WORLD_SIZE": "2",
        }
        assert (
            environment_of(harness, pod)["MASTER_ADDR"]
            == environment_of(harness, (await harness.pods())[0])["MASTER_ADDR"]
        )

    run_with_harness(story)
    run_with_harness(again)


def test_a_pod_whose_log_is_being_read_is_left_alone() -> None:
    """A failed pod whose log is still read is left alone, although it has the name that the next one needs; the watcher
    deletes it, and the hint is sent again."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_failed_rank(harness, is_gone=False)
        assert isinstance(await ended_with(harness.handle()), TransientError)
        assert (Verb.DELETE, "pods") not in harness.calls.writes
        await remove(harness, (await harness.pods())[1])
        await harness.handle()
        assert [pod.spec.node_name for pod in await harness.pods()] == ["n0", "n1"]

    run_with_harness(story)


def test_a_pause_that_is_not_over_is_kept() -> None:
    """Nothing is created before the pause is over; a pod that is due in a moment is waited for."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_failed_rank(harness, in_s=20.0)
        await harness.handle()
        assert harness.calls.writes == []
        await harness.clock.sleep(19.5)
        await harness.handle()
        assert len([pod for pod in await harness.pods() if pod.spec.node_name]) == 2

    run_with_harness(story)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(9))
def test_a_crash_at_any_point_leaves_one_pod_of_the_rank(number: int, moment: str) -> None:
    """After a crash at any point another process continues: the rank has exactly one pod, and nothing is counted
    again."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_failed_rank(harness)
        harness.calls.fail_with(lambda at, when: CrashError() if (at, when) == (number, moment) else None)
        try:
            await harness.handle()
        except BaseException as error:  # noqa: BLE001 - the crash, alone or in a group
            assert "CrashError" in repr(error)  # noqa: PT017
        worker, _ = harness.another_worker()
        await harness.handle(worker=worker)
        pods = await harness.pods()
        assert [pod.spec.node_name for pod in pods] == ["n0", "n1"]
        found = (await look(harness.kube)).status
        assert (found.restarts, found.restarted_ranks[0].pod_uid) == (1, pods[1].metadata.uid)

    run_with_harness(story)


def test_a_cancel_before_the_pod_is_named_starts_nothing() -> None:
    """After a cancel before the pod is named, the server refuses the name, and nothing is bound."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_failed_rank(harness)

        async def cancel(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.UPDATE, "allocations"):
                harness.calls.hook = None
                await harness.cancel()

        harness.calls.hook = cancel
        await harness.handle()
        assert (await restart_of(harness)).pod_uid == ""
        assert [bool(pod.spec.node_name) for pod in await harness.pods()] == [True, False]
        assert decide(await look(harness.kube)) == NoAction("stopping")

    run_with_harness(story)


def test_what_can_never_be_made_again_is_told() -> None:
    """A pod that can never be created again is reported: the watcher gives the attempt up after a while, and running
    ranks are not touched."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_failed_rank(harness)
        harness.calls.fail(InvalidError("spec: no"), (Verb.CREATE, "pods"))
        await harness.handle()
        stuck = [each for each in (await look(harness.kube)).status.conditions if each.type == "Stuck"]
        assert [(each.status, each.message) for each in stuck] == [("True", "spec: no")]
        assert len(await harness.pods()) == 1

    run_with_harness(story)


def test_a_quota_is_waited_for() -> None:
    """The wait for a quota is a condition of the allocation, which is removed once the pod exists."""

    async def story(harness: PodWorkerHarness) -> None:
        await a_failed_rank(harness)
        harness.calls.fail(QuotaExceededError("exceeded quota: q"), (Verb.CREATE, "pods"))
        assert isinstance(await ended_with(harness.handle()), TransientError | StaleError)
        assert any(each.type == "Stuck" for each in (await look(harness.kube)).status.conditions)
        harness.calls.fail_with(lambda _at, _when: None)
        await harness.handle()
        assert not any(each.type == "Stuck" for each in (await look(harness.kube)).status.conditions)
        assert len([pod for pod in await harness.pods() if pod.spec.node_name]) == 2

    run_with_harness(story)


def test_a_rank_that_is_seen_on_its_node_needs_nothing_more() -> None:
    """A restarted rank that runs on its node needs no more work, also not for a poll."""

    async def story(harness: PodWorkerHarness) -> None:
        found = await a_failed_rank(harness)
        assert not harness.worker.is_settled(found)
        await harness.handle()
        entry, ranks = await restart_of(harness), found.status.ranks or []
        bound = msgspec.structs.replace(ranks[1], pod_uid=entry.pod_uid, phase=RankState.BOUND, exit_code=None)
        found = await harness.set_status(ranks=[ranks[0], bound])
        assert decide(found) == NoAction("running")
        assert harness.worker.is_settled(found)

    run_with_harness(story)
