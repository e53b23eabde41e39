"""Logs in the store: every line once, first and last lines stored, and missing lines counted."""

import itertools
from collections.abc import Sequence
from contextlib import aclosing

import msgspec

from slipway.streams import keys
from slipway.streams.logpacks import EVENT, GapFinder, LogKey, LogLine, LogPack, LogPosition, StoredLine
from slipway.streams.ports import Streams
from tests.support.logs import a_pack, end_logs
from tests.support.redis import Backend, an_id

TIME = "2026-01-02T03:04:05.000000001Z"
SMALL = 6_000


def lines(count: int, *, rank: int = 0, start: int = 1, attempt: int = 1) -> list[LogLine]:
    return [
        LogLine(attempt=attempt, rank=rank, time=TIME, text=f"line {number} of {rank}")
        for number in range(start, start + count)
    ]


async def numbers(streams: Streams, *, rank: int = 0, attempt: int = 1) -> list[int]:
    stored = await streams.logs.read(an_id(), limit=100_000)
    return [each.line.number for each in stored if (each.line.rank, each.line.attempt) == (rank, attempt)]


async def write_many(streams: Streams, packs: int, *, rank: int = 0, share: int = SMALL, attempt: int = 1) -> int:
    """Write that many packs of twenty lines and return the number of the last line."""
    for place in range(packs):
        some = lines(20, rank=rank, start=place * 20 + 1, attempt=attempt)
        [answer] = await streams.logs.append([a_pack(an_id(), some, after=place * 20, share=share)])
        assert answer.is_appended
    return packs * 20


async def test_a_pack_is_stored_once(streams: Streams) -> None:
    """A writer that missed the answer sends the pack again, and learns that it is stored."""
    pack = a_pack(an_id(), lines(3))
    [first], [second] = await streams.logs.append([pack]), await streams.logs.append([pack])
    assert (first.is_appended, second.is_appended) == (True, False)
    assert first.position == second.position
    assert await numbers(streams) == [1, 2, 3]


async def test_a_log_goes_on_behind_a_foreign_entry(streams: Streams, backend: Backend) -> None:
    """An entry with a later id, as from a clock that was ahead, does not block a log."""
    await backend.add_raw(keys.logs(an_id()), "9999999999999-7", {"v": b"?"})
    for after in (0, 3):
        [answer] = await streams.logs.append([a_pack(an_id(), lines(3, start=after + 1), after=after)])
        assert answer.is_appended
    stored = await streams.logs.read(an_id())
    assert [each.line.number for each in stored] == [1, 2, 3, 4, 5, 6]
    assert stored[0].cursor > "9999999999999-7"


async def test_of_two_writers_one_goes_on(streams: Streams) -> None:
    """A writer that is behind gets the position of the log, and stores nothing."""
    await streams.logs.append([a_pack(an_id(), lines(3))])
    [ahead, behind] = await streams.logs.append(
        [a_pack(an_id(), lines(2, start=4), after=3), a_pack(an_id(), lines(5, start=4), after=3)]
    )
    assert (ahead.is_appended, behind.is_appended, behind.position.number) == (True, False, 5)
    assert await numbers(streams) == [1, 2, 3, 4, 5]


async def test_a_writer_from_before_a_flush_does_not_append_behind_a_restored_log(
    streams: Streams, backend: Backend
) -> None:
    """After the flush a number may mean another line: a progress bar has fewer lines when it is read after its end."""
    before = a_pack(an_id(), lines(8))
    await streams.logs.append([before])
    late = a_pack(an_id(), lines(1, start=9), after=8)
    await backend.flush()
    again = msgspec.structs.replace(before, position=msgspec.structs.replace(before.position, seen=9))
    [told], [behind] = await streams.logs.append([again]), await streams.logs.append([late])
    assert (told.is_appended, behind.is_appended, behind.position) == (True, False, told.position)
    assert await numbers(streams) == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_position_is_kept_with_the_lines(streams: Streams) -> None:
    """Another process continues from exactly that position."""
    source = LogKey(attempt=1, rank=0, container="side/car")
    position = LogPosition(number=1, second="2026-01-02T03:04:05Z", seen=7, time=TIME, first_end=1)
    line = LogLine(attempt=1, rank=0, container="side/car", time=TIME, text="x")
    pack = msgspec.structs.replace(a_pack(an_id(), [line]), position=position)
    await streams.logs.append([pack])
    assert await streams.logs.position(an_id(), source) == position
    assert await streams.logs.positions(an_id()) == {source: position}
    await end_logs(streams, an_id())
    assert (await streams.logs.position(an_id(), source)).is_ended
    assert await streams.logs.position(an_id("other"), source) == LogPosition()


async def test_a_store_that_lost_its_lines_is_filled_from_the_beginning(streams: Streams, backend: Backend) -> None:
    """A pack in the middle of a missing log is refused: its writer begins again."""
    await backend.flush()
    [answer] = await streams.logs.append([a_pack(an_id(), lines(2, start=9), after=8)])
    assert (answer.is_appended, answer.position.number) == (False, 0)


