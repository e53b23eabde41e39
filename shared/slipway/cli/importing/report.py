"""The verdicts on the fields, as text with a maximum width, and as JSON.

Owns the order (fields that are not carried over come first) and the wording of the headings. Pure.
"""

import textwrap
from collections.abc import Iterator, Sequence

import msgspec

from slipway.cli.importing.foreign import ImportEntry, Json, Verdict
from slipway.cli.importing.kinds import ImportedDocument

_HEADINGS = {
    Verdict.LOST: "not carried over",
    Verdict.CHANGED: "carried over with another meaning",
    Verdict.UNNEEDED: "not needed here",
    Verdict.CARRIED: "carried over",
}
_DETAILED = (Verdict.LOST, Verdict.CHANGED)


def as_text(documents: Sequence[ImportedDocument], width: int, *, is_long: bool = False) -> str:
    """Return the report for people; with `is_long` it also lists the fields that are carried over."""
    return "\n".join(line for document in documents for line in _lines(document, width, is_long=is_long))


def as_json(documents: Sequence[ImportedDocument]) -> list[Json]:
    """Return the report for programs: one object per document."""
    return [
        {
            "file": document.file,
            "document": document.number,
            "system": document.system,
            "error": document.error,
            "made": [str(body.get("name") or "") for body in document.bodies],
            "fields": [msgspec.to_builtins(entry) for entry in document.entries],
        }
        for document in documents
    ]


def _lines(document: ImportedDocument, width: int, *, is_long: bool) -> Iterator[str]:
    where = f"{document.file}, document {document.number}" if document.number > 1 else document.file
    yield from _wrapped(f"{where}: {_summary(document)}", "", width)
    if document.error:
        return
    for verdict, heading in _HEADINGS.items():
        entries = [entry for entry in document.entries if entry.verdict is verdict]
        if not entries:
            continue
        if verdict in _DETAILED or is_long:
            yield f"  {heading}:"
            for entry in entries:
                yield from _entry(entry, width)
        else:
            names = ", ".join(entry.path or "(the document)" for entry in entries)
            text = f"{heading}: {names}" if verdict is Verdict.UNNEEDED else f"{heading}: {len(entries)} fields"
            yield from _wrapped(text, "  ", width, "    ")


def _summary(document: ImportedDocument) -> str:
    if document.error:
        return f"{document.system}: {document.error}" if document.system else document.error
    made = ", ".join(f"{body['kind']} {body.get('name') or '(a name is made up)'}" for body in document.bodies)
    return f"{document.system} -> {made}"


def _entry(entry: ImportEntry, width: int) -> Iterator[str]:
    does = f" ({entry.does})" if entry.does else ""
    yield from _wrapped(f"{entry.path or '(the document)'}{does}", "    ", width, "        ")
    if entry.here:
        yield from _wrapped(f"-> {entry.here}", "      ", width, "         ")


def _wrapped(text: str, indent: str, width: int, more: str = "") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=more or f"{indent}  ", break_on_hyphens=False
    ) or [indent]
