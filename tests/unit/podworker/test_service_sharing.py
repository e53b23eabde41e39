"""Allocations share a Service: it is created once, has each of them as owner, and is deleted with the last."""

import asyncio
from typing import Any

import pytest

from slipway.crd.meta import condition_of
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import SERVICES
from slipway.model.lifecycle import Event
from tests.support.podworker_desk import CrashError, Desk, at_a_desk
from tests.support.small_cluster import look

LLM: dict[str, Any] = {"name": "llm", "port": 8000}


async def launched(desk: Desk, *names: str, nodes: tuple[str, ...] = ("n0",), **service: Any) -> None:
    """Launch allocations of these names behind the Service `llm`."""
    for name in names:
        await desk.assign(*nodes, name=name, service=LLM | service)
        await desk.handle(name)


async def killed(desk: Desk, name: str) -> None:
    """Kill the allocation, and let the pod worker clean up."""
    await desk.cancel(name)
    await desk.write(name, Event.TERMINATING)
    await desk.handle(name)
    await desk.finish_deletes()
    await desk.write(name, Event.TERMINATED)
    await desk.handle(name)


async def owners(desk: Desk) -> list[str] | None:
    """The names of the owners of `llm`; None when there is no such Service."""
    found = [each for each in await desk.services() if each.metadata.name == "llm"]
    return [owner.name for owner in found[0].metadata.owner_references] if found else None


async def refused(desk: Desk, name: str) -> str:
    """The reason why the launch can never succeed; empty when it may succeed."""
    condition = condition_of((await look(desk.kube, name)).status.conditions, "Refused")
    return condition.message if condition is not None and condition.status == "True" else ""


def test_one_service_selects_the_first_rank_of_each() -> None:
    """Two gangs of two ranks share one Service with a stable address; its selector matches rank 0 of each and nothing
    else."""

    async def story(desk: Desk) -> None:
        await launched(desk, "a", "b", nodes=("n0", "n1"))
        [service] = [each for each in await desk.services() if each.metadata.name == "llm"]
        assert service.spec["clusterIP"] not in ("", "None")
        assert [(port["port"], port["targetPort"]) for port in service.spec["ports"]] == [(8000, 8000)]
        behind = [pod for pod in await desk.pods() if service.spec["selector"].items() <= pod.metadata.labels.items()]
        assert [pod.metadata.labels["slipway.dev/rank"] for pod in behind] == ["0", "0"]
        assert {pod.metadata.labels["slipway.dev/allocation"].partition("-")[0] for pod in behind} == {"a", "b"}

    at_a_desk(story)


def test_it_goes_with_the_last_of_its_allocations() -> None:
    """The Service stays when one of its allocations ends; the last one deletes it."""

    async def story(desk: Desk) -> None:
        await launched(desk, "a", "b")
        assert await owners(desk) == ["a", "b"]
        await killed(desk, "a")
        assert await owners(desk) == ["b"]
        await killed(desk, "b")
        assert await owners(desk) is None

    at_a_desk(story)


def test_the_next_attempt_stays_behind_it() -> None:
    """The next attempt uses the same Service: the objects of the old attempt are removed, but the Service belongs to
    the allocation and is not written again."""

    async def story(desk: Desk) -> None:
        await launched(desk, "job")
        await desk.write("job", Event.RESTARTED)
        desk.calls.seen.clear()
        await desk.admit("n1")
        await desk.handle()
        assert await owners(desk) == ["job"]
        assert not [call for call in desk.calls.writes if call[1] == "services"]

    at_a_desk(story)


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

    async def story(desk: Desk) -> None:
        metadata = {"name": "llm", "namespace": "default", "labels": labels}
        await desk.kube.create(SERVICES, {"metadata": metadata, "spec": {"ports": [{"port": port}]}})
        before = await desk.services()
        await launched(desk, "job")
        assert words in await refused(desk, "job")
        assert "another name" in await refused(desk, "job")
        assert await desk.pods() == []
        await desk.cancel()
        await desk.handle()
        assert await desk.services() == before

    at_a_desk(story)


def test_workers_side_by_side_lose_no_owner() -> None:
    """Two workers that launch four allocations at once, and end four at once, lose no owner, because each write is
    fenced by the version that it has read."""

    async def story(desk: Desk) -> None:
        other, _ = desk.another_worker()
        names = ["a", "b", "c", "d"]
        for name in names:
            await desk.assign(name=name, service=LLM)

        async def by_both() -> None:
            pairs = zip(names, [desk.worker, other] * 2, strict=True)
            await asyncio.gather(*(desk.handle(name, worker) for name, worker in pairs))

        await by_both()
        assert sorted(await owners(desk) or []) == names
        for name in names:
            await desk.write(name, Event.TERMINATING)
        await by_both()
        await desk.finish_deletes()
        for name in names:
            await desk.write(name, Event.TERMINATED)
        await by_both()
        assert await owners(desk) is None

    at_a_desk(story)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("verb", [Verb.CREATE, Verb.PATCH, Verb.DELETE])
@pytest.mark.parametrize("error", [UnavailableError, CrashError])
def test_a_call_that_fails_at_any_point_is_made_good(verb: Verb, moment: str, error: type[BaseException]) -> None:
    """After a failed call at any point the owners are the running allocations, and the Service is deleted in the
    end."""

    async def story(desk: Desk) -> None:
        left = [verb]

        def fault(number: int, when: str) -> BaseException | None:
            if when == moment and left and desk.calls.seen[number] == (left[0], "services"):
                left.clear()
                return error("lost")
            return None

        desk.calls.fail_with(fault)

        async def handled(name: str) -> None:
            try:
                await desk.handle(name)
            except CrashError:
                desk.worker, desk.calls = desk.another_worker()
                await desk.handle(name)

        for name in ("a", "b"):
            await desk.assign(name=name, service=LLM)
            await handled(name)
        assert await owners(desk) == ["a", "b"]
        for name in ("a", "b"):
            await desk.write(name, Event.TERMINATING)
            await handled(name)
            await desk.finish_deletes()
            await desk.write(name, Event.TERMINATED)
            await handled(name)
        assert await owners(desk) is None
        assert not left

    at_a_desk(story)
