"""One permission: a verb on a kind of resource, in Kubernetes' words, and the lowest of our roles that includes it.

Owns the correspondence of the two, so that a request is authorised by the same row whether the roles come from our
tokens or from Kubernetes. Pure.
"""

import msgspec

from slipway.crd.meta import API_GROUP
from slipway.model.apitokens import EVERYWHERE, Role

__all__ = ["EVERYWHERE", "PermissionCheck", "Role", "VisibleWorkspaces"]


class PermissionCheck(msgspec.Struct, frozen=True):
    """May somebody do this? `resource` may have a subresource: `allocations/log`."""

    verb: str
    resource: str = "allocations"
    role: Role = Role.VIEWER
    """the least role of a token that includes it"""
    group: str = API_GROUP

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


class VisibleWorkspaces(msgspec.Struct, frozen=True):
    """The workspaces that somebody may look into; None: all, and what belongs to none."""

    only: frozenset[str] | None = None

    def has(self, workspace: str) -> bool:
        """Whether they may look into that one."""
        return self.only is None or workspace in self.only

    @property
    def is_whole(self) -> bool:
        """Whether nothing is hidden from them."""
        return self.only is None


GET, LIST = PermissionCheck("get"), PermissionCheck("list")
LOGS = PermissionCheck("get", "allocations/log")
CREATE, PATCH, DELETE = (PermissionCheck(verb, role=Role.EDITOR) for verb in ("create", "patch", "delete"))
FORGET = PermissionCheck("create", "allocations/forget", Role.ADMIN)
LIMITS = PermissionCheck("create", "allocations/limits", Role.ADMIN)
"""to let something run beyond the limit of its queue"""
EXEC = PermissionCheck("create", "allocations/exec", Role.EDITOR)
PROXY = PermissionCheck("create", "allocations/proxy", Role.EDITOR)
