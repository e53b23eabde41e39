"""The number of calls and hints that the watcher needs for the life of an allocation."""

import asyncio
from collections import Counter

import pytest

from slipway.crd.v1alpha1 import Allocation
from slipway.kube.errors import Verb
from slipway.model.lifecycle import Phase
from slipway.watcher.reconcile import AT_ONCE_MAX
from tests.support.watcher_harness import WatcherHarness, play

Calls = Counter[tuple[Verb, str]]
MANY = 30


def counted(harness: WatcherHarness) -> Calls:
    """Count the calls of the watcher from now on."""
    calls: Calls = Counter()

    async def count(verb: Verb, plural: str) -> None:
        calls[verb, plural] += 1

    harness.its.after = count
    return calls


def is_let_go(allocation: Allocation) -> bool:
    return allocation.status.phase is Phase.TERMINATED and not allocation.metadata.finalizers


async def run_many(harness: WatcherHarness, *, runs_s: float) -> None:
    """Run many allocations at once, to their ends."""
    harness.kubelet.runs_s = {0: runs_s}
    names = [f"job-{number}" for number in range(MANY)]
    for name in names:
        await harness.launch(name=name)
    for name in names:
        await harness.until(is_let_go, "the end", name=name)


def test_the_pod_worker_is_woken_once_for_an_end() -> None:
    """The end of an allocation sends one hint; the removal of its finalizers sends none."""

    async def story(harness: WatcherHarness) -> None:
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch()
        await harness.until(is_let_go, "the end")
        await asyncio.sleep(5)
        hints = await harness.streams.work_queue("test").claim(limit=10, block_s=0.0)
        assert len(hints) == 1

    play(story)


@pytest.mark.parametrize("works", [True, False])
def test_a_pod_that_ended_by_itself_costs_the_server_two_writes(*, works: bool) -> None:
    """The pod is deleted and its finalizer removed, once each, with a pod worker or without one."""

    async def story(harness: WatcherHarness) -> None:
        calls = counted(harness)
        harness.kubelet.runs_s = {0: 1.0}
        harness.works = True
        await harness.launch()
        await harness.until(lambda found: found.status.release is not None, "the release")
        harness.works = works
        await harness.until(lambda found: found.status.phase is Phase.TERMINATED, "the end")
        await asyncio.sleep(10)
        assert (calls[Verb.PATCH, "pods"], calls[Verb.DELETE, "pods"]) == (1, 1)
        assert not await harness.pods()

    play(story)


def test_many_ends_are_added_to_the_totals_together() -> None:
    """The first end is added at once, the others together a second later, and the watcher does not read again what it
    wrote itself."""

    async def story(harness: WatcherHarness) -> None:
        calls = counted(harness)
        await run_many(harness, runs_s=1.0)
        assert calls[Verb.CREATE, "configmaps"] == 1
        assert calls[Verb.UPDATE, "configmaps"] <= MANY // 5
        assert calls[Verb.GET, "configmaps"] <= MANY + 2

    play(story)


def test_many_that_start_at_once_are_told_in_two_writes_each() -> None:
    """Many allocations that start at once need two status writes each: Running with the steps before it, and the
    end."""

    async def story(harness: WatcherHarness) -> None:
        calls = counted(harness)
        await run_many(harness, runs_s=6.0)
        assert calls[Verb.UPDATE, "allocations"] <= 2 * MANY + AT_ONCE_MAX + 2

    play(story)


def test_a_gang_is_looked_for_by_name() -> None:
    """The watcher reads the objects of a gang by name, because a LIST makes the server read the whole namespace."""

    async def story(harness: WatcherHarness) -> None:
        calls = counted(harness)
        harness.kubelet.runs_s = dict.fromkeys(range(12), 1.0)
        await harness.launch(*["n0"] * 12)
        calls.clear()
        await harness.until(is_let_go, "the end")
        # The one LIST is that of the sweep.
        assert calls[Verb.LIST, "services"] == 1

    play(story)


def test_what_is_watched_is_not_listed_at_rest() -> None:
    """For ten minutes, with one allocation that runs and one that has ended, the sweep LISTs the metadata of ConfigMaps
    and Services. Nothing that has a watch is LISTed."""

    async def story(harness: WatcherHarness) -> None:
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch(name="ended")
        await harness.until(lambda found: found.status.phase is Phase.TERMINATED, "the end", name="ended")
        harness.kubelet.runs_s = {}
        await harness.launch()
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        await asyncio.sleep(60)
        calls = counted(harness)
        await asyncio.sleep(600)
        listed = {plural for (verb, plural), count in calls.items() if verb is Verb.LIST and count}
        assert listed == {"configmaps", "services"}
        assert calls[Verb.LIST, "services"] <= 600 / harness.settings.sweep_interval_s + 1

    play(story)
