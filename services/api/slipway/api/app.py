"""The application as data: routes, middleware, error handlers."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from slipway.api.allocations import (
    allocation_routes,
    batch_routes,
    event_routes,
    exec_routes,
    history_routes,
    log_routes,
)
from slipway.api.auth import login_routes, sign_in_routes, token_routes
from slipway.api.auth.origins import ENTER
from slipway.api.auth.route_rules import OTHERS, PAGES
from slipway.api.cluster import condition_routes, dead_letter_routes, decision_routes, node_routes, simulate_routes
from slipway.api.deps import ApiDeps
from slipway.api.http import audit, documents, openapi, problems
from slipway.api.http.endpoint import Endpoint, Handler, routes_of
from slipway.api.http.guard import WebGuard
from slipway.api.http.request_telemetry import QUIET_PATHS, RequestTelemetry
from slipway.api.launch import context_routes, kind_routes, launch_batch_routes, launch_routes, template_routes
from slipway.api.proxy.app import PATH as PROXY_PATH
from slipway.api.proxy.app import proxy, to_root
from slipway.api.queues import job_routes, queue_routes, workspace_routes
from slipway.api.tasks import gather_routes, signal_routes
from slipway.api.usage import gpu_routes, usage_routes
from slipway.api.web import assets, trace_page, web_page
from slipway.api.webhooks import webhook_routes
from slipway.errors import InvariantError
from slipway.runtime.health import HealthApp
from slipway.runtime.listen import parse_listen
from slipway.runtime.log import LineLimit
from slipway.runtime.service import version

ENDPOINTS: tuple[Endpoint, ...] = (
    *launch_routes.ENDPOINTS,
    *batch_routes.ENDPOINTS,
    *launch_batch_routes.ENDPOINTS,
    *allocation_routes.ENDPOINTS,
    *kind_routes.ENDPOINTS,
    *event_routes.ENDPOINTS,
    *log_routes.ENDPOINTS,
    *signal_routes.ENDPOINTS,
    *gather_routes.ENDPOINTS,
    *exec_routes.ENDPOINTS,
    *queue_routes.ENDPOINTS,
    *node_routes.ENDPOINTS,
    *decision_routes.ENDPOINTS,
    *simulate_routes.ENDPOINTS,
    *job_routes.ENDPOINTS,
    *usage_routes.ENDPOINTS,
    *gpu_routes.ENDPOINTS,
    *history_routes.ENDPOINTS,
    *template_routes.ENDPOINTS,
    *webhook_routes.ENDPOINTS,
    *dead_letter_routes.ENDPOINTS,
    *context_routes.ENDPOINTS,
    *workspace_routes.ENDPOINTS,
    *token_routes.ENDPOINTS,
    *login_routes.ENDPOINTS,
    *condition_routes.ENDPOINTS,
)
"""Every route of the REST API."""


def create_app(parts: ApiDeps, probes: HealthApp) -> Starlette:
    """Return the ASGI application of the api."""
    settings = parts.settings
    is_open = settings.auth == "none"
    # A loopback address is reached only by this machine, or by a proxy whose host names are known.
    is_local = is_open or parse_listen(settings.listen).is_loopback
    # With a separate health listener for Prometheus, unauthenticated callers do not get metrics here.
    quiet = QUIET_PATHS if is_open or not settings.health_listen else tuple(set(QUIET_PATHS) - {"/metrics"})
    routes: list[BaseRoute] = [Route(path, probes) for path in quiet]
    routes += routes_of(ENDPOINTS)
    routes += [
        Route("/docs", documents.docs),
        Route("/openapi.json", documents.openapi),
        Route("/asyncapi.json", documents.asyncapi),
        Route(assets.PATH, assets.asset),
        Route(trace_page.PATH, trace_page.show),
        *(Route(path, web_page.show) for path in PAGES),
        Route(
            login_routes.LOGIN,
            _Asgi(login_routes.MethodRouter(GET=_handler(login_routes.show), POST=_handler(login_routes.log_in))),
        ),
        Route(
            login_routes.LINK,
            _Asgi(
                login_routes.MethodRouter(
                    GET=_handler(login_routes.follow), POST=_handler(login_routes.follow_confirmed)
                )
            ),
        ),
        Route(login_routes.CLIENT, _Asgi(login_routes.MethodRouter(GET=_handler(sign_in_routes.client)))),
        Route(login_routes.START, _Asgi(login_routes.MethodRouter(POST=_handler(sign_in_routes.start)))),
        Route(login_routes.CALLBACK, _Asgi(login_routes.MethodRouter(GET=_handler(sign_in_routes.finish)))),
        Route(login_routes.LOGOUT, _Asgi(login_routes.MethodRouter(POST=_handler(login_routes.log_out)))),
        Route(
            ENTER,
            _Asgi(login_routes.MethodRouter(GET=_handler(login_routes.follow), POST=_handler(login_routes.enter))),
        ),
        Route("/proxy/{id}", _Asgi(to_root)),
        Route(PROXY_PATH, _Asgi(proxy)),
        WebSocketRoute(PROXY_PATH, _Asgi(proxy)),
        WebSocketRoute(exec_routes.PATH, _Asgi(exec_routes.exec_socket)),
    ]
    _check_listed(routes)
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestTelemetry, parts.clock, parts.random),
            Middleware(WebGuard, settings.hosts if is_local else None, settings.proxy_domain),
        ],
        exception_handlers=problems.HANDLERS,
    )
    app.router.redirect_slashes = False
    app.state.parts = parts
    app.state.audit_limit = LineLimit(parts.clock.monotonic, lines_max=audit.STRANGERS_MAX)
    app.state.needs_token = False
    app.state.on_broken = parts.on_broken
    app.state.document = _document
    app.state.docs_of = _docs_page
    return app


def _check_listed(routes: Iterable[BaseRoute]) -> None:
    """Raise InvariantError for a path that is not in the authorisation table."""
    known = {row.path for row in ENDPOINTS} | OTHERS.keys()
    for route in routes:
        path = str(getattr(route, "path", route))
        if path not in known:
            raise InvariantError(f"{path} is not in the authorisation table: add its row to auth/route_rules.py")


@cache
def _document() -> dict[str, Any]:
    """Return the OpenAPI document. It depends only on the code and is slow to build, so it is built at first use."""
    return openapi.document(ENDPOINTS, version())


def _docs_page(base: str) -> str:
    return documents.page(ENDPOINTS, _document()["components"]["schemas"], base)


def create_task_app(parts: ApiDeps) -> Starlette:
    """Return the ASGI application for tasks: only the routes with `for_tasks`, and only with the token of a task.

    It may listen on any address. It needs no Guard, because no page in a browser has such a token.
    """
    app = Starlette(
        routes=routes_of(row for row in ENDPOINTS if row.for_tasks),
        middleware=[Middleware(RequestTelemetry, parts.clock, parts.random)],
        exception_handlers=problems.HANDLERS,
    )
    app.router.redirect_slashes = False
    app.state.parts = parts
    app.state.audit_limit = LineLimit(parts.clock.monotonic, lines_max=audit.STRANGERS_MAX)
    app.state.needs_token = True
    app.state.on_broken = parts.on_broken
    return app


def _handler(serve: Handler) -> ASGIApp:
    """Return a request handler as an ASGI application."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await serve(Request(scope, receive))
        await response(scope, receive, send)

    return app


class _Asgi:
    """Wraps an ASGI application as an endpoint: Starlette would treat a plain function as a request handler."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
