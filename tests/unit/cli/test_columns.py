"""Columns of a terminal: wide letters, marks and emoji; tables that stay aligned with any text."""

import pytest

from slipway.cli import table
from slipway.cli.table import cut, filled, width_of
from slipway.cli.waterfall import WorkSpan, render

TEXTS = {
    "plain": 5,
    "漢字": 4,
    "ｶﾀｶﾅ": 4,
    "한글": 4,
    "\u1112\u1161\u11ab": 2,
    "e\u0301": 1,
    "Việt": 4,
    "👍": 2,
    "👍🏽": 2,
    "👨\u200d👩\u200d👧": 2,
    "🇩🇪🇫🇷": 4,
    "❤": 1,
    "❤\ufe0f": 2,
    "1\ufe0f\u20e3": 2,
    "\u200b": 0,
    "a\xadb": 3,
    "…→①": 3,
    "की": 2,
    "ก็": 1,
}
"""{text: its width in columns, by wcwidth 0.9.4 and most terminals}"""


@pytest.mark.parametrize(("text", "columns"), TEXTS.items())
def test_a_text_takes_the_columns_that_terminals_give_it(text: str, columns: int) -> None:
    """A text has the width that terminals give it: two columns for a wide letter, none for a mark, and those of one
    emoji for an emoji of several characters."""
    assert width_of(text) == columns
    assert filled(text, 12) == text + " " * (12 - columns)


@pytest.mark.parametrize("text", TEXTS)
def test_a_cut_keeps_to_its_columns_and_halves_nothing(text: str) -> None:
    """A cut stays within its columns, and splits neither a wide letter nor an emoji of several characters; a letter
    keeps its marks."""
    whole = text * 3
    for width in range(1, width_of(whole)):
        shown = cut(whole, width)
        assert width_of(shown) in (width, width - 1), (shown, width)
        assert whole.startswith(shown.removesuffix("…"))
    assert cut(whole, width_of(whole)) == whole
    assert cut("👨\u200d👩\u200d👧👍", 3) == "👨\u200d👩\u200d👧…"
    assert cut("e\u0301e\u0301e\u0301", 2) == "e\u0301…"


def test_tables_are_aligned_whatever_is_in_them() -> None:
    """Tables are aligned with any text: the second column begins at the same place in every row."""
    names = ["plain", "模型训练", "e\u0301tude", "🚀 launch"]
    lines = table.render(["NAME", "STATE"], [[name, "Running"] for name in names]).splitlines()
    assert {width_of(line.partition("Running")[0]) for line in lines[1:]} == {11}
    narrow = table.render(["NAME", "NOTE"], [[name, "没有空闲的显卡" * 8] for name in names], width=40).splitlines()
    assert all(width_of(line) <= 40 for line in narrow)


def test_a_row_of_a_table_is_one_line() -> None:
    """A line break or a control character in a cell is shown as a space, so that texts of other users cannot move the
    cursor."""
    assert table.render(["ID", "WHY"], [["a", "one\ntwo\x1b[2J"]]).splitlines() == ["ID  WHY", "a   one two [2J"]


def test_sentences_in_wide_letters_are_broken() -> None:
    """Sentences of wide letters are broken between any two letters, and none is lost; other sentences are broken at
    spaces."""
    why = "没有空闲的显卡" * 6
    shown = table.wrapped(why, 30).splitlines()
    assert max(width_of(line) for line in shown) <= 30
    assert "".join(line.strip() for line in shown) == why
    assert table.wrapped("  一 two three four five six seven", 20).splitlines() == [
        "  一 two three",
        "    four five six",
        "    seven",
    ]


def test_a_waterfall_is_aligned() -> None:
    """A waterfall is aligned with names of spans in any script."""
    spans = [WorkSpan(str(at), "", name, "api", at, at + 5, True) for at, name in enumerate(("启动", "start"))]
    lines = render(spans).splitlines()[:2]
    assert len({width_of(line.partition("|")[0]) for line in lines}) == 1
