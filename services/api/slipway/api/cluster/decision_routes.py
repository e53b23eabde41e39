"""The decision log of a pool: every tick that decided something, as the scheduler recorded it, for `slipway replay`.

Only the scheduler knows the meaning of an entry's data. This module only returns entries, with all that they build on.
"""

import base64

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.deps import parts_of
from slipway.api.http.endpoint import Endpoint, Query, flag_param, json_response, number_param, optional_number
from slipway.api.http.errors import needs_redis
from slipway.kube.resources import RESOURCE_POOLS
from slipway.streams.decisions import CHAIN_MAX, DecisionEntry, StoredDecision

PAGE_BYTES = 8 * 1024 * 1024
"""Limit of the data in a page: the page ends with the entry that reaches it."""
PAGE_MAX = 500
READ_AT_ONCE = 50
"""Number of entries in one read of the log."""


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded tick. `data` is base64 of the record (zlib of JSON, and a digest); null unless requested."""

    cursor: str
    chain: str
    """the chain of the entry: an entry needs all entries of its chain with lower numbers"""
    number: int
    """0 for the base of the chain, which has all facts; later entries have only the changed facts"""
    tick: int
    size: int
    """bytes of the record"""
    data: str | None = None


class PageMeta(msgspec.Struct, frozen=True, kw_only=True, rename={"following": "continue"}):
    """The cursor of the next page."""

    following: str
    """value of `after` for the next page; empty at the end"""


class DecisionPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a decision log, oldest first."""

    items: list[DecisionView]
    metadata: PageMeta


async def decisions(request: Request) -> Response:
    """Return the recorded ticks of a range, with all entries that they build on."""
    parts, pool = parts_of(request), request.path_params["pool"]
    limit = number_param(request, "limit", default=100, least=1, most=PAGE_MAX)
    first, last = optional_number(request, "from"), optional_number(request, "to")
    with_data = flag_param(request, "data", default=True)
    cursor = request.query_params.get("after") or None
    await parts.kube.get(RESOURCE_POOLS, pool)
    found: list[DecisionView] = []
    size = 0
    with needs_redis("the decision log"):
        while page := await parts.decisions.read(pool, after=cursor, limit=READ_AT_ONCE):
            for stored in page:
                cursor = stored.cursor
                if is_wanted(stored.entry, first, last):
                    found.append(_view(stored, with_data=with_data))
                    size += len(stored.entry.data) if with_data else 0
                if len(found) >= limit or size >= PAGE_BYTES:
                    return json_response(DecisionPage(items=found, metadata=PageMeta(following=cursor)))
    return json_response(DecisionPage(items=found, metadata=PageMeta(following="")))


def is_wanted(entry: DecisionEntry, first: int | None, last: int | None) -> bool:
    """Whether an entry belongs to a range of ticks, or an entry of the range may build on it."""
    if last is not None and entry.tick > last:
        return False
    base = entry.tick - entry.number
    return first is None or base + CHAIN_MAX > first


def _view(stored: StoredDecision, *, with_data: bool) -> DecisionView:
    entry = stored.entry
    return DecisionView(
        cursor=stored.cursor,
        chain=entry.chain,
        number=entry.number,
        tick=entry.tick,
        size=len(entry.data),
        data=base64.b64encode(entry.data).decode() if with_data else None,
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/pools/{pool}/decisions",
        handler=decisions,
        summary="Read the decision log of a pool, for `slipway replay`",
        tag="cluster",
        query=(
            Query("from", "only ticks from this number on, and the entries that they build on", "integer"),
            Query("to", "only ticks up to this number", "integer"),
            Query("after", "continue after this cursor"),
            Query("limit", "maximum number of entries", "integer"),
            Query("data", "false: without the records themselves", "boolean"),
        ),
        answer=DecisionPage,
    ),
)
