"""What is in use is never called idle, whatever happens to Redis."""

from collections.abc import Mapping

import msgspec

from slipway.model import ids
from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.scheduler.idleness import Idleness
from slipway.streams import keys
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.virtual_time import VirtualClock, run_virtual

TIMEOUT_S = 600.0
FACT = AllocationFact(
    namespace="default", name="nb", uid="0123456789", version=1, phase=Phase.RUNNING, idle_timeout=TIMEOUT_S
)
ID = ids.allocation_id(FACT.name, FACT.uid)
AGO_S = 10_000.0


class IdlenessHarness:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = MemoryServer(self.clock)
        self.streams = MemoryStreams(self.server)
        self.now = self.clock.now()

    async def seen(self, **ago_s: float) -> None:
        await self.streams.activity.touch({ID: {source: self.now - ago for source, ago in ago_s.items()}})

    async def left_s(self) -> float:
        """Seconds until the allocation is idle; zero or less if it is idle."""
        (until,) = await Idleness(self.streams.activity, self.clock).idle_at([FACT])
        return round(until - self.now, 3)

    async def known(self) -> Mapping[str, float]:
        (times,) = await self.streams.activity.read([ID])
        return times


def test_the_last_use_of_any_kind_counts() -> None:
    """The last use is the later of what passed the proxy and what was reported, and never later than now."""

    async def main() -> None:
        harness = IdlenessHarness()
        await harness.seen(since=AGO_S)
        assert await harness.left_s() < 0
        await harness.seen(proxy=400.0)
        assert await harness.left_s() == TIMEOUT_S - 400
        await harness.seen(reported=100.0)
        assert await harness.left_s() == TIMEOUT_S - 100
        await harness.seen(proxy=-5000.0)
        assert await harness.left_s() == TIMEOUT_S

    run_virtual(main)


def test_a_mark_that_a_wrong_clock_set_is_no_use() -> None:
    """Idleness counts from the start that the object has; a use that is ahead still counts as now."""

    async def main() -> None:
        harness = IdlenessHarness()
        await harness.seen(since=-5000.0)
        begun = msgspec.structs.replace(FACT, started=harness.now - 400.0)
        idleness = Idleness(harness.streams.activity, harness.clock)
        assert [round(at - harness.now, 3) for at in await idleness.idle_at([FACT, begun])] == [
            TIMEOUT_S,
            TIMEOUT_S - 400,
        ]
        await harness.seen(proxy=-10.0)
        assert [round(at - harness.now, 3) for at in await idleness.idle_at([begun])] == [TIMEOUT_S]

    run_virtual(main)


def test_what_was_lost_counts_as_use_now() -> None:
    """After FLUSHALL the mark is missing, also when use has been noted since; the mark is set again, once."""

    async def main() -> None:
        harness = IdlenessHarness()
        await harness.seen(since=AGO_S)
        harness.server.flush()
        await harness.seen(proxy=AGO_S)
        assert await harness.left_s() == TIMEOUT_S
        assert abs((await harness.known())[keys.ACTIVITY_SINCE] - harness.now) < 0.01
        assert await harness.left_s() == TIMEOUT_S

    run_virtual(main)


def test_what_can_not_be_read_counts_as_use_now() -> None:
    """While Redis can not be read, nothing is idle."""

    async def main() -> None:
        harness = IdlenessHarness()
        await harness.seen(since=AGO_S)
        harness.server.absent = True
        assert await harness.left_s() == TIMEOUT_S
        harness.server.absent = False
        assert await harness.left_s() < 0

    run_virtual(main)


def test_nothing_due_asks_nothing() -> None:
    """A tick without idle deadlines costs no call."""

    async def main() -> None:
        harness = IdlenessHarness()
        harness.server.absent = True
        assert await Idleness(harness.streams.activity, harness.clock).idle_at([]) == []

    run_virtual(main)
