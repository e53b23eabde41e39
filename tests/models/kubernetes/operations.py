"""Operations: requests that refer to values by the answer that first showed them, so that two servers can get the same
requests.

Owns the form of an operation, its references, and rendering it for one server. A reference may be in any text of path,
query or body: `«uid:3»` is the uid that the answer to operation 3 showed first, `«version:3»` its resourceVersion,
`«continue:3»` its continue token; `«lane»` is the namespace of the sequence, and the prefix of cluster-wide names.
Invariant: an operation is plain data; rendered with equal knowledge it is the same request.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

Json = dict[str, Any]

LANE = "«lane»"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
PLAIN = "application/json"
_REFERENCE = re.compile(r"«(?:(uid|version|continue):(\d+)|lane)»")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `number` identifies it within its sequence, also after others were removed."""

    number: int
    method: str
    path: str
    query: Mapping[str, str] = {}
    body: Any = None
    media: str = PLAIN

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def references(self) -> set[int]:
        """The operations whose answers it refers to."""
        text = f"{self.path} {self.query} {msgspec.json.encode(self.body).decode()}"
        return {int(number) for _, number in _REFERENCE.findall(text) if number}

    def told(self) -> str:
        """The operation in readable form."""
        query = "&".join(f"{name}={value}" for name, value in self.query.items())
        body = "" if self.body is None else f" {msgspec.json.encode(self.body).decode()}"
        media = "" if self.media == PLAIN else f" ({self.media})"
        return f"#{self.number} {self.method} {self.path}{'?' if query else ''}{query}{media}{body}"


class Request(msgspec.Struct, frozen=True):
    """The request of an operation for one server."""

    method: str
    path: str
    query: str
    body: bytes
    media: str


class Answer(msgspec.Struct, frozen=True):
    """The answer of a server."""

    code: int
    body: Json


class KnownValues:
    """The values in the answers of one server to one sequence."""

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self._seen: dict[tuple[str, int], str] = {}

    def learn(self, operation: Operation, answer: Answer) -> None:
        """Store the values that later operations may refer to."""
        meta: Json = answer.body.get("metadata") or {}
        names = (("uid", "uid"), ("version", "resourceVersion"), ("continue", "continue"))
        for kind, field in names:
            if answer.code < 300 and meta.get(field):
                self._seen[kind, operation.number] = str(meta[field])

    def render(self, operation: Operation) -> Request:
        """The operation with its references filled in."""
        pairs = [f"{quote(name)}={quote(self._fill(value))}" for name, value in operation.query.items()]
        body = b"" if operation.body is None else self._fill(msgspec.json.encode(operation.body).decode()).encode()
        return Request(operation.method, self._fill(operation.path), "&".join(pairs), body, operation.media)

    def _fill(self, text: str) -> str:
        return _REFERENCE.sub(self._value, text)

    def _value(self, match: re.Match[str]) -> str:
        if match[1] is None:
            return self.lane
        return self._seen.get((match[1], int(match[2])), "0")
