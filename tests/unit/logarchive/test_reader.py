"""Stream and archive read as one."""

import msgspec
import pytest

from slipway.errors import UnavailableError
from slipway.logarchive.archive import LogArchive
from slipway.logarchive.pieces import START, ArchiveRecord
from slipway.logarchive.reader import ArchivedLogs
from slipway.runtime.clock import SystemClock
from slipway.streams import keys
from slipway.streams.logpacks import EVENT, GapFinder, LogLine, StoredLine
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import NoTally
from tests.support.archive_objects import MemoryObjects
from tests.support.logs import a_pack
from tests.support.redis import an_id

SMALL = 3_000


class StreamAndArchive:
    """A stream with a small bound, and its archive."""

    def __init__(self) -> None:
        self.server = MemoryServer(SystemClock())
        self.streams = MemoryStreams(self.server, NoTally())
        self.objects = MemoryObjects()
        self.archive = LogArchive(self.objects)
        self.logs = ArchivedLogs(self.streams.logs, self.archive, SystemClock())
        self._number = 0
        self._end = START

    async def print(self, count: int, *, is_archived: bool = True) -> None:
        """Store `count` lines in packs of twenty, each archived as a piece before the bound drops it."""
        for _ in range(count // 20):
            some = [a_line(number) for number in range(self._number + 1, self._number + 21)]
            await self.streams.logs.append([a_pack(an_id(), some, after=self._number, share=SMALL)])
            self._number += 20
            if is_archived:
                await self.copy()

    async def copy(self) -> None:
        lines = await self.streams.logs.page(an_id(), after=self._end)
        if lines:
            record = ArchiveRecord(allocation=an_id(), workspace="team", name="a", uid="u")
            await self.archive.write_record(record)
            assert await self.archive.add("team", an_id(), self._end, lines)
            self._end = lines[-1].cursor


def a_line(number: int) -> LogLine:
    return LogLine(attempt=1, rank=0, time="2026-01-02T03:04:05Z", text=f"line {number} " + "x" * 40)


def numbers(lines: list[StoredLine]) -> list[int]:
    return [each.line.number for each in lines]


async def whole(logs: ArchivedLogs, *, limit: int) -> list[int]:
    found, cursor = list[int](), None
    while page := await logs.read(an_id(), after=cursor, limit=limit):
        found += numbers(page)
        cursor = page[-1].cursor
    return found


@pytest.mark.parametrize("limit", [1, 7, 20, 1000])
async def test_lines_that_the_stream_dropped_come_from_the_archive(limit: int) -> None:
    """Lines that the stream dropped are read from the archive, in order, without a repeat or a gap at the boundary,
    with any page size."""
    archived_stream = StreamAndArchive()
    await archived_stream.print(2_000)
    await archived_stream.print(40, is_archived=False)
    assert len(await archived_stream.streams.logs.read(an_id(), limit=5_000)) < 2_040
    assert await whole(archived_stream.logs, limit=limit) == list(range(1, 2_041))


async def test_what_is_archived_is_not_told_as_missing() -> None:
    """Archived lines are not reported as missing, although the store counts them as dropped; a reader that begins with
    the last lines sees no gap."""
    archived_stream = StreamAndArchive()
    await archived_stream.print(2_000)
    stored = await archived_stream.logs.tail(an_id(), limit=1_500)
    gaps = GapFinder(await archived_stream.logs.positions(an_id()), is_whole=False)
    assert numbers(stored) == list(range(501, 2_001))
    assert [mark for each in stored if (mark := gaps.before(each.line)) is not None] == []


async def test_the_archive_alone_is_the_log_when_the_stream_is_gone() -> None:
    """When the stream is gone the archive alone is the log; a cursor of the stream is valid in the archive."""
    archived_stream = StreamAndArchive()
    await archived_stream.print(400)
    [*_, last] = await archived_stream.streams.logs.tail(an_id(), limit=20)
    [first, *_] = await archived_stream.streams.logs.tail(an_id(), limit=20)
    for key in (keys.logs(an_id()), keys.log_state(an_id()), keys.log_packs(an_id())):
        archived_stream.server.drop(key)
    assert await whole(archived_stream.logs, limit=100) == list(range(1, 401))
    assert numbers(await archived_stream.logs.read(an_id(), after=first.cursor)) == list(range(382, 401))
    assert await archived_stream.logs.read(an_id(), after=last.cursor) == []
    assert numbers(await archived_stream.logs.tail(an_id(), limit=30)) == list(range(371, 401))


async def test_a_follower_that_falls_behind_reads_on_in_the_archive() -> None:
    """A follower that falls behind continues in the archive: lines that the stream dropped are not missing."""
    archived_stream = StreamAndArchive()
    await archived_stream.print(400)
    found = list[int]()
    async for page in archived_stream.logs.follow(an_id()):
        found += numbers(page)
        if found[-1] == 400:
            await archived_stream.print(1_600)
        if found[-1] == 2_000:
            break
    assert found == list(range(1, 2_001))


async def test_an_archive_that_does_not_answer_is_told() -> None:
    """An archive that does not answer is reported: only the stream is read; when it has no lines, the answer is an
    error instead of an empty log."""
    archived_stream = StreamAndArchive()
    await archived_stream.print(400)
    archived_stream.objects.is_away = True
    lines = await archived_stream.logs.read(an_id(), limit=5_000)
    assert "cannot be read now" in lines[0].line.text
    assert numbers(lines)[-1] == 400
    with pytest.raises(UnavailableError):
        await archived_stream.logs.read(an_id(), after=lines[-1].cursor)


async def test_an_archive_that_does_not_answer_is_told_in_each_log() -> None:
    """An archive that does not answer is reported in each log, also to a reader of one rank."""
    archived_stream = StreamAndArchive()
    for rank in (0, 1):
        line = LogLine(attempt=1, rank=rank, time="2026-01-02T03:04:05Z", text="one")
        await archived_stream.streams.logs.append([a_pack(an_id(), [line], after=0)])
    archived_stream.objects.is_away = True
    lines = await archived_stream.logs.read(an_id())
    assert [each.line.rank for each in lines if each.line.stream == EVENT] == [0, 1]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_a_deleted_log_is_reported_as_a_gap(limit: int) -> None:
    """A deleted log is reported in each log that had lines, once, with any page size; without a list of logs, in every
    rank."""
    archived_stream = StreamAndArchive()
    record = ArchiveRecord(
        allocation=an_id(), workspace="team", name="a", uid="u", ranks=4, attempt=2, dropped_at="2026-01-02T03:04:05Z"
    )
    logs = {"1/3/stdout/": 7, "2/0/stdout/": 0, "2/1/stdout/": 9, "2/1/stdout/fetch": 1}
    for known, told in ((logs, [(1, 3, ""), (2, 1, ""), (2, 1, "fetch")]), ({}, [(2, rank, "") for rank in range(4)])):
        await archived_stream.archive.write_record(msgspec.structs.replace(record, logs=known))
        reader = ArchivedLogs(archived_stream.streams.logs, archived_stream.archive, SystemClock())
        found, cursor = list[StoredLine](), None
        while page := await reader.read(an_id(), after=cursor, limit=limit):
            found += page
            cursor = page[-1].cursor
        assert [(each.line.attempt, each.line.rank, each.line.container) for each in found] == told
        assert {each.line.stream for each in found} == {EVENT}


async def test_a_piece_that_cannot_be_read_is_a_gap() -> None:
    """A piece that cannot be read is a gap, and the others are read."""
    archived_stream = StreamAndArchive()
    await archived_stream.print(2_000)
    path = (await archived_stream.objects.paths("v1/logs/"))[50]
    archived_stream.objects.objects[path] = b"?"
    assert await whole(archived_stream.logs, limit=500) == [*range(1, 1_001), *range(1_021, 2_001)]
