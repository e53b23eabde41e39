"""YAML and JSON that people write, as plain values: read strictly, with the path and the line of whatever is wrong.

Owns which texts are read at all, for files of the command line, scenarios and bodies of requests alike. A key stands
once and is a word; a date stays text; a value is text, a number that JSON has, true or false, null, a list or an
object. Anchors may repeat what they name, and `<<` merges it, up to a limit of the whole. Nothing recurses, so depth is
a limit and not a crash, and reading costs time in proportion to the text.
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
    """How large a text may be."""

    bytes: int
    values: int
    """of one document, with everything that its anchors repeat"""


MANIFEST = TextLimits(3 * 1024 * 1024, 100_000)
"""What launches, objects and policies are written in."""
SCENARIO = TextLimits(16 * 1024 * 1024, 2_000_000)
"""A whole cluster with what waits in it."""
DEPTH_MAX = 64
_TAG = "tag:yaml.org,2002:"
_HALF = re.compile("[\ud800-\udfff]")
_MERGE = f"{_TAG}merge"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    """Dates are words: no field of ours is a date."""

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
    """where it begins; the first line is 1"""


def read_text(name: str, limits: TextLimits) -> str:
    """The text of a file, or of standard input for `-`.

    Raises:
        InvalidError: the file cannot be read, is no text, or is too large.
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
        raise InvalidError(f"{name}, line {line}: cannot be read as text in UTF-8; save it so") from exc


def parse(text: str, limits: TextLimits) -> Any:
    """The value of a text's only document; None when there is none.

    Raises:
        InvalidError: the path, the line, and what is wrong; there is a second document.
    """
    found = documents(text, limits)
    if len(found) > 1:
        raise InvalidError(f"line {found[1].line}: a second document; a file holds one")
    return found[0].value if found else None


def documents(text: str, limits: TextLimits) -> list[YamlDocument]:
    """The documents of a text, empty ones included.

    Raises:
        InvalidError: the path, the line, and what is wrong.
    """
    if len(text) > limits.bytes:
        raise InvalidError(f"the text has more than {limits.bytes} characters")
    plain = _json(text)
    return [YamlDocument(plain, 1)] if plain is not None else _Reading(text, limits).documents()


def _json(text: str) -> Any:
    """A JSON object without surprises; None when it is something else, which is then read as YAML."""

    def paired(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError("a key stands twice; reading as YAML says where")
        return made

    def constant(word: str) -> NoReturn:
        raise InvalidError(f"{word} is no number that JSON has; put it in quotes if it is a word")

    if not text.lstrip().startswith("{"):
        return None
    try:
        plain = json.loads(text, object_pairs_hook=paired, parse_constant=constant)
        if "\\u" in text or not text.isascii():
            json.dumps(plain, ensure_ascii=False).encode()  # refuses half a character; reading as YAML says where it is
    except (ValueError, RecursionError):
        return None
    return plain


def _standard_input(limits: TextLimits) -> bytes:
    source: Any = getattr(sys.stdin, "buffer", None) or sys.stdin
    data: bytes | str = source.read(limits.bytes + 1)
    return data.encode() if isinstance(data, str) else data


def _bytes_of(path: Path, limits: TextLimits) -> bytes:
    with path.open("rb") as file:
        return file.read(limits.bytes + 1)


class _Frame:
    """A list or object that is being filled. `size` counts values, with what anchors repeat."""

    def __init__(self, value: "dict[str, Any] | list[Any]", anchor: str | None, line: int) -> None:
        self.value = value
        self.anchor = anchor
        self.line = line
        self.key: str | None = None
        """the key whose value comes next"""
        self.lines: dict[str, int] = {}
        """where each key stands"""
        self.merged: dict[str, Any] = {}
        self.size = 1


class _Reading:
    """One text, event by event."""

    def __init__(self, text: str, limits: TextLimits) -> None:
        self._loader: Any = None
        self._text = text
        self._limits = limits
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._open: set[str] = set()
        self._result: Any = None

    def documents(self) -> list[YamlDocument]:
        """All of it."""
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
            self._refuse(event, f"{_plain(event.tag)} is no plain value")
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
            self._refuse(event, "an anchor holds itself; write it out")
        if event.anchor not in self._anchors:
            self._refuse(event, f"there is no anchor {event.anchor}")
        value, size = self._anchors[event.anchor]
        self._put(value, size, None, event.start_mark.line)

    def _scalar(self, event: Any) -> None:
        frame = self._stack[-1] if self._stack else None
        if _HALF.search(event.value):
            self._refuse(event, "half of a character, which an escape such as \\ud83d alone is")
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
                self._refuse(event, f"{event.value} is no number that JSON has; put it in quotes if it is a word")
        else:
            self._refuse(event, f"{_plain(tag)} is no plain value")
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
            self._refuse(event, f"stands twice (before in line {frame.lines[event.value]}); leave one out")
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
            raise InvalidError(f"{self._path()}: more than {self._limits.values} values, with what anchors repeat")
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
        problem = "a character that begins no value; where lines are indented, only blanks may stand"
    lines = text.count("\n") + (not text.endswith("\n"))
    return f"line {min(mark.line + 1, max(lines, 1))}: {problem}" if mark is not None else problem
