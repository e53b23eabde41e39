"""Authenticates the caller, authorises the request by its row of the table, and limits what the handler can read.

Owns the order of these steps and the form of a refusal. Invariants: a resource that the caller cannot see returns 404,
after the same steps and in the same words as a resource that does not exist. A caller gets 403 only for a resource that
the caller may see. When a row leaves the check to the handler, the handler makes the check before it answers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from starlette.requests import HTTPConnection

from slipway.api.allocations.lookup import find_logged
from slipway.api.auth.origins import workload_of
from slipway.api.auth.principal import (
    EVERYWHERE,
    GET,
    LIST,
    PRINCIPAL_KEY,
    PermissionCheck,
    Principal,
    Role,
    UnauthenticatedCaller,
    VisibleWorkspaces,
    WorkloadPageCaller,
    principal_of,
)
from slipway.api.auth.route_rules import PROXIED, PermissionScope, RouteRule
from slipway.api.auth.scoped_client import Redactor, VisibleKube
from slipway.api.auth.session import is_by_cookie
from slipway.api.deps import PARTS_KEY, ApiDeps, parts_of
from slipway.api.http import audit
from slipway.api.http.errors import ForbiddenError
from slipway.api.http.streaming import HOLDER_KEY, StreamHolder
from slipway.api.ports import ShutdownSignal
from slipway.api.schemas import DEFAULT_WORKSPACE
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import InvariantError, NotFoundError, ThrottledError, TransientError
from slipway.runtime.clock import Clock
from slipway.runtime.web_guard import is_foreign

CHECK_S = 5.0
"""Interval at which an open stream is authorised again."""
PATIENCE_S = 60.0
"""How long an open stream continues while its authorisation cannot be checked."""
REFUSAL_PAUSE_S = 0.5
"""Delay of the refusal of a call that exceeds the rate of its user."""
ASKED_KEY = "slipway.asked"
REDACTOR_KEY = "slipway.blinds"


async def admit(request: HTTPConnection, rule: RouteRule) -> None:
    """Authenticate the caller and make the check of `rule`. After it, the request sees only what the caller may see.

    Raises:
        UnauthorizedError: the caller is not authenticated.
        NotFoundError: the resource does not exist, or the caller may not see it.
        ForbiddenError: the caller may see the resource, but may not do this.
        TransientError: the check cannot be made right now.
    """
    if rule.where is PermissionScope.PUBLIC:
        return
    parts = parts_of(request)
    principal = await parts.access.authenticate(request)
    request.scope[PRINCIPAL_KEY] = principal
    if isinstance(principal, UnauthenticatedCaller):
        return
    if is_by_cookie(request):
        _check_own_page(request)
    principal = await _in_origin(request, parts, principal)
    if rule != PROXIED:
        try:
            parts.rates.take(principal.name)
        except ThrottledError:
            # Without a delay, a caller that retries at once would keep the process busy with refusals.
            await parts.clock.sleep(REFUSAL_PAUSE_S)
            raise
    parts = _seen(request, parts, principal)
    workspace = EVERYWHERE
    match rule.where:
        case PermissionScope.KNOWN | PermissionScope.LISTED:
            pass
        case PermissionScope.MEMBER:
            await _check_member(request)
        case PermissionScope.CLUSTER:
            await _check_cluster(principal, rule.ask)
        case PermissionScope.QUERY:
            workspace = workspace_in_query(request)
            audit.note_object(request, {}, workspace=workspace)
            await permit(request, rule.ask, workspace)
        case PermissionScope.PATH:
            workspace = str(request.path_params["name"])
            audit.note_object(request, {}, workspace=workspace)
            await permit(request, rule.ask, workspace)
        case PermissionScope.OBJECT:
            workspace = (await _find(request, parts, rule)).metadata.namespace
        case PermissionScope.BODY:
            request.scope[ASKED_KEY] = False
    stop = RequestStop(
        parts.stop, parts.clock, principal, rule if rule.where is PermissionScope.OBJECT else None, workspace
    )
    request.scope[PARTS_KEY] = replace(parts_of(request), stop=stop)
    request.scope[HOLDER_KEY] = StreamHolder(
        user=principal.name, workspace="" if workspace == EVERYWHERE else workspace
    )


def ensure_permission_checked(request: HTTPConnection) -> None:
    """Run after the handler. Raises InvariantError when the handler had to make the check and did not make it."""
    if request.scope.get(ASKED_KEY) is False:
        raise InvariantError(f"{request.scope['path']}: its handler has not asked whether this is permitted")


def workspace_in_query(request: HTTPConnection) -> str:
    """The workspace that `?workspace=` names; the default one when it is missing or empty."""
    return request.query_params.get("workspace") or DEFAULT_WORKSPACE


async def permit(request: HTTPConnection, ask: PermissionCheck, workspace: str) -> None:
    """Check `ask` in one workspace, for example in the workspace that a body names.

    Raises:
        NotFoundError: the workspace does not exist, or the caller may not see it.
        ForbiddenError: the caller may see the workspace, but may not do this.
    """
    request.scope[ASKED_KEY] = True
    principal = principal_of(request)
    may, visible = await principal.may(ask, workspace), await principal.visible_workspaces(GET)
    # For a caller who sees all workspaces, a later step reports a missing workspace, and lists the existing ones.
    if not visible.is_whole and not (visible.has(workspace) or may):
        raise _no_workspace(workspace)
    if not may:
        raise _forbidden(principal, ask, f"in workspace {workspace[:80]}")
    if not visible.is_whole and not await _is_there(request, workspace):
        raise _no_workspace(workspace)


def permit_patch(request: HTTPConnection) -> Callable[[str, str], Awaitable[None]]:
    """Return a check of `patch` on a kind of resource in a workspace, for code that reads the body later."""

    async def ask(resource: str, workspace: str) -> None:
        await permit(request, PermissionCheck("patch", resource, Role.EDITOR), workspace)

    return ask


async def permit_on(request: HTTPConnection, ask: PermissionCheck, workspace: str, what: str) -> None:
    """Check `ask` on a resource that was found; `what` is its name for the error. Raises ForbiddenError."""
    request.scope[ASKED_KEY] = True
    principal = principal_of(request)
    if not await principal.may(ask, workspace):
        raise _forbidden(principal, ask, f"on {what}")


async def permit_everywhere(request: HTTPConnection, ask: PermissionCheck) -> None:
    """Check `ask` for the whole cluster. Raises ForbiddenError."""
    request.scope[ASKED_KEY] = True
    await _check_cluster(principal_of(request), ask)


async def permit_member(request: HTTPConnection) -> None:
    """Check that the caller may see at least one workspace of this cluster. Raises ForbiddenError."""
    request.scope[ASKED_KEY] = True
    await _check_member(request)


async def visible_workspaces_of(request: HTTPConnection, ask: PermissionCheck = LIST) -> VisibleWorkspaces:
    """Return the workspaces in which the caller has the permission `ask`."""
    return await principal_of(request).visible_workspaces(ask)


async def workspaces_of(request: HTTPConnection) -> list[str]:
    """Return the names of the workspaces that the caller may see."""
    visible = await visible_workspaces_of(request)
    return [name for name in await parts_of(request).catalog.workspaces() if visible.has(name)]


async def redactor_of(request: HTTPConnection) -> Redactor | None:
    """Return the filter that removes hidden names from our sentences; None when the caller may see all names."""
    caller = getattr(request.state, "caller", None)
    if caller is not None and caller.workspace:
        own = VisibleWorkspaces(frozenset([caller.workspace]))
        return await _redactor_for(request, own)
    principal = request.scope.get(PRINCIPAL_KEY)
    if principal is None or isinstance(principal, UnauthenticatedCaller):
        return None
    visible = await visible_workspaces_of(request)
    return None if visible.is_whole else await _redactor_for(request, visible)


async def redacted(request: HTTPConnection, sentence: str) -> str:
    """Return a sentence of ours without hidden names, for answers that are not the JSON answer of a handler."""
    redactor = await redactor_of(request)
    return sentence if redactor is None else redactor.sentence(sentence)


async def _redactor_for(request: HTTPConnection, visible: VisibleWorkspaces) -> Redactor:
    known = await parts_of(request).catalog.workspace_names()
    return Redactor((name for name in known if not visible.has(name)), visible.has)


class RequestStop:
    """A shutdown signal for one request: it is also set when the caller loses the permission for the request."""

    def __init__(
        self, stop: ShutdownSignal, clock: Clock, principal: Principal, rule: RouteRule | None, workspace: str
    ) -> None:
        self._stop = stop
        self._clock = clock
        self._principal = principal
        self._rule = rule
        self._workspace = workspace
        self._has_ended = False

    def is_set(self) -> bool:
        """Whether the request has to end."""
        return self._has_ended or self._stop.is_set()

    async def wait(self) -> None:
        """Wait until the process stops, or the caller loses the permission."""
        stopping = asyncio.ensure_future(self._stop.wait())
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            watching.cancel()
            await asyncio.gather(stopping, watching, return_exceptions=True)

    async def _watch(self) -> None:
        known_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(CHECK_S)
            try:
                if not await self._may_still():
                    break
                known_at = self._clock.monotonic()
            except TransientError:
                if self._clock.monotonic() - known_at > PATIENCE_S:
                    break
        self._has_ended = True

    async def _may_still(self) -> bool:
        if not await self._principal.is_still_valid():
            return False
        return self._rule is None or await self._principal.may(self._rule.ask, self._workspace)


def _check_own_page(request: HTTPConnection) -> None:
    """Check that a changing request by cookie was sent by a page of exactly the same origin.

    Raises ForbiddenError otherwise, also for a related origin such as that of a workload.
    """
    if str(request.scope.get("method", "WEBSOCKET")) in audit.READING:
        return
    origin, site = request.headers.get("origin", ""), request.headers.get("sec-fetch-site", "")
    is_own = bool(origin) and not is_foreign(origin, request.headers.get("host", ""))
    if not is_own or site not in ("", "same-origin"):
        raise ForbiddenError(
            "a logged-in browser may do this only from the pages of this server; a program must send a token"
        )


async def _in_origin(request: HTTPConnection, parts: ApiDeps, principal: Principal) -> Principal:
    """Return the caller; in the origin of a workload, narrowed to what its page may use. Raises NotFoundError."""
    id_ = workload_of(request.headers.get("host", ""), parts.settings.proxy_domain)
    if not id_:
        return principal
    lookup = parts.lookup.seen_by(partial(principal.visible_workspaces, GET))
    narrowed = WorkloadPageCaller(principal, await lookup.workspace_of(id_))
    request.scope[PRINCIPAL_KEY] = narrowed
    return narrowed


def _seen(request: HTTPConnection, parts: ApiDeps, principal: Principal) -> ApiDeps:
    """Return `parts` with a client and a lookup that find only what the caller may see, whatever the row checks."""
    lookup = parts.lookup.seen_by(partial(principal.visible_workspaces, GET))
    seen = replace(parts, kube=VisibleKube(parts.kube, principal), lookup=lookup)
    request.scope[PARTS_KEY] = seen
    return seen


async def _is_there(request: HTTPConnection, workspace: str) -> bool:
    """Whether the workspace exists: a role can name a workspace that was deleted or never existed."""
    catalog = parts_of(request).catalog
    return workspace in await catalog.workspace_names() or workspace in await catalog.workspaces()


def _no_workspace(name: str) -> NotFoundError:
    return NotFoundError(f"there is no workspace {name[:80]!r}; GET /api/v1/workspaces lists what there is")


async def _find(request: HTTPConnection, parts: ApiDeps, rule: RouteRule) -> Allocation:
    """Return the allocation that the path names, if the caller may see it. The handler does not read it again."""
    principal = principal_of(request)
    lookup = parts.lookup.within(await principal.visible_workspaces(GET))
    given = str(request.path_params["id"])
    found = await (find_logged(lookup, parts.log_archive, given) if rule.is_archived else lookup.find(given))
    audit.note_object(request, {}, workspace=found.metadata.namespace)
    if rule.ask != GET and not await principal.may(rule.ask, found.metadata.namespace):
        raise _forbidden(principal, rule.ask, f"on allocation {given[:80]}")
    lookup.hold(given, found)
    request.scope[PARTS_KEY] = replace(parts, lookup=lookup)
    return found


async def _check_member(request: HTTPConnection) -> None:
    """Check that the caller may see an existing workspace; a role in a deleted workspace is not enough."""
    principal = principal_of(request)
    visible = await principal.visible_workspaces(LIST)
    if visible.is_whole:
        return
    known = await parts_of(request).catalog.workspace_names()
    if not any(visible.has(name) for name in known):
        raise ForbiddenError(
            f"{principal.name[:128]} has no role in any workspace, and without one may not see the cluster either"
        )


async def _check_cluster(principal: Principal, ask: PermissionCheck) -> None:
    if not await principal.may(ask, EVERYWHERE):
        raise _forbidden(principal, ask, "in the whole cluster")


def _forbidden(principal: Principal, ask: PermissionCheck, where: str) -> ForbiddenError:
    return ForbiddenError(
        f"{principal.name[:128]} may not {ask} {where}: that needs the role {ask.role}, or in Kubernetes this very verb"
    )
