"""The api's documents about itself: OpenAPI, AsyncAPI, and the page of the REST API."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.asyncapi import document
from slipway.api.docs_page import POLICY
from slipway.api.endpoint import JSON_TYPE
from slipway.runtime.service import version

CACHE = {"Cache-Control": "max-age=60"}


async def openapi(request: Request) -> Response:
    """Return the OpenAPI document."""
    # Building the first document takes long, so it runs in a thread and does not block the event loop.
    document = await asyncio.to_thread(request.app.state.document)
    return Response(msgspec.json.encode(document), media_type=JSON_TYPE, headers=CACHE)


async def asyncapi(_: Request) -> Response:
    """Return the AsyncAPI document."""
    return Response(msgspec.json.encode(document(version())), media_type=JSON_TYPE, headers=CACHE)


async def docs(request: Request) -> Response:
    """Return the page about the REST API."""
    base = str(request.base_url).rstrip("/")
    headers = {**CACHE, "Content-Security-Policy": POLICY}
    page = await asyncio.to_thread(request.app.state.docs_of, base)
    return Response(page, media_type="text/html", headers=headers)
