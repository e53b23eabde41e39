"""The outermost layer of every request: its id, its span, its metrics, its one log line, the security headers.

Pure ASGI, so that streams pass through unbuffered. The metrics are labelled with the route after the router has found
it: a path of a client is an arbitrary string, which must not become a metric label.
"""

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipway.api.auth.principal import PRINCIPAL_KEY
from slipway.api.http import problems
from slipway.installed import VERSION_HEADER
from slipway.runtime import log, semconv, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.log import LineLimit
from slipway.runtime.service import version

REQUEST_ID_HEADER = "x-request-id"
QUIET_PATHS = ("/livez", "/readyz", "/metrics")
NO_ROUTE = "none"
ANONYMOUS_LINES_MAX = 60
"""Log lines per minute and status about requests without a known caller, so that the log stays readable in a flood."""
_PATH_CHARS = 512
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The security headers of every answer of ours. A page sets its own policy.

Other answers (JSON, text, a refusal) may do nothing, in case a browser ever interprets one as a page.
"""
_OF_ALLOCATION = "/api/v1/allocations/{id}/"
_UNKNOWN_CALLER = (101, 401)
_READS = ("GET", "HEAD", "OPTIONS", "WEBSOCKET")
SPAN_KEY = "slipway.span"
REQUEST_ID_KEY = "slipway.request_id"
PROXIED_KEY = "slipway.proxied"

_log = log.get_logger(__name__)


class RequestTelemetry:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, clock: Clock, random: Random) -> None:
        self._app = app
        self._strangers = LineLimit(clock.monotonic, lines_max=ANONYMOUS_LINES_MAX)
        self._clock = clock
        self._random = random
        self._version = version()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        method = semconv.method_of(str(scope.get("method", "WEBSOCKET")))
        request_id = self._request_id(headers)
        scope[REQUEST_ID_KEY] = request_id
        path = str(scope["path"])[:_PATH_CHARS]
        answered = _SentStatus()
        started_at = self._clock.monotonic()

        async def observed_send(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                answered.status, answered.is_begun = int(message.get("status", 101)), True
                _add_headers(message, request_id, is_proxied=bool(scope.get(PROXIED_KEY)))
                # An unauthenticated caller must not learn the version; a workload's page does not come from us.
                if answered.status not in _UNKNOWN_CALLER and not scope.get(PROXIED_KEY):
                    MutableHeaders(scope=message)[VERSION_HEADER] = self._version
            await send(message)

        with (
            log.bind(request_id=request_id),
            telemetry.span(
                method,
                parent=headers.get("traceparent"),
                attributes=_attributes(scope, method, headers),
                kind=telemetry.SpanKind.SERVER,
            ) as span,
            log.canonical_line(_log, "request", clock=self._clock, method=method, path=path) as line,
        ):
            scope[SPAN_KEY] = span
            try:
                await self._app(scope, receive, observed_send)
            except Exception as error:
                # Starlette would answer it outside of this layer: without the ids and the headers.
                if scope["type"] == "http" and not answered.is_begun:
                    response = await problems.on_unexpected(Request(scope), error)
                    await response(scope, receive, observed_send)
                raise
            finally:
                route = _route(scope)
                span.rename(f"{method} {route}")
                span.set(http__route=route, http__response__status_code=answered.status)
                if answered.status < 400 and headers.get("traceparent") and method not in _READS:
                    _tell(span, scope)
                if answered.status >= 500:
                    span.set(error__type=str(answered.status))
                    span.fail(str(answered.status))
                line.outcome = "ok" if answered.status < 400 else "refused" if answered.status < 500 else "failed"
                line.set(route=route, status=answered.status)
                self._limit(line, scope, answered.status)
                spent_s = self._clock.monotonic() - started_at
                telemetry.HTTP_REQUESTS.labels(route=route, method=method, code=str(answered.status)).inc()
                telemetry.HTTP_DURATION.labels(route=route, method=method).observe(spent_s)

    def _limit(self, line: log.CanonicalLine, scope: Scope, status: int) -> None:
        """Limit the log lines about requests of unknown callers; a line about a fault of ours is always written."""
        for kind, count in self._strangers.ended():
            _log.info(
                "further requests of unknown callers in the last minute, not logged one by one",
                count=count,
                status=int(kind),
            )
        is_known = PRINCIPAL_KEY in scope or scope.get("state", {}).get("caller") is not None
        if not is_known and status < 500:
            line.is_withheld = not self._strangers.admits(str(status))

    def _request_id(self, headers: Headers) -> str:
        """Return the client's own request id if it is valid, so that the client finds its request in our logs."""
        given = headers.get(REQUEST_ID_HEADER, "")
        return given if _REQUEST_ID.fullmatch(given) else self._random.token_hex(8)


class _SentStatus:
    """The status that was sent; 500 until then."""

    status = 500
    is_begun = False


def unique_id(request: Request, suffix: str) -> str:
    """Return an id of this request alone. Several requests may have one X-Request-Id, so `suffix` tells them apart."""
    return f"{request.scope[REQUEST_ID_KEY]}-{suffix}"


def _attributes(scope: Scope, method: str, headers: Headers) -> dict[str, telemetry.Attribute]:
    server, client = scope.get("server") or ("", None), scope.get("client") or ("", None)
    told: dict[str, telemetry.Attribute] = {
        "http.request.method": method,
        "url.path": str(scope["path"]),
        "url.scheme": str(scope["scheme"]),
        "network.protocol.version": str(scope.get("http_version", "")),
        "user_agent.original": headers.get("user-agent", ""),
        "client.address": str(client[0] or ""),
        "server.address": str(server[0] or ""),
        "server.port": int(server[1] or 0),
    }
    return {name: value for name, value in told.items() if value}


def _tell(span: telemetry.ActiveSpan, scope: Scope) -> None:
    """Add the span to the trace of its allocation: the caller, such as a rank, sent a traceparent with its request."""
    if _route(scope).startswith(_OF_ALLOCATION):
        span.set(slipway__allocation__id=str(scope["path_params"]["id"]))


def _route(scope: Scope) -> str:
    route = scope.get("route")
    return str(getattr(route, "path", NO_ROUTE)) if route is not None else NO_ROUTE


def _add_headers(message: Message, request_id: str, *, is_proxied: bool) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Request-Id"] = request_id
    if not is_proxied:  # a workload's page sets its own
        for name, value in _SECURITY.items():
            headers.setdefault(name, value)
