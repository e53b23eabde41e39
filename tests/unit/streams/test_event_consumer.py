"""The consumer of events: each is acknowledged after its handler, retried, or kept as a dead letter."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipway.errors import DeniedError, InvalidError, PermanentError, TransientError
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams import keys
from slipway.streams.event_consumer import ConsumerStatus, EventConsumer, EventConsumerSettings
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import StreamEntry
from tests.support.clock import wait_until
from tests.support.redis import an_event

FAST = EventConsumerSettings(
    block_s=0.02, min_idle_s=0.2, keep_s=0.05, sweep_s=0.05, retry_first_s=0.01, retry_max_s=0.02, stop_s=0.5
)


class EventConsumerHarness:
    """A server, the handled events, and consumers of one group."""

    def __init__(self) -> None:
        self.server = MemoryServer(SystemClock())
        self.streams = MemoryStreams(self.server)
        self.handled: list[tuple[str, int]] = []
        self.stop = asyncio.Event()

    async def publish(self, *seqs: int, name: str = "train", type: Event = Event.UPDATED) -> None:
        await self.streams.events.append([StreamEntry(event=an_event(seq, name=name, type=type)) for seq in seqs])

    async def handle(self, event: AllocationEvent) -> None:
        self.handled.append((event.name, event.seq))

    def consumer(
        self,
        handler: Callable[[AllocationEvent], Any] | None = None,
        name: str = "a",
        settings: EventConsumerSettings = FAST,
        **options: Any,
    ) -> EventConsumer:
        return EventConsumer(
            self.streams.event_group("g", name),
            handler or self.handle,
            clock=SystemClock(),
            random=SeededRandom(1),
            settings=settings,
            **options,
        )

    @asynccontextmanager
    async def running(self, consumer: EventConsumer) -> AsyncGenerator[None]:
        """Run the consumer; at the end it is stopped and awaited."""
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            tasks.create_task(consumer.run(self.stop))
            try:
                yield
            finally:
                self.stop.set()

    def pending(self) -> int:
        groups = [self.server.group(key, "g") for key in keys.EVENT_KEYS]
        return sum(len(group.pending) for group in groups if group is not None)

    async def causes(self) -> list[str]:
        return [letter.cause for letter in await self.streams.event_group("g", "x").letters()]


async def test_events_of_an_allocation_are_handled_in_order_and_acknowledged() -> None:
    """Events of one allocation are handled in order and acknowledged, in parallel with those of others."""
    harness = EventConsumerHarness()
    await harness.publish(1, 2, 3)
    await harness.publish(1, 2, name="tune")
    async with harness.running(harness.consumer()):
        await wait_until(lambda: len(harness.handled) == 5 and not harness.pending(), "all handled and acknowledged")
    assert [seq for name, seq in harness.handled if name == "train"] == [1, 2, 3]


async def test_a_failure_is_tried_again_and_holds_up_its_own_allocation_only() -> None:
    """A failed event is retried; the later events of its allocation wait, those of other allocations do not."""
    harness, fails = EventConsumerHarness(), [True, True]

    async def handle(event: AllocationEvent) -> None:
        if event.name == "train" and event.seq == 1 and fails:
            fails.pop()
            raise ValueError("the database is full")
        await harness.handle(event)

    await harness.publish(1, 2)
    await harness.publish(1, name="tune")
    consumer = harness.consumer(handle)
    async with harness.running(consumer):
        await wait_until(lambda: len(harness.handled) == 3 and not harness.pending(), "all handled")
    assert [seq for name, seq in harness.handled if name == "train"] == [1, 2]
    assert consumer.status.failures == 2
    assert await harness.causes() == []


async def test_after_so_many_failures_an_event_is_a_dead_letter_with_the_reason() -> None:
    """After the last allowed failure an event is a dead letter with the reason, and the next event of the allocation is
    handled."""
    harness, calls = EventConsumerHarness(), 0

    async def handle(event: AllocationEvent) -> None:
        nonlocal calls
        if event.seq == 1:
            calls += 1
            raise ValueError("no such customer")
        await harness.handle(event)

    await harness.publish(1, 2)
    consumer = harness.consumer(handle)
    async with harness.running(consumer):
        await wait_until(lambda: harness.handled and not harness.pending(), "the second event")
    assert calls == FAST.deliveries_max
    assert await harness.causes() == ["ValueError: no such customer"]
    assert consumer.status.dead == 1


async def test_the_class_of_an_error_says_whether_it_counts() -> None:
    """A PermanentError makes a dead letter at once. A TransientError is retried until the handler succeeds."""
    harness, tries = EventConsumerHarness(), 0

    async def handle(event: AllocationEvent) -> None:
        nonlocal tries
        if event.seq == 1:
            raise PermanentError("not ours")
        tries += 1
        if tries <= FAST.deliveries_max + 2:
            raise TransientError("the database is away", retry_after_s=0.001)
        await harness.handle(event)

    await harness.publish(1, 2)
    async with harness.running(harness.consumer(handle)):
        await wait_until(lambda: harness.handled and not harness.pending(), "the second event")
    assert await harness.causes() == ["PermanentError: not ours"]


async def test_an_event_that_ended_all_its_consumers_is_a_dead_letter() -> None:
    """An event that killed all its consumers is a dead letter: deliveries to dead processes count, and the handler is
    not called again."""
    harness = EventConsumerHarness()
    await harness.publish(1)
    group = harness.streams.event_group("g", "dead")
    assert await group.claim(limit=64, block_s=0)
    for _ in range(FAST.deliveries_max):
        await group.claim_abandoned(min_idle_s=0, limit=64)
    async with harness.running(harness.consumer()):
        await wait_until(lambda: not harness.pending(), "it is buried")
    assert harness.handled == []
    assert await harness.causes() == ["delivered 7 times, and no consumer finished handling it"]


async def test_what_a_dead_consumer_had_in_hand_is_handled() -> None:
    """The pending events of a dead consumer are handled after the idle time."""
    harness = EventConsumerHarness()
    await harness.publish(1)
    assert await harness.streams.event_group("g", "dead").claim(limit=64, block_s=0)
    async with harness.running(harness.consumer()):
        await wait_until(lambda: harness.handled == [("train", 1)] and not harness.pending(), "it is taken over")


async def test_an_event_in_hand_is_not_claimed_by_others() -> None:
    """An event whose handler runs is not claimed by others, however long it runs."""
    harness, going = EventConsumerHarness(), asyncio.Event()

    async def slow(event: AllocationEvent) -> None:
        await going.wait()
        await harness.handle(event)

    await harness.publish(1)
    async with harness.running(harness.consumer(slow)), harness.running(harness.consumer(slow, name="b")):
        await wait_until(lambda: harness.pending() == 1, "it is in hand")
        other = harness.streams.event_group("g", "c")
        for _ in range(20):  # four times the idle time
            await asyncio.sleep(FAST.min_idle_s / 5)
            assert await other.claim_abandoned(min_idle_s=FAST.min_idle_s, limit=64) == []
        going.set()
        await wait_until(lambda: not harness.pending(), "acknowledged")
    assert harness.handled == [("train", 1)]


async def test_a_repeated_event_is_handled_once() -> None:
    """A repeated event, as the firehose delivers after a failover, is handled once; a bounded number of ids is stored
    for that."""
    harness = EventConsumerHarness()
    await harness.publish(1)
    consumer = harness.consumer()
    async with harness.running(consumer):
        await wait_until(lambda: len(harness.handled) == 1, "the first")
        harness.server.flush()
        await harness.publish(1, 2)
        await wait_until(lambda: len(harness.handled) == 2 and not harness.pending(), "the second")
    assert harness.handled == [("train", 1), ("train", 2)]
    assert consumer.status.duplicates == 1
    few = harness.consumer(settings=EventConsumerSettings(remembered=1))
    few._remember("a/1")  # pyright: ignore[reportPrivateUsage]
    few._remember("a/2")  # pyright: ignore[reportPrivateUsage]
    assert list(few._seen) == ["a/2"]  # pyright: ignore[reportPrivateUsage]


async def test_no_more_is_in_hand_than_is_allowed() -> None:
    """The number of events in hand is limited: without a free place nothing is claimed."""
    harness, going = EventConsumerHarness(), asyncio.Event()

    async def slow(event: AllocationEvent) -> None:
        await going.wait()
        await harness.handle(event)

    for number in range(60):
        await harness.publish(1, name=f"run-{number}")
    settings = EventConsumerSettings(prefetch=20, concurrency=2, block_s=0.02)
    consumer = harness.consumer(slow, settings=settings)
    async with harness.running(consumer):
        await wait_until(lambda: harness.pending() > 4, "places are taken")
        assert await harness.streams.event_group("g", "b").claim(limit=16, block_s=0), "others get the rest"
        assert consumer.status.in_hand <= 20
        going.set()
        await wait_until(lambda: len(harness.handled) >= 30, "it goes on")


async def test_the_stop_finishes_what_is_in_hand_and_claims_nothing_more() -> None:
    """The stop finishes the events in hand and claims no more; the consumer leaves the group, and no handled event is
    delivered again."""
    harness, going = EventConsumerHarness(), asyncio.Event()

    async def slow(event: AllocationEvent) -> None:
        await going.wait()
        await harness.handle(event)

    await harness.publish(1, 2)
    async with harness.running(harness.consumer(slow)):
        await wait_until(lambda: harness.pending() == 2, "both are in hand")
        harness.stop.set()
        await harness.publish(3)
        going.set()
    assert harness.handled == [("train", 1), ("train", 2)]
    assert harness.pending() == 0
    groups = [harness.server.group(key, "g") for key in keys.EVENT_KEYS]
    assert [name for group in groups if group is not None for name in group.heard] == []


async def test_what_the_stop_cuts_off_stays_pending() -> None:
    """An event whose handler does not return in time, or that waits for a retry, stays pending after the stop."""
    harness = EventConsumerHarness()

    async def never(event: AllocationEvent) -> None:
        await asyncio.Event().wait()

    await harness.publish(1)
    async with harness.running(harness.consumer(never)):
        await wait_until(lambda: harness.pending() == 1, "it is in hand")
    assert harness.pending() == 1


async def test_redis_away_is_waited_out_and_told() -> None:
    """An outage of Redis is waited out and reported; events that were handled before its end are acknowledged when
    Redis is back."""
    harness, told, going = EventConsumerHarness(), list[ConsumerStatus](), asyncio.Event()

    async def slow(event: AllocationEvent) -> None:
        await going.wait()
        await harness.handle(event)

    await harness.publish(1)
    async with harness.running(harness.consumer(slow, told=told.append)):
        await wait_until(lambda: harness.pending() == 1, "it is in hand")
        harness.server.absent = True
        going.set()
        await wait_until(lambda: bool(harness.handled), "it is handled")
        await wait_until(lambda: any(each.away_s >= 0 and each.lag is None for each in told), "it is told")
        harness.server.absent = False
        await wait_until(lambda: not harness.pending(), "it is acknowledged")
        await harness.publish(2)
        await wait_until(lambda: len(harness.handled) == 2, "it goes on")


async def test_events_that_are_not_wanted_are_acknowledged_unseen() -> None:
    """Events that the caller does not select are acknowledged without a call of the handler."""
    harness = EventConsumerHarness()
    await harness.publish(1)
    await harness.publish(2, type=Event.TERMINATED)

    def wants(event: AllocationEvent) -> bool:
        return event.type is Event.TERMINATED

    async with harness.running(harness.consumer(wants=wants)):
        await wait_until(lambda: bool(harness.handled) and not harness.pending(), "both are done")
    assert harness.handled == [("train", 2)]


async def test_a_refused_account_ends_the_run() -> None:
    """A refused account ends the run, because no retry helps."""
    harness = EventConsumerHarness()

    async def refuse(_: str) -> None:
        raise DeniedError("redis refuses our account")

    harness.server.on_call = refuse
    with pytest.raises(BaseExceptionGroup) as found:
        async with harness.running(harness.consumer()):
            await asyncio.Event().wait()
    assert found.group_contains(DeniedError)


@pytest.mark.parametrize(
    ("values", "named"),
    [({"prefetch": 15}, "prefetch"), ({"concurrency": 0}, "concurrency"), ({"keep_s": 31}, "keep_s")],
)
def test_numbers_that_cannot_work_are_refused(values: dict[str, float], named: str) -> None:
    """Invalid numbers are refused with the name of the field."""
    with pytest.raises(InvalidError, match=f"^{named}: must be"):
        EventConsumerSettings(**values)  # pyright: ignore[reportArgumentType]
