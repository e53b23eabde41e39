"""docs/performance.md shows the figures of the result files and no others."""

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
    """The page lists the targets P1 to P14, each once, in order; a target without a figure is shown as not measured."""
    assert [goal.id for goal in GOALS if goal.id.startswith("P")] == [f"P{number}" for number in range(1, 15)]
    assert figures([]).count("Not measured yet.") == len(GOALS)


def test_what_is_missed_stands_out() -> None:
    """A bound is shown with its figure; a figure that misses its bound is in bold."""
    bound = Target(must=2, moonshot=4, better="higher")
    found = figures([row("P1-W1", "some | work", [30], "pods/s", target=bound, peer=[10], peer_name="them")])
    assert "| P1-W1 | some \\| work | 30 pods/s | 10 (them) | 3 | > 2 met | > 4 **missed** |" in found


def test_a_page_without_its_marks_is_refused() -> None:
    """`bench.page` refuses a page without its marks, so it never overwrites text that is written by hand."""
    with pytest.raises(ValueError, match="has to have the lines"):
        page("nothing here", [])
    assert page(f"a\n{BEGIN}\nold\n{END}\nb\n", []).startswith(f"a\n{BEGIN}\n\n###")
    assert page(f"a\n{BEGIN}\nold\n{END}\nb\n", []).endswith(f"{END}\nb\n")


def test_every_picture_and_module_that_the_page_names_exists() -> None:
    """Links to results lead to files, and each `python -m bench.x` names a module."""
    text = PAGE.read_text(encoding="utf-8")
    linked = re.findall(r"\]\((\.\./bench/[\w./-]+)\)", text)
    modules = re.findall(r"python -m (bench(?:\.\w+)?)\b", text)
    only = [name for names in re.findall(r"--only ([\w,]+)", text) for name in names.split(",")]
    assert [path for path in linked if not (PAGE.parent / path).exists()] == []
    for module in {*modules, *(f"bench.{name}" for name in only)}:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
