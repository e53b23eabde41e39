"""What the api says about itself."""

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
    """The OpenAPI document."""
    # The first one takes long: beside the loop.
    document = await asyncio.to_thread(request.app.state.document)
    return Response(msgspec.json.encode(document), media_type=JSON_TYPE, headers=CACHE)


async def asyncapi(_: Request) -> Response:
    """The AsyncAPI document."""
    return Response(msgspec.json.encode(document(version())), media_type=JSON_TYPE, headers=CACHE)


async def docs(request: Request) -> Response:
    """The page about the REST API."""
    base = str(request.base_url).rstrip("/")
    headers = {**CACHE, "Content-Security-Policy": POLICY}
    page = await asyncio.to_thread(request.app.state.docs_of, base)
    return Response(page, media_type="text/html", headers=headers)
