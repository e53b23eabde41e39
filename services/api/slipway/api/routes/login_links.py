"""`POST /api/v1/login-links`: a link that logs a browser in once, for a program that has the token."""

from typing import Annotated
from urllib.parse import urlencode

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from slipway.api import audit
from slipway.api.access import session
from slipway.api.access.middleware import permit_on
from slipway.api.access.origins import ENTER, host_name, local_name, origin_of
from slipway.api.access.route_rules import PROXIED
from slipway.api.bearer import bearer
from slipway.api.decoding import checked, read_object
from slipway.api.deps import parts_of
from slipway.api.endpoint import Endpoint, json_response
from slipway.api.http_errors import ConflictError, ForbiddenError
from slipway.api.identity import principal_of
from slipway.api.routes.login import LINK
from slipway.crd.transitions import id_of
from slipway.model.times import format_time

PATH = "/api/v1/login-links"


class LoginLinkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page that the link leads to."""

    allocation: Annotated[str, Meta(max_length=253, description="AllocationID of a workload, to open its page.")] = ""
    path: Annotated[
        str,
        Meta(
            max_length=2048,
            pattern=r"^(/.*)?$",
            description="Path of the page. Default: the first page of Slipway or of the workload.",
        ),
    ] = ""


class LoginLink(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A login link. It works once, until `expiresAt`."""

    url: str
    expires_at: str


async def create(request: Request) -> Response:
    """Return a login link for the browser of the caller."""
    parts, settings = parts_of(request), parts_of(request).settings
    if settings.auth == "none":
        raise ConflictError("login is disabled (SLIPWAY_AUTH=none): open the page without a link")
    token = bearer(request)
    if session.is_by_cookie(request) or not token or len(token) > session.TOKEN_CHARS_MAX:
        raise ForbiddenError("only a program that sends its token in a header can create a link, not a browser")
    wanted = checked(await read_object(request, settings.body_bytes_max), LoginLinkRequest)
    scheme = "https" if session.is_secure(request) else "http"
    host = request.headers.get("host", "")
    if wanted.allocation:
        if not settings.proxy_domain:
            raise ConflictError(
                "pages of workloads have no origins of their own here (SLIPWAY_PROXY_DOMAIN is not set); "
                "use slipway port-forward"
            )
        found = await parts.lookup.find(wanted.allocation)
        id_ = id_of(found)
        await permit_on(request, PROXIED.ask, found.metadata.namespace, f"allocation {id_}")
        audit.note_object(request, {"id": id_}, workspace=found.metadata.namespace)
        code, ends_at = parts.links.make(token, principal_of(request).name, id_)
        origin = origin_of(id_, settings.proxy_domain, scheme=scheme, host=host)
        where, following = origin + ENTER, wanted.path or f"/proxy/{id_}/"
    else:
        code, ends_at = parts.links.make(token, principal_of(request).name)
        name = local_name(settings.hosts) or host_name(host)
        where, following = f"{scheme}://{_with_port(name, host)}{LINK}", wanted.path or "/"
    url = f"{where}?{urlencode({'code': code, 'next': following})}"
    return json_response(LoginLink(url=url, expires_at=format_time(ends_at)), status=201)


def _with_port(name: str, host: str) -> str:
    shown = f"[{name}]" if ":" in name else name
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    return f"{shown}:{port}" if port.isdigit() else shown


ENDPOINTS = (
    Endpoint(
        method="POST",
        path=PATH,
        handler=create,
        summary="Create a link that logs a browser in once",
        tag="admin",
        body=LoginLinkRequest,
        answer=LoginLink,
        status=201,
    ),
)
