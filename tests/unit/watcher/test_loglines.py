"""Chunks of a log become lines: each once, whatever the chunks, and also when the log is read again."""

from hypothesis import given
from hypothesis import strategies as st

from slipway.streams.logpacks import LogPosition
from slipway.watcher.loglines import TEXT_BYTES_MAX, LineSplitter, normal_time

BEGINNING = LogPosition()
texts = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=20)


def at(nanos: int) -> str:
    return f"2026-01-02T03:04:{nanos // 10**9:02d}.{nanos % 10**9:09d}Z"


def a_log(stamped: list[tuple[int, str]]) -> bytes:
    return b"".join(f"{at(nanos)} {text}\n".encode() for nanos, text in stamped)


def cut(log: bytes, position: LogPosition = BEGINNING, size: int = 7) -> tuple[list[str], LineSplitter]:
    cutter = LineSplitter(position)
    found = [line for start in range(0, len(log), size) for line in cutter.feed(log[start : start + size])]
    return [line.decode("utf-8", "replace").partition(" ")[2] for line in found], cutter


def since(log: bytes, position: LogPosition) -> bytes:
    """The answer of a node to a request from the position's second on."""
    rows = log.splitlines(keepends=True)
    return b"".join(row for row in rows if row[:19].decode() >= position.second[:19])


@given(st.lists(st.tuples(st.integers(0, 5 * 10**9), texts), max_size=30), st.integers(1, 50), st.integers(0, 30))
def test_a_log_that_is_read_again_goes_on_after_the_last_line(
    stamped: list[tuple[int, str]], size: int, count: int
) -> None:
    """A second reader continues after the last line without repeats or gaps, wherever the first one stopped, also when
    lines have equal times."""
    rising = sorted(stamped, key=lambda each: each[0])
    log, expected = a_log(rising), [text for _, text in rising]
    before, cutter = cut(a_log(rising[:count]), size=size)
    position = cutter.position(len(before))
    after, again = cut(since(log, position) if position.second else log, position, size)
    assert before + after == expected
    assert not again.is_torn


def test_lines_out_of_their_order_come_once() -> None:
    """Two writers stamp the two streams of a container, so a line may be older than the line before it; it is still
    read once."""
    log = a_log([(10, "a"), (30, "b"), (20, "c"), (2 * 10**9, "d"), (1, "late"), (2 * 10**9 + 1, "e")])
    whole, cutter = cut(log)
    again, _ = cut(since(log, cutter.position(6)), cutter.position(6))
    assert (whole, again) == (["a", "b", "c", "d", "late", "e"], [])


def test_a_node_that_has_removed_the_beginning_hides_nothing() -> None:
    """When a node has removed the beginning, lines that are all newer than the last known one are all new, and the
    reader knows that some may be missing before them."""
    _, cutter = cut(a_log([(number, str(number)) for number in range(5)]))
    found, again = cut(a_log([(50, "x"), (51, "y")]), cutter.position(5))
    assert (found, again.is_torn) == (["x", "y"], True)


def test_the_rate_of_a_log_is_that_of_its_first_second() -> None:
    """The rate of a log is the number of bytes, as stored on the node, in the second after its first line. A log that
    is read from a later position has no rate."""
    log = a_log([(10**9, "a"), (2 * 10**9, "b"), (2 * 10**9 + 10**6, "later"), (10**9 + 5, "late")])
    _, cutter = cut(log[: len(a_log([(10**9, "a"), (2 * 10**9, "b")]))])
    assert (cutter.first, cutter.first_second_bytes) == (at(10**9), 2 * len(f"{at(0)} a"))
    assert not cutter.is_first_second_over
    _, cutter = cut(log)
    assert cutter.is_first_second_over
    _, again = cut(since(log, cutter.position(4)), cutter.position(4))
    assert (again.first, again.first_second_bytes, again.is_first_second_over) == ("", 0, False)


