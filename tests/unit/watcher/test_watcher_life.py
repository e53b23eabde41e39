"""Whole lives of allocations beside a small cluster: what the watcher writes, relays and cleans up."""

import asyncio

import msgspec

from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, NODES, PODS, SECRETS
from slipway.kube.statuses import put_status
from slipway.model import ids
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason, Result
from slipway.runtime.service import ServiceStop
from tests.support.small_cluster import look
from tests.support.watcher_harness import WatcherHarness, play


def is_running(allocation: Allocation) -> bool:
    return allocation.status.phase is Phase.RUNNING


def has_ended(allocation: Allocation) -> bool:
    return allocation.status.phase is Phase.TERMINATED


def is_let_go(allocation: Allocation) -> bool:
    return has_ended(allocation) and TEARDOWN_FINALIZER not in allocation.metadata.finalizers


def test_a_command_runs_ends_and_leaves_nothing() -> None:
    """A command runs from its admission to the last finalizer and leaves nothing; its stream has every transition
    once."""

    async def story(harness: WatcherHarness) -> None:
        harness.kubelet.runs_s = {0: 3.0}
        await harness.launch()
        await harness.until(is_running, "running")
        ended = await harness.until(is_let_go, "the end, and nothing left")
        assert ended.status.result is Result.SUCCEEDED
        assert [rank.exit_code for rank in ended.status.ranks or []] == [0]
        assert await harness.pods() == []
        assert (await harness.kube.list(CONFIG_MAPS, label_selector="slipway.dev/attempt")).items == []
        events = await harness.stream(ended)
        assert [stored.event.type.value for stored in events] == [
            "requested",
            "assigned",
            "pulling",
            "starting",
            "running",
            "terminated",
        ]
        assert [stored.event.seq for stored in events] == list(range(1, ended.status.seq + 1))

    play(story)


def test_the_secret_values_go_when_nothing_runs_any_more() -> None:
    """After the end the Secret with the values is deleted by name, before the finalizer is removed. A missing Secret is
    no error, and no other Secret is touched."""

    async def story(harness: WatcherHarness) -> None:
        harness.kubelet.runs_s = {0: 3.0}
        for name in ("job", "bare"):
            allocation = await harness.launch(name=name, secretVariables=["TOKEN"])
            meta = {"name": ids.values_name(allocation.metadata.uid), "namespace": allocation.metadata.namespace}
            if name == "job":
                await harness.kube.create(SECRETS, {"metadata": meta, "data": {}})
        await harness.kube.create(SECRETS, {"metadata": {**meta, "name": "hub"}, "data": {}})
        await harness.until(is_running, "running")
        assert len((await harness.kube.list(SECRETS)).items) == 2
        for name in ("job", "bare"):
            await harness.until(is_let_go, "the end, and nothing left", name=name)
        assert [each.metadata.name for each in (await harness.kube.list(SECRETS)).items] == ["hub"]

    play(story)


def test_a_kill_ends_a_running_gang_as_canceled() -> None:
    """A killed gang is Terminating at once, then Terminated as canceled, with every rank's exit recorded."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch("n0", "n1")
        await harness.until(is_running, "running")
        await harness.worker_harness.cancel()
        await harness.until(lambda found: found.status.phase is Phase.TERMINATING or has_ended(found), "terminating")
        ended = await harness.until(is_let_go, "the end, and nothing left")
        assert ended.status.result is Result.CANCELED
        assert [rank.exit_code for rank in ended.status.ranks or []] == [143, 143]

    play(story)


def test_news_of_ranks_waits_a_second_after_another_replicas_write_too() -> None:
    """The end of a rank just after another replica's status write is written a second after that write."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch("n0", "n1")
        running = await harness.until(is_running, "running")
        await asyncio.sleep(2 * harness.settings.rank_detail_interval_s)
        told = msgspec.structs.replace(running.status, message="told by another replica")
        await put_status(harness.kube, running, told)
        written_at = harness.clock.now()
        await asyncio.sleep(0.1)
        harness.kubelet.runs_s = {0: 0.0}
        await harness.until(lambda found: (found.status.ranks or [])[0].exit_code == 0, "the end of rank 0 on record")
        assert harness.clock.now() - written_at >= harness.settings.rank_detail_interval_s

    play(story)


def test_a_kill_before_the_release_ends_at_once() -> None:
    """A kill before the release ends the allocation at once, because nothing ever ran."""

    async def story(harness: WatcherHarness) -> None:
        harness.works = False
        await harness.launch()
        await harness.worker_harness.cancel()
        ended = await harness.until(has_ended, "the end")
        assert ended.status.result is Result.CANCELED
        harness.works = True
        await harness.until(is_let_go, "nothing left")

    play(story)


