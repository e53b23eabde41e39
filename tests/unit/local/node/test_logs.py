"""The files of a container's log."""

from pathlib import Path

import pytest

from slipway.local.node.logs import FILES, KEPT_BYTES, LINE_BYTES, ContainerLog, LogQuery, log_end, normal_time, read
from tests.support.clock import FakeClock


async def text_of(folder: Path, **query: object) -> str:
    return b"".join([chunk async for chunk in read(folder, LogQuery(**query))]).decode()  # pyright: ignore


def count_files(folder: Path) -> int:
    return len(list(folder.iterdir()))


async def test_lines_have_times_that_rise_though_the_clock_stands(tmp_path: Path):
    """The times of lines rise while the clock stands still, and when it goes back."""
    clock = FakeClock()
    writer = ContainerLog(tmp_path, clock)
    writer.feed("stdout", b"a\nb\n")
    clock.advance(-5)
    writer.feed("stderr", b"c\n")
    writer.close()
    lines = (tmp_path / "0.log").read_text().splitlines()
    times = [line.split()[0] for line in lines]
    assert times == sorted(set(times))
    assert [line.split()[1:] for line in lines] == [["stdout", "F", "a"], ["stdout", "F", "b"], ["stderr", "F", "c"]]


async def test_a_line_is_whole_when_its_end_comes(tmp_path: Path):
    """A line is complete when its end arrives: pieces are joined per stream, and the last line may have no end."""
    writer = ContainerLog(tmp_path, FakeClock())
    writer.feed("stdout", b"hel")
    writer.feed("stderr", b"oops\n")
    writer.feed("stdout", b"lo\nrest")
    assert await text_of(tmp_path) == "oops\nhello\n"
    writer.close()
    assert await text_of(tmp_path) == "oops\nhello\nrest"


async def test_a_long_line_is_joined_again(tmp_path: Path):
    """A long line is joined again, also when times are requested: it has one time."""
    writer = ContainerLog(tmp_path, FakeClock())
    writer.feed("stdout", b"x" * (LINE_BYTES * 2 + 5) + b"\n")
    writer.close()
    assert await text_of(tmp_path) == "x" * (LINE_BYTES * 2 + 5) + "\n"
    assert (await text_of(tmp_path, timestamps=True)).count("Z ") == 1


@pytest.mark.parametrize("times", [True, False])
async def test_lines_beside_a_progress_bar_are_lines_of_their_own(tmp_path: Path, times: bool):
    """A line of another stream ends the line of a progress bar, which continues after it; each line has its own
    time."""
    writer = ContainerLog(tmp_path, FakeClock())
    for number in range(2):
        writer.feed("stderr", b"\r%d: 10%%" % number)
        writer.feed("stderr", b"\r%d: 50%%" % number)
        writer.feed("stdout", b"loss\n")
        writer.feed("stderr", b"\r%d: 90%%\n" % number)
    writer.close()
    lines = (await text_of(tmp_path, timestamps=times)).split("\n")
    shown = [line.partition(" ")[2] if times else line for line in lines if line]
    assert shown == [
        *("\r0: 10%\r0: 50%", "loss", "\r0: 90%"),
        *("\r1: 10%\r1: 50%", "loss", "\r1: 90%"),
    ]
    assert not times or all(normal_time(line.partition(" ")[0]) for line in lines if line)


async def test_old_files_go(tmp_path: Path):
    """Old files are removed: the size is bounded, and the newest lines are kept."""
    writer = ContainerLog(tmp_path, FakeClock(), file_bytes=1000)
    for number in range(200):
        writer.feed("stdout", b"line %d\n" % number)
    writer.close()
    assert count_files(tmp_path) <= FILES
    lines = (await text_of(tmp_path)).splitlines()
    assert lines[-1] == "line 199"
    assert lines == [f"line {number}" for number in range(200 - len(lines), 200)]


