"""The application as data: routes, middleware, error handlers."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from slipway.api import problems
from slipway.api.endpoint import Endpoint, routes_of
from slipway.api.observe import QUIET_PATHS, Observe
from slipway.api.parts import Parts
from slipway.api.routes import allocations, events, kinds, launches, logs, queues, signals
from slipway.runtime.health import Health, HealthApp

ENDPOINTS: tuple[Endpoint, ...] = (
    *launches.ENDPOINTS,
    *allocations.ENDPOINTS,
    *kinds.ENDPOINTS,
    *events.ENDPOINTS,
    *logs.ENDPOINTS,
    *signals.ENDPOINTS,
    *queues.ENDPOINTS,
)
"""Every route of the REST API."""


def create_app(parts: Parts, health: Health) -> Starlette:
    """The ASGI application over `parts`."""
    probes = HealthApp(health)
    routes: list[BaseRoute] = [Route(path, probes) for path in QUIET_PATHS]
    routes += routes_of(ENDPOINTS)
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Observe, parts.clock, parts.random)],
        exception_handlers=problems.HANDLERS,
    )
    app.router.redirect_slashes = False
    app.state.parts = parts
    app.state.on_broken = parts.on_broken
    return app
