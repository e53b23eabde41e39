"""Role-based access: roles and bindings as objects, and whether they allow a call.

Owns the strategies of the four kinds and the search through them. Reads the store and writes nothing. Invariants: a
call that no binding allows is refused; a missing role allows nothing; a Role applies only in its own namespace.

A new cluster gets default roles, bindings and priority classes. A controller step updates aggregated roles, which are
the union of other roles. Invariant: the bootstrap never changes an existing role.

Source: plugin/pkg/auth/authorizer/rbac, pkg/apis/rbac/validation (behaviour, v1.37); its bootstrappolicy (names and
permissions, v1.37; the roles of nodes and controllers are left out, because no user has them here).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from slipway.local.apiserver.admission import SYSTEM_PRIORITIES, Strategy
from slipway.local.apiserver.identity import ACCOUNT_PREFIX, AUTHENTICATED, MASTERS, UNAUTHENTICATED, User, account_name
from slipway.local.apiserver.meta import PATH_SEGMENT
from slipway.local.apiserver.objects import Json, clone, is_map, listing, mapping, maps, metadata, name_of
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.podadmission import PRIORITIES
from slipway.local.apiserver.selectors import selects
from slipway.local.apiserver.status import FieldCause, bad_value, missing, unsupported
from slipway.local.apiserver.store import ApiStore

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore


GROUP = "rbac.authorization.k8s.io"
ROLES, CLUSTER_ROLES = f"roles.{GROUP}", f"clusterroles.{GROUP}"
BINDINGS, CLUSTER_BINDINGS = f"rolebindings.{GROUP}", f"clusterrolebindings.{GROUP}"


class Attributes(msgspec.Struct, frozen=True, kw_only=True):
    """The action that a caller requests: on a resource, or on a `path` that is not a resource."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


class RbacVerdict(msgspec.Struct, frozen=True):
    """Whether the call is allowed. `reason` names the binding that allows it, or the errors of the search."""

    allowed: bool
    reason: str = ""


def decide(store: ApiStore, user: User, wanted: Attributes) -> RbacVerdict:
    if MASTERS in user.groups:
        return RbacVerdict(True)
    errors = list[str]()
    for rule, source in _rules_of(store, user, wanted.namespace, errors):
        if allows(rule, wanted):
            return RbacVerdict(True, f"RBAC: allowed by {source}")
    # As in a real server, the reason of a refusal starts with the authorizer's name ("rbac: "), that of a permission
    # does not.
    return RbacVerdict(False, f"rbac: RBAC: {_joined(errors)}" if errors else "")


def rules_for(store: ApiStore, user: User, namespace: str) -> list[Json]:
    """Return every rule that applies to the user in that namespace."""
    return [rule for rule, _ in _rules_of(store, user, namespace, [])]


def allows(rule: Json, wanted: Attributes) -> bool:
    if not _matches(listing(rule, "verbs"), wanted.verb):
        return False
    if wanted.path:
        return any(_covers(str(pattern), wanted.path) for pattern in listing(rule, "nonResourceURLs"))
    resource = f"{wanted.resource}/{wanted.subresource}" if wanted.subresource else wanted.resource
    resources = listing(rule, "resources")
    names = listing(rule, "resourceNames")
    return (
        _matches(listing(rule, "apiGroups"), wanted.group)
        and (_matches(resources, resource) or (bool(wanted.subresource) and f"*/{wanted.subresource}" in resources))
        and (not names or wanted.name in names)
    )


