"""What the source says of the fields of structs: the string below each. Reads source files; knows no schema.

A program that runs without its source gets no texts, and no error.
"""

import ast
import inspect
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import msgspec


def doc_of(struct: type, field: str) -> str:
    """The string below a field in the struct that says it last, else in those that it extends; empty: none."""
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
    """`{(class, attribute): the string below it}` of a module's source."""
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
