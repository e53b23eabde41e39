"""Evictions and nominations from tick to tick: what is written, what survives a leader, what is called off."""

from typing import Any

from slipway.crd.transitions import record
from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, QUEUES, RESOURCE_POOLS
from slipway.model.ledger import LEDGER_BYTES_MAX, Decision, DecisionKind, Ledger
from slipway.model.lifecycle import Event, Phase
from slipway.scheduler import ledger
from tests.support.small_cluster import launch, look
from tests.unit.scheduler.test_cycle import SchedulerHarness, on_a_cluster


def evicts(pool: ResourcePool) -> list[tuple[str, str, str]]:
    """(kind, allocation, by) of the decisions in the ledger."""
    return [(item.kind, item.allocation, item.by) for item in pool.status.decisions]


async def ledger_of(harness: SchedulerHarness) -> ResourcePool:
    return await harness.kube.get(RESOURCE_POOLS, "default")


async def a_victim(harness: SchedulerHarness, **spec: Any) -> Allocation:
    """A preemptible allocation that uses the whole cluster."""
    await harness.kube.patch(QUEUES, "default", {"spec": {"preemption": {"withinQueue": "LowerPriority"}}})
    await launch(harness.kube, "low", ranks=4, priority=10, preemptible=True, **spec)
    await harness.tick()
    return await look(harness.kube, "low")


async def gone(harness: SchedulerHarness, name: str = "low") -> None:
    """Record, as the watcher does, that the pods have gone and the next attempt waits."""
    found = await look(harness.kube, name)
    again = record(found, Event.RESTARTED, now=harness.clock.now())
    await harness.kube.replace_status(ALLOCATIONS, again)


def test_an_eviction_and_its_nomination_are_one_write() -> None:
    """The stop names the preemptor; the preemptor waits, and its gate is MakingRoom."""

    async def test(harness: SchedulerHarness) -> None:
        await a_victim(harness)
        await launch(harness.kube, "high", ranks=4, priority=90)
        before = (await ledger_of(harness)).status.tick
        await harness.tick()
        pool = await ledger_of(harness)
        assert pool.status.tick == before + 1
        assert ("evict", "default/low", "default/high") in evicts(pool)
        assert ("nominate", "default/high", "") in evicts(pool)
        low, high = await look(harness.kube, "low"), await look(harness.kube, "high")
        assert low.status.stop is not None
        assert (low.status.stop.reason, low.status.stop.by, low.status.stop.requeue) == (
            "Preempted",
            "default/high",
            True,
        )
        assert [(item.by, item.attempt) for item in low.status.preemptions] == [("default/high", 1)]
        assert high.status.phase is Phase.PENDING
        assert [item.reason for item in high.status.conditions if item.type == "Admitted"] == ["MakingRoom"]

    on_a_cluster(test, nodes=1, cpus=4)


def test_a_held_place_is_no_reason_to_write_and_outlives_leaders() -> None:
    """While the victim is there, later ticks and later leaders decide nothing more; then the preemptor takes the
    place."""

    async def test(harness: SchedulerHarness) -> None:
        await a_victim(harness)
        await launch(harness.kube, "high", ranks=4, priority=90)
        await harness.tick()
        tick = (await ledger_of(harness)).status.tick
        await launch(harness.kube, "thief", ranks=1, priority=50)
        for leader in ("two", "three"):
            await harness.tick(leader)
        pool = await ledger_of(harness)
        assert pool.status.tick == tick
        assert ("nominate", "default/high", "") in evicts(pool)
        await gone(harness)
        await harness.tick("four")
        high = await look(harness.kube, "high")
        assert high.status.phase is Phase.ASSIGNED
        assert (await look(harness.kube, "thief")).status.phase is Phase.PENDING
        assert not [item for item in evicts(await ledger_of(harness)) if item[0] == "nominate"]

    on_a_cluster(test, nodes=1, cpus=4)


