"""A collection of routes per kind, such as `/api/v1/trainings`: the path names the kind, so the body need not."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.change_schemas import KillBody
from slipway.api.endpoint import Endpoint
from slipway.api.routes import allocations, launches
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
            handler=_of(launches.launch, kind),
            summary=f"Launch a {kind.value}",
            tag=tag,
            query=launches.LAUNCH_QUERY,
            body=LaunchBody,
            answer=AllocationView,
            status=201,
            also=launches.LAUNCH_ALSO,
        ),
        Endpoint(
            method="GET",
            path=root,
            handler=_of(launches.list_allocations, kind),
            summary=f"List {tag}",
            tag=tag,
            query=launches.LIST_QUERY,
            answer=AllocationList,
        ),
        Endpoint(
            method="GET",
            path=f"{root}/{{id}}",
            handler=_of(allocations.get, kind),
            summary=f"Show a {kind.value}",
            tag=tag,
            answer=AllocationView,
        ),
        Endpoint(
            method="POST",
            path=f"{root}/{{id}}/kill",
            handler=_of(allocations.kill, kind),
            summary="Cancel a {kind.value}; a second call, or force, ends it at once",
            tag=tag,
            body=KillBody,
            answer=AllocationView,
            status=202,
            also=allocations.ONCE_ENDED,
        ),
        Endpoint(
            method="POST",
            path=f"{root}/{{id}}/priority",
            handler=_of(allocations.set_priority, kind),
            summary="Change the priority of a {kind.value}",
            tag=tag,
            body=PriorityBody,
            answer=AllocationView,
        ),
    )


ENDPOINTS = tuple(row for kind in Kind for row in _rows(kind))
