"""What the api says about itself."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.docs_page import POLICY
from slipway.api.endpoint import JSON_TYPE

CACHE = {"Cache-Control": "max-age=60"}


async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    return Response(msgspec.json.encode(request.app.state.document), media_type=JSON_TYPE, headers=CACHE)


async def docs(request: Request) -> Response:
    """The page about the REST API."""
    base = str(request.base_url).rstrip("/")
    headers = {**CACHE, "Content-Security-Policy": POLICY}
    return Response(request.app.state.docs_of(base), media_type="text/html", headers=headers)
