"""docs/performance.md shows what the result files say: its figures are written from them, and only from them."""

import re
from pathlib import Path

import pytest
from bench.page import BEGIN, END, GOALS, PAGE, figures, page, read
from bench.runner import Target, row

ROOT = Path(__file__).parent.parent


def test_the_figures_are_those_of_the_result_files() -> None:
    """`python -m bench.page` would change nothing."""
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, read()) == text


def test_every_target_has_a_place() -> None:
    """P1 to P14, each once, in order; a target without a figure says that it was not measured."""
    assert [goal.id for goal in GOALS if goal.id.startswith("P")] == [f"P{number}" for number in range(1, 15)]
    assert figures([]).count("Not measured yet.") == len(GOALS)


def test_what_is_missed_stands_out() -> None:
    """A bound is said with its figure; what misses it is in bold."""
    bound = Target(must=2, moonshot=4, better="higher")
    found = figures([row("P1-W1", "some | work", [30], "pods/s", target=bound, peer=[10], peer_name="them")])
    assert "| P1-W1 | some \\| work | 30 pods/s | 10 (them) | 3 | > 2 met | > 4 **missed** |" in found


def test_a_page_without_its_marks_is_refused() -> None:
    """What is written by hand is never overwritten."""
    with pytest.raises(ValueError, match="has to have the lines"):
        page("nothing here", [])
    assert page(f"a\n{BEGIN}\nold\n{END}\nb\n", []).startswith(f"a\n{BEGIN}\n\n###")
    assert page(f"a\n{BEGIN}\nold\n{END}\nb\n", []).endswith(f"{END}\nb\n")


def test_every_picture_and_module_that_the_page_names_exists() -> None:
    """Links to results, and `python -m bench.x`."""
    text = PAGE.read_text(encoding="utf-8")
    linked = re.findall(r"\]\((\.\./bench/[\w./-]+)\)", text)
    modules = re.findall(r"python -m (bench(?:\.\w+)?)\b", text)
    only = [name for names in re.findall(r"--only ([\w,]+)", text) for name in names.split(",")]
    assert [path for path in linked if not (PAGE.parent / path).exists()] == []
    for module in {*modules, *(f"bench.{name}" for name in only)}:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
