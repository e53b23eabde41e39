"""When windows occur, by the clocks of a time zone; faults of a window, and doubts about several."""

from typing import Any

import pytest

from slipway.model.facts import WindowFact
from slipway.model.times import format_time, parse_time
from slipway.model.windows import fault_of, latest_end, notes_on, occurrence, occurrences

HOUR = 3600.0


def a_window(start: str, duration: float = HOUR, **more: Any) -> WindowFact:
    return WindowFact(name="w", start=parse_time(start), duration=duration, **more)


def starts(window: WindowFact, since: str, most: int) -> list[str]:
    return [format_time(each.start, "seconds") for each in occurrences(window, parse_time(since), 1e12, most)]


def test_a_window_occurs_once_where_it_does_not_repeat() -> None:
    """A window without a repeat occurs once: it is found before and during it, and not at its end."""
    window = a_window("2026-12-05T22:00:00+01:00")
    for at in ("2026-01-01T00:00:00Z", "2026-12-05T21:59:59Z"):
        found = occurrence(window, parse_time(at))
        assert found is not None
        assert (format_time(found.start, "seconds"), found.end - found.start) == ("2026-12-05T21:00:00Z", HOUR)
    assert occurrence(window, parse_time("2026-12-05T22:00:00Z")) is None


def test_a_repeat_keeps_its_time_of_day_when_clocks_change() -> None:
    """22:00 in Berlin is 21:00 UTC in winter and 20:00 UTC in summer; without a zone it is as many seconds later."""
    berlin = a_window("2026-03-21T22:00:00+01:00", every="Weekly", time_zone="Europe/Berlin")
    assert starts(berlin, "2026-03-20T00:00:00Z", 3) == [
        "2026-03-21T21:00:00Z",
        "2026-03-28T21:00:00Z",
        "2026-04-04T20:00:00Z",
    ]
    utc = a_window("2026-03-21T22:00:00+01:00", every="Weekly")
    assert starts(utc, "2026-04-01T00:00:00Z", 1) == ["2026-04-04T21:00:00Z"]


def test_a_time_of_day_that_the_clocks_skip_is_an_hour_later_and_one_that_they_repeat_is_the_first() -> None:
    """A time of day that the clocks skip is an hour later, and of a repeated one the first is used: on 29 March 2026
    there is no 02:30 in Berlin, on 25 October there are two."""
    spring = a_window("2026-03-28T02:30:00+01:00", every="Daily", time_zone="Europe/Berlin")
    assert starts(spring, "2026-03-28T00:00:00Z", 3)[1:] == ["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"]
    autumn = a_window("2026-10-24T02:30:00+02:00", every="Daily", time_zone="Europe/Berlin")
    assert starts(autumn, "2026-10-24T00:00:00Z", 3)[1:] == ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]


def test_no_occurrence_begins_after_until() -> None:
    """No occurrence begins after `until`; one that begins at that instant still occurs."""
    until = parse_time("2026-12-07T22:00:00Z")
    window = a_window("2026-12-05T22:00:00Z", every="Daily", until=until)
    assert len(occurrences(window, 0.0, 1e12, 10)) == 3


def test_a_window_that_cannot_be_understood_never_occurs() -> None:
    """An invalid window never occurs, so it reserves nothing."""
    assert occurrence(a_window("2026-12-05T22:00:00Z", invalid="timeZone: ..."), 0.0) is None


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ({"time_zone": "Mars/Base"}, "timeZone", "no time zone 'Mars/Base'"),
        ({"time_zone": "../etc/passwd"}, "timeZone", "no time zone"),
        ({"duration": 0.0}, "duration", "is 0"),
        ({"duration": 24 * HOUR, "every": "Daily"}, "duration", "repeats Daily lasts at most 23h"),
        ({"duration": 168 * HOUR, "every": "Weekly"}, "duration", "at most 6d23h"),
        ({"duration": 367 * 24 * HOUR}, "duration", "at most 366d"),
        ({"until": 1.0, "every": "Daily"}, "repeat/until", "before start"),
    ],
)
def test_a_fault_names_the_field_and_what_to_write(more: dict[str, Any], field: str, words: str) -> None:
    """Each fault names its field and what to write."""
    fault = fault_of(a_window("2026-12-05T22:00:00Z", **{"duration": HOUR, **more}))
    assert fault is not None
    assert fault[0] == field
    assert words in fault[1]


@pytest.mark.parametrize("start", ["0001-01-01T00:00:00Z", "0999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"])
@pytest.mark.parametrize("every", ["", "Daily", "Weekly"])
@pytest.mark.parametrize("time_zone", ["Pacific/Kiritimati", "America/Los_Angeles"])
def test_a_start_at_the_edge_of_the_calendar_is_a_fault(start: str, every: str, time_zone: str) -> None:
    """A start at the edge of the calendar is a fault, because its day in the window's time zone, or its end, may not
    exist."""
    fault = fault_of(a_window(start, every=every, time_zone=time_zone))
    assert fault is not None
    assert fault[0] == "start"
    assert "1000 to 8999" in fault[1]


@pytest.mark.parametrize("start", ["1000-01-01T00:00:00Z", "8999-12-31T23:59:59Z"])
@pytest.mark.parametrize("every", ["", "Daily", "Weekly"])
@pytest.mark.parametrize("time_zone", ["Pacific/Kiritimati", "America/Los_Angeles"])
def test_the_first_and_the_last_start_occur(start: str, every: str, time_zone: str) -> None:
    """The first and the last valid start occur, so a window without a fault can be computed."""
    window = a_window(start, every=every, time_zone=time_zone)
    assert fault_of(window) is None
    assert occurrence(window, window.start) is not None


def test_doubts_are_told_of_queues_nodes_and_windows_at_the_same_time() -> None:
    """An unknown queue, an unknown node, a selector without nodes, too many nodes, and two overlapping windows."""
    nodes = {f"n{index}": ({"rack": "a"}, 8) for index in range(4)}
    first = WindowFact(name="first", start=100.0, duration=10.0, queues=("ghost",), nodes=3)
    second = WindowFact(name="second", start=105.0, duration=10.0, gpus=64)
    third = WindowFact(name="third", start=105.0, duration=10.0, node_names=("n0", "n9"))
    fourth = WindowFact(name="fourth", start=500.0, duration=10.0, node_selector={"rack": "b"})
    alone = WindowFact(name="alone", start=900.0, duration=10.0, nodes=4)
    notes = notes_on([first, second, third, fourth, alone], {"default"}, nodes, 0.0)
    assert notes == {
        "first": ["the pool has no queue ghost; nothing may use the nodes for it"],
        "second": ["asks for 64 GPUs, and the nodes that match have 32; ask for fewer"],
        "third": ["the pool has no node n9"],
        "fourth": ["no node of the pool matches; it reserves nothing"],
    }
    more = notes_on([first, WindowFact(name="other", start=90.0, duration=20.0, nodes=2)], {"ghost"}, nodes, 0.0)
    assert more["first"] == ["it and other occur together and ask for 5 of 4 nodes; the later get fewer"]


def test_the_message_of_waiting_work_tells_by_when_it_would_have_to_end() -> None:
    """The message of waiting work contains the time by which the work would have to end, also in the middle of a
    sentence; from other messages nothing is read."""
    message = "0 of 1 nodes fit: ...; a maxRuntime that ends it by 2026-12-05T21:00:00Z would let it start now"
    assert latest_end(message) == parse_time("2026-12-05T21:00:00Z")
    assert latest_end("0 of 1 nodes fit") is None
    assert latest_end("a maxRuntime that ends it by noon") is None
