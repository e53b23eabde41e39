"""Which volume claims the scheduler reads, how often, and what a tick does meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from slipway.errors import DeniedError, NotFoundError, UnavailableError
from slipway.kube.resources import PERSISTENT_VOLUMES, VOLUME_CLAIMS, Resource
from slipway.model.facts import AllocationFact, PoolFact, VolumeFact
from slipway.model.lifecycle import Phase
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.volumes import AGAIN_S, FRESH_S, PATIENCE_S, READS_BURST, UNBOUND_S, UNDER_WAY_MAX, ClaimReads
from tests.support.planner import NAMESPACE, a_role, an_allocation
from tests.support.virtual_time import VirtualClock, run_virtual

T = TypeVar("T")
ZONE = "topology.kubernetes.io/zone"
TERMS = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}]
IN_ZONE_A: dict[str, Any] = {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": TERMS}}}}
REACHED = VolumeFact(namespace=NAMESPACE, name="data", volume="pv", terms=tuple(TERMS))
BOUND: dict[str, Any] = {"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}


class FakeClaims:
    """Claims by name, all of them bound to one volume in zone a; it may be slow, or refuse."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.claims: dict[str, dict[str, Any]] = {"data": BOUND}
        self.takes_s = 0.0
        self.error: Exception | None = None
        self.asked: list[str] = []

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        self.asked.append(name)
        await self._clock.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        if resource is VOLUME_CLAIMS and name not in self.claims:
            raise NotFoundError(f"{name} not found")
        found = IN_ZONE_A if resource is PERSISTENT_VOLUMES else self.claims[name]
        return msgspec.convert({"metadata": {"name": name, "namespace": namespace or ""}, **found}, resource.struct)


class VolumeReaderHarness:
    """The reads of one leadership, and the table that they keep."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.fake_claims = FakeClaims(self.clock)
        self.cluster = Cluster()
        self.news = 0
        self.reads = ClaimReads(self.fake_claims, self.cluster, "default", self.clock, self._hear)
        self._version = 0

    def _hear(self) -> None:
        self.news += 1

    def tell(self, name: str, *claims: str, **more: Any) -> AllocationFact:
        """An allocation that mounts these claims."""
        fact = an_allocation(name, a_role(namespace=NAMESPACE, claims=claims), **more)
        self._version += 1
        self.cluster.allocations.put(fact.key, fact, self._version)
        return fact

    def fact(self, claim: str = "data") -> VolumeFact | None:
        return self.cluster.volumes.get(f"{NAMESPACE}/{claim}")

    async def tick(self, *, is_planning: bool = True) -> float:
        """Run one look, and return how long it took, in seconds."""
        begun_s = self.clock.monotonic()
        await self.reads.read_due(is_planning=is_planning)
        return self.clock.monotonic() - begun_s


def behind(test: Callable[[VolumeReaderHarness], Awaitable[None]]) -> None:
    """Run `test` with a background, as while a pool is led."""

    async def main() -> None:
        harness = VolumeReaderHarness()
        async with TaskGroup() as tasks:
            harness.reads.run_in(tasks)
            await test(harness)
            harness.reads.stop()

    run_virtual(main)


def test_work_without_claims_costs_no_call() -> None:
    """Work that names claims and does not wait costs no call either: it runs, is held, ends, or is of another pool."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.tell("plain")
        harness.tell("runs", "data", phase=Phase.RUNNING, placements={0: "n0"})
        harness.tell("held", "data", hold=True)
        harness.tell("after", "data", waits_for=(("plain", "succeeded"),))
        harness.tell("stopped", "data", desired="Stopped")
        harness.tell("elsewhere", "data", pool="other")
        await harness.tick()
        assert harness.fake_claims.asked == []

    behind(test)


def test_claims_of_a_pool_that_delegates_are_kube_schedulers() -> None:
    """Claims are read once the pool binds pods itself."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.cluster.pools.put("default", PoolFact(name="default", binding="delegate"), 1)
        harness.tell("train", "data")
        await harness.tick()
        assert harness.fake_claims.asked == []
        harness.cluster.pools.put("default", PoolFact(name="default"), 2)
        await harness.tick()
        assert harness.fake_claims.asked == ["data", "pv"]

    behind(test)


def test_a_claim_is_read_once_for_all_that_name_it() -> None:
    """The first tick that sees it reads it; the next ticks know it."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.tell("one", "data")
        harness.tell("two", "data")
        await harness.tick()
        await harness.tick()
        assert harness.fake_claims.asked == ["data", "pv"]
        assert harness.fact() == REACHED

    behind(test)


