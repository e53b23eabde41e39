"""The watcher's writes to Redis: rings of transitions, hints, wake-ups of the scheduler."""

import pytest

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import UnavailableError
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from slipway.model.times import format_time
from slipway.runtime.clock import SystemClock
from slipway.streams import keys
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import WorkHint
from slipway.watcher.hints import RESEND_S, HintSender, SchedulerWaker
from slipway.watcher.relay import Relay
from tests.support.builders import T0, UID, AllocationStory, an_allocation
from tests.support.clock import FakeClock


class Wire:
    """A relay on a server model."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.clock = FakeClock(T0 + 100)
        self.server = MemoryServer(self.clock)
        self.streams = MemoryStreams(self.server)
        self.relay = Relay(self.streams.events, self.clock, enabled=enabled)

    async def seqs(self, allocation: Allocation) -> list[int]:
        return [stored.event.seq for stored in await self.streams.events.read(id_of(allocation))]


def many(count: int) -> AllocationStory:
    story = an_allocation().assigned().released().running()
    for second in range(count):
        story = story.recorded(Event.UPDATED, at_s=10 + second)
    return story


def an_end(at_s: float, name: str = "run") -> Allocation:
    ended = format_time(T0 + at_s)
    return an_allocation(name=name).recorded(Event.TERMINATED, at_s=at_s, result=Result.CANCELED, ended_at=ended).it


async def test_a_ring_is_relayed_once() -> None:
    """A ring is relayed once, also when it is offered again, or by another relay."""
    wire = Wire()
    allocation = an_allocation().assigned().it
    for relay in (wire.relay, wire.relay, Relay(wire.streams.events, wire.clock, enabled=True)):
        relay.offer(allocation)
        await relay.flush()
        assert relay.is_published(allocation)
    assert await wire.seqs(allocation) == [1, 2]


async def test_what_left_the_ring_is_marked_as_missing() -> None:
    """After a flush a stream begins with the oldest transition in the ring, and marks the older ones as missing."""
    wire = Wire()
    story = many(20)
    wire.relay.offer(story.it)
    await wire.relay.flush()
    stored = await wire.streams.events.read(id_of(story.it))
    assert stored[0].event.seq == story.it.status.seq - 15
    assert stored[0].event.truncated == f"1-{story.it.status.seq - 16}"


async def test_a_flush_under_a_known_stream_is_mended_at_once() -> None:
    """The next transition after a flush finds the stream gone, and the whole ring is relayed again."""
    wire = Wire()
    story = an_allocation().assigned()
    wire.relay.offer(story.it)
    await wire.relay.flush()
    wire.server.flush()
    later = story.released().started()
    wire.relay.offer(later.it)
    await wire.relay.flush()
    assert await wire.seqs(later.it) == [1, 2, 3, 4]


async def test_what_can_not_be_relayed_waits() -> None:
    """Transitions wait while the server is absent, and none is lost."""
    wire = Wire()
    allocation = an_allocation().assigned().it
    wire.server.absent = True
    wire.relay.offer(allocation)
    with pytest.raises(UnavailableError):
        await wire.relay.flush()
    assert not wire.relay.is_published(allocation)
    wire.server.absent = False
    await wire.relay.flush()
    assert await wire.seqs(allocation) == [1, 2]


async def test_the_streams_of_old_ends_are_not_rebuilt() -> None:
    """Streams of old ends are not rebuilt; a rebuilt stream lives only as long as the first would have."""
    wire = Wire()
    wire.clock.advance(keys.ALLOCATION.ttl_s - 60)
    old, recent = an_end(60, "old"), an_end(keys.ALLOCATION.ttl_s - 3600, "recent")
    assert not wire.relay.is_published(old)
    wire.clock.advance(60)
    assert wire.relay.is_published(old)
    assert await wire.relay.check([old, recent]) == 1
    await wire.relay.flush()
    assert await wire.seqs(recent) == [1, 2]
    wire.clock.advance(keys.ALLOCATION.ttl_s - 3000)
    assert await wire.seqs(recent) == []


async def test_what_is_relayed_after_its_object_went_is_forgotten() -> None:
    """The relay forgets an object at the next check of all objects that does not contain it; its waiting transitions
    are still relayed."""
    wire = Wire()
    uids = {name: f"{name[0]}{UID[1:]}" for name in ("a-here", "b-gone", "c-last")}
    here, gone, last = (an_allocation(name=name, uid=uid).assigned().it for name, uid in uids.items())
    for allocation in (here, gone):
        wire.relay.offer(allocation)
    wire.relay.forget(gone)
    await wire.relay.flush()
    wire.relay.offer(last)
    await wire.relay.check([here])
    assert [wire.relay.is_published(each) for each in (here, gone, last)] == [True, False, False]
    await wire.relay.flush()
    assert await wire.seqs(last) == [1, 2]


async def test_without_redis_nothing_is_waited_for() -> None:
    """Without Redis all transitions count as relayed, so nothing waits for them."""
    wire = Wire(enabled=False)
    allocation = an_allocation().assigned().it
    assert wire.relay.is_published(allocation)
    wire.relay.offer(allocation)
    await wire.relay.flush()
    assert await wire.relay.check([allocation]) == 0


class Box:
    """Records hints and wake-ups."""

    def __init__(self) -> None:
        self.hints: list[WorkHint] = []
        self.rings: list[str] = []
        self.absent = False

    async def send(self, hints: list[WorkHint]) -> None:
        if self.absent:
            raise UnavailableError("no")
        self.hints.extend(hints)

    async def ring(self, reason: str) -> None:
        self.rings.append(reason)


async def test_a_hint_is_sent_once_a_version_and_again_after_a_while() -> None:
    """A hint is sent once per version and again after a while, so a lost hint costs a resync at most."""
    box, clock = Box(), FakeClock()
    sender = HintSender(box, clock)  # pyright: ignore[reportArgumentType]
    story = an_allocation().assigned()
    for _ in range(3):
        sender.offer(story.it)
        await sender.flush()
    assert len(box.hints) == 1
    sender.offer(story.with_metadata(resource_version="2").it)
    await sender.flush()
    assert len(box.hints) == 2
    clock.advance(RESEND_S)
    sender.offer(story.it)
    await sender.flush()
    assert len(box.hints) == 3
    assert {hint.allocation for hint in box.hints} == {id_of(story.it)}


async def test_hints_are_dropped_without_redis() -> None:
    """Hints are dropped without Redis, because the pod worker finds its work by LIST."""
    box, clock = Box(), FakeClock()
    box.absent = True
    sender = HintSender(box, clock)  # pyright: ignore[reportArgumentType]
    sender.offer(an_allocation().assigned().it)
    await sender.flush()
    box.absent = False
    await sender.flush()
    assert box.hints == []


async def test_many_reasons_ring_once() -> None:
    """Many reasons wake the scheduler once, because a wake-up carries no message."""
    box = Box()
    bell = SchedulerWaker(box, SystemClock())
    for reason in ("Pending", "node", "pod ended"):
        bell.wake(reason)
    await bell.step()
    assert box.rings == ["pod ended"]
