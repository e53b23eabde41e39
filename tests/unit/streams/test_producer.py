"""A ring shows which entries its stream lacks; offers never wait, and those that do not fit are counted."""

import asyncio
from collections import Counter

import pytest

from slipway.errors import InvalidError, UnavailableError
from slipway.runtime.clock import SystemClock
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import SpanRecord, StreamEntry
from slipway.streams.producer import BestEffortWriter, Ring, RingPublisher, missing_entries
from tests.support.clock import wait_until
from tests.support.redis import an_event, an_id
from tests.support.stepping import over_and_over


class Counts:
    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def count(self, name: str, amount: int = 1) -> None:
        self.of[name] += amount

    def took(self, spent_s: float, traceparent: str) -> None:
        self.of["took"] += 1


def a_ring(*seqs: int, name: str = "train") -> Ring:
    return Ring(events=tuple(an_event(seq, name=name) for seq in seqs))


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(SystemClock())


@pytest.mark.parametrize(
    ("seqs", "last", "expected"),
    [
        ((1, 2, 3), None, [(1, None), (2, None), (3, None)]),
        ((1, 2, 3), 2, [(3, None)]),
        ((1, 2, 3), 3, []),
        ((1, 2, 3), 9, []),
        ((5, 6), None, [(5, "1-4"), (6, None)]),
        ((5, 6), 2, [(5, "3-4"), (6, None)]),
        ((5, 6), 4, [(5, None), (6, None)]),
        ((1, 4), 1, [(4, "2-3")]),
        ((), 3, []),
    ],
)
def test_what_is_missing(seqs: tuple[int, ...], last: int | None, expected: list[tuple[int, str | None]]) -> None:
    """The missing entries are all after the stream's last one; an exact mark replaces those that have left the ring."""
    entries = missing_entries(a_ring(*seqs), last)
    assert [(entry.event.seq, entry.event.truncated) for entry in entries] == expected


async def test_publishing_brings_the_stream_up_to_the_ring(server: MemoryServer) -> None:
    """Publishing is idempotent, and makes the stream complete again after a loss."""
    streams = MemoryStreams(server)
    publisher = RingPublisher(streams.events)
    assert await publisher.publish([a_ring(1, 2, 3), a_ring(1, name="other")]) == 4
    assert await publisher.publish([a_ring(1, 2, 3, 4)]) == 1
    assert await publisher.publish([a_ring(1, 2, 3, 4)]) == 0
    server.flush()
    assert await publisher.publish([a_ring(1, 2, 3, 4)]) == 4
    assert [each.event.seq for each in await streams.events.read(an_id())] == [1, 2, 3, 4]


async def test_publishing_survives_a_flush_between_question_and_append(server: MemoryServer) -> None:
    """After a flush between the read and the append, the stream does not begin in the middle of the ring."""
    streams = MemoryStreams(server)
    publisher = RingPublisher(streams.events)
    await publisher.publish([a_ring(1, 2, 3)])

    async def flush_once(operation: str) -> None:
        if operation == "events.append":
            server.on_call = None
            server.flush()

    server.on_call = flush_once
    assert await publisher.publish([a_ring(1, 2, 3, 4)]) == 4
    assert [each.event.seq for each in await streams.events.read(an_id())] == [1, 2, 3, 4]


async def test_publishing_clears_what_is_not_ours(server: MemoryServer) -> None:
    """An entry that is not ours is removed, and the whole ring published."""
    streams = MemoryStreams(server)
    foreign = an_event(9, created_ms=1_900_000_000_000)
    await streams.events.append([StreamEntry(event=foreign)])
    assert await RingPublisher(streams.events).publish([a_ring(1, 2, 10)]) == 3


async def test_two_rings_of_one_allocation_are_a_mistake(server: MemoryServer) -> None:
    """Two rings of one allocation are an error, because neither is certainly the right one."""
    with pytest.raises(InvalidError):
        await RingPublisher(MemoryStreams(server).events).publish([a_ring(1), a_ring(1, 2)])


