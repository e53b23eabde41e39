"""The feed: numbers without gaps, one publisher, and a reader that notices every break."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipway.errors import DeadlineError, StaleError, UnavailableError
from slipway.streams import codec
from slipway.streams.feed import (
    BATCH_MAX,
    BUFFER_MAX,
    EPOCHS_PER_TERM,
    BreakReason,
    Delta,
    FeedBatch,
    FeedBroken,
    FeedPublisher,
    FeedReader,
)
from slipway.streams.memory import MemoryFeed
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import FeedEntry, FeedOp
from tests.support.clock import FakeClock, wait_until
from tests.support.mac_keys import a_folder, some_keys


class FeedHarness:
    """A server, a clock, and the processes on them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.server = MemoryServer(self.clock)

    def publisher(self, term: int = 1) -> FeedPublisher:
        return FeedPublisher(MemoryStreams(self.server).feed, self.clock, term=term)

    async def reader(self) -> FeedReader:
        reader = FeedReader(MemoryStreams(self.server).feed, self.clock)
        await reader.start()
        return reader


@pytest.fixture
def harness() -> FeedHarness:
    return FeedHarness()


def a_delta(number: int) -> Delta:
    return Delta(kind="pods", op=FeedOp.PUT, key=f"ns/{number}", rv=str(number), data=b"{}")


async def read_keys(reader: FeedReader) -> list[str]:
    answer = await reader.read(timeout_s=0)
    assert isinstance(answer, FeedBatch)
    return [delta.key for delta in answer.deltas]


async def read_break(reader: FeedReader) -> BreakReason | None:
    answer = await reader.read(timeout_s=0)
    return answer.reason if isinstance(answer, FeedBroken) else None


async def test_deltas_arrive_in_order_with_what_is_complete(harness: FeedHarness) -> None:
    """A heartbeat follows the deltas and says how far each kind has been published."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    for number in range(BATCH_MAX + 10):
        publisher.offer(a_delta(number))
    publisher.reached("nodes", "77")
    harness.clock.advance(1)
    await publisher.step()
    assert await read_keys(reader) == [f"ns/{number}" for number in range(BATCH_MAX + 10)]
    assert reader.versions == {"pods": str(BATCH_MAX + 9), "nodes": "77"}
    assert reader.is_fresh


async def test_a_beat_each_second_and_nothing_else_at_rest(harness: FeedHarness) -> None:
    """At rest the feed costs one entry a second."""
    publisher = harness.publisher()
    for _ in range(40):
        await publisher.step()
        harness.clock.advance(0.1)
    stream = harness.server.stream("slipway:cluster")
    assert stream is not None
    assert len(stream.entries) == 4


async def test_a_reader_is_fresh_only_after_it_heard_something(harness: FeedHarness) -> None:
    """A reader is fresh only after it received an entry, because the last entry may be of a dead feed."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    assert not reader.is_fresh
    harness.clock.advance(1)
    await publisher.step()
    assert await read_keys(reader) == []
    assert reader.is_fresh


async def test_the_first_publisher_is_a_break_as_well(harness: FeedHarness) -> None:
    """The first publisher of an empty feed is a break too, because changes between the reader's LIST and the first
    entry are in no entry."""
    reader = await harness.reader()
    await harness.publisher().step()
    assert await read_break(reader) is BreakReason.NEW_EPOCH
    await reader.start()
    assert await read_break(reader) is None


async def test_silence_is_a_break(harness: FeedHarness) -> None:
    """Three seconds without an entry are a break, and the reader must LIST."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    harness.clock.advance(2.9)
    assert await read_break(reader) is None
    harness.clock.advance(0.2)
    assert await read_break(reader) is BreakReason.SILENCE
    await publisher.step()
    assert await read_break(reader) is BreakReason.SILENCE  # until it starts again
    await reader.start()
    assert await read_break(reader) is None


async def test_a_reader_that_was_busy_is_not_a_silent_publisher(harness: FeedHarness) -> None:
    """A LIST that took longer than the silence limit is no break: the reader reads the entries of that time."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    for _ in range(5):
        harness.clock.advance(1)
        await publisher.step()
    publisher.offer(a_delta(1))
    await publisher.step()
    assert await read_keys(reader) == ["ns/1"]
    assert reader.is_fresh


async def test_a_new_publisher_is_a_break_after_what_came_before(harness: FeedHarness) -> None:
    """A new publisher is a break after the entries of the old one, which are still valid; then the reader must LIST."""
    old, new = harness.publisher(term=1), harness.publisher(term=2)
    await old.step()
    reader = await harness.reader()
    old.offer(a_delta(1))
    await old.step()
    await new.step()
    assert await read_keys(reader) == ["ns/1"]
    assert await read_break(reader) is BreakReason.NEW_EPOCH
    assert not reader.is_fresh


