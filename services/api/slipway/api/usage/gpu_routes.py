"""The utilisation of GPUs, by the allocations that hold them. Needs a Prometheus with GPU metrics of the cluster."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from slipway.accounting.usage import ms_of
from slipway.api.allocations.listing import FilterNames, check_filter_names
from slipway.api.auth.middleware import visible_workspaces_of, workspaces_of
from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http.endpoint import Endpoint, Query, bad_param, flag_param, json_response
from slipway.api.http.streaming import holder_of
from slipway.api.usage.gpu_days import (
    DAY_S,
    DAYS_MAX,
    DIMENSIONS,
    GpuDay,
    GpuDaysView,
    day_query,
    grouped,
    owner_of,
    owners_of,
    read_day,
    row_of,
)
from slipway.api.usage.gpu_use import (
    WINDOW_S,
    AllocationGpuUse,
    GpuUseView,
    PodGpuUse,
    PodKey,
    query_of,
    read_use,
    use_of,
)
from slipway.api.usage.prometheus import Prometheus
from slipway.api.usage.usage_routes import by_of, days_of
from slipway.crd.transitions import id_of, user_of
from slipway.model.lifecycle import Phase

ROOT = "/api/v1/gpu-use"
DAYS_AT_ONCE = 4
_KEY = "use"


async def gpu_use(request: Request) -> Response:
    """Return the GPU utilisation of the running allocations."""
    parts, settings = parts_of(request), parts_of(request).settings
    ask = request.query_params
    only_idle = flag_param(request, "idle")
    rows: list[AllocationGpuUse] = []
    prometheus = parts.prometheus
    if prometheus is not None:
        visible = await visible_workspaces_of(request)
        wanted = [
            each
            for each in await parts.seen.live()
            if each.status.phase is Phase.RUNNING
            and visible.has(each.metadata.namespace)
            and _passes(ask.get("workspace"), each.metadata.namespace)
            and _passes(ask.get("user"), user_of(each))
            and _passes(ask.get("id"), id_of(each), each.metadata.name)
        ]
        if wanted:
            rows = use_of(
                wanted,
                await _use(parts, prometheus),
                now=parts.clock.now(),
                idle_s=settings.gpu_idle_s,
                idle_percent=settings.gpu_idle_percent,
            )
    if not rows:
        await check_filter_names(
            parts.kube, FilterNames(workspace=ask.get("workspace", "")), partial(workspaces_of, request)
        )
    view = GpuUseView(
        is_configured=prometheus is not None,
        window_seconds=WINDOW_S,
        idle_seconds=settings.gpu_idle_s,
        idle_percent=settings.gpu_idle_percent,
        items=[row for row in rows if row.is_idle or not only_idle],
    )
    return json_response(view)


def _passes(wanted: str | None, *names: str) -> bool:
    """Whether a filter accepts something with these names; a missing or empty filter accepts everything."""
    return not wanted or wanted in names


async def _use(parts: ApiDeps, prometheus: Prometheus) -> Mapping[PodKey, PodGpuUse]:
    """Return the GPU utilisation of all pods; requests within a short time share one query."""

    async def load() -> Mapping[PodKey, PodGpuUse]:
        return read_use(await prometheus.ask(query_of(parts.settings.gpu_use_query, parts.settings.gpu_idle_s)))

    return await parts.gpu_use.get(_KEY, load)


async def gpu_use_days(request: Request) -> Response:
    """Return the GPU utilisation of past days, and of today until now."""
    parts, ask = parts_of(request), request.query_params
    by, days = (
        by_of(ask.get("by", ""), DIMENSIONS, default="day"),
        days_of(request, parts.clock.now(), default=DAYS_MAX),
    )
    if len(days) > DAYS_MAX:
        raise bad_param("from", f"at most {DAYS_MAX} days at once; ask for {days[-DAYS_MAX]}")
    found: list[GpuDay] = []
    visible, prometheus = await visible_workspaces_of(request), parts.prometheus
    owners = owners_of(each for each in await parts.seen.brief() if visible.has(each.metadata.namespace))
    if prometheus is not None:
        found = [
            each
            for each in await _of_days(parts, prometheus, days, user=holder_of(request).user)
            if visible.has(each.pod[0])
            and _passes(ask.get("workspace"), each.pod[0])
            and (not ask.get("user") or ((owner := owner_of(each, owners)) and user_of(owner) == ask["user"]))
        ]
    if not found:
        await check_filter_names(
            parts.kube, FilterNames(workspace=ask.get("workspace", "")), partial(workspaces_of, request)
        )
    view = GpuDaysView(
        is_configured=prometheus is not None,
        by=by,
        from_=days[0],
        to=days[-1],
        items=grouped(found, owners, by),
        total=row_of({}, found),
    )
    return json_response(view)


async def _of_days(parts: ApiDeps, prometheus: Prometheus, days: Sequence[str], *, user: str) -> list[GpuDay]:
    """Return the GPU utilisation of workspace pods by day; the result for a day is cached for some minutes.

    A day is an expensive query with a large answer. So a request with a day that is not cached needs one of the few
    `gpu_days_places`.
    """
    if all(map(parts.gpu_days.is_known, days)):
        return await _asked(parts, prometheus, days)
    with parts.gpu_days_places.held(user):
        return await _asked(parts, prometheus, days)


async def _asked(parts: ApiDeps, prometheus: Prometheus, days: Sequence[str]) -> list[GpuDay]:
    query, slots = day_query(parts.settings.gpu_use_query), asyncio.Semaphore(DAYS_AT_ONCE)
    workspaces = frozenset(await parts.catalog.workspaces())

    async def load(day: str) -> list[GpuDay]:
        async with slots:
            samples = await prometheus.ask(query, at=ms_of(f"{day}T00:00:00Z") / 1000 + DAY_S - 1)
        return [each for each in read_day(day, samples) if each.pod[0] in workspaces]

    pages = await asyncio.gather(*(parts.gpu_days.get(day, partial(load, day)) for day in days))
    return [each for page in pages for each in page]


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=ROOT,
        handler=gpu_use,
        summary="Show how busy GPUs are, and which allocations hold them",
        tag="usage",
        query=(
            Query("workspace", "only GPUs held in this workspace"),
            Query("user", "only GPUs held by this user"),
            Query("id", "only GPUs of this allocation"),
            Query("idle", "true: only allocations whose GPUs are idle", "boolean"),
        ),
        answer=GpuUseView,
    ),
    Endpoint(
        method="GET",
        path=f"{ROOT}/days",
        handler=gpu_use_days,
        summary="Show how busy GPUs were on past days, and how long they were held",
        tag="usage",
        query=(
            Query("by", f"{', '.join(DIMENSIONS)}, or several, separated by commas; default: day"),
            Query("from", f"first day (UTC), such as 2026-01-02; default: {DAYS_MAX} days ago"),
            Query("to", "last day, inclusive; default: today"),
            Query("workspace", "only GPUs held in this workspace"),
            Query("user", "only GPUs held by this user, as far as the allocations are still stored"),
        ),
        answer=GpuDaysView,
    ),
)
