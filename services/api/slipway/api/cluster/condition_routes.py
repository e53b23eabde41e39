"""The state of this process, its Redis and its listeners, for `slipway doctor`. Facts only; the doctor judges them."""

import asyncio
import contextlib

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.auth.issuer import IssuerHealth
from slipway.api.deps import parts_of
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.errors import ControlPlaneError
from slipway.model.times import format_time
from slipway.runtime.listen import parse_listen
from slipway.runtime.service import version
from slipway.streams.ports import ServerHealth

DOOR_S = 2.0


class ConditionView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of one process of the api. `redis` is null without Redis, or when `redisError` has an error."""

    version: str
    time: str
    auth: str
    exec_enabled: bool
    """whether commands may be run in ranks"""
    has_redis: bool
    redis: ServerHealth | None
    redis_error: str
    issuer: IssuerHealth | None
    """the issuer of single sign-on; null when it is not set up"""
    task_listen: str
    """address of the listener for tasks; empty when there is none"""
    task_door_answers: bool | None
    """whether the listener for tasks accepts connections; null when that cannot be tested"""


async def condition(request: Request) -> Response:
    """Return the state of this process, its Redis and its listeners."""
    parts = parts_of(request)
    settings = parts.settings
    found, error = None, ""
    if settings.redis_url:
        try:
            found = await parts.conditions.look()
        except ControlPlaneError as refusal:
            error = str(refusal)
    view = ConditionView(
        version=version(),
        time=format_time(parts.clock.now()),
        auth=settings.auth,
        exec_enabled=settings.exec_enabled,
        has_redis=bool(settings.redis_url),
        redis=found,
        redis_error=error,
        issuer=await parts.issuer.health() if parts.issuer is not None else None,
        task_listen=settings.task_listen,
        task_door_answers=await _is_open(settings.task_listen) if settings.task_listen else None,
    )
    return json_response(view)


async def _is_open(listen: str) -> bool | None:
    """Whether the listener's address accepts connections; None when the listener uses any free port."""
    place = parse_listen(listen)
    if not place.port:
        return None
    host = "127.0.0.1" if place.host in ("0.0.0.0", "") else "::1" if place.host == "::" else place.host  # noqa: S104
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(DOOR_S):
            _, writer = await asyncio.open_connection(host, place.port)
            writer.close()
            return True
    return False


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/condition",
        handler=condition,
        summary="Show the state of this process, its Redis and its listeners, for `slipway doctor`",
        tag="admin",
        answer=ConditionView,
    ),
)
