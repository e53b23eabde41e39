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
from tests.support.podworker_desk import CrashError, Desk, at_a_desk, ended_with
from tests.support.small_cluster import look


async def a_failed_rank(desk: Desk, *, is_gone: bool = True, in_s: float = 0.0) -> Allocation:
    """An allocation of two ranks: rank 1 has failed, the watcher has counted that, and its pod is gone or still
    exists."""
    await desk.assign("n0", "n1", restart="rank", maxRestarts=3)
    await desk.handle()
    for event in (Event.PULLING, Event.STARTING, Event.RUNNING):
        await desk.write("job", event)
    first, second = await desk.pods()
    await desk.kube.patch(PODS, second.metadata.name, {"status": {"phase": "Failed"}}, namespace="default")
    if is_gone:
        await remove(desk, second)
    ranks = [
        RankStatus(pod_uid=first.metadata.uid, node="n0", phase=RankState.RUNNING),
        RankStatus(pod_uid=second.metadata.uid, node="n1", phase=RankState.FAILED, exit_code=1, reason="RankFailed"),
    ]
    desk.calls.seen.clear()
    due = format_time(desk.clock.now() + in_s)
    return await desk.set_status(ranks=ranks, restarts=1, restarted_ranks=[RankRestart(rank=1, n=1, not_before=due)])


async def remove(desk: Desk, pod: Pod) -> None:
    """Remove a pod whose log was read, as the watcher and the API server do."""
    name = pod.metadata.name
    await desk.kube.patch(PODS, name, {"metadata": {"finalizers": None}}, namespace="default")
    await desk.kube.delete(PODS, name, namespace="default", grace_s=0)


async def restart_of(desk: Desk) -> RankRestart:
    return (await look(desk.kube)).status.restarted_ranks[0]


def told(desk: Desk, pod: Pod) -> dict[str, Any]:
    """The environment of a pod without its trace."""
    body = desk.core.get("pods", "default", pod.metadata.name)
    env = {item["name"]: item.get("value", "") for item in body["spec"]["containers"][0]["env"]}
    return {name: value for name, value in env.items() if name != "TRACEPARENT"}


def test_the_next_pod_is_made_named_and_then_bound() -> None:
    """The next pod is created, named and then bound, in this order, on the same node and with the same name; the
    release and the other rank are unchanged."""

    async def story(desk: Desk) -> None:
        before = await a_failed_rank(desk)
        assert decide(before) == RestartRanks((1,))
        await desk.handle()
        assert desk.calls.writes == [(Verb.CREATE, "pods"), (Verb.UPDATE, "allocations"), (Verb.BIND, "pods")]
        first, second = await desk.pods()
        assert (first.spec.node_name, second.spec.node_name) == ("n0", "n1")
        assert before.status.release is not None
        assert first.metadata.uid == before.status.release.pod_uids[0]
        assert second.metadata.uid != before.status.release.pod_uids[1]
        assert (await restart_of(desk)).pod_uid == second.metadata.uid
        assert (await look(desk.kube)).status.release == before.status.release

    at_a_desk(story)


def test_the_next_pod_is_told_what_the_first_was_told() -> None:
    """The next pod gets the same environment: its rank, the number of ranks, and the address of the first rank."""

    async def story(desk: Desk) -> None:
        await desk.assign("n0", "n1", restart="rank", maxRestarts=3)
        await desk.handle()
        first = told(desk, (await desk.pods())[1])
        await desk.kube.delete(ALLOCATIONS, "job", namespace="default")
        assert first["RANK"] == "1"
        assert first["WORLD_SIZE"] == "2"

    async def again(desk: Desk) -> None:
        await a_failed_rank(desk)
        await desk.handle()
        pod = (await desk.pods())[1]
        assert {name: told(desk, pod)[name] for name in ("RANK", "WORLD_SIZE")} == {"RANK": "1", "WORLD_SIZE": "2"}
        assert told(desk, pod)["MASTER_ADDR"] == told(desk, (await desk.pods())[0])["MASTER_ADDR"]

    at_a_desk(story)
    at_a_desk(again)


def test_a_pod_whose_log_is_being_read_is_left_alone() -> None:
    """A failed pod whose log is still read is left alone, although it has the name that the next one needs; the watcher
    deletes it, and the hint is sent again."""

    async def story(desk: Desk) -> None:
        await a_failed_rank(desk, is_gone=False)
        assert isinstance(await ended_with(desk.handle()), TransientError)
        assert (Verb.DELETE, "pods") not in desk.calls.writes
        await remove(desk, (await desk.pods())[1])
        await desk.handle()
        assert [pod.spec.node_name for pod in await desk.pods()] == ["n0", "n1"]

    at_a_desk(story)


