"""Gangs in a workspace with a quota: a waiting gang occupies no part of the quota."""

import asyncio
from collections import Counter

import msgspec

from slipway.errors import QuotaExceededError
from slipway.kube.errors import Verb
from slipway.kube.resources import PODS
from tests.support.podworker_harness import SETTINGS, PodWorkerHarness, ended_with, hint_for, run_with_harness
from tests.support.small_cluster import look

READ = (Verb.GET, "allocations")
LOOKS_AGAIN = 2
"""The number of the read before pods are deleted."""
MADE = 3
ROUNDS = 20
"""rounds of hints, which take ten minutes"""
NODES = tuple(f"n{number}" for number in range(7))


def a_quota(harness: PodWorkerHarness, hard: dict[str, str]) -> None:
    harness.core.create("resourcequotas", "default", {"metadata": {"name": "team"}, "spec": {"hard": hard}})


async def living(harness: PodWorkerHarness) -> int:
    """The number of pods that are not being deleted."""
    return sum(pod.metadata.deletion_timestamp is None for pod in await harness.pods())


async def finish_deletes_for(harness: PodWorkerHarness, seconds: int) -> None:
    """Finish deletes for so long, as the watcher does all the time."""
    for _ in range(10 * seconds):
        await harness.clock.sleep(0.1)
        await harness.finish_deletes()


def test_a_gang_that_its_quota_refuses_holds_no_pods_while_it_waits() -> None:
    """A gang that the quota refuses deletes its pods while it waits, so that a smaller gang starts."""

    async def story(harness: PodWorkerHarness) -> None:
        a_quota(harness, {"pods": "5"})
        await harness.assign(*NODES)
        refused = await ended_with(harness.worker.handle(hint_for(await look(harness.kube)), may_retry=False))
        assert isinstance(refused, QuotaExceededError)
        assert await living(harness) == 0
        await harness.finish_deletes()
        await harness.assign("n0", "n1", "n2", "n3", "n4", name="small")
        await harness.handle("small")
        assert (await look(harness.kube, "small")).status.release is not None

    run_with_harness(story)


def test_a_gang_starts_once_its_quota_was_raised() -> None:
    """A gang starts with the next hint after its quota was raised."""

    async def story(harness: PodWorkerHarness) -> None:
        a_quota(harness, {"pods": "5"})
        await harness.assign(*NODES)
        await ended_with(harness.worker.handle(hint_for(await look(harness.kube)), may_retry=False))
        await harness.finish_deletes()
        harness.core.patch("resourcequotas", "default", "team", {"spec": {"hard": {"pods": "7"}}})
        await harness.handle()
        assert (await look(harness.kube)).status.release is not None
        assert await living(harness) == 7

    run_with_harness(story)


def test_nothing_of_a_release_is_given_back() -> None:
    """When another worker releases the attempt while the quota refuses this one, the released pods stay."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(*NODES)
        late, calls = harness.another_worker()
        asked: Counter[tuple[Verb, str]] = Counter()

        async def release_first(verb: Verb, plural: str) -> None:
            asked[verb, plural] += 1
            if asked[Verb.CREATE, "pods"] > MADE and (verb, plural) == (Verb.CREATE, "pods"):
                raise QuotaExceededError("exceeded quota: team")
            if (verb, plural) == READ and asked[READ] == LOOKS_AGAIN:
                await harness.handle()

        calls.hook = release_first
        await ended_with(late.handle(hint_for(await look(harness.kube)), may_retry=False))
        assert asked[READ] >= LOOKS_AGAIN
        assert (await look(harness.kube)).status.release is not None
        assert await living(harness) == len(NODES)

    run_with_harness(story)


def test_gangs_that_meet_at_one_quota_all_start_one_after_the_other() -> None:
    """Four gangs of seven pods with a quota of nine all start one after the other: each tries with every hint, and
    started ones end."""

    async def story(harness: PodWorkerHarness) -> None:
        a_quota(harness, {"pods": "9"})
        names = [f"gang{number}" for number in range(4)]
        for name in names:
            await harness.assign(*NODES, name=name)
        slow = msgspec.structs.replace(SETTINGS, worker_calls=1)
        worker, _ = harness.another_worker(slow)
        started: list[str] = []
        for _ in range(ROUNDS):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(finish_deletes_for(harness, 30))
                for name in names:
                    if name not in started:
                        tasks.create_task(ended_with(harness.handle(name, worker)))
            for name in names:
                if name not in started and (await look(harness.kube, name)).status.release is not None:
                    started.append(name)
                    for pod in await harness.pods():
                        if pod.metadata.name.startswith(name):
                            await harness.kube.delete(PODS, pod.metadata.name, namespace="default")
        assert sorted(started) == names

    run_with_harness(story)
