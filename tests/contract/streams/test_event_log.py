"""An allocation's stream is strictly ordered, contiguous and contains each seq once; the firehose is written first."""

import asyncio
import contextlib
from contextlib import aclosing

import pytest

from slipway.errors import InvalidError, TransientError
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.streams import codec, keys
from slipway.streams.ports import Appended, EntryOutcome, StreamEntry, Streams
from slipway.streams.producer import Ring, RingPublisher
from tests.support.redis import Backend, an_event, an_id, cursor


async def append(streams: Streams, *seqs: int, oldest_seq: int | None = None) -> list[EntryOutcome]:
    entries = [StreamEntry(event=an_event(seq), oldest_seq=oldest_seq) for seq in seqs]
    return [each.outcome for each in await streams.events.append(entries)]


async def stored_seqs(streams: Streams, allocation: AllocationId | None = None) -> list[int]:
    return [each.event.seq for each in await streams.events.read(allocation or an_id())]


async def test_entries_come_back_in_order_as_they_were(streams: Streams) -> None:
    """Appended entries are read back whole, each with its id as the cursor."""
    events = [an_event(1, type=Event.REQUESTED), an_event(2, traceparent=f"00-{'a' * 32}-{'b' * 16}-01"), an_event(3)]
    answers = await streams.events.append([StreamEntry(event=event) for event in events])
    assert answers == [Appended(outcome=EntryOutcome.APPENDED, last_seq=seq) for seq in (1, 2, 3)]
    stored = await streams.events.read(an_id())
    assert [each.event for each in stored] == events
    assert [each.cursor for each in stored] == [event.entry_id for event in events]


async def test_an_entry_is_stored_once(streams: Streams) -> None:
    """A repeated publish changes nothing, also in the firehose, and its answer shows that."""
    assert await append(streams, 1, 2) == [EntryOutcome.APPENDED] * 2
    assert await append(streams, 1, 2) == [EntryOutcome.DUPLICATE] * 2
    assert await stored_seqs(streams) == [1, 2]
    assert len(await streams.firehose.read()) == 2


async def test_a_gap_is_refused_with_what_is_there(streams: Streams) -> None:
    """Only the entry after the last is accepted; the answer contains the last seq."""
    await append(streams, 1)
    [answer] = await streams.events.append([StreamEntry(event=an_event(3))])
    assert answer == Appended(outcome=EntryOutcome.GAP, last_seq=1)
    assert await stored_seqs(streams) == [1]


async def test_anything_begins_an_empty_stream(streams: Streams) -> None:
    """After a loss a stream may begin with any seq."""
    assert await append(streams, 5, 6) == [EntryOutcome.APPENDED] * 2
    assert await stored_seqs(streams) == [5, 6]


async def test_an_empty_stream_begins_with_the_oldest_that_is_known(streams: Streams) -> None:
    """A relay that can still publish seq 3 may not begin with seq 6: the entries between could never be added."""
    [answer] = await streams.events.append([StreamEntry(event=an_event(6), oldest_seq=3)])
    assert answer == Appended(outcome=EntryOutcome.GAP, last_seq=None)
    assert await append(streams, 3, 4, oldest_seq=3) == [EntryOutcome.APPENDED] * 2


@pytest.mark.parametrize(
    ("mark", "outcome"),
    [
        ("2-4", EntryOutcome.APPENDED),
        ("3-4", EntryOutcome.GAP),
        ("2-3", EntryOutcome.GAP),
        ("1-4", EntryOutcome.GAP),
        (None, EntryOutcome.GAP),
    ],
)
async def test_a_truncation_is_bridged_only_when_its_mark_is_exact(
    streams: Streams, mark: str | None, outcome: EntryOutcome
) -> None:
    """Entries that left the ring are skipped only when the mark names exactly the missing ones."""
    await append(streams, 1)
    [answer] = await streams.events.append([StreamEntry(event=an_event(5, truncated=mark))])
    assert answer.outcome is outcome
    if outcome is EntryOutcome.APPENDED:
        assert (await streams.events.read(an_id(), after=cursor(1)))[0].event.truncated == mark


