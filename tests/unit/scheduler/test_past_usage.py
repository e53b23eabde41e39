"""What the leader reads of past use: nothing without `fairShare`, each use once, and the same after a restart."""

from collections.abc import Iterable
from typing import Any, cast

import msgspec

from slipway.accounting import daily_totals
from slipway.accounting.usage import DAY_MS, day_of
from slipway.crd.figures import DayTotals, TotalsRow
from slipway.crd.meta import ANNOTATION_USER
from slipway.crd.v1alpha1 import Allocation
from slipway.facts.custom_resources import allocation_fact, pool_fact
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, RESOURCE_POOLS
from slipway.model.decay import spread
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.past_usage import PAST_READ_S, PastUsage
from slipway.scheduler.ports import Kube
from tests.support.small_cluster import a_manifest, look
from tests.unit.scheduler.test_cycle import SchedulerHarness, on_a_cluster
from tests.unit.scheduler.test_queues_live import a_queue

NAMESPACE = "slipway-system"
HOUR_MS = 3_600_000
WEEK_MS = 7 * DAY_MS


class CountingKube:
    """A client that notes each call: the kind of a LIST, the name of a GET."""

    def __init__(self, kube: Any) -> None:
        self._kube = kube
        self.calls: list[str] = []

    def taken(self) -> list[str]:
        """The calls since the last time."""
        found, self.calls = self.calls, []
        return found

    async def list(self, resource: Any, **how: Any) -> Any:
        self.calls.append(resource.plural)
        return await self._kube.list(resource, **how)

    async def get(self, resource: Any, name: str, **how: Any) -> Any:
        self.calls.append(name)
        return await self._kube.get(resource, name, **how)


class Reader:
    """The reader of one leadership, with tables of its own."""

    def __init__(self, harness: SchedulerHarness) -> None:
        self.harness = harness
        self.cluster = Cluster(harness.clock.now)
        self.kube = CountingKube(harness.kube)
        self.usage = PastUsage(
            cast("Kube", self.kube), self.cluster, "default", namespace=NAMESPACE, clock=harness.clock
        )

    async def look(self) -> None:
        """Read the cluster into the tables, then look at past use."""
        pool = await self.harness.kube.get(RESOURCE_POOLS, "default")
        self.cluster.pools.put("default", pool_fact(pool), pool.metadata.version)
        for each in (await self.harness.kube.list(ALLOCATIONS)).items:
            self.cluster.allocations.put(each.metadata.name, allocation_fact(each, pool), each.metadata.version)
        await self.usage.refresh()

    def of(self, queue: str) -> dict[str, int]:
        """{user: GPU-milliseconds left now}."""
        return dict(self.cluster.decayed.at(self.harness.clock.now()).get(queue, {}))


async def counting(harness: SchedulerHarness, half_life: str = "7d") -> None:
    await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"fairShare": {"halfLife": half_life}}})


