"""Contexts: archives of files for launches. Users upload and look them up; the ranks of an allocation download them."""

import asyncio
import re

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from slipway.api.auth.middleware import workspace_in_query
from slipway.api.deps import parts_of
from slipway.api.http.endpoint import Endpoint, Query, bad_param, json_response, location
from slipway.api.http.errors import MalformedError, UnsupportedMediaError
from slipway.api.http.streaming import holder_of
from slipway.api.launch.contexts import StoredArchive
from slipway.api.schemas import DEFAULT_WORKSPACE, ContextView
from slipway.crd.transitions import id_of
from slipway.errors import DeadlineError, InvalidError, NotFoundError
from slipway.model.numbers import LONG_DIGITS_MAX, number_in

TAG = "contexts"
ROOT = "/api/v1/contexts"
GZIP_TYPE = "application/gzip"
UPLOAD_S = 900.0
_ID = re.compile("[0-9a-f]{64}")
_TYPES = (
    "", GZIP_TYPE, "application/x-gzip", "application/x-tar", "application/x-gtar", "application/x-tgz",
    "application/tar+gzip", "application/octet-stream",
)  # fmt: skip


async def upload(request: Request) -> Response:
    """Store a gzipped tar of at most 95 MiB. Its id is its SHA-256, so the same archive is stored only once."""

    parts = parts_of(request)
    workspace = workspace_in_query(request)
    wanted = request.query_params.get("id", "")
    if wanted and _ID.fullmatch(wanted) is None:
        raise bad_param("id", "must be the SHA-256 of the archive, 64 hexadecimal digits in lower case")
    _check_type(request)
    length = number_in(request.headers.get("content-length", ""), LONG_DIGITS_MAX)
    try:
        await parts.catalog.check_workspace(workspace)
    except InvalidError as error:
        raise bad_param("workspace", error.fields[0].detail) from error
    try:
        async with asyncio.timeout(UPLOAD_S):
            stored = await parts.contexts.upload(
                request.stream().__aiter__(),
                length,
                workspace,
                wanted,
                user=holder_of(request).user,
            )
    except ClientDisconnect as error:
        raise MalformedError("the upload ended early; send it again") from error
    except TimeoutError as error:
        raise DeadlineError(
            f"not done within {UPLOAD_S:g} s; send it again; parts that are stored already are not stored again"
        ) from error
    headers = {"Location": location(f"{ROOT}/{stored.index.id}", workspace)}
    return json_response(_view(stored), status=201 if stored.created else 200, headers=headers)


async def get(request: Request) -> Response:
    """Return the facts of an archive. Answers 404 when it has to be uploaded (again)."""
    workspace = workspace_in_query(request)
    return json_response(_view(await parts_of(request).contexts.find(_id(request), workspace)))


async def download(request: Request) -> Response:
    """Return the archive of an allocation, for its ranks."""
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    if found.spec.context is None:
        raise NotFoundError(f"allocation {id_of(found)} was launched without a context")
    stored = await parts.contexts.find(found.spec.context, found.metadata.namespace)
    headers = {
        "Content-Length": str(stored.index.bytes),
        "ETag": f'"{stored.index.id}"',
        "Cache-Control": "no-store",
        "Content-Disposition": f'attachment; filename="{id_of(found)}.tar.gz"',
    }
    return StreamingResponse(parts.contexts.read(stored), media_type=GZIP_TYPE, headers=headers)


def _id(request: Request) -> str:
    given = str(request.path_params["context"])
    if _ID.fullmatch(given) is None:
        raise NotFoundError(
            f"no context is called {given[:80]!r}: ids are 64 hexadecimal digits, as PUT {ROOT} answers"
        )
    return given


def _check_type(request: Request) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in _TYPES:
        raise UnsupportedMediaError(f"a body of type {given[:64]!r} is not accepted; send Content-Type: {GZIP_TYPE}")


def _view(stored: StoredArchive) -> ContextView:
    index = stored.index
    return ContextView(
        id=index.id,
        workspace=stored.map.metadata.namespace,
        bytes=index.bytes,
        files=index.files,
        unpacked_bytes=index.unpacked_bytes,
    )


_WORKSPACE = Query("workspace", f"workspace of the launch; default: {DEFAULT_WORKSPACE}")

ENDPOINTS = (
    Endpoint(
        method="PUT",
        path=ROOT,
        handler=upload,
        summary="Upload files for launches: a gzipped tar",
        tag=TAG,
        query=(
            _WORKSPACE,
            Query("id", "SHA-256 of the archive in hex, if known: an archive that is stored already is not sent again"),
        ),
        answer=ContextView,
        status=201,
        also={200: (ContextView,)},
        is_long=True,
    ),
    Endpoint(
        method="GET",
        path=f"{ROOT}/{{context}}",
        handler=get,
        summary="Show an uploaded archive",
        tag=TAG,
        query=(_WORKSPACE,),
        answer=ContextView,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/allocations/{id}/context",
        handler=download,
        summary="Download the uploaded files of an allocation: a gzipped tar",
        tag=TAG,
        media_types=(GZIP_TYPE,),
        for_tasks=True,
    ),
)
