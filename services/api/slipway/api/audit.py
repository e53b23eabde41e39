"""The audit log: one line for each call that changes something: the caller, the object, the outcome.

Owns which calls are logged: all methods except the reading ones, logins by a link or at the issuer, and every WebSocket
to a workload. Refused calls are logged too. The line names the object and its workspace, from the path, from the body,
or from the object that was created. It contains nothing else of the body, and no credentials. If an external reader is
configured, it gets each line as an event (`audit_trail.py`).
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
"""The attribute of the application's state with the external reader."""
OBJECT_KEY, WORKSPACE_KEY = "slipway.audit.object", "slipway.audit.workspace"
_ASKED = ("name", "url", "kind")
READING = ("GET", "HEAD", "OPTIONS")
_NAME_MAX = 256
_REFUSED = 400
STRANGERS_MAX = 60
"""Refused calls of unknown callers that are logged in a minute, for each status. Any program that can reach the api can
make such calls. The limit keeps room for the calls of users, in the log and in the queue of the external reader."""

_log = log.get_logger(__name__)


@contextlib.contextmanager
def log_call(
    connection: HTTPConnection, route: str, *, is_in_query: bool = False, is_change: bool = False
) -> Generator[None]:
    """Log the call that is made inside, after it was answered or refused.

    `is_in_query`: the route has a parameter `workspace`; other routes ignore a parameter of that name.
    `is_change`: the call is a GET that changes something, such as a login link.
    """
    method = str(connection.scope.get("method", "WEBSOCKET"))
    if method in READING and not is_change:
        yield
        return
    try:
        yield
    except ControlPlaneError as error:
        set_status(connection, row_of(error).status)
        raise
    finally:
        _tell(connection, method, route, connection.query_params.get("workspace", "") if is_in_query else "")


def set_status(connection: HTTPConnection, status: int) -> None:
    """Record the status of the answer."""
    connection.scope[STATUS_KEY] = status


def note_body(connection: HTTPConnection, body: Mapping[str, Any]) -> None:
    """Record the object that a body names, also for a refused call. Its workspace is used if no other is known."""
    named = {name: body[name] for name in _ASKED if isinstance(body.get(name), str)}
    if "url" in named:
        # The path and the query of a webhook's URL often hold its credential.
        named["url"] = _host_of(named["url"])
    workspace = "" if connection.scope.get(WORKSPACE_KEY) else body.get("workspace")
    note_object(connection, named, workspace=workspace if isinstance(workspace, str) else "")


def note_object(connection: HTTPConnection, names: Mapping[str, str], *, workspace: str = "") -> None:
    """Record the object that a call names or has created; a later name replaces an earlier one."""
    connection.scope.setdefault(OBJECT_KEY, {}).update(names)
    if workspace:
        connection.scope[WORKSPACE_KEY] = workspace


def log_item(connection: HTTPConnection, verb: str, names: Mapping[str, str], workspace: str, status: int) -> None:
    """Write the line of one object of a request that changes many. The request has a line of its own too."""
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
    """Write the line to the log, and with the id of the request to the external reader (each log line has the id).

    Only the first refused calls of unknown callers in a minute are logged; the next line has the number of the others.
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
        record = {**line, "requestId": connection.scope.get(REQUEST_ID_KEY, "")}
        trail.offer(record, subject=f"{line['method']} {line['route']}")


def _caller(connection: HTTPConnection) -> tuple[str, str]:
    """Return (the user, the kind or id of the credential); both empty for an unknown caller."""
    principal = connection.scope.get(PRINCIPAL_KEY)
    caller = getattr(connection.state, "caller", None)
    if caller is not None:
        return f"task {caller.pod}"[:_NAME_MAX], "task"
    return (principal.name[:_NAME_MAX], principal.via) if principal is not None else ("", "")
