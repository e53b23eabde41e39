"""Growth from tick to tick: how it is decided, written once, finished by the next leader, and called off."""

from typing import Any

import msgspec

from slipway.crd.members import members
from slipway.crd.meta import ObjectMeta
from slipway.crd.transitions import record
from slipway.crd.v1alpha1 import Allocation, Growth, Release, ResourcePool, ResourcePoolStatus, Shrink
from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, RESOURCE_POOLS
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Event, Phase
from slipway.scheduler.apply import Applier, EffectOutcome
from slipway.scheduler.ledger import is_applied, is_impossible
from slipway.scheduler.ledger_store import _decoded, _encoded  # pyright: ignore[reportPrivateUsage]
from tests.support.planner import an_allocation
from tests.support.small_cluster import launch, look
from tests.unit.scheduler.test_cycle import SchedulerHarness, on_a_cluster


async def put(harness: SchedulerHarness, name: str, **changes: Any) -> Allocation:
    found = await look(harness.kube, name)
    status = msgspec.structs.replace(found.status, **changes)
    return await harness.kube.replace_status(ALLOCATIONS, msgspec.structs.replace(found, status=status))


async def ended(harness: SchedulerHarness, name: str) -> None:
    found = await look(harness.kube, name)
    over = record(found, Event.TERMINATING, now=harness.clock.now())
    over = record(over, Event.TERMINATED, now=harness.clock.now())
    await harness.kube.replace_status(ALLOCATIONS, over)


async def a_gang_below_its_count(harness: SchedulerHarness) -> Allocation:
    """A gang that runs with one of three ranks; `holder` uses the rest of the node."""
    await launch(harness.kube, "holder", ranks=3, priority=50)
    await launch(harness.kube, "gang", ranks=3, minAvailable=1, priority=10)
    await harness.tick()
    found = await look(harness.kube, "gang")
    await put(harness, "gang", release=Release(attempt=1, pod_uids=["pod-0"]))
    for event in (Event.PULLING, Event.STARTING, Event.RUNNING):
        found = record(await look(harness.kube, "gang"), event, now=harness.clock.now())
        found = await harness.kube.replace_status(ALLOCATIONS, found)
    assert len(members(found)) == 1
    return found


def test_a_gang_grows_in_the_tick_after_there_is_room() -> None:
    """The ledger has the decision, the object has the places; admission and release are as they were."""

    async def test(harness: SchedulerHarness) -> None:
        before = await a_gang_below_its_count(harness)
        await harness.tick()
        assert (await look(harness.kube, "gang")).status.growth is None
        await ended(harness, "holder")
        await harness.tick()
        found = await look(harness.kube, "gang")
        growth = found.status.growth
        assert growth is not None
        assert ([place.rank for place in growth.placements], growth.n, growth.attempt) == ([1, 2], 1, 1)
        assert (found.status.admission, found.status.release) == (before.status.admission, before.status.release)
        pool = await harness.kube.get(RESOURCE_POOLS, "default")
        assert [(item.kind, item.grows) for item in pool.status.decisions if item.id == growth.decision_id] in (
            [("admit", True)],
            [],
        )
        tick = pool.status.tick
        await harness.tick()
        assert (await harness.kube.get(RESOURCE_POOLS, "default")).status.tick == tick

    on_a_cluster(test, nodes=1)


def test_the_next_leader_finishes_a_growth() -> None:
    """The new ranks have their places as soon as the ledger has the decision."""

    async def test(harness: SchedulerHarness) -> None:
        await a_gang_below_its_count(harness)
        await ended(harness, "holder")

        async def refuse(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.UPDATE, "allocations"):
                raise UnavailableError("away")

        sound, harness.its.before = harness.its.before, refuse
        await harness.tick()
        assert (await look(harness.kube, "gang")).status.growth is None
        await launch(harness.kube, "thief", ranks=2, priority=5)
        harness.its.before = sound
        await harness.tick("two")
        growth = (await look(harness.kube, "gang")).status.growth
        assert growth is not None
        assert len(growth.placements) == 2
        assert (await look(harness.kube, "thief")).status.phase is Phase.PENDING

    on_a_cluster(test, nodes=1)