def test_a_pause_that_is_not_over_is_kept() -> None:
    """Nothing is created before the pause is over; a pod that is due in a moment is waited for."""

    async def story(desk: Desk) -> None:
        await a_failed_rank(desk, in_s=20.0)
        await desk.handle()
        assert desk.calls.writes == []
        await desk.clock.sleep(19.5)
        await desk.handle()
        assert len([pod for pod in await desk.pods() if pod.spec.node_name]) == 2

    at_a_desk(story)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(9))
def test_a_crash_at_any_point_leaves_one_pod_of_the_rank(number: int, moment: str) -> None:
    """After a crash at any point another process continues: the rank has exactly one pod, and nothing is counted
    again."""

    async def story(desk: Desk) -> None:
        await a_failed_rank(desk)
        desk.calls.fail_with(lambda at, when: CrashError() if (at, when) == (number, moment) else None)
        try:
            await desk.handle()
        except BaseException as error:  # noqa: BLE001 - the crash, alone or in a group
            assert "CrashError" in repr(error)  # noqa: PT017
        worker, _ = desk.another_worker()
        await desk.handle(worker=worker)
        pods = await desk.pods()
        assert [pod.spec.node_name for pod in pods] == ["n0", "n1"]
        found = (await look(desk.kube)).status
        assert (found.restarts, found.restarted_ranks[0].pod_uid) == (1, pods[1].metadata.uid)

    at_a_desk(story)


def test_a_cancel_before_the_pod_is_named_starts_nothing() -> None:
    """After a cancel before the pod is named, the server refuses the name, and nothing is bound."""

    async def story(desk: Desk) -> None:
        await a_failed_rank(desk)

        async def cancel(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.UPDATE, "allocations"):
                desk.calls.hook = None
                await desk.cancel()

        desk.calls.hook = cancel
        await desk.handle()
        assert (await restart_of(desk)).pod_uid == ""
        assert [bool(pod.spec.node_name) for pod in await desk.pods()] == [True, False]
        assert decide(await look(desk.kube)) == NoAction("stopping")

    at_a_desk(story)


def test_what_can_never_be_made_again_is_told() -> None:
    """A pod that can never be created again is reported: the watcher gives the attempt up after a while, and running
    ranks are not touched."""

    async def story(desk: Desk) -> None:
        await a_failed_rank(desk)
        desk.calls.fail(InvalidError("spec: no"), (Verb.CREATE, "pods"))
        await desk.handle()
        stuck = [each for each in (await look(desk.kube)).status.conditions if each.type == "Stuck"]
        assert [(each.status, each.message) for each in stuck] == [("True", "spec: no")]
        assert len(await desk.pods()) == 1

    at_a_desk(story)


def test_a_quota_is_waited_for() -> None:
    """The wait for a quota is a condition of the allocation, which is removed once the pod exists."""

    async def story(desk: Desk) -> None:
        await a_failed_rank(desk)
        desk.calls.fail(QuotaExceededError("exceeded quota: q"), (Verb.CREATE, "pods"))
        assert isinstance(await ended_with(desk.handle()), TransientError | StaleError)
        assert any(each.type == "Stuck" for each in (await look(desk.kube)).status.conditions)
        desk.calls.fail_with(lambda _at, _when: None)
        await desk.handle()
        assert not any(each.type == "Stuck" for each in (await look(desk.kube)).status.conditions)
        assert len([pod for pod in await desk.pods() if pod.spec.node_name]) == 2

    at_a_desk(story)


def test_a_rank_that_is_seen_on_its_node_needs_nothing_more() -> None:
    """A restarted rank that runs on its node needs no more work, also not for a poll."""

    async def story(desk: Desk) -> None:
        found = await a_failed_rank(desk)
        assert not desk.worker.is_settled(found)
        await desk.handle()
        entry, ranks = await restart_of(desk), found.status.ranks or []
        bound = msgspec.structs.replace(ranks[1], pod_uid=entry.pod_uid, phase=RankState.BOUND, exit_code=None)
        found = await desk.set_status(ranks=[ranks[0], bound])
        assert decide(found) == NoAction("running")
        assert desk.worker.is_settled(found)

    at_a_desk(story)
