"""Gangs in a workspace with a quota: a waiting gang occupies no part of the quota."""

import asyncio
from collections import Counter

import msgspec

from slipway.errors import QuotaExceededError
from slipway.kube.errors import Verb
from slipway.kube.resources import PODS
from tests.support.podworker_desk import SETTINGS, Desk, at_a_desk, ended_with, hint_for
from tests.support.small_cluster import look

READ = (Verb.GET, "allocations")
LOOKS_AGAIN = 2
"""The number of the read before pods are deleted."""
MADE = 3
ROUNDS = 20
"""rounds of hints, which take ten minutes"""
NODES = tuple(f"n{number}" for number in range(7))


def a_quota(desk: Desk, hard: dict[str, str]) -> None:
    desk.core.create("resourcequotas", "default", {"metadata": {"name": "team"}, "spec": {"hard": hard}})


async def living(desk: Desk) -> int:
    """The number of pods that are not being deleted."""
    return sum(pod.metadata.deletion_timestamp is None for pod in await desk.pods())


async def finish_deletes_for(desk: Desk, seconds: int) -> None:
    """Finish deletes for so long, as the watcher does all the time."""
    for _ in range(10 * seconds):
        await desk.clock.sleep(0.1)
        await desk.finish_deletes()


def test_a_gang_that_its_quota_refuses_holds_no_pods_while_it_waits() -> None:
    """A gang that the quota refuses deletes its pods while it waits, so that a smaller gang starts."""

    async def story(desk: Desk) -> None:
        a_quota(desk, {"pods": "5"})
        await desk.assign(*NODES)
        refused = await ended_with(desk.worker.handle(hint_for(await look(desk.kube)), may_retry=False))
        assert isinstance(refused, QuotaExceededError)
        assert await living(desk) == 0
        await desk.finish_deletes()
        await desk.assign("n0", "n1", "n2", "n3", "n4", name="small")
        await desk.handle("small")
        assert (await look(desk.kube, "small")).status.release is not None

    at_a_desk(story)


def test_a_gang_starts_once_its_quota_was_raised() -> None:
    """A gang starts with the next hint after its quota was raised."""

    async def story(desk: Desk) -> None:
        a_quota(desk, {"pods": "5"})
        await desk.assign(*NODES)
        await ended_with(desk.worker.handle(hint_for(await look(desk.kube)), may_retry=False))
        await desk.finish_deletes()
        desk.core.patch("resourcequotas", "default", "team", {"spec": {"hard": {"pods": "7"}}})
        await desk.handle()
        assert (await look(desk.kube)).status.release is not None
        assert await living(desk) == 7

    at_a_desk(story)


def test_nothing_of_a_release_is_given_back() -> None:
    """When another worker releases the attempt while the quota refuses this one, the released pods stay."""

    async def story(desk: Desk) -> None:
        await desk.assign(*NODES)
        late, calls = desk.another_worker()
        asked: Counter[tuple[Verb, str]] = Counter()

        async def release_first(verb: Verb, plural: str) -> None:
            asked[verb, plural] += 1
            if asked[Verb.CREATE, "pods"] > MADE and (verb, plural) == (Verb.CREATE, "pods"):
                raise QuotaExceededError("exceeded quota: team")
            if (verb, plural) == READ and asked[READ] == LOOKS_AGAIN:
                await desk.handle()

        calls.hook = release_first
        await ended_with(late.handle(hint_for(await look(desk.kube)), may_retry=False))
        assert asked[READ] >= LOOKS_AGAIN
        assert (await look(desk.kube)).status.release is not None
        assert await living(desk) == len(NODES)

    at_a_desk(story)


def test_gangs_that_meet_at_one_quota_all_start_one_after_the_other() -> None:
    """Four gangs of seven pods with a quota of nine all start one after the other: each tries with every hint, and
    started ones end."""

    async def story(desk: Desk) -> None:
        a_quota(desk, {"pods": "9"})
        names = [f"gang{number}" for number in range(4)]
        for name in names:
            await desk.assign(*NODES, name=name)
        slow = msgspec.structs.replace(SETTINGS, worker_calls=1)
        worker, _ = desk.another_worker(slow)
        started: list[str] = []
        for _ in range(ROUNDS):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(finish_deletes_for(desk, 30))
                for name in names:
                    if name not in started:
                        tasks.create_task(ended_with(desk.handle(name, worker)))
            for name in names:
                if name not in started and (await look(desk.kube, name)).status.release is not None:
                    started.append(name)
                    for pod in await desk.pods():
                        if pod.metadata.name.startswith(name):
                            await desk.kube.delete(PODS, pod.metadata.name, namespace="default")
        assert sorted(started) == names

    at_a_desk(story)
