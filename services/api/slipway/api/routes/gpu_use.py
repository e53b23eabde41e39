"""What GPUs do, beside who holds them, where the cluster has a Prometheus with figures of its GPUs."""

from collections.abc import Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.access.middleware import sight_of, workspaces_of
from slipway.api.deps import ApiDeps, parts_of
from slipway.api.endpoint import Endpoint, Query, flag_param, json_response
from slipway.api.gpu_use import WINDOW_S, AllocationGpuUse, GpuUseView, PodGpuUse, PodKey, query_of, read_use, use_of
from slipway.api.named import Named, check_named
from slipway.api.prometheus import Prometheus
from slipway.crd.transitions import id_of, user_of
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Phase

ROOT = "/api/v1/gpu-use"
_KEY = "use"


async def gpu_use(request: Request) -> Response:
    """Of what runs now."""
    parts, settings = parts_of(request), parts_of(request).settings
    ask = request.query_params
    only_idle = flag_param(request, "idle")
    rows: list[AllocationGpuUse] = []
    prometheus = parts.prometheus
    if prometheus is not None:
        sight = await sight_of(request)
        listed = await parts.whole.list(ALLOCATIONS, field_selector=f"status.phase={Phase.RUNNING}")
        wanted = [
            each
            for each in listed.items
            if sight.has(each.metadata.namespace)
            and ask.get("workspace", each.metadata.namespace) == each.metadata.namespace
            and ask.get("user", user_of(each)) == user_of(each)
            and ask.get("id", id_of(each)) in (id_of(each), each.metadata.name)
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
        await check_named(parts.kube, Named(workspace=ask.get("workspace", "")), partial(workspaces_of, request))
    view = GpuUseView(
        is_configured=prometheus is not None,
        window_seconds=WINDOW_S,
        idle_seconds=settings.gpu_idle_s,
        idle_percent=settings.gpu_idle_percent,
        items=[row for row in rows if row.is_idle or not only_idle],
    )
    return json_response(view)


async def _use(parts: ApiDeps, prometheus: Prometheus) -> Mapping[PodKey, PodGpuUse]:
    """Of all pods; one question for all who ask within a moment."""

    async def load() -> Mapping[PodKey, PodGpuUse]:
        return read_use(await prometheus.ask(query_of(parts.settings.gpu_use_query, parts.settings.gpu_idle_s)))

    return await parts.gpu_use.get(_KEY, load)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=ROOT,
        handler=gpu_use,
        summary="What GPUs do, beside who holds them",
        tag="usage",
        query=(
            Query("workspace", "only of this workspace"),
            Query("user", "only of this user"),
            Query("id", "only of this allocation"),
            Query("idle", "only what holds GPUs and does nothing with them", "boolean"),
        ),
        answer=GpuUseView,
    ),
)