async def test_a_log_whose_place_was_lost_goes_on_behind_its_lines(streams: Streams, backend: Backend) -> None:
    """The new ids are above the stored ones, also in the same millisecond, so repeated lines are not refused."""
    await streams.logs.append([a_pack(an_id(), lines(3))])
    await backend.lose_key(keys.log_state(an_id()))
    answers = await streams.logs.append([a_pack(an_id(), lines(3)), a_pack(an_id(), lines(2, start=4), after=3)])
    assert [answer.is_appended for answer in answers] == [True, True]
    assert await numbers(streams) == [1, 2, 3, 1, 2, 3, 4, 5]


async def test_first_and_last_lines_stay(streams: Streams, backend: Backend) -> None:
    """A log beyond its share loses lines in the middle, and its position shows which ones."""
    last = await write_many(streams, 120)
    kept = await numbers(streams)
    position = await streams.logs.position(an_id(), LogKey(attempt=1, rank=0))
    holes = [(low, high) for low, high in itertools.pairwise(kept) if high != low + 1]
    assert (kept[0], kept[-1], position.number) == (1, last, last)
    assert holes == [(position.first_end, position.kept_from)]
    assert await backend.ttl_s(keys.log_packs(an_id())) is not None


async def test_a_flood_of_one_rank_evicts_no_line_of_another(streams: Streams) -> None:
    """Each log has its own limit."""
    await streams.logs.append([a_pack(an_id(), lines(30, rank=1), share=SMALL)])
    await write_many(streams, 120, rank=0)
    assert await numbers(streams, rank=1) == list(range(1, 31))


async def test_an_attempt_before_the_last_gives_up_room(streams: Streams) -> None:
    """Restarts do not add up: two attempts are complete, of earlier ones the first and the last lines remain."""
    share = 200_000
    for attempt in (1, 2):
        await write_many(streams, 900, share=share, attempt=attempt)
    before = len(await numbers(streams, attempt=1))
    await streams.logs.append([a_pack(an_id(), lines(1, attempt=3), share=share)])
    after = await numbers(streams, attempt=1)
    assert before > len(after) > 20
    assert (after[0], after[-1]) == (1, 18_000)


async def test_what_the_writer_left_out_is_a_gap(streams: Streams) -> None:
    """The numbers continue behind the gap; a position may also move without a line."""
    await streams.logs.append([a_pack(an_id(), lines(2))])
    await streams.logs.append([a_pack(an_id(), lines(1, start=10), after=2, first=10)])
    marks = marks_of(await streams.logs.read(an_id()), GapFinder({}, is_whole=True))
    assert marks == [(3, 7)]


async def test_a_reader_in_the_middle_finds_the_gap_that_the_store_made(streams: Streams) -> None:
    """A reader that begins behind the gap, or resumes within the stored lines, sees no gap."""
    await write_many(streams, 120)
    stored = await streams.logs.read(an_id(), limit=100_000)
    positions = await streams.logs.positions(an_id())
    [position] = positions.values()
    gap = (position.first_end + 1, position.kept_from - position.first_end - 1)
    first = next(place for place, each in enumerate(stored) if each.line.number == position.kept_from)
    for start, expected in ((0, [gap]), (first, [gap]), (first + 1, [])):
        assert marks_of(stored[start:], GapFinder(positions, is_whole=False)) == expected, start


def marks_of(stored: Sequence[StoredLine], gaps: GapFinder) -> list[tuple[int, int]]:
    found = [gaps.before(each.line) for each in stored]
    return [(mark.number, mark.missing) for mark in found if mark is not None]


async def test_cursors_stand_within_a_pack(streams: Streams) -> None:
    """Reading and following resume after any line, also within a pack."""
    await streams.logs.append([a_pack(an_id(), lines(5))])
    await streams.logs.append([a_pack(an_id(), lines(5, start=6), after=5)])
    whole = await streams.logs.read(an_id())
    assert [each.cursor for each in whole] == sorted({each.cursor for each in whole}, key=_order)
    for place in (0, 2, 4, 7):
        rest = await streams.logs.read(an_id(), after=whole[place].cursor)
        assert [each.line.number for each in rest] == list(range(place + 2, 11))
        async with aclosing(streams.logs.follow(an_id(), after=whole[place].cursor)) as pages:
            assert (await anext(pages))[0].line.number == place + 2
    assert [each.line.number for each in await streams.logs.tail(an_id(), limit=7)] == list(range(4, 11))


def _order(cursor: str) -> tuple[int, ...]:
    return tuple(map(int, cursor.split("-")))


async def test_an_event_is_said_once_for_each_count(streams: Streams) -> None:
    """A repeated read of the same Event adds no line."""

    def said(count: int) -> LogPack:
        line = LogLine(attempt=1, rank=0, stream=EVENT, time=TIME, text=f"pulled {count}")
        return msgspec.structs.replace(a_pack(an_id(), [line]), key="uid-1", count=count)

    answers = [(await streams.logs.append([said(count)]))[0].is_appended for count in (1, 1, 3, 2, 3)]
    assert answers == [True, False, True, False, False]
    stored = [each.line for each in await streams.logs.read(an_id())]
    assert [(line.text, line.number) for line in stored] == [("pulled 1", 0), ("pulled 3", 0)]


async def test_hostile_text_survives(streams: Streams) -> None:
    """Any text that a task prints is stored."""
    nasty = "\x00\r\x1b[31m{}🦑 \x1f" + "x" * 16_000
    await streams.logs.append([a_pack(an_id(), [LogLine(attempt=1, rank=0, time=TIME, text=nasty)])])
    [stored] = await streams.logs.read(an_id())
    assert stored.line.text == nasty
