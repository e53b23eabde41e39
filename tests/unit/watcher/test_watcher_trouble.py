"""Lives of allocations under failures: of Redis, watches, other watchers, nodes, namespaces, owners."""

import asyncio
from typing import Any

import pytest

from slipway.crd.meta import LABEL_ALLOCATION_UID, TEARDOWN_FINALIZER, TRACKING_FINALIZER, Condition
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, NAMESPACES, NODES, PODS
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.model.times import format_time
from slipway.runtime.service import ServiceStop
from slipway.runtime.telemetry import render_metrics
from tests.support.small_cluster import look
from tests.support.watcher_harness import WatcherHarness, play


def is_running(allocation: Allocation) -> bool:
    return allocation.status.phase is Phase.RUNNING


def is_let_go(allocation: Allocation) -> bool:
    return allocation.status.phase is Phase.TERMINATED and TEARDOWN_FINALIZER not in allocation.metadata.finalizers


async def seqs(harness: WatcherHarness, allocation: Allocation) -> list[int]:
    return [stored.event.seq for stored in await harness.stream(allocation)]


def test_streams_come_back_after_a_flush() -> None:
    """Within 60 s every stream is whole again, entry for entry, also of what has ended."""

    async def story(harness: WatcherHarness) -> None:
        harness.kubelet.runs_s = {0: 2.0}
        await harness.launch(name="done")
        await harness.until(is_let_go, "the end", name="done")
        harness.kubelet.runs_s = {}
        await harness.launch()
        running = await harness.until(is_running, "running")
        done = await look(harness.kube, "done")
        await asyncio.sleep(1)
        before = {name: await harness.stream(found) for name, found in (("job", running), ("done", done))}
        harness.server.flush()
        await asyncio.sleep(60)
        assert {"job": await harness.stream(running), "done": await harness.stream(done)} == before

    play(story)


def test_without_redis_everything_but_the_streams_works() -> None:
    """Without Redis everything except the streams works, and when Redis is back the streams are whole."""

    async def story(harness: WatcherHarness) -> None:
        harness.server.absent = True
        harness.kubelet.runs_s = {0: 2.0}
        await harness.launch()
        ended = await harness.until(is_let_go, "the end, although its last event cannot be relayed")
        assert ended.status.result is Result.SUCCEEDED
        harness.server.absent = False
        await asyncio.sleep(60)
        assert await seqs(harness, ended) == list(range(1, ended.status.seq + 1))

    play(story)


def test_two_watchers_write_what_one_writes() -> None:
    """Of two watchers one acts at once, and the other finds no work left. The stream has each entry once."""

    async def story(harness: WatcherHarness) -> None:
        stop = ServiceStop()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(harness.another("two").run(stop))
            await asyncio.sleep(5)
            harness.writes.clear()
            harness.kubelet.runs_s = {0: 4.0, 1: 4.0}
            await harness.launch("n0", "n1")
            ended = await harness.until(is_let_go, "the end")
            await asyncio.sleep(10)
            stop.set()
        assert harness.writes.count((Verb.UPDATE, "allocations")) == 3
        assert await seqs(harness, ended) == list(range(1, ended.status.seq + 1))

    play(story)


def test_a_standby_goes_on_without_the_primary() -> None:
    """A standby works while the primary is dead and its lease has not expired yet."""

    async def story(harness: WatcherHarness) -> None:
        first = asyncio.ensure_future(harness.watcher.run(ServiceStop()))
        await asyncio.sleep(1)
        stop = ServiceStop()
        standby = asyncio.ensure_future(harness.another("two").run(stop))
        await asyncio.sleep(1)
        first.cancel()
        await asyncio.wait({first})
        await harness.launch()
        found = await harness.until(is_running, "running", timeout_s=10)
        await asyncio.sleep(30)
        assert await seqs(harness, found) == list(range(1, found.status.seq + 1))
        stop.set()
        await standby

    play(story, watches=False)


