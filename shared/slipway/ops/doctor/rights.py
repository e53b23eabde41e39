"""The permissions that the accounts of the four services need: the chart's roles as a table, for the doctor's reviews.

This table has no content of its own. A test compares it with the roles that the chart renders, and conformance compares
those roles with the calls of the services. Pure.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from slipway.crd.meta import API_GROUP


class RightScope(StrEnum):
    """The scope in which a right is needed."""

    CLUSTER = "cluster"
    WORKSPACES = "workspaces"
    """In every workspace; a right in the whole cluster is enough."""
    OWN = "own"
    """In the namespace of the services."""
    WEBHOOKS = "webhooks"
    """In the namespace of webhooks."""


class Right(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One verb on one resource (`pods/log`). With `name`, it is limited to one object."""

    scope: RightScope
    group: str
    resource: str
    verb: str
    name: str = ""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}{f' {self.name}' if self.name else ''}"


_LEASES = "coordination.k8s.io"
_READ, _WATCH, _FOLLOW = ("get", "list"), ("list", "watch"), ("get", "list", "watch")
Rows = tuple[tuple[RightScope, str, tuple[str, ...], tuple[str, ...]], ...]
_C, _W, _O = RightScope.CLUSTER, RightScope.WORKSPACES, RightScope.OWN

_TABLE: dict[str, Rows] = {
    "api": (
        (_C, API_GROUP, ("allocations",), _FOLLOW),
        (_C, API_GROUP, ("templates", "jobs", "resourcepools", "queues"), _READ),
        (_C, "", ("namespaces", "pods", "resourcequotas"), _READ),
        (_C, "", ("limitranges",), ("list",)),
        (_C, "", ("persistentvolumeclaims", "persistentvolumes"), ("get",)),
        (_C, "storage.k8s.io", ("storageclasses",), ("get",)),
        (_C, "", ("nodes",), ("list", "patch", "watch")),
        (_C, "authentication.k8s.io", ("tokenreviews",), ("create",)),
        (_W, API_GROUP, ("allocations", "jobs"), ("create", "delete", "patch")),
        (_W, API_GROUP, ("templates",), ("create", "delete", "update")),
        (_W, "", ("pods/log",), ("get",)),
        (_W, "", ("configmaps",), ("create", "delete", "get", "list", "patch")),
        (_W, "", ("resourcequotas",), ("create", "delete", "patch")),
        (_W, "", ("secrets",), ("create",)),
        (RightScope.WEBHOOKS, "", ("secrets",), ("create", "delete", "get", "list", "update", "watch")),
    ),
    "scheduler": (
        (_C, API_GROUP, ("allocations", "resourcepools"), _READ),
        (_C, API_GROUP, ("resourcepools/status",), ("update",)),
        (_C, API_GROUP, ("queues", "jobs"), ("list",)),
        (_C, "", ("namespaces", "nodes", "pods", "limitranges", "resourcequotas"), ("list",)),
        (_C, "", ("persistentvolumeclaims", "persistentvolumes"), ("get",)),
        (_C, "storage.k8s.io", ("storageclasses",), ("get",)),
        (_W, API_GROUP, ("allocations",), ("patch",)),
        (_W, API_GROUP, ("allocations/status",), ("update",)),
        (_O, _LEASES, ("leases",), ("create", "get", "update")),
        (_O, "", ("configmaps",), ("get",)),
    ),
    "podworker": (
        (_C, API_GROUP, ("allocations",), _READ),
        (_C, API_GROUP, ("resourcepools",), ("get",)),
        (_C, "", ("namespaces",), ("get",)),
        (_C, "", ("configmaps", "services", "pods"), ("list",)),
        (_C, "storage.k8s.io", ("storageclasses",), _READ),
        (_W, API_GROUP, ("allocations/status",), ("update",)),
        (_W, "", ("configmaps",), ("create", "delete", "get")),
        (_W, "", ("services",), ("create", "delete", "get", "patch")),
        (_W, "", ("pods",), ("create", "delete", "get", "patch")),
        (_W, "", ("pods/binding",), ("create",)),
        (_W, "", ("persistentvolumeclaims",), ("create", "get")),
        (_W, "scheduling.k8s.io", ("podgroups",), ("create", "get")),
    ),
    "watcher": (
        (_C, API_GROUP, ("allocations",), _FOLLOW),
        (_C, API_GROUP, ("resourcepools", "queues", "jobs"), _WATCH),
        (_C, "", ("pods", "nodes"), _FOLLOW),
        (_C, "", ("configmaps", "services"), _READ),
        (_C, "", ("namespaces", "events", "limitranges", "resourcequotas"), _WATCH),
        (_W, API_GROUP, ("allocations",), ("delete", "patch")),
        (_W, API_GROUP, ("allocations/status",), ("update",)),
        (_W, "", ("pods",), ("delete", "patch")),
        (_W, "", ("pods/log",), ("get",)),
        (_W, "", ("configmaps", "secrets", "services"), ("delete",)),
        (_W, "events.k8s.io", ("events",), ("create", "get", "patch")),
        (_O, _LEASES, ("leases",), ("create",)),
        (_O, "", ("configmaps",), ("create", "update")),
    ),
}
_NAMED: dict[str, tuple[Right, ...]] = {
    "watcher": tuple(
        Right(scope=_O, group=_LEASES, resource="leases", verb=verb, name="slipway-feed") for verb in ("get", "update")
    )
}
_BY_SETTING: dict[str, tuple[Right, ...]] = {
    "auth=kubernetes": (Right(scope=_C, group="authorization.k8s.io", resource="subjectaccessreviews", verb="create"),),
    "autoscaling=true": (
        *(
            Right(scope=_O, group="", resource="podtemplates", verb=verb)
            for verb in ("create", "delete", "list", "patch")
        ),
        *(Right(scope=_O, group="", resource="pods", verb=verb) for verb in ("create", "delete")),
        *(
            Right(scope=_O, group="autoscaling.x-k8s.io", resource="provisioningrequests", verb=verb)
            for verb in ("create", "delete", "list")
        ),
    ),
    "execEnabled=true": tuple(Right(scope=_W, group="", resource="pods/exec", verb=verb) for verb in ("create", "get")),
    "rbac.namespaces=[]": tuple(
        Right(scope=_C, group="", resource="namespaces", verb=verb) for verb in ("create", "delete", "patch")
    ),
}
"""Further rights of the account in `SETTING_OF`, for installations with that chart setting."""
SETTING_OF = {setting: "scheduler" if setting == "autoscaling=true" else "api" for setting in _BY_SETTING}
ACCOUNTS = tuple(_TABLE)


def rights_of(account: str) -> Iterator[Right]:
    """Yield the rights that the account always needs."""
    for scope, group, resources, verbs in _TABLE[account]:
        for resource in resources:
            for verb in verbs:
                yield Right(scope=scope, group=group, resource=resource, verb=verb)
    yield from _NAMED.get(account, ())


def optional_rights(setting: str) -> tuple[Right, ...]:
    """Return the further rights that the account needs when the chart is installed with that setting."""
    return _BY_SETTING[setting]
