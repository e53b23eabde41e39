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
from tests.unit.scheduler.test_cycle import SchedulerHarness, on_a_cluster

STALE, AWAY = StaleError("conflict"), UnavailableError("lost")


def sample_of(name: str, **labels: str) -> float | None:
    """A sample, None where there is none."""
    return telemetry.REGISTRY.get_sample_value(f"slipway_{name}", {"pool": "default", **labels})


def test_who_waits_where_why_and_since_when() -> None:
    """The oldest wait counts; a gate or a queue without waiting work shows 0, and has no oldest."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, "fits")
        await harness.clock.sleep(7)
        await launch(harness.kube, "large", ranks=9)
        await harness.clock.sleep(5)
        await launch(harness.kube, "larger", ranks=20)
        await harness.tick()
        since = parse_time((await look(harness.kube, "large")).metadata.creation_timestamp or "")
        reason = Gate.NO_FIT.value
        assert (sample_of("pending", reason=reason), sample_of("pending", reason=Gate.HELD.value)) == (2, 0)
        assert sample_of("queue_pending", queue="default") == 2
        assert (
            sample_of("pending_since_seconds", reason=reason)
            == sample_of("queue_since_seconds", queue="default")
            == since
        )
        assert sample_of("pending_since_seconds", reason=Gate.HELD.value) is None
        assert sample_of("placed") == 1

    on_a_cluster(test, nodes=2, cpus=4)


def test_numbers_end_with_the_leadership() -> None:
    """The next leader has the same metrics, and both would be added up."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, "large", ranks=9)
        async with asyncio.TaskGroup() as tasks:
            for candidate, stop in await harness.scheduler().discover():
                leading = tasks.create_task(candidate.compete(stop))
                await harness.clock.sleep(10)
                assert sample_of("queue_pending", queue="default") == 1
                stop.set()
                await leading
        assert sample_of("queue_pending", queue="default") is None
        assert sample_of("queue_since_seconds", queue="default") is None
        assert sample_of("placed") is None

    on_a_cluster(test, nodes=2, cpus=4)


@pytest.mark.parametrize(("errors", "outcome"), [((STALE,), "stale"), ((STALE, AWAY), "failed")])
def test_ticks_that_came_to_nothing_are_counted(errors: tuple[Exception, ...], outcome: str) -> None:
    """Stale: another write of the ledger came first. Failed: the ledger could not be read after that."""

    async def test(harness: SchedulerHarness) -> None:
        before = sample_of("ticks_total", outcome=outcome) or 0
        decided = sample_of("ticks_total", outcome="decided") or 0
        refused: list[float] = []

        async def refuse(verb: Verb, plural: str) -> None:
            is_due = verb is Verb.UPDATE if not refused else verb is Verb.GET
            if (
                plural == RESOURCE_POOLS.plural
                and is_due
                and harness.clock.monotonic() > 5
                and len(refused) < len(errors)
            ):
                refused.append(harness.clock.monotonic())
                raise errors[len(refused) - 1]

        harness.its.before = refuse
        async with asyncio.TaskGroup() as tasks:
            for candidate, stop in await harness.scheduler().discover():
                leading = tasks.create_task(candidate.compete(stop))
                await harness.clock.sleep(10)
                await launch(harness.kube)
                await harness.clock.sleep(10)
                stop.set()
                await leading
        assert len(refused) == len(errors)
        assert sample_of("ticks_total", outcome=outcome) == before + 1
        assert sample_of("ticks_total", outcome="decided") == decided + 1

    on_a_cluster(test)


def test_the_wait_is_told_by_its_gate() -> None:
    """Work that had to wait counts under the gate of its condition; other work counts under None."""

    async def test(harness: SchedulerHarness) -> None:
        def waits(reason: str) -> float:
            return sample_of("queue_wait_seconds_count", reason=reason) or 0

        before = waits(Gate.HELD.value), waits("None")
        await launch(harness.kube, "at-once")
        await launch(harness.kube, "held", hold=True)
        await harness.tick()
        found = await look(harness.kube, "held")
        await harness.clock.sleep(5)
        await harness.kube.patch(ALLOCATIONS, "held", {"spec": {"hold": False}}, namespace=found.metadata.namespace)
        await harness.tick("two")
        assert (waits(Gate.HELD.value), waits("None")) == (before[0] + 1, before[1] + 1)

    on_a_cluster(test)
