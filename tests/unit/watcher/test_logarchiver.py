"""The copy of streams to the archive of logs: whole, once, and in bounded time."""

import asyncio

import msgspec

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError, UnavailableError
from slipway.logarchive.reader import ArchivedLogs
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time
from slipway.runtime.tasks import TaskGroup
from slipway.streams.logpacks import EVENT, LogLine, StoredLine
from tests.support.archiver_harness import ArchiverHarness
from tests.support.builders import a_pod
from tests.support.logs import a_pack, end_logs

DAY_S = 86_400.0


async def test_what_was_printed_is_archived_and_closed_at_the_end() -> None:
    """At the end all lines are archived, and the record has the last line of each log, so that readers know that
    nothing follows."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    await harness.print(50)
    await archiver.step()
    record = await harness.archive.record(harness.id)
    assert record is not None
    assert (record.workspace, record.ranks, record.ended_at) == ("team", 2, "")
    await harness.print(30, archiver)
    await end_logs(harness.streams, harness.id)
    harness.end()
    await archiver.step()
    harness.clock.ahead_s += 5
    await archiver.step()
    assert await harness.numbers() == list(range(1, 81))
    record = await harness.archive.record(harness.id)
    assert record is not None
    assert record.ended_at
    assert record.logs == {"1/0/stdout/": 80}


async def test_an_archive_stays_open_while_a_log_is_read_from_its_node() -> None:
    """An archive stays open while a log is not read to its end: its pod still exists, for longer than the archive waits
    for ends."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    await harness.print(50)
    await archiver.step()
    harness.end()
    harness.world.pods.replace([a_pod(of=harness.allocation).it], harness.version)
    await archiver.step()
    harness.clock.ahead_s += 100
    await archiver.step()
    await harness.print(30, archiver)
    harness.world.pods.replace([], harness.version + 1)
    harness.clock.ahead_s += 100
    await archiver.step()
    assert await harness.numbers() == list(range(1, 81))
    record = await harness.archive.record(harness.id)
    assert record is not None
    assert record.ended_at


async def test_an_archive_is_not_closed_before_lines_that_were_just_stored() -> None:
    """An archive is not closed before lines that were stored after the last page was read: the next step copies
    them."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    await harness.print(20, archiver)
    await archiver.step()
    harness.end()
    await archiver.step()
    source, is_late = harness.streams.logs, False
    page = source.page

    async def crossed(allocation: AllocationId, *, after: str | None = None) -> list[StoredLine]:
        nonlocal is_late
        found = await page(allocation, after=after)
        if not found and not is_late:
            is_late = True
            await harness.print(5, archiver)
        return found

    source.page = crossed
    harness.clock.ahead_s += 61
    for _ in range(2):
        await archiver.step()
        harness.clock.ahead_s += 61
    assert await harness.numbers() == list(range(1, 26))
    record = await harness.archive.record(harness.id)
    assert record is not None
    assert record.ended_at


async def test_a_process_that_starts_goes_on_where_the_archive_ends() -> None:
    """A new process continues where the archive ends, without a gap and without a repeated line."""
    harness = ArchiverHarness()
    for _ in range(3):
        await harness.print(20)
        await harness.archiver().step()
    assert await harness.numbers() == list(range(1, 61))


async def test_of_two_processes_one_writes_each_piece() -> None:
    """Of two processes one writes each piece; the other continues after it."""
    harness = ArchiverHarness()
    first, second = harness.archiver(), harness.archiver()
    await harness.print(20)
    await asyncio.gather(first.step(), second.step())
    await harness.print(20, first)
    await harness.print(20, second)
    harness.clock.ahead_s += 60
    await asyncio.gather(first.step(), second.step())
    await second.step()
    assert await harness.numbers() == list(range(1, 61))


async def test_the_end_of_a_pod_waits_for_the_copy_and_not_for_ever() -> None:
    """The end of a pod waits for the copy for a bounded time, and not at all while the archive does not answer."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    await archiver.step()
    await harness.print(20, archiver)
    assert not archiver.is_archived(harness.id, "uid")
    harness.clock.ahead_s += 11
    assert archiver.is_archived(harness.id, "uid")
    await archiver.step()
    await harness.print(20, archiver)
    assert not archiver.is_archived(harness.id, "uid")
    harness.objects.is_away = True
    await archiver.step()
    assert archiver.is_archived(harness.id, "uid")


async def archive_messages(harness: ArchiverHarness, id_: AllocationId | None = None) -> list[str]:
    """The messages about the archive in the log."""
    lines = await harness.streams.logs.read(id_ or harness.id, limit=10_000)
    return [each.line.text for each in lines if each.line.stream == EVENT]