async def a_day(harness: SchedulerHarness, days_ago: int, booked: Iterable[str] = (), **hours: float) -> None:
    """The totals of a day: GPU-hours by user in queue `team`; `booked` are the uids that the totals contain."""
    day = day_of(round(harness.clock.now() * 1000) - days_ago * DAY_MS)
    rows = [
        TotalsRow(
            workspace="default",
            user=user,
            pool="default",
            queue="team",
            kind="training",
            slot_ms={"Running": round(amount * HOUR_MS)},
        )
        for user, amount in sorted(hours.items())
    ]
    tokens = {str(int(harness.clock.now()) // 60): "".join(map(daily_totals.token_of, booked))}
    await harness.kube.create(
        CONFIG_MAPS, daily_totals.manifest(day, DayTotals(rows=rows, booked=tokens)), namespace=NAMESPACE
    )


async def launched(harness: SchedulerHarness, name: str, gpus: int = 1) -> Allocation:
    """Work of user ana in queue `team` that has been admitted."""
    await harness.kube.create(ALLOCATIONS, of_user(name, "ana", gpus), namespace="default")
    await harness.tick()
    return await look(harness.kube, name)


async def bound(harness: SchedulerHarness, allocation: Allocation, slots: int) -> None:
    """Set the slots of the status, as the watcher does when it has seen the pods."""
    status = msgspec.structs.replace(allocation.status, slots=slots)
    await harness.kube.replace_status(ALLOCATIONS, msgspec.structs.replace(allocation, status=status))


def of_user(name: str, user: str, gpus: int) -> dict[str, Any]:
    """Work of a user in queue `team`."""
    manifest = a_manifest(name, queue="team")
    manifest["metadata"]["annotations"] = {ANNOTATION_USER: user}
    manifest["spec"]["ranks"][0]["resources"] = {"nvidia.com/gpu": gpus}
    return manifest


def test_a_pool_without_fair_share_reads_nothing() -> None:
    """However often it looks, the reader makes no call; known use is forgotten when the pool removes `fairShare`."""

    async def test(harness: SchedulerHarness) -> None:
        await a_day(harness, 1, ana=5)
        reader = Reader(harness)
        await reader.look()
        assert reader.kube.taken() == []
        await counting(harness)
        await reader.look()
        assert reader.of("team")["ana"] > 0
        await harness.kube.patch(RESOURCE_POOLS, "default", {"spec": {"fairShare": None}})
        reader.kube.taken()
        await reader.look()
        assert (reader.kube.taken(), reader.of("team")) == ([], {})

    on_a_cluster(test)


def test_days_count_by_their_age() -> None:
    """The use of a day is spread over that day; a day that is ten half-lives old is left out."""

    async def test(harness: SchedulerHarness) -> None:
        await counting(harness, "1d")
        await a_day(harness, 1, ana=8)
        await a_day(harness, 30, ana=8)
        reader = Reader(harness)
        await reader.look()
        now_ms = round(harness.clock.now() * 1000)
        end_ms = now_ms // DAY_MS * DAY_MS
        assert reader.of("team") == {"ana": spread(8 * HOUR_MS, end_ms - DAY_MS, end_ms, now_ms, DAY_MS)}
        assert reader.kube.taken().count("allocations") == 1

    on_a_cluster(test)


def test_at_rest_one_list_and_one_day_in_ten_minutes() -> None:
    """Days that cannot grow any more are not read again; between two reads there are no calls."""

    async def test(harness: SchedulerHarness) -> None:
        await counting(harness)
        for days_ago in range(3):
            await a_day(harness, days_ago, ana=1)
        reader = Reader(harness)
        await reader.look()
        assert len(reader.kube.taken()) > 70
        for _ in range(3):
            await harness.clock.sleep(5.0)
            await reader.look()
        assert reader.kube.taken() == []
        await harness.clock.sleep(PAST_READ_S)
        await reader.look()
        today = daily_totals.name_of(day_of(round(harness.clock.now() * 1000)))
        assert reader.kube.taken() == ["allocations", today]

    on_a_cluster(test)


def test_what_runs_is_used_up_to_now_and_counts_once_when_it_has_ended() -> None:
    """The use comes from the object while the totals do not know it, and from the totals once they do."""

    async def test(harness: SchedulerHarness) -> None:
        await counting(harness)
        await a_queue(harness, "team")
        running = await launched(harness, "train", gpus=2)
        await bound(harness, running, slots=2)
        reader = Reader(harness)
        await reader.look()
        assert reader.of("team").get("ana", 0) == 0
        await harness.clock.sleep(1800.0)
        held = reader.of("team")["ana"]
        assert abs(held - HOUR_MS) < HOUR_MS // 100
        fresh = Reader(harness)
        await fresh.look()
        assert abs(fresh.of("team")["ana"] - held) < HOUR_MS // 1000
        await a_day(harness, 0, booked=[running.metadata.uid], ana=1)
        later = Reader(harness)
        await later.look()
        # Spread over the day it has decayed some more; counted twice it would be more than the hour.
        assert HOUR_MS * 9 // 10 < later.of("team")["ana"] <= HOUR_MS

    on_a_cluster(test, gpus=4)


def test_a_new_leader_knows_what_the_old_one_knew() -> None:
    """Readers that read at the same moment have the very same values, however long each of them has existed."""

    async def test(harness: SchedulerHarness) -> None:
        await counting(harness)
        await a_queue(harness, "team")
        await a_day(harness, 2, ana=7, ben=3)
        old = Reader(harness)
        await old.look()
        await launched(harness, "train")
        for _ in range(3):
            await harness.clock.sleep(PAST_READ_S + 1)
            await old.look()
        new = Reader(harness)
        await new.look()
        assert new.cluster.decayed == old.cluster.decayed
        assert msgspec.json.decode(msgspec.json.encode(new.cluster.decayed), type=type(new.cluster.decayed)) == (
            new.cluster.decayed
        )

    on_a_cluster(test, gpus=4)


def test_what_cannot_be_read_stops_nothing() -> None:
    """The known values stay, and the reader tries again in half a minute, not at each look."""

    async def test(harness: SchedulerHarness) -> None:
        await counting(harness)
        day = day_of(round(harness.clock.now() * 1000))
        broken = daily_totals.manifest(day, DayTotals()) | {"data": {"totals": "{"}}
        await harness.kube.create(CONFIG_MAPS, broken, namespace=NAMESPACE)
        reader = Reader(harness)
        await reader.look()
        assert reader.of("team") == {}
        reader.kube.taken()
        await harness.clock.sleep(5.0)
        await reader.look()
        assert reader.kube.taken() == []
        await harness.kube.delete(CONFIG_MAPS, daily_totals.name_of(day), namespace=NAMESPACE)
        await a_day(harness, 1, ana=5)
        await harness.clock.sleep(30.0)
        await reader.look()
        assert reader.of("team")["ana"] > 0

    on_a_cluster(test)


def test_the_user_who_has_used_less_is_admitted_first() -> None:
    """The whole way: totals, the leader's read at its start, the order, the admission."""

    async def test(harness: SchedulerHarness) -> None:
        await counting(harness)
        await a_queue(harness, "team", userOrder="LeastUsed")
        await a_day(harness, 1, ana=120, ben=3)
        for name, user in (("of-ana", "ana"), ("of-ben", "ben")):
            await harness.kube.create(ALLOCATIONS, of_user(name, user, 4), namespace="default")
        await harness.tick()
        phases = {name: (await look(harness.kube, name)).status.phase.value for name in ("of-ana", "of-ben")}
        assert phases == {"of-ana": "Pending", "of-ben": "Assigned"}

    on_a_cluster(test, nodes=1, gpus=4)
