"""Duplicate fields in a JSON document: the parser keeps the last value, and the server reports each duplicate.

Pure. Invariant: a document without duplicates costs one encoding and two counts. Only a document that may contain
duplicates is parsed again.
"""

import json
import re
from typing import Any

import msgspec

from slipway.local.apiserver.objects import is_list

_SPACED = re.compile(rb'"\s+:')


def find(body: bytes, document: Any) -> tuple[list[str], dict[str, int]]:
    """Return (paths of duplicates, {path: position of its first occurrence}); both are empty without duplicates."""
    if body.count(b'":') == msgspec.json.encode(document).count(b'":') and not _SPACED.search(body):
        return [], {}
    found = list[str]()
    order: dict[str, int] = {}
    _walk(json.loads(body, object_pairs_hook=_Pairs), "", found, order)
    return (found, order) if found else ([], {})


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as pairs in document order, duplicates included."""


def _walk(value: Any, path: str, found: list[str], order: dict[str, int]) -> None:
    if isinstance(value, _Pairs):
        seen = set[str]()
        for name, item in value:
            where = f"{path}.{name}" if path else name
            if name in seen and where not in found:
                found.append(where)
            seen.add(name)
            order.setdefault(where, len(order))
            _walk(item, where, found, order)
    elif is_list(value):
        for index, item in enumerate(value):
            _walk(item, f"{path}[{index}]", found, order)
