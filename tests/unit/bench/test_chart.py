"""The chart of growth: logarithmic, complete, well-formed."""

import re
from xml.etree import ElementTree

import pytest
from bench.chart import Line, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def test_every_point_is_drawn_with_its_value() -> None:
    """Every point has a circle and a label, every curve a line and a legend; the text is XML."""
    lines = [
        Line(name="over <nodes>", points=[(1_000, 70.5), (100_000, 310)]),
        Line(name="over queued", points=[(10_000, 200)]),
    ]
    drawn = ElementTree.fromstring(line_chart("Growth & cost", "how many", "us", lines))
    texts = [each.text for each in drawn.iter(f"{SVG}text")]
    assert len(list(drawn.iter(f"{SVG}circle"))) == 3
    assert len(list(drawn.iter(f"{SVG}polyline"))) == 2
    assert {"Growth & cost", "over <nodes>", "over queued", "70.5", "310", "200"} <= set(texts)


def test_each_decade_has_the_same_length_on_the_axis() -> None:
    """The axes are logarithmic: equal factors are equal distances."""
    drawn = line_chart("t", "x", "y", [Line(name="a", points=[(1, 1), (10, 10), (100, 100)])])
    across = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawn)]
    assert across[1] - across[0] == pytest.approx(across[2] - across[1], abs=0.2)


@pytest.mark.parametrize("points", [[], [(0, 1)], [(1, -1)]])
def test_what_has_no_logarithm_is_refused(points: list[tuple[float, float]]) -> None:
    """Values without a logarithm are refused: none, zero and negative ones."""
    with pytest.raises(ValueError, match="above 0"):
        line_chart("t", "x", "y", [Line(name="a", points=points)])
