"""The figures on capacity in docs/operating.md are those that were measured."""

from bench.capacity_page import BEGIN, END, PAGE, SIZES, stored, tables, whole


def test_the_page_says_what_was_measured() -> None:
    """The page has the measured figures; `python -m bench.capacity_page` updates it after a run."""
    page = PAGE.read_text("utf-8")
    assert (page.count(BEGIN), page.count(END)) == (1, 1)
    assert whole(page, stored()) == page


def test_a_size_is_the_figure_times_a_number() -> None:
    """A size is the figure times a number, summed for live and ended allocations."""
    rows = stored()
    live, ended = SIZES[1]
    wanted = (rows["CAP-live-objects"].ours * live + rows["CAP-ended-objects"].ours * ended) / 1_000 / 1e6
    assert f"| {live:,} and {ended:,} | {wanted:,.0f} MB |" in tables(rows)
