"""The application as data: routes, middleware, error handlers."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from slipway.api import assets, audit, docs_page, openapi, problems
from slipway.api.access.origins import ENTER
from slipway.api.access.route_rules import OTHERS, PAGES
from slipway.api.deps import ApiDeps
from slipway.api.endpoint import Endpoint, Handler, routes_of
from slipway.api.guard import WebGuard
from slipway.api.proxy.app import PATH as PROXY_PATH
from slipway.api.proxy.app import proxy, to_root
from slipway.api.request_telemetry import QUIET_PATHS, RequestTelemetry
from slipway.api.routes import (
    about,
    allocations,
    batch,
    condition,
    contexts,
    dead,
    decisions,
    events,
    gather,
    gpu_use,
    history,
    jobs,
    kinds,
    launch_batch,
    launches,
    login,
    login_links,
    logs,
    nodes,
    queues,
    rank_exec,
    sign_in,
    signals,
    simulate,
    templates,
    tokens,
    trace_page,
    usage,
    web_page,
    webhooks,
    workspaces,
)
from slipway.errors import InvariantError
from slipway.runtime.health import HealthApp
from slipway.runtime.listen import parse_listen
from slipway.runtime.log_limit import LineLimit
from slipway.runtime.service import version

ENDPOINTS: tuple[Endpoint, ...] = (
    *launches.ENDPOINTS,
    *batch.ENDPOINTS,
    *launch_batch.ENDPOINTS,
    *allocations.ENDPOINTS,
    *kinds.ENDPOINTS,
    *events.ENDPOINTS,
    *logs.ENDPOINTS,
    *signals.ENDPOINTS,
    *gather.ENDPOINTS,
    *rank_exec.ENDPOINTS,
    *queues.ENDPOINTS,
    *nodes.ENDPOINTS,
    *decisions.ENDPOINTS,
    *simulate.ENDPOINTS,
    *jobs.ENDPOINTS,
    *usage.ENDPOINTS,
    *gpu_use.ENDPOINTS,
    *history.ENDPOINTS,
    *templates.ENDPOINTS,
    *webhooks.ENDPOINTS,
    *dead.ENDPOINTS,
    *contexts.ENDPOINTS,
    *workspaces.ENDPOINTS,
    *tokens.ENDPOINTS,
    *login_links.ENDPOINTS,
    *condition.ENDPOINTS,
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
        Route("/docs", about.docs),
        Route("/openapi.json", about.openapi),
        Route("/asyncapi.json", about.asyncapi),
        Route(assets.PATH, assets.asset),
        Route(trace_page.PATH, trace_page.show),
        *(Route(path, web_page.show) for path in PAGES),
        Route(login.LOGIN, _Asgi(login.MethodRouter(GET=_handler(login.show), POST=_handler(login.log_in)))),
        Route(login.LINK, _Asgi(login.MethodRouter(GET=_handler(login.follow), POST=_handler(login.follow_confirmed)))),
        Route(login.CLIENT, _Asgi(login.MethodRouter(GET=_handler(sign_in.client)))),
        Route(login.START, _Asgi(login.MethodRouter(POST=_handler(sign_in.start)))),
        Route(login.CALLBACK, _Asgi(login.MethodRouter(GET=_handler(sign_in.finish)))),
        Route(login.LOGOUT, _Asgi(login.MethodRouter(POST=_handler(login.log_out)))),
        Route(ENTER, _Asgi(login.MethodRouter(GET=_handler(login.follow), POST=_handler(login.enter)))),
        Route("/proxy/{id}", _Asgi(to_root)),
        Route(PROXY_PATH, _Asgi(proxy)),
        WebSocketRoute(PROXY_PATH, _Asgi(proxy)),
        WebSocketRoute(rank_exec.PATH, _Asgi(rank_exec.exec_socket)),
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
            raise InvariantError(f"{path} is not in the authorisation table: add its row to access/route_rules.py")


@cache
def _document() -> dict[str, Any]:
    """Return the OpenAPI document. It depends only on the code and is slow to build, so it is built at first use."""
    return openapi.document(ENDPOINTS, version())


def _docs_page(base: str) -> str:
    return docs_page.page(ENDPOINTS, _document()["components"]["schemas"], base)


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
