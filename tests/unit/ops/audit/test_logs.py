"""I27: the smallest logs that break it, and those that do not."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from slipway.crd.transitions import id_of
from slipway.ops.audit.check import audit
from slipway.ops.audit.evidence import LineRange, PrintedOutput, StoredLog
from slipway.ops.audit.logs import folded
from slipway.streams.logpacks import LogLine
from tests.support.history import BEGUN, History

LOST = ((0.0, BEGUN + 11.0),)
TEN = (LineRange(number=1, printed=1, count=10),)


def a_line(number: int, text: str, *, missing: int = 0) -> LogLine:
    """A line of the first rank."""
    return LogLine(attempt=1, rank=0, time="2026-01-01T00:00:00Z", text=text, number=number, missing=missing)


def reported(
    passages: Sequence[LineRange] | None = TEN,
    *,
    marks: Sequence[tuple[int, int]] | None = None,
    is_ended: bool = True,
    is_unread: bool = False,
    end: int | None = None,
    lines: int = 10,
    states: int = 0,
    ended_at: float = BEGUN + 10.0,
    fits: bool = True,
    is_lost: bool = False,
    ended_first: bool = False,
    more_starts: int = 0,
    is_deleted: bool = False,
    **known: Any,
) -> list[str]:
    """The violations of the log of a rank that printed this number of lines."""
    history = History()
    history.run()
    history.finish()
    uid, versions = next(iter(history.evidence().allocations.items()))
    name = str(id_of(versions[-1].allocation))
    printed = PrintedOutput(
        allocation=name,
        allocation_uid=uid,
        attempt=1,
        rank=0,
        lines=lines,
        states=states,
        ended_at=ended_at,
        fits=fits,
        is_lost=is_lost,
        ended_first=ended_first,
    )
    logs: list[StoredLog] = []
    if passages is not None:
        last = passages[-1].last_number if passages else 0
        log = StoredLog(
            allocation=name,
            attempt=1,
            rank=0,
            passages=passages,
            end=last if end is None else end,
            is_ended=is_ended,
            is_unread=is_unread,
        )
        logs.append(log)
        if marks is not None:
            logs.append(msgspec.structs.replace(log, marks=marks))
    starts = [printed] * more_starts
    if is_deleted:
        history.remove("allocations", "job")
    found = audit(history.evidence(logs=logs, printed=[printed, *starts], **known))
    assert {each.invariant for each in found} <= {"I27"}
    return [each.message for each in found]


def test_a_whole_log_breaks_nothing() -> None:
    """A whole log breaks nothing: all lines are at their places, and the log is marked as stored to its end, in the
    store and for a reader of the api."""
    assert reported() == []
    assert reported(marks=()) == []


def test_a_counted_gap_violates_nothing() -> None:
    """A counted gap breaks nothing: in a log larger than its share, lines are missing where the numbers jump, and
    readers get the count."""
    holed = (LineRange(number=1, printed=1, count=3), LineRange(number=8, printed=8, count=3))
    assert reported(holed, fits=False, marks=((4, 4),)) == []


def test_states_of_a_line_that_goes_on_have_more_than_one_number() -> None:
    """A progress bar is one line of its rank, and one line of the log for each state that was shown."""
    lines = ["line 1", "state 2 10%", "state 2 100%", "line 3"]
    passages = folded(a_line(number, text) for number, text in enumerate(lines, 1))
    assert [(each.printed, each.count) for each in passages] == [(1, 1), (2, 1), (2, 1), (3, 1)]
    assert reported(passages, lines=3, states=2) == []
    assert reported((LineRange(number=5, printed=4, count=2),), lines=5, states=2, store_losses=LOST) == []


@pytest.mark.parametrize(
    ("passages", "what"),
    [
        ((LineRange(number=1, printed=1, count=5), LineRange(number=5, printed=6, count=5)), "stored after"),
        ((LineRange(number=1, printed=1, count=5), LineRange(number=6, printed=5, count=6)), "is stored again"),
        ((LineRange(number=1, printed=1, count=5), LineRange(number=6, printed=7, count=4)), "1 lines are missing"),
        ((LineRange(number=1, printed=1, count=5), LineRange(number=8, printed=7, count=4)), "2 are counted"),
        ((LineRange(number=1, printed=2, count=9),), "0 are counted"),
        ((LineRange(number=1, printed=1, count=9),), "ends with line 9 of 10"),
        (
            (LineRange(number=1, printed=1, count=4), LineRange(number=8, printed=8, count=3)),
            "left out of a log that is within the limit",
        ),
        ((), "ends with line 0 of 10"),
        (None, "none of its 10 lines"),
    ],
    ids=["out of order", "doubled", "uncounted", "miscounted", "late", "end missing", "left out", "empty", "absent"],
)
def test_a_log_with_wrong_lines_is_reported(passages: Sequence[LineRange] | None, what: str) -> None:
    """A false log is a violation, which names the error."""
    assert what in " ".join(reported(passages))


def test_a_log_without_an_end_mark_is_reported() -> None:
    """A log that is not marked as complete is a violation, because a follower would wait for ever."""
    assert "not marked as complete" in " ".join(reported(is_ended=False))
    assert "is marked as ended with line 12" in " ".join(reported(end=12))


def test_a_reader_without_a_gap_mark_is_reported() -> None:
    """A reader who does not get a gap's count, or gets a wrong one, is a violation."""
    holed = (LineRange(number=1, printed=1, count=3), LineRange(number=8, printed=8, count=3))
    assert "it has the holes" in " ".join(reported(holed, fits=False, marks=()))
    assert "it has the holes" in " ".join(reported(holed, fits=False, marks=((4, 3),)))


