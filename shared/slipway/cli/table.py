"""Tables of text, ages and amounts, for people. Pure.

Owns alignment, truncation and line breaks. The last column of a table that is too wide is cut. A sentence is wrapped
and never cut.

This module computes how many terminal columns a text needs, and cuts or pads texts to a number of columns. Letters of
East Asian scripts and emoji need two columns. Accents and other marks need none, because they are drawn on the letter
before them. A letter with its marks, and an emoji of several characters, are never split.

Source: Unicode Standard Annex 11 (East Asian Width), Unicode Technical Standard 51 (emoji sequences).
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from slipway.model.times import format_duration

ELLIPSIS = "…"
_JOINER, _AS_EMOJI = "\u200d", "\ufe0f"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)
_LATER_JAMO = (range(0x1160, 0x1200), range(0xD7B0, 0xD800))
"""Vowels and final consonants of a decomposed Korean syllable; they are drawn in the block of the first consonant."""
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal obeys or cannot show: control characters except tab and newline, Unicode line separators,
characters that change the text direction, and surrogates, which no stream can encode."""
_ORDERS = re.compile(
    r"(?P<colours>\x1b\[[0-9;:]*m)"
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
    "|[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
)
"""Sequences in a line that control a terminal: colours and styles; other control sequences; texts for the terminal
itself, such as its title; two-character sequences; single characters. Source: ECMA-48."""
_KEYCAPS = frozenset("0123456789#*")


def width_of(text: str) -> int:
    """Return the number of columns of a text without control characters."""
    return len(text) if text.isascii() else sum(width for _, width in _clusters(text))


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` columns; a cut text ends with an ellipsis."""
    if width_of(text) <= width:
        return text
    if width < 1:
        return ""
    kept, left = "", width - 1
    for cluster, columns in _clusters(text):
        if columns > left:
            break
        kept, left = kept + cluster, left - columns
    return kept + ELLIPSIS


def filled(text: str, width: int) -> str:
    """Return `text` padded with spaces to `width` columns."""
    return text + " " * (width - width_of(text))


def words_of(text: str) -> list[str]:
    """Return the parts between which a line may be broken: words, runs of spaces, and each wide character by itself."""
    found: list[str] = []
    is_open = False
    for cluster, columns in _clusters(text):
        sort = (cluster.isspace(), columns > 1)
        if is_open and sort == (found[-1].isspace(), False):
            found[-1] += cluster
        else:
            found.append(cluster)
        is_open = columns < 2
    return found


def escape_controls(text: str) -> str:
    """Return `text` with an escape (`\\x1b`) for each character that controls a terminal, except tabs and newlines."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def only_colours(text: str) -> str:
    """Return a line that a program printed, with its colours and styles but without other terminal sequences.

    Sequences that move the cursor, clear the screen, or set its title or the clipboard are removed. The colours end
    with the line."""
    if text.isprintable():
        return text
    kept = _ORDERS.sub(lambda found: found[0] if found["colours"] is not None else "", text)
    last = kept[kept.rfind("\x1b") :] if "\x1b" in kept else "\x1b[m"
    return kept if last.startswith(("\x1b[m", "\x1b[0m")) else f"{kept}\x1b[0m"


def escape_controls_in_json(text: str) -> str:
    """Return JSON with JSON escapes for these characters; its meaning is the same."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Replace each control character of `text` by a space.

    A line break would end the row of a table, and other characters would move the cursor."""
    if text.isprintable():
        return text
    return escape_controls("".join(" " if ord(each) < 0x20 or 0x7F <= ord(each) < 0xA0 else each for each in text))


def _clusters(text: str) -> Iterator[tuple[str, int]]:
    """Yield (what a reader sees as one character, its columns), in order."""
    cluster, width, is_joined, flags = "", 0, False, 0
    for each in text:
        columns = _columns(each)
        is_flag = ord(each) in _FLAG_LETTERS
        if cluster and (
            columns == 0
            or (is_joined and columns == 2)
            or (width == 2 and ord(each) in _SKIN_TONES)
            or (is_flag and flags == 1)
        ):
            cluster += each
            if each == _AS_EMOJI and width == 1 and _may_be_emoji(cluster[0]):
                width = 2
            flags += is_flag
        else:
            if cluster:
                yield cluster, width
            cluster, width, flags = each, columns, int(is_flag)
        is_joined = each == _JOINER
    if cluster:
        yield cluster, width


def _may_be_emoji(char: str) -> bool:
    import unicodedata

    return char in _KEYCAPS or unicodedata.category(char) in ("So", "Sm", "Po")


@functools.lru_cache(maxsize=4096)
def _columns(char: str) -> int:
    """Return the columns of a single character."""
    if char.isascii():
        return 1
    import unicodedata

    code, category = ord(char), unicodedata.category(char)
    if code in _FLAG_LETTERS:
        return 2
    if category in ("Mn", "Me") or (category == "Cf" and char != "\xad"):
        return 0
    if any(code in part for part in _LATER_JAMO):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


GAP = "  "


def render(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int = 0,
    paint: Callable[[str, str], str] | None = None,
) -> str:
    """Return the rows below their heads. `width` cuts the last column (0: no cut); `paint(head, cell)` colours."""
    table = [list(head), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(width_of(row[column]) for row in table) for column in range(len(head))]
    lines: list[str] = []
    for number, row in enumerate(table):
        room = width - sum(each + len(GAP) for each in widths[:-1]) if width else 0
        cells = [filled(cell, size) for cell, size in zip(row[:-1], widths[:-1], strict=True)]
        cells.append(cut(row[-1], max(8, room)) if width else row[-1])
        if paint is not None and number:
            cells = [paint(name, cell) for name, cell in zip(head, cells, strict=True)]
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines)


def pairs(items: Sequence[tuple[str, str]], *, width: int = 0, paint: Callable[[str, str], str] | None = None) -> str:
    """Return names and values, one pair per line, without empty values.

    A value of more than `width` columns continues on the next lines (0: one line each, for programs). `paint(name,
    line)` colours a line of a value."""
    shown = [(one_line(name), one_line(value)) for name, value in items if value]
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
    line = one_line(line)
    if not width or width_of(line) <= width:
        return line
    start = len(line) - len(line.lstrip())
    first, *more = _words_in_lines(line[start:], width - start - len(GAP))
    return "\n".join([" " * start + first, *(" " * start + GAP + each for each in more)])


def _words_in_lines(text: str, width: int) -> list[str]:
    """Wrap a text. A name or an id is never broken, even if too wide; a break between two wide letters is allowed."""
    lines = [""]
    for word in words_of(" ".join(text.splitlines())):
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