def test_a_claim_that_can_be_mounted_is_read_again_for_a_plan_alone() -> None:
    """At rest no claim is read in vain."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.tell("train", "data")
        await harness.tick()
        await harness.clock.sleep(FRESH_S + 1)
        await harness.tick(is_planning=False)
        assert len(harness.fake_claims.asked) == 2
        await harness.tick()
        assert len(harness.fake_claims.asked) == 4

    behind(test)


def test_a_claim_that_cannot_be_mounted_is_read_again_until_it_can() -> None:
    """Nothing else would make a plan; the change of the claim does, by the table's generation."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.fake_claims.claims.clear()
        harness.tell("train", "data")
        await harness.tick()
        found = harness.fact()
        assert found is not None
        assert "does not exist" in found.waits
        harness.fake_claims.claims["data"] = BOUND
        before = harness.cluster.generation
        await harness.tick(is_planning=False)
        assert harness.cluster.generation == before
        await harness.clock.sleep(AGAIN_S)
        await harness.tick(is_planning=False)
        assert harness.cluster.generation != before
        assert harness.fact() == REACHED

    behind(test)


def test_a_home_that_is_not_there_is_waited_for_by_nobody() -> None:
    """A home is created on first use; the next plan checks whether it has a volume by now."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.fake_claims.claims.clear()
        harness.tell("one", "data", home="data")
        await harness.tick()
        assert harness.fact() == VolumeFact(namespace=NAMESPACE, name="data")
        harness.fake_claims.claims["data"] = BOUND
        await harness.clock.sleep(UNBOUND_S)
        await harness.tick()
        assert harness.fact() == REACHED

    behind(test)


def test_what_is_named_no_more_is_forgotten() -> None:
    """The work is admitted: nothing more is read for it, and its fact is removed."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.tell("train", "data")
        await harness.tick()
        harness.tell("train", "data", phase=Phase.RUNNING, placements={0: "n0"})
        await harness.clock.sleep(FRESH_S + 1)
        await harness.tick()
        assert (harness.fact(), len(harness.fake_claims.asked)) == (None, 2)

    behind(test)


def test_a_gang_that_may_get_more_ranks_keeps_its_claims() -> None:
    """The new ranks of a gang have to reach the volume as well."""

    async def test(harness: VolumeReaderHarness) -> None:
        role = a_role(2, 1, namespace=NAMESPACE, claims=("data",))
        fact = an_allocation("grows", role, phase=Phase.RUNNING, placements={0: "n0"})
        harness.cluster.allocations.put(fact.key, fact, 1)
        await harness.tick()
        assert harness.fact() is not None

    behind(test)


def test_a_slow_read_holds_up_a_tick_once_and_shortly() -> None:
    """The work waits with a reason; the answer wakes the next tick, and no later tick waits for a slow server."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.fake_claims.takes_s = 2.0
        harness.tell("train", "data")
        assert await harness.tick() <= PATIENCE_S + 0.01
        found = harness.fact()
        assert found is not None
        assert found.waits == "volume claim data is being read"
        await harness.clock.sleep(5.0)
        assert (harness.news, harness.fact()) == (1, REACHED)
        harness.tell("more", "other")
        assert await harness.tick() == 0.0

    behind(test)


def test_a_claim_that_cannot_be_read_says_why_and_is_tried_less_and_less() -> None:
    """The reason names the missing rights."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.fake_claims.error = DeniedError("persistentvolumeclaims is forbidden")
        harness.tell("train", "data")
        for _ in range(40):
            await harness.tick()
            await harness.clock.sleep(1.0)
        found = harness.fact()
        assert found is not None
        assert "cannot be read: persistentvolumeclaims is forbidden; let the account get" in found.waits
        assert len(harness.fake_claims.asked) == 6

    behind(test)


def test_what_was_read_stands_while_it_cannot_be_read_again() -> None:
    """A volume does not move, so the known fact stays."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.tell("train", "data")
        await harness.tick()
        known, harness.fake_claims.error = harness.fact(), UnavailableError("away")
        await harness.clock.sleep(FRESH_S + 1)
        await harness.tick()
        assert harness.fact() == known

    behind(test)


def test_reads_are_few_at_a_time_and_limited_in_rate() -> None:
    """A thousand claims are read one after another, in the order of their arrival."""

    async def test(harness: VolumeReaderHarness) -> None:
        harness.fake_claims.claims = {f"c{number}": BOUND for number in range(1000)}
        for number in range(1000):
            harness.tell(f"a{number}", f"c{number}")
        await harness.tick()
        claims = [name for name in harness.fake_claims.asked if name != "pv"]
        assert claims == [f"c{number}" for number in range(UNDER_WAY_MAX)]
        for _ in range(50):
            await harness.tick()
        assert harness.fake_claims.asked.count("pv") == READS_BURST

    behind(test)


def test_one_pass_without_a_background_reads_all() -> None:
    """`--once` decides with all claims read, not while some are being read."""

    async def main() -> None:
        harness = VolumeReaderHarness()
        harness.fake_claims.takes_s = 1.0
        harness.fake_claims.claims = {f"c{number}": BOUND for number in range(200)}
        for number in range(200):
            harness.tell(f"a{number}", f"c{number}")
        await harness.tick()
        assert all(fact.terms and not fact.waits for fact in harness.cluster.volumes.values())
        assert len(harness.cluster.volumes) == 200
        await asyncio.sleep(0)

    run_virtual(main)
