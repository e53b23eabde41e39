"""How the audit reads logs from the api's pages."""

from typing import Any

from slipway.ops.audit.evidence import LineRange
from tests.chaos.gather_logs import told_of


def an_item(text: str, *, stream: str = "stdout", rank: int = 0, **more: int) -> dict[str, Any]:
    """One item of a page."""
    return {"attempt": 1, "rank": rank, "stream": stream, "time": "2026-01-01T00:00:00Z", "text": text, **more}


def test_remarks_about_a_log_are_not_lines_of_it() -> None:
    """After a loss of the store each page has the remark that the log is not stored."""
    said = an_item("the log of this rank is not stored to its end: lines of it are lost", stream="event")
    assert list(told_of("run", [said, said])) == []
    whole = [an_item("line 1", number=1, rank=1), an_item("line 2", number=2, rank=1)]
    (log,) = told_of("run", [*whole, said, said])
    assert (log.rank, log.passages, log.end) == (1, [LineRange(number=1, printed=1, count=2)], 2)


def test_a_gap_is_reported_with_its_count() -> None:
    """The mark replaces the missing lines, and is checked against their numbers."""
    items = [
        an_item("line 1", number=1),
        an_item("3 lines are missing", number=2, missing=3),
        an_item("line 5", number=5),
    ]
    (log,) = told_of("run", items)
    assert log.marks == [(2, 3)]
    assert [(each.number, each.printed) for each in log.passages] == [(1, 1), (5, 5)]