async def test_last_seqs_answers_in_order_with_none_for_the_unknown(streams: Streams) -> None:
    """The position of a relay is the last seq of each stream."""
    await append(streams, 1, 2)
    assert await streams.events.last_seqs([an_id("other"), an_id()]) == [None, 2]
    assert await streams.events.last_seqs([]) == []


async def test_read_resumes_after_the_cursor(streams: Streams) -> None:
    """Pages follow each other without gap or repetition."""
    await append(streams, *range(1, 8))
    first = await streams.events.read(an_id(), limit=3)
    second = await streams.events.read(an_id(), after=first[-1].cursor, limit=10)
    assert [each.event.seq for each in (*first, *second)] == list(range(1, 8))


@pytest.mark.parametrize("bad", ["", "1", "1-", "-1", "a-b", "1-1-1", "9" * 40 + "-1", "1-1\n", "+", "$"])
async def test_a_cursor_that_is_none_is_refused(streams: Streams, bad: str) -> None:
    """Clients send cursors: a cursor that is not two numbers is refused as their error."""
    with pytest.raises(InvalidError):
        await streams.events.read(an_id(), after=bad)


async def test_the_stream_expires_some_time_after_the_end(streams: Streams, backend: Backend) -> None:
    """A live stream does not expire; the last event sets the expiry of the table, or the one that the caller names."""
    key = keys.allocation(an_id())
    await append(streams, 1)
    assert await backend.ttl_s(key) is None
    await streams.events.append([StreamEntry(event=an_event(2, type=Event.TERMINATED))])
    assert await backend.ttl_s(key) == pytest.approx(keys.ALLOCATION.ttl_s, abs=10)
    await backend.flush()
    ended = StreamEntry(event=an_event(2, type=Event.TERMINATED), expire_s=60)
    await streams.events.append([ended, ended])
    assert await backend.ttl_s(key) == pytest.approx(60, abs=10)


async def test_entries_of_another_writer_do_not_block_ours(streams: Streams, backend: Backend) -> None:
    """A foreign id far in the future is removed, and the stream begins again."""
    await backend.add_raw(keys.allocation(an_id()), "9999999999999-1", {"x": b"y"})
    [answer] = await streams.events.append([StreamEntry(event=an_event(1))])
    assert answer == Appended(outcome=EntryOutcome.GAP, last_seq=None)
    assert await append(streams, 1) == [EntryOutcome.APPENDED]


async def test_what_can_not_be_decoded_is_skipped(streams: Streams, backend: Backend) -> None:
    """A reader misses only the entry that cannot be decoded."""
    await append(streams, 1)
    await backend.add_raw(keys.allocation(an_id()), cursor(2), {"specversion": b"1.0", "data": b"\xff{"})
    await append(streams, 3)
    assert await stored_seqs(streams) == [1, 3]


async def test_republished_entries_are_identical(streams: Streams, backend: Backend) -> None:
    """After a FLUSHALL the rebuilt stream has the same ids and events, so readers' cursors hold."""
    await append(streams, 1, 2, 3)
    before = await streams.events.read(an_id())
    await backend.flush()
    await append(streams, 1, 2, 3, oldest_seq=1)
    assert await streams.events.read(an_id()) == before


async def test_several_relays_at_once_keep_the_order(backend: Backend) -> None:
    """For each seq the first relay wins; together they publish everything once, in order."""

    async def relay() -> None:
        mine = backend.connect()
        for seq in range(1, 41):
            await mine.events.append([StreamEntry(event=an_event(seq))])

    await asyncio.gather(*(relay() for _ in range(4)))
    assert await stored_seqs(backend.connect()) == list(range(1, 41))
    told = [each.event.seq for each in await backend.connect().firehose.read(limit=10_000)]
    assert list(dict.fromkeys(told)) == list(range(1, 41))


