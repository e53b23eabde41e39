"""The metrics of a leader: how much work waits, where, why and since when; and the outcomes of its ticks."""

import asyncio

import pytest

from slipway.errors import StaleError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, RESOURCE_POOLS
from slipway.model.reasons import Gate
from slipway.model.times import parse_time
from slipway.runtime import telemetry
from tests.support.small_cluster import launch, look
from tests.unit.scheduler.test_cycle import Bench, on_a_cluster

STALE, AWAY = StaleError("conflict"), UnavailableError("lost")


def told(name: str, **labels: str) -> float | None:
    """A sample, None where there is none."""
    return telemetry.REGISTRY.get_sample_value(f"slipway_{name}", {"pool": "default", **labels})


def test_who_waits_where_why_and_since_when() -> None:
    """The oldest wait counts; a gate or a queue without waiting work shows 0, and has no oldest."""

    async def test(bench: Bench) -> None:
        await launch(bench.kube, "fits")
        await bench.clock.sleep(7)
        await launch(bench.kube, "large", ranks=9)
        await bench.clock.sleep(5)
        await launch(bench.kube, "larger", ranks=20)
        await bench.tick()
        since = parse_time((await look(bench.kube, "large")).metadata.creation_timestamp or "")
        reason = Gate.NO_FIT.value
        assert (told("pending", reason=reason), told("pending", reason=Gate.HELD.value)) == (2, 0)
        assert told("queue_pending", queue="default") == 2
        assert told("pending_since_seconds", reason=reason) == told("queue_since_seconds", queue="default") == since
        assert told("pending_since_seconds", reason=Gate.HELD.value) is None
        assert told("placed") == 1

    on_a_cluster(test, nodes=2, cpus=4)


def test_numbers_end_with_the_leadership() -> None:
    """The next leader has the same metrics, and both would be added up."""

    async def test(bench: Bench) -> None:
        await launch(bench.kube, "large", ranks=9)
        async with asyncio.TaskGroup() as tasks:
            for candidate, stop in await bench.scheduler().discover():
                leading = tasks.create_task(candidate.compete(stop))
                await bench.clock.sleep(10)
                assert told("queue_pending", queue="default") == 1
                stop.set()
                await leading
        assert told("queue_pending", queue="default") is None
        assert told("queue_since_seconds", queue="default") is None
        assert told("placed") is None

    on_a_cluster(test, nodes=2, cpus=4)


@pytest.mark.parametrize(("errors", "outcome"), [((STALE,), "stale"), ((STALE, AWAY), "failed")])
def test_ticks_that_came_to_nothing_are_counted(errors: tuple[Exception, ...], outcome: str) -> None:
    """Stale: another write of the ledger came first. Failed: the ledger could not be read after that."""

    async def test(bench: Bench) -> None:
        before = told("ticks_total", outcome=outcome) or 0
        decided = told("ticks_total", outcome="decided") or 0
        refused: list[float] = []

        async def refuse(verb: Verb, plural: str) -> None:
            is_due = verb is Verb.UPDATE if not refused else verb is Verb.GET
            if (
                plural == RESOURCE_POOLS.plural
                and is_due
                and bench.clock.monotonic() > 5
                and len(refused) < len(errors)
            ):
                refused.append(bench.clock.monotonic())
                raise errors[len(refused) - 1]

        bench.its.before = refuse
        async with asyncio.TaskGroup() as tasks:
            for candidate, stop in await bench.scheduler().discover():
                leading = tasks.create_task(candidate.compete(stop))
                await bench.clock.sleep(10)
                await launch(bench.kube)
                await bench.clock.sleep(10)
                stop.set()
                await leading
        assert len(refused) == len(errors)
        assert told("ticks_total", outcome=outcome) == before + 1
        assert told("ticks_total", outcome="decided") == decided + 1

    on_a_cluster(test)


def test_the_wait_is_told_by_its_gate() -> None:
    """Work that had to wait counts under the gate of its condition; other work counts under None."""

    async def test(bench: Bench) -> None:
        def waits(reason: str) -> float:
            return told("queue_wait_seconds_count", reason=reason) or 0

        before = waits(Gate.HELD.value), waits("None")
        await launch(bench.kube, "at-once")
        await launch(bench.kube, "held", hold=True)
        await bench.tick()
        found = await look(bench.kube, "held")
        await bench.clock.sleep(5)
        await bench.kube.patch(ALLOCATIONS, "held", {"spec": {"hold": False}}, namespace=found.metadata.namespace)
        await bench.tick("two")
        assert (waits(Gate.HELD.value), waits("None")) == (before[0] + 1, before[1] + 1)

    on_a_cluster(test)