def test_a_silent_watch_is_noticed() -> None:
    """A watch whose socket is open but silent is noticed: missed changes are found within the silence limit."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch()
        await harness.until(is_running, "running")
        harness.its.is_stalled = True
        await harness.worker_harness.cancel()
        await asyncio.sleep(30)
        assert (await look(harness.kube)).status.phase is Phase.RUNNING
        await asyncio.sleep(90)
        harness.its.is_stalled = False
        ended = await harness.until(is_let_go, "the end", timeout_s=90)
        assert ended.status.result is Result.CANCELED

    play(story)


def test_an_exit_outlives_its_node_while_nobody_watches() -> None:
    """An exit is recorded although its node is deleted while no watcher runs: the finalizer keeps the pod, so the
    success does not become a loss."""

    async def story(harness: WatcherHarness) -> None:
        stop = ServiceStop()
        first = asyncio.ensure_future(harness.watcher.run(stop))
        harness.kubelet.runs_s = {0: 2.0}
        await harness.launch("n1")
        await harness.until(is_running, "running")
        stop.set()
        await first
        await asyncio.sleep(5)
        await harness.kube.delete(NODES, "n1")
        await asyncio.sleep(150)
        again = ServiceStop()
        second = asyncio.ensure_future(harness.another("two").run(again))
        ended = await harness.until(is_let_go, "the end")
        assert ended.status.result is Result.SUCCEEDED
        assert [rank.exit_code for rank in ended.status.ranks or []] == [0]
        again.set()
        await second

    play(story, watches=False)


def test_a_deleted_namespace_empties() -> None:
    """A deleted namespace becomes empty: our finalizers do not hold its pods, and the allocation is canceled."""

    async def story(harness: WatcherHarness) -> None:
        launched = await harness.launch("n0", "n1")
        await harness.until(is_running, "running")
        await harness.kube.delete(NAMESPACES, "default")
        for _ in range(600):
            if not (await harness.kube.list(ALLOCATIONS)).items and not await harness.pods():
                break
            await asyncio.sleep(0.1)
        assert (await harness.kube.list(ALLOCATIONS)).items == []
        assert await harness.pods() == []
        events = await harness.streams.events.read(id_of(launched))
        assert events[-1].event.data["result"] == Result.CANCELED

    play(story)


def test_a_pod_that_ends_as_its_namespace_lets_it_go_is_recorded_first() -> None:
    """In a namespace that is being deleted, an end that happens after the first look at a pod is recorded before the
    pod's finalizer is removed."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch()
        await harness.until(is_running, "running")
        harness.kubelet.is_away = {"n0"}
        at_its_end: list[int | None] = []

        async def end_it(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.PATCH, "pods") and harness.kubelet.is_away:
                harness.kubelet.is_away = set()
                await asyncio.sleep(1)

        async def look_at_it(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.PATCH, "pods") and not await harness.pods():
                at_its_end.extend(rank.exit_code for rank in (await look(harness.kube)).status.ranks or [])

        harness.its.before, harness.its.after = end_it, look_at_it
        await harness.kube.delete(NAMESPACES, "default")
        for _ in range(600):
            if at_its_end:
                break
            await asyncio.sleep(0.1)
        assert at_its_end == [143]

    play(story)


@pytest.mark.parametrize("owner", ["", "gone", "job"])
def test_objects_without_any_owner_are_swept(owner: str) -> None:
    """Objects of a deleted allocation are deleted within 60 s, with their finalizers, also when another allocation has
    its name now."""

    async def story(harness: WatcherHarness) -> None:
        if owner == "job":
            await harness.launch()
            await harness.worker_harness.cancel()
            await harness.until(is_let_go, "the end")
        await _orphan(harness, owner=owner)
        await asyncio.sleep(60)
        assert await harness.pods() == []
        assert (await harness.kube.list(CONFIG_MAPS, label_selector=LABEL_ALLOCATION_UID)).items == []

    play(story)