async def test_relays_that_race_with_a_loss_end_with_the_whole_ring(backend: Backend) -> None:
    """A relay that begins a stream again begins at its oldest entry; no seq is missing, doubled or out of order."""
    ring = Ring(events=tuple(an_event(seq) for seq in range(3, 15)))

    async def relay() -> None:
        publisher = RingPublisher(backend.connect().events)
        for last in range(4, 15):
            with contextlib.suppress(TransientError):  # the stream changed under it too often: the next check writes it
                await publisher.publish([Ring(events=ring.events[: last - 2])])

    async def lose() -> None:
        for _ in range(3):
            await asyncio.sleep(0.005)
            await backend.flush()

    await asyncio.gather(lose(), *(relay() for _ in range(3)))
    streams = backend.connect()
    await RingPublisher(streams.events).publish([ring])
    stored = await streams.events.read(an_id())
    assert [each.event.seq for each in stored] == list(range(3, 15))
    assert stored[0].event.truncated == "1-2"


async def test_a_long_stream_is_capped_and_goes_on(streams: Streams, backend: Backend) -> None:
    """The oldest entries are removed, the order and the last seq stay, and an older cursor continues at the first
    remaining entry."""
    cap = keys.ALLOCATION.length_max
    total = cap + 300
    for start in range(1, total + 1, 100):
        assert set(await append(streams, *range(start, min(start + 100, total + 1)))) == {EntryOutcome.APPENDED}
    assert cap <= await backend.length(keys.allocation(an_id())) <= cap + 128  # trimmed by whole nodes
    assert await streams.events.last_seqs([an_id()]) == [total]
    left = await streams.events.read(an_id(), after=cursor(1), limit=10_000)
    seqs = [each.event.seq for each in left]
    assert seqs == list(range(seqs[0], total + 1))
    assert await append(streams, total, total + 1) == [EntryOutcome.DUPLICATE, EntryOutcome.APPENDED]


async def test_a_stream_that_has_expired_is_gone_and_may_begin_again(streams: Streams, backend: Backend) -> None:
    """An ended stream with a life time of a second leaves nothing behind; a duplicate does not extend its life."""
    ended = StreamEntry(event=an_event(1, type=Event.TERMINATED), expire_s=1)
    await streams.events.append([ended, ended])
    async with asyncio.timeout(5):
        while await streams.events.last_seqs([an_id()]) != [None]:  # noqa: ASYNC110 - a server's state
            await asyncio.sleep(0.02)
    assert await append(streams, 1) == [EntryOutcome.APPENDED]
    assert await backend.ttl_s(keys.allocation(an_id())) is None


async def test_follow_gives_what_is_there_and_what_comes(backend: Backend) -> None:
    """A follower gets every event once, in order, also across a loss and rebuild of the stream."""
    writer, reader = backend.connect(), backend.connect()
    await append(writer, 1, 2)
    seen: list[int] = []
    async with aclosing(reader.events.follow(an_id(), after=cursor(1))) as events, asyncio.timeout(5):

        async def write() -> None:
            await append(writer, 3)
            await backend.flush()
            await append(writer, 1, 2, 3, 4)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            async for stored in events:
                seen.append(stored.event.seq)
                if stored.event.seq == 4:
                    break
    assert seen == [2, 3, 4]


async def test_many_followers_each_see_their_own(backend: Backend) -> None:
    """Followers of one process share the reader, and each gets its own events, whenever it joins."""
    writer, reader = backend.connect(), backend.connect()
    names = [f"run-{number}" for number in range(12)]

    async def follow(name: str) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        async with aclosing(reader.events.follow(an_id(name))) as events:
            async for stored in events:
                found.append((stored.event.name, stored.event.seq))
                if len(found) == 10:
                    return found
        return found

    async def write() -> None:
        for seq in range(1, 11):
            await writer.events.append([StreamEntry(event=an_event(seq, name=name)) for name in names])

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        early = [group.create_task(follow(name)) for name in names]
        await asyncio.sleep(0.02)
        group.create_task(write())
        late = [group.create_task(follow(name)) for name in names]
    for name, one, other in zip(names, early, late, strict=True):
        assert one.result() == other.result() == [(name, seq) for seq in range(1, 11)]


async def test_a_follower_that_leaves_does_not_stop_the_others(backend: Backend) -> None:
    """The follower that reads for all may be cancelled at any time."""
    writer, reader = backend.connect(), backend.connect()

    async def follow_one() -> int:
        async with aclosing(reader.events.follow(an_id())) as events:
            async for stored in events:
                return stored.event.seq
        return 0

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        tasks = [group.create_task(follow_one()) for _ in range(4)]
        await asyncio.sleep(0.05)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.sleep(0.05)
        await append(writer, 1)
    assert [task.result() for task in tasks[2:]] == [1, 1]


