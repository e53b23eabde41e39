"""Allocations share a Service: it is created once, has each of them as owner, and is deleted with the last."""

import asyncio
from typing import Any

import pytest

from slipway.crd.meta import condition_of
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import SERVICES
from slipway.model.lifecycle import Event
from tests.support.podworker_harness import CrashError, PodWorkerHarness, run_with_harness
from tests.support.small_cluster import look

LLM: dict[str, Any] = {"name": "llm", "port": 8000}


async def launched(harness: PodWorkerHarness, *names: str, nodes: tuple[str, ...] = ("n0",), **service: Any) -> None:
    """Launch allocations of these names behind the Service `llm`."""
    for name in names:
        await harness.assign(*nodes, name=name, service=LLM | service)
        await harness.handle(name)


async def killed(harness: PodWorkerHarness, name: str) -> None:
    """Kill the allocation, and let the pod worker clean up."""
    await harness.cancel(name)
    await harness.write(name, Event.TERMINATING)
    await harness.handle(name)
    await harness.finish_deletes()
    await harness.write(name, Event.TERMINATED)
    await harness.handle(name)


async def owners(harness: PodWorkerHarness) -> list[str] | None:
    """The names of the owners of `llm`; None when there is no such Service."""
    found = [each for each in await harness.services() if each.metadata.name == "llm"]
    return [owner.name for owner in found[0].metadata.owner_references] if found else None


async def refused(harness: PodWorkerHarness, name: str) -> str:
    """The reason why the launch can never succeed; empty when it may succeed."""
    condition = condition_of((await look(harness.kube, name)).status.conditions, "Refused")
    return condition.message if condition is not None and condition.status == "True" else ""


def test_one_service_selects_the_first_rank_of_each() -> None:
    """Two gangs of two ranks share one Service with a stable address; its selector matches rank 0 of each and nothing
    else."""

    async def story(harness: PodWorkerHarness) -> None:
        await launched(harness, "a", "b", nodes=("n0", "n1"))
        [service] = [each for each in await harness.services() if each.metadata.name == "llm"]
        assert service.spec["clusterIP"] not in ("", "None")
        assert [(port["port"], port["targetPort"]) for port in service.spec["ports"]] == [(8000, 8000)]
        behind = [
            pod for pod in await harness.pods() if service.spec["selector"].items() <= pod.metadata.labels.items()
        ]
        assert [pod.metadata.labels["slipway.dev/rank"] for pod in behind] == ["0", "0"]
        assert {pod.metadata.labels["slipway.dev/allocation"].partition("-")[0] for pod in behind} == {"a", "b"}

    run_with_harness(story)


def test_it_goes_with_the_last_of_its_allocations() -> None:
    """The Service stays when one of its allocations ends; the last one deletes it."""

    async def story(harness: PodWorkerHarness) -> None:
        await launched(harness, "a", "b")
        assert await owners(harness) == ["a", "b"]
        await killed(harness, "a")
        assert await owners(harness) == ["b"]
        await killed(harness, "b")
        assert await owners(harness) is None

    run_with_harness(story)


def test_the_next_attempt_stays_behind_it() -> None:
    """The next attempt uses the same Service: the objects of the old attempt are removed, but the Service belongs to
    the allocation and is not written again."""

    async def story(harness: PodWorkerHarness) -> None:
        await launched(harness, "job")
        await harness.write("job", Event.RESTARTED)
        harness.calls.seen.clear()
        await harness.admit("n1")
        await harness.handle()
        assert await owners(harness) == ["job"]
        assert not [call for call in harness.calls.writes if call[1] == "services"]

    run_with_harness(story)


@pytest.mark.parametrize(
    ("labels", "port", "words"),
    [
        ({}, 8000, "/service/name: Service llm exists and was not made by Slipway"),
        ({"slipway.dev/service": "llm", "app.kubernetes.io/managed-by": "slipway"}, 80, "/service/port"),
        ({"slipway.dev/service": "other", "app.kubernetes.io/managed-by": "slipway"}, 8000, "not made by Slipway"),
    ],
)
def test_a_service_that_is_another_refuses_the_launch_before_a_pod_is_made(
    labels: dict[str, str], port: int, words: str
) -> None:
    """A Service with other settings refuses the launch before a pod is created; it stays as it is, also when the
    allocation ends. The reason names the field and the next step."""

    async def story(harness: PodWorkerHarness) -> None:
        metadata = {"name": "llm", "namespace": "default", "labels": labels}
        await harness.kube.create(SERVICES, {"metadata": metadata, "spec": {"ports": [{"port": port}]}})
        before = await harness.services()
        await launched(harness, "job")
        assert words in await refused(harness, "job")
        assert "another name" in await refused(harness, "job")
        assert await harness.pods() == []
        await harness.cancel()
        await harness.handle()
        assert await harness.services() == before

    run_with_harness(story)


def test_workers_side_by_side_lose_no_owner() -> None:
    """Two workers that launch four allocations at once, and end four at once, lose no owner, because each write is
    fenced by the version that it has read."""

    async def story(harness: PodWorkerHarness) -> None:
        other, _ = harness.another_worker()
        names = ["a", "b", "c", "d"]
        for name in names:
            await harness.assign(name=name, service=LLM)

        async def by_both() -> None:
            pairs = zip(names, [harness.worker, other] * 2, strict=True)
            await asyncio.gather(*(harness.handle(name, worker) for name, worker in pairs))

        await by_both()
        assert sorted(await owners(harness) or []) == names
        for name in names:
            await harness.write(name, Event.TERMINATING)
        await by_both()
        await harness.finish_deletes()
        for name in names:
            await harness.write(name, Event.TERMINATED)
        await by_both()
        assert await owners(harness) is None

    run_with_harness(story)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("verb", [Verb.CREATE, Verb.PATCH, Verb.DELETE])
@pytest.mark.parametrize("error", [UnavailableError, CrashError])
def test_a_call_that_fails_at_any_point_is_made_good(verb: Verb, moment: str, error: type[BaseException]) -> None:
    """After a failed call at any point the owners are the running allocations, and the Service is deleted in the
    end."""

    async def story(harness: PodWorkerHarness) -> None:
        left = [verb]

        def fault(number: int, when: str) -> BaseException | None:
            if when == moment and left and harness.calls.seen[number] == (left[0], "services"):
                left.clear()
                return error("lost")
            return None

        harness.calls.fail_with(fault)

        async def handled(name: str) -> None:
            try:
                await harness.handle(name)
            except CrashError:
                harness.worker, harness.calls = harness.another_worker()
                await harness.handle(name)

        for name in ("a", "b"):
            await harness.assign(name=name, service=LLM)
            await handled(name)
        assert await owners(harness) == ["a", "b"]
        for name in ("a", "b"):
            await harness.write(name, Event.TERMINATING)
            await handled(name)
            await harness.finish_deletes()
            await harness.write(name, Event.TERMINATED)
            await handled(name)
        assert await owners(harness) is None
        assert not left

    run_with_harness(story)
