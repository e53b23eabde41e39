"""The few pieces of Markdown that the reference pages are made of. Pure."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are escaped, and an empty one stays empty."""
    lines = [_row(head), _row(["---"] * len(head))]
    lines += [_row([_cell(part) for part in row]) for row in rows]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Inline code; empty for an empty text."""
    return f"`{text}`" if text else ""


def phrase(text: str) -> str:
    """The text on one line, without a full stop."""
    return " ".join(text.split()).rstrip(".")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _row(parts: Sequence[str]) -> str:
    return "| " + " | ".join(parts) + " |"
