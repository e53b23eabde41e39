"""Tables of text, ages and amounts, for people. Pure.

Owns alignment, truncation and line breaks. The last column of a table that is too wide is cut. A sentence is wrapped
and never cut.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from slipway.cli import columns
from slipway.cli.columns import cut, width_of
from slipway.model.duration import format_duration

GAP = "  "


def render(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int = 0,
    paint: Callable[[str, str], str] | None = None,
) -> str:
    """Return the rows below their heads. `width` cuts the last column (0: no cut); `paint(head, cell)` colours."""
    table = [list(head), *([columns.one_line(cell) for cell in row] for row in rows)]
    widths = [max(width_of(row[column]) for row in table) for column in range(len(head))]
    lines: list[str] = []
    for number, row in enumerate(table):
        room = width - sum(each + len(GAP) for each in widths[:-1]) if width else 0
        cells = [columns.filled(cell, size) for cell, size in zip(row[:-1], widths[:-1], strict=True)]
        cells.append(cut(row[-1], max(8, room)) if width else row[-1])
        if paint is not None and number:
            cells = [paint(name, cell) for name, cell in zip(head, cells, strict=True)]
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines)


def pairs(items: Sequence[tuple[str, str]], *, width: int = 0, paint: Callable[[str, str], str] | None = None) -> str:
    """Return names and values, one pair per line, without empty values.

    A value of more than `width` columns continues on the next lines (0: one line each, for programs). `paint(name,
    line)` colours a line of a value."""
    shown = [(columns.one_line(name), columns.one_line(value)) for name, value in items if value]
    size = max((len(name) for name, _ in shown), default=0)
    indent = size + 1 + len(GAP)
    lines: list[str] = []
    for name, value in shown:
        first, *more = _words_in_lines(value, width - indent) if width else [value]
        if paint is not None:
            first, more = paint(name, first), [paint(name, each) for each in more]
        lines += [f"{name + ':':<{size + 1}}{GAP}{first}", *(" " * indent + each for each in more)]
    return "\n".join(lines)


def wrapped(line: str, width: int) -> str:
    """Return `line` wrapped at `width` columns (0: one line).

    Lines after the first are indented by two more columns. Line ends inside `line` become spaces."""
    line = columns.one_line(line)
    if not width or width_of(line) <= width:
        return line
    start = len(line) - len(line.lstrip())
    first, *more = _words_in_lines(line[start:], width - start - len(GAP))
    return "\n".join([" " * start + first, *(" " * start + GAP + each for each in more)])


def _words_in_lines(text: str, width: int) -> list[str]:
    """Wrap a text. A name or an id is never broken, even if too wide; a break between two wide letters is allowed."""
    lines = [""]
    for word in columns.words_of(" ".join(text.splitlines())):
        if lines[-1] and width_of(lines[-1]) + width_of(word.rstrip()) > max(8, width):
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += word if lines[-1] or len(lines) == 1 else word.lstrip()
    lines[-1] = lines[-1].rstrip()
    return [line for line in lines if line] or [text]


def now() -> datetime:
    """Return the time of this machine's clock, for ages that people read."""
    return datetime.now(UTC)


def moment_of(text: str) -> datetime:
    """Parse an RFC 3339 time."""
    return datetime.fromisoformat(text)


def age(since: str, until: datetime) -> str:
    """Return the age of an RFC 3339 time; empty for an empty text."""
    if not since:
        return ""
    return format_duration(max(0.0, (until - moment_of(since)).total_seconds()))


def clock_time(moment: str) -> str:
    """Return the time of day of an RFC 3339 time, with milliseconds, in UTC; empty for an empty text."""
    if not moment:
        return ""
    return moment_of(moment).astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]