async def test_a_reader_finds_each_line_while_files_begin_and_end(tmp_path: Path):
    """A reader finds each line while files begin and end, also in a flood that it reads in many parts."""
    writer = ContainerLog(tmp_path, FakeClock(), file_bytes=400_000)
    count, found = 30_000, list[bytes]()
    for number in range(count // 2):
        writer.feed("stdout", b"line %d %s\n" % (number, b"x" * 100))
    async for chunk in read(tmp_path, LogQuery(follow=True), writer):
        found.append(chunk)
        if len(found) == 1:
            for number in range(count // 2, count):
                writer.feed("stdout", b"line %d %s\n" % (number, b"x" * 100))
            writer.close()
    numbers = [int(line.split()[1]) for line in b"".join(found).splitlines()]
    assert numbers == list(range(count))
    assert len(found) > 10


async def test_a_reader_that_is_late_is_told_what_was_removed(tmp_path: Path):
    """A late reader gets a note in place of the removed lines, with what the node keeps; the newest lines follow."""
    writer = ContainerLog(tmp_path, FakeClock(), file_bytes=1000)
    writer.feed("stdout", b"first\n")
    reading = read(tmp_path, LogQuery(follow=True, timestamps=True), writer)
    assert (await anext(reading)).endswith(b"first\n")
    for number in range(2_000):
        writer.feed("stdout", b"line %d\n" % number)
    writer.close()
    lines = b"".join([chunk async for chunk in reading]).decode().splitlines()
    assert lines[0].startswith("lines are missing here: up to ")
    assert lines[0].endswith(f"the node keeps {KEPT_BYTES // 2**20} MiB of a log")
    assert lines[-1].endswith(" line 1999")
    assert sum("missing" in line for line in lines) == 1


async def test_a_time_is_found_without_the_files_before_it(tmp_path: Path):
    """The lines since a time are the same, wherever the file of that time begins."""
    clock = FakeClock()
    writer = ContainerLog(tmp_path, clock, file_bytes=300)
    for number in range(30):
        clock.advance(1.0)
        writer.feed("stdout", b"line %d\n" % number)
    writer.close()
    whole = (await text_of(tmp_path, timestamps=True)).splitlines()
    for place in (0, 1, 7, 15, 29):
        assert (await text_of(tmp_path, timestamps=True, since=whole[place].split()[0])).splitlines() == whole[place:]


async def test_a_log_goes_on_after_a_restart_of_the_node(tmp_path: Path):
    """After a restart of the node a second writer appends to the log."""
    for word in (b"one\n", b"two\n"):
        writer = ContainerLog(tmp_path, FakeClock())
        writer.feed("stdout", word)
        writer.close()
    assert await text_of(tmp_path) == "one\ntwo\n"


async def test_a_limit_of_bytes_is_kept(tmp_path: Path):
    """A limit of bytes is kept exactly."""
    writer = ContainerLog(tmp_path, FakeClock())
    writer.feed("stdout", b"one\ntwo\n")
    writer.close()
    assert await text_of(tmp_path, limit_bytes=5) == "one\nt"
    assert await text_of(tmp_path, tail=0) == ""
    assert log_end(tmp_path) == "one\ntwo\n"


async def test_a_log_that_is_not_there_is_empty(tmp_path: Path):
    """A missing log is empty, as for a container that was never started."""
    assert await text_of(tmp_path / "no") == ""


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000000Z"),
        ("2026-01-02T03:04:05.12Z", "2026-01-02T03:04:05.120000000Z"),
        ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456789Z"),
        ("2026-01-02T05:04:05+02:00", "2026-01-02T03:04:05.000000000Z"),
    ],
)
def test_times_compare_as_text(given: str, normal: str):
    """Times of any zone can be compared as text, to the nanosecond."""
    assert normal_time(given) == normal


def test_a_time_that_is_none_is_refused():
    """An invalid time is refused before it is compared."""
    with pytest.raises(ValueError, match="RFC 3339"):
        normal_time("yesterday")
