"""docs/security.md promises nothing without a test: each line of the threat model names one, and all of them exist."""

import re
from pathlib import Path

import pytest

from tests.test_reliability_page import names_in

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "security.md"
NAMED = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")
PROMISES = (
    *("The modes", "Anonymous callers and pages of other sites", "Users", "Administrators of a workspace"),
    *("Workloads", "A service account that is taken over", "Redis that is taken over", "A node that is taken over"),
    *("The command line", "Secrets", "Browser sessions", "Single sign-on", "Pages of workloads"),
    *("An address that passes to another pod", "Limits of callers"),
)
"""Sections whose tables contain only promises, line by line."""
DESCRIBED = ("What is read from Redis", "Commands in ranks", "Secret values of a launch")
"""Sections whose tables also have lines that are marked as no promise."""


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows_of(section: str) -> list[str]:
    """The lines of the tables of a section, without their heads."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line for line, following in zip(lines, [*lines[1:], ""], strict=True) if "| --- |" not in following + line]


@pytest.mark.parametrize("title", PROMISES)
def test_each_promise_names_its_test(title: str) -> None:
    """Each line names a test; a line without one belongs to the section of what is not promised."""
    rows = rows_of(sections()[title])
    assert rows
    assert [row for row in rows if not NAMED.search(row)] == []


@pytest.mark.parametrize("title", DESCRIBED)
def test_each_other_line_names_its_test_or_says_that_nothing_is_promised(title: str) -> None:
    """Each line names a test or states that nothing is promised, so a reader never takes a description for a
    promise."""
    rows = rows_of(sections()[title])
    assert sum(1 for row in rows if NAMED.search(row)) >= len(rows) / 2
    assert [row for row in rows if not NAMED.search(row) and not row.endswith("| not promised |")] == []


def test_every_test_that_the_page_names_exists() -> None:
    """Every file and function that the page names exists."""
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 80
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not _file(path).is_file() or (name and name not in names_in(_file(path)))
    ]
    assert missing == []


def test_the_page_says_what_is_not_promised() -> None:
    """The page lists what is not promised, for each actor of the threat model."""
    said = sections()["What is not promised"]
    for actor in ("anonymous", "users", "workloads", "api taken over", "Redis taken over", "node taken over"):
        assert f"| {actor} |" in said, actor


def _file(path: str) -> Path:
    return PAGE.parent.parent / path if path.startswith("tests/") else TESTS / path
