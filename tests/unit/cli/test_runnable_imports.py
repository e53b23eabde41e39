"""docs/workloads.md: the table of runnable files lists exactly the files that the tests run."""

import re
from pathlib import Path

from tests.support.runnable_imports import FOLDER, RUNNABLE

PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"
ROW = re.compile(r"^\| (.+?) \| \[`(.+?)`\]\(\.\./tests/imports/(.+?)\) \|", re.MULTILINE)


def test_the_page_lists_the_files_that_are_played() -> None:
    """The page lists twelve kinds, each with an existing file that the tests run."""
    assert len({file.kind for file in RUNNABLE}) == len(RUNNABLE) == 12
    rows = {(kind, link) for kind, text, link in ROW.findall(PAGE.read_text("utf-8")) if text == link}
    assert rows == {(file.kind, file.path) for file in RUNNABLE}
    assert all((FOLDER / file.path).is_file() for file in RUNNABLE)
