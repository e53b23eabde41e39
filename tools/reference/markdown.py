"""The few Markdown elements that the reference pages consist of. Pure."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are escaped, and an empty cell stays empty."""
    lines = [_row(head), _row(["---"] * len(head))]
    lines += [_row([_cell(part) for part in row]) for row in rows]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Return inline code; empty for an empty text."""
    return f"`{text}`" if text else ""


def phrase(text: str) -> str:
    """Return the text on one line, without a full stop."""
    return " ".join(text.split()).rstrip(".")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _row(parts: Sequence[str]) -> str:
    return "| " + " | ".join(parts) + " |"
