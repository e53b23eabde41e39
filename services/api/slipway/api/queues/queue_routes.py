"""Queues, their waiting lists, pools, and the caller itself (`/me`)."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations.allocation_routes import first_of, pending_of
from slipway.api.auth.middleware import visible_workspaces_of
from slipway.api.auth.principal import VisibleWorkspaces, principal_of, user_of
from slipway.api.cluster import cluster_view
from slipway.api.deps import parts_of
from slipway.api.http.endpoint import Endpoint, Query, bad_param, flag_param, json_response, number_param, words_of
from slipway.api.queues.queue_view import QueuePlace, places_of
from slipway.api.queues.waiting_list import is_called, waiting_list
from slipway.api.schemas import FairShareView, Items, Me, PoolView, QueueView, WaitingList
from slipway.api.usage.fair_share_view import fair_share_view
from slipway.api.usage.past_usage import past_use_of
from slipway.crd.v1alpha1 import Queue, ResourcePool
from slipway.errors import InvalidError
from slipway.kube.resources import QUEUES, RESOURCE_POOLS

PAGE_MAX = 500
WAITING_DEFAULT = 100
FIRST_MAX = 10**8


async def queues(request: Request) -> Response:
    """Return all queues, with counts of waiting and running allocations."""
    parts = parts_of(request)
    listed = await parts.kube.list(QUEUES)
    live, units_by = await parts.seen.live(), parts.seen.gpu_units_of
    return json_response(
        Items(items=[cluster_view.queue_view(queue, live, units_by=units_by) for queue in listed.items])
    )


async def queue(request: Request) -> Response:
    """Return one queue, with all its waiting allocations in order unless `waiting=false`."""
    parts = parts_of(request)
    with_waiting = flag_param(request, "waiting", default=True)
    found = await parts.kube.get(QUEUES, request.path_params["name"])
    live = await parts.seen.live()
    pending, jobs = await pending_of(parts, found.spec.pool, live if with_waiting else ())
    first = await first_of(parts, pending)
    pool = await _pool_of(request, found.spec.pool)
    is_of_nodes = pool is not None and (pool.spec.flavors or pool.spec.windows)
    nodes = await parts.nodes.items() if is_of_nodes else []
    has_windows = pool is not None and bool(pool.spec.windows)
    others = (await parts.kube.list(QUEUES)).items if found.spec.parent or has_windows else []
    above = cluster_view.line_of(found, others)
    if pool is not None and any(each.spec.eviction_limit for each in (pool, *above)):
        # Each eviction changes the remaining eviction limit, and the cached pool may be some seconds old.
        pool = await parts.kube.get(RESOURCE_POOLS, found.spec.pool)
    view = cluster_view.queue_view(
        found,
        live,
        pending=pending,
        jobs=jobs,
        first=first,
        pool_of=pool,
        nodes=nodes,
        units_by=parts.seen.gpu_units_of,
    )
    visible = await visible_workspaces_of(request)
    return json_response(
        msgspec.structs.replace(
            view,
            fair_share=await _fair_share(request, found, pool, visible) if pool is not None else None,
            min_runtime=cluster_view.min_runtime_of(above),
            eviction_limits=cluster_view.eviction_limits(above, pool, parts.clock.now()),
            windows=cluster_view.windows_of(pool, nodes, others, parts.clock.now()) if pool is not None else [],
            waiting=[each for each in view.waiting if visible.has(each.workspace)],
        )
    )


async def _fair_share(
    request: Request, queue: Queue, pool: ResourcePool, visible: VisibleWorkspaces
) -> FairShareView | None:
    """Return the past use by user; a caller who may not see all workspaces gets only their own use."""
    parts = parts_of(request)
    if pool.spec.fair_share is None:
        return None
    used = await past_use_of(parts, pool)
    only = None if visible.is_whole else (user_of(request),)
    return fair_share_view(queue, pool, (await parts.kube.list(QUEUES)).items, used, only=only)


async def waiting(request: Request) -> Response:
    """Return a page of the waiting allocations of a queue, in order."""
    parts = parts_of(request)
    limit = number_param(request, "limit", default=WAITING_DEFAULT, least=1, most=PAGE_MAX)
    first = number_param(request, "from", default=1, least=1, most=FIRST_MAX)
    words, continue_ = words_of(request), request.query_params.get("continue", "")
    if continue_ and "from" in request.query_params:
        raise bad_param("from", "cannot be combined with continue; leave one of them out")
    found = await parts.kube.get(QUEUES, request.path_params["name"])
    pending, jobs = await pending_of(parts, found.spec.pool)
    own = [each for each in pending if each.spec.queue == found.metadata.name]
    visible = await visible_workspaces_of(request)
    places = places_of(own, jobs, await first_of(parts, own), slots_by=parts.seen.slots_of)

    def is_wanted(place: QueuePlace) -> bool:
        return visible.has(place.allocation.metadata.namespace) and is_called(place, words)

    return json_response(waiting_list(places, jobs, is_wanted, limit=limit, first=first, continue_=continue_))


async def _pool_of(request: Request, name: str) -> ResourcePool | None:
    try:
        return await parts_of(request).catalog.pool(name)
    except InvalidError:
        return None  # a queue may name a pool that does not exist


async def pools(request: Request) -> Response:
    """Return all pools with their size and use."""
    parts = parts_of(request)
    listed = await parts.kube.list(RESOURCE_POOLS)
    nodes = await parts.nodes.items()
    live = await parts.seen.live()
    visible = await visible_workspaces_of(request)
    has_windows = any(pool.spec.windows for pool in listed.items)
    others, now = (await parts.kube.list(QUEUES)).items if has_windows else [], parts.clock.now()
    views = [cluster_view.pool_view(pool, nodes, live, queues=others, now=now) for pool in listed.items]
    items = views if visible.is_whole else [_own(view, visible) for view in views]
    return json_response(Items(items=items, warnings=parts.nodes.warnings()))


def _own(view: PoolView, visible: VisibleWorkspaces) -> PoolView:
    """Return the pool without the names of workspaces that the caller may not see."""
    named = view.spec.get("workspaces")
    if not named:
        return view
    return msgspec.structs.replace(
        view, spec={**view.spec, "workspaces": [name for name in named if visible.has(name)]}
    )


async def me(request: Request) -> Response:
    """Return the caller's user, roles and visible workspaces."""
    parts = parts_of(request)
    visible, principal = await visible_workspaces_of(request), principal_of(request)
    names = [name for name in await parts.catalog.workspaces() if visible.has(name)]
    return json_response(
        Me(
            user=user_of(request),
            auth=parts.settings.auth,
            workspaces=names,
            roles=principal.roles,
            expires_at=principal.expires_at,
        )
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/queues",
        handler=queues,
        summary="List the queues",
        tag="cluster",
        answer=Items[QueueView],
    ),
    Endpoint(
        method="GET",
        path="/api/v1/queues/{name}",
        handler=queue,
        summary="Show a queue and its waiting allocations",
        tag="cluster",
        query=(Query("waiting", "false: without the waiting allocations; default: true", "boolean"),),
        answer=QueueView,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/queues/{name}/waiting",
        handler=waiting,
        summary="List a part of the waiting allocations of a queue",
        tag="cluster",
        query=(
            Query("search", "only allocations with each of these words in the id, the name, the user or the reason"),
            Query("from", "number of the first allocation to return among those that match; default: 1", "integer"),
            Query("limit", f"number of items in a part, at most {PAGE_MAX}; default: {WAITING_DEFAULT}", "integer"),
            Query("continue", "metadata.continue of the previous part"),
        ),
        answer=WaitingList,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/pools",
        handler=pools,
        summary="List the resource pools",
        tag="cluster",
        answer=Items[PoolView],
    ),
    Endpoint(
        method="GET",
        path="/api/v1/me",
        handler=me,
        summary="Show the user, roles and workspaces of the caller",
        tag="cluster",
        answer=Me,
    ),
)
