"""The cluster feed has one writer at a time; logs, traces, activity and wake-ups are read as they were written."""

import asyncio
from contextlib import aclosing

import pytest

from slipway.errors import ExpiredError, InvalidError, StaleError
from slipway.streams import keys
from slipway.streams.logpacks import LogLine
from slipway.streams.ports import FeedEntry, FeedOp, FeedPosition, SpanRecord, Streams
from tests.support.logs import store_lines
from tests.support.redis import Backend, an_id


def entry(number: int, *, epoch: int = 1) -> FeedEntry:
    return FeedEntry(
        epoch=epoch, number=number, kind="pods", op=FeedOp.PUT, key=f"ns/{number}", rv="7", data=b'{"a":1}'
    )


def a_line(text: str, rank: int = 0) -> LogLine:
    return LogLine(attempt=1, rank=rank, stream="stdout", time="2026-01-02T03:04:05.5Z", text=text)


def a_span(name: str) -> SpanRecord:
    return SpanRecord(trace_id="a" * 32, span_id="b" * 16, name=name, service="podworker", start_ns=1, end_ns=2)


async def test_the_feed_is_read_as_it_was_written(streams: Streams) -> None:
    """Batches are read back entry by entry, in order."""
    end = await streams.feed.append([entry(1), entry(2)], after=None)
    await streams.feed.append([entry(3)], after=end)
    read = await streams.feed.read(None, limit=10, block_s=0)
    assert [each for _, each in read] == [entry(1), entry(2), entry(3)]
    assert await streams.feed.position() == FeedPosition(cursor=read[-1][0], epoch=1, number=3)
    assert await streams.feed.read(read[-1][0], limit=10, block_s=0.02) == []


async def test_a_large_batch_is_read_on_from_any_cursor(streams: Streams) -> None:
    """Pages follow each other without gap, and have at most the requested number of entries, however entries are
    packed."""
    await streams.feed.append([entry(number) for number in range(1, 201)], after=None)
    found: list[tuple[str, FeedEntry]] = []
    while page := await streams.feed.read(found[-1][0] if found else None, limit=70, block_s=0):
        assert len(page) <= 70
        found += page
    assert [each for _, each in found] == [entry(number) for number in range(1, 201)]
    assert await streams.feed.position() == FeedPosition(cursor=found[-1][0], epoch=1, number=200)


async def test_a_feed_that_another_version_wrote(streams: Streams, backend: Backend) -> None:
    """Entries of another version cannot be read, but their epoch is known: the next publisher continues after it."""
    await backend.add_raw(keys.CLUSTER.prefix, None, {"e": b"7", "n": b"3", "k": b"pods", "data": b"{}"})
    position = await streams.feed.position()
    assert (position.epoch, position.number) == (7, 0)
    with pytest.raises(StaleError):
        await streams.feed.append([entry(1, epoch=7)], after=None)
    await streams.feed.append([entry(1, epoch=8)], after=None)
    assert (await streams.feed.position()).epoch == 8
    await backend.add_raw(keys.CLUSTER.prefix, None, {"x": b"y"})
    assert (await streams.feed.position()).epoch == 0


async def test_an_empty_feed_has_a_position(streams: Streams) -> None:
    """A feed that was never written is at epoch 0."""
    assert await streams.feed.position() == FeedPosition(cursor=None, epoch=0, number=0)
    assert await streams.feed.read(None, limit=10, block_s=0) == []


async def test_a_publisher_that_was_replaced_is_stopped(streams: Streams) -> None:
    """The publisher with the higher epoch owns the feed; the old publisher cannot write any more."""
    old = await streams.feed.append([entry(1)], after=None)
    await streams.feed.append([entry(1, epoch=2)], after=None)
    with pytest.raises(StaleError):
        await streams.feed.append([entry(2)], after=old)
    with pytest.raises(StaleError):
        await streams.feed.append([entry(1)], after=None)
    with pytest.raises(StaleError):
        await streams.feed.append([entry(1, epoch=2)], after=None)
    assert len(await streams.feed.read(None, limit=10, block_s=0)) == 2