async def test_offers_are_written_behind(server: MemoryServer) -> None:
    """Spans and activity are queued and written by the next flush."""
    streams, counts = MemoryStreams(server), Counts()
    offers = BestEffortWriter(streams, SystemClock(), counts)
    span = SpanRecord(trace_id="a", span_id="b", name="n", service="s", start_ns=1, end_ns=2)
    offers.offer_span(an_id(), span)
    offers.offer_activity(an_id(), "proxy", 20.0)
    offers.offer_activity(an_id(), "proxy", 10.0)
    await offers.flush()
    assert await streams.traces.read(an_id()) == [span]
    assert await streams.activity.read([an_id()]) == [{"proxy": 20.0}]
    assert counts.of == {}


def a_span(number: int) -> SpanRecord:
    return SpanRecord(trace_id="a", span_id=str(number), name="n", service="s", start_ns=number, end_ns=number + 1)


async def test_spans_are_written_together(server: MemoryServer) -> None:
    """The spans of a launch are written together, in few writes, whenever they end."""
    streams = MemoryStreams(server)
    offers = BestEffortWriter(streams, SystemClock(), Counts(), every_s=0.01)
    writes: Counter[str] = Counter()

    async def count(operation: str) -> None:
        writes[operation] += 1

    server.on_call = count
    running = asyncio.ensure_future(over_and_over(offers.step))
    for number in range(8):
        offers.offer_span(an_id(), a_span(number))
        offers.offer_activity(an_id(), "proxy", float(number + 1))
        await wait_until(lambda number=number: writes["activity.touch"] > number, "the sign of activity")
    async with asyncio.timeout(5):
        while len(await streams.traces.read(an_id())) < 8:  # noqa: ASYNC110 - a server's state
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    assert writes["traces.append"] <= 3


async def test_two_flushes_at_once_write_each_value_once(server: MemoryServer) -> None:
    """The writer and a task that drains may flush at the same time: neither fails, nothing is doubled or left."""
    streams = MemoryStreams(server)
    offers = BestEffortWriter(streams, SystemClock(), Counts())
    for number in range(3_000):
        offers.offer_span(an_id(str(number % 300)), a_span(number))
    await asyncio.gather(offers.flush(), offers.flush(), offers.flush())
    server.on_call = None
    found = [span.start_ns for name in range(300) for span in await streams.traces.read(an_id(str(name)))]
    assert sorted(found) == list(range(3_000))


async def test_what_does_not_fit_or_can_not_be_written_is_counted(server: MemoryServer) -> None:
    """Values that do not fit or cannot be written are lost, but counted."""
    counts = Counts()
    offers = BestEffortWriter(MemoryStreams(server), SystemClock(), counts, size=2)
    assert [offers.offer_span(an_id(), a_span(number)) for number in range(3)] == [True, True, False]
    server.absent = True
    await offers.flush()
    assert counts.of == {"spans_dropped": 3}


async def test_absent_means_unavailable(server: MemoryServer) -> None:
    """The absent server of the model raises the same error as a real one."""
    server.absent = True
    with pytest.raises(UnavailableError):
        await MemoryStreams(server).health.ping()


async def test_activity_outlives_the_absence_of_the_server(server: MemoryServer) -> None:
    """Activity during an outage of Redis is written afterwards, so that an active user is not idle; it never replaces a
    later activity from another process."""
    streams, counts = MemoryStreams(server), Counts()
    offers = BestEffortWriter(streams, SystemClock(), counts, size=2)
    server.absent = True
    for at_s in (10.0, 30.0, 20.0):
        assert offers.offer_activity(an_id(), "proxy", at_s)
    await offers.flush()
    await offers.flush()
    server.absent = False
    await streams.activity.touch({an_id(): {"proxy": 25.0, "reported": 40.0}})
    await offers.flush()
    assert await streams.activity.read([an_id()]) == [{"proxy": 30.0, "reported": 40.0}]
    assert counts.of == {}
    assert [offers.offer_activity(an_id(name), "proxy", 1.0) for name in ("a", "b", "c", "a")] == [
        True,
        True,
        False,
        True,
    ]
    assert counts.of == {"activity_dropped": 1}