def test_a_failing_command_is_tried_again_and_then_has_failed() -> None:
    """maxRestarts counts the user's failures; each attempt has its own pods."""

    async def story(harness: WatcherHarness) -> None:
        harness.kubelet.runs_s, harness.kubelet.codes = {0: 1.0}, {0: 3}
        await harness.launch(maxRestarts=1)
        second = await harness.until(lambda found: found.status.attempt == 2, "the second attempt")
        assert second.status.restarts == 1
        assert second.status.not_before
        await harness.worker_harness.admit("n1")
        ended = await harness.until(is_let_go, "the end, and nothing left")
        assert (ended.status.result, ended.status.reason) == (Result.FAILED, Reason.RANK_FAILED)
        assert await harness.pods() == []

    play(story)


def test_a_pod_deleted_by_hand_costs_the_user_nothing() -> None:
    """After a pod was deleted by hand, the attempt is torn down whole and starts again; no restart is counted."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch("n0", "n1")
        await harness.until(is_running, "running")
        victim = (await harness.pods())[0]
        await harness.kube.delete(PODS, victim.metadata.name, namespace="default")
        second = await harness.until(lambda found: found.status.attempt == 2, "the second attempt")
        assert (second.status.restarts, second.status.infra_restarts) == (0, 1)
        assert second.status.transitions[-1].reason == Reason.POD_DELETED

    play(story)


def test_a_lost_node_restarts_its_gang_elsewhere() -> None:
    """A gang on a deleted node restarts elsewhere: no kubelet confirms the end of its pods, and the node is avoided."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch("n0", "n1")
        await harness.until(is_running, "running")
        harness.kubelet.is_away.add("n1")
        await harness.kube.delete(NODES, "n1")
        second = await harness.until(lambda found: found.status.attempt == 2, "the second attempt")
        assert second.status.avoid_nodes == ["n1"]
        assert second.status.restarts == 0

    play(story)


def test_a_start_writes_first_what_has_ended_while_no_watcher_ran() -> None:
    """While no watcher runs, the limit of `a` is lowered and the pod of `b` ends. The next watcher writes the end of
    `b` before the new deadline of `a`, although every LIST has `a` first."""

    async def story(harness: WatcherHarness) -> None:
        stops = [ServiceStop(), ServiceStop()]
        first = asyncio.ensure_future(harness.run(harness.watcher, stops[0]))
        for name, node in (("a", "n0"), ("b", "n1")):
            await harness.launch(node, name=name, maxRuntime="1h")
            await harness.until(is_running, "running", name=name)
        stops[0].set()
        await first
        harness.kubelet.is_away.add("n0")
        harness.kubelet.runs_s = {0: 0.0}
        await harness.kube.patch(ALLOCATIONS, "a", {"spec": {"maxRuntimeOverride": "30m"}}, namespace="default")
        for _ in range(400):
            if any(pod.status.phase == "Succeeded" for pod in await harness.pods()):
                break
            await asyncio.sleep(0.1)
        written: list[str] = []
        harness.core.subscribe(
            lambda change: written.append(change.key[1]) if change.resource.startswith("allocations.") else None
        )
        second = asyncio.ensure_future(harness.run(harness.another("two"), stops[1]))
        await harness.until(has_ended, "the end of b", name="b")
        await harness.until(lambda _: "a" in written, "the new deadline of a", name="a")
        assert written[0] == "b"
        stops[1].set()
        await second

    play(story, watches=False)


def test_a_deleted_allocation_is_torn_down_before_it_goes() -> None:
    """`kubectl delete` is a cancel: the object stays until all its objects are gone and its end is published."""

    async def story(harness: WatcherHarness) -> None:
        launched = await harness.launch()
        await harness.until(is_running, "running")
        await harness.kube.delete(ALLOCATIONS, "job", namespace="default")
        for _ in range(400):
            if not (await harness.kube.list(ALLOCATIONS)).items:
                break
            await asyncio.sleep(0.1)
        assert (await harness.kube.list(ALLOCATIONS)).items == []
        assert await harness.pods() == []
        events = await harness.streams.events.read(id_of(launched))
        assert events[-1].event.type.value == "terminated"

    play(story)


def test_at_rest_nothing_is_written_but_leases() -> None:
    """A running allocation costs no writes except those of leases, also when the watcher restarts."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch("n0", "n1")
        await harness.until(is_running, "running")
        await asyncio.sleep(5)
        harness.writes.clear()
        await asyncio.sleep(120)
        assert {plural for _, plural in harness.writes} == {"leases"}
        assert (await look(harness.kube)).status.phase is Phase.RUNNING

    play(story)