async def test_a_log_tells_of_an_archive_that_stays_away() -> None:
    """A failure that is over at the next try is not reported in the log; a lasting one is reported once."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    await archiver.step()
    await harness.print(20, archiver)
    harness.clock.ahead_s += 31
    harness.objects.is_away = True
    await harness.written(archiver.step())
    assert await archive_messages(harness) == []
    for _ in range(2):
        harness.clock.ahead_s += 11
        await harness.written(archiver.step())
    (line,) = await archive_messages(harness)
    assert "not archived yet: no archive today" in line


async def test_a_log_tells_at_once_of_a_refusal() -> None:
    """A refusal of the credentials is reported at once, because retries do not help."""
    harness = ArchiverHarness()

    async def refuse(path: str) -> bytes | None:
        raise DeniedError(f"{path} is refused")

    harness.objects.get = refuse
    await harness.written(harness.archiver().step())
    (line,) = await archive_messages(harness)
    assert "is refused" in line


async def test_each_log_that_waits_long_for_the_archive_tells_so() -> None:
    """Each log that waits long for the archive reports it, also a log whose copy was not tried because others failed
    first."""
    harness = ArchiverHarness()
    others = [an_ended(harness, number, ago_s=0.0) for number in range(20)]
    running = [
        msgspec.structs.replace(each, status=msgspec.structs.replace(each.status, phase=Phase.RUNNING, ended_at=None))
        for each in others
    ]
    harness.show(*running)
    archiver = harness.archiver()
    await archiver.step()
    for each in running:
        pack = a_pack(id_of(each), [LogLine(attempt=1, rank=0, time="t", text="x")])
        await harness.streams.logs.append([pack])
        archiver.note_stored(pack)
    harness.objects.is_away = True
    for _ in range(2):
        harness.clock.ahead_s += 60
        await harness.written(archiver.step())
    assert [len(await archive_messages(harness, id_of(each))) for each in running] == [1] * 20


async def test_a_copy_without_lines_is_no_answer_of_the_archive() -> None:
    """A copy without lines does not call the archive, so the archive is still away for pods that wait for another
    log."""
    harness = ArchiverHarness()
    silent = an_ended(harness, 1, ago_s=0.0)
    harness.show(harness.allocation, silent)
    archiver = harness.archiver()
    await archiver.step()
    await harness.print(20, archiver)
    harness.objects.is_away = True
    harness.clock.ahead_s += 31
    await archiver.step()
    assert archiver.is_archived(harness.id, "uid")


async def test_an_archive_that_was_away_gets_what_the_stream_still_has() -> None:
    """An archive that was away gets the lines that the stream still has; the numbers show which lines the stream
    dropped."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    harness.objects.is_away = True
    await archiver.step()
    for _ in range(50):
        await harness.print(20, archiver, share=2_000)
    harness.objects.is_away = False
    harness.clock.ahead_s += 60
    await archiver.step()
    found = await harness.numbers()
    assert found == sorted(set(found))
    assert found[-1] == 1_000
    assert len(found) < 1_000


async def test_lines_of_a_copy_that_failed_are_copied_later() -> None:
    """Lines of a failed copy are copied later, whether the write of the record, of a piece, or the reading of the
    stream failed."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    await archiver.step()
    await harness.print(20, archiver)
    harness.objects.is_away = True
    harness.clock.ahead_s += 60
    await archiver.step()
    harness.objects.is_away = False
    harness.clock.ahead_s += 60
    await archiver.step()
    assert await harness.numbers() == list(range(1, 21))
    await harness.print(1_500, archiver)
    source, pages = harness.streams.logs, list[str | None]()
    page = source.page

    async def torn(allocation: AllocationId, *, after: str | None = None) -> list[StoredLine]:
        pages.append(after)
        if len(pages) == 2:
            raise UnavailableError("no Redis today")
        return await page(allocation, after=after)

    source.page = torn
    for _ in range(2):
        harness.clock.ahead_s += 60
        await archiver.step()
    assert len(pages) > 2
    assert await harness.numbers() == list(range(1, 1_521))


async def test_lines_that_are_numbered_anew_are_archived() -> None:
    """When the stream was emptied and the node has only its newest file, lines get new numbers: archived lines are
    recognized by their times."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    texts = {
        number: LogLine(attempt=1, rank=0, time=f"2026-01-02T03:04:{number:02}Z", text=f"{number}")
        for number in range(40)
    }
    await harness.streams.logs.append([a_pack(harness.id, [texts[number] for number in range(30)])])
    await archiver.step()
    for each in (archiver, harness.archiver()):
        harness.server.flush()
        pack = a_pack(harness.id, [texts[number] for number in range(25, 35 if each is archiver else 40)])
        await harness.streams.logs.append([pack])
        each.note_stored(pack)
        harness.clock.ahead_s += 60
        await each.step()
    assert [each.line.text for each in await harness.archived()] == [f"{number}" for number in range(40)]


