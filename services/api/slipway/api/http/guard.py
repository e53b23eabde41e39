"""Checks the origin and the host name of every request: the outermost layer after the log.

Owns the answers to requests that `slipway.runtime.web_guard` refuses, and the differences of the api. The api and
workloads have pages, and a link on any site may open one in a browser. A page of another origin may do nothing else,
neither read nor load: a browser also sends the user's cookies with requests of a page of a related origin, such as that
of another workload. A request with two Host or two Authorization fields is refused, because a proxy in front of the api
may have used the other one.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from slipway.api.auth import origins
from slipway.api.http.errors import MalformedError
from slipway.api.http.problems import TABLE, ProblemRow, problem_response
from slipway.api.http.request_telemetry import QUIET_PATHS
from slipway.runtime import web_guard

_SINGLE = (b"host", b"authorization")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_HOST = ProblemRow(web_guard.MISDIRECTED, "unknown-host", "This host name is not served here")
_MALFORMED = TABLE[MalformedError]
_INSIDE = ProblemRow(404, "not-found", "There is nothing of that name in the origin of a workload")
_ORIGIN = ProblemRow(web_guard.FORBIDDEN, "cross-origin", "The request comes from another origin")
_REMEDY = "; add its name to SLIPWAY_HOSTS"


class WebGuard:
    """ASGI middleware that refuses wrong host names and origins.

    `hosts` are permitted names in addition to the loopback names; None permits any, when a credential is required.
    `domain` is the parent domain of the origins of workloads.
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] | None, domain: str = "") -> None:
        self._app = app
        self._domain = domain
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope["path"] not in QUIET_PATHS:
            refusal = self._refusal(scope, Headers(scope=scope))
            if refusal is not None:
                row, detail = refusal
                await problem_response(row, detail, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[ProblemRow, str] | None:
        def header(name: str) -> str:
            return headers.get(name, "")

        for name in _SINGLE:
            if sum(1 for field, _ in scope["headers"] if field == name) > 1:
                return _MALFORMED, f"the request has the field {name.decode().capitalize()} twice; send it once"
        host = header("host")
        id_ = origins.workload_of(host, self._domain)
        foreign = None if self._hosts is None or id_ else web_guard.check_host(host, self._hosts, remedy=_REMEDY)
        if foreign is not None:
            return _HOST, foreign.detail
        if not host:
            return _MALFORMED, "the request has no field Host; it must name the server"
        if not web_guard.host_name(host):
            return _MALFORMED, f"the field Host must be a name and a port, not {host[:128]!r}"
        if id_ and not origins.is_inside(id_, str(scope.get("method", "WEBSOCKET")), scope["path"]):
            return _INSIDE, f"this is the origin of {id_[:80]}; the api has another name"
        if scope["path"] == origins.ENTER:
            return None  # the request comes from the api's own origin, which the handler checks itself
        changes = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        is_read = not changes and web_guard.is_navigation(header)
        elsewhere = None if is_read else web_guard.check_page(header)
        return None if elsewhere is None else (_ORIGIN, elsewhere.detail)
