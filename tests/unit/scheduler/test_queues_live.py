"""Queues of a cluster: run limits travel with the admission; a queue that is set aside stops no other queue."""

from typing import Any

import pytest

from slipway.accounting import daily_totals
from slipway.accounting.usage import DAY_MS, day_of
from slipway.crd.figures import DayTotals, TotalsRow
from slipway.crd.meta import condition_of
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, JOBS, NODES, QUEUES, RESOURCE_POOLS
from slipway.model.lifecycle import Phase
from tests.support.small_cluster import a_manifest, add_node, launch, look
from tests.unit.scheduler.test_cycle import SchedulerHarness, on_a_cluster


async def a_queue(harness: SchedulerHarness, name: str, **spec: Any) -> None:
    await harness.kube.create(QUEUES, {"metadata": {"name": name}, "spec": {"pool": "default", **spec}})


@pytest.mark.parametrize(
    ("asked", "limit"), [({}, "3600s"), ({"maxRuntime": "2h"}, "3600s"), ({"maxRuntime": "30m"}, "3600s")]
)
def test_the_run_limit_of_a_queue_is_written_with_the_admission(asked: dict[str, Any], limit: str | None) -> None:
    """The limit is the shortest of the queue and those above it, whatever the work asks for, which may change while it
    runs."""

    async def test(harness: SchedulerHarness) -> None:
        await a_queue(harness, "lab", maxRuntime="1h")
        await a_queue(harness, "team", parent="lab", maxRuntime="5h")
        await launch(harness.kube, queue="team", **asked)
        await harness.tick()
        admission = (await look(harness.kube)).status.admission
        assert admission is not None
        assert admission.max_runtime == limit

    on_a_cluster(test)


def test_queues_in_a_circle_are_set_aside_and_the_others_go_on() -> None:
    """Work in them waits with a message that names the circle; work in a queue with an invalid quota does too."""

    async def test(harness: SchedulerHarness) -> None:
        await a_queue(harness, "a", parent="b", maxRuntime="1h", budgets=[{"gpuHours": 1, "window": "24h"}])
        await a_queue(harness, "b", parent="a")
        await a_queue(harness, "bad", nominal={"cpu": "-1"})
        await launch(harness.kube, "in-a", queue="a")
        await launch(harness.kube, "in-bad", queue="bad")
        await launch(harness.kube, "sound")
        await harness.tick()
        assert (await look(harness.kube, "sound")).status.phase is Phase.ASSIGNED
        for name, words in (
            ("in-a", "nothing starts in queue a: its parents form a cycle: a -> b -> a"),
            ("in-bad", "nothing starts in queue bad: spec.nominal.cpu: '-1' is negative; a quantity is zero or more"),
        ):
            waiting = condition_of((await look(harness.kube, name)).status.conditions, "Admitted")
            assert waiting is not None
            assert (waiting.reason, waiting.message) == ("UnknownQueue", words)

    on_a_cluster(test)


async def launch_with_gpu(harness: SchedulerHarness) -> None:
    manifest = a_manifest("train", queue="team")
    manifest["spec"]["ranks"][0]["resources"] = {"nvidia.com/gpu": 1}
    await harness.kube.create(ALLOCATIONS, manifest, namespace="default")


def totals_of(now: float, days_ago: int, queue: str, hours: float) -> dict[str, Any]:
    """The ConfigMap of a day on which a queue used so many GPU-hours, by work that is long gone."""
    day = day_of(round(now * 1000) - days_ago * DAY_MS)
    used = {"Running": round(hours * 3_600_000)}
    row = TotalsRow(workspace="gone", user="ada", pool="default", queue=queue, kind="training", slot_ms=used)
    return daily_totals.manifest(day, DayTotals(rows=[row]))


@pytest.mark.parametrize(
    ("budget", "is_closed"),
    [
        ({"gpuHours": 3, "window": "24h"}, True),
        ({"gpuHours": 3.5, "window": "24h"}, False),
        ({"gpuHours": 5, "window": "1h"}, False),
    ],
)
def test_a_budget_counts_what_ended_work_has_used(budget: dict[str, Any], *, is_closed: bool) -> None:
    """The use comes from the daily totals of the window (whole days), of the queue and all below it; a new leader reads
    it."""

    async def test(harness: SchedulerHarness) -> None:
        await a_queue(harness, "lab", budgets=[budget])
        await a_queue(harness, "team", parent="lab")
        for days_ago, hours in ((0, 3.0), (1, 50.0)):
            await harness.kube.create(
                CONFIG_MAPS, totals_of(harness.clock.now(), days_ago, "team", hours), namespace="slipway-system"
            )
        await launch_with_gpu(harness)
        await launch(harness.kube, "without", queue="team")
        await harness.tick()
        assert (await look(harness.kube, "without")).status.phase is Phase.ASSIGNED
        waiting = condition_of((await look(harness.kube, "train")).status.conditions, "Admitted")
        assert waiting is not None
        assert waiting.status == ("False" if is_closed else "True")
        if is_closed:
            assert waiting.reason == "WaitingForQuota"
            assert waiting.message.startswith(
                "queue lab has used up its budget of 3 GPU-hours per 1d; the next window begins"
            )

    on_a_cluster(test, gpus=4)


