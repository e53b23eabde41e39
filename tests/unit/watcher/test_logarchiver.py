"""The copy of streams to the archive of logs: whole, once, and in bounded time."""

import asyncio

from slipway.runtime.tasks import TaskGroup
from slipway.streams.logpacks import LogLine
from tests.support.archiver_scene import ArchiverScene
from tests.support.logs import a_pack, end_logs

DAY_S = 86_400.0


async def test_what_was_printed_is_archived_and_closed_at_the_end() -> None:
    """The record says how far each log goes, so that readers know that nothing follows."""
    scene = ArchiverScene()
    archiver = scene.archiver()
    await scene.print(50)
    await archiver.step()
    record = await scene.archive.record(scene.id)
    assert record is not None
    assert (record.workspace, record.ranks, record.ended_at) == ("team", 2, "")
    await scene.print(30, archiver)
    await end_logs(scene.streams, scene.id)
    scene.end()
    await archiver.step()
    scene.clock.ahead_s += 5
    await archiver.step()
    assert await scene.numbers() == list(range(1, 81))
    record = await scene.archive.record(scene.id)
    assert record is not None
    assert record.ended_at
    assert record.logs == {"1/0/stdout/": 80}


async def test_a_process_that_starts_goes_on_where_the_archive_ends() -> None:
    """Without a hole and without a doubled line."""
    scene = ArchiverScene()
    for _ in range(3):
        await scene.print(20)
        await scene.archiver().step()
    assert await scene.numbers() == list(range(1, 61))


async def test_of_two_processes_one_writes_each_piece() -> None:
    """Who comes second goes on behind it."""
    scene = ArchiverScene()
    first, second = scene.archiver(), scene.archiver()
    await scene.print(20)
    await asyncio.gather(first.step(), second.step())
    await scene.print(20, first)
    await scene.print(20, second)
    scene.clock.ahead_s += 60
    await asyncio.gather(first.step(), second.step())
    await second.step()
    assert await scene.numbers() == list(range(1, 61))


async def test_the_end_of_a_pod_waits_for_the_copy_and_not_for_ever() -> None:
    """Nor at all while the archive does not answer."""
    scene = ArchiverScene()
    archiver = scene.archiver()
    await archiver.step()
    await scene.print(20, archiver)
    assert not archiver.is_archived(scene.id, "uid")
    scene.clock.ahead_s += 11
    assert archiver.is_archived(scene.id, "uid")
    await archiver.step()
    await scene.print(20, archiver)
    assert not archiver.is_archived(scene.id, "uid")
    scene.objects.is_away = True
    await archiver.step()
    assert archiver.is_archived(scene.id, "uid")


async def test_an_archive_that_was_away_gets_what_the_stream_still_has() -> None:
    """Lines that the bound dropped meanwhile are missing by their numbers."""
    scene = ArchiverScene()
    archiver = scene.archiver()
    scene.objects.is_away = True
    await archiver.step()
    for _ in range(50):
        await scene.print(20, archiver, share=2_000)
    scene.objects.is_away = False
    scene.clock.ahead_s += 60
    await archiver.step()
    found = await scene.numbers()
    assert found == sorted(set(found))
    assert found[-1] == 1_000
    assert len(found) < 1_000


async def test_a_flood_waits_for_the_copy() -> None:
    """Before the stream would drop what is not archived; a copy lets it go on."""
    scene = ArchiverScene()
    archiver = scene.archiver()
    await archiver.step()
    await scene.print(200, archiver, share=2_000)
    lines = [LogLine(attempt=1, rank=0, time="t", text="x" * 100)]
    async with TaskGroup() as tasks:
        waiting = tasks.create_task(archiver.room(a_pack(scene.id, lines, after=200, share=2_000)))
        await asyncio.sleep(0)
        assert not waiting.done()
        await archiver.step()
    assert await scene.numbers() == list(range(1, 201))


async def test_what_was_kept_long_enough_is_deleted_unless_its_object_is_there() -> None:
    """Pieces first, then the record; what is younger stays."""
    scene = ArchiverScene()
    archiver = scene.archiver(days=7)
    await scene.print(20)
    await end_logs(scene.streams, scene.id)
    scene.end()
    await archiver.step()
    scene.clock.ahead_s += 5
    await archiver.step()
    scene.clock.ahead_s += 8 * DAY_S
    await archiver.expire()
    assert await scene.archive.record(scene.id) is not None
    scene.show()
    scene.clock.ahead_s -= 3 * DAY_S
    await archiver.expire()
    assert await scene.archive.record(scene.id) is not None
    scene.clock.ahead_s += 3 * DAY_S
    await archiver.expire()
    assert scene.objects.objects == {}
