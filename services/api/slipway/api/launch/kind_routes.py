"""A collection of routes per kind, such as `/api/v1/trainings`: the path names the kind, so the body need not."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations import allocation_routes
from slipway.api.allocations.change_schemas import KillBody
from slipway.api.http.endpoint import Endpoint
from slipway.api.launch import launch_routes
from slipway.api.schemas import AllocationList, AllocationView, LaunchBody, PriorityBody
from slipway.model.lifecycle import Kind

KindHandler = Callable[[Request, Kind | None], Coroutine[Any, Any, Response]]


def _of(handler: KindHandler, kind: Kind) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    return partial(_call, handler, kind)


async def _call(handler: KindHandler, kind: Kind, request: Request) -> Response:
    return await handler(request, kind)


def _rows(kind: Kind) -> tuple[Endpoint, ...]:
    tag = f"{kind.value}s"
    root = f"/api/v1/{tag}"
    return (
        Endpoint(
            method="POST",
            path=root,
            handler=_of(launch_routes.launch, kind),
            summary=f"Launch a {kind.value}",
            tag=tag,
            query=launch_routes.LAUNCH_QUERY,
            body=LaunchBody,
            answer=AllocationView,
            status=201,
            also=launch_routes.LAUNCH_ALSO,
        ),
        Endpoint(
            method="GET",
            path=root,
            handler=_of(launch_routes.list_allocations, kind),
            summary=f"List {tag}",
            tag=tag,
            query=launch_routes.LIST_QUERY,
            answer=AllocationList,
        ),
        Endpoint(
            method="GET",
            path=f"{root}/{{id}}",
            handler=_of(allocation_routes.get, kind),
            summary=f"Show a {kind.value}",
            tag=tag,
            answer=AllocationView,
        ),
        Endpoint(
            method="POST",
            path=f"{root}/{{id}}/kill",
            handler=_of(allocation_routes.kill, kind),
            summary=f"Cancel a {kind.value}; a second call, or force, ends it at once",
            tag=tag,
            body=KillBody,
            answer=AllocationView,
            status=202,
            also=allocation_routes.ONCE_ENDED,
        ),
        Endpoint(
            method="POST",
            path=f"{root}/{{id}}/priority",
            handler=_of(allocation_routes.set_priority, kind),
            summary=f"Change the priority of a {kind.value}",
            tag=tag,
            body=PriorityBody,
            answer=AllocationView,
        ),
    )


ENDPOINTS = tuple(row for kind in Kind for row in _rows(kind))
