"""Queues, pools, workspaces, templates, dead letters: what surrounds allocations."""

from starlette.requests import Request
from starlette.responses import Response

from slipway.api import cluster_view
from slipway.api.endpoint import Endpoint, Query, json_response, number_param
from slipway.api.identity import user_of
from slipway.api.needs import needs_redis
from slipway.api.parts import parts_of
from slipway.api.routes.allocations import pending_of
from slipway.api.schemas import Items, LetterView, Me, PoolView, QueueView, WorkspaceView
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import NotFoundError
from slipway.kube.resources import ALLOCATIONS, QUEUES, RESOURCE_POOLS
from slipway.model.lifecycle import Phase

PAGE_MAX = 500


async def queues(request: Request) -> Response:
    """All queues with what waits and runs in each."""
    parts = parts_of(request)
    listed = await parts.kube.list(QUEUES)
    live = await _live(request)
    return json_response(Items(items=[cluster_view.queue_view(queue, live) for queue in listed.items]))


async def queue(request: Request) -> Response:
    """One queue, with everything that waits in it in order."""
    parts = parts_of(request)
    found = await parts.kube.get(QUEUES, request.path_params["name"])
    live = await _live(request)
    pending, jobs = await pending_of(parts, found.spec.pool)
    return json_response(cluster_view.queue_view(found, live, pending=pending, jobs=jobs))


async def pools(request: Request) -> Response:
    """All pools with their size and use."""
    parts = parts_of(request)
    listed = await parts.kube.list(RESOURCE_POOLS)
    nodes = await parts.catalog.nodes()
    live = await _live(request)
    return json_response(Items(items=[cluster_view.pool_view(pool, nodes, live) for pool in listed.items]))


async def workspaces(request: Request) -> Response:
    """The namespaces one may launch into."""
    names = await parts_of(request).catalog.workspaces()
    return json_response(Items(items=[WorkspaceView(name=name) for name in names]))


async def me(request: Request) -> Response:
    """Who the caller is, and where it may launch."""
    parts = parts_of(request)
    names = await parts.catalog.workspaces()
    return json_response(Me(user=user_of(request), auth=parts.settings.auth, workspaces=names))


async def dead_letters(request: Request) -> Response:
    """What the podworkers could not work off."""
    limit = number_param(request, "limit", default=100, least=1, most=PAGE_MAX)
    with needs_redis("dead letters"):
        page = await parts_of(request).dead.page(after=request.query_params.get("after") or None, limit=limit)
    views = [
        LetterView(
            id=letter.id,
            source=letter.source,
            entry_id=letter.entry_id,
            cause=letter.cause,
            deliveries=letter.deliveries,
            fields=dict(letter.fields),
        )
        for letter in page
    ]
    return json_response({"items": views, "metadata": {"continue": views[-1].id if len(views) == limit else ""}})


async def replay(request: Request) -> Response:
    """Send a dead letter to the workers again."""
    letter_id = request.path_params["letter"]
    with needs_redis("dead letters"):
        is_sent = await parts_of(request).dead.replay(letter_id)
    if not is_sent:
        raise NotFoundError(f"there is no dead letter {letter_id[:64]!r}; GET /api/v1/dead lists them")
    return Response(status_code=202)


async def _live(request: Request) -> list[Allocation]:
    """Everything that has not ended."""
    listed = await parts_of(request).kube.list(ALLOCATIONS, field_selector=f"status.phase!={Phase.TERMINATED}")
    return listed.items


ENDPOINTS = (
    Endpoint(
        method="GET", path="/api/v1/queues", handler=queues, summary="Queues", tag="cluster", answer=Items[QueueView]
    ),
    Endpoint(
        method="GET",
        path="/api/v1/queues/{name}",
        handler=queue,
        summary="One queue and who waits in it",
        tag="cluster",
        answer=QueueView,
    ),
    Endpoint(method="GET", path="/api/v1/pools", handler=pools, summary="Pools", tag="cluster", answer=Items[PoolView]),
    Endpoint(
        method="GET",
        path="/api/v1/workspaces",
        handler=workspaces,
        summary="Workspaces",
        tag="cluster",
        answer=Items[WorkspaceView],
    ),
    Endpoint(method="GET", path="/api/v1/me", handler=me, summary="Who the caller is", tag="cluster", answer=Me),
    Endpoint(
        method="GET",
        path="/api/v1/dead",
        handler=dead_letters,
        summary="Dead letters",
        tag="admin",
        query=(Query("after", "go on after this id"), Query("limit", f"at most {PAGE_MAX}", "integer")),
        answer=Items[LetterView],
    ),
    Endpoint(
        method="POST",
        path="/api/v1/dead/{letter}/replay",
        handler=replay,
        summary="Send a dead letter again",
        tag="admin",
        status=202,
    ),
)