def test_what_the_store_has_lost_is_not_asked_for() -> None:
    """After a loss of the store, a container that had ended by then may have no log, but no false one; the log of a
    later one must be complete."""
    assert reported(None, ended_at=BEGUN + 10.0, store_losses=LOST) == []
    assert reported((LineRange(number=6, printed=6, count=5),), ended_at=BEGUN + 10.0, store_losses=LOST) == []
    assert "is missing" not in " ".join(reported((LineRange(number=1, printed=1),), store_losses=LOST))
    assert "none of" in " ".join(reported(None, ended_at=BEGUN + 12.0, store_losses=LOST))
    assert "stored again" in " ".join(
        reported(
            (LineRange(number=1, printed=1, count=5), LineRange(number=6, printed=1, count=5)),
            store_losses=LOST,
        )
    )


def test_nothing_is_asked_of_a_log_that_the_store_lost_and_nobody_can_read() -> None:
    """A log may be missing when the store lost its lines, and the pod and the allocation were gone before they could be
    read again. Each of these alone is no excuse."""
    lost = ((0.0, BEGUN + 5.0),)
    was_killed: dict[str, Any] = {"passages": None, "interruptions": 1}
    assert reported(**was_killed, store_losses=lost, is_deleted=True) == []
    assert "none of" in " ".join(reported(**was_killed, is_deleted=True))
    assert "none of" in " ".join(reported(**was_killed, store_losses=lost))
    assert "none of" in " ".join(reported(**was_killed, store_losses=lost, is_deleted=True, ended_first=True))


def test_a_log_whose_place_was_lost_is_stored_again_and_read_once() -> None:
    """A log whose position was lost is stored again under the same numbers, so that readers recognize repeats; without
    a loss, or for a reader, it is a repeat."""
    again = (LineRange(number=1, printed=1, count=6), LineRange(number=1, printed=1, count=10))
    assert reported(again, store_losses=LOST, ended_at=BEGUN + 12.0) == []
    assert "stored after" in " ".join(reported(again))
    assert "stored after" in " ".join(reported(again, store_losses=LOST, marks=()))
    other = (LineRange(number=1, printed=1, count=6), LineRange(number=1, printed=3, count=8))
    assert "0 are counted" in " ".join(reported(other, store_losses=LOST))


def test_an_end_that_could_not_be_read_is_told_to_readers_only_after_a_fault() -> None:
    """An end that is marked as unread is allowed only after a fault. Without one it is missing, also for a pod that
    ended by itself, because its node keeps the log until the pod is deleted."""
    short = (LineRange(number=1, printed=1, count=4),)
    assert reported(short, is_unread=True, interruptions=1) == []
    assert "ends with line 4" in " ".join(reported(short, is_unread=True))
    assert "ends with line 4" in " ".join(reported(short, is_unread=True, interruptions=1, ended_first=True))
    assert reported(short, is_lost=True) == []


def test_a_pod_of_which_the_store_lost_every_line_keeps_its_numbers() -> None:
    """When the store lost every line of a pod, the next pod of the rank begins with its first line under the next
    number; a rank that started once does not."""
    tail = [LineRange(number=15, printed=1, count=10)]
    assert reported(tail, more_starts=1) == []
    assert reported(tail) != []


def test_the_log_of_a_rank_that_came_back_goes_on_with_a_first_line() -> None:
    """The log of a restarted rank continues with a first line, once for each restart; a repeated state of a rewritten
    line of the previous pod is no start."""
    first = (
        LineRange(number=1, printed=1, count=5),
        LineRange(number=6, printed=5, count=1, is_state=True),
        LineRange(number=7, printed=6, count=5),
    )
    again = (*first, LineRange(number=12, printed=1, count=10))
    assert reported(again, states=1, more_starts=1) == []
    assert "stored again" in " ".join(reported(again, states=1))