def test_a_progress_bar_becomes_its_newest_state() -> None:
    """A progress bar yields its newest state while its line is incomplete; at the end of the line only the part that
    was not shown yet follows."""
    cutter = LineSplitter(BEGINNING)
    assert cutter.feed(f"{at(1)} \r 1%\r 2%".encode()) == []
    assert cutter.is_open
    assert cutter.progress() == [f"{at(1)}  2%".encode()]
    assert cutter.progress() == []
    assert cutter.feed(b"\r 3%\n") == [f"{at(1)}  3%".encode()]
    assert cutter.feed(f"{at(2)} \r 9%".encode()) == []
    assert cutter.progress() == [f"{at(2)}  9%".encode()]
    assert cutter.feed(f"\n{at(3)} after\r\n".encode()) == [f"{at(3)} after".encode()]


def test_a_long_progress_bar_is_not_held_whole() -> None:
    """A progress bar takes no more memory than its newest state, however long it runs."""
    cutter = LineSplitter(BEGINNING)
    cutter.feed(f"{at(1)} ".encode())
    for number in range(20_000):
        cutter.feed(b"\rstep %d of many" % number)
    assert cutter.feed(b"\n") == [f"{at(1)} step 19999 of many".encode()]


def test_a_long_line_says_what_was_cut() -> None:
    """A long line becomes its beginning, the number of missing bytes, and its end, in one chunk or in many."""
    text = b"begin" + b"x" * 1_000_000 + b"finish"
    for size in (len(text) + 100, 10_000):
        [line], _ = cut(f"{at(1)} ".encode() + text + b"\n", size=size)
        head, _, rest = line.partition(" [... ")
        missing, _, tail = rest.partition(" bytes of this line are not kept ...] ")
        assert (line[:5], line[-6:]) == ("begin", "finish")
        assert len(head) + int(missing) + len(tail) == len(text)
        assert len(line) < TEXT_BYTES_MAX + 100


def test_a_last_line_without_an_end_comes_at_the_end() -> None:
    """The last line of a program is complete at the end of the log, also without a line end."""
    found, cutter = cut(f"{at(1)} one\n{at(2)} two".encode())
    assert (found, cutter.has_rest) == (["one"], True)
    assert cutter.end() == [f"{at(2)} two".encode()]


def test_a_part_of_a_time_at_the_end_is_no_line() -> None:
    """A part of a time at the end of a response is no line, because the response was cut there; a whole time is an
    empty line."""
    for part in range(1, len(at(2))):
        _, cutter = cut(f"{at(1)} one\n{at(2)[:part]}".encode())
        assert cutter.end() == []
    _, cutter = cut(f"{at(1)} one\n{at(2)}".encode())
    assert cutter.end() == [f"{at(2)} ".encode()]


def test_what_a_node_says_without_a_time_is_kept() -> None:
    """A line of the node without a time is kept, with the time of the line before it."""
    found, _ = cut(f"{at(1)} one\nunable to read the rest\n".encode())
    assert found == ["one", "unable to read the rest"]


def test_times_become_comparable() -> None:
    """Times become UTC with nine digits; text that is no time becomes empty."""
    for stamp, expected in (
        (b"2026-01-02T03:04:05Z", b"2026-01-02T03:04:05.000000000Z"),
        (b"2026-01-02T03:04:05.5Z", b"2026-01-02T03:04:05.500000000Z"),
        (b"2026-01-02T03:04:05.123456789+02:00", b"2026-01-02T01:04:05.123456789Z"),
        (b"2026-01-02T03:04:05.1234567891Z", b"2026-01-02T03:04:05.123456789Z"),
        (b"2026-13-02T03:04:05Z", b""),
        (b"0001-01-01T00:00:00+14:00", b""),
        (b"9999-12-31T23:59:59-14:00", b""),
        (b"yesterday", b""),
    ):
        assert normal_time(stamp) == expected, stamp
