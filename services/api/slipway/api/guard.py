"""Whose pages may talk to us: the checks that keep other web sites out of an api without authentication.

Owns two rules. The Host must be a name of ours, else a page of a foreign name that resolves to this machine would count
as same-origin (DNS rebinding). A request that changes something, and every WebSocket, must not come from a page of
another origin; programs send no Origin and pass.

Source: OWASP, "Cross-Site Request Forgery Prevention"; Fetch, "Origin header".
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from slipway.api.access import origins
from slipway.api.access.origins import host_name
from slipway.api.observe import QUIET_PATHS
from slipway.api.problems import Row, problem_response
from slipway.runtime.listen import is_loopback

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_HOST = Row(421, "unknown-host", "This host is not served here")
_INSIDE = Row(404, "not-found", "There is nothing of that name in the origin of a workload")
_ORIGIN = Row(403, "cross-origin", "The request comes from another origin")


class Guard:
    """ASGI middleware. `hosts` are names beyond the loopback ones; None takes any, where a credential is needed.
    `domain` is that of the origins of workloads."""

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

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[Row, str] | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return _HOST, f"host {host[:128]!r} is not one of ours; add its name to SLIPWAY_HOSTS"
        id_ = origins.workload_of(host, self._domain)
        if id_ and not origins.is_inside(id_, str(scope.get("method", "GET")), scope["path"]):
            return _INSIDE, f"this is the origin of {id_[:80]}; the api has another name"
        if scope["path"] == origins.ENTER:
            return None  # it comes from our own origin, and looks at that itself
        changes = scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS
        origin = headers.get("origin", "")
        if changes and (is_foreign(origin, host) or headers.get("sec-fetch-site") == "cross-site"):
            return _ORIGIN, f"a page of {origin[:128] or 'another site'} may not do this"
        return None

    def _is_ours(self, host: str) -> bool:
        if self._hosts is None:
            return True
        name = host_name(host)
        return is_loopback(name) or name.endswith(".localhost") or name in self._hosts


def is_foreign(origin: str, host: str) -> bool:
    """Whether a page of `origin` is of another origin than `host`; the scheme may differ behind a TLS proxy."""
    if not origin:
        return False
    try:
        return urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:
        return True