async def test_a_lost_end_is_noticed(streams: Streams, backend: Backend) -> None:
    """After a FLUSHALL the publisher's next append is refused."""
    end = await streams.feed.append([entry(1)], after=None)
    await backend.flush()
    with pytest.raises(ExpiredError):
        await streams.feed.append([entry(2)], after=end)
    assert await streams.feed.position() == FeedPosition(cursor=None, epoch=0, number=0)


async def test_a_snapshot_is_kept_in_parts(streams: Streams, backend: Backend) -> None:
    """The two slots are independent; a slot that is begun again contains no old part; both expire."""
    feed = streams.feed
    assert await feed.kept(0, ["head", "0"]) == [None, None]
    await feed.keep(0, {"0": b"\x00a", "1": b""}, anew=True)
    await feed.keep(0, {"head": b"h"}, anew=False)
    await feed.keep(1, {"0": b"other"}, anew=True)
    assert await feed.kept(0, ["1", "head", "2", "0"]) == [b"", b"h", None, b"\x00a"]
    assert await backend.ttl_s(keys.snapshot(0)) == pytest.approx(keys.SNAPSHOT.ttl_s, abs=10)
    await feed.keep(0, {"0": b"b"}, anew=True)
    assert await feed.kept(0, ["head", "0", "1"]) == [None, b"b", None]
    assert await feed.kept(1, ["0"]) == [b"other"]


async def test_a_blocked_reader_of_the_feed_is_served_at_once(backend: Backend) -> None:
    """A blocked reader gets an entry at once: the scheduler waits on the feed, not on a timer."""
    writer, reader = backend.connect(), backend.connect()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(reader.feed.read(None, limit=10, block_s=4))
        await asyncio.sleep(0.05)
        await writer.feed.append([entry(1)], after=None)
    assert [each for _, each in waiting.result()] == [entry(1)]


async def test_a_batch_of_nothing_is_refused(streams: Streams) -> None:
    """An append has at least one entry."""
    with pytest.raises(InvalidError):
        await streams.feed.append([], after=None)


async def test_lines_come_back_with_cursors(streams: Streams, backend: Backend) -> None:
    """Logs resume by cursor, show their tail, and expire."""
    await store_lines(streams, an_id(), [a_line(f"line {number}", rank=number % 2) for number in range(10)])
    first = await streams.logs.read(an_id(), limit=4)
    rest = await streams.logs.read(an_id(), after=first[-1].cursor)
    assert [each.line.text for each in (*first, *rest)] == [f"line {number}" for number in range(10)]
    last = [each.line for each in await streams.logs.tail(an_id(), limit=2)]
    assert [(line.text, line.rank, line.number) for line in last] == [("line 8", 0, 5), ("line 9", 1, 5)]
    assert await backend.ttl_s(keys.logs(an_id())) == pytest.approx(keys.LOGS.ttl_s, abs=10)


async def test_many_allocations_are_written_together(streams: Streams) -> None:
    """Lines, spans and activity are stored for their own allocation, in order."""
    names = [an_id(f"run-{number}") for number in range(20)]
    for name in names:
        await store_lines(streams, name, [a_line(f"{name} {number}") for number in range(3)])
    await streams.activity.touch({name: {"proxy": float(place)} for place, name in enumerate(names)})
    await streams.traces.append({name: [a_span(name)] for name in names})
    for place, name in enumerate(names):
        assert [each.line.text for each in await streams.logs.read(name)] == [f"{name} {number}" for number in range(3)]
        assert await streams.activity.read([name]) == [{"proxy": float(place)}]
        assert await streams.traces.read(name) == [a_span(name)]


