"""Named partial launch bodies of a workspace."""

import contextlib
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations.listing import FilterNames, check_filter_names
from slipway.api.auth.middleware import permit, workspace_in_query, workspaces_of
from slipway.api.auth.principal import PermissionCheck, Role, user_of
from slipway.api.deps import parts_of
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, Query, json_response, location
from slipway.api.http.errors import PreconditionError
from slipway.api.http.etags import held_to, is_conditional, required_version, tag_of
from slipway.api.launch.secret_values import FIELD, NAMES
from slipway.api.schemas import DEFAULT_WORKSPACE, Items, LaunchBody, TemplateBody, TemplateView
from slipway.crd.meta import ANNOTATION_USER
from slipway.crd.v1alpha1 import Template
from slipway.errors import AlreadyExistsError, FieldError, InvalidError, NotFoundError
from slipway.kube.resources import TEMPLATES
from slipway.model.lifecycle import Kind

TAG = "templates"
ROOT = "/api/v1/templates"
_PER_LAUNCH = ("name", "workspace", "template")


async def list_templates(request: Request) -> Response:
    """Return the templates of one workspace, or of all."""
    parts, workspace = parts_of(request), request.query_params.get("workspace", "")
    listed = await parts.kube.list(TEMPLATES, namespace=workspace or None)
    if not listed.items:
        await check_filter_names(parts.kube, FilterNames(workspace=workspace), partial(workspaces_of, request))
    return json_response(Items(items=[_view(template) for template in listed.items]))


async def create(request: Request) -> Response:
    """Create a template."""
    parts = parts_of(request)
    body = await _read(request)
    await permit(request, PermissionCheck("create", "templates", Role.EDITOR), body.workspace)
    if not body.name:
        raise InvalidError("name: is required", fields=(FieldError("/name", "is required"),))
    await parts.catalog.check_workspace(body.workspace)
    try:
        created = await parts.kube.create(TEMPLATES, _manifest(request, body.name, body))
    except AlreadyExistsError as error:
        raise AlreadyExistsError(f"template {body.name} exists; PUT {ROOT}/{body.name} changes it") from error
    return _created(created)


async def get(request: Request) -> Response:
    """Return one template."""
    return _answer(await _found(request))


async def put(request: Request) -> Response:
    """Replace the body of a template, or create the template. A replaced template keeps its metadata, with its creator.

    With If-Match a template is only replaced, never created.
    """
    parts = parts_of(request)
    name = str(request.path_params["name"])
    body = await _read(request)
    await permit(request, PermissionCheck("update", "templates", Role.EDITOR), body.workspace)
    if body.name not in ("", name):
        raise InvalidError("name: differs from the path", fields=(FieldError("/name", "differs from the path"),))
    await parts.catalog.check_workspace(body.workspace)
    manifest = _manifest(request, name, body)
    if not is_conditional(request):
        with contextlib.suppress(AlreadyExistsError):
            return _created(await parts.kube.create(TEMPLATES, manifest))
    try:
        found = await parts.kube.get(TEMPLATES, name, namespace=body.workspace)
    except NotFoundError as error:
        if not is_conditional(request):
            raise
        raise PreconditionError(f"there is no template {name} to replace; without If-Match it is added") from error
    version = required_version(request, found.metadata.resource_version, "template")
    manifest["metadata"] = msgspec.to_builtins(found.metadata)
    with held_to(version, f"template {name}"):
        return _answer(await parts.kube.replace(TEMPLATES, manifest))


async def delete(request: Request) -> Response:
    """Delete a template. Allocations that were launched with it do not change."""
    found = await _found(request)
    meta = found.metadata
    version = required_version(request, meta.resource_version, "template")
    with held_to(version, f"template {meta.name}"):
        await parts_of(request).kube.delete(
            TEMPLATES, meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=version or None
        )
    return Response(status_code=204)


async def _found(request: Request) -> Template:
    name = request.path_params["name"]
    return await parts_of(request).kube.get(TEMPLATES, name, namespace=workspace_in_query(request))


def _manifest(request: Request, name: str, body: TemplateBody) -> dict[str, Any]:
    meta = {"name": name, "namespace": body.workspace, "annotations": {ANNOTATION_USER: user_of(request)}}
    return {"metadata": meta, "spec": {"body": body.body}}


def _answer(template: Template) -> Response:
    return json_response(_view(template), headers={"ETag": tag_of(template.metadata.resource_version)})


def _created(template: Template) -> Response:
    view = _view(template)
    headers = {"Location": location(f"{ROOT}/{view.name}", view.workspace), "ETag": tag_of(view.resource_version)}
    return json_response(view, status=201, headers=headers)


async def _read(request: Request) -> TemplateBody:
    """Read the request's body; the template's body inside must be a valid part of a launch body."""
    raw = await read_object(request, parts_of(request).settings.body_bytes_max)
    body = checked(raw, TemplateBody)
    per_launch = [name for name in _PER_LAUNCH if isinstance(body.body.get(name), str)]
    if per_launch:
        detail = f"{per_launch[0]} belongs to a launch, not to a template"
        raise InvalidError(detail, fields=(FieldError(f"/body/{per_launch[0]}", detail),))
    for name in (FIELD, NAMES):
        if name in body.body:
            detail = f"{name} can be set by a launch only: every user who may read a template could read them"
            raise InvalidError(detail, fields=(FieldError(f"/body/{name}", detail),))
    try:
        checked({"kind": Kind.COMMAND.value, **body.body}, LaunchBody)
    except InvalidError as error:
        fields = tuple(FieldError(f"/body{field.pointer}", field.detail) for field in error.fields)
        raise InvalidError(str(error), fields=fields) from error
    return body


def _view(template: Template) -> TemplateView:
    meta = template.metadata
    return TemplateView(
        name=meta.name,
        workspace=meta.namespace,
        resource_version=meta.resource_version,
        created_at=meta.creation_timestamp or "",
        body=template.spec.body,
    )


_WORKSPACE = (Query("workspace", f"workspace of the template; default: {DEFAULT_WORKSPACE}"),)

ENDPOINTS = (
    Endpoint(
        method="GET",
        path=ROOT,
        handler=list_templates,
        summary="List the templates",
        tag=TAG,
        query=(Query("workspace", "only templates of this workspace"),),
        answer=Items[TemplateView],
    ),
    Endpoint(
        method="POST",
        path=ROOT,
        handler=create,
        summary="Add a template",
        tag=TAG,
        body=TemplateBody,
        answer=TemplateView,
        status=201,
    ),
    Endpoint(
        method="GET",
        path=f"{ROOT}/{{name}}",
        handler=get,
        summary="Show a template",
        tag=TAG,
        query=_WORKSPACE,
        answer=TemplateView,
    ),
    Endpoint(
        method="PUT",
        path=f"{ROOT}/{{name}}",
        handler=put,
        summary="Add or replace a template",
        tag=TAG,
        body=TemplateBody,
        answer=TemplateView,
        also={201: (TemplateView,)},
        has_condition=True,
    ),
    Endpoint(
        method="DELETE",
        path=f"{ROOT}/{{name}}",
        handler=delete,
        summary="Delete a template",
        tag=TAG,
        has_condition=True,
        query=_WORKSPACE,
        status=204,
    ),
)
