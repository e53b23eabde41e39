"""A line chart as SVG: both axes logarithmic, a legend beside it, without a library. Pure: values in, text out."""

import math
from collections.abc import Sequence
from html import escape

import msgspec

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 50
COLOURS = ("#1f5fa8", "#b4451f", "#2f7d4f", "#7a4fa3")


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One curve: points (x, y), both above 0."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """Return the whole SVG. Raises ValueError when there is no point, or a point is not above 0."""
    points = [point for line in lines for point in line.points]
    if not points or min(min(point) for point in points) <= 0:
        raise ValueError("a chart with logarithmic axes needs points above 0")
    x_axis = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for value in x_axis.decades:
        at = x_axis.at(value)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:,}</text>')
    for value in y_axis.decades:
        at = y_axis.at(value)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:,}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text x="14" y="{TOP - 8}">{escape(up)}</text>')
    for number, line in enumerate(lines):
        parts += _drawn(line, COLOURS[number % len(COLOURS)], TOP + 16 * number, x_axis, y_axis)
    return "\n".join([*parts, "</svg>", ""])


def _drawn(line: Line, colour: str, legend_y: int, x_axis: "_Axis", y_axis: "_Axis") -> list[str]:
    places = [(x_axis.at(x), y_axis.at(y), y) for x, y in sorted(line.points)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    legend = f'<text x="{WIDTH - RIGHT + 12}" y="{legend_y + 10}" fill="{colour}">{escape(line.name)}</text>'
    parts = [legend, f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for x, y, value in places:
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        parts.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle" fill="{colour}">{value:.4g}</text>')
    return parts


class _Axis:
    """An axis with whole powers of ten around the values."""

    def __init__(self, values: Sequence[float], start: int, end: int) -> None:
        low = math.floor(math.log10(min(values)))
        high = max(math.ceil(math.log10(max(values))), low + 1)
        self._low, self._high, self._start, self._end = low, high, start, end
        self.decades = [10**power if power >= 0 else 10.0**power for power in range(low, high + 1)]

    def at(self, value: float) -> float:
        """Return the position of a value, in pixels."""
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + part * (self._end - self._start)