def test_a_gang_that_shrank_gets_its_ranks_back() -> None:
    """All ranks that made room have to be gone and reported. Then they leave the admission, and the growth has them."""

    async def test(harness: SchedulerHarness) -> None:
        await launch(harness.kube, "gang", ranks=3, minAvailable=1)
        await harness.tick()
        await put(harness, "gang", release=Release(attempt=1, pod_uids=["pod-0", "pod-1", "pod-2"]))
        for event in (Event.PULLING, Event.STARTING, Event.RUNNING):
            found = record(await look(harness.kube, "gang"), event, now=harness.clock.now())
            await harness.kube.replace_status(ALLOCATIONS, found)
        await put(harness, "gang", shrink=Shrink(ranks=[1, 2], attempt=1, by="default/high", told=0))
        await harness.tick()
        assert (await look(harness.kube, "gang")).status.growth is None
        await put(harness, "gang", shrink=Shrink(ranks=[1, 2], attempt=1, by="default/high", told=2))
        await harness.tick()
        found = await look(harness.kube, "gang")
        assert found.status.shrink is None
        assert found.status.growth is not None
        assert found.status.growth.left == [1, 2]
        assert [(member.rank, member.pod_uid) for member in members(found)] == [(0, "pod-0"), (1, ""), (2, "")]

    on_a_cluster(test, nodes=1)


def test_an_attempt_of_an_older_release_does_not_grow() -> None:
    """The first ranks of such an attempt were not told that others may join them."""

    async def test(harness: SchedulerHarness) -> None:
        found = await a_gang_below_its_count(harness)
        assert found.status.admission is not None
        await put(harness, "gang", admission=msgspec.structs.replace(found.status.admission, elastic=False))
        await ended(harness, "holder")
        await harness.tick()
        assert (await look(harness.kube, "gang")).status.growth is None

    on_a_cluster(test, nodes=1)


def test_a_decision_of_a_deposed_leader_comes_too_late() -> None:
    """Another leader has finished the decision, and has added other ranks since."""

    async def test(harness: SchedulerHarness) -> None:
        found = await a_gang_below_its_count(harness)
        grow = Decision(
            id="1-9-0",
            epoch=1,
            allocation="default/gang",
            uid=found.metadata.uid,
            attempt=1,
            kind=DecisionKind.GROW,
            placements=(-1, 0),
        )
        growth = Growth(n=3, attempt=1, decision_id="2-1-0", epoch=2)
        await put(harness, "gang", growth=growth)
        applier = Applier(harness.kube, harness.clock)
        assert (await applier.decision(grow, ("n0",))).outcome is EffectOutcome.VOID
        assert (await look(harness.kube, "gang")).status.growth == growth
        later = msgspec.structs.replace(grow, id="2-2-0", epoch=2)
        assert (await applier.decision(later, ("n0",))).outcome is EffectOutcome.APPLIED

    on_a_cluster(test, nodes=1)


def test_a_scheduler_that_knows_no_growth_reads_an_admission() -> None:
    """An older scheduler cannot apply this admission to a running gang, and drops it; this one reads its own record as
    a growth."""
    grow = Decision(id="1-1-0", epoch=1, allocation="a/b", uid="u", attempt=1, kind=DecisionKind.GROW)
    wire = _encoded(grow)
    assert (wire.kind, wire.grows) == ("admit", True)
    pool = ResourcePool(metadata=ObjectMeta(name="p"), status=ResourcePoolStatus(decisions=[wire]))
    assert _decoded(pool).decisions == (grow,)
    fact = msgspec.structs.replace(an_allocation("b"), uid="u", phase=Phase.RUNNING)
    assert is_impossible(msgspec.structs.replace(grow, kind=DecisionKind.ADMIT), fact)
    assert not is_impossible(grow, fact)


def test_a_growth_is_settled_when_the_object_shows_it_or_it_can_never_be() -> None:
    """A stop is for good; a gang that only makes room is not stopped."""
    grow = Decision(id="1-1-0", epoch=1, allocation="a/b", uid="u", attempt=1, kind=DecisionKind.GROW)
    fact = msgspec.structs.replace(an_allocation("b"), uid="u", phase=Phase.RUNNING)
    assert not is_applied(grow, fact)
    assert is_applied(grow, msgspec.structs.replace(fact, growth_decision="1-1-0"))
    assert is_impossible(grow, msgspec.structs.replace(fact, stopping=True))
    assert is_impossible(grow, msgspec.structs.replace(fact, desired="Stopped"))
    assert not is_impossible(grow, msgspec.structs.replace(fact, leaving_ranks=(2,)))
