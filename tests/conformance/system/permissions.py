"""What the accounts of a chart may do, and what they did: tests check that both are equal. Pure.

Owns how Roles are read and how one permission covers one request. A permission is one verb on one resource of one
role: `Role slipway-system/slipway-api: get configmaps`. Must not know the source of roles and requests.

Invariants: no permission of ours is a wildcard, because no test can show that a wildcard is needed. A request covers
every permission that allows it, because roles may overlap on purpose (a cluster's, and one of our namespace).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

Json = Mapping[str, Any]
ALLOWED = "allow"
_ALSO_ASKED = {("get", "pods/exec"): ("create",)}
"""{(verb, resource) of a request: verbs that the API server also checks and does not log}: WebSockets are GETs."""


class Account(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A service account."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        """The user name under which the API server knows it."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


class Permission(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One verb on one resource that one role gives to one account. An empty `namespace` means all namespaces."""

    account: Account
    role: str
    namespace: str
    group: str
    resource: str
    """with its subresource, as in a rule: pods/binding"""
    verb: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        named = f" named {', '.join(self.names)}" if self.names else ""
        return f"{self.role}: {self.verb} {self.resource}{group}{named}"

    def covers(self, request: "Request") -> bool:
        """Whether the permission allows that request."""
        return (
            self.account.user == request.user
            and (self.group, self.resource) == (request.group, request.resource)
            and self.verb in (request.verb, *_ALSO_ASKED.get((request.verb, request.resource), ()))
            and self.namespace in ("", request.namespace)
            and (not self.names or request.name in self.names)
        )


class Request(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One kind of request of a service account, from the audit log."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""
    is_allowed: bool = True
    path: str = ""
    """path of a request that is for no resource, such as /version"""

    def __str__(self) -> str:
        if not self.resource:
            return f"{self.user}: {self.verb} {self.path}"
        group = f".{self.group}" if self.group else ""
        return f"{self.user}: {self.verb} {self.resource}{group} {self.name} in {self.namespace or 'the cluster'}"


def request_of(entry: Json) -> Request:
    """The request of one line of an audit log."""
    about: Json = entry.get("objectRef") or {}
    notes: Json = entry.get("annotations") or {}
    subresource = about.get("subresource", "")
    resource = about.get("resource", "")
    return Request(
        user=entry["user"]["username"],
        verb=entry["verb"],
        group=about.get("apiGroup", ""),
        resource=f"{resource}/{subresource}" if subresource else resource,
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        # Admission refuses with 403 too, for example when a quota is exhausted. Only the authorizer's decision matters
        # here.
        is_allowed=notes.get("authorization.k8s.io/decision", ALLOWED) == ALLOWED,
        path="" if resource else entry.get("requestURI", "").partition("?")[0],
    )


def permissions_of(accounts: Sequence[Account], objects: Iterable[Json]) -> set[Permission]:
    """Every permission that the roles among these objects give to these accounts by the bindings among them."""
    objects = list(objects)
    roles = {_place_of(item): item for item in objects if item["kind"] in ("Role", "ClusterRole")}
    found: set[Permission] = set()
    for binding in objects:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        namespace = binding["metadata"].get("namespace", "")
        about = binding["roleRef"]
        role = roles.get((about["kind"], namespace if about["kind"] == "Role" else "", about["name"]))
        if role is None:
            continue
        for account in accounts:
            if any(_is_meant(subject, account, namespace) for subject in binding.get("subjects") or ()):
                found |= _permissions(account, role, namespace)
    return found


def unused(permissions: Iterable[Permission], requests: Iterable[Request]) -> list[str]:
    """The permissions that no request used, each in words; a permission of several accounts is listed for each."""
    made = set(requests)
    return sorted(
        f"{item.account.name} never needed {item}"
        for item in permissions
        if not any(item.covers(request) for request in made)
    )


def denied(requests: Iterable[Request]) -> list[str]:
    """The requests that the authorizer refused, each in words."""
    return sorted({str(request) for request in requests if not request.is_allowed})


def wildcards(permissions: Iterable[Permission]) -> list[str]:
    """The permissions that contain a wildcard, each in words."""
    return sorted(str(item) for item in permissions if "*" in (item.verb, item.group, item.resource))


def _permissions(account: Account, role: Json, namespace: str) -> set[Permission]:
    place = role["metadata"].get("namespace")
    title = f"{role['kind']} {place + '/' if place else ''}{role['metadata']['name']}"
    return {
        Permission(
            account=account,
            role=title,
            namespace=namespace,
            group=group,
            resource=resource,
            verb=verb,
            names=tuple(sorted(rule.get("resourceNames") or ())),
        )
        for rule in role.get("rules") or ()
        for group in rule.get("apiGroups") or ("",)
        for resource in [*(rule.get("resources") or ()), *(rule.get("nonResourceURLs") or ())]
        for verb in rule["verbs"]
    }


def _is_meant(subject: Json, account: Account, namespace: str) -> bool:
    match subject["kind"]:
        case "ServiceAccount":
            return (subject.get("namespace", namespace), subject["name"]) == (account.namespace, account.name)
        case "Group":
            return subject["name"] == f"system:serviceaccounts:{account.namespace}"
        case _:
            return subject["name"] == account.user


def _place_of(item: Json) -> tuple[str, str, str]:
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]
