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


class RelayHarness:
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
    harness = RelayHarness()
    allocation = an_allocation().assigned().it
    for relay in (harness.relay, harness.relay, Relay(harness.streams.events, harness.clock, enabled=True)):
        relay.offer(allocation)
        await relay.flush()
        assert relay.is_published(allocation)
    assert await harness.seqs(allocation) == [1, 2]


async def test_what_left_the_ring_is_marked_as_missing() -> None:
    """After a flush a stream begins with the oldest transition in the ring, and marks the older ones as missing."""
    harness = RelayHarness()
    story = many(20)
    harness.relay.offer(story.it)
    await harness.relay.flush()
    stored = await harness.streams.events.read(id_of(story.it))
    assert stored[0].event.seq == story.it.status.seq - 15
    assert stored[0].event.truncated == f"1-{story.it.status.seq - 16}"


async def test_a_flush_under_a_known_stream_is_mended_at_once() -> None:
    """The next transition after a flush finds the stream gone, and the whole ring is relayed again."""
    harness = RelayHarness()
    story = an_allocation().assigned()
    harness.relay.offer(story.it)
    await harness.relay.flush()
    harness.server.flush()
    later = story.released().started()
    harness.relay.offer(later.it)
    await harness.relay.flush()
    assert await harness.seqs(later.it) == [1, 2, 3, 4]


async def test_what_can_not_be_relayed_waits() -> None:
    """Transitions wait while the server is absent, and none is lost."""
    harness = RelayHarness()
    allocation = an_allocation().assigned().it
    harness.server.absent = True
    harness.relay.offer(allocation)
    with pytest.raises(UnavailableError):
        await harness.relay.flush()
    assert not harness.relay.is_published(allocation)
    harness.server.absent = False
    await harness.relay.flush()
    assert await harness.seqs(allocation) == [1, 2]


async def test_the_streams_of_old_ends_are_not_rebuilt() -> None:
    """Streams of old ends are not rebuilt; a rebuilt stream lives only as long as the first would have."""
    harness = RelayHarness()
    harness.clock.advance(keys.ALLOCATION.ttl_s - 60)
    old, recent = an_end(60, "old"), an_end(keys.ALLOCATION.ttl_s - 3600, "recent")
    assert not harness.relay.is_published(old)
    harness.clock.advance(60)
    assert harness.relay.is_published(old)
    assert await harness.relay.check([old, recent]) == 1
    await harness.relay.flush()
    assert await harness.seqs(recent) == [1, 2]
    harness.clock.advance(keys.ALLOCATION.ttl_s - 3000)
    assert await harness.seqs(recent) == []


async def test_what_is_relayed_after_its_object_went_is_forgotten() -> None:
    """The relay forgets an object at the next check of all objects that does not contain it; its waiting transitions
    are still relayed."""
    harness = RelayHarness()
    uids = {name: f"{name[0]}{UID[1:]}" for name in ("a-here", "b-gone", "c-last")}
    here, gone, last = (an_allocation(name=name, uid=uid).assigned().it for name, uid in uids.items())
    for allocation in (here, gone):
        harness.relay.offer(allocation)
    harness.relay.forget(gone)
    await harness.relay.flush()
    harness.relay.offer(last)
    await harness.relay.check([here])
    assert [harness.relay.is_published(each) for each in (here, gone, last)] == [True, False, False]
    await harness.relay.flush()
    assert await harness.seqs(last) == [1, 2]


async def test_without_redis_nothing_is_waited_for() -> None:
    """Without Redis all transitions count as relayed, so nothing waits for them."""
    harness = RelayHarness(enabled=False)
    allocation = an_allocation().assigned().it
    assert harness.relay.is_published(allocation)
    harness.relay.offer(allocation)
    await harness.relay.flush()
    assert await harness.relay.check([allocation]) == 0


class RecordingHintSender:
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
    recording, clock = RecordingHintSender(), FakeClock()
    sender = HintSender(recording, clock)  # pyright: ignore[reportArgumentType]
    story = an_allocation().assigned()
    for _ in range(3):
        sender.offer(story.it)
        await sender.flush()
    assert len(recording.hints) == 1
    sender.offer(story.with_metadata(resource_version="2").it)
    await sender.flush()
    assert len(recording.hints) == 2
    clock.advance(RESEND_S)
    sender.offer(story.it)
    await sender.flush()
    assert len(recording.hints) == 3
    assert {hint.allocation for hint in recording.hints} == {id_of(story.it)}


async def test_hints_are_dropped_without_redis() -> None:
    """Hints are dropped without Redis, because the pod worker finds its work by LIST."""
    recording, clock = RecordingHintSender(), FakeClock()
    recording.absent = True
    sender = HintSender(recording, clock)  # pyright: ignore[reportArgumentType]
    sender.offer(an_allocation().assigned().it)
    await sender.flush()
    recording.absent = False
    await sender.flush()
    assert recording.hints == []


async def test_many_reasons_ring_once() -> None:
    """Many reasons wake the scheduler once, because a wake-up carries no message."""
    recording = RecordingHintSender()
    bell = SchedulerWaker(recording, SystemClock())
    for reason in ("Pending", "node", "pod ended"):
        bell.wake(reason)
    await bell.step()
    assert recording.rings == ["pod ended"]