def test_budgets_that_cannot_be_read_block_no_plan() -> None:
    """Without sound totals no use is known: the error is logged, and the read is tried again."""

    async def test(harness: SchedulerHarness) -> None:
        await a_queue(harness, "team", budgets=[{"gpuHours": 1, "window": "24h"}])
        broken = totals_of(harness.clock.now(), 0, "team", 5.0) | {"data": {"totals": "{"}}
        await harness.kube.create(CONFIG_MAPS, broken, namespace="slipway-system")
        await launch_with_gpu(harness)
        await harness.tick()
        assert (await look(harness.kube, "train")).status.phase is Phase.ASSIGNED

    on_a_cluster(test, gpus=4)


def test_a_node_that_cannot_be_decoded_blocks_no_plan() -> None:
    """An amount of a node that is negative, or more than fits in 64 bits, counts as missing."""

    async def test(harness: SchedulerHarness) -> None:
        strange = {"cpu": "64", "memory": "99Ei", "pods": "110", "nvidia.com/gpu": "-1"}
        await harness.kube.create(NODES, {"metadata": {"name": "odd"}, "status": {"allocatable": strange}})
        await launch(harness.kube, "sound")
        await harness.tick()
        assert (await look(harness.kube, "sound")).status.phase is Phase.ASSIGNED

    on_a_cluster(test)


def test_what_was_applied_with_names_that_do_not_exist_says_so_in_the_first_tick() -> None:
    """The condition names the queue or the job that is missing; the work starts once it exists."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, "no-queue", queue="gone")
        await launch(harness.kube, "no-job", job="sweep")
        await harness.tick()
        for name, reason, words in (
            ("no-queue", "UnknownQueue", "pool default has no queue gone"),
            ("no-job", "UnknownJob", "workspace default has no job sweep"),
        ):
            waiting = condition_of((await look(harness.kube, name)).status.conditions, "Admitted")
            assert waiting is not None
            assert (waiting.reason, waiting.message) == (reason, words)
        await harness.kube.create(JOBS, {"metadata": {"name": "sweep", "namespace": "default"}, "spec": {}})
        await harness.tick()
        assert (await look(harness.kube, "no-job")).status.phase is Phase.ASSIGNED

    on_a_cluster(test)


async def launch_typed(harness: SchedulerHarness, name: str, *flavors: str) -> None:
    """Work with one GPU of a type that it accepts."""
    manifest = a_manifest(name, queue="team", flavors=list(flavors))
    manifest["spec"]["ranks"][0]["resources"] = {"cpu": 1, "nvidia.com/gpu": 1}
    await harness.kube.create(ALLOCATIONS, manifest, namespace="default")


def test_flavors_of_a_pool_are_counted_from_what_the_objects_say() -> None:
    """Pool, queue and work name flavors. Admitted work counts in the flavor of its node; work with an unknown flavor
    waits."""

    async def test(harness: SchedulerHarness) -> None:
        flavors = [{"name": kind, "nodeLabels": {"gpu": kind}} for kind in ("h100", "a100")]
        await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"flavors": flavors}})
        for kind in ("h100", "a100"):
            await add_node(harness.kube, kind, gpus=2, labels={"gpu": kind})
        await a_queue(harness, "team", flavors=[{"name": "h100", "limit": {"nvidia.com/gpu": 1}}])
        await launch_typed(harness, "first", "h100", "a100")
        await harness.tick()
        await launch_typed(harness, "second", "h100", "a100")
        await launch_typed(harness, "third", "h100")
        await launch_typed(harness, "fourth", "h200")
        await harness.tick()
        for name, node in (("first", "h100"), ("second", "a100")):
            admission = (await look(harness.kube, name)).status.admission
            assert admission is not None
            assert [placement.node for placement in admission.placements] == [node]
            assert admission.flavor == node
        for name, reason, words in (
            ("third", "WaitingForQuota", "flavor h100: needs 1 nvidia.com/gpu of flavor h100 more quota"),
            ("fourth", "UnknownFlavor", "pool default has no flavor h200; it has h100, a100"),
        ):
            waiting = condition_of((await look(harness.kube, name)).status.conditions, "Admitted")
            assert waiting is not None
            assert waiting.reason == reason
            assert waiting.message.startswith(words)

    on_a_cluster(test)
