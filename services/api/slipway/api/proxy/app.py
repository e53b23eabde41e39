"""`/proxy/{id}[/{port}]/...`: the ASGI application in front of workloads.

Owns the rule that decides which traffic through the proxy is activity of a user; an allocation with activity is not
idle. Traffic in either direction is activity while it flows; an open connection without traffic is not. Requests that
a page makes by itself are not activity either.
While its tab is visible, JupyterLab polls kernels, sessions and terminals every few seconds, stores its layout every
ten seconds, and receives events on a WebSocket of its own. So for a notebook three kinds of requests are ignored: reads
of its REST API, its layout, and its events. The notebook itself reports the activity of its kernels and terminals
(`slipway.inside.service_reporter`).
"""

from collections.abc import Callable
from functools import partial

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from slipway.api.auth import login_routes, middleware, session
from slipway.api.auth.origins import origin_of, spelled_address, spelled_path, workload_of
from slipway.api.auth.route_rules import PROXIED
from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http import audit
from slipway.api.http.errors import ForbiddenError, UnauthorizedError
from slipway.api.http.request_telemetry import PROXIED_KEY
from slipway.api.http.streaming import holder_of
from slipway.api.proxy import sockets
from slipway.api.proxy.sockets import forward_socket
from slipway.api.proxy.target import ROOT, NoServer, ProxyTarget
from slipway.api.proxy.waiting import waiting_response
from slipway.crd.transitions import id_of
from slipway.errors import InvalidError, UnavailableError
from slipway.model import tcp_tunnel
from slipway.model.lifecycle import Kind, Phase

_READS = ("GET", "HEAD", "OPTIONS")
_POLLED = "/api/"
_OF_THE_PAGE = ("/lab/api/", "/api/events/")


def is_use(kind: Kind, method: str, path: str) -> bool:
    """Whether a request for `path`, below the workload's root, is activity."""
    if kind is not Kind.NOTEBOOK:
        return True
    return not path.startswith(_OF_THE_PAGE) and not (method in _READS and path.startswith(_POLLED))


SOURCE = "proxy"
_NEEDS_OWN_ORIGIN = (
    "a logged-in browser opens the page of a workload only in an origin of its own (SLIPWAY_PROXY_DOMAIN), so that "
    "the page cannot act in your name; or use slipway port-forward"
)
PATH = "/proxy/{id}/{path:path}"
STREAM_KIND = "proxy"