def test_an_eviction_without_a_beneficiary_is_cancelled() -> None:
    """The leader dies before it stops the victim, and the preemptor is cancelled: the next leader does not stop the
    victim."""

    async def test(harness: SchedulerHarness) -> None:
        await a_victim(harness)
        await launch(harness.kube, "high", ranks=4, priority=90)

        async def refuse(verb: Verb, plural: str) -> None:
            if verb is Verb.UPDATE and plural == ALLOCATIONS.plural:
                raise UnavailableError("away")

        sound, harness.its.before = harness.its.before, refuse
        await harness.tick()
        assert ("evict", "default/low", "default/high") in evicts(await ledger_of(harness))
        await harness.kube.patch(ALLOCATIONS, "high", {"spec": {"desired": "Stopped"}}, namespace="default")
        harness.its.before = sound
        await harness.tick("two")
        assert (await look(harness.kube, "low")).status.stop is None

    on_a_cluster(test, nodes=1, cpus=4)


def test_surplus_ranks_are_told_and_stay_told() -> None:
    """Only ranks beyond the minimum are told to leave; a second preemption adds to them."""

    async def test(harness: SchedulerHarness) -> None:
        await a_victim(harness, minAvailable=1)
        for count, name in ((1, "one"), (2, "two")):
            await launch(harness.kube, name, ranks=1, priority=90)
            await harness.tick()
            low = await look(harness.kube, "low")
            assert low.status.stop is None
            assert low.status.shrink is not None
            assert len(low.status.shrink.ranks) == count
            assert low.status.shrink.by == f"default/{name}"
        assert [item.by for item in low.status.preemptions] == ["default/one", "default/two"]

    on_a_cluster(test, nodes=1, cpus=4)


def test_the_next_leader_goes_on_with_what_is_used_of_an_eviction_limit() -> None:
    """The use of the limit is written with the evictions: one an hour is one an hour, however many leaders there
    are."""

    async def test(harness: SchedulerHarness) -> None:
        await a_victim(harness, minAvailable=1)
        await harness.kube.patch(QUEUES, "default", {"spec": {"evictionLimit": {"count": 1, "per": "1h"}}})
        await launch(harness.kube, "one", ranks=1, priority=90)
        await harness.tick()
        assert [item.queue for item in (await ledger_of(harness)).status.evicted] == ["default"]
        await launch(harness.kube, "two", ranks=1, priority=90)
        for leader in ("two", "three"):
            await harness.tick(leader)
        assert [item.by for item in (await look(harness.kube, "low")).status.preemptions] == ["default/one"]
        waits = next(item for item in (await look(harness.kube, "two")).status.conditions if item.type == "Admitted")
        assert "the eviction limit of queue default is used up (1 at once, 1 per 1h)" in waits.message

    on_a_cluster(test, nodes=1, cpus=4)


def test_what_belongs_together_is_committed_whole_or_not() -> None:
    """The limit of the ledger's size cuts between bundles, never through one."""

    def placed(kind: DecisionKind, name: str, size: int = 0) -> ledger.PlacedDecision:
        return ledger.PlacedDecision(
            kind=kind, allocation=f"default/{name}", uid=name, attempt=1, placements={}, reason="x" * size
        )

    half = LEDGER_BYTES_MAX // 2
    some = [
        placed(DecisionKind.ADMIT, "first", half),
        placed(DecisionKind.EVICT, "victim"),
        placed(DecisionKind.NOMINATE, "urgent", half),
        placed(DecisionKind.ADMIT, "last"),
    ]
    _, whole = ledger.commit(Ledger(), some[1:], at="", together=[[0, 1]])
    assert [each.uid for each in whole] == ["victim", "urgent", "last"]
    _, cut = ledger.commit(Ledger(), some, at="", together=[[1, 2]])
    assert [each.uid for each in cut] == ["first"]


def test_an_eviction_stands_while_somebody_waits_for_its_room() -> None:
    """The work that the eviction was for waits, or other work that took the room over."""

    def decision(kind: DecisionKind, name: str, **more: Any) -> Decision:
        return Decision(id=name, epoch=1, allocation=f"default/{name}", uid=name, attempt=1, kind=kind, **more)

    evict = decision(DecisionKind.EVICT, "low", by="default/high")
    high = decision(DecisionKind.NOMINATE, "high", victims=("low",))
    top = decision(DecisionKind.NOMINATE, "top", victims=("low",))
    assert ledger.obsolete_evictions(Ledger(decisions=(evict, high))) == frozenset()
    assert ledger.obsolete_evictions(Ledger(decisions=(evict, top))) == frozenset()
    assert ledger.obsolete_evictions(Ledger(decisions=(evict,))) == {"low"}
    assert ledger.obsolete_evictions(Ledger(decisions=(decision(DecisionKind.EVICT, "broken"),))) == frozenset()