async def test_the_firehose_is_sharded_and_resumable(streams: Streams) -> None:
    """Every event is in the shard of its allocation; a cursor resumes all shards."""
    entries = [StreamEntry(event=an_event(1, name=f"run-{number}")) for number in range(30)]
    await streams.events.append(entries)
    everything = await streams.firehose.read()
    assert {each.event.name for each in everything} == {entry.event.name for entry in entries}
    assert all(each.shard == keys.shard_of(each.event.allocation_id) for each in everything)
    later = await streams.firehose.read(after=everything[9].cursor)
    assert [each.event for each in later] == [each.event for each in everything[10:]]
    assert await streams.firehose.read(after=await streams.firehose.tail()) == []


async def test_the_firehose_knows_when_events_after_a_cursor_were_removed(backend: Backend) -> None:
    """A cursor from before the oldest event that is left is behind a gap; one of an event that is left is not."""
    streams = backend.connect()
    start = await streams.firehose.tail()
    assert not await streams.firehose.has_lost(start)
    await append(streams, 1, 2, 3)
    first, second, _ = [each.cursor for each in await streams.firehose.read()]
    assert not any([await streams.firehose.has_lost(cursor) for cursor in (start, first, second)])
    key = keys.events(keys.shard_of(an_id()))
    position = first.split(",")[keys.shard_of(an_id())]
    await backend.remove_raw(key, position)
    assert [await streams.firehose.has_lost(cursor) for cursor in (start, first, second)] == [True, True, False]


async def test_the_firehose_waits_for_the_first_event(backend: Backend) -> None:
    """A blocked reader gets the next event as soon as it is written."""
    writer, reader = backend.connect(), backend.connect()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(reader.firehose.read(after=await reader.firehose.tail(), block_s=4))
        await asyncio.sleep(0.05)
        await append(writer, 1)
    assert [each.event.seq for each in waiting.result()] == [1]
    assert await reader.firehose.read(after=waiting.result()[0].cursor, block_s=0.05) == []


async def test_the_entry_is_cloudevents(streams: Streams, backend: Backend) -> None:
    """Both streams contain CloudEvents 1.0 in binary mode, with a deterministic id."""
    event = an_event(1, type=Event.REQUESTED)
    await streams.events.append([StreamEntry(event=event)])
    fields = codec.encode_event(event)
    assert fields["id"] == b"train-0123abcd/1"
    assert fields["type"] == b"dev.slipway.allocation.requested"
    assert fields["source"] == b"/slipway/default/train"
    assert fields["subject"] == b"train-0123abcd"
    assert await backend.length(keys.events(keys.shard_of(an_id()))) == 1
    assert await backend.length("slipway:alloc:{train-0123abcd}") == 1


async def test_a_stream_that_somebody_emptied_begins_again(streams: Streams, backend: Backend) -> None:
    """An emptied stream still refuses its old ids; it is a copy, so it is begun again."""
    entries = [StreamEntry(event=an_event(seq)) for seq in (1, 2, 3)]
    await streams.events.append(entries)
    for seq in (1, 2, 3):
        await backend.remove_raw(keys.allocation(an_id()), cursor(seq))
    assert [each.outcome for each in await streams.events.append(entries)] == [EntryOutcome.APPENDED] * 3


async def test_a_stream_whose_end_was_removed_begins_again(streams: Streams, backend: Backend) -> None:
    """An entry that does not follow the end is refused as a gap; from its first entry on the stream is complete
    again."""
    entries = [StreamEntry(event=an_event(seq)) for seq in (1, 2, 3)]
    await streams.events.append(entries)
    await backend.remove_raw(keys.allocation(an_id()), cursor(3))
    [answer] = await streams.events.append(entries[2:])
    assert answer == Appended(outcome=EntryOutcome.GAP, last_seq=None)
    await streams.events.append(entries)
    assert [each.event.seq for each in await streams.events.read(an_id())] == [1, 2, 3]