async def test_the_old_publisher_learns_that_it_is_replaced(harness: FeedHarness) -> None:
    """The old publisher learns that it is replaced, and its later entries never reach a reader."""
    old, new = harness.publisher(term=1), harness.publisher(term=2)
    await old.step()
    await new.step()
    old.offer(a_delta(1))
    with pytest.raises(StaleError):
        await old.step()
    with pytest.raises(StaleError):
        await harness.publisher(term=1).step()


async def test_a_publisher_of_the_same_term_goes_on_above_its_predecessor(harness: FeedHarness) -> None:
    """A restart within one lease term begins a new epoch of that term."""
    first, second = harness.publisher(), harness.publisher()
    await first.step()
    await second.step()
    assert (first.epoch, second.epoch) == (EPOCHS_PER_TERM + 1, EPOCHS_PER_TERM + 2)


async def test_a_flush_begins_a_new_epoch(harness: FeedHarness) -> None:
    """After a flush the publisher begins a new epoch, because its last entry is gone, and the reader sees that the
    numbers began again."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    harness.server.flush()
    publisher.offer(a_delta(1))
    await publisher.step()
    await publisher.step()
    assert await read_break(reader) is BreakReason.NEW_EPOCH
    assert publisher.epoch == EPOCHS_PER_TERM + 2


class LosingFeed(MemoryFeed):
    """A feed whose next append ends without an answer, before or after it took effect."""

    loses: str | None = None

    async def append(self, entries: Sequence[FeedEntry], *, after: str | None) -> str:
        loses, self.loses = self.loses, None
        if loses == "before":
            raise DeadlineError("no answer")
        end = await super().append(entries, after=after)
        if loses == "after":
            raise DeadlineError("no answer")
        return end


@pytest.mark.parametrize("loses", ["before", "after"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_an_append_without_an_answer_is_neither_lost_nor_doubled(
    harness: FeedHarness, loses: str, is_first: bool
) -> None:
    """An append without an answer is neither lost nor doubled: whether it took effect or not, the feed has each delta
    once, and a reader of this epoch sees no break."""
    feed = LosingFeed(harness.server)
    publisher = FeedPublisher(feed, harness.clock, term=1)
    if not is_first:
        await publisher.step()
    reader = await harness.reader()
    publisher.offer(a_delta(1))
    feed.loses = loses
    with pytest.raises(DeadlineError):
        await publisher.step()
    await publisher.step()
    if is_first:
        assert await read_break(reader) is BreakReason.NEW_EPOCH
        page = await feed.read(None, limit=10, block_s=0)
        assert [entry.key for _, entry in page if entry.key] == ["ns/1"]
        return
    assert await read_keys(reader) == ["ns/1"]
    assert await read_break(reader) is None


async def test_an_absent_server_is_a_break_and_is_waited_out(harness: FeedHarness) -> None:
    """While the server is absent the publisher keeps its deltas; for the reader it is a break."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    harness.server.absent = True
    publisher.offer(a_delta(1))
    with pytest.raises(UnavailableError):
        await publisher.step()
    assert await read_break(reader) is BreakReason.AWAY
    harness.server.absent = False
    await reader.start()
    await publisher.step()
    assert await read_keys(reader) == ["ns/1"]