@pytest.mark.parametrize(("verb", "owner"), [(Verb.LIST, ""), (Verb.GET, "gone")])
def test_nothing_is_swept_on_a_read_that_failed(verb: Verb, owner: str) -> None:
    """When owners cannot be read, by LIST or by name, the sweep deletes nothing."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch()
        await harness.until(is_running, "running")
        await _orphan(harness, owner=owner)

        async def refuse(asked: Verb, plural: str) -> None:
            await asyncio.sleep(0)
            if asked is verb and plural == "allocations":
                raise UnavailableError("no")

        harness.its.before = refuse
        harness.writes.clear()
        await asyncio.sleep(90)
        assert {plural for _, plural in harness.writes} <= {"leases", "events"}
        assert len(await harness.pods()) == 2

    play(story)


def test_one_pass_does_all_pending_work() -> None:
    """A pass with `--once` does statuses, streams, hints and sweeps, and leaves no task running."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch()
        await _orphan(harness)
        await asyncio.sleep(2)
        others = asyncio.all_tasks()
        await harness.another("once").run_once()
        assert asyncio.all_tasks() <= others
        found = await look(harness.kube)
        assert found.status.phase is Phase.RUNNING
        assert await seqs(harness, found) == list(range(1, found.status.seq + 1))
        await harness.worker_harness.cancel()
        for _ in range(8):
            await harness.another("once").run_once()
            await asyncio.sleep(1)
        assert is_let_go(await look(harness.kube))
        assert await harness.pods() == []
        hints = await harness.streams.work_queue("test").claim(limit=10, block_s=0.0)
        assert {each.hint and each.hint.allocation for each in hints} == {id_of(found)}

    play(story, watches=False)


async def _orphan(harness: WatcherHarness, *, owner: str = "") -> None:
    """Create a pod and a ConfigMap of an allocation that does not exist; `owner` is its former name."""
    labels = {LABEL_ALLOCATION_UID: "gone", "slipway.dev/attempt": "1", "slipway.dev/rank": "0"}
    metadata: dict[str, Any] = {"name": "orphan", "namespace": "default", "labels": labels}
    if owner:
        kind = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation"}
        metadata["ownerReferences"] = [{**kind, "name": owner, "uid": "gone"}]
    containers = [{"name": "main", "image": "i"}]
    pod = {"metadata": {**metadata, "finalizers": [TRACKING_FINALIZER]}, "spec": {"containers": containers}}
    await harness.kube.create(PODS, pod, namespace="default")
    await harness.kube.create(CONFIG_MAPS, {"metadata": metadata}, namespace="default")


def test_what_is_stuck_is_counted() -> None:
    """`slipway_stuck` is the number of launches that need help; it falls when one continues."""

    async def story(harness: WatcherHarness) -> None:
        harness.works = False
        await harness.launch("n0")
        told = Condition(
            type="Stuck",
            status="True",
            reason="QuotaExceeded",
            observed_generation=1,
            last_transition_time=format_time(harness.clock.now()),
        )
        await harness.worker_harness.set_status(conditions=[told])
        await harness.clock.sleep(harness.settings.resync_interval_s + 1)
        assert "slipway_stuck 1.0" in render_metrics()[1].decode()
        await harness.worker_harness.set_status(conditions=[])
        await harness.clock.sleep(harness.settings.resync_interval_s + 1)
        assert "slipway_stuck 0.0" in render_metrics()[1].decode()

    play(story)


def test_a_stuck_teardown_is_counted_until_it_is_complete() -> None:
    """`slipway_stuck` includes an ended allocation whose objects cannot be deleted, and no other ended one."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch("n0")
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        harness.works = False
        await harness.worker_harness.cancel()
        [pod] = await harness.pods()
        await harness.kube.delete(PODS, pod.metadata.name, namespace="default")
        ended = await harness.until(lambda found: found.status.phase is Phase.TERMINATED, "the end")
        told = Condition(
            type="Stuck",
            status="True",
            reason="TeardownFailed",
            observed_generation=1,
            last_transition_time=format_time(harness.clock.now()),
        )
        await harness.worker_harness.set_status(conditions=[*ended.status.conditions, told])
        await harness.clock.sleep(harness.settings.resync_interval_s + 1)
        assert "slipway_stuck 1.0" in render_metrics()[1].decode()
        harness.works = True
        await harness.until(is_let_go, "the end of the teardown")
        await harness.clock.sleep(harness.settings.resync_interval_s + 1)
        assert "slipway_stuck 0.0" in render_metrics()[1].decode()

    play(story)