async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one proxied request or WebSocket."""
    if scope["type"] == "websocket":
        socket = WebSocket(scope, receive, _recording_status(HTTPConnection(scope), send))
        with audit.log_call(socket, PATH):
            await _serve_socket(socket)
    else:
        request = Request(scope, receive)
        with audit.log_call(request, PATH):
            await _serve_http(request, _recording_status(request, send))


def _recording_status(connection: HTTPConnection, send: Send) -> Send:
    """Return a `send` that records the status of the answer for the audit log, whether it is the workload's or ours."""

    async def recording(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            audit.set_status(connection, message["status"])
        elif message["type"] == "websocket.accept":
            audit.set_status(connection, 101)
        await send(message)

    return recording


async def to_root(scope: Scope, receive: Receive, send: Send) -> None:
    """Redirect `/proxy/{id}` to `/proxy/{id}/`: relative links of a page need the slash."""
    request = Request(scope, receive)
    response = RedirectResponse(request.url.replace(path=f"{request.url.path}/"), status_code=307)
    await response(scope, receive, send)


async def _serve_http(request: Request, send: Send) -> None:
    given = str(request.path_params["id"])
    is_browser = "text/html" in request.headers.get("accept", "")
    try:
        await middleware.admit(request, PROXIED)
    except UnauthorizedError:
        if not is_browser or request.method != "GET":
            raise
        await _led_to_login(request)(request.scope, request.receive, send)
        return
    parts = parts_of(request)
    send = _renewing(request, parts, send)
    whole = await _whole(parts, given)
    if _is_browser_in_api_origin(request, parts):
        if not is_browser or request.method != "GET":
            raise ForbiddenError(_NEEDS_OWN_ORIGIN)
        found_id = id_of(await parts.lookup.find(given))
        await _to_origin(request, parts, found_id)(request.scope, request.receive, send)
        return
    if _is_login_in_api_origin(request, parts):
        kept = parts.sessions.of(request)
        if not parts.settings.proxy_domain or not is_browser or request.method != "GET" or kept is None:
            raise ForbiddenError(_NEEDS_OWN_ORIGIN)
        await login_routes.origin_page(request, whole, kept)(request.scope, request.receive, send)
        return
    found = await parts.targets.find(whole, _below(request.scope, given), request.scope["query_string"])
    if found.allocation != given:
        # The cookies and links of a workload have paths with its whole id.
        path = spelled_path(request.scope).replace(f"{ROOT}/{given}", f"{ROOT}/{found.allocation}", 1)
        await RedirectResponse(request.url.replace(path=path), status_code=307)(request.scope, request.receive, send)
        return
    if isinstance(found, ProxyTarget):
        _check_scheme(found)
        if is_browser and request.method == "GET" and _below(request.scope, given) == b"/%d" % found.port:
            # As in `to_root`: relative links of a page need the slash.
            url = request.url.replace(path=f"{spelled_path(request.scope)}/")
            await RedirectResponse(url, status_code=307)(request.scope, request.receive, send)
            return
        touch = _touching(parts, found, request.method)
        touch()
        try:
            with parts.open_streams.held(STREAM_KIND, holder_of(request)):
                request.scope[PROXIED_KEY] = True
                await parts.forwarder.forward(request, found, send, touch, partial(parts.targets.confirm, found))
            return
        except UnavailableError as error:
            request.scope[PROXIED_KEY] = False
            parts.targets.forget(whole)
            if not is_browser:
                raise
            found = NoServer(allocation=found.allocation, kind=found.kind, phase=Phase.RUNNING, message=str(error))
    response = waiting_response(await _redacted(request, found), request.url.path, is_browser=is_browser)
    await response(request.scope, request.receive, send)


async def _serve_socket(socket: WebSocket) -> None:
    given = str(socket.path_params["id"])
    await middleware.admit(socket, PROXIED)
    parts = parts_of(socket)
    whole = await _whole(parts, given)
    if _is_login_in_api_origin(socket, parts) or _is_browser_in_api_origin(socket, parts):
        raise ForbiddenError(_NEEDS_OWN_ORIGIN)
    found = await parts.targets.find(whole, _below(socket.scope, given), socket.scope["query_string"])
    if isinstance(found, NoServer):
        state = await _redacted(socket, found)
        await socket.send_denial_response(waiting_response(state, socket.url.path, is_browser=False))
        return
    touch, confirm = _touching(parts, found, socket.scope["type"]), partial(parts.targets.confirm, found)
    with parts.open_streams.held(STREAM_KIND, holder_of(socket)):
        try:
            if tcp_tunnel.PROTOCOL in socket.scope.get("subprotocols", ()):
                await sockets.forward_bytes(socket, found, stop=parts.stop, touch=touch, confirm=confirm)
            else:
                _check_scheme(found)
                await forward_socket(
                    socket, found, stop=parts.stop, touch=touch, confirm=confirm, forwarder=parts.forwarder
                )
        except UnavailableError:
            parts.targets.forget(whole)
            raise


async def _redacted(connection: HTTPConnection, state: NoServer) -> NoServer:
    """Return the state with a message for the caller: names that the caller may not see are removed from it.

    The scheduler's text names the allocations that go first.
    """
    return msgspec.structs.replace(state, message=await middleware.redacted(connection, state.message))


def _is_login_in_api_origin(connection: HTTPConnection, parts: ApiDeps) -> bool:
    """Whether a logged-in browser requests a workload in the api's own origin.

    In that origin the workload's page could call the api with the rights of the user.
    """
    host = connection.headers.get("host", "")
    return session.is_by_cookie(connection) and not workload_of(host, parts.settings.proxy_domain)


def _is_browser_in_api_origin(connection: HTTPConnection, parts: ApiDeps) -> bool:
    """Whether a browser requests, in mode none, a page of a workload in the origin of the api.

    In that origin the page could do whatever the api can. Other programs are served, because they run no scripts.
    """
    settings, headers = parts.settings, connection.headers
    if settings.auth != "none" or not settings.proxy_domain:
        return False
    by_browser = "sec-fetch-site" in headers or "origin" in headers or "text/html" in headers.get("accept", "")
    return by_browser and not workload_of(headers.get("host", ""), settings.proxy_domain)


def _to_origin(request: Request, parts: ApiDeps, id_: str) -> Response:
    """Redirect to the origin of the workload; in mode none this needs no login code."""
    host = request.headers.get("host", "")
    # The client may have sent a part of the id, or a name; the address of the origin contains the whole id.
    given = str(request.path_params["id"])
    path = spelled_address(request.scope).replace(f"{ROOT}/{given}", f"{ROOT}/{id_}", 1)
    origin = origin_of(id_, parts.settings.proxy_domain, scheme=request.url.scheme, host=host)
    return RedirectResponse(origin + path, status_code=307)


def _led_to_login(request: Request) -> Response:
    """Redirect to our own login; from the origin of a workload, first redirect to the origin of the api."""
    parts = parts_of(request)
    if not workload_of(request.headers.get("host", ""), parts.settings.proxy_domain):
        if request.headers.get("sec-fetch-site", "") == "cross-site":
            return login_routes.reload_page(request)
        return login_routes.redirect_to_login(request)
    path = spelled_address(request.scope)
    if parts.sessions.has_refused(request):
        return login_routes.back_link_page(
            request, path, "Your access to this workload has expired, or you have logged out."
        )
    return RedirectResponse(login_routes.api_origin(request) + path, status_code=303)


def _renewing(request: Request, parts: ApiDeps, send: Send) -> Send:
    """Return a `send` that adds a new ticket to the answer when half the lifetime of the browser's ticket is over."""
    fields = parts.sessions.renewed(request) if session.is_by_cookie(request) else []
    if not fields:
        return send

    async def renewing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *fields]}
        await send(message)

    return renewing


