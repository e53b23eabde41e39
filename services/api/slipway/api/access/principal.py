"""The caller and what the caller may do: the port between ways of authentication and everything that authorises.

A principal answers for itself; code that asks it does not know which way of authentication was used. An answer may be
as old as that way allows. Where no answer can be had, the question raises: no error ever means "allowed".
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
    """Somebody who calls."""

    @property
    def name(self) -> str:
        """The user that allocations are launched as."""
        ...

    @property
    def via(self) -> str:
        """Which credential it was, for the audit log: never the credential itself."""
        ...

    @property
    def roles(self) -> dict[str, str]:
        """{workspace or `*`: role}, where that is known without asking; else empty."""
        ...

    @property
    def expires_at(self) -> str:
        """Until when the credential counts, RFC 3339; empty when that is not known."""
        ...

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """Whether that is permitted in a workspace, or with EVERYWHERE in all of them.

        Raises:
            TransientError: nobody can say right now.
        """
        ...

    async def sight(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """Where that is permitted. Raises as `may` does."""
        ...

    async def still(self) -> bool:
        """Whether the credential still counts: of streams that go on for hours. Raises as `may` does."""
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
        """What a page may, and its reader."""
        return workspace == self._workspace and ask in (GET, LOGS, PROXY) and await self._reader.may(ask, workspace)

    async def sight(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """That one workspace, if the reader sees it."""
        whole = await self._reader.sight(ask)
        return VisibleWorkspaces(frozenset([self._workspace] if whole.has(self._workspace) else ()))

    async def still(self) -> bool:
        """Whether the reader's credential still counts."""
        return await self._reader.still()


class Authenticator(Protocol):
    """One way to find out who calls."""

    async def who(self, connection: HTTPConnection) -> Principal:
        """Who calls.

        Raises:
            UnauthorizedError: there is no credential, or it is not valid.
            TransientError: nobody can say right now.
        """
        ...


class Anybody:
    """Whoever can connect, by whatever name they give (mode `none`, on loopback addresses only): nothing is refused."""

    via = "none"
    expires_at = ""

    def __init__(self, name: str) -> None:
        self.name = name or UNKNOWN
        self.roles: dict[str, str] = {}

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """Everything."""
        return True

    async def sight(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """Everywhere."""
        return VisibleWorkspaces()

    async def still(self) -> bool:
        """Always."""
        return True


def said_name(connection: HTTPConnection) -> str:
    """The user that a request names; empty when it names none. Raises MalformedError when it cannot be a user."""
    name = connection.headers.get(USER_HEADER, "").strip()
    if name and SAID.fullmatch(name) is None:
        raise MalformedError(f"{USER_NAME_RULE}, not {name[:32]!r}")
    return name


class Open:
    """Mode `none`."""

    async def who(self, connection: HTTPConnection) -> Principal:
        """Who they say they are."""
        return Anybody(connection.headers.get(USER_HEADER, "").strip())
