"""The caller and what the caller may do: the port between authentication and authorisation.

Code that checks a permission asks the principal, and does not know which way of authentication was used. An answer may
be as old as that way's cache allows. When no answer is available, the check raises: an error never means "allowed".
"""

import re
from typing import Protocol

from starlette.requests import HTTPConnection

from slipway.api.access.permissions import GET, LOGS, PROXY, PermissionCheck, VisibleWorkspaces
from slipway.api.http_errors import MalformedError

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
