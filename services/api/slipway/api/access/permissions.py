"""One permission: a verb on a kind of resource, in Kubernetes' words, and the lowest of our roles that includes it.

Owns the mapping between verbs and roles, so that the same row authorises a request, whether the rights come from our
tokens or from Kubernetes. Pure.
"""

import msgspec

from slipway.crd.meta import API_GROUP
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
