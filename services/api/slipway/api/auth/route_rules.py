"""The authorisation table: for every route, the permission that it needs, and where its workspace comes from.

Owns nothing else. The application cannot be built with a route that is not in the table. Pure.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from slipway.api.auth.principal import (
    CREATE,
    DELETE,
    EXEC,
    FORGET,
    GET,
    LIST,
    LOGS,
    PATCH,
    PROXY,
    PermissionCheck,
    Role,
)
from slipway.errors import InvariantError
from slipway.model.lifecycle import Kind


class PermissionScope(StrEnum):
    """In which workspace the permission of a row is checked."""

    PUBLIC = "public"
    """no check and no authentication: the answer is the same for every caller, and about no user"""
    KNOWN = "known"
    """no check: the answer is about the authenticated caller"""
    LISTED = "listed"
    """in every workspace: the answer contains what the caller may see"""
    MEMBER = "member"
    """in any existing workspace: the answer has facts of the cluster, for its users"""
    OBJECT = "object"
    """in the workspace of the allocation `{id}`; a caller who may not see it gets 404"""
    QUERY = "query"
    """in the workspace that the parameter `workspace` names"""
    PATH = "path"
    """in the workspace `{name}`"""
    BODY = "body"
    """by the handler, after it has read the workspace from the body; a handler that makes no check fails"""
    CLUSTER = "cluster"
    """for the whole cluster"""


class RouteRule(msgspec.Struct, frozen=True):
    """The permission of a route, and where it is checked."""

    where: PermissionScope
    ask: PermissionCheck = LIST
    is_archived: bool = False
    """whether the route also finds a deleted allocation whose log is archived"""


_NODES = RouteRule(PermissionScope.CLUSTER, PermissionCheck("patch", "nodes", Role.ADMIN, group=""))


def _jobs(verb: str) -> PermissionCheck:
    return PermissionCheck(verb, "jobs", Role.VIEWER if verb in ("get", "list") else Role.EDITOR)


def _templates(verb: str) -> PermissionCheck:
    return PermissionCheck(verb, "templates", Role.VIEWER if verb in ("get", "list") else Role.EDITOR)


def _admin(verb: str, resource: str, group: str | None = None) -> RouteRule:
    ask = PermissionCheck(verb, resource, Role.ADMIN)
    return RouteRule(PermissionScope.CLUSTER, ask if group is None else msgspec.structs.replace(ask, group=group))


_GET, _PATCH = RouteRule(PermissionScope.OBJECT, GET), RouteRule(PermissionScope.OBJECT, PATCH)
_ONE = "/api/v1/allocations/{id}"

PROXIED = RouteRule(PermissionScope.OBJECT, PROXY)

_TABLE: dict[str, RouteRule] = {
    "POST /api/v1/allocations": RouteRule(PermissionScope.BODY, CREATE),
    "GET /api/v1/allocations": RouteRule(PermissionScope.LISTED, LIST),
    "POST /api/v1/allocations/batch": RouteRule(PermissionScope.BODY, PATCH),
    "POST /api/v1/allocations/launches": RouteRule(PermissionScope.BODY, CREATE),
    f"GET {_ONE}": _GET,
    f"PATCH {_ONE}": _PATCH,
    f"DELETE {_ONE}": RouteRule(PermissionScope.OBJECT, DELETE),
    f"POST {_ONE}/kill": _PATCH,
    f"POST {_ONE}/terminate": _PATCH,
    f"POST {_ONE}/priority": _PATCH,
    f"POST {_ONE}/preempt": _PATCH,
    f"POST {_ONE}/forget": RouteRule(PermissionScope.OBJECT, FORGET),
    f"POST {_ONE}/hold": _PATCH,
    f"POST {_ONE}/resume": _PATCH,
    f"POST {_ONE}/move": _PATCH,
    f"GET {_ONE}/explain": _GET,
    f"GET {_ONE}/timeline": _GET,
    f"GET {_ONE}/trace": _GET,
    f"GET {_ONE}/pods": _GET,
    f"GET {_ONE}/events": _GET,
    f"GET {_ONE}/logs": RouteRule(PermissionScope.OBJECT, LOGS, is_archived=True),
    f"GET {_ONE}/context": RouteRule(PermissionScope.OBJECT, LOGS),
    f"GET {_ONE}/signals/preemption": _GET,
    f"POST {_ONE}/signals/preemption/ack": _PATCH,
    f"GET {_ONE}/rendezvous": _GET,
    f"POST {_ONE}/rendezvous": _PATCH,
    f"POST {_ONE}/ready": _PATCH,
    f"POST {_ONE}/waiting": _PATCH,
    f"POST {_ONE}/progress": _PATCH,
    f"POST {_ONE}/activity": _PATCH,
    f"POST {_ONE}/ranks/{{rank}}/daemon": _PATCH,
    f"GET {_ONE}/ranks/{{rank}}/start": _GET,
    f"POST {_ONE}/allgather": _PATCH,
    f"GET {_ONE}/ranks/{{rank}}/exec": RouteRule(PermissionScope.OBJECT, EXEC),
    "GET /api/v1/events": RouteRule(PermissionScope.LISTED, LIST),
    "GET /api/v1/usage": RouteRule(PermissionScope.LISTED, LIST),
    "GET /api/v1/usage/raw": RouteRule(PermissionScope.LISTED, LIST),
    "GET /api/v1/gpu-use": RouteRule(PermissionScope.LISTED, LIST),
    "GET /api/v1/gpu-use/days": RouteRule(PermissionScope.LISTED, LIST),
    "GET /api/v1/history": RouteRule(PermissionScope.LISTED, LIST),
    "GET /api/v1/me": RouteRule(PermissionScope.KNOWN),
    "POST /api/v1/login-links": RouteRule(PermissionScope.KNOWN),
    "GET /api/v1/tokens": _admin("list", "tokens"),
    "GET /api/v1/queues": RouteRule(PermissionScope.MEMBER),
    "GET /api/v1/queues/{name}": RouteRule(PermissionScope.MEMBER),
    "GET /api/v1/queues/{name}/waiting": RouteRule(PermissionScope.MEMBER),
    "GET /api/v1/queue-stats": RouteRule(PermissionScope.MEMBER),
    "GET /api/v1/pools": RouteRule(PermissionScope.MEMBER),
    "GET /api/v1/pools/{pool}/decisions": _admin("get", "resourcepools/decisions"),
    "GET /api/v1/nodes": RouteRule(PermissionScope.MEMBER),
    "GET /api/v1/nodes/{name}": RouteRule(PermissionScope.MEMBER),
    "POST /api/v1/nodes/{name}/enable": _NODES,
    "POST /api/v1/nodes/{name}/drain": _NODES,
    "POST /api/v1/nodes/{name}/disable": _NODES,
    "POST /api/v1/simulate": RouteRule(PermissionScope.BODY, LIST),
    "GET /api/v1/jobs": RouteRule(PermissionScope.LISTED, _jobs("list")),
    "POST /api/v1/jobs": RouteRule(PermissionScope.BODY, _jobs("create")),
    "POST /api/v1/jobs/batch": RouteRule(PermissionScope.BODY, _jobs("patch")),
    "GET /api/v1/jobs/{name}": RouteRule(PermissionScope.QUERY, _jobs("get")),
    "PATCH /api/v1/jobs/{name}": RouteRule(PermissionScope.QUERY, _jobs("patch")),
    "DELETE /api/v1/jobs/{name}": RouteRule(PermissionScope.QUERY, _jobs("delete")),
    "POST /api/v1/jobs/{name}/move": RouteRule(PermissionScope.QUERY, _jobs("patch")),
    "POST /api/v1/jobs/{name}/kill": RouteRule(PermissionScope.QUERY, PATCH),
    "GET /api/v1/templates": RouteRule(PermissionScope.LISTED, _templates("list")),
    "POST /api/v1/templates": RouteRule(PermissionScope.BODY, _templates("create")),
    "GET /api/v1/templates/{name}": RouteRule(PermissionScope.QUERY, _templates("get")),
    "PUT /api/v1/templates/{name}": RouteRule(PermissionScope.BODY, _templates("update")),
    "DELETE /api/v1/templates/{name}": RouteRule(PermissionScope.QUERY, _templates("delete")),
    "GET /api/v1/webhooks": _admin("list", "webhooks"),
    "POST /api/v1/webhooks": _admin("create", "webhooks"),
    "GET /api/v1/webhooks/{name}": _admin("get", "webhooks"),
    "PATCH /api/v1/webhooks/{name}": _admin("patch", "webhooks"),
    "DELETE /api/v1/webhooks/{name}": _admin("delete", "webhooks"),
    "POST /api/v1/webhooks/{name}/test": _admin("create", "webhooks"),
    "GET /api/v1/condition": _admin("list", "deadletters"),
    "GET /api/v1/dead": _admin("list", "deadletters"),
    "POST /api/v1/dead/replay": _admin("create", "deadletters"),
    "GET /api/v1/dead/{letter}": _admin("get", "deadletters"),
    "DELETE /api/v1/dead/{letter}": _admin("delete", "deadletters"),
    "POST /api/v1/dead/{letter}/replay": _admin("create", "deadletters"),
    "PUT /api/v1/contexts": RouteRule(PermissionScope.QUERY, CREATE),
    "GET /api/v1/contexts/{context}": RouteRule(PermissionScope.QUERY, CREATE),
    "GET /api/v1/workspaces": RouteRule(PermissionScope.LISTED, LIST),
    "POST /api/v1/workspaces": _admin("create", "namespaces", group=""),
    "GET /api/v1/workspaces/{name}": RouteRule(PermissionScope.PATH, LIST),
    "PATCH /api/v1/workspaces/{name}": _admin("patch", "namespaces", group=""),
    "DELETE /api/v1/workspaces/{name}": _admin("delete", "namespaces", group=""),
}
for _kind in Kind:
    _root = f"/api/v1/{_kind.value}s"
    _TABLE.update(
        {
            f"POST {_root}": RouteRule(PermissionScope.BODY, CREATE),
            f"GET {_root}": RouteRule(PermissionScope.LISTED, LIST),
            f"GET {_root}/{{id}}": _GET,
            f"POST {_root}/{{id}}/kill": _PATCH,
            f"POST {_root}/{{id}}/priority": _PATCH,
        }
    )

PAGES = (
    *("/", "/w/{id}", "/queues", "/queues/{name}", "/cluster", "/launch", "/usage", "/history"),
    *("/jobs", "/jobs/{name}", "/nodes", "/nodes/{name}", "/templates", "/templates/{name}"),
    *("/webhooks", "/tokens", "/dead", "/more"),
)
"""Paths at which the page's frame is served. It is the same for every reader. `pages/main.js` decides what each address
shows, and lists the addresses in the same order."""

OTHERS: Mapping[str, RouteRule] = {
    **dict.fromkeys(PAGES, RouteRule(PermissionScope.PUBLIC)),
    "/docs": RouteRule(PermissionScope.PUBLIC),
    "/openapi.json": RouteRule(PermissionScope.PUBLIC),
    "/asyncapi.json": RouteRule(PermissionScope.PUBLIC),
    "/assets/{path:path}": RouteRule(PermissionScope.PUBLIC),
    "/trace/{id}": RouteRule(PermissionScope.PUBLIC),
    "/livez": RouteRule(PermissionScope.PUBLIC),
    "/readyz": RouteRule(PermissionScope.PUBLIC),
    "/metrics": RouteRule(PermissionScope.PUBLIC),
    "/login": RouteRule(PermissionScope.PUBLIC),
    "/login/link": RouteRule(PermissionScope.PUBLIC),
    "/login/client": RouteRule(PermissionScope.PUBLIC),
    "/login/start": RouteRule(PermissionScope.PUBLIC),
    "/login/callback": RouteRule(PermissionScope.PUBLIC),
    "/logout": RouteRule(PermissionScope.PUBLIC),
    "/.slipway/enter": RouteRule(PermissionScope.PUBLIC),
    "/proxy/{id}": RouteRule(PermissionScope.PUBLIC),
    "/proxy/{id}/{path:path}": PROXIED,
}
"""Paths beyond the REST API. `/proxy/{id}` only adds a slash, whatever the id."""


def rule_of(method: str, path: str) -> RouteRule:
    """Return the row of a route of the REST API. Raises InvariantError when the table has none."""
    found = _TABLE.get(f"{method} {path}")
    if found is None:
        raise InvariantError(f"{method} {path} is not in the authorisation table: add its row to auth/route_rules.py")
    return found


def listed() -> Iterable[str]:
    """Return every route that has a row, as `METHOD /path`."""
    return _TABLE.keys()
