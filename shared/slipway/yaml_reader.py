"""Strict reader of YAML and JSON that people write: returns plain values; an error names the path and the line.

Owns which texts are accepted: files of the command line, scenarios and request bodies. A key is a word and appears
once; a date remains text; a value is text, a JSON number, true or false, null, a list or an object. Aliases repeat an
anchored value, and `<<` merges it; the repeated values are included in the limit of the document. The reader does not
recurse: a text that is too deep is refused and crashes nothing. The time to read is proportional to the length of the
text.
"""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
import yaml

from slipway.errors import InvalidError


class TextLimits(msgspec.Struct, frozen=True):
    """The maximum size of a text."""

    bytes: int
    values: int
    """the most values of one document; a value that an alias repeats is included each time"""


MANIFEST = TextLimits(3 * 1024 * 1024, 100_000)
"""The limits of files with launches, objects and policies."""
SCENARIO = TextLimits(16 * 1024 * 1024, 2_000_000)
"""The limits of a scenario: a whole cluster with its waiting allocations."""
DEPTH_MAX = 64
_TAG = "tag:yaml.org,2002:"
_HALF = re.compile("[\ud800-\udfff]")
_MERGE = f"{_TAG}merge"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    """The YAML loader, without dates: a date is read as text, because none of our fields is a date."""

    yaml_implicit_resolvers = {
        letter: [(tag, pattern) for tag, pattern in rows if tag not in (f"{_TAG}timestamp", f"{_TAG}value")]
        for letter, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_CONSTRUCT: dict[str, Any] = {
    f"{_TAG}int": yaml.constructor.SafeConstructor.construct_yaml_int,
    f"{_TAG}float": yaml.constructor.SafeConstructor.construct_yaml_float,
    f"{_TAG}bool": yaml.constructor.SafeConstructor.construct_yaml_bool,
}
_constructor = yaml.constructor.SafeConstructor()


class YamlDocument(msgspec.Struct, frozen=True):
    """One document of a text."""

    value: Any
    line: int
    """the line in which the document begins; the first line is 1"""


def read_text(name: str, limits: TextLimits) -> str:
    """Return the text of a file, or of standard input for `-`.

    Raises:
        InvalidError: the file cannot be read, is not UTF-8 text, or is too large.
    """
    try:
        data = _standard_input(limits) if name == "-" else _bytes_of(Path(name), limits)
    except (OSError, ValueError) as exc:
        raise InvalidError(f"{name} cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    if len(data) > limits.bytes:
        raise InvalidError(f"{name} has more than {limits.bytes} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        raise InvalidError(f"{name}, line {line}: is not UTF-8 text; save it as UTF-8") from exc


def parse(text: str, limits: TextLimits) -> Any:
    """Return the value of the only document of a text; None when the text has no document.

    Raises:
        InvalidError: the text is not accepted (the message has the path, the line and the reason), or has a second
        document.
    """
    found = documents(text, limits)
    if len(found) > 1:
        raise InvalidError(f"line {found[1].line}: a second document; a file holds one")
    return found[0].value if found else None


def documents(text: str, limits: TextLimits) -> list[YamlDocument]:
    """Return the documents of a text, including empty ones.

    Raises:
        InvalidError: the text is not accepted; the message has the path, the line and the reason.
    """
    if len(text) > limits.bytes:
        raise InvalidError(f"the text has more than {limits.bytes} characters")
    plain = _json(text, limits)
    return [YamlDocument(plain, 1)] if plain is not None else _Reading(text, limits).documents()


def _json(text: str, limits: TextLimits) -> Any:
    """Return the value of a JSON object within the limits; None for any other text.

    The caller reads other texts as YAML, which also reports where a limit is passed.
    """

    def paired(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError("a key is given twice; the YAML reader reports the line")
        return made

    def constant(word: str) -> NoReturn:
        raise InvalidError(f"{word} is not a JSON number; put it in quotes if it is a word")

    def number(word: str) -> float:
        value = float(word)
        return value if math.isfinite(value) else constant(word)

    if not text.lstrip().startswith("{"):
        return None
    try:
        plain = json.loads(text, object_pairs_hook=paired, parse_constant=constant, parse_float=number)
        if "\\u" in text or not text.isascii():
            json.dumps(plain, ensure_ascii=False).encode()  # raises for half a character; the YAML reader reports where
    except (ValueError, RecursionError):
        return None
    return plain if _is_within(plain, limits) else None


def _is_within(value: Any, limits: TextLimits) -> bool:
    """Whether a value is nested no deeper than `DEPTH_MAX` and has no more values than the limit."""
    count, level = 0, [value]
    for depth in range(DEPTH_MAX + 1):
        count += len(level)
        if count > limits.values:
            return False
        outer = [cast("dict[str, Any] | list[Any]", each) for each in level if isinstance(each, dict | list)]
        if not outer:
            return True
        if depth == DEPTH_MAX:
            return False
        level = [inner for each in outer for inner in (each.values() if isinstance(each, dict) else each)]
    return False


def _standard_input(limits: TextLimits) -> bytes:
    source: Any = getattr(sys.stdin, "buffer", None) or sys.stdin
    data: bytes | str = source.read(limits.bytes + 1)
    return data.encode() if isinstance(data, str) else data


def _bytes_of(path: Path, limits: TextLimits) -> bytes:
    with path.open("rb") as file:
        return file.read(limits.bytes + 1)


class _Frame:
    """A list or object that is being filled. `size` is its number of values, including those that aliases repeat."""

    def __init__(self, value: "dict[str, Any] | list[Any]", anchor: str | None, line: int) -> None:
        self.value = value
        self.anchor = anchor
        self.line = line
        self.key: str | None = None
        """the key whose value is read next"""
        self.lines: dict[str, int] = {}
        """{key: its line}"""
        self.merged: dict[str, Any] = {}
        self.size = 1


class _Reading:
    """Reads one text, one YAML event after another."""

    def __init__(self, text: str, limits: TextLimits) -> None:
        self._loader: Any = None
        self._text = text
        self._limits = limits
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._open: set[str] = set()
        self._result: Any = None

    def documents(self) -> list[YamlDocument]:
        """Read the whole text and return its documents."""
        found: list[YamlDocument] = []
        try:
            self._loader = _Loader(self._text)
            while self._loader.check_event():
                event = self._loader.get_event()
                if isinstance(event, yaml.DocumentStartEvent):
                    self._anchors.clear()
                elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                    if not self._stack:
                        found.append(YamlDocument(None, cast("int", cast("Any", event).start_mark.line) + 1))
                    self._take(event)
                    if not self._stack:
                        found[-1] = msgspec.structs.replace(found[-1], value=self._result)
        except yaml.MarkedYAMLError as exc:
            raise InvalidError(f"neither YAML nor JSON: {_said(exc, self._text)}") from exc
        except (yaml.YAMLError, UnicodeError) as exc:
            raise InvalidError(f"neither YAML nor JSON: {' '.join(str(exc).split())[:200]}") from exc
        finally:
            if self._loader is not None:
                self._loader.dispose()
        return found

    def _take(self, event: Any) -> None:
        match event:
            case yaml.AliasEvent():
                self._alias(event)
            case yaml.ScalarEvent():
                self._scalar(event)
            case yaml.CollectionStartEvent():
                self._begin(event)
            case _:
                self._end()

    def _begin(self, event: Any) -> None:
        is_map = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", f"{_TAG}{'map' if is_map else 'seq'}"):
            self._refuse(event, f"{_plain(event.tag)} is not a plain value")
        if self._stack and isinstance(self._stack[-1].value, dict) and self._stack[-1].key is None:
            self._refuse(event, "a key must be a word")
        if len(self._stack) >= DEPTH_MAX:
            self._refuse(event, f"nested deeper than {DEPTH_MAX} levels")
        if event.anchor:
            self._open.add(event.anchor)
        self._stack.append(_Frame({} if is_map else [], event.anchor, event.start_mark.line))

    def _end(self) -> None:
        frame = self._stack.pop()
        if isinstance(frame.value, dict) and frame.merged:
            frame.value = frame.merged | frame.value
        if frame.anchor:
            self._open.discard(frame.anchor)
        self._put(frame.value, frame.size, frame.anchor, frame.line)

    def _alias(self, event: Any) -> None:
        if event.anchor in self._open:
            self._refuse(event, "an anchor contains itself; write its value out")
        if event.anchor not in self._anchors:
            self._refuse(event, f"there is no anchor {event.anchor}")
        value, size = self._anchors[event.anchor]
        self._put(value, size, None, event.start_mark.line)

    def _scalar(self, event: Any) -> None:
        frame = self._stack[-1] if self._stack else None
        if _HALF.search(event.value):
            self._refuse(event, "half of a character: an escape such as \\ud83d needs its second half")
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if frame is not None and isinstance(frame.value, dict) and frame.key is None:
            self._key(frame, event, tag)
            return
        if tag == f"{_TAG}str":
            value: Any = event.value
        elif tag == f"{_TAG}null":
            value = None
        elif tag in _CONSTRUCT:
            try:
                value = _CONSTRUCT[tag](_constructor, yaml.ScalarNode(tag, event.value))
            except (ValueError, KeyError, OverflowError):
                self._refuse(event, f"{event.value[:40]} is no {tag.removeprefix(_TAG)}")
            if isinstance(value, float) and not math.isfinite(value):
                self._refuse(event, f"{event.value} is not a JSON number; put it in quotes if it is a word")
        else:
            self._refuse(event, f"{_plain(tag)} is not a plain value")
        self._put(value, 1, event.anchor, event.start_mark.line)

    def _key(self, frame: _Frame, event: Any, tag: str) -> None:
        if tag == _MERGE:
            frame.key = _MERGE
            return
        if tag != f"{_TAG}str":
            self._refuse(
                event, f"the key {event.value[:40]} is a {tag.removeprefix(_TAG)}, not a word; put it in quotes"
            )
        if event.value in frame.value:
            frame.key = event.value
            self._refuse(event, f"is given twice (first in line {frame.lines[event.value]}); leave one out")
        frame.key = event.value
        frame.lines[event.value] = event.start_mark.line + 1

    def _put(self, value: Any, size: int, anchor: str | None, line: int) -> None:
        if anchor:
            self._anchors[anchor] = (value, size)
        if not self._stack:
            self._result = value
            return
        frame = self._stack[-1]
        frame.size += size
        if frame.size > self._limits.values:
            raise InvalidError(
                f"{self._path()}: more than {self._limits.values} values, including those that anchors repeat"
            )
        if isinstance(frame.value, list):
            frame.value.append(value)
            return
        key, frame.key = frame.key, None
        if key == _MERGE:
            for part in cast("list[Any]", value) if isinstance(value, list) else [value]:
                if not isinstance(part, dict):
                    raise InvalidError(f"line {line + 1}: << takes an object, or a list of them")
                frame.merged = cast("dict[str, Any]", part) | frame.merged
        elif key is not None:
            frame.value[key] = value

    def _path(self) -> str:
        path = ""
        for frame in self._stack:
            if isinstance(frame.value, list):
                path += f"[{len(frame.value)}]"
            elif frame.key is not None:
                path += f".{frame.key}"
        return path.lstrip(".") or "the file"

    def _refuse(self, event: Any, detail: str) -> NoReturn:
        raise InvalidError(f"{self._path()}: {detail} (line {event.start_mark.line + 1})")


def _plain(tag: str) -> str:
    return tag.replace(_TAG, "!!")[:80]


def _said(error: yaml.MarkedYAMLError, text: str) -> str:
    mark: Any = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "it cannot be read"
    if "cannot start any token" in problem:
        problem = "a character that cannot begin a value; indent lines with spaces only"
    lines = text.count("\n") + (not text.endswith("\n"))
    return f"line {min(mark.line + 1, max(lines, 1))}: {problem}" if mark is not None else problem
