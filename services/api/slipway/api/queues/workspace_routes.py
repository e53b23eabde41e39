"""Workspaces: list, show, create, change, remove."""

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.auth.middleware import visible_workspaces_of
from slipway.api.auth.principal import user_of
from slipway.api.deps import parts_of
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.api.queues.workspaces import WorkspaceBody, WorkspaceChange, WorkspaceView
from slipway.api.schemas import Items

TAG = "workspaces"
ROOT = "/api/v1/workspaces"


async def list_workspaces(request: Request) -> Response:
    """Return the workspaces that the caller may see."""
    visible = await visible_workspaces_of(request)
    return json_response(
        Items(items=[each for each in await parts_of(request).workspaces.all() if visible.has(each.name)])
    )


async def get(request: Request) -> Response:
    """Return one workspace, with its defaults, its pools and its quota."""
    return json_response(await parts_of(request).workspaces.one(request.path_params["name"]))


async def create(request: Request) -> Response:
    """Create a workspace."""
    parts = parts_of(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), WorkspaceBody)
    view = await parts.workspaces.create(body, user_of(request))
    return json_response(view, status=201, headers={"Location": f"{ROOT}/{view.name}"})


async def change(request: Request) -> Response:
    """Change the defaults or the quota of a workspace; null removes a value."""
    parts = parts_of(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), WorkspaceChange)
    return json_response(await parts.workspaces.change(request.path_params["name"], body))


async def remove(request: Request) -> Response:
    """Remove a workspace. Its namespace is deleted with everything in it if Slipway created it; else it stays."""

    await parts_of(request).workspaces.remove(request.path_params["name"])
    return Response(status_code=204)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=ROOT,
        handler=list_workspaces,
        summary="List the workspaces",
        tag=TAG,
        answer=Items[WorkspaceView],
    ),
    Endpoint(
        method="POST",
        path=ROOT,
        handler=create,
        summary="Add a workspace",
        tag=TAG,
        body=WorkspaceBody,
        answer=WorkspaceView,
        status=201,
    ),
    Endpoint(
        method="GET", path=f"{ROOT}/{{name}}", handler=get, summary="Show a workspace", tag=TAG, answer=WorkspaceView
    ),
    Endpoint(
        method="PATCH",
        path=f"{ROOT}/{{name}}",
        handler=change,
        summary="Change the defaults or the quota of a workspace",
        tag=TAG,
        body=WorkspaceChange,
        answer=WorkspaceView,
    ),
    Endpoint(
        method="DELETE",
        path=f"{ROOT}/{{name}}",
        handler=remove,
        summary="Delete a workspace that has no active allocations",
        tag=TAG,
        status=204,
    ),
)
