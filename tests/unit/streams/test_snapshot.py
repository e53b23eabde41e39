"""Snapshots of the feed: a snapshot is used only when the feed can be read on from its position, and two are never
mixed."""

import pytest

from slipway.errors import InvalidError
from slipway.streams import keys, snapshot
from slipway.streams.feed import Delta, FeedBatch, FeedPublisher, FeedReader
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import FeedOp, FeedPosition
from slipway.streams.snapshot import SnapshotPosition, SnapshotWriter
from tests.support.clock import FakeClock

PAGES = [b"a", b"", b"c" * 1_000, *(bytes([number]) for number in range(20))]


class SnapshotHarness:
    """A server and a publisher that has begun."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.server = MemoryServer(self.clock)
        self.feed = MemoryStreams(self.server).feed
        self.publisher = FeedPublisher(self.feed, self.clock, term=1)

    async def make(self, slot: int = 0, pages: list[bytes] = PAGES) -> SnapshotPosition:
        """Make a snapshot at the publisher's position."""
        stands = self.publisher.stands
        assert stands is not None
        writer = SnapshotWriter(self.feed, slot, stands)
        for page in pages:
            await writer.add(page)
        await writer.finish()
        return stands

    async def beat(self) -> None:
        self.clock.advance(keys.FEED_BEAT_S)
        await self.publisher.step()

    async def tell(self, number: int) -> None:
        self.publisher.offer(Delta(kind="pods", op=FeedOp.PUT, key=f"ns/{number}", rv=str(number), data=b"{}"))
        await self.publisher.step()

    def reader(self) -> FeedReader:
        return FeedReader(MemoryStreams(self.server).feed, self.clock)


@pytest.fixture
async def harness() -> SnapshotHarness:
    harness = SnapshotHarness()
    await harness.publisher.step()
    return harness


async def read_all(harness: SnapshotHarness, found: snapshot.FeedSnapshot) -> list[bytes]:
    return [page async for page in snapshot.pages_of(harness.feed, found)]


async def test_pages_come_back_in_their_order(harness: SnapshotHarness) -> None:
    """The pages of a snapshot are read in their order, also when there are none."""
    assert await snapshot.find(harness.feed, await harness.feed.position()) is None
    for pages in (PAGES, []):
        await harness.make(pages=pages)
        found = await harness.reader().resume()
        assert found is not None
        assert await read_all(harness, found) == pages


async def test_the_later_of_two_is_taken_and_the_other_left_alone(harness: SnapshotHarness) -> None:
    """The later of two snapshots is used; the other one stays, so that its readers are not disturbed."""
    await harness.make(0, [b"first"])
    before = await harness.reader().resume()
    await harness.beat()
    await harness.make(1, [b"second"])
    after = await harness.reader().resume()
    assert before is not None
    assert after is not None
    assert (await read_all(harness, before), await read_all(harness, after)) == ([b"first"], [b"second"])


async def test_one_that_is_not_finished_is_none(harness: SnapshotHarness) -> None:
    """An unfinished snapshot is not used, also when it replaces a finished one."""
    await harness.make()
    stands = harness.publisher.stands
    assert stands is not None
    await SnapshotWriter(harness.feed, 0, stands).add(b"half")
    assert await harness.reader().resume() is None


async def test_one_of_another_epoch_is_none(harness: SnapshotHarness) -> None:
    """A snapshot of another epoch is not used, because changes between two epochs may be missing."""
    await harness.make()
    await FeedPublisher(harness.feed, harness.clock, term=2).step()
    assert await harness.reader().resume() is None


async def test_one_that_stands_beyond_the_end_is_none(harness: SnapshotHarness) -> None:
    """A snapshot beyond the end of the feed is not used: the feed went back in time, but its snapshot did not."""
    stands = await harness.make()
    end = FeedPosition(cursor=stands.cursor, epoch=stands.epoch, number=stands.number)
    later = SnapshotPosition(epoch=stands.epoch, number=stands.number + 1, cursor=stands.cursor)
    await SnapshotWriter(harness.feed, 1, later).finish()
    assert await harness.feed.position() == end
    assert await harness.reader().resume() is None


async def test_a_page_that_is_gone_or_is_anothers_is_noticed(harness: SnapshotHarness) -> None:
    """A missing page, or a page of another snapshot, is noticed: a writer whose term is over may overwrite pages."""
    await harness.make()
    found = await harness.reader().resume()
    assert found is not None
    other = SnapshotPosition(epoch=1, number=1, cursor="1-1")
    await SnapshotWriter(harness.feed, 0, other).add(b"alien")
    with pytest.raises(InvalidError):
        await read_all(harness, found)
    await harness.make()
    await harness.feed.keep(0, {"4": b"\xff"}, anew=False)
    with pytest.raises(InvalidError):
        await read_all(harness, found)


async def test_a_head_that_can_not_be_read_is_none(harness: SnapshotHarness) -> None:
    """A head that cannot be decoded is no snapshot, so the reader LISTs."""
    for head in (b"", b"\xff", b"{}"):
        await harness.feed.keep(0, {"head": head}, anew=True)
        assert await harness.reader().resume() is None


async def test_what_was_told_before_the_reader_says_nothing_of_who_publishes_now(harness: SnapshotHarness) -> None:
    """Entries after the snapshot are returned in order; the reader is fresh with the first entry that is newer than the
    reader."""
    await harness.make()
    await harness.tell(1)
    await harness.tell(2)
    reader = harness.reader()
    assert await reader.resume() is not None
    batch = await reader.read(timeout_s=0)
    assert isinstance(batch, FeedBatch)
    assert [delta.key for delta in batch.deltas] == ["ns/1", "ns/2"]
    assert not reader.is_fresh
    await harness.beat()
    await reader.read(timeout_s=0)
    assert reader.is_fresh
