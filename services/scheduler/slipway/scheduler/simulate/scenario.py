"""Text -> Scenario, or the path of what is wrong with it.

Owns the order in which a scenario is looked at: as text (`slipway.yaml_reader`), field by field (`parts.py`), then as a
whole (`checks.py`).
"""

import math
import re
from pathlib import Path
from typing import Any, cast

import msgspec

from slipway import yaml_reader
from slipway.errors import InvalidError
from slipway.scheduler.simulate import checks
from slipway.scheduler.simulate.parts import (
    AllocationPart,
    NodePart,
    PlacedPart,
    RankPart,
    Scenario,
    Seconds,
    Span,
    amount,
    node_names,
    seconds,
)

__all__ = [
    "AllocationPart",
    "NodePart",
    "PlacedPart",
    "RankPart",
    "Scenario",
    "Seconds",
    "Span",
    "amount",
    "checked",
    "decode",
    "document_of",
    "load",
    "located",
    "node_names",
    "seconds",
    "whole",
]

_KEY = "[...]"
_TRIED_MAX = 10_000


def load(path: Path | str) -> Scenario:
    """The scenario in a file (YAML or JSON), or in standard input for `-`.

    Raises:
        InvalidError: what is wrong and at which field.
    """
    text = yaml_reader.read_text(str(path), yaml_reader.SCENARIO)
    try:
        return decode(text)
    except InvalidError as exc:
        where = "" if str(path) == "-" else f"{path}: "
        raise InvalidError(f"{where}{exc}", fields=exc.fields) from exc


def decode(text: str) -> Scenario:
    """The scenario in `text`.

    Raises:
        InvalidError: what is wrong and at which field.
    """
    return whole(document_of(text))


def document_of(text: str) -> Any:
    """The plain data of a scenario's text.

    Raises:
        InvalidError: what is wrong and at which line; there is nothing in it.
    """
    document = yaml_reader.parse(text, yaml_reader.SCENARIO)
    if document is None:
        raise InvalidError("the file: there is nothing in it; it needs nodes at least")
    return document


def whole(document: object) -> Scenario:
    """The scenario of a whole file: what its allocations name is in it.

    Raises:
        InvalidError: what is wrong and at which field.
    """
    scenario = checked(document)
    checks.check_references(scenario)
    return scenario


def checked(document: object) -> Scenario:
    """The scenario that `document` (plain data) describes.

    Raises:
        InvalidError: what is wrong and at which field.
    """
    try:
        scenario = msgspec.convert(document, Scenario)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise InvalidError(_located(str(exc), document)) from exc
    checks.check(scenario)
    return scenario


def located(message: str) -> str:
    """A message of msgspec as `path: complaint`."""
    path, text = checks.located(message)
    return f"{path or 'the file'}: {text}"


def _located(message: str, document: Any) -> str:
    """msgspec's complaint with the whole path, where it leaves out under which key of a map the value stands."""
    path, text = checks.located(message)
    while _KEY in path:
        key = _culprit(document, path, text)
        if key is None:
            break
        path = path.replace(_KEY, f".{key}", 1)
    return f"{path or 'the file'}: {_of_number(document, path, text)}"


def _of_number(document: Any, path: str, text: str) -> str:
    """The complaint about a number that YAML reads as a word, in the words of the number."""
    if not re.match(r"Expected `(float|int)\b.*got `str`", text):
        return text
    found = document
    for name, index in re.findall(r"\.?([^.\[\]]+)|\[(\d+)\]", path):
        found = found[int(index) if index else name]
    try:
        number = float(found)
    except ValueError:
        return text
    if not math.isfinite(number) or abs(number) > checks.TIME_MAX:
        return f"{found} is not a number that is possible here; its size is at most {checks.TIME_MAX:g}"
    return f"{found} is a word here; write it as a number, without quotes and without an exponent"


def _culprit(document: Any, path: str, text: str) -> str | None:
    """The key for the first `[...]` of `path`: the one that alone gives the same complaint."""
    steps: list[str | int] = []
    head = path.partition(_KEY)[0]
    for name, index in re.findall(r"\.?([^.\[\]]+)|\[(\d+)\]", head):
        steps.append(int(index) if index else name)
    found = document
    for step in steps:
        found = found[step]
    if not isinstance(found, dict):
        return None
    entries = cast("dict[str, Any]", found)
    for key in list(entries)[:_TRIED_MAX]:
        try:
            msgspec.convert(_only(document, steps, {key: entries[key]}), Scenario)
        except msgspec.ValidationError as exc:
            if checks.located(str(exc)) == (path, text):
                return key
    return None


def _only(document: Any, steps: list[str | int], entries: dict[str, Any]) -> Any:
    """The document with `entries` alone where the steps lead to, and of every list on the way nothing that is not
    needed."""
    if not steps:
        return entries
    first, rest = steps[0], steps[1:]
    if isinstance(first, int):
        return [_only(item, rest, entries) if at == first else item for at, item in enumerate(document)]
    return {**document, first: _only(document[first], rest, entries)}
