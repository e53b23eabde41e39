"""YAML and JSON that people write, strictly: what is ambiguous is refused with its line instead of guessed.

Owns which documents a text may hold: plain ones, as JSON could say them. Keys stand once and are words; dates stay
text; anchors may not blow up; what a document becomes has a limit.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any, NoReturn, cast

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from slipway.errors import InvalidError

Json = dict[str, Any]

BYTES_MAX = 3 * 1024 * 1024
NODES_MAX = 100_000
"""Of one document, with everything that anchors repeat."""
DEPTH_MAX = 64
_PLAIN = ("map", "seq", "str", "int", "float", "bool", "null")
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Dates are words: nothing else here has a type that JSON has not."""

    yaml_implicit_resolvers = {
        letter: [(tag, pattern) for tag, pattern in rows if tag != f"{_TAG}timestamp"]
        for letter, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read(name: str, option: str = "--filename") -> str:
    """The file, or standard input for `-`.

    Raises:
        InvalidError: it can not be read, is no text, or is too large.
    """
    try:
        data = _standard_input() if name == "-" else _bytes_of(Path(name))
    except OSError as exc:
        raise InvalidError(f"{option}: {name} can not be read: {exc.strerror or exc}") from exc
    if len(data) > BYTES_MAX:
        raise InvalidError(f"{option}: {name} has more than {BYTES_MAX} bytes; it holds more than launches")
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        raise InvalidError(f"{option}: {name}, line {line}: can not be read as text in UTF-8; save it so") from exc


def of_file(name: str, option: str = "--filename") -> list[Json]:
    """The documents of a file, or of standard input. Raises InvalidError."""
    return documents(read(name, option), name, option)


def documents(text: str, name: str = "", option: str = "--filename") -> list[Json]:
    """The documents of a YAML or JSON text that are not empty; there is at least one.

    Raises:
        InvalidError: with the file, the document when there are several, the line, and what to write instead.
    """
    where = f"{option}: {name}" if name and name != "-" else option
    plain = _json(text, where)
    if plain is not None:
        return [plain]
    found: list[Json] = []
    loader: Any = None
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                continue
            _check(node, where)
            value = loader.construct_document(node)
            if value is None:
                continue
            if not isinstance(value, dict):
                _refuse(where, node, f"a document must be an object (name: value), not {_kind(value)}")
            found.append(cast("Json", value))
    except yaml.MarkedYAMLError as exc:
        raise InvalidError(f"{where}: neither YAML nor JSON: {_said(exc)}") from exc
    except yaml.reader.ReaderError as exc:
        at: Any = exc.position
        line = text[: int(at)].count("\n") + 1
        raise InvalidError(f"{where}, line {line}: neither YAML nor JSON: a control character") from exc
    except (yaml.YAMLError, ValueError, OverflowError) as exc:
        raise InvalidError(f"{where}: neither YAML nor JSON: {exc}") from exc
    except RecursionError as exc:
        raise InvalidError(f"{where}: nested too deeply") from exc
    finally:
        if loader is not None:
            loader.dispose()
    if not found:
        raise InvalidError(f"{where}: there is nothing in it")
    return found


def _json(text: str, where: str) -> Json | None:
    """The text when it is a JSON object, tabs and all; None when it is something else."""

    def paired(pairs: list[tuple[str, Any]]) -> Json:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidError(f"{where}: {twice} stands twice in one object; leave one out")
        return made

    def constant(word: str) -> NoReturn:
        raise InvalidError(f"{where}: {word} is no number that JSON has")

    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text, object_pairs_hook=paired, parse_constant=constant)
    except (ValueError, RecursionError):
        return None
    return cast("Json", value)


def _standard_input() -> bytes:
    source: Any = getattr(sys.stdin, "buffer", None) or sys.stdin
    data: bytes | str = source.read(BYTES_MAX + 1)
    return data.encode() if isinstance(data, str) else data


def _bytes_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(BYTES_MAX + 1)


def _check(root: Node, where: str) -> None:
    """Refuses what JSON can not say, keys that stand twice, and anchors that blow up."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(node: Node, depth: int) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in open_:
            _refuse(where, node, "an anchor holds itself; write it out")
        if depth > DEPTH_MAX:
            _refuse(where, node, f"nested deeper than {DEPTH_MAX} levels")
        _check_tag(node, where)
        open_.add(id(node))
        total = 1
        if isinstance(node, MappingNode):
            _check_keys(node, where)
            total += sum(size(value, depth + 1) for _, value in node.value)
        elif isinstance(node, SequenceNode):
            total += sum(size(item, depth + 1) for item in node.value)
        open_.discard(id(node))
        if total > NODES_MAX:
            _refuse(where, node, f"more than {NODES_MAX} values, with what its anchors repeat")
        sizes[id(node)] = total
        return total

    size(root, 0)


def _check_tag(node: Node, where: str) -> None:
    kind = node.tag.removeprefix(_TAG)
    if node.tag == kind or kind not in _PLAIN:
        _refuse(
            where, node, f"{node.tag.replace(_TAG, '!!')} is no plain value; write text, numbers, lists and objects"
        )
    if kind == "float" and isinstance(node, ScalarNode) and not math.isfinite(_number(node.value)):
        _refuse(where, node, f"{node.value} is no number that JSON has; put it in quotes if it is a word")


def _check_keys(node: MappingNode, where: str) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            _refuse(where, key, "a key must be a word")
        if key.tag == f"{_TAG}merge":
            _refuse(where, key, "<< merges nothing here; write the fields out, or use a template")
        if key.tag != f"{_TAG}str":
            _refuse(where, key, f"the key {key.value} is a {key.tag.removeprefix(_TAG)}, not a word; put it in quotes")
        if key.value in seen:
            _refuse(where, key, f"{key.value} stands here twice (before in line {seen[key.value]}); leave one out")
        seen[key.value] = key.start_mark.line + 1


def _number(text: str) -> float:
    try:
        return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan").lower())
    except ValueError:
        return 0.0


def _refuse(where: str, node: Any, detail: str) -> NoReturn:
    raise InvalidError(f"{where}, line {node.start_mark.line + 1}: {detail}")


def _said(error: yaml.MarkedYAMLError) -> str:
    mark: Any = error.problem_mark or error.context_mark
    problem = error.problem or "it can not be read"
    if "\\t" in problem:
        problem = "a tab stands where only blanks may; indent with blanks"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark is not None else problem


def _kind(value: object) -> str:
    return {"list": "a list", "str": "a word", "bool": "true or false"}.get(type(value).__name__, "a number")