async def test_the_log_of_an_object_that_is_deleted_while_the_archive_is_away_is_archived() -> None:
    """The log of an allocation that is deleted while the archive is away is archived later, because the stream still
    has its lines."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    harness.objects.is_away = True
    await archiver.step()
    await harness.print(20, archiver)
    await end_logs(harness.streams, harness.id)
    harness.show()
    harness.clock.ahead_s += 60
    await archiver.step()
    harness.objects.is_away = False
    for _ in range(2):
        harness.clock.ahead_s += 60
        await archiver.step()
    assert await harness.numbers() == list(range(1, 21))
    record = await harness.archive.record(harness.id)
    assert record is not None
    assert record.ended_at


async def test_a_flood_waits_for_the_copy() -> None:
    """A flood pauses before the stream would drop lines that are not archived; a copy lets it continue."""
    harness = ArchiverHarness()
    archiver = harness.archiver()
    await archiver.step()
    await harness.print(200, archiver, share=2_000)
    lines = [LogLine(attempt=1, rank=0, time="t", text="x" * 100)]
    async with TaskGroup() as tasks:
        waiting = tasks.create_task(archiver.wait_for_room(a_pack(harness.id, lines, after=200, share=2_000)))
        await asyncio.sleep(0)
        assert not waiting.done()
        await archiver.step()
    assert await harness.numbers() == list(range(1, 201))


async def test_what_was_kept_long_enough_is_deleted_unless_its_object_is_there() -> None:
    """Archives past their retention are deleted unless their allocation exists: pieces first, then the record. Younger
    ones stay."""
    harness = ArchiverHarness()
    archiver = harness.archiver(days=7)
    await harness.print(20)
    await end_logs(harness.streams, harness.id)
    harness.end()
    await archiver.step()
    harness.clock.ahead_s += 5
    await archiver.step()
    harness.clock.ahead_s += 8 * DAY_S
    await archiver.expire()
    assert await harness.archive.record(harness.id) is not None
    harness.show()
    harness.clock.ahead_s -= 3 * DAY_S
    await archiver.expire()
    assert await harness.archive.record(harness.id) is not None
    harness.clock.ahead_s += 3 * DAY_S
    await archiver.expire()
    assert harness.objects.objects == {}


def an_ended(harness: ArchiverHarness, number: int, *, ago_s: float) -> Allocation:
    """Another allocation, which ended `ago_s` seconds ago."""
    base = harness.allocation
    meta = msgspec.structs.replace(base.metadata, name=f"old-{number}", uid=f"{number:08x}-0000-0000-0000-000000000000")
    ended_at = format_time(harness.clock.now() - ago_s)
    status = msgspec.structs.replace(base.status, phase=Phase.TERMINATED, ended_at=ended_at)
    return msgspec.structs.replace(base, metadata=meta, status=status)


async def archive_one(harness: ArchiverHarness, count: int) -> AllocationId:
    """Archive the harness's allocation to its end and remove it; the next one has another name."""
    id_ = harness.id
    await harness.print(count)
    await end_logs(harness.streams, id_)
    harness.end()
    archiver = harness.archiver()
    await archiver.step()
    harness.clock.ahead_s += 5
    await archiver.step()
    record = await harness.archive.record(id_)
    assert record is not None
    assert record.ended_at
    harness.show()
    return id_


