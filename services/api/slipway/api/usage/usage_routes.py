"""Usage: sums by user, queue, pool, workspace, kind, day or month; and one line per allocation.

The use of ended allocations is read from the daily totals, also when their objects were deleted long ago. The use of
running allocations, and of ended ones that are not in the totals yet, is computed from the objects at the request.
"""

import re
from collections.abc import Collection, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from slipway.accounting.daily_totals import KeyUsage, usage_by_key
from slipway.accounting.usage import DAY_MS, day_of, ms_of
from slipway.api.allocations.listing import FilterNames, IsRemembered, What, check_filter_names
from slipway.api.auth.middleware import visible_workspaces_of, workspaces_of
from slipway.api.auth.principal import VisibleWorkspaces
from slipway.api.deps import parts_of
from slipway.api.http.endpoint import Endpoint, Query, accepts, bad_param, json_response
from slipway.api.http.streaming import holder_of
from slipway.api.usage import usage_view
from slipway.api.usage.past_usage import read_days
from slipway.api.usage.usage_view import DIMENSIONS, RawView, UsageView, Wanted
from slipway.crd.figures import DayTotals
from slipway.crd.v1alpha1 import Allocation

TAG = "usage"
DAYS_DEFAULT = 30
DAYS_MAX = 400
DAYS_FREE = 62
"""Up to this number of days, a request needs no place among the concurrent requests about many days."""
CSV_TYPE = "text/csv"
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_FILTERS = ("workspace", "user", "pool", "queue", "kind")
_QUERY = (
    Query("from", f"first day (UTC), such as 2026-01-02; default: {DAYS_DEFAULT} days ago"),
    Query("to", "last day, inclusive; default: today"),
    *(Query(name, f"only use by this {name}") for name in _FILTERS),
    Query("format", "json or csv; default: by the Accept header"),
)


async def usage(request: Request) -> Response:
    """Return sums of the usage by the requested dimensions."""
    parts = parts_of(request)
    by = by_of(request.query_params.get("by", ""))
    days = days_of(request, parts.clock.now())
    is_csv = wants_csv(request)
    wanted = _wanted(request)
    visible = await visible_workspaces_of(request)
    seen = [each for each in await spent_on(request, days) if visible.has(each.key[0])]
    spent = [each for each in seen if usage_view.is_wanted(each, wanted)]
    if not spent:
        await check_filter_names(
            parts.kube, _named(wanted), partial(workspaces_of, request), in_totals(request, visible)
        )
    rows = usage_view.grouped(spent, by)
    if is_csv:
        return _csv(usage_view.usage_csv(rows, by), f"usage-{days[0]}-{days[-1]}.csv")
    return json_response(UsageView(by=by, from_=days[0], to=days[-1], items=rows, total=usage_view.whole(spent)))


async def raw(request: Request) -> Response:
    """Return one line for each allocation whose object still exists."""
    parts, now = parts_of(request), parts_of(request).clock.now()
    days = days_of(request, now)
    is_csv = wants_csv(request)
    one = request.query_params.get("id", "")
    if one:
        allocations = [await parts.lookup.find(one)]
    else:
        visible = await visible_workspaces_of(request)
        allocations = [each for each in await parts.seen.brief() if visible.has(each.metadata.namespace)]
    rows = usage_view.raw_rows(allocations, days, _wanted(request), now)
    if not rows and not one:
        remembered = in_totals(request, await visible_workspaces_of(request))
        await check_filter_names(parts.kube, _named(_wanted(request)), partial(workspaces_of, request), remembered)
    if is_csv:
        return _csv(usage_view.raw_csv(rows), f"allocations-{days[0]}-{days[-1]}.csv")
    return json_response(RawView(from_=days[0], to=days[-1], items=rows))


async def spent_on(
    request: Request, days: Sequence[str], allocations: Sequence[Allocation] | None = None
) -> list[KeyUsage]:
    """Return all usage of these days in all workspaces.

    `allocations` are all allocations, if the caller has just listed them. The objects are read before the totals: an
    allocation that is added to the totals in between is marked there, and so not counted twice.
    """
    parts = parts_of(request)
    if allocations is None:
        allocations = await parts.seen.brief()
    stored = await _stored(request, days)
    return usage_by_key(days, stored, allocations, parts.clock.now())


