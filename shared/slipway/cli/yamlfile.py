"""The files that a command reads: their documents; errors begin with the option and the file."""

from typing import Any, cast

from slipway import yaml_reader
from slipway.errors import InvalidError

Json = dict[str, Any]


def read(name: str, option: str = "--filename") -> str:
    """Return the text of the file, or of standard input for `-`.

    Raises:
        InvalidError: the file cannot be read, is not text, or is too large.
    """
    try:
        return yaml_reader.read_text(name, yaml_reader.MANIFEST)
    except InvalidError as exc:
        raise InvalidError(f"{option}: {exc}") from exc


def of_file(name: str, option: str = "--filename") -> list[Json]:
    """Return the documents of a file, or of standard input. Raises InvalidError."""
    return documents(read(name, option), name, option)


def documents(text: str, name: str = "", option: str = "--filename") -> list[Json]:
    """Return the non-empty documents of a YAML or JSON text; there is at least one.

    Raises:
        InvalidError: the text is invalid; the error has the file, the path, the line, and what to write instead.
    """
    where = f"{option}: {name}" if name and name != "-" else option
    try:
        found = [each for each in yaml_reader.documents(text, yaml_reader.MANIFEST) if each.value is not None]
    except InvalidError as exc:
        raise InvalidError(f"{where}: {exc}") from exc
    if not found:
        raise InvalidError(f"{where}: it contains no document")
    for each in found:
        if not isinstance(each.value, dict):
            kind = _kind(each.value)
            raise InvalidError(f"{where}, line {each.line}: a document must be an object (name: value), not {kind}")
    return [cast("Json", each.value) for each in found]


def _kind(value: object) -> str:
    return {"list": "a list", "str": "a word", "bool": "true or false"}.get(type(value).__name__, "a number")