async def test_beyond_its_bound_the_oldest_logs_go_and_readers_are_told() -> None:
    """Beyond the bound the oldest logs are deleted, whatever their names, and readers are told; the newest logs stay
    whole. The record of a deleted log stays for its retention."""
    harness = ArchiverHarness()
    ids = list[AllocationId]()
    for number in (2, 0, 1):
        meta = msgspec.structs.replace(
            harness.allocation.metadata, name=f"train-{number}", uid=f"{number:08x}-0000-0000-0000-000000000000"
        )
        harness.allocation = msgspec.structs.replace(harness.allocation, metadata=meta)
        harness.id, harness.number = id_of(harness.allocation), 0
        harness.show(harness.allocation)
        ids.append(await archive_one(harness, 500))
        harness.clock.ahead_s += 60
    size = sum(len(data) for path, data in harness.objects.objects.items() if "/logs/" in path)
    await harness.archiver(bytes_max=size * 2 // 3 + 10).expire()
    assert [bool(await harness.archive.starts("team", each)) for each in ids] == [False, True, True]
    bare = ArchiverHarness(harness.objects)
    reader = ArchivedLogs(bare.streams.logs, harness.archive, bare.clock)
    for found in (await reader.read(ids[0]), await reader.tail(ids[0], limit=5)):
        assert [line.line.stream for line in found] == [EVENT]
        assert "SLIPWAY_LOG_ARCHIVE_BYTES_MAX" in found[0].line.text
    assert len(await reader.read(ids[1], limit=1_000)) == 500
    harness.clock.ahead_s += 31 * DAY_S
    await harness.archiver(days=30).expire()
    assert await harness.archive.record(ids[0]) is None


async def test_the_log_of_what_runs_never_goes() -> None:
    """The log of a running allocation is never deleted, whatever the bound is."""
    harness = ArchiverHarness()
    await harness.print(100)
    await harness.archiver().step()
    await harness.archiver(bytes_max=1).expire()
    assert await harness.numbers() == list(range(1, 101))


async def test_a_log_that_is_being_closed_does_not_go() -> None:
    """Its end would be written over the note that it went, and its last lines would stay without the others."""
    harness = ArchiverHarness()
    archiver = harness.archiver(bytes_max=1)
    await harness.print(100)
    await archiver.step()
    harness.end()
    await archiver.expire()
    assert await harness.numbers() == list(range(1, 101))
    await end_logs(harness.streams, harness.id)
    for _ in range(2):
        harness.clock.ahead_s += 601
        await archiver.step()
    await archiver.expire()
    record = await harness.archive.record(harness.id)
    assert record is not None
    assert record.ended_at
    assert record.dropped_at
    assert await harness.numbers() == []


async def test_an_old_log_is_not_deleted_while_it_is_copied() -> None:
    """Its object is gone, and it was created long ago: its age counts from its end, which is not on record yet."""
    harness = ArchiverHarness()
    created_at = format_time(harness.clock.now() - 30 * DAY_S)
    meta = msgspec.structs.replace(harness.allocation.metadata, creation_timestamp=created_at)
    harness.show(msgspec.structs.replace(harness.allocation, metadata=meta))
    archiver = harness.archiver(days=7)
    await harness.print(20)
    await archiver.step()
    await harness.print(20, archiver)
    harness.show()
    await archiver.step()
    await archiver.expire()
    for _ in range(2):
        harness.clock.ahead_s += 61
        await archiver.step()
    assert await harness.numbers() == list(range(1, 41))
    await archiver.expire()
    assert await harness.archive.record(harness.id) is not None


async def test_a_reader_that_knew_a_log_is_told_that_it_went() -> None:
    """A reader that found pieces of a log before is told that the log was deleted."""
    harness = ArchiverHarness()
    id_ = await archive_one(harness, 100)
    bare = ArchiverHarness(harness.objects)
    reader = ArchivedLogs(bare.streams.logs, harness.archive, bare.clock)
    await reader.positions(id_)
    await harness.archiver(bytes_max=1).expire()
    await reader.read(id_)
    (mark,) = await reader.read(id_)
    assert "was deleted early, on" in mark.line.text


async def test_what_had_ended_before_is_looked_at_at_a_bounded_rate() -> None:
    """Ended allocations are checked at a bounded rate, however many are retained: running ones are copied in the first
    step, and the archive is not called for all."""
    harness = ArchiverHarness()
    harness.show(harness.allocation, *(an_ended(harness, number, ago_s=3600.0 + number) for number in range(500)))
    await harness.print(20)
    asked = list[str]()
    get = harness.objects.get

    async def counted(path: str) -> bytes | None:
        asked.append(path)
        return await get(path)

    harness.objects.get = counted
    archiver = harness.archiver()
    await archiver.step()
    assert await harness.numbers() == list(range(1, 21))
    assert len(asked) <= 20
    assert any("old-0-" in path for path in asked), "the youngest come first"
    await archiver.step()
    assert len(asked) <= 20, "not again within a second"


async def test_what_the_stream_cannot_have_any_more_is_not_asked_for() -> None:
    """The archive is not called for an allocation that ended longer ago than its stream lives: it was archived in time,
    or its lines are gone."""
    harness = ArchiverHarness()
    harness.show(*(an_ended(harness, number, ago_s=8 * DAY_S) for number in range(50)))
    harness.objects.is_away = True
    archiver = harness.archiver()
    await archiver.step()
    assert archiver.is_archived(id_of(an_ended(harness, 0, ago_s=8 * DAY_S)), "uid")
    harness.objects.is_away = False
    assert harness.objects.objects == {}
