"""The documentation lists the omissions of sequences in the same words."""

from pathlib import Path

from tests.models.kubernetes.omissions import OMISSIONS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def test_the_page_lists_the_omissions() -> None:
    """Each row of the list is a row of the page."""
    text = PAGE.read_text(encoding="utf-8")
    assert [item.what for item in OMISSIONS if f"| {item.what} | {item.why} |" not in text] == []