async def _whole(parts: ApiDeps, given: str) -> str:
    """Return the whole id, after a lookup with the rights of the caller; in mode none, return `given`.

    The cache of targets checks no rights, so it may be read only with an id that the caller may see.
    """
    return given if parts.settings.auth == "none" else id_of(await parts.lookup.find(given))


def _below(scope: Scope, given: str) -> bytes:
    """Return the raw path below `/proxy/{id}`, as the client spelled it."""
    raw = bytes(scope.get("raw_path") or scope["path"].encode())
    # Some clients send a fragment, but it is no part of a request target (RFC 9112, 3.2).
    return raw.partition(b"#")[0].partition(b"?")[0].removeprefix(f"{ROOT}/{given}".encode()) or b"/"


def _check_scheme(target: ProxyTarget) -> None:
    """Raises InvalidError for a TCP port: it can only be reached through a tunnel."""
    if target.scheme == "tcp":
        raise InvalidError(
            f"port {target.port} of {target.allocation} speaks TCP: slipway port-forward {target.allocation} "
            f"{target.port} forwards a port of your machine to it"
        )


def _touching(parts: ApiDeps, target: ProxyTarget, method: str) -> Callable[[], None]:
    """Return the function that records activity for the traffic of one request.

    For one allocation it records at most every few seconds.
    """
    path = target.path.decode("latin-1").removeprefix(target.prefix)
    if not is_use(target.kind, method, path):
        return lambda: None

    def touch() -> None:
        if parts.touched.may(target.allocation):
            parts.behind.offer_activity(target.allocation, SOURCE, parts.clock.now())

    return touch
