"""The caller and what the caller may do: the port between authentication and authorisation.

Code that checks a permission asks the principal, and does not know which way of authentication was used. An answer may
be as old as that way's cache allows. When no answer is available, the check raises: an error never means "allowed".

One permission is a verb on a kind of resource, in Kubernetes' words, and the lowest of our roles that includes it, so
that the same row authorises a request, whether the rights come from our tokens or from Kubernetes.

Handlers write the caller's name into the objects that they create. The name comes from the authentication and never
from the request itself, except in mode `none`.
"""

import re
from typing import Protocol

import msgspec
from starlette.requests import HTTPConnection

from slipway.api.http.errors import ForbiddenError, MalformedError
from slipway.crd.meta import API_GROUP
from slipway.errors import InvariantError
from slipway.model.apitokens import EVERYWHERE, Role

__all__ = ["EVERYWHERE", "PermissionCheck", "Role", "VisibleWorkspaces"]


class PermissionCheck(msgspec.Struct, frozen=True):
    """A permission to check. `resource` may have a subresource: `allocations/log`."""

    verb: str
    resource: str = "allocations"
    role: Role = Role.VIEWER
    """the lowest role of a token that includes the permission"""
    group: str = API_GROUP

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


class VisibleWorkspaces(msgspec.Struct, frozen=True):
    """The workspaces that a caller may see."""

    only: frozenset[str] | None = None
    """their names; None: all workspaces, and resources that belong to no workspace"""

    def has(self, workspace: str) -> bool:
        """Whether the caller may see that workspace."""
        return self.only is None or workspace in self.only

    @property
    def is_whole(self) -> bool:
        """Whether the caller may see everything."""
        return self.only is None


GET, LIST = PermissionCheck("get"), PermissionCheck("list")
LOGS = PermissionCheck("get", "allocations/log")
CREATE, PATCH, DELETE = (PermissionCheck(verb, role=Role.EDITOR) for verb in ("create", "patch", "delete"))
FORGET = PermissionCheck("create", "allocations/forget", Role.ADMIN)
LIMITS = PermissionCheck("create", "allocations/limits", Role.ADMIN)
"""permission to set a maxRuntime above the limit of the queue"""


EXEC = PermissionCheck("create", "allocations/exec", Role.EDITOR)
PROXY = PermissionCheck("create", "allocations/proxy", Role.EDITOR)


USER_HEADER = "x-slipway-user"
SAID = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,127}")
USER_NAME_RULE = "X-Slipway-User: must be 1 to 128 printable ASCII characters"
UNKNOWN = "unknown"


class Principal(Protocol):
    """An authenticated caller."""

    @property
    def name(self) -> str:
        """The user that allocations are launched as."""
        ...

    @property
    def via(self) -> str:
        """The kind or the id of the credential, for the audit log; never the credential itself."""
        ...

    @property
    def roles(self) -> dict[str, str]:
        """{workspace or `*`: role} when the roles are known without a request; empty otherwise."""
        ...

    @property
    def expires_at(self) -> str:
        """The time at which the credential expires, RFC 3339; empty when it is not known."""
        ...

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """Whether `ask` is permitted in a workspace, or in all workspaces with EVERYWHERE.

        Raises:
            TransientError: the permission cannot be checked right now.
        """
        ...

    async def visible_workspaces(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """Return the workspaces where `ask` is permitted. Raises as `may` does."""
        ...

    async def is_still_valid(self) -> bool:
        """Whether the credential is still valid; open streams check it again and again. Raises as `may` does."""
        ...


class WorkloadPageCaller:
    """A user who has the page of a workload open, in the origin of that workload.

    A script of the page can send requests with the user's login. These requests see the workspace of the workload only,
    and may read allocations and logs there and use the proxy.
    """

    def __init__(self, reader: Principal, workspace: str) -> None:
        self._reader = reader
        self._workspace = workspace
        self.name, self.via, self.expires_at = reader.name, reader.via, reader.expires_at
        self.roles: dict[str, str] = {}

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """Whether both the page and its reader have the permission."""
        return workspace == self._workspace and ask in (GET, LOGS, PROXY) and await self._reader.may(ask, workspace)

    async def visible_workspaces(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """Return the workspace of the workload, if the reader may see it."""
        whole = await self._reader.visible_workspaces(ask)
        return VisibleWorkspaces(frozenset([self._workspace] if whole.has(self._workspace) else ()))

    async def is_still_valid(self) -> bool:
        """Whether the reader's credential is still valid."""
        return await self._reader.is_still_valid()


class Authenticator(Protocol):
    """One way to authenticate a caller."""

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """Return the caller of a request.

        Raises:
            UnauthorizedError: there is no credential, or it is not valid.
            TransientError: the credential cannot be checked right now.
        """
        ...


class UnauthenticatedCaller:
    """A caller in mode `none` (on loopback addresses only), under the name in the request. Nothing is refused."""

    via = "none"
    expires_at = ""

    def __init__(self, name: str) -> None:
        self.name = name or UNKNOWN
        self.roles: dict[str, str] = {}

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """Return True: everything is permitted."""
        return True

    async def visible_workspaces(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """Return all workspaces."""
        return VisibleWorkspaces()

    async def is_still_valid(self) -> bool:
        """Return True: there is no credential that could expire."""
        return True


def requested_name(connection: HTTPConnection) -> str:
    """Return the user that a request names; empty when it names none. Raises MalformedError for a wrong name."""
    name = connection.headers.get(USER_HEADER, "").strip()
    if name and SAID.fullmatch(name) is None:
        raise MalformedError(f"{USER_NAME_RULE}, not {name[:32]!r}")
    return name


class NoAuth:
    """Mode `none`: no authentication."""

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """Return a caller under the name in the header; the name is not checked."""
        return UnauthenticatedCaller(connection.headers.get(USER_HEADER, "").strip())


PRINCIPAL_KEY = "slipway.principal"
_KNOWN = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,252}")
"""Permitted names of authenticated users; longer than in mode `none`, because Kubernetes accounts have long names."""


def principal_of(connection: HTTPConnection) -> Principal:
    """Return the caller. Raises InvariantError when the request was not authenticated: it must not be served."""
    found: Principal | None = connection.scope.get(PRINCIPAL_KEY)
    if found is None:
        raise InvariantError(f"{connection.scope['path']} is served without authentication")
    return found


def user_of(connection: HTTPConnection) -> str:
    """Return the caller's name. Raises MalformedError or ForbiddenError when it is no valid name."""
    principal = principal_of(connection)
    if isinstance(principal, UnauthenticatedCaller):
        if SAID.fullmatch(principal.name) is None:
            raise MalformedError(USER_NAME_RULE)
    elif _KNOWN.fullmatch(principal.name) is None:
        raise ForbiddenError(
            "the user's name must have at most 253 characters, all printable ASCII, to own objects here"
        )
    return principal.name