class RoleStrategy(Strategy):
    name_form = PATH_SEGMENT
    is_namespaced: ClassVar[bool] = True

    def decode(self, obj: Json, options: WriteOptions) -> None:
        obj.setdefault("rules", None)

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        causes = list[FieldCause]()
        for index, rule in enumerate(maps(listing(obj, "rules"))):
            causes += self._rule_causes(rule, f"rules[{index}]")
        return causes

    def _rule_causes(self, rule: Json, path: str) -> list[FieldCause]:
        causes = list[FieldCause]()
        if not listing(rule, "verbs"):
            causes.append(missing(f"{path}.verbs", "verbs must contain at least one value"))
        urls = listing(rule, "nonResourceURLs")
        if urls:
            where = f"{path}.nonResourceURLs"
            if self.is_namespaced:
                causes.append(bad_value(where, urls, "namespaced rules cannot apply to non-resource URLs"))
            if any(listing(rule, field) for field in ("apiGroups", "resources", "resourceNames")):
                words = "rules cannot apply to both regular resources and non-resource URLs"
                causes.append(bad_value(where, urls, words))
            return causes
        if not listing(rule, "apiGroups"):
            causes.append(missing(f"{path}.apiGroups", "resource rules must supply at least one api group"))
        if not listing(rule, "resources"):
            causes.append(missing(f"{path}.resources", "resource rules must supply at least one resource"))
        return causes


class ClusterRoleStrategy(RoleStrategy):
    is_namespaced = False


class BindingStrategy(Strategy):
    """The strategy of both kinds of bindings; `kinds` are the kinds of roles that a binding may refer to."""

    name_form = PATH_SEGMENT
    kinds: ClassVar[tuple[str, ...]] = ("Role", "ClusterRole")

    def decode(self, obj: Json, options: WriteOptions) -> None:
        if is_map(obj.get("roleRef")):
            obj["roleRef"].setdefault("apiGroup", GROUP)
        for subject in maps(listing(obj, "subjects")):
            if subject.get("kind") in ("User", "Group"):
                subject.setdefault("apiGroup", GROUP)

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        reference = mapping(obj, "roleRef")
        causes = list[FieldCause]()
        if reference.get("apiGroup") != GROUP:
            causes.append(unsupported("roleRef.apiGroup", reference.get("apiGroup", ""), [GROUP]))
        if reference.get("kind") not in self.kinds:
            causes.append(unsupported("roleRef.kind", reference.get("kind", ""), sorted(self.kinds, reverse=True)))
        if not reference.get("name"):
            causes.append(missing("roleRef.name"))
        for index, subject in enumerate(maps(listing(obj, "subjects"))):
            causes += _subject_causes(subject, f"subjects[{index}]")
        if old is not None and mapping(old, "roleRef") != reference:
            causes.append(bad_value("roleRef", reference, "field is immutable"))
        return causes


class ClusterBindingStrategy(BindingStrategy):
    kinds = ("ClusterRole",)


def _subject_causes(subject: Json, path: str) -> list[FieldCause]:
    causes = list[FieldCause]()
    if not subject.get("name"):
        causes.append(missing(f"{path}.name"))
    kind = subject.get("kind")
    if kind not in ("ServiceAccount", "User", "Group"):
        return [*causes, unsupported(f"{path}.kind", kind or "", ["ServiceAccount", "User", "Group"])]
    wanted = "" if kind == "ServiceAccount" else GROUP
    if (subject.get("apiGroup") or "") != wanted:
        causes.append(unsupported(f"{path}.apiGroup", subject.get("apiGroup"), [wanted]))
    if kind == "ServiceAccount" and not subject.get("namespace"):
        causes.append(missing(f"{path}.namespace"))
    return causes


def _rules_of(store: ApiStore, user: User, namespace: str, errors: list[str]) -> Iterator[tuple[Json, str]]:
    """Yield (rule, description of its binding) for every rule that applies to the user in the namespace."""
    rooms = [(CLUSTER_BINDINGS, "")] + ([(BINDINGS, namespace)] if namespace else [])
    for resource, place in rooms:
        for record in store.scan(resource, place):
            binding = record.obj
            subject = _subject_of(binding, user, place)
            if not subject:
                continue
            reference = mapping(binding, "roleRef")
            kind, name = str(reference.get("kind")), str(reference.get("name"))
            role = store.find(ROLES, place, name) if kind == "Role" else store.find(CLUSTER_ROLES, "", name)
            if role is None:
                resource_name = "role" if kind == "Role" else "clusterrole"
                errors.append(f'{resource_name}.{GROUP} "{name}" not found')
                continue
            shown = f'RoleBinding "{name_of(binding)}/{place}"' if place else f'ClusterRoleBinding "{name_of(binding)}"'
            source = f'{shown} of {kind} "{name}" to {subject}'
            for rule in maps(listing(role.obj, "rules")):
                yield rule, source


