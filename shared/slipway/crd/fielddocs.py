"""Finds the descriptions of struct fields: the string below each field in the source.

Reads source files; knows no schema.

A program without its source files gets no descriptions, and no error.
"""

import ast
import inspect
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import msgspec


def doc_of(struct: type, field: str) -> str:
    """Return the string below a field, from the struct itself or else from the nearest base struct; empty: none."""
    for each in struct.__mro__:
        if each is msgspec.Struct or not issubclass(each, msgspec.Struct):
            continue
        found = field_docs(_source_of(each)).get((each.__name__, field))
        if found:
            return found
    return ""


def _source_of(struct: type) -> str:
    try:
        return inspect.getsourcefile(struct) or ""
    except (OSError, TypeError):
        return ""


@lru_cache(maxsize=32)
def field_docs(source: str) -> Mapping[tuple[str, str], str]:
    """Return `{(class, attribute): the string below it}` of a source file."""
    path = Path(source)
    docs: dict[tuple[str, str], str] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body if source and path.is_file() else ():
        if not isinstance(node, ast.ClassDef):
            continue
        for field, below in pairwise(node.body):
            match (field, below):
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[node.name, name] = " ".join(text.split())
                case _:
                    pass
    return docs
