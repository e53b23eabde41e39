"""Lists in an order that the client chooses, page by page. Pure.

Kubernetes pages in the order of names, so any other order needs the whole list. The page token contains the sort keys
of the last item of a page. The next page begins directly behind these keys, whatever was added or deleted.

Invariant: a client that follows `continue` to the end gets each allocation that matches all the time exactly once.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from slipway.api.allocations.listing import ListFilter
from slipway.api.http.endpoint import bad_param
from slipway.crd.transitions import user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.ports import Listed

TOKEN = "order."  # noqa: S105 - the beginning of a page token, not a secret
FIELDS_MAX = 4
Value = str | int
Row = tuple[list[Value], str]
"""(values to sort by, uid); the uid orders allocations with equal values."""

FIELDS: Mapping[str, Callable[[Allocation], Value]] = {
    "createdAt": lambda each: each.metadata.creation_timestamp or "",
    "startedAt": lambda each: each.status.started_at,
    "endedAt": lambda each: each.status.ended_at,
    "name": lambda each: each.metadata.name,
    "workspace": lambda each: each.metadata.namespace,
    "user": user_of,
    "queue": lambda each: each.spec.queue,
    "kind": lambda each: each.spec.kind.value,
    "phase": lambda each: each.status.phase.value,
    "result": lambda each: each.status.result.value if each.status.result else "",
    "priority": lambda each: each.spec.priority,
    "attempt": lambda each: each.status.attempt,
}
"""The fields that a client may sort by. Empty values are last in both directions."""


class Sorting(msgspec.Struct, frozen=True):
    """An order such as `-endedAt,name`: several fields, each ascending or descending."""

    fields: tuple[tuple[str, bool], ...]
    """(field, whether descending)"""

    @classmethod
    def parse(cls, text: str) -> "Sorting":
        """Parse the `sort` parameter. Raises MalformedError for an unknown field, or more than `FIELDS_MAX`."""
        found: list[tuple[str, bool]] = []
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name = part.lstrip("-")
            if name not in FIELDS or part.count("-") > 1:
                raise bad_param("sort", f"must be one of {', '.join(FIELDS)}, with - for descending, not {part[:64]!r}")
            found.append((name, part.startswith("-")))
        if len(found) > FIELDS_MAX:
            raise bad_param("sort", f"at most {FIELDS_MAX} fields")
        return cls(tuple(found))

    def row(self, allocation: Allocation) -> Row:
        """Return the sort key of an allocation."""
        return [FIELDS[name](allocation) for name, _ in self.fields], allocation.metadata.uid

    def sorted(self, rows: Iterable[tuple[Row, Allocation]]) -> list[tuple[Row, Allocation]]:
        """Sort in the order of `compare`: by stable sorts from the last field to the first."""
        found = sorted(rows, key=lambda item: item[0][1])
        for place, (_, descending) in reversed(list(enumerate(self.fields))):
            found.sort(key=_key(place, descending=descending), reverse=descending)
        return found

    def compare(self, one: Row, other: Row) -> int:
        """Return a negative number when `one` is first, positive when `other` is, else 0."""
        for (_, descending), mine, theirs in zip(self.fields, one[0], other[0], strict=True):
            if mine == theirs:
                continue
            if mine == "" or theirs == "":
                return 1 if mine == "" else -1
            is_before = str(mine) < str(theirs) if isinstance(mine, str) else int(mine) < int(theirs)
            return -1 if is_before is not descending else 1
        return (one[1] > other[1]) - (one[1] < other[1])


def _key(place: int, *, descending: bool) -> Callable[[tuple[Row, Allocation]], tuple[bool, Value]]:
    """Return a sort key for one field; empty values are last in both directions."""

    def key(item: tuple[Row, Allocation]) -> tuple[bool, Value]:
        value = item[0][0][place]
        return (value == "") is not descending, value

    return key


def ordered_page(
    listed: Listed[Allocation], wanted: ListFilter, order: Sorting, *, limit: int, continue_: str
) -> Listed[Allocation]:
    """Return the next page of the matching allocations in this order.

    `listed` must be the whole list. Raises MalformedError when `continue_` is not a token of this list in this order.
    """
    after = _read(continue_, order) if continue_ else None
    rows = order.sorted([(order.row(each), each) for each in listed.items if wanted.has(each)])
    rest = [item for item in rows if after is None or order.compare(item[0], after) > 0]
    page = rest[:limit]
    more = len(rest) > limit
    return msgspec.structs.replace(
        listed,
        items=[each for _, each in page],
        continue_=_token(page[-1][0], order) if more else "",
        remaining_item_count=len(rest) - limit if more else None,
    )


def _token(row: Row, order: Sorting) -> str:
    raw = msgspec.json.encode([_name(order), row[0], row[1]])
    return TOKEN + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _read(token: str, order: Sorting) -> Row:
    refused = bad_param("continue", "does not come from a page of this list in this order; begin again without it")
    if not token.startswith(TOKEN):
        raise refused
    text = token.removeprefix(TOKEN)
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        name, values, uid = msgspec.json.decode(raw, type=tuple[str, list[Value], str])
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise refused from error
    if name != _name(order) or not _fits(values, order):
        raise refused
    return values, uid


def _fits(values: Sequence[Value], order: Sorting) -> bool:
    numbers = ("priority", "attempt")
    kinds = [
        isinstance(value, int) == (name in numbers) for (name, _), value in zip(order.fields, values, strict=False)
    ]
    return len(values) == len(order.fields) and all(kinds)


def _name(order: Sorting) -> str:
    return ",".join(f"-{name}" if descending else name for name, descending in order.fields)