def _subject_of(binding: Json, user: User, namespace: str) -> str:
    """Return a description of the binding's subject that matches the user, or "" when none matches."""
    for subject in maps(listing(binding, "subjects")):
        kind, name = subject.get("kind"), str(subject.get("name"))
        if kind == "User" and name == user.name:
            return f'User "{name}"'
        if kind == "Group" and name in user.groups:
            return f'Group "{name}"'
        place = str(subject.get("namespace") or namespace)
        if kind == "ServiceAccount" and user.name.startswith(ACCOUNT_PREFIX) and user.name == account_name(place, name):
            return f'ServiceAccount "{name}/{place}"'
    return ""


def union(roles: list[Json]) -> list[Json]:
    """Return the rules of several roles without duplicates, ordered by the names of the roles."""
    found = list[Json]()
    for role in sorted(roles, key=name_of):
        found += [clone(rule) for rule in maps(listing(role, "rules")) if rule not in found]
    return found


def _matches(patterns: list[object], value: str) -> bool:
    return "*" in patterns or value in patterns


def _covers(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern.rstrip("*")))


def _joined(errors: list[str]) -> str:
    return errors[0] if len(errors) == 1 else "[" + ", ".join(dict.fromkeys(errors)) + "]"


_READ = ("get", "list", "watch")
_WRITE = ("create", "update", "patch", "delete", "deletecollection")
_WORKLOADS = (
    *("daemonsets", "deployments", "deployments/scale", "replicasets", "replicasets/scale"),
    *("statefulsets", "statefulsets/scale"),
)
_HEALTH = ("/livez", "/readyz", "/healthz", "/version", "/version/")
_API = ("/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*")
_LABEL = {"kubernetes.io/bootstrapping": "rbac-defaults"}


def _rule(verbs: tuple[str, ...], group: str, *resources: str) -> Json:
    return {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)}


def _paths(*paths: str, verb: str = "get") -> Json:
    return {"verbs": [verb], "nonResourceURLs": list(paths)}


