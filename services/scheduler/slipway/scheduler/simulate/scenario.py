"""Parses text to a Scenario, or raises an error with the path of the wrong field.

Owns the order of the checks of a scenario: as text (`slipway.yaml_reader`), field by field (`scenario_format.py`), then
as a whole (`checks.py`).

Features of a scenario that the planner does not support give warnings, so that none is ignored silently.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec

from slipway import yaml_reader
from slipway.errors import InvalidError
from slipway.scheduler.plan.placement.scores import SCORES
from slipway.scheduler.simulate import checks
from slipway.scheduler.simulate.scenario_format import (
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
    """Return the scenario in a file (YAML or JSON), or from standard input for `-`.

    Raises:
        InvalidError: a field is wrong; the message has its path.
    """
    text = yaml_reader.read_text(str(path), yaml_reader.SCENARIO)
    try:
        return decode(text)
    except InvalidError as exc:
        where = "" if str(path) == "-" else f"{path}: "
        raise InvalidError(f"{where}{exc}", fields=exc.fields) from exc


def decode(text: str) -> Scenario:
    """Return the scenario in `text`.

    Raises:
        InvalidError: a field is wrong; the message has its path.
    """
    return whole(document_of(text))


def document_of(text: str) -> Any:
    """Return the plain data of a scenario's text.

    Raises:
        InvalidError: a line is wrong (the message has its number), or the text is empty.
    """
    document = yaml_reader.parse(text, yaml_reader.SCENARIO)
    if document is None:
        raise InvalidError("the file: there is nothing in it; it needs at least nodes")
    return document


def whole(document: object) -> Scenario:
    """Return the scenario of a whole file, which must contain all queues and nodes that its allocations name.

    Raises:
        InvalidError: a field is wrong; the message has its path.
    """
    scenario = checked(document)
    checks.check_references(scenario)
    return scenario


def checked(document: object) -> Scenario:
    """Return the scenario in `document` (plain data).

    Raises:
        InvalidError: a field is wrong; the message has its path.
    """
    try:
        scenario = msgspec.convert(document, Scenario)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise InvalidError(_located(str(exc), document)) from exc
    checks.check(scenario)
    return scenario


def located(message: str) -> str:
    """Return a message of msgspec as `path: error`."""
    path, text = checks.located(message)
    return f"{path or 'the file'}: {text}"


def _located(message: str, document: Any) -> str:
    """Return msgspec's error with the whole path: msgspec leaves out the key of a value in a map."""
    path, text = checks.located(message)
    while _KEY in path:
        key = _culprit(document, path, text)
        if key is None:
            break
        path = path.replace(_KEY, f".{key}", 1)
    return f"{path or 'the file'}: {_of_number(document, path, text)}"


def _of_number(document: Any, path: str, text: str) -> str:
    """Return a better error for a number that YAML reads as a string; other errors unchanged."""
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
        return f"{found} is not a possible number; its absolute value must be at most {checks.TIME_MAX:g}"
    return f"{found} is a text; write it as a number, without quotes and without an exponent"


def _culprit(document: Any, path: str, text: str) -> str | None:
    """Return the key for the first `[...]` of `path`: the one that alone causes the same error."""
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
    """Return the document with only `entries` at the end of `steps`."""
    if not steps:
        return entries
    first, rest = steps[0], steps[1:]
    if isinstance(first, int):
        return [_only(item, rest, entries) if at == first else item for at, item in enumerate(document)]
    return {**document, first: _only(document[first], rest, entries)}


def check_scores(scenario: Scenario) -> None:
    """Check that all names of scores are known.

    Raises:
        InvalidError: a name is unknown; the message has its path.
    """
    for name in scenario.pool.scores:
        if name not in SCORES:
            raise InvalidError(f"pool.scores.{name}: there is no such score; known are {', '.join(sorted(SCORES))}")


def unsupported(scenario: Scenario) -> tuple[str, ...]:
    """Return one sentence for each feature that was ignored."""
    return tuple(dict.fromkeys(_of_work(scenario)))


def _of_work(scenario: Scenario) -> Iterator[str]:
    for job in scenario.jobs:
        if job.weight != 1:
            yield f"job {job.name}: weight decides only between equal places; shares are between queues"