async def _stored(request: Request, days: Sequence[str]) -> dict[str, DayTotals]:
    """Return the totals of these days. Each day is one read of the API server, so few long requests run at a time."""
    parts = parts_of(request)
    if len(days) <= DAYS_FREE:
        return await read_days(parts, days)
    with parts.totals_places.held(holder_of(request).user):
        return await read_days(parts, days)


def in_totals(request: Request, visible: VisibleWorkspaces) -> IsRemembered:
    """Return a check whether the totals of the last DAYS_MAX days name a workspace, a queue or a pool."""

    async def is_named(what: What, name: str) -> bool:
        today_ms = round(parts_of(request).clock.now() * 1000) // DAY_MS * DAY_MS
        days = [day_of(today_ms - back * DAY_MS) for back in range(DAYS_MAX)]
        rows = [
            row for day in (await _stored(request, days)).values() for row in day.rows if visible.has(row.workspace)
        ]
        return any(name == {"workspace": row.workspace, "pool": row.pool, "queue": row.queue}.get(what) for row in rows)

    return is_named


def days_of(request: Request, now: float, *, default: int = DAYS_DEFAULT) -> list[str]:
    """Return the requested days, oldest first. Raises InvalidError for a wrong or too long range."""
    today_ms = round(now * 1000) // DAY_MS * DAY_MS
    to_ms = _day_ms(request, "to", today_ms)
    from_ms = _day_ms(request, "from", to_ms - (default - 1) * DAY_MS)
    if from_ms > to_ms:
        raise bad_param("from", f"{day_of(from_ms)} is after {day_of(to_ms)}")
    if to_ms - from_ms >= DAYS_MAX * DAY_MS:
        raise bad_param("from", f"at most {DAYS_MAX} days at once; ask for {day_of(to_ms - (DAYS_MAX - 1) * DAY_MS)}")
    return [day_of(at_ms) for at_ms in range(from_ms, to_ms + 1, DAY_MS)]


def _day_ms(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        found = ms_of(f"{text}T00:00:00Z") if _DAY.fullmatch(text) is not None else -1
    except ValueError:
        found = -1
    if found < 0:
        raise bad_param(name, f"must be a day from 1970 on, such as 2026-01-02, not {text[:64]!r}")
    return found


def by_of(text: str, known: Collection[str] = DIMENSIONS, *, default: str = "user") -> list[str]:
    """Return the dimensions to sum by, in the given order. Raises InvalidError for an unknown one."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip())) or [default]
    for name in names:
        if name not in known:
            raise bad_param("by", f"must be one of {', '.join(known)}, not {name[:64]!r}")
    return names


def wants_csv(request: Request) -> bool:
    """Whether the answer has to be CSV: the parameter `format` has precedence over Accept."""
    given = request.query_params.get("format", "")
    if given not in ("", "json", "csv"):
        raise bad_param("format", f"must be json or csv, not {given[:64]!r}")
    return given == "csv" or (not given and accepts(request, CSV_TYPE))


def _named(wanted: Wanted) -> FilterNames:
    return FilterNames(workspace=wanted["workspace"], pool=wanted["pool"], queue=wanted["queue"])


def _wanted(request: Request) -> dict[str, str]:
    return {name: request.query_params.get(name, "") for name in _FILTERS}


def _csv(text: str, filename: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{filename}"', "Cache-Control": "no-store"}
    return Response(text, media_type=CSV_TYPE, headers=headers)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/usage",
        handler=usage,
        summary="Sum the use of resources",
        tag=TAG,
        query=(
            Query("by", f"group by {', '.join(DIMENSIONS)}, or several of them, separated by commas; default: user"),
            *_QUERY,
        ),
        answer=UsageView,
        media_types=("application/json", CSV_TYPE),
    ),
    Endpoint(
        method="GET",
        path="/api/v1/usage/raw",
        handler=raw,
        summary="List the use of resources by each allocation",
        tag=TAG,
        query=(Query("id", "only use by this allocation (AllocationID or name)"), *_QUERY),
        answer=RawView,
        media_types=("application/json", CSV_TYPE),
    ),
)