_PLAIN: dict[str, list[Json]] = {
    "cluster-admin": [_rule(("*",), "*", "*"), _paths("*", verb="*")],
    "system:discovery": [_paths(*_HEALTH, *_API)],
    "system:public-info-viewer": [_paths(*_HEALTH)],
    "system:monitoring": [_paths("/metrics", "/metrics/slis", *_HEALTH[:3], "/livez/*", "/readyz/*", "/healthz/*")],
    "system:basic-user": [
        _rule(("create",), "authorization.k8s.io", "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
        _rule(("create",), "authentication.k8s.io", "selfsubjectreviews"),
    ],
    "system:auth-delegator": [
        _rule(("create",), "authentication.k8s.io", "tokenreviews"),
        _rule(("create",), "authorization.k8s.io", "subjectaccessreviews"),
    ],
}
_PARTS: dict[str, list[Json]] = {
    "admin": [
        _rule(("create",), "authorization.k8s.io", "localsubjectaccessreviews"),
        _rule((*_READ, *_WRITE), GROUP, "roles", "rolebindings"),
    ],
    "edit": [
        _rule(_READ, "", "pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "secrets", "services/proxy"),
        _rule(("impersonate",), "", "serviceaccounts"),
        _rule(_WRITE, "", "pods", "pods/attach", "pods/proxy", "pods/exec", "pods/portforward", "serviceaccounts"),
        _rule(_WRITE, "", "services", "services/proxy", "persistentvolumeclaims", "configmaps", "secrets", "events"),
        _rule(("create",), "", "pods/eviction", "serviceaccounts/token"),
        _rule(_WRITE, "events.k8s.io", "events"),
        _rule(_WRITE, "apps", *_WORKLOADS),
        _rule(_WRITE, "autoscaling", "horizontalpodautoscalers"),
        _rule(_WRITE, "batch", "jobs", "cronjobs"),
        _rule(_WRITE, "policy", "poddisruptionbudgets"),
        _rule(_WRITE, "networking.k8s.io", "networkpolicies", "ingresses"),
        _rule((*_READ, *_WRITE), "coordination.k8s.io", "leases"),
    ],
    "view": [
        _rule(_READ, "", "pods", "serviceaccounts", "services", "services/status", "endpoints", "configmaps", "events"),
        _rule(_READ, "", "persistentvolumeclaims", "persistentvolumeclaims/status", "limitranges", "resourcequotas"),
        _rule(_READ, "", "bindings", "pods/status", "resourcequotas/status", "namespaces/status", "pods/log"),
        _rule(_READ, "", "namespaces"),
        _rule(_READ, "events.k8s.io", "events"),
        _rule(_READ, "discovery.k8s.io", "endpointslices"),
        _rule(_READ, "apps", "controllerrevisions", *_WORKLOADS, "deployments/status", "replicasets/status"),
        _rule(_READ, "autoscaling", "horizontalpodautoscalers", "horizontalpodautoscalers/status"),
        _rule(_READ, "batch", "jobs", "jobs/status", "cronjobs", "cronjobs/status"),
        _rule(_READ, "policy", "poddisruptionbudgets", "poddisruptionbudgets/status"),
        _rule(_READ, "networking.k8s.io", "networkpolicies", "ingresses", "ingresses/status"),
    ],
}
_ABOVE = {"view": "edit", "edit": "admin"}
_BINDINGS = {
    "cluster-admin": (MASTERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:monitoring": ("system:monitoring",),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
}


def bootstrap(core: "ClusterCore") -> None:
    """Create the missing roles, bindings and priority classes."""
    for name, rules in _PLAIN.items():
        _create(core, CLUSTER_ROLES, _role(name, {}, rules=rules))
    for part, rules in _PARTS.items():
        label: Json = {_aggregate_to(part): "true"}
        above: Json = {_aggregate_to(_ABOVE[part]): "true"} if part in _ABOVE else {}
        _create(core, CLUSTER_ROLES, _role(f"system:aggregate-to-{part}", label, rules=rules))
        selection = {"clusterRoleSelectors": [{"matchLabels": label}]}
        _create(core, CLUSTER_ROLES, _role(part, above, rules=[], aggregationRule=selection))
    for _ in _PARTS:
        aggregate(core)
    for name, value in SYSTEM_PRIORITIES.items():
        _create(core, PRIORITIES, {"metadata": {"name": name}, "value": value})
    for name, groups in _BINDINGS.items():
        reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
        subjects = [{"apiGroup": GROUP, "kind": "Group", "name": group} for group in groups]
        meta = {"name": name, "labels": dict(_LABEL)}
        _create(core, CLUSTER_BINDINGS, {"metadata": meta, "roleRef": reference, "subjects": subjects})


def aggregate(core: "ClusterCore") -> None:
    """Set the rules of each aggregated role to the union of the rules of the roles that it selects."""
    roles = [record.obj for record in core.store.scan(CLUSTER_ROLES)]
    for role in roles:
        selectors = maps(listing(mapping(role, "aggregationRule"), "clusterRoleSelectors"))
        if not selectors:
            continue
        chosen = [
            other
            for other in roles
            if other is not role
            and any(selects(selector, mapping(metadata(other), "labels")) for selector in selectors)
        ]
        rules = union(chosen)
        if rules != (role.get("rules") or []):
            core.commit_update(core.kind(CLUSTER_ROLES), {**clone(role), "rules": rules})


def _role(name: str, labels: Json, **content: Any) -> Json:
    return {"metadata": {"name": name, "labels": {**_LABEL, **labels}}, **content}


def _create(core: "ClusterCore", resource: str, obj: Json) -> None:
    if core.store.find(resource, "", name_of(obj)) is None:
        core.create(resource, "", obj)


def _aggregate_to(part: str) -> str:
    return f"{GROUP}/aggregate-to-{part}"
