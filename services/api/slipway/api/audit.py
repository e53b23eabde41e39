"""The audit log: one line for each call that changes something: the caller, the object, the outcome.

Owns which calls those are: all methods except the reading ones, logins by a link or by way of the issuer, and every
WebSocket to a workload. Refused calls are
logged too. The line names the object and its workspace: those of the path, those that the body asks for, and those that
were created. It contains nothing else of the body, and no credentials. Where a reader outside is set up, it gets the
same as an event (`audit_trail.py`).
"""

import contextlib
from collections.abc import Generator, Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from slipway.api.audit_trail import AuditTrail
from slipway.api.identity import PRINCIPAL_KEY
from slipway.api.problems import row_of
from slipway.api.request_telemetry import REQUEST_ID_KEY
from slipway.errors import ControlPlaneError
from slipway.runtime import log
from slipway.runtime.log_limit import LineLimit

STATUS_KEY = "slipway.audit.status"
TRAIL = "audit_trail"
"""The attribute of the application's state that has the reader outside."""
OBJECT_KEY, WORKSPACE_KEY = "slipway.audit.object", "slipway.audit.workspace"
_ASKED = ("name", "url", "kind")
READING = ("GET", "HEAD", "OPTIONS")
_NAME_MAX = 256
_REFUSED = 400
STRANGERS_MAX = 60
"""Refused calls of unknown callers that are told in a minute, of one status. Whoever can reach the api can make them:
the log, and the events that wait for their reader, have room for what users do."""

_log = log.get_logger(__name__)


@contextlib.contextmanager
def told(
    connection: HTTPConnection, route: str, *, is_in_query: bool = False, is_change: bool = False
) -> Generator[None]:
    """Tells of what is done inside, when it is done or was refused.

    `is_in_query`: the route has a parameter `workspace`; elsewhere nobody reads one, and it says nothing.
    `is_change`: a GET that changes something, as a link that logs in does.
    """
    method = str(connection.scope.get("method", "WEBSOCKET"))
    if method in READING and not is_change:
        yield
        return
    try:
        yield
    except ControlPlaneError as error:
        answered(connection, row_of(error).status)
        raise
    finally:
        _tell(connection, method, route, connection.query_params.get("workspace", "") if is_in_query else "")


def answered(connection: HTTPConnection, status: int) -> None:
    """How it ended."""
    connection.scope[STATUS_KEY] = status


def asked(connection: HTTPConnection, body: Mapping[str, Any]) -> None:
    """What a body is about, as far as it says so: also of what is refused. Its workspace counts where none is known."""
    named = {name: body[name] for name in _ASKED if isinstance(body.get(name), str)}
    if "url" in named:
        # What follows the host of a webhook's address is often what lets callers in.
        named["url"] = _host_of(named["url"])
    workspace = "" if connection.scope.get(WORKSPACE_KEY) else body.get("workspace")
    about(connection, named, workspace=workspace if isinstance(workspace, str) else "")


def about(connection: HTTPConnection, names: Mapping[str, str], *, workspace: str = "") -> None:
    """What a call is about, or has made; what is said later counts."""
    connection.scope.setdefault(OBJECT_KEY, {}).update(names)
    if workspace:
        connection.scope[WORKSPACE_KEY] = workspace


def told_of_each(connection: HTTPConnection, verb: str, names: Mapping[str, str], workspace: str, status: int) -> None:
    """One line for one object of a request that changes many, beside the line of the request."""
    user, via = _caller(connection)
    line: dict[str, Any] = {
        "user": user,
        "via": via,
        "method": str(connection.scope.get("method", "WEBSOCKET")),
        "route": connection.scope["path"],
        "verb": verb,
        "object": {name: value[:_NAME_MAX] for name, value in names.items()},
        "workspace": workspace,
        "status": status,
    }
    _write(connection, line)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _tell(connection: HTTPConnection, method: str, route: str, asked_workspace: str) -> None:
    user, via = _caller(connection)
    status = connection.scope.get(STATUS_KEY, 500)
    found: dict[str, str] = connection.scope.get(OBJECT_KEY, {})
    workspace = str(connection.scope.get(WORKSPACE_KEY) or asked_workspace)
    line: dict[str, Any] = {
        "user": user,
        "via": via,
        "method": method,
        "route": route,
        "object": {name: str(value)[:_NAME_MAX] for name, value in {**found, **connection.path_params}.items()},
        "workspace": workspace[:_NAME_MAX],
        "status": status,
    }
    _write(connection, line)


def _write(connection: HTTPConnection, line: dict[str, Any]) -> None:
    """To the log, and to the reader outside, who also gets the id of the request, which is in each line of the log.

    Of refused calls of callers that are not known, the first of a minute are told; the next one says how many were not.
    """
    if not line["user"] and line["status"] >= _REFUSED:
        limit: LineLimit = connection.app.state.audit_limit
        withheld = sum(count for _, count in limit.ended())
        if not limit.admits(str(line["status"])):
            return
        line |= {"withheld": withheld} if withheld else {}
    _log.info("audit", **line)
    trail: AuditTrail | None = getattr(connection.app.state, TRAIL, None)
    if trail is not None:
        told = {**line, "requestId": connection.scope.get(REQUEST_ID_KEY, "")}
        trail.offer(told, subject=f"{line['method']} {line['route']}")


def _caller(connection: HTTPConnection) -> tuple[str, str]:
    """(who calls, by which credential)."""
    principal = connection.scope.get(PRINCIPAL_KEY)
    caller = getattr(connection.state, "caller", None)
    if caller is not None:
        return f"task {caller.pod}"[:_NAME_MAX], "task"
    return (principal.name[:_NAME_MAX], principal.via) if principal is not None else ("", "")