async def test_of_many_changes_of_one_object_the_last_state_is_published(harness: FeedHarness) -> None:
    """Of many changes only the last state of each object is published; an object that was deleted and created again is
    published as both."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    for rv in ("1", "2", "3"):
        publisher.offer(Delta(kind="pods", op=FeedOp.PUT, key="ns/a", rv=rv, data=b"{}"))
        publisher.offer(Delta(kind="jobs", op=FeedOp.PUT, key="ns/a", rv=rv, data=b"{}"))
    publisher.offer(Delta(kind="pods", op=FeedOp.DELETE, key="ns/a", rv="4"))
    publisher.offer(Delta(kind="pods", op=FeedOp.PUT, key="ns/a", rv="5", data=b"{}"))
    await publisher.step()
    answer = await reader.read(timeout_s=0)
    assert isinstance(answer, FeedBatch)
    assert [(delta.kind, delta.op, delta.rv) for delta in answer.deltas] == [
        ("jobs", FeedOp.PUT, "3"),
        ("pods", FeedOp.DELETE, "4"),
        ("pods", FeedOp.PUT, "5"),
    ]


async def test_a_change_during_an_append_is_published_after_it(harness: FeedHarness) -> None:
    """A change during an append is published after that append, also when the append got no answer."""

    class Slow(MemoryFeed):
        is_lost = True

        async def append(self, entries: Sequence[FeedEntry], *, after: str | None) -> str:
            end = await super().append(entries, after=after)
            if self.is_lost and entries[0].op is FeedOp.PUT:
                self.is_lost = False
                publisher.offer(Delta(kind="pods", op=FeedOp.PUT, key="ns/a", rv="2", data=b"{}"))
                raise DeadlineError("no answer")
            return end

    publisher = FeedPublisher(Slow(harness.server), harness.clock, term=1)
    await publisher.step()
    reader = await harness.reader()
    publisher.offer(Delta(kind="pods", op=FeedOp.PUT, key="ns/a", rv="1", data=b"{}"))
    with pytest.raises(DeadlineError):
        await publisher.step()
    await publisher.step()
    answer = await reader.read(timeout_s=0)
    assert isinstance(answer, FeedBatch)
    assert [delta.rv for delta in answer.deltas] == ["1", "2"]


class MissingFeed(MemoryFeed):
    """A feed of which one answer arrives too late."""

    misses = 1

    async def read(self, after: str | None, *, limit: int, block_s: float) -> list[tuple[str, FeedEntry]]:
        if self.misses:
            self.misses -= 1
            raise DeadlineError("no answer")
        return await super().read(after, limit=limit, block_s=block_s)


@pytest.mark.parametrize(("misses", "reason"), [(1, None), (2, BreakReason.AWAY)])
async def test_one_late_answer_is_no_break_of_the_feed(
    harness: FeedHarness, misses: int, reason: BreakReason | None
) -> None:
    """One answer that arrived too late is no break, because the reader's own process may have been busy: the read is
    repeated once."""
    publisher = harness.publisher()
    await publisher.step()
    feed = MissingFeed(harness.server)
    feed.misses = misses
    reader = FeedReader(feed, harness.clock)
    await reader.start()
    assert await read_break(reader) is reason


async def test_a_full_buffer_is_dropped_whole(harness: FeedHarness) -> None:
    """A full buffer is dropped whole: a new epoch is better than a gap that no reader notices."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    for number in range(BUFFER_MAX + 1):
        publisher.offer(a_delta(number))
    await publisher.step()
    assert await read_break(reader) is BreakReason.NEW_EPOCH


async def test_a_hostile_entry_is_a_break(harness: FeedHarness) -> None:
    """An entry that cannot be decoded is a break, because it may be relevant."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    harness.server.add("slipway:cluster", {"e": b"x"})
    assert await read_break(reader) is BreakReason.CORRUPT


@pytest.mark.parametrize("signs", [False, True])
async def test_an_entry_that_is_not_signed_by_our_keys_is_a_break(
    harness: FeedHarness, tmp_path: Path, signs: bool
) -> None:
    """An entry that is not signed by our keys is a break with its own reason, after the entries before it."""
    ours = some_keys(a_folder(tmp_path / "ours"), harness.clock)
    theirs = some_keys(a_folder(tmp_path / "theirs", byte=2), harness.clock)
    publisher = FeedPublisher(MemoryStreams(harness.server, feed_macs=ours).feed, harness.clock, term=1)
    await publisher.step()
    reader = FeedReader(MemoryStreams(harness.server, feed_macs=ours).feed, harness.clock)
    await reader.start()
    publisher.offer(a_delta(1))
    await publisher.step()
    assert await read_keys(reader) == ["ns/1"]
    forged = FeedEntry(epoch=publisher.epoch, number=3, kind="nodes", op=FeedOp.PUT, key="invented", rv="9", data=b"{}")
    harness.server.add("slipway:cluster", codec.encode_feed([forged], theirs if signs else None))
    assert await read_break(reader) is BreakReason.FORGED


async def test_trimmed_entries_are_a_break(harness: FeedHarness) -> None:
    """Trimmed entries are a break: a reader that is too far behind must LIST."""
    publisher = harness.publisher()
    await publisher.step()
    reader = await harness.reader()
    publisher.offer(a_delta(1))
    await publisher.step()
    publisher.offer(a_delta(2))
    await publisher.step()
    stream = harness.server.stream("slipway:cluster")
    assert stream is not None
    del stream.entries[sorted(stream.entries)[1]]
    assert await read_break(reader) is BreakReason.GAP


async def test_a_running_publisher_publishes_at_once(harness: FeedHarness) -> None:
    """An offer does not wait for the heartbeat; cancelling ends it."""
    publisher = harness.publisher()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        task = group.create_task(publisher.run())
        await wait_until(lambda: publisher.epoch, "the first epoch")
        reader = await harness.reader()
        publisher.offer(a_delta(1))
        answer = await reader.read(timeout_s=3)
        task.cancel()
    assert isinstance(answer, FeedBatch)
    assert [delta.key for delta in answer.deltas] == ["ns/1"]