async def test_followed_lines_arrive(backend: Backend) -> None:
    """`logs -f` gets present and future lines."""
    writer, reader = backend.connect(), backend.connect()
    await store_lines(writer, an_id(), [a_line("one")])
    found: list[str] = []
    async with aclosing(reader.logs.follow(an_id())) as pages, asyncio.timeout(5):
        async for page in pages:
            found += [stored.line.text for stored in page]
            if len(found) == 3:
                break
            await store_lines(writer, an_id(), [a_line(f"after {len(found)}")])
    assert found == ["one", "after 1", "after 2"]


async def test_spans_come_back(streams: Streams, backend: Backend) -> None:
    """Spans are read back from the store: the waterfall needs no collector."""
    spans = [a_span(str(number)) for number in range(3)]
    await streams.traces.append({an_id(): spans[:2]})
    await streams.traces.append({an_id(): spans[2:]})
    assert await streams.traces.read(an_id()) == spans
    assert await streams.traces.read(an_id(), limit=1) == spans[-1:]
    assert await backend.ttl_s(keys.trace(an_id())) is not None


async def test_activity_is_kept_by_source(streams: Streams, backend: Backend) -> None:
    """The newest time of each source is stored; without any the mapping is empty."""
    await streams.activity.touch({an_id(): {"proxy": 100.5}})
    await streams.activity.touch({an_id(): {"reported": 200.0}})
    await streams.activity.touch({an_id(): {"proxy": 300.25}})
    assert await streams.activity.read([an_id(), an_id("other")]) == [{"proxy": 300.25, "reported": 200.0}, {}]
    assert await backend.ttl_s(keys.activity(an_id())) is not None


async def test_activity_never_goes_back(streams: Streams) -> None:
    """Several reporters may report the same source, some late: the newest time stays, for each source."""
    await streams.activity.touch({an_id(): {"proxy": 100.0, "reported": 300.0}})
    await streams.activity.touch({an_id(): {"proxy": 200.0, "reported": 50.5}, an_id("other"): {"proxy": 1.0}})
    assert await streams.activity.read([an_id(), an_id("other")]) == [
        {"proxy": 200.0, "reported": 300.0},
        {"proxy": 1.0},
    ]


async def test_a_wakeup_reaches_a_waiting_reader(backend: Backend) -> None:
    """A wait ends at the first ring after its cursor, and returns the reason."""
    ringer, sleeper = backend.connect(), backend.connect()
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        waiting = group.create_task(sleeper.wake.wait(None, timeout_s=4))
        await asyncio.sleep(0.05)
        await ringer.wake.ring("created")
    assert waiting.result().reasons == ("created",)
    await ringer.wake.ring("killed")
    again = await sleeper.wake.wait(waiting.result().cursor, timeout_s=4)
    assert again.reasons == ("killed",)
    assert (await sleeper.wake.wait(again.cursor, timeout_s=0.02)).reasons == ()


async def test_a_cursor_from_before_a_loss_still_receives_new_entries(streams: Streams, backend: Backend) -> None:
    """After a FLUSHALL the ids may begin lower; a ring must still end the wait."""
    await backend.add_raw(keys.WAKE.prefix, "99999999999999-0", {"reason": b"x"})
    heard = await streams.wake.wait("1-0", timeout_s=1)
    await backend.flush()
    quiet = await streams.wake.wait(heard.cursor, timeout_s=0.02)
    await streams.wake.ring("again")
    assert (await streams.wake.wait(quiet.cursor, timeout_s=1)).reasons == ("again",)


async def test_every_key_is_of_the_table(streams: Streams, backend: Backend) -> None:
    """Every written key is in the table, and each that names an allocation can expire or is a live event stream."""
    await store_lines(streams, an_id(), [a_line("x")])
    await streams.activity.touch({an_id(): {"proxy": 1.0}})
    await streams.wake.ring("x")
    await streams.feed.append([entry(1)], after=None)
    await streams.work_queue("a").claim(limit=1, block_s=0)
    prefixes = tuple(family.prefix for family in keys.TABLE)
    assert all(key.startswith(prefixes) for key in await backend.keys())


async def test_ping_answers(streams: Streams) -> None:
    """The probe needs one round trip."""
    assert await streams.health.ping() < 1
