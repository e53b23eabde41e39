"""A command in a rank, over a WebSocket."""

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from slipway.api.allocations.rank_exec import (
    SHELL,
    ExecRequest,
    ExecSession,
    RankContainer,
    find_container,
    opened,
    why_lost,
)
from slipway.api.auth import middleware
from slipway.api.auth.principal import principal_of
from slipway.api.auth.route_rules import rule_of
from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http import audit
from slipway.api.http.endpoint import Endpoint, Query, bad_param
from slipway.api.http.errors import ConflictError, ForbiddenError, UpgradeRequiredError
from slipway.api.http.streaming import holder_of
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model import exec_channels
from slipway.model.ids import AllocationId
from slipway.model.numbers import number_in
from slipway.runtime import log

PATH = "/api/v1/allocations/{id}/ranks/{rank}/exec"
TAG = "exec"
STREAM_KIND = "exec"
SOURCE = "exec"
_RANK_MAX = 10**6
_TRUE, _FALSE = ("true", "1", ""), ("false", "0")

_log = log.get_logger(__name__)


async def exec_plainly(request: Request) -> Response:
    """Answer a request without a WebSocket upgrade: make all checks, and then refuse with the required protocol."""
    await _meant(request)
    raise UpgradeRequiredError(
        f"a command in a rank is a WebSocket of the protocol {exec_channels.PROTOCOL}: use slipway exec, or a client "
        "that upgrades the connection"
    )


async def exec_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one exec session."""
    socket = WebSocket(scope, receive, send)
    with audit.log_call(socket, PATH):
        await middleware.admit(socket, rule_of("GET", PATH))
        await _serve(socket)
        audit.set_status(socket, 101)


async def _serve(socket: WebSocket) -> None:
    parts = parts_of(socket)
    allocation, wanted, place = await _meant(socket)
    if exec_channels.PROTOCOL not in socket.scope.get("subprotocols", ()):
        raise bad_param("Sec-WebSocket-Protocol", f"must offer {exec_channels.PROTOCOL}")
    id_, user = id_of(allocation), principal_of(socket).name
    with parts.open_streams.held(STREAM_KIND, holder_of(socket)), parts.exec_sessions.held(user):
        async with opened(parts.kube, place, wanted) as channels:
            await socket.accept(subprotocol=exec_channels.PROTOCOL)
            _tell(socket, id_, wanted, place)
            started_at = parts.clock.monotonic()
            try:
                session = ExecSession(
                    socket,
                    channels,
                    clock=parts.clock,
                    stop=parts.stop,
                    idle_s=parts.settings.exec_idle_s,
                    touch=lambda: _touch(parts, id_),
                    look=lambda: why_lost(parts.kube, parts.nodes.items, place),
                )
                await session.run()
            finally:
                seconds = round(parts.clock.monotonic() - started_at, 3)
                _log.info("exec session closed", user=user, allocation=id_, rank=wanted.rank, seconds=seconds)


def _tell(socket: WebSocket, id_: str, wanted: ExecRequest, place: RankContainer) -> None:
    """Write the audit log line at the start of the session, not at its end.

    The line has only the command's first word, because arguments may contain secrets.
    """
    names = {"id": id_, "rank": str(wanted.rank), "container": place.container, "command": wanted.command[0]}
    audit.note_object(socket, names, workspace=place.namespace)
    audit.log_item(socket, "exec", names, place.namespace, 101)


def _touch(parts: ApiDeps, id_: AllocationId) -> None:
    if parts.touched.may(id_):
        parts.behind.offer_activity(id_, SOURCE, parts.clock.now())


async def _meant(connection: HTTPConnection) -> tuple[Allocation, ExecRequest, RankContainer]:
    """Return (the allocation, the command, the container of the rank). Raises when the command cannot run."""
    parts = parts_of(connection)
    if not parts.settings.exec_enabled:
        raise ForbiddenError(
            "commands in ranks are switched off here (SLIPWAY_EXEC_ENABLED=false; api.settings.execEnabled in the "
            "chart); logs, port-forward and shells are not"
        )
    wanted = _wanted(connection)
    audit.note_object(connection, {"rank": str(wanted.rank), "command": wanted.command[0]})
    allocation = await parts.lookup.find(str(connection.path_params["id"]))
    audit.note_object(connection, {}, workspace=allocation.metadata.namespace)
    try:
        return allocation, wanted, await find_container(parts.kube, allocation, wanted)
    except ConflictError as error:
        # The error contains the scheduler's sentence about the rank, which can name other workspaces.
        raise ConflictError(await middleware.redacted(connection, str(error))) from error


def _wanted(connection: HTTPConnection) -> ExecRequest:
    query, text = connection.query_params, str(connection.path_params["rank"])
    rank = number_in(text)
    if rank is None or rank > _RANK_MAX:
        raise bad_param("rank", f"must be the number of a rank, such as 0, not {text[:64]!r}")
    command = tuple(query.getlist("command")) or SHELL
    if not command[0]:
        raise bad_param("command", "its first word must name a program")
    if len(connection.scope["query_string"]) > exec_channels.QUERY_BYTES_MAX:
        most = exec_channels.QUERY_BYTES_MAX
        raise bad_param(
            "command", f"must have at most {most} bytes as encoded in an address; send longer text as input"
        )
    if any("\0" in word for word in command):
        raise bad_param("command", "must not contain a zero byte")
    return ExecRequest(
        rank=rank,
        command=command,
        container=query.get("container", ""),
        stdin=_flag(connection, "stdin"),
        tty=_flag(connection, "tty"),
    )


def _flag(connection: HTTPConnection, name: str) -> bool:
    text = connection.query_params.get(name)
    if text is None:
        return False
    if text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    raise bad_param(name, f"must be true or false, not {text[:64]!r}")


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=PATH,
        handler=exec_plainly,
        summary="Run a command in a rank, over a WebSocket",
        tag=TAG,
        query=(
            Query("command", "one word of the command; repeat it for each word, in order (default: a shell)"),
            Query("container", "run it in this container instead of the main container"),
            Query("stdin", "true: the command has an input", "boolean"),
            Query("tty", "true: the command has a terminal; its output and errors are one stream", "boolean"),
        ),
    ),
)
